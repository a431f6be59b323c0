"""The operators that random graphs are made of: each proposal picks operands that fit and gives a node, as
onnx.helper.make_node takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

FLOATS = ("float32", "float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS)
CODES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}

Proposed = tuple[str, list[str], int, dict]  # operator, names of inputs, how many outputs, attributes


class Graph(Protocol):
    """What a proposal asks of the graph that grows; `pick` raises LookupError where nothing fits."""

    rng: np.random.Generator

    def pick(self, *dtypes: str, rank: int | None = None, like: str = "") -> str: ...
    def constant(self, array) -> str: ...
    def array(self, name: str) -> np.ndarray: ...
    def random(self, dtype: str, *shape: int) -> str: ...
    def either(self, *choices): ...
    def input(self, dtype: str, shape: Sequence[int]) -> str: ...
    def some(self, dtype: str, test: Callable[[np.ndarray], bool]) -> str: ...

    # graphs within graphs
    def inner(self, count: int, given: Mapping[str, np.ndarray]) -> Graph: ...
    def called(self, name: str) -> str: ...
    def fresh(self) -> str: ...
    def take(self, node: NodeProto) -> bool: ...
    def made(self) -> list[str]: ...
    def body(self, given: Sequence[str], outputs: Sequence[str]) -> GraphProto: ...


Proposal = Callable[[Graph], Proposed]
PROPOSALS: list[Proposal] = []
DECIDED: list[Proposal] = []  # those that make a script of a model


def proposes(weight: int = 1, into: list[Proposal] = PROPOSALS) -> Callable[[Proposal], Proposal]:
    def declare(proposal: Proposal) -> Proposal:
        into.extend([proposal] * weight)
        return proposal

    return declare


def _shape(g: Graph, x: str) -> tuple[int, ...]:
    return g.array(x).shape


def _dtype(g: Graph, x: str) -> str:
    return g.array(x).dtype.name


def _axis(g: Graph, x: str) -> int:
    rank = len(_shape(g, x))
    if not rank:
        raise LookupError
    return int(g.rng.integers(-rank, rank))


def _some_axes(g: Graph, x: str) -> list[int]:
    rank = len(_shape(g, x))
    return sorted(int(a) for a in g.rng.permutation(rank)[: g.rng.integers(0, rank + 1)])


def _i64(g: Graph, *numbers) -> str:
    return g.constant(np.array(numbers, np.int64))


@proposes(8)
def unary(g: Graph) -> Proposed:
    op = g.either(
        "Abs",
        "Neg",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Erf",
        "Softplus",
        "Softsign",
        "Elu",
        "LeakyRelu",
        "Selu",
        "HardSigmoid",
        "HardSwish",
        "Gelu",
        "Mish",
        "Celu",
        "Sin",
        "Cos",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Reciprocal",
        "Log",
        "Sqrt",
        "Atan",
        "Identity",
        "Asinh",
        "Sinh",
        "ThresholdedRelu",
        "IsNaN",
    )
    # bodies of functions, whose constants are no better than float32
    single = op in ("Gelu", "HardSwish", "Mish", "Celu", "Selu")
    return op, [g.pick(*(("float32", "float16") if single else FLOATS))], 1, {}


@proposes(2)
def unary_integers(g: Graph) -> Proposed:
    op = g.either("Abs", "Neg", "Sign", "BitwiseNot", "Identity")
    return op, [g.pick(*(("int64", "int32", "int8", "int16") if op == "Neg" else INTEGERS))], 1, {}


@proposes(8)
def binary(g: Graph) -> Proposed:
    op = g.either("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "PRelu", "Sum", "Mean")
    x = g.pick(*(FLOATS if op in ("Pow", "PRelu", "Mean") else INTEGERS if op == "Mod" else NUMBERS))
    y = g.pick(_dtype(g, x), like=x)
    return op, [x, y] if op == "PRelu" or g.rng.random() < 0.5 else [y, x], 1, {}


@proposes(3)
def compare(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    return (
        g.either("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"),
        [x, g.pick(_dtype(g, x), like=x)],
        1,
        {},
    )


@proposes(2)
def logic(g: Graph) -> Proposed:
    x = g.pick("bool")
    op = g.either("And", "Or", "Xor", "Not")
    return op, [x] if op == "Not" else [x, g.pick("bool", like=x)], 1, {}


@proposes(2)
def bits(g: Graph) -> Proposed:
    x = g.pick(*INTEGERS)
    return g.either("BitwiseAnd", "BitwiseOr", "BitwiseXor"), [x, g.pick(_dtype(g, x), like=x)], 1, {}


@proposes(2)
def where(g: Graph) -> Proposed:
    c = g.pick("bool")
    x = g.pick(*NUMBERS, like=c)
    return "Where", [c, x, g.pick(_dtype(g, x), like=x)], 1, {}


@proposes(5)
def cast(g: Graph) -> Proposed:
    x, to = g.pick(*NUMBERS, "bool"), g.either(*CODES)
    a = g.array(x)
    if (
        "int" in to
        and "float" in _dtype(g, x)
        and a.size
        and not np.iinfo(to).min <= float(a.min()) <= float(a.max()) <= np.iinfo(to).max
    ):
        raise LookupError  # what that gives is nobody's promise
    return "Cast", [x], 1, {"to": CODES[to]}


@proposes(2)
def clip(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    low = g.constant(np.array(1, _dtype(g, x)))
    return "Clip", [x, low if g.rng.random() < 0.7 else "", g.constant(np.array(3, _dtype(g, x)))], 1, {}


@proposes(4)
def matmul(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "float16", "int32")
    k = _shape(g, x)[-1] if _shape(g, x) else 0
    return "MatMul", [x, g.random(_dtype(g, x), *g.either((k, 3), (k, 8), (k,), (2, k, 4)))], 1, {}


@proposes(2)
def gemm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=2)
    t = bool(g.rng.random() < 0.5)
    k = _shape(g, x)[0 if t else 1]
    return (
        "Gemm",
        [x, g.random(_dtype(g, x), k, 5), g.random(_dtype(g, x), 5)],
        1,
        {"transA": int(t), "alpha": 0.5, "beta": g.either(0.0, 1.0, 2.0)},
    )


@proposes(4)
def conv(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    _, c, *space = _shape(g, x)
    group = g.either(1, 1, max(c, 1))
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"strides": [g.either(1, 1, 2)] * len(space), "pads": [g.either(0, 1)] * 2 * len(space), "group": group}
    out = group * int(g.rng.integers(1, 4))
    return (
        "Conv",
        [
            x,
            g.random("float32", out, c // group, *kernel),
            *([g.random("float32", out)] if g.rng.random() < 0.5 else []),
        ],
        1,
        attrs,
    )


@proposes()
def conv_transpose(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    return "ConvTranspose", [x, g.random("float32", _shape(g, x)[1], 3, 2, 2)], 1, {"strides": [g.either(1, 2)] * 2}


@proposes(2)
def pool(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    op = g.either("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    window = [min(d, g.either(1, 2)) for d in _shape(g, x)[2:]]
    attrs = (
        {}
        if op.startswith("Global")
        else {"kernel_shape": window, "strides": [g.either(1, 2)] * 2, "ceil_mode": g.either(0, 1)}
    )
    return op, [x], 1, attrs


@proposes(5)
def reduce(g: Graph) -> Proposed:
    op = g.either(
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    )
    whole = op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    x = g.pick("float32", "float64", *(("int64", "int32", "float16") if whole else ()))
    axes = _some_axes(g, x)
    return op, [x, _i64(g, *axes)] if axes else [x], 1, {"keepdims": g.either(0, 1)}


@proposes()
def arg(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", "float64")
    return (
        g.either("ArgMax", "ArgMin"),
        [x],
        1,
        {"axis": _axis(g, x), "keepdims": g.either(0, 1), "select_last_index": g.either(0, 1)},
    )


@proposes()
def cumsum(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", "float64")
    return "CumSum", [x, g.constant(np.int64(_axis(g, x)))], 1, {"exclusive": g.either(0, 1), "reverse": g.either(0, 1)}


@proposes()
def top_k(g: Graph) -> Proposed:
    x = g.pick("float32", "float64")
    axis = _axis(g, x)
    return (
        "TopK",
        [x, _i64(g, int(g.rng.integers(1, _shape(g, x)[axis] + 1)))],
        2,
        {"axis": axis, "largest": g.either(0, 1)},
    )


@proposes(2)
def norm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "float16")
    axis = _axis(g, x)
    op = g.either("Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization")
    if op == "LayerNormalization":
        shape = _shape(g, x)[axis:] if axis < 0 else _shape(g, x)[axis:]
        return op, [x, g.random(_dtype(g, x), *shape), g.random(_dtype(g, x), *shape)], 1, {"axis": axis}
    return op, [x], 1, {"axis": axis}


@proposes()
def batch_norm(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    c = _shape(g, x)[1]
    if g.rng.random() < 0.4:
        return "InstanceNormalization", [x, g.random("float32", c), g.random("float32", c)], 1, {"epsilon": 1e-2}
    return (
        "BatchNormalization",
        [x, *(g.random("float32", c) for _ in range(3)), g.constant(np.full(c, 0.7, np.float32))],
        1,
        {},
    )


@proposes(4)
def reshape(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    shape, size = _shape(g, x), g.array(x).size
    factor = int(g.either(*[f for f in range(1, 9) if size % f == 0]))
    return (
        "Reshape",
        [
            x,
            _i64(
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
        ],
        1,
        {},
    )


@proposes(3)
def transpose(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    return "Transpose", [x], 1, {"perm": [int(a) for a in g.rng.permutation(len(_shape(g, x)))]}


@proposes(2)
def squeeze(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    ones = [i for i, d in enumerate(_shape(g, x)) if d == 1]
    if ones and g.rng.random() < 0.7:
        return "Squeeze", [x, _i64(g, g.either(*ones))], 1, {}
    return "Unsqueeze", [x, _i64(g, int(g.rng.integers(0, len(_shape(g, x)) + 1)))], 1, {}


@proposes(3)
def concat(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    axis = _axis(g, x)
    others = [g.pick(_dtype(g, x), like=x) for _ in range(int(g.rng.integers(1, 3)))]
    return "Concat", [x, *others], 1, {"axis": axis}


@proposes(2)
def split(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    axis = _axis(g, x)
    size = _shape(g, x)[axis]
    first = int(g.rng.integers(0, size + 1))
    return "Split", [x, _i64(g, first, size - first)], 2, {"axis": axis}


@proposes(4)
def cut(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS, "bool")
    axis = _axis(g, x)
    start, end, step = g.either((0, 2, 1), (1, 100, 1), (-1, -100, -1), (-2, 1000, 1), (0, 1 << 62, 2), (100, 0, -2))
    return "Slice", [x, _i64(g, start), _i64(g, end), _i64(g, axis), _i64(g, step)], 1, {}


@proposes(2)
def pad(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "int64", "int32", "float16")
    pads = [int(p) for p in g.rng.integers(0, 3, 2 * len(_shape(g, x)))]
    mode = g.either("constant", "constant", "edge", "reflect")
    return (
        "Pad",
        [x, _i64(g, *pads), *([g.constant(np.array(2, _dtype(g, x)))] if mode == "constant" else [])],
        1,
        {"mode": mode},
    )


@proposes(2)
def tile(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    shape = _shape(g, x)
    if g.rng.random() < 0.5:
        return "Tile", [x, _i64(g, *(int(r) for r in g.rng.integers(1, 3, len(shape))))], 1, {}
    return "Expand", [x, _i64(g, 2, *(1 if g.rng.random() < 0.5 else d for d in shape))], 1, {}


@proposes(4)
def gather(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    axis = _axis(g, x)
    size = _shape(g, x)[axis]
    op = g.either("Gather", "GatherElements")
    shape = (2, 3) if op == "Gather" else tuple(int(g.rng.integers(1, d + 1)) if d else 0 for d in _shape(g, x))
    return (
        op,
        [x, g.constant(g.rng.integers(-size, size, g.either((), (4,), shape) if op == "Gather" else shape))],
        1,
        {"axis": axis},
    )


@proposes()
def gather_nd(g: Graph) -> Proposed:
    x = g.pick("float32", "int64", "float64")
    depth = int(g.rng.integers(1, len(_shape(g, x)) + 1))
    at = np.stack([g.rng.integers(-d, d, (3,)) for d in _shape(g, x)[:depth]], -1)
    return "GatherND", [x, g.constant(at)], 1, {}


@proposes(2)
def scatter(g: Graph) -> Proposed:
    x = g.pick("float32", "int64", "float64")
    axis, shape = _axis(g, x), _shape(g, x)
    reduction = g.either("none", "add", "mul", "max", "min")
    if g.rng.random() < 0.5:
        at = g.rng.permutation(shape[0])[: max(1, shape[0] - 1)][:, None]
        return (
            "ScatterND",
            [x, g.constant(at), g.random(_dtype(g, x), len(at), *shape[1:])],
            1,
            {"reduction": reduction},
        )
    at = np.argsort(g.rng.random(shape), axis)
    return (
        "ScatterElements",
        [x, g.constant(at), g.random(_dtype(g, x), *shape)],
        1,
        {"axis": axis, "reduction": reduction},
    )


@proposes()
def one_hot(g: Graph) -> Proposed:
    x = g.pick("int64", "int32")
    return (
        "OneHot",
        [x, g.constant(np.int64(5)), g.constant(np.array([0, 2], np.float32))],
        1,
        {"axis": g.either(-1, 0)},
    )


@proposes(2)
def sizes(g: Graph) -> Proposed:
    return g.either("Shape", "Size"), [g.pick(*NUMBERS)], 1, {}


@proposes()
def filled(g: Graph) -> Proposed:
    return "ConstantOfShape", [_i64(g, *(int(d) for d in g.rng.integers(1, 4, 2)))], 1, {}


@proposes()
def triangle(g: Graph) -> Proposed:
    return "Trilu", [g.pick("float32", "int64", rank=g.either(2, 3))], 1, {"upper": g.either(0, 1)}


@proposes()
def blocks(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    op = g.either("DepthToSpace", "SpaceToDepth")
    _, c, h, w = _shape(g, x)
    if c % 4 if op == "DepthToSpace" else h % 2 or w % 2:
        raise LookupError
    return op, [x], 1, {"blocksize": 2}


@proposes()
def resize(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    mode = g.either("nearest", "linear")
    return (
        "Resize",
        [x, "", g.constant(np.array([1, 1, *g.either((2, 2), (1.5, 2), (0.5, 1))], np.float32))],
        1,
        {"mode": mode, "coordinate_transformation_mode": g.either("asymmetric", "half_pixel"), "nearest_mode": "floor"},
    )


@proposes(2)
def quantize(g: Graph) -> Proposed:
    if g.rng.random() < 0.5:
        return (
            "QuantizeLinear",
            [g.pick("float32"), g.constant(np.float32(0.0371)), g.constant(np.array(3, g.either("uint8", "int8")))],
            1,
            {},
        )
    x = g.pick("uint8", "int8")
    return "DequantizeLinear", [x, g.constant(np.float32(0.05)), g.constant(np.array(2, _dtype(g, x)))], 1, {}


@proposes()
def einsum(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=3)
    return (
        "Einsum",
        [x, g.random(_dtype(g, x), _shape(g, x)[2], 4)],
        1,
        {"equation": g.either("abc,cd->abd", "abc,cd->adb", "abc,cd->da", "...c,cd->...d")},
    )


@proposes()
def recurrent(g: Graph) -> Proposed:
    x = g.pick("float32", rank=3)
    op, gates = g.either(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    size = _shape(g, x)[2]
    return op, [x, g.random("float32", 1, 3 * gates, size), g.random("float32", 1, 3 * gates, 3)], 2, {"hidden_size": 3}
