"""Keras files written by hand: archives, HDF5 files with a model, and the HDF5 format itself, without h5py."""

import io
import json
import struct
import zipfile

import numpy as np

UNDEFINED = b"\xff" * 8
PRECISION = {2: (15, 10, 5, 0, 10, 15), 4: (31, 23, 8, 0, 23, 127), 8: (63, 52, 11, 0, 52, 1023)}


def padded(data):
    return data + bytes(-len(data) % 8)


class Hdf5Writer:
    """Writes groups of the old kind, arrays in one piece, and texts as attributes of fixed length."""

    def __init__(self):
        self.data = bytearray(96)

    def put(self, data):
        """The address of data at the end of the file."""
        at = len(self.data)
        self.data += padded(bytes(data))
        return at

    def header(self, messages):
        body = b"".join(struct.pack("<HHB3x", kind, len(padded(m)), 0) + padded(m) for kind, m in messages)
        return self.put(struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body)

    def array(self, a):
        a = np.asarray(a)
        size = a.dtype.itemsize
        if a.dtype.kind == "f":
            sign, *rest, bias = PRECISION[size]
            kind = struct.pack("<BBBBIHHBBBBI", 0x11, 0x20, sign, 0, size, 0, 8 * size, *rest, bias)
        else:
            kind = struct.pack("<BBBBIHH", 0x10, 8 * (a.dtype.kind == "i"), 0, 0, size, 0, 8 * size)
        space = struct.pack("<BBB5x", 1, a.ndim, 0) + b"".join(struct.pack("<Q", n) for n in a.shape)
        where = struct.pack("<BBQQ", 3, 1, self.put(a.tobytes()), a.nbytes)
        return self.header([(1, space), (3, kind), (8, where)])

    def attribute(self, name, value):
        texts = [t.encode() for t in ([value] if isinstance(value, str) else value)]
        size = max([len(t) for t in texts] + [1])
        rank = 0 if isinstance(value, str) else 1
        space = struct.pack("<BBB5x", 1, rank, 0) + (struct.pack("<Q", len(texts)) if rank else b"")
        kind = struct.pack("<BBBBI", 0x13, 1, 0, 0, size)
        key = name.encode() + b"\0"
        head = struct.pack("<BxHHH", 1, len(key), len(kind), len(space))
        body = padded(key) + padded(kind) + padded(space) + b"".join(t.ljust(size, b"\0") for t in texts)
        return 12, head + body

    def group(self, tree, attributes, path=""):
        """tree: name → an array, a tree, or the number of an address that is a soft link's."""
        names, entries = bytearray(8), []
        for name in sorted(tree):
            at, soft = len(names), isinstance(tree[name], str)
            names += padded(name.encode() + b"\0")
            if soft:
                target, header = len(names), 0
                names += padded(tree[name].encode() + b"\0")
                entries.append(struct.pack("<QQI4xQ8x", at, 2**64 - 1, 2, target))
                continue
            inner = f"{path}/{name}" if path else name
            is_tree = isinstance(tree[name], dict)
            header = self.group(tree[name], attributes, inner) if is_tree else self.array(tree[name])
            entries.append(struct.pack("<QQI4x16x", at, header, 0))
        heap = self.put(struct.pack("<4sB3xQQQ", b"HEAP", 0, len(names), 1, self.put(names)))
        table = self.put(struct.pack("<4sBxH", b"SNOD", 1, len(entries)) + b"".join(entries))
        node = struct.pack("<4sBBH", b"TREE", 0, 0, 1) + UNDEFINED * 2 + struct.pack("<QQQ", 0, table, 0)
        messages = [(17, struct.pack("<QQ", self.put(node), heap))]
        return self.header(messages + [self.attribute(k, v) for k, v in attributes.get(path, {}).items()])

    def file(self, tree, attributes):
        root = self.group(tree, attributes)
        start = b"\x89HDF\r\n\x1a\n" + struct.pack("<8B", 0, 0, 0, 0, 0, 8, 8, 0) + struct.pack("<HHI", 512, 16, 0)
        start += struct.pack("<Q", 0) + UNDEFINED + struct.pack("<Q", len(self.data)) + UNDEFINED
        self.data[:96] = start + struct.pack("<QQI4x16x", 0, root, 0)
        return bytes(self.data)


def hdf5(tree, attributes=None):
    """The bytes of a file. tree: nested dicts of arrays; attributes: path of a group → name → text, or texts."""
    return Hdf5Writer().file(tree, attributes or {})


def tree_of(arrays):
    """Nested dicts from paths."""
    found = {}
    for path, array in arrays.items():
        *folders, last = path.split("/")
        at = found
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = array
    return found


def layer(kind, name, *calls, module="keras.layers", **config):
    """A layer as Keras 3 describes it. calls: lists of the names of layers whose first results it reads."""
    nodes = [{"args": [tensors(c)], "kwargs": {}} for c in calls]
    config = {"name": name, "trainable": True, "dtype": "float32", **config}
    return {"module": module, "class_name": kind, "config": config, "name": name, "inbound_nodes": nodes}


def tensors(names):
    """References to tensors: a name, (name, call, number), or a list of these."""
    if isinstance(names, list):
        return [tensors(n) for n in names]
    history = [names, 0, 0] if isinstance(names, str) else list(names)
    return {"class_name": "__keras_tensor__", "config": {"shape": [], "dtype": "float32", "keras_history": history}}


def given(name, *shape, dtype="float32"):
    config = {"batch_shape": [None, *shape], "dtype": dtype, "sparse": False, "ragged": False, "name": name}
    return {"module": "keras.layers", "class_name": "InputLayer", "config": config, "name": name, "inbound_nodes": []}


def functional(layers, inputs, outputs, name="model"):
    ends = [[[n, 0, 0] if isinstance(n, str) else list(n) for n in names] for names in (inputs, outputs)]
    config = {"name": name, "trainable": True, "layers": layers, "input_layers": ends[0], "output_layers": ends[1]}
    return {"module": "keras.src.models.functional", "class_name": "Functional", "config": config}


def sequential(layers, name="sequential"):
    config = {"name": name, "trainable": True, "dtype": "float32", "layers": layers}
    return {"module": "keras", "class_name": "Sequential", "config": config}


def archive(config, arrays, version="3.15.1", attributes=None):
    """A .keras archive. arrays: path of a variable, such as layers/dense/vars/0 → its elements."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("metadata.json", json.dumps({"keras_version": version}))
        file.writestr("config.json", json.dumps(config))
        file.writestr("model.weights.h5", hdf5(tree_of(arrays), attributes))
    return out.getvalue()


def listed(config, variables, version="2.15.0"):
    """An .h5 file of a model. variables: name of a layer → name of a variable → its elements, in order."""
    groups = {name: tree_of(arrays) for name, arrays in variables.items()}
    attributes = {f"model_weights/{name}": {"weight_names": list(arrays)} for name, arrays in variables.items()}
    attributes["model_weights"] = {"layer_names": list(variables)}
    attributes[""] = {"model_config": json.dumps(config), "keras_version": version}
    return hdf5({"model_weights": groups}, attributes)
