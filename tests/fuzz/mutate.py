"""Damage to models: by their structure, as a careless or malicious exporter would, and to their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    -2,
    16,
    64,
    255,
    1000,
    -7,
    1 << 15,
    1 << 20,
    1 << 31,
    -(1 << 31),
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
    -(1 << 63),
)
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 17, 64, 1000, -1, -5, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), 1e-45, 3.0)
WORDS = (
    "",
    "x",
    "y",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "linear",
    "cubic",
    "nearest",
    "add",
    "none",
    "ij,jk->ik",
    "...",
    "ij->",
    "->",
    "bidirectional",
    "reverse",
    "floor",
    "a" * 5000,
    "\0",
    "ä",
    "%s%n",
    "../../x",
    "Relu",
    "LEFT",
    "wrap",
    "reflect",
    "edge",
)
TYPES = tuple(v for v in TensorProto.DataType.values()) + (99, -3)


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """A model file with one to four things changed."""
    if rng.random() < 0.2:
        return bytes_changed(seed, rng)
    m = ModelProto.FromString(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        change = rng.choice(CHANGES)
        try:
            change(m, rng)
        except (ValueError, TypeError, LookupError, DecodeError, onnx.checker.ValidationError):
            # nothing there to be changed in this way
            continue
    return m.SerializeToString() if rng.random() < 0.97 else bytes_changed(m.SerializeToString(), rng)


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes replaced, cut out, doubled; the rest cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 30)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


# --- finding things


def _graphs(m: ModelProto) -> Iterator[GraphProto]:
    """All graphs of a model, those within nodes included."""
    waiting = [m.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(
            g for n in graph.node for a in n.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)
        )


def _nodes(m: ModelProto) -> list[NodeProto]:
    return [n for g in _graphs(m) for n in g.node] + [n for f in m.functions for n in f.node]


def _names(m: ModelProto) -> list[str]:
    return [
        n
        for g in _graphs(m)
        for n in (*(i.name for i in g.input), *(t.name for t in g.initializer), *(o for n in g.node for o in n.output))
    ] or [""]


def _tensors(m: ModelProto) -> list[TensorProto]:
    found = [t for g in _graphs(m) for t in g.initializer]
    return found + [a.t for n in _nodes(m) for a in n.attribute if a.type == AttributeProto.TENSOR]


def _infos(m: ModelProto) -> list[onnx.ValueInfoProto]:
    return [v for g in _graphs(m) for v in (*g.input, *g.output, *g.value_info)]


# --- changes of nodes


def _input(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(m))
    at = rng.randrange(len(node.input))
    node.input[at] = rng.choice([*_names(m), "", "nobody"])


def _swap_inputs(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in _nodes(m) if len(n.input) > 1])
    order = list(node.input)
    rng.shuffle(order)
    node.input[:] = order


def _arity(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(m))
    names = node.input if rng.random() < 0.6 else node.output
    if rng.random() < 0.5:
        del names[rng.randrange(len(names))]
    else:
        names.insert(rng.randrange(len(names) + 1), rng.choice([*_names(m), "", "extra"]))


def _output(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(m))
    node.output[rng.randrange(len(node.output))] = rng.choice([*_names(m), "", "other"])


def _cycle(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(m))
    node.input[rng.randrange(len(node.input))] = rng.choice(list(node.output))


def _operator(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(m))
    if rng.random() < 0.9:
        node.op_type = rng.choice(
            sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == node.domain or not node.domain})
            + ["", "Nothing"]
        )
    else:
        node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "mine", "nowhere"))


def _drop_node(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(_graphs(m)))
    del graph.node[rng.randrange(len(graph.node))]


def _copy_node(m: ModelProto, rng: random.Random) -> None:
    """A node once more, somewhere else, under new names or the old ones."""
    graph = rng.choice(list(_graphs(m)))
    node = NodeProto()
    node.CopyFrom(rng.choice(_nodes(m)))
    if rng.random() < 0.7:
        node.output[:] = [o and o + "'" for o in node.output]
    if rng.random() < 0.5 and graph.output:
        graph.output[0].name = node.output[0]
    graph.node.insert(rng.randrange(len(graph.node) + 1), node)


def _shuffle(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(_graphs(m)))
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


# --- changes of attributes


def _attribute(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in _nodes(m) if n.attribute])
    a = rng.choice(list(node.attribute))
    kind = a.type
    if rng.random() < 0.1:
        a.name = rng.choice([b.name for n in _nodes(m) for b in n.attribute] + ["", "axis"])
    elif rng.random() < 0.06:
        a.type = rng.choice(list(AttributeProto.AttributeType.values()))
    elif kind == AttributeProto.INT:
        a.i = rng.choice((*NUMBERS, a.i + 1, -a.i, a.i - 1))
    elif kind == AttributeProto.FLOAT:
        a.f = rng.choice((*FLOATS, -a.f))
    elif kind == AttributeProto.STRING:
        a.s = rng.choice(WORDS).encode() if rng.random() < 0.9 else b"\xff\xfe"
    elif kind == AttributeProto.INTS:
        _list(a.ints, (*NUMBERS, *NUMBERS[:6], *NUMBERS[:6]), rng)
    elif kind == AttributeProto.FLOATS:
        _list(a.floats, FLOATS, rng)
    elif kind == AttributeProto.STRINGS:
        _list(a.strings, [w.encode() for w in WORDS], rng)
    elif kind == AttributeProto.GRAPH:
        a.g.CopyFrom(GraphProto.FromString(rng.choice(list(_graphs(m))).SerializeToString()))  # perhaps of itself
    else:
        node.attribute.remove(a)


def _list(values, choices, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and values:
        del values[rng.randrange(len(values))]
    elif kind == 1:
        values.insert(rng.randrange(len(values) + 1), rng.choice(choices))
    elif values:
        values[rng.randrange(len(values))] = rng.choice(choices)


def _give_attribute(m: ModelProto, rng: random.Random) -> None:
    """An attribute of the operator that the node did not have, or lost."""
    node = rng.choice(_nodes(m))
    if rng.random() < 0.3 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
        return
    if not onnx.defs.has(node.op_type, node.domain):  # an earlier change gave it another domain
        return
    schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    if not schema.attributes:
        return
    name = rng.choice(sorted(schema.attributes))
    kind = schema.attributes[name].type.name
    given = {
        "INT": rng.choice(NUMBERS),
        "FLOAT": rng.choice(FLOATS),
        "STRING": rng.choice(WORDS),
        "INTS": rng.choices(NUMBERS[:8], k=rng.randrange(5)),
        "FLOATS": rng.choices(FLOATS, k=rng.randrange(4)),
        "STRINGS": rng.choices(WORDS, k=2),
    }[kind if kind in _KINDS else "INT"]
    if kind in _KINDS and not (kind.endswith("S") and not given):
        node.attribute.append(onnx.helper.make_attribute(name, given))


_KINDS = ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")


def _swap_graphs(m: ModelProto, rng: random.Random) -> None:
    """The bodies of two attributes change places."""
    one, other = rng.sample([a for n in _nodes(m) for a in n.attribute if a.type == AttributeProto.GRAPH], 2)
    kept, new = one.g.SerializeToString(), other.g.SerializeToString()
    if kept not in new and new not in kept:  # one within the other goes away with it
        one.g.CopyFrom(GraphProto.FromString(new))
        other.g.CopyFrom(GraphProto.FromString(kept))


# --- changes of types, constants, and the whole


def _shape(m: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(_infos(m)).type.tensor_type
    dims = tensor.shape.dim
    kind = rng.randrange(6)
    if kind == 0 and dims:
        del dims[rng.randrange(len(dims))]
    elif kind == 1:
        dims.add(dim_value=rng.choice(SIZES))
    elif kind == 2 and dims:
        dims[rng.randrange(len(dims))].dim_param = rng.choice(("n", "m", "2*n", "n//0", "n+", "", "n-m", "max(n, 3)"))
    elif kind == 3:
        tensor.ClearField("shape")
    elif dims:
        dims[rng.randrange(len(dims))].dim_value = rng.choice(SIZES)


def _dtype(m: ModelProto, rng: random.Random) -> None:
    info = rng.choice(_infos(m))
    if rng.random() < 0.1:
        info.type.CopyFrom(onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence(elem_type=info.type)))
    else:
        info.type.tensor_type.elem_type = rng.choice(TYPES)


def _tensor_type(m: ModelProto, rng: random.Random) -> None:
    rng.choice(_tensors(m)).data_type = rng.choice(TYPES)


def _tensor_dims(m: ModelProto, rng: random.Random) -> None:
    _list(rng.choice(_tensors(m)).dims, SIZES, rng)


def _tensor_values(m: ModelProto, rng: random.Random) -> None:
    """Other numbers in a constant: what small ones say are often sizes, axes and indices."""
    tensor = rng.choice([t for t in _tensors(m) if t.data_type != TensorProto.STRING])
    array = numpy_helper.to_array(tensor).copy()
    if array.size > 4096:
        return
    flat = array.reshape(-1)
    for _ in range(rng.randrange(1, 4)):
        with np.errstate(all="ignore"):
            value = rng.choice(NUMBERS) if rng.random() < 0.6 else rng.choice(FLOATS)
            flat[rng.randrange(flat.size)] = np.asarray(value).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _tensor_reshaped(m: ModelProto, rng: random.Random) -> None:
    """Fewer or more values, another rank."""
    tensor = rng.choice([t for t in _tensors(m) if t.data_type != TensorProto.STRING])
    array = numpy_helper.to_array(tensor)
    if array.size > 4096:
        return
    changed = rng.choice(
        (
            array.reshape(-1),
            array[None],
            array.reshape(-1)[:1],
            array.reshape(-1)[:0],
            np.concatenate([array.reshape(-1)] * 2),
            array.reshape(-1)[:1].reshape(()) if array.size else array,
            np.moveaxis(array, 0, -1) if array.ndim else array,
        )
    )
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed).reshape(changed.shape), tensor.name))


def _initializers(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(_graphs(m)))
    kind = rng.randrange(3)
    if kind == 0:
        del graph.initializer[rng.randrange(len(graph.initializer))]
    elif kind == 1:
        graph.initializer.add().CopyFrom(rng.choice(_tensors(m)))
    else:  # an input becomes a constant
        info = rng.choice(list(graph.input))
        graph.initializer.append(numpy_helper.from_array(np.array(rng.choice(NUMBERS[:10])), info.name))


def _external(m: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(_tensors(m))
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(
        key="location", value=rng.choice(("../secret", "/etc/passwd", "", "no.bin", "a\0b", "..\\x", "."))
    )
    tensor.external_data.add(key="offset", value=rng.choice(("0", "-1", "x", "9" * 30)))


def _opset(m: ModelProto, rng: random.Random) -> None:
    rng.choice(list(m.opset_import)).version = rng.choice(
        (1, 5, 6, 7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 99, 0, -4, (1 << 62))
    )


def _outputs(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(_graphs(m)))
    kind = rng.randrange(3)
    if kind == 0:
        del graph.output[rng.randrange(len(graph.output))]
    elif kind == 1:
        graph.output.add(name=rng.choice(_names(m)))
    else:
        graph.output[rng.randrange(len(graph.output))].name = rng.choice(_names(m))


def _inputs(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(_graphs(m)))
    if rng.random() < 0.5:
        del graph.input[rng.randrange(len(graph.input))]
    else:
        graph.input.add().CopyFrom(rng.choice(_infos(m)))


def _function(m: ModelProto, rng: random.Random) -> None:
    """A node is called by the name of a function, a function calls itself, or loses a name."""
    function = rng.choice(list(m.functions))
    kind = rng.randrange(3)
    if kind == 0:
        node = rng.choice(_nodes(m))
        node.op_type, node.domain = function.name, function.domain
    elif kind == 1:
        names = rng.choice((function.input, function.output, function.attribute))
        del names[rng.randrange(len(names))]
    else:
        function.opset_import[0].version = rng.choice((1, 6, 13, 99))


Change = Callable[[ModelProto, random.Random], None]
CHANGES: tuple[Change, ...] = (
    _input,
    _input,
    _swap_inputs,
    _arity,
    _arity,
    _output,
    _cycle,
    _operator,
    _operator,
    _drop_node,
    _copy_node,
    _shuffle,
    *[_attribute] * 5,
    _give_attribute,
    _give_attribute,
    _swap_graphs,
    *[_shape] * 4,
    _dtype,
    _dtype,
    _tensor_type,
    _tensor_dims,
    *[_tensor_values] * 4,
    _tensor_reshaped,
    _tensor_reshaped,
    _initializers,
    _external,
    _opset,
    _opset,
    _outputs,
    _inputs,
    _function,
)
