"""More operators that random graphs are made of: those with attributes that change what they do, drawn; and those of
the newest opsets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .operators import FLOATS, INTEGERS, NUMBERS, Graph, Proposed, proposes


def _shape(g: Graph, x: str) -> tuple[int, ...]:
    return g.array(x).shape


def _dtype(g: Graph, x: str) -> str:
    return g.array(x).dtype.name


def _axis(g: Graph, x: str) -> int:
    if not _shape(g, x):
        raise LookupError
    return int(g.rng.integers(-len(_shape(g, x)), len(_shape(g, x))))


def _some(g: Graph, **attrs) -> dict:
    """Some of these attributes."""
    return {k: v for k, v in attrs.items() if g.rng.random() < 0.6}


def _maybe(g: Graph, *names: str) -> list[str]:
    """Trailing operands, as many as one likes."""
    return list(names[: g.rng.integers(0, len(names) + 1)])


def _ints(g: Graph, count: int, low: int, high: int) -> list[int]:
    return [int(v) for v in g.rng.integers(low, high + 1, count)]


def _i64(g: Graph, *numbers) -> str:
    return g.constant(np.array(numbers, np.int64))


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
    return op, [g.pick("float32")], 1, _some(g, **attrs)


@proposes(2)
def remainders(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    return "Mod", [x, g.pick(_dtype(g, x), like=x)], 1, {"fmod": 1}


@proposes()
def shifted(g: Graph) -> Proposed:
    x = g.pick("uint8", "uint16", "uint32", "uint64")
    return "BitShift", [x, g.pick(_dtype(g, x), like=x)], 1, {"direction": g.either("LEFT", "RIGHT")}


@proposes(2)
def of_many(g: Graph) -> Proposed:
    op = g.either("Max", "Min", "Sum", "Mean")
    x = g.pick(*(FLOATS if op in ("Sum", "Mean") else NUMBERS))
    return op, [x, *(g.pick(_dtype(g, x), like=x) for _ in range(g.either(0, 2, 3)))], 1, {}


# --- windows


def _apart(g: Graph, space: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Dilations of windows that fit."""
    return [g.either(1, 2) if 2 * (k - 1) < s else 1 for s, k in zip(space, kernel)]


