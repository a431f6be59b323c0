"""Operators of random graphs with random attributes: arithmetic, windows, rows, products; and new operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .proposals import (
    FLOATS,
    NUMBERS,
    Graph,
    Proposed,
    dtype_of,
    int64s,
    proposes,
    shape_of,
    some_attributes,
    some_axis,
    some_ints,
    some_trailing,
)


# --- element by element


@proposes(4)
def sloped(g: Graph) -> Proposed:
    op, attrs = g.either(
        ("Elu", dict(alpha=1.7)),
        ("LeakyRelu", dict(alpha=0.3)),
        ("HardSigmoid", dict(alpha=0.3, beta=0.4)),
        ("ThresholdedRelu", dict(alpha=0.37)),
        ("Celu", dict(alpha=0.7)),
        ("Selu", dict(alpha=1.2, gamma=0.9)),
        ("Gelu", dict(approximate="tanh")),
        ("Shrink", dict(lambd=0.33, bias=0.2)),
        ("IsInf", dict(detect_negative=0)),
        ("Swish", dict(alpha=1.3)),
    )
    return op, [g.pick("float32")], 1, some_attributes(g, **attrs)


@proposes(2)
def remainders(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    return "Mod", [x, g.pick(dtype_of(g, x), like=x)], 1, {"fmod": 1}


@proposes()
def shifted(g: Graph) -> Proposed:
    x = g.pick("uint8", "uint16", "uint32", "uint64")
    return "BitShift", [x, g.pick(dtype_of(g, x), like=x)], 1, {"direction": g.either("LEFT", "RIGHT")}


@proposes(2)
def of_many(g: Graph) -> Proposed:
    op = g.either("Max", "Min", "Sum", "Mean")
    x = g.pick(*(FLOATS if op in ("Sum", "Mean") else NUMBERS))
    return op, [x, *(g.pick(dtype_of(g, x), like=x) for _ in range(g.either(0, 2, 3)))], 1, {}


# --- windows


def _apart(g: Graph, space: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Dilations of windows that fit."""
    return [g.either(1, 2) if 2 * (k - 1) < s else 1 for s, k in zip(space, kernel)]


