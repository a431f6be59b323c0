"""Files that users encounter and Pelton rejects: weights without a program, and files of other engines. Errors name the
format and a way to a model that Pelton reads."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import signs
from .registry import register_refused

FROM_MODULE = "pelton.build(module, example_inputs=(x,)).save('model.pelton')"
IN_SAFETENSORS = "module.load_state_dict(safetensors.torch.load_file('model.safetensors'))"
MODEL_OF_CORE_ML = {1: signs.VARINT, 2: signs.BYTES}
DESCRIPTION = dict.fromkeys((1, 10, 13, 20, 50, 100), signs.BYTES) | dict.fromkeys((11, 12, 21), signs.TEXT)
FEATURE = {1: signs.TEXT, 2: signs.TEXT, 3: signs.BYTES}
WEIGHTS_OF_MODULES = ("*.safetensors", "pytorch_model*.bin", "*.gguf", "flax_model.msgpack")


@dataclass(frozen=True)
class Foreign:
    """A kind of file that is rejected. what: its name in messages, files: its appearance, way: how its users obtain a
    model that Pelton reads, command: the command for this, if any."""

    name: str
    what: str
    files: str
    recognizes: Callable[[Any], bool]
    way: str
    command: str = ""
    suffixes: tuple[str, ...] = ()


def _begins(*magics: bytes, at: int = 0) -> Callable[[Any], bool]:
    """Returns a test of the bytes at a place near the beginning."""

    def recognizes(source: Any) -> bool:
        return signs.head(source, 64)[at:].startswith(magics)

    return recognizes


def _nothing(source: Any) -> bool:
    """Matches nothing: only the name identifies the format."""
    return False


def _folder(source: Any) -> Path | None:
    """Returns the folder at a path."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(os.fsdecode(source))
    try:
        return path if path.is_dir() else None
    except (OSError, ValueError):
        return None


def is_safetensors(source: Any) -> bool:
    """True for a 64-bit size followed by a JSON object of that size."""
    data = signs.head(source, 16)
    return len(data) > 9 and data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") < 1 << 32


def is_hugging_face(source: Any) -> bool:
    """True for a folder of a transformers or diffusers module: its configuration or its weights, and no ONNX file."""
    folder = _folder(source)
    if folder is None or signs.models_in(folder):
        return False
    if (folder / "model_index.json").is_file() or any(any(folder.glob(p)) for p in WEIGHTS_OF_MODULES):
        return True
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and not {"model_type", "architectures", "transformers_version"}.isdisjoint(config)