@proposes(4)
def conv(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4, 4))
    _, c, *space = _shape(g, x)
    n, group = len(space), g.either(1, max(c, 1))
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"group": group, "strides": _ints(g, n, 1, 3)}
    attrs.update(
        g.either(
            {"pads": _ints(g, 2 * n, 0, 2), "dilations": _apart(g, space, kernel)},
            {"auto_pad": g.either("SAME_UPPER", "SAME_LOWER", "VALID")},
        )
    )
    return "Conv", [x, g.random("float32", 2 * group, c // group, *kernel)], 1, attrs


@proposes(2)
def conv_transpose(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    _, c, *space = _shape(g, x)
    n, group, strides = len(space), g.either(1, max(c, 1)), _ints(g, len(space), 1, 3)
    if min(space) < 2:
        raise LookupError
    attrs = {"strides": strides, "dilations": _ints(g, n, 1, 2), "group": group}
    attrs.update(
        g.either({"pads": _ints(g, 2 * n, 0, 1), "output_padding": [int(g.rng.integers(0, s)) for s in strides]}, {})
    )
    return (
        "ConvTranspose",
        [x, g.random("float32", c, 2, *[g.either(2, 3)] * n), *_maybe(g, g.random("float32", 2 * group))],
        1,
        attrs,
    )


@proposes(3)
def pooled(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    space = _shape(g, x)[2:]
    n, op = len(space), g.either("MaxPool", "AveragePool", "LpPool", "GlobalLpPool")
    if op == "GlobalLpPool":
        return op, [x], 1, {"p": g.either(1, 2, 3)}
    kernel = [int(g.rng.integers(1, min(3, s) + 1)) for s in space]
    attrs = {"kernel_shape": kernel, "strides": _ints(g, n, 1, 3)}
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
    return (
        op,
        [x, *_maybe(g, _i64(g, _axis(g, x)))],
        1,
        {"keepdims": g.either(0, 1), "noop_with_empty_axes": g.either(0, 1)},
    )


@proposes(3)
def normed(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(2, 3, 4))
    c, axis = _shape(g, x)[1], _axis(g, x)
    shape = _shape(g, x)[axis:]
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
        "MeanVarianceNormalization": {"axes": [axis % len(_shape(g, x))]},
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
    n, c, *space = _shape(g, x)
    labels = g.constant(g.rng.integers(0, c, (n, *space)))
    weights = _maybe(g, g.constant(g.rng.uniform(0.5, 2, c).astype(np.float32)))
    attrs = {"reduction": g.either("none", "mean", "sum"), **_some(g, ignore_index=0)}
    return g.either("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), [x, labels, *weights], 1, attrs


@proposes(2)
def running(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64")
    return (
        "CumProd",
        [x, g.constant(np.int64(_axis(g, x)))],
        1,
        {"exclusive": g.either(0, 1), "reverse": g.either(0, 1)},
    )


# --- products


@proposes(2)
def gemm(g: Graph) -> Proposed:
    x = g.pick("float32", "float64", rank=2)
    over, back = g.either(0, 1), g.either(0, 1)
    rows, k = _shape(g, x)[::-1] if over else _shape(g, x)
    c = g.random(_dtype(g, x), *g.either((), (1,), (5,), (rows, 1), (1, 5), (rows, 5)))
    w = g.random(_dtype(g, x), *((5, k) if back else (k, 5)))
    return "Gemm", [x, w, *_maybe(g, c)], 1, {"transA": over, "transB": back, **_some(g, alpha=0.7, beta=1.3)}


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
    return (
        "Attention",
        [q, k, v, *_maybe(g, mask)],
        1,
        {**heads_of, **_some(g, is_causal=1), **_some(g, scale=0.4), **_some(g, softcap=2.0)},
    )


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
    return "RotaryEmbedding", [x, *angles], 1, {**({} if whole else {"num_heads": heads}), **_some(g, interleaved=1)}


@proposes(5)
def recurrent(g: Graph) -> Proposed:
    x = g.pick("float32", rank=3)
    op, gates = g.either(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    direction, turned, h = g.either("forward", "reverse", "bidirectional"), g.either(0, 0, 1), 3
    ways, size = 1 + (direction == "bidirectional"), _shape(g, x)[2]
    time, batch = _shape(g, x)[1::-1] if turned else _shape(g, x)[:2]
    state = (batch, ways, h) if turned else (ways, batch, h)
    lengths = g.constant(g.rng.integers(0, time + 1, batch).astype(np.int32)) if g.rng.random() < 0.4 else ""
    more = [g.random("float32", ways, 2 * gates * h), lengths, g.random("float32", *state)]
    attrs = {"hidden_size": h, "direction": direction, "layout": turned, **_some(g, clip=0.9)}
    if op == "LSTM":
        more += [g.random("float32", *state), g.random("float32", ways, 3 * h)]
        attrs.update(_some(g, input_forget=1))
    if op == "GRU":
        attrs["linear_before_reset"] = g.either(0, 1)
    if g.rng.random() < 0.4:
        acts = {
            "LSTM": ("HardSigmoid", "Softsign", "Tanh"),
            "GRU": ("Sigmoid", "Relu"),
            "RNN": (g.either("Relu", "Softsign", "Elu"),),
        }[op]
        attrs["activations"] = list(acts) * ways
    return (
        op,
        [x, g.random("float32", ways, gates * h, size), g.random("float32", ways, gates * h, h), *_maybe(g, *more)],
        g.either(1, 2),
        attrs,
    )


# --- places


@proposes(3)
def resized(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    mode = g.either("nearest", "linear", "linear", "cubic", "cubic")
    # of which onnx takes the wrong four elements where rounding puts it a little outside
    curved = mode == "cubic"
    coordinates = g.either(
        "asymmetric",
        "half_pixel",
        "align_corners",
        "pytorch_half_pixel",
        "half_pixel" if curved else "half_pixel_symmetric",
    )
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attrs["nearest_mode"] = g.either("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        attrs["coordinate_transformation_mode"] = g.either("asymmetric", "half_pixel")
    elif mode == "cubic":
        attrs.update(_some(g, cubic_coeff_a=-0.5, exclude_outside=1))
    if mode != "nearest" and g.rng.random() < 0.3:
        attrs["antialias"] = 1
    axes = [2] if len(_shape(g, x)) == 3 else [2, 3]
    if coordinates == "pytorch_half_pixel":  # onnx has one element elsewhere than PyTorch
        return "Resize", [x, "", "", _i64(g, *_ints(g, len(axes), 2, 9))], 1, {**attrs, "axes": axes}
    if g.rng.random() < 0.5:
        return (
            "Resize",
            [x, "", g.constant(np.array(g.either((2, 0.5), (1.5, 1.25), (0.75, 3))[: len(axes)], np.float32))],
            1,
            {**attrs, "axes": axes},
        )
    attrs.update(_some(g, keep_aspect_ratio_policy=g.either("not_larger", "not_smaller", "stretch")))
    return "Resize", [x, "", "", _i64(g, *_ints(g, len(axes), 1, 9))], 1, {**attrs, "axes": axes}


@proposes(2)
def sampled(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    if 0 in _shape(g, x):
        raise LookupError
    grid = g.constant(g.rng.uniform(-1.3, 1.3, (_shape(g, x)[0], 3, 2, 2)).astype(np.float32))
    return (
        "GridSample",
        [x, grid],
        1,
        {
            "align_corners": g.either(0, 1),
            **g.either(
                # onnx holds a cubic curve at the border only far from it
                {"mode": "cubic", "padding_mode": g.either("zeros", "reflection")},
                {"mode": g.either("nearest", "linear"), "padding_mode": g.either("zeros", "border", "reflection")},
            ),
        },
    )


@proposes(4)
def moved(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    shape, axis = _shape(g, x), _axis(g, x)
    rank, size = len(shape), shape[axis]
    op = g.either(
        "Flatten",
        "Shape",
        "Pad",
        "Split",
        "Trilu",
        "OneHot",
        "CenterCropPad",
        "Slice",
        "GatherND",
        "ScatterElements",
        "Transpose",
    )
    if op == "Flatten":
        return op, [x], 1, {"axis": int(g.rng.integers(-rank, rank + 1))}
    if op == "Shape":
        return op, [x], 1, _some(g, start=int(g.rng.integers(-rank, rank)), end=int(g.rng.integers(-rank, rank + 1)))
    if op == "Pad":
        pads = _ints(g, 2, -min(size - 1, 1), 2)
        return op, [x, _i64(g, *pads), "", _i64(g, axis)], 1, {"mode": g.either("constant", "edge", "reflect", "wrap")}
    if op == "Split":
        return op, [x], 2, {"axis": axis, "num_outputs": 2}
    if op == "Trilu" and rank >= 2:
        return op, [x, g.constant(np.int64(g.rng.integers(-2, 3)))], 1, {"upper": g.either(0, 1)}
    if op == "OneHot":
        at = g.constant(g.rng.integers(-5, 5, (3, 2)))
        return op, [at, g.constant(np.int64(5)), g.random(_dtype(g, x), 2)], 1, {"axis": int(g.rng.integers(-3, 3))}
    if op == "CenterCropPad":
        return op, [x, _i64(g, int(g.rng.integers(1, 7)))], 1, {"axes": [axis]}
    if op == "Slice":
        axes = sorted(int(a) for a in g.rng.permutation(rank)[:2])
        starts, ends, steps = (_ints(g, len(axes), low, high) for low, high in ((-4, 3), (-6, 6), (1, 2)))
        turns = [g.either(-1, 1) for _ in axes]
        return (
            op,
            [x, _i64(g, *starts), _i64(g, *ends), _i64(g, *axes), _i64(g, *(s * t for s, t in zip(steps, turns)))],
            1,
            {},
        )
    if op == "GatherND" and rank >= 2 and shape[0]:
        at = np.stack([g.rng.integers(-shape[1], shape[1], (shape[0], 3))], -1)
        return op, [x, g.constant(at)], 1, {"batch_dims": 1}
    if op == "ScatterElements":
        at = g.rng.integers(-size, size, shape)
        return (
            op,
            [x, g.constant(at), g.random(_dtype(g, x), *shape)],
            1,
            {"axis": axis, "reduction": g.either("max", "min")},
        )
    return "Transpose", [x], 1, {}


@proposes()
def turned(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", rank=g.either(2, 3))
    time = g.either(0, 1)
    steps, batch = _shape(g, x)[time], _shape(g, x)[1 - time]
    return (
        "ReverseSequence",
        [x, g.constant(g.rng.integers(1, steps + 1, batch))],
        1,
        {"time_axis": time, "batch_axis": 1 - time},
    )


@proposes()
def unblocked(g: Graph) -> Proposed:
    x, kernel = g.input("float32", (2, 2 * 6, 3 * 4)), (2, 3)
    return "Col2Im", [x, _i64(g, 4, 6), _i64(g, *kernel)], 1, {}


@proposes()
def blocks(g: Graph) -> Proposed:
    x = g.pick("int8", "uint8", "int32", rank=2)
    rows = -(-_shape(g, x)[1] // 2)
    return (
        "DequantizeLinear",
        [x, g.constant(g.rng.uniform(0.1, 0.5, (_shape(g, x)[0], rows)).astype(np.float32))],
        1,
        {"axis": 1, "block_size": 2},
    )


@proposes()
def whole(g: Graph) -> Proposed:
    return g.either("ArgMax", "ArgMin"), [g.pick(*INTEGERS)], 1, {}
