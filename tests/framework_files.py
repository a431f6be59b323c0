"""Files of formats that other frameworks write, made by hand: as many bytes as tell them apart."""

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
