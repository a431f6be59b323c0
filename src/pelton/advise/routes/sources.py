"""Formats and frameworks that a model comes from: example files, and the steps before Pelton reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RouteStep:
    """A command line, or a line of Python, and what it is for."""

    line: str
    why: str = ""


@dataclass(frozen=True)
class ModelSource:
    """What a model comes as.

    model: its example file or folder in command lines; flags: options that every command needs for it. first: steps
    before. language: example file or folder of a language model, "" if this source has none; other models of it are
    `model`. page: of the documentation. limits: what is not read, in sentences.
    """

    name: str
    title: str
    model: str
    page: str
    aliases: tuple[str, ...] = ()
    flags: str = ""
    first: tuple[RouteStep, ...] = ()
    language: str = ""
    limits: tuple[str, ...] = ()


FORMATS = "docs/formats.md"
TENSORFLOW = RouteStep("pelton import-env tensorflow", "once: TensorFlow and tf2onnx, in an environment of their own")

SOURCES = (
    ModelSource(
        "onnx",
        "ONNX (.onnx)",
        "model.onnx",
        "docs/operators.md",
        limits=("Operators of other packages need a plugin: docs/plugins.md.",),
    ),
    ModelSource(
        "pytorch",
        "PyTorch (a module, .pt2)",
        "model.pt2",
        FORMATS,
        ("torch",),
        first=(
            RouteStep("pip install 'pelton[torch]'"),
            RouteStep(
                "torch.export.save(torch.export.export(module, (x,)), 'model.pt2')", "in Python, with an example input"
            ),
        ),
        limits=("Checkpoints of torch.save contain weights and no program; they are refused.",),
    ),
    ModelSource(
        "keras",
        "Keras (.keras, .h5)",
        "model.keras",
        FORMATS,
        first=(RouteStep("model.save('model.keras')", "in Python"),),
        limits=("Layers that Pelton does not read itself need TensorFlow: pelton import-env tensorflow.",),
    ),
    ModelSource(
        "tensorflow",
        "TensorFlow (SavedModel folder, frozen .pb)",
        "saved_model/",
        FORMATS,
        ("tf", "savedmodel"),
        first=(TENSORFLOW,),
        limits=("Checkpoints (.index, .data) contain no program; save a SavedModel.",),
    ),
    ModelSource(
        "tflite",
        "TFLite, LiteRT (.tflite)",
        "model.tflite",
        FORMATS,
        ("litert",),
        limits=(
            "Strings and hash tables are not read.",
            "A model of 8-bit integers stays one: leave out --precision int8 and --calibration.",
        ),
    ),
    ModelSource(
        "caffe",
        "Caffe (.prototxt, .caffemodel)",
        "deploy.prototxt",
        FORMATS,
        flags=" --weights net.caffemodel",
        limits=("Python, Filter and BatchReindex layers are not read.",),
    ),
    ModelSource(
        "darknet",
        "Darknet (.cfg, .weights)",
        "yolov3.cfg",
        FORMATS,
        ("yolo",),
        flags=" --weights yolov3.weights",
        limits=("Class trees (YOLO9000), binary weights and conv_lstm are not read.",),
    ),
    ModelSource(
        "paddle",
        "PaddlePaddle (.json or .pdmodel, .pdiparams)",
        "model.json",
        FORMATS,
        ("paddlepaddle",),
        first=(
            RouteStep("paddle.jit.save(layer, 'model', input_spec=[…])", "in Python"),
            RouteStep("pelton import-env paddle", "once: PaddlePaddle and paddle2onnx, in an environment of their own"),
        ),
    ),
    ModelSource(
        "jax",
        "JAX (a function or module in Python)",
        "model.onnx",
        FORMATS,
        ("flax",),
        first=(
            RouteStep("pip install jax2onnx", "Python 3.11 or newer, or: pelton import-env jax"),
            RouteStep(
                "onnx.save(jax2onnx.to_onnx(function, [('batch', 3, 224, 224)]), 'model.onnx')",
                "in Python, with the shapes of the inputs",
            ),
        ),
    ),
    ModelSource(
        "gguf",
        "GGUF (.gguf), a language model",
        "",
        "docs/language.md",
        ("llama.cpp",),
        language="model.gguf",
        limits=("Commands for other models (build, export, convert) do not read GGUF files.",),
    ),
    ModelSource(
        "huggingface",
        "Hugging Face (folder with config.json)",
        "exported/model.onnx",
        "docs/language.md",
        ("hf", "transformers"),
        first=(RouteStep("optimum-cli export onnx --model FOLDER exported", "models other than language models"),),
        language="folder/",
        limits=("Families of language models and of sentence encoders that are read: docs/language.md.",),
    ),
    ModelSource(
        "api",
        "pelton.Network (a network written layer by layer in Python)",
        "model.onnx",
        "docs/network.md",
        ("network", "python"),
        first=(
            RouteStep("pelton.export_onnx(net, 'model.onnx')", "in Python; pelton.build(net) builds without a file"),
        ),
    ),
)
