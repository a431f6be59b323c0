"""Operators of random graphs: views, moves, indices, sizes, and some others."""

from __future__ import annotations

import numpy as np

from .proposals import NUMBERS, Graph, Proposed, dtype_of, int64s, proposes, shape_of, some_axis


@proposes(4)
def reshape(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    shape, size = shape_of(g, x), g.array(x).size
    factor = int(g.either(*[f for f in range(1, 9) if size % f == 0]))
    operands = [
        x,
        int64s(
            g,
            *g.either(
                (-1,),
                (factor, -1),
                (-1, factor),
                (1, *shape, 1),
                (0, -1) if shape else (1,),
                (factor, 1, size // factor),
            ),
        ),
    ]
    return "Reshape", operands, 1, {}


@proposes(3)
def transpose(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    return "Transpose", [x], 1, {"perm": [int(a) for a in g.rng.permutation(len(shape_of(g, x)))]}


@proposes(2)
def squeeze(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    ones = [i for i, d in enumerate(shape_of(g, x)) if d == 1]
    if ones and g.rng.random() < 0.7:
        return "Squeeze", [x, int64s(g, g.either(*ones))], 1, {}
    return "Unsqueeze", [x, int64s(g, int(g.rng.integers(0, len(shape_of(g, x)) + 1)))], 1, {}


@proposes(3)
def concat(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    axis = some_axis(g, x)
    others = [g.pick(dtype_of(g, x), like=x) for _ in range(int(g.rng.integers(1, 3)))]
    return "Concat", [x, *others], 1, {"axis": axis}


@proposes(2)
def split(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    axis = some_axis(g, x)
    size = shape_of(g, x)[axis]
    first = int(g.rng.integers(0, size + 1))
    return "Split", [x, int64s(g, first, size - first)], 2, {"axis": axis}


@proposes(4)
def cut(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    axis = some_axis(g, x)
    start, end, step = g.either((0, 2, 1), (1, 100, 1), (-1, -100, -1), (-2, 1000, 1), (0, 1 << 62, 2), (100, 0, -2))
    return "Slice", [x, int64s(g, start), int64s(g, end), int64s(g, axis), int64s(g, step)], 1, {}


@proposes(2)
def pad(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "int64", "int32", "float16")
    pads = [int(p) for p in g.rng.integers(0, 3, 2 * len(shape_of(g, x)))]
    mode = g.either("constant", "constant", "edge", "reflect")
    operands = [x, int64s(g, *pads), *([g.constant(np.array(2, dtype_of(g, x)))] if mode == "constant" else [])]
    attrs = {"mode": mode}
    return "Pad", operands, 1, attrs


@proposes(2)
def tile(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    shape = shape_of(g, x)
    if g.rng.random() < 0.5:
        return "Tile", [x, int64s(g, *(int(r) for r in g.rng.integers(1, 3, len(shape))))], 1, {}
    return "Expand", [x, int64s(g, 2, *(1 if g.rng.random() < 0.5 else d for d in shape))], 1, {}


@proposes(4)
def gather(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    axis = some_axis(g, x)
    size = shape_of(g, x)[axis]
    op = g.either("Gather", "GatherElements")
    if op == "Gather":
        shape = g.either((), (4,), (2, 3))
    else:
        shape = tuple(int(g.rng.integers(1, d + 1)) if d else 0 for d in shape_of(g, x))
    return op, [x, g.constant(g.rng.integers(-size, size, shape))], 1, {"axis": axis}


@proposes()
def gather_nd(g: Graph) -> Proposed:
    x = g.pick("float32", "int64", "float64")
    depth = int(g.rng.integers(1, len(shape_of(g, x)) + 1))
    at = np.stack([g.rng.integers(-d, d, (3,)) for d in shape_of(g, x)[:depth]], -1)
    return "GatherND", [x, g.constant(at)], 1, {}


@proposes(2)
def scatter(g: Graph) -> Proposed:
    x = g.pick("float32", "int64", "float64")
    axis, shape = some_axis(g, x), shape_of(g, x)
    reduction = g.either("none", "add", "mul", "max", "min")
    if g.rng.random() < 0.5:
        at = g.rng.permutation(shape[0])[: max(1, shape[0] - 1)][:, None]
        operands = [x, g.constant(at), g.random(dtype_of(g, x), len(at), *shape[1:])]
        attrs = {"reduction": reduction}
        return "ScatterND", operands, 1, attrs
    at = np.argsort(g.rng.random(shape), axis)
    operands = [x, g.constant(at), g.random(dtype_of(g, x), *shape)]
    attrs = {"axis": axis, "reduction": reduction}
    return "ScatterElements", operands, 1, attrs


@proposes()
def one_hot(g: Graph) -> Proposed:
    x = g.pick("int64", "int32")
    operands = [x, g.constant(np.int64(5)), g.constant(np.array([0, 2], np.float32))]
    attrs = {"axis": g.either(-1, 0)}
    return "OneHot", operands, 1, attrs


@proposes(2)
def sizes(g: Graph) -> Proposed:
    return g.either("Shape", "Size"), [g.pick(*NUMBERS)], 1, {}


@proposes()
def filled(g: Graph) -> Proposed:
    return "ConstantOfShape", [int64s(g, *(int(d) for d in g.rng.integers(1, 4, 2)))], 1, {}


@proposes()
def triangle(g: Graph) -> Proposed:
    return "Trilu", [g.pick("float32", "int64", rank=g.either(2, 3))], 1, {"upper": g.either(0, 1)}


@proposes()
def blocks(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    op = g.either("DepthToSpace", "SpaceToDepth")
    _, c, h, w = shape_of(g, x)
    if c % 4 if op == "DepthToSpace" else h % 2 or w % 2:
        raise LookupError
    return op, [x], 1, {"blocksize": 2}


@proposes()
def resize(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    mode = g.either("nearest", "linear")
    operands = [x, "", g.constant(np.array([1, 1, *g.either((2, 2), (1.5, 2), (0.5, 1))], np.float32))]
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": g.either("asymmetric", "half_pixel"),
        "nearest_mode": "floor",
    }
    return "Resize", operands, 1, attrs


@proposes(2)
def quantize(g: Graph) -> Proposed:
    if g.rng.random() < 0.5:
        operands = [
            g.pick("float32"),
            g.constant(np.float32(0.0371)),
            g.constant(np.array(3, g.either("uint8", "int8"))),
        ]
        return "QuantizeLinear", operands, 1, {}
    x = g.pick("uint8", "int8")
    return "DequantizeLinear", [x, g.constant(np.float32(0.05)), g.constant(np.array(2, dtype_of(g, x)))], 1, {}


@proposes()
def einsum(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=3)
    operands = [x, g.random(dtype_of(g, x), shape_of(g, x)[2], 4)]
    attrs = {"equation": g.either("abc,cd->abd", "abc,cd->adb", "abc,cd->da", "...c,cd->...d")}
    return "Einsum", operands, 1, attrs


@proposes()
def recurrent(g: Graph) -> Proposed:
    x = g.pick("float32", rank=3)
    op, gates = g.either(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    size = shape_of(g, x)[2]
    return op, [x, g.random("float32", 1, 3 * gates, size), g.random("float32", 1, 3 * gates, 3)], 2, {"hidden_size": 3}
