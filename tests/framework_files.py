"""Handmade files of other frameworks' formats, just long enough to be recognized."""

import io
import json
import zipfile

from models import small_cnn

ONNX = small_cnn(size=12).SerializeToString()


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    """A field of a protobuf message: an integer, text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node_def(name, op, *inputs):
    return field(1, name) + field(2, op) + b"".join(field(3, i) for i in inputs)


def graph_def(nodes=40):
    """A GraphDef: a placeholder, and a chain of Relu."""
    names = ["x", *(f"block/relu_{i}" for i in range(nodes))]
    out = field(1, node_def("x", "Placeholder") + field(5, field(1, "dtype") + field(2, field(6, 1))))
    for before, name in zip(names, names[1:]):
        out += field(1, node_def(name, "Relu", before))
    return out + field(4, field(1, 1882))


def saved_model():
    meta = field(1, field(1, field(1, "NoOp")) + field(4, "serve")) + field(2, graph_def())
    return field(1, 1) + field(2, meta)


def program_desc():
    """A ProgramDesc of PaddlePaddle: one block with a variable."""
    block = field(1, 0) + b"\x10" + b"\xff" * 9 + b"\x01" + field(3, field(1, "image") + field(2, field(1, 7)))
    return field(1, block) + field(4, field(1, 0))


def keras_archive(config=None, **more):
    """A .keras archive; more: names of entries → bytes, or ZipInfo and bytes in a pair."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        archive.writestr("config.json", json.dumps(config or {"class_name": "Functional", "config": {}}))
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
        for name, entry in more.items():
            archive.writestr(*entry) if isinstance(entry, tuple) else archive.writestr(name, entry)
    return out.getvalue()


LAMBDA = {
    "class_name": "Functional",
    "config": {"layers": [{"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}}]},
}
PIR = b'{"base_code":{"magic":"pir","trainable":true,"version":4},"program":{"regions":[]}}'
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(500)

# format → the files that it has to recognize under any name
READ = {
    "ONNX": [ONNX],
    "TensorFlow": [graph_def(), graph_def(1)],
    "Keras": [keras_archive(), HDF5],
    "PaddlePaddle": [program_desc(), PIR],
    "Caffe": [b'name: "net"\nlayer { name: "a" type: "Input" top: "a" }'],
    "Darknet": [b"# a network\n[net]\nwidth=8\n"],
    "TFLite": [bytes([28, 0, 0, 0]) + b"TFL3" + bytes(24)],
}
SYMBOL = b'{\n  "nodes": [\n    {\n      "op": "null", \n      "name": "data", \n      "inputs": []\n    }],"heads":[]}'
RETIRED = {
    "ONNX Runtime's own format": [bytes([40, 0, 0, 0]) + b"ORTM" + bytes(40)],
    "UFF": [field(1, 1) + field(2, 1) + field(3, field(1, "core") + field(2, 1)) + field(4, field(1, "main"))],
    "MXNet": [SYMBOL, b"\x12\x01" + bytes(22)],
    "CNTK": [field(1, 1) + field(2, field(1, "primitive_functions") + field(2, field(1, 1))), b"B\0C\0N\0rest"],
}
NET_DEF = field(1, "squeezenet") + field(2, field(1, "data") + field(2, "conv1") + field(4, "Conv")) + field(7, "data")
# names of files that say more than how they begin
NAMED = {
    "Caffe2": {"predict_net.pb": NET_DEF, "init_net.pb": NET_DEF},
    "Sonnet, TensorFlow checkpoints": {
        "model.ckpt-17.index": bytes(10),
        "variables.data-00000-of-00001": b"\x01\x02",
        "model.ckpt-17.meta": bytes(10),
        "checkpoint": b'model_checkpoint_path: "model.ckpt-17"',
    },
}

OPENVINO = b'<?xml version="1.0"?>\n<net name="model" version="11">\n\t<layers>'
CORE_ML = field(1, 7) + field(2, field(1, field(1, "image") + field(3, field(4, bytes(3)))) + field(10, field(1, "y")))
# format that is not read → names of files → how they begin
FOREIGN = {
    "Safetensors": {"model.safetensors": (64).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}' + bytes(99)},
    "GGUF": {"llama.gguf": b"GGUF\3\0\0\0" + bytes(40), "old.bin": b"lmgg" + bytes(40)},
    "OpenVINO": {"model.xml": OPENVINO, "old.xml": b'<net batch="1" name="m" version="7">\n'},
    "TensorRT": {
        "model.engine": b"ftrt" + bytes(60),
        "model.plan": b"ptrt" + bytes(60),
        "yolo.engine": (12).to_bytes(4, "little") + b'{"stride":8}' + b"ftrt" + bytes(60),
        "other.trt": b"\1\2\3",
    },
    "Core ML": {"model.mlmodel": CORE_ML + field(502, b"\xff\xff")},
    "ncnn": {"model.param": b"7767517\n75 83\nInput data 0 1 data\n", "model.param.bin": b"\xdd\x85\x76\0" + bytes(9)},
    "MNN": {"model.mnn": bytes([32, 0, 0, 0]) + bytes(28)},
    "engines of NPUs and of phones": {
        "model.rknn": b"RKNN" + bytes(60),
        "model.hef": b"\1HEF" + bytes(60),
        "model.pte": bytes([60, 0, 0, 0]) + b"ET12" + bytes(40),
        "model.om": b"IMOD" + bytes(60),
    },
    "TensorFlow.js": {"model.json": b'{"format": "layers-model", "modelTopology": {"keras_version": "2.15"}}'},
    "XGBoost, LightGBM": {
        "model.json": b'{"learner":{"attributes":{}}}',
        "model.ubj": b"{L" + (7).to_bytes(8, "big") + b"learner{",
        "model.txt": b"tree\nversion=v4\nnum_class=1\n",
    },
    "pickles": {"model.pkl": b"\x80\4\x95\1\0", "model.joblib": b"\x80\3csklearn"},
    "weights of other files": {"model.onnx.data": bytes(64), "model.pdiparams": bytes(64)},
}
