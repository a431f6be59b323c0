"""Damage to types, constants, ports, opsets and functions of models."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from .mutate_parts import (
    FLOATS,
    NUMBERS,
    SIZES,
    TYPES,
    change_list,
    graphs_of,
    infos_of,
    names_of,
    nodes_of,
    tensors_of,
)


def change_shape(m: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(infos_of(m)).type.tensor_type
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


def change_dtype(m: ModelProto, rng: random.Random) -> None:
    info = rng.choice(infos_of(m))
    if rng.random() < 0.1:
        info.type.CopyFrom(onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence(elem_type=info.type)))
    else:
        info.type.tensor_type.elem_type = rng.choice(TYPES)


def change_tensor_type(m: ModelProto, rng: random.Random) -> None:
    rng.choice(tensors_of(m)).data_type = rng.choice(TYPES)


def change_tensor_dims(m: ModelProto, rng: random.Random) -> None:
    change_list(rng.choice(tensors_of(m)).dims, SIZES, rng)


def change_tensor_values(m: ModelProto, rng: random.Random) -> None:
    """Other numbers in a constant: what small ones say are often sizes, axes and indices."""
    tensor = rng.choice([t for t in tensors_of(m) if t.data_type != TensorProto.STRING])
    array = numpy_helper.to_array(tensor).copy()
    if array.size > 4096:
        return
    flat = array.reshape(-1)
    for _ in range(rng.randrange(1, 4)):
        with np.errstate(all="ignore"):
            value = rng.choice(NUMBERS) if rng.random() < 0.6 else rng.choice(FLOATS)
            flat[rng.randrange(flat.size)] = np.asarray(value).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def reshape_tensor(m: ModelProto, rng: random.Random) -> None:
    """Fewer or more values, another rank."""
    tensor = rng.choice([t for t in tensors_of(m) if t.data_type != TensorProto.STRING])
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


def change_initializers(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(graphs_of(m)))
    kind = rng.randrange(3)
    if kind == 0:
        del graph.initializer[rng.randrange(len(graph.initializer))]
    elif kind == 1:
        graph.initializer.add().CopyFrom(rng.choice(tensors_of(m)))
    else:  # an input becomes a constant
        info = rng.choice(list(graph.input))
        graph.initializer.append(numpy_helper.from_array(np.array(rng.choice(NUMBERS[:10])), info.name))


def make_external(m: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(tensors_of(m))
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(
        key="location", value=rng.choice(("../secret", "/etc/passwd", "", "no.bin", "a\0b", "..\\x", "."))
    )
    tensor.external_data.add(key="offset", value=rng.choice(("0", "-1", "x", "9" * 30)))


def change_opset(m: ModelProto, rng: random.Random) -> None:
    rng.choice(list(m.opset_import)).version = rng.choice(
        (1, 5, 6, 7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 99, 0, -4, (1 << 62))
    )


def change_outputs(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(graphs_of(m)))
    kind = rng.randrange(3)
    if kind == 0:
        del graph.output[rng.randrange(len(graph.output))]
    elif kind == 1:
        graph.output.add(name=rng.choice(names_of(m)))
    else:
        graph.output[rng.randrange(len(graph.output))].name = rng.choice(names_of(m))


def change_inputs(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(graphs_of(m)))
    if rng.random() < 0.5:
        del graph.input[rng.randrange(len(graph.input))]
    else:
        graph.input.add().CopyFrom(rng.choice(infos_of(m)))


def change_function(m: ModelProto, rng: random.Random) -> None:
    """A node is called by the name of a function, a function calls itself, or loses a name."""
    function = rng.choice(list(m.functions))
    kind = rng.randrange(3)
    if kind == 0:
        node = rng.choice(nodes_of(m))
        node.op_type, node.domain = function.name, function.domain
    elif kind == 1:
        names = rng.choice((function.input, function.output, function.attribute))
        del names[rng.randrange(len(names))]
    else:
        function.opset_import[0].version = rng.choice((1, 6, 13, 99))