@proposes(4)
def conv(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4, 4))
    _, c, *space = shape_of(g, x)
    n, group = len(space), g.either(1, max(c, 1))
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"group": group, "strides": some_ints(g, n, 1, 3)}
    attrs.update(
        g.either(
            {"pads": some_ints(g, 2 * n, 0, 2), "dilations": _apart(g, space, kernel)},
            {"auto_pad": g.either("SAME_UPPER", "SAME_LOWER", "VALID")},
        )
    )
    return "Conv", [x, g.random("float32", 2 * group, c // group, *kernel)], 1, attrs


@proposes(2)
def conv_transpose(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    _, c, *space = shape_of(g, x)
    n, group, strides = len(space), g.either(1, max(c, 1)), some_ints(g, len(space), 1, 3)
    if min(space) < 2:
        raise LookupError
    attrs = {"strides": strides, "dilations": some_ints(g, n, 1, 2), "group": group}
    attrs.update(
        g.either(
            {"pads": some_ints(g, 2 * n, 0, 1), "output_padding": [int(g.rng.integers(0, s)) for s in strides]}, {}
        )
    )
    operands = [x, g.random("float32", c, 2, *[g.either(2, 3)] * n), *some_trailing(g, g.random("float32", 2 * group))]
    return "ConvTranspose", operands, 1, attrs


@proposes(3)
def pooled(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    space = shape_of(g, x)[2:]
    n, op = len(space), g.either("MaxPool", "AveragePool", "LpPool", "GlobalLpPool")
    if op == "GlobalLpPool":
        return op, [x], 1, {"p": g.either(1, 2, 3)}
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"kernel_shape": kernel, "strides": some_ints(g, n, 1, 3)}
    attrs.update(
        g.either({"pads": [int(g.rng.integers(0, k)) for k in kernel * 2]}, {"dilations": _apart(g, space, kernel)}, {})
    )
    if op == "LpPool":
        return op, [x], 1, {**attrs, "p": g.either(1, 2, 3)}
    if n == 1 and "pads" in attrs:  # of which onnx sees one
        attrs["pads"][1] = attrs["pads"][0]
    return op, [x], 1, {**attrs, **({"count_include_pad": g.either(0, 1)} if op == "AveragePool" else {})}


# --- rows


@proposes(2)
def reduced(g: Graph) -> Proposed:
    op = g.either(
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
        "ReduceMin",
        "ReduceProd",
    )
    x = g.pick("float32", "float64")
    operands = [x, *some_trailing(g, int64s(g, some_axis(g, x)))]
    attrs = {"keepdims": g.either(0, 1), "noop_with_empty_axes": g.either(0, 1)}
    return op, operands, 1, attrs


@proposes(3)
def normed(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(2, 3, 4))
    c, axis = shape_of(g, x)[1], some_axis(g, x)
    shape = shape_of(g, x)[axis:]
    operand = {"GroupNormalization": [c, c], "RMSNormalization": [shape], "LayerNormalization": [shape]}
    op = g.either(
        "LRN",
        "MeanVarianceNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "Hardmax",
        "LpNormalization",
        "LayerNormalization",
    )
    attrs = {
        "LRN": {"size": g.either(1, 3, 5), "alpha": 0.3, "beta": 0.6, "bias": 1.5},
        "MeanVarianceNormalization": {"axes": [axis % len(shape_of(g, x))]},
        "GroupNormalization": {"num_groups": g.either(*(k for k in range(1, c + 1) if c % k == 0)), "epsilon": 0.02},
        "RMSNormalization": {"axis": axis, "epsilon": 0.03},
        "Hardmax": {"axis": axis},
        "LpNormalization": {"axis": axis, "p": 2},
        "LayerNormalization": {"axis": axis, "epsilon": 0.04},
    }
    more = [g.random("float32", *((s,) if isinstance(s, int) else s)) for s in operand.get(op, ())]
    return op, [x, *more], 3 if op == "LayerNormalization" and g.rng.random() < 0.5 else 1, attrs[op]


@proposes(2)
def losses(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(2, 3))
    n, c, *space = shape_of(g, x)
    labels = g.constant(g.rng.integers(0, c, (n, *space)))
    weights = some_trailing(g, g.constant(g.rng.uniform(0.5, 2, c).astype(np.float32)))
    attrs = {"reduction": g.either("none", "mean", "sum"), **some_attributes(g, ignore_index=0)}
    return g.either("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), [x, labels, *weights], 1, attrs


@proposes(2)
def running(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64")
    operands = [x, g.constant(np.int64(some_axis(g, x)))]
    attrs = {"exclusive": g.either(0, 1), "reverse": g.either(0, 1)}
    return "CumProd", operands, 1, attrs


# --- products


@proposes(2)
def gemm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=2)
    over, back = g.either(0, 1), g.either(0, 1)
    rows, k = shape_of(g, x)[::-1] if over else shape_of(g, x)
    c = g.random(dtype_of(g, x), *g.either((), (1,), (5,), (rows, 1), (1, 5), (rows, 5)))
    w = g.random(dtype_of(g, x), *((5, k) if back else (k, 5)))
    return (
        "Gemm",
        [x, w, *some_trailing(g, c)],
        1,
        {"transA": over, "transB": back, **some_attributes(g, alpha=0.7, beta=1.3)},
    )


@proposes(2)
def attention(g: Graph) -> Proposed:
    batch, rows, keys, depth, heads, times = (int(v) for v in g.rng.integers(1, (3, 5, 6, 5, 3, 3)))
    wide = int(g.rng.integers(1, 5))
    flat = bool(g.rng.random() < 0.5)
    shapes = (batch, rows, heads * times, depth), (batch, keys, heads, depth), (batch, keys, heads, wide)
    q, k, v = (g.input("float32", (b, r, h * d) if flat else (b, h, r, d)) for b, r, h, d in shapes)
    mask = g.random("float32", *g.either((rows, keys), (batch, 1, rows, keys)))
    if g.rng.random() < 0.4:
        mask = g.constant(g.rng.random((rows, keys)) < 0.8)
    heads_of = {"q_num_heads": heads * times, "kv_num_heads": heads} if flat else {}
    operands = [q, k, v, *some_trailing(g, mask)]
    attrs = {
        **heads_of,
        **some_attributes(g, is_causal=1),
        **some_attributes(g, scale=0.4),
        **some_attributes(g, softcap=2.0),
    }
    return "Attention", operands, 1, attrs


@proposes()
def rotated(g: Graph) -> Proposed:
    batch, heads, rows, pairs = (int(v) for v in g.rng.integers(1, (3, 4, 5, 4)))
    x = g.input(
        "float32",
        (batch, heads, rows, 2 * pairs) if (whole := g.rng.random() < 0.5) else (batch, rows, heads * 2 * pairs),
    )
    angles = (
        g.random("float32", 9, pairs),
        g.random("float32", 9, pairs),
        g.constant(g.rng.integers(0, 9, (batch, rows))),
    )
    return (
        "RotaryEmbedding",
        [x, *angles],
        1,
        {**({} if whole else {"num_heads": heads}), **some_attributes(g, interleaved=1)},
    )


@proposes(5)
def recurrent(g: Graph) -> Proposed:
    x = g.pick("float32", rank=3)
    op, gates = g.either(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    direction, turned, h = g.either("forward", "reverse", "bidirectional"), g.either(0, 0, 1), 3
    ways, size = 1 + (direction == "bidirectional"), shape_of(g, x)[2]
    time, batch = shape_of(g, x)[1::-1] if turned else shape_of(g, x)[:2]
    state = (batch, ways, h) if turned else (ways, batch, h)
    lengths = g.constant(g.rng.integers(0, time + 1, batch).astype(np.int32)) if g.rng.random() < 0.4 else ""
    more = [g.random("float32", ways, 2 * gates * h), lengths, g.random("float32", *state)]
    attrs = {"hidden_size": h, "direction": direction, "layout": turned, **some_attributes(g, clip=0.9)}
    if op == "LSTM":
        more += [g.random("float32", *state), g.random("float32", ways, 3 * h)]
        attrs.update(some_attributes(g, input_forget=1))
    if op == "GRU":
        attrs["linear_before_reset"] = g.either(0, 1)
    if g.rng.random() < 0.4:
        acts = {
            "LSTM": ("HardSigmoid", "Softsign", "Tanh"),
            "GRU": ("Sigmoid", "Relu"),
            "RNN": (g.either("Relu", "Softsign", "Elu"),),
        }[op]
        attrs["activations"] = list(acts) * ways
    operands = [
        x,
        g.random("float32", ways, gates * h, size),
        g.random("float32", ways, gates * h, h),
        *some_trailing(g, *more),
    ]
    return op, operands, g.either(1, 2), attrs