def is_openvino(source: Any) -> bool:
    """True for the XML of a network, or the .bin of weights beside it."""
    if signs.suffix(source) == ".bin":
        return is_openvino(Path(os.fsdecode(source)).with_suffix(".xml"))
    return re.match(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<net\b[^>]*\bversion=", signs.head(source)) is not None


def is_tensorrt(source: Any) -> bool:
    """True for a plan, or one behind JSON metadata, as some exporters write it."""
    data = signs.head(source)
    if data[4:5] == b"{":
        data = data[4 + int.from_bytes(data[:4], "little") :]
    return data.startswith((b"ptrt", b"ftrt"))


def is_core_ml(source: Any) -> bool:
    """True for a message Model whose description begins with an input, or the folder of a package or compiled model."""
    if folder := _folder(source):
        return any((folder / name).exists() for name in ("Data/com.apple.CoreML", "coremldata.bin"))
    begin = list(itertools.islice(signs.fields(signs.head(source)), 2))
    if [field[:2] for field in begin] != [(1, signs.VARINT), (2, signs.BYTES)]:
        return False
    inner = bytes(begin[1][2])
    first = next(signs.fields(inner), None)
    if first is None or first[:2] != (1, signs.BYTES) or not signs.fits(inner, DESCRIPTION):
        return False
    feature = bytes(first[2])
    return signs.fits(feature, FEATURE) and next(signs.fields(feature))[0] == 1


def is_ncnn(source: Any) -> bool:
    """True for a .param of text or of numbers, or the .bin beside it."""
    begins = _begins(b"7767517\n", b"7767517\r", b"\xdd\x85\x76\x00")
    if signs.suffix(source) == ".bin" and not begins(source):
        return any(begins(Path(os.fsdecode(source)).with_suffix(end)) for end in (".param", ".param.bin"))
    return begins(source)


def is_boosted(source: Any) -> bool:
    """True for trees of XGBoost (JSON, or its binary form) or of LightGBM."""
    data = signs.head(source, 64)
    return re.match(rb'\{\s*"learner"\s*:|\{L.{8}learner|tree\r?\nversion=', data, re.S) is not None


def is_tensorflow_js(source: Any) -> bool:
    """True for the model.json of TensorFlow.js, whose weights are in files beside it."""
    data = signs.head(source)
    return data[:1] == b"{" and re.search(rb'"(?:modelTopology|weightsManifest)"\s*:', data) is not None


def is_pickle(source: Any) -> bool:
    """True for a pickle of protocol 2 or newer, by its first byte."""
    data = signs.head(source, 2)
    return len(data) == 2 and data[0] == 0x80 and 2 <= data[1] <= 5


BUILT = "build the model that it was created from"
FOREIGN = (
    Foreign(
        "Safetensors",
        "a file of weights (safetensors), without a program",
        ".safetensors",
        is_safetensors,
        f"create the module in PyTorch, load the weights with {IN_SAFETENSORS}, and build it",
        FROM_MODULE,
    ),
    Foreign(
        "Hugging Face",
        "a folder of a module of transformers or diffusers, with weights but no program",
        "folder with config.json and weights",
        is_hugging_face,
        "open a language model, a sentence encoder or a Whisper with pelton.LanguageModel (docs/language.md); export"
        " others to ONNX with the package optimum, or build the module in Python (docs/formats.md)",
        "optimum-cli export onnx --model FOLDER exported && pelton build exported/model.onnx",
    ),
    Foreign(
        "GGUF",
        "a language model of llama.cpp (GGUF or GGML), weights without a program",
        ".gguf",
        _begins(b"GGUF", b"lmgg", b"fmgg", b"tjgg", b"algg"),
        "open it with pelton.LanguageModel (docs/language.md), or in a shell",
        'pelton generate model.gguf "The capital of France is"',
        suffixes=(".gguf",),
    ),
    Foreign(
        "OpenVINO",
        "a network of OpenVINO, which cannot be converted to ONNX",
        ".xml with .bin",
        is_openvino,
        f"{BUILT}, an ONNX file or another format that `pelton formats` lists",
    ),
    Foreign(
        "TensorRT",
        "an engine of TensorRT, machine code for one kind of GPU",
        ".engine, .plan",
        is_tensorrt,
        f"{BUILT}, mostly an ONNX file",
        "pelton build model.onnx --target cuda",
        suffixes=(".engine", ".plan", ".trt"),
    ),
    Foreign(
        "Core ML",
        "a model of Core ML, which cannot be converted to ONNX",
        ".mlmodel, .mlpackage",
        is_core_ml,
        "build the model that coremltools converted, a SavedModel or a module of PyTorch",
        FROM_MODULE,
        suffixes=(".mlmodel",),
    ),
    Foreign(
        "ncnn",
        "a network of ncnn, which cannot be converted to ONNX",
        ".param with .bin",
        is_ncnn,
        "build the model that onnx2ncnn or pnnx converted: the ONNX file, or the module",
    ),
    Foreign(
        "MNN",
        "a network of MNN, which cannot be converted to ONNX",
        ".mnn",
        _nothing,
        "build the model that MNNConvert converted",
        suffixes=(".mnn",),
    ),
    Foreign(
        "engines of NPUs and of phones",
        "a model compiled for a special processor (RKNN, Hailo, Ascend, SNPE, ExecuTorch)",
        ".rknn, .hef, .om, .dlc, .pte",
        lambda source: (
            _begins(b"RKNN", b"CYPTRKNN", b"\x01HEF", b"IMOD")(source)
            or _begins(b"ET1", at=4)(source)
            or not {"model.params", "dlc.metadata"}.isdisjoint(signs.names_in_zip(source))
        ),
        BUILT,
        suffixes=(".rknn", ".hef", ".om", ".dlc", ".pte", ".nb"),
    ),
    Foreign(
        "TensorFlow.js",
        "a model of TensorFlow.js",
        "model.json with .bin",
        is_tensorflow_js,
        "convert it back to Keras with the package tensorflowjs",
        "tensorflowjs_converter --input_format=tfjs_layers_model --output_format=keras_keras model.json model.keras",
    ),
    Foreign(
        "XGBoost, LightGBM",
        "trees of XGBoost or LightGBM",
        ".json, .ubj, .txt",
        is_boosted,
        "convert them with the package onnxmltools, in the program that trained them",
        "python -c \"onnxmltools.utils.save_model(onnxmltools.convert_xgboost(model, initial_types=[('x',"
        " FloatTensorType([None, 4]))]), 'model.onnx')\"",
    ),
    Foreign(
        "pickles",
        "a pickle of Python objects (scikit-learn, joblib, .pdparams), which is not read, as it may run code",
        ".pkl, .joblib",
        is_pickle,
        "load it in the program that it belongs to, and export the model there; of scikit-learn, with skl2onnx",
        "python -c \"open('model.onnx', 'wb').write(skl2onnx.to_onnx(model, x[:1]).SerializeToString())\"",
        suffixes=(".pkl", ".pickle", ".joblib"),
    ),
    Foreign(
        "weights of other files",
        "weights that belong to the file of a model",
        ".onnx.data, .pdiparams",
        _nothing,
        "use the model next to it (.onnx, .pdmodel), which finds its weights",
        suffixes=(".data", ".onnx_data", ".pdiparams", ".pdparams"),
    ),
)

for _f in FOREIGN:
    register_refused(_f.name, _f.files, _f.recognizes, _f.what, _f.way, _f.command, _f.suffixes)
