"""Operators of random graphs: arithmetic, products, windows and reductions."""

from __future__ import annotations

import numpy as np

from .proposals import (
    CODES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Graph,
    Proposed,
    dtype_of,
    int64s,
    proposes,
    shape_of,
    some_axes,
    some_axis,
)


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
    dtypes = INTEGERS if op == "Mod" else NUMBERS
    x = g.pick(*(FLOATS if op in ("Pow", "PRelu", "Mean") else dtypes))
    y = g.pick(dtype_of(g, x), like=x)
    return op, [x, y] if op == "PRelu" or g.rng.random() < 0.5 else [y, x], 1, {}


@proposes(3)
def compare(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    op = g.either("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
    operands = [x, g.pick(dtype_of(g, x), like=x)]
    return op, operands, 1, {}


@proposes(2)
def logic(g: Graph) -> Proposed:
    x = g.pick("bool")
    op = g.either("And", "Or", "Xor", "Not")
    return op, [x] if op == "Not" else [x, g.pick("bool", like=x)], 1, {}


@proposes(2)
def bits(g: Graph) -> Proposed:
    x = g.pick(*INTEGERS)
    return g.either("BitwiseAnd", "BitwiseOr", "BitwiseXor"), [x, g.pick(dtype_of(g, x), like=x)], 1, {}


@proposes(2)
def where(g: Graph) -> Proposed:
    c = g.pick("bool")
    x = g.pick(*NUMBERS, like=c)
    return "Where", [c, x, g.pick(dtype_of(g, x), like=x)], 1, {}


@proposes(5)
def cast(g: Graph) -> Proposed:
    x, to = g.pick(*NUMBERS, "bool"), g.either(*CODES)
    a = g.array(x)
    if (
        "int" in to
        and "float" in dtype_of(g, x)
        and a.size
        and not np.iinfo(to).min <= float(a.min()) <= float(a.max()) <= np.iinfo(to).max
    ):
        raise LookupError  # ONNX leaves that undefined
    return "Cast", [x], 1, {"to": CODES[to]}


@proposes(2)
def clip(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    low = g.constant(np.array(1, dtype_of(g, x)))
    return "Clip", [x, low if g.rng.random() < 0.7 else "", g.constant(np.array(3, dtype_of(g, x)))], 1, {}


@proposes(4)
def matmul(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "float16", "int32")
    k = shape_of(g, x)[-1] if shape_of(g, x) else 0
    return "MatMul", [x, g.random(dtype_of(g, x), *g.either((k, 3), (k, 8), (k,), (2, k, 4)))], 1, {}


@proposes(2)
def gemm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=2)
    t = bool(g.rng.random() < 0.5)
    k = shape_of(g, x)[0 if t else 1]
    operands = [x, g.random(dtype_of(g, x), k, 5), g.random(dtype_of(g, x), 5)]
    attrs = {"transA": int(t), "alpha": 0.5, "beta": g.either(0.0, 1.0, 2.0)}
    return "Gemm", operands, 1, attrs


@proposes(4)
def conv(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    _, c, *space = shape_of(g, x)
    group = g.either(1, 1, max(c, 1))
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"strides": [g.either(1, 1, 2)] * len(space), "pads": [g.either(0, 1)] * 2 * len(space), "group": group}
    out = group * int(g.rng.integers(1, 4))
    operands = [
        x,
        g.random("float32", out, c // group, *kernel),
        *([g.random("float32", out)] if g.rng.random() < 0.5 else []),
    ]
    return "Conv", operands, 1, attrs


@proposes()
def conv_transpose(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    return "ConvTranspose", [x, g.random("float32", shape_of(g, x)[1], 3, 2, 2)], 1, {"strides": [g.either(1, 2)] * 2}


@proposes(2)
def pool(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    op = g.either("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    window = [min(d, g.either(1, 2)) for d in shape_of(g, x)[2:]]
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
    axes = some_axes(g, x)
    return op, [x, int64s(g, *axes)] if axes else [x], 1, {"keepdims": g.either(0, 1)}


@proposes()
def arg(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", "float64")
    op = g.either("ArgMax", "ArgMin")
    operands = [x]
    attrs = {"axis": some_axis(g, x), "keepdims": g.either(0, 1), "select_last_index": g.either(0, 1)}
    return op, operands, 1, attrs


@proposes()
def cumsum(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", "float64")
    return (
        "CumSum",
        [x, g.constant(np.int64(some_axis(g, x)))],
        1,
        {"exclusive": g.either(0, 1), "reverse": g.either(0, 1)},
    )


@proposes()
def top_k(g: Graph) -> Proposed:
    x = g.pick("float32", "float64")
    axis = some_axis(g, x)
    operands = [x, int64s(g, int(g.rng.integers(1, shape_of(g, x)[axis] + 1)))]
    attrs = {"axis": axis, "largest": g.either(0, 1)}
    return "TopK", operands, 2, attrs


@proposes(2)
def norm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", "float16")
    axis = some_axis(g, x)
    op = g.either("Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization")
    if op == "LayerNormalization":
        shape = shape_of(g, x)[axis:] if axis < 0 else shape_of(g, x)[axis:]
        return op, [x, g.random(dtype_of(g, x), *shape), g.random(dtype_of(g, x), *shape)], 1, {"axis": axis}
    return op, [x], 1, {"axis": axis}


@proposes()
def batch_norm(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    c = shape_of(g, x)[1]
    if g.rng.random() < 0.4:
        return "InstanceNormalization", [x, g.random("float32", c), g.random("float32", c)], 1, {"epsilon": 1e-2}
    operands = [x, *(g.random("float32", c) for _ in range(3)), g.constant(np.full(c, 0.7, np.float32))]
    return "BatchNormalization", operands, 1, {}
