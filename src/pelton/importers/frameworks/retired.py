"""Rejected formats of retired frameworks and of ONNX Runtime itself, recognized to explain how their models become
ONNX."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

from pelton.importers import signs
from pelton.importers.registry import register_refused

UFF = {1: signs.VARINT, 2: signs.VARINT, 3: signs.BYTES, 4: signs.BYTES, 5: signs.BYTES, 100: signs.BYTES}
CNTK = {b"type", b"uid", b"name", b"version", b"root_uid", b"inputs", b"primitive_functions", b"op", b"attributes"}
CNTK_V1 = "BCN".encode("utf-16-le")
MXNET_PARAMS = b"\x12\x01" + bytes(6)  # the magic number 0x112 in 64 bits
NET_DEF = dict.fromkeys((1, 3, 7, 8), signs.TEXT) | {2: signs.BYTES, 4: signs.VARINT, 5: signs.BYTES, 6: signs.BYTES}


def is_uff(source: Any) -> bool:
    """True for a MetaGraph of TensorRT's UFF: two version numbers, then descriptors."""
    data = signs.head(source)
    return [number for number, *_ in signs.fields(data)][:2] == [1, 2] and signs.fits(data, UFF)


def is_mxnet(source: Any) -> bool:
    """True for the symbol (JSON of nodes) or the parameters of MXNet; Gluon's have the same forms."""
    data = signs.head(source)
    if data[:1] == b"{":
        return re.match(rb'\{\s*"nodes"\s*:\s*\[\s*\{\s*"op"\s*:', data) is not None
    return data.startswith(MXNET_PARAMS)


def is_cntk(source: Any) -> bool:
    """True for a function of CNTK 2, which is a dictionary of these keys, or a network of CNTK 1."""
    data = signs.head(source)
    version, entry = [*itertools.islice(signs.fields(data), 2), None, None][:2]
    if version != (1, signs.VARINT, 1) or entry is None or entry[:2] != (2, signs.BYTES):
        return data.startswith(CNTK_V1)
    key = next(signs.fields(bytes(entry[2])), None)
    return key is not None and key[2] in CNTK


def is_caffe2(source: Any) -> bool:
    """True for a NetDef of Caffe2 in a file of such a name, as other messages begin alike."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    name, data = os.path.basename(os.fsdecode(source)), signs.head(source)
    return re.search(r"(init|predict)_?net\.pb$", name) is not None and signs.fits(data, NET_DEF)


def is_ort(source: Any) -> bool:
    """True for a file of ONNX Runtime's own format, a flatbuffer that names itself."""
    return signs.head(source, 8)[4:] == b"ORTM"


def is_checkpoint(source: Any) -> bool:
    """True for a file of a TensorFlow checkpoint: the values of variables, without the program."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    name = os.path.basename(os.fsdecode(source))
    named = (
        name == "checkpoint" or re.search(r"\.(index|data-\d{5}-of-\d{5})$|\.ckpt(-\d+)?(\.meta)?$", name) is not None
    )
    return named and signs.head(source) != b""


RETIRED = (
    (
        "ONNX Runtime's own format",
        ".ort",
        is_ort,
        "build from the ONNX model that it was made of, or save it as ONNX again with onnxruntime",
        "python -c \"import onnxruntime as o; s = o.SessionOptions(); s.optimized_model_filepath = 'model.onnx';"
        " s.add_session_config_entry('session.save_model_format', 'ONNX'); o.InferenceSession('model.ort', s)\"",
    ),
    (
        "UFF",
        ".uff",
        is_uff,
        "TensorRT's form of TensorFlow graphs has no way back: build from the graph that it was made of",
        "pelton build frozen.pb",
    ),
    (
        "MXNet",
        "-symbol.json and .params",
        is_mxnet,
        "export it with MXNet 1.9, in Python 3.8",
        "python -c \"import mxnet as mx; mx.onnx.export_model('model-symbol.json', 'model-0000.params',"
        " [(1, 3, 224, 224)], 'float32', 'model.onnx')\"",
    ),
    (
        "CNTK",
        ".model, .dnn",
        is_cntk,
        "export it with CNTK 2.7, in Python 3.6",
        "python -c \"import cntk; cntk.Function.load('model.dnn').save('model.onnx', format=cntk.ModelFormat.ONNX)\"",
    ),
    (
        "Caffe2",
        "init_net.pb and predict_net.pb",
        is_caffe2,
        "export it with PyTorch 1.13, which includes Caffe2",
        "convert-caffe2-to-onnx predict_net.pb --caffe2-init-net init_net.pb --value-info"
        " '{\"data\": [1, [1, 3, 224, 224]]}' -o model.onnx",
    ),
    (
        "Sonnet, TensorFlow checkpoints",
        ".index and .data-00000-of-00001",
        is_checkpoint,
        "a checkpoint holds only the values of variables: load it into its module, save that as a SavedModel, build it",
        "python -c \"tf.saved_model.save(module, 'folder', signatures=tf.function(module).get_concrete_function("
        'tf.TensorSpec([None, 224, 224, 3])))" && pelton build folder',
    ),
)


for _name, _files, _recognizes, _way, _command in RETIRED:
    register_refused(_name, _files, _recognizes, f"a model of {_name}", _way, _command)
