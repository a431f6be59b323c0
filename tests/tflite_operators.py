"""The cases of `tflite_cases`, operator by operator."""

from __future__ import annotations

import math

import numpy as np
from tflite_moves import diagonals, picks, segments, shapes
from tflite_quantized import quantized
from tflite_cases import (
    IMAGE,
    POOL,
    hard_swish,
    relu,
    F,
    Case,
    blocks_of,
    conv,
    depthwise,
    from_blocks,
    ints,
    normal,
    relu6,
    resized,
    sigmoid,
    softmax,
    transposed,
    windows,
)


def positive(*shape):
    return np.abs(normal(*shape)) + F(0.1)


def bits(*shape):
    return normal(*shape) > 0


def convolutions():
    for padding in (0, 1):
        for strides, dilations in (((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 1), (2, 1))):
            options = dict(padding=padding, stride_h=strides[0], stride_w=strides[1], activation=3)
            options |= dict(dilation_h=dilations[0], dilation_w=dilations[1])
            label = f"{padding}{strides}{dilations}"
            given = dict(options=options, label=label)
            conv_of = conv(strides, dilations, padding, relu6)
            yield Case("CONV_2D", (IMAGE, normal(4, 3, 2, 5), normal(4)), conv_of, "Conv2DOptions", **given)
            depth = {**options, "multiplier": 2}
            if strides[0] == strides[1]:
                dw = depthwise(strides, dilations, padding, relu6)
                yield Case(
                    "DEPTHWISE_CONV_2D",
                    (IMAGE, normal(1, 3, 2, 10), normal(10)),
                    dw,
                    "DepthwiseConv2DOptions",
                    depth,
                    label=label,
                )
    groups = dict(padding=0, stride_h=1, stride_w=1)
    yield Case(
        "CONV_2D", ((1, 5, 6, 4), normal(6, 3, 3, 2), normal(6)), conv(), "Conv2DOptions", groups, label="groups"
    )
    for padding, shape in ((0, (2, 14, 12, 3)), (1, (2, 15, 13, 3)), (0, (2, 13, 11, 3))):
        options = dict(padding=padding, stride_h=2, stride_w=2)
        yield Case(
            "TRANSPOSE_CONV",
            (ints(*shape), normal(3, 3, 3, 5), IMAGE),
            transposed(shape, (2, 2), padding),
            "TransposeConvOptions",
            options,
            label=f"{padding}{shape}",
        )


def images():
    for padding in (0, 1):
        given = dict(kind="Pool2DOptions", options=dict(POOL, padding=padding), label=str(padding))

        def cut(x, value, padding=padding):
            return windows(x, (2, 3), (1, 2), padding=padding, value=value)

        yield Case("MAX_POOL_2D", (IMAGE,), lambda x, cut=cut: cut(x, -np.inf).max((-2, -1)), **given)
        yield Case("AVERAGE_POOL_2D", (IMAGE,), lambda x, cut=cut: np.nanmean(cut(x, np.nan), (-2, -1)), **given)
        yield Case("L2_POOL_2D", (IMAGE,), lambda x, cut=cut: np.nanmean(cut(x, np.nan) ** 2, (-2, -1)) ** 0.5, **given)
    for size in ((14, 12), (4, 9)):
        for how in (dict(), dict(align_corners=True), dict(half_pixel=True)):
            align, half = how.get("align_corners", False), how.get("half_pixel", False)
            for op, kind, linear in (
                ("RESIZE_BILINEAR", "ResizeBilinearOptions", True),
                ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions", False),
            ):
                expected = resized(size, linear, align, half)
                yield Case(op, (IMAGE, ints(*size)), expected, kind, how, label=f"{size}{sorted(how)}")
    yield Case("SPACE_TO_DEPTH", ((1, 4, 6, 3),), lambda x: blocks_of(x, 2), "SpaceToDepthOptions", dict(block=2))
    yield Case("DEPTH_TO_SPACE", ((1, 4, 6, 12),), lambda x: from_blocks(x, 2), "DepthToSpaceOptions", dict(block=2))
    edges = np.asarray([[1, 2], [0, 1]], np.int32)
    yield Case("SPACE_TO_BATCH_ND", ((2, 5, 5, 3), ints(2, 3), edges), to_batch)
    yield Case("BATCH_TO_SPACE_ND", ((12, 4, 2, 3), ints(2, 3), edges), from_batch)
    options = dict(radius=1, bias=1.5, alpha=0.3, beta=0.75)

    def lrn(x):
        squares = np.pad(x.astype(np.float64) ** 2, [(0, 0)] * 3 + [(1, 1)])
        return x / (1.5 + 0.3 * sum(squares[..., i : i + 5] for i in range(3))) ** 0.75

    kind = "LocalResponseNormalizationOptions"
    yield Case("LOCAL_RESPONSE_NORMALIZATION", (IMAGE,), lrn, kind, options)


def to_batch(x, block, edges):
    x = np.pad(x, [(0, 0), *edges.tolist(), (0, 0)])
    parts = [x[:, i :: block[0], j :: block[1]] for i in range(block[0]) for j in range(block[1])]
    return np.concatenate(parts)


def from_batch(x, block, edges):
    n = len(x) // (block[0] * block[1])
    y = np.zeros((n, x.shape[1] * block[0], x.shape[2] * block[1], x.shape[3]), x.dtype)
    for k, part in enumerate(np.split(x, len(x) // n)):
        y[:, k // block[1] :: block[0], k % block[1] :: block[1]] = part
    (a, b), (c, d) = edges
    return y[:, a : y.shape[1] - b, c : y.shape[2] - d]


UNARY = {
    "ABS": np.abs,
    "CEIL": np.ceil,
    "COS": np.cos,
    "ELU": lambda x: np.where(x > 0, x, np.expm1(x)),
    "EXP": np.exp,
    "FLOOR": np.floor,
    "HARD_SWISH": hard_swish,
    "LOG": np.log,
    "LOGISTIC": sigmoid,
    "NEG": np.negative,
    "RELU": relu,
    "RELU6": relu6,
    "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1),
    "ROUND": np.round,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "SIGN": np.sign,
    "SIN": np.sin,
    "SQRT": np.sqrt,
    "SQUARE": np.square,
    "TANH": np.tanh,
}
BINARY = {
    "ADD": (np.add, "AddOptions"),
    "SUB": (np.subtract, "SubOptions"),
    "MUL": (np.multiply, "MulOptions"),
    "DIV": (np.divide, "DivOptions"),
    "MAXIMUM": (np.maximum, ""),
    "MINIMUM": (np.minimum, ""),
    "SQUARED_DIFFERENCE": (lambda a, b: (a - b) ** 2, ""),
    "FLOOR_DIV": (lambda a, b: np.floor(a / b), ""),
    "FLOOR_MOD": (np.mod, ""),
    "POW": (np.power, ""),
    "ATAN2": (np.arctan2, ""),
}


def elements():
    for op, f in UNARY.items():
        draw = positive if op in ("LOG", "SQRT", "RSQRT") else normal
        yield Case(op, ((2, 3, 5),), f, draw=draw)
    for op, (f, kind) in BINARY.items():
        draw = positive if op in ("POW", "DIV", "FLOOR_DIV") else normal
        options = dict(activation=1) if kind else None
        given = (lambda a, b, f=f: np.maximum(f(a, b), 0)) if kind else f
        b = (2, 3, 4, 5) if op == "ATAN2" else positive(5)
        yield Case(op, ((2, 3, 4, 5), b), given, kind, options, draw=draw)
    for op, f in (
        ("LESS", np.less),
        ("LESS_EQUAL", np.less_equal),
        ("GREATER", np.greater),
        ("GREATER_EQUAL", np.greater_equal),
        ("EQUAL", np.equal),
        ("NOT_EQUAL", np.not_equal),
    ):
        yield Case(op, ((2, 3), (2, 3)), f, outputs=("bool",), draw=lambda *s: np.round(normal(*s)))
    alpha = positive(1, 1, 5)
    yield Case("PRELU", (IMAGE, alpha), lambda x, a: np.where(x < 0, a * x, x))
    yield Case("LEAKY_RELU", ((3, 5),), lambda x: np.where(x < 0, F(0.2) * x, x), "LeakyReluOptions", dict(alpha=0.2))
    erf = np.vectorize(math.erf)
    yield Case("GELU", ((3, 5),), lambda x: x / 2 * (1 + erf(x / 2**0.5)), "GeluOptions", dict(approximate=False))
    yield Case("ADD_N", ((3, 5), (3, 5), (3, 5)), lambda *xs: sum(xs))
    condition = np.asarray([[True], [False], [True]])
    yield Case("SELECT_V2", (condition, (3, 5), (3, 5)), np.where)
    yield Case(
        "CAST", ((3, 5),), lambda x: x.astype(np.int32), "CastOptions", outputs=("i32",), draw=lambda *s: 9 * normal(*s)
    )
    yield Case("DEQUANTIZE", (normal(3, 5).astype(np.float16),), lambda x: x.astype(F), label="f16")


def products():
    options = dict(activation=1)
    yield Case(
        "FULLY_CONNECTED",
        ((3, 2, 4), normal(5, 8), normal(5)),
        lambda x, w, b: np.maximum(x.reshape(-1, 8) @ w.T + b, 0),
        "FullyConnectedOptions",
        options,
    )
    yield Case(
        "FULLY_CONNECTED",
        ((3, 2, 8), normal(5, 8), None),
        lambda x, w: x @ w.T,
        "FullyConnectedOptions",
        dict(keep_num_dims=True),
        label="kept",
    )
    for x, y in ((False, False), (True, True)):
        a, b = ((2, 4, 3) if x else (2, 3, 4)), ((2, 5, 4) if y else (2, 4, 5))
        yield Case(
            "BATCH_MATMUL",
            (a, b),
            lambda a, b, x=x, y=y: (a.swapaxes(1, 2) if x else a) @ (b.swapaxes(1, 2) if y else b),
            "BatchMatMulOptions",
            dict(adj_x=x, adj_y=y),
            label=f"{x}{y}",
        )
    yield Case("SOFTMAX", (IMAGE,), lambda x: softmax(x * F(0.5)), "SoftmaxOptions", dict(beta=0.5))
    yield Case("LOG_SOFTMAX", ((3, 5),), lambda x: np.log(softmax(x)))
    yield Case("L2_NORMALIZATION", (IMAGE,), lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), "L2NormOptions")
    options = dict(exclusive=True, reverse=True)

    def sums(x, _):
        return x[:, ::-1].cumsum(1)[:, ::-1] - x

    yield Case("CUMSUM", ((3, 5), np.asarray(1, np.int32)), sums, "CumsumOptions", options)


def reductions():
    for op, f in (
        ("MEAN", np.mean),
        ("SUM", np.sum),
        ("REDUCE_MAX", np.max),
        ("REDUCE_MIN", np.min),
        ("REDUCE_PROD", np.prod),
    ):
        for axes, keeps in (((1, 2), True), ((1, 2), False), ((-1,), False), ((0, 3), True)):
            yield Case(
                op,
                (IMAGE, ints(*axes)),
                lambda x, axes, f=f, keeps=keeps: f(x, tuple(axes), keepdims=keeps),
                "ReducerOptions",
                dict(keep_dims=keeps),
                label=f"{axes}{keeps}",
            )
    yield Case(
        "ARG_MAX", ((3, 5, 4), ints(-1)), lambda x, _: x.argmax(-1), "ArgMaxOptions", dict(output_type=2), ("i32",)
    )
    yield Case(
        "ARG_MIN", ((3, 5, 4), ints(1)), lambda x, _: x.argmin(1), "ArgMinOptions", dict(output_type=4), ("i64",)
    )
    yield Case(
        "TOPK_V2",
        ((3, 9), np.asarray(4, np.int32)),
        lambda x, k: (-np.sort(-x)[:, :k], np.argsort(-x, kind="stable")[:, :k].astype(np.int32)),
        outputs=("f32", "i32"),
    )


CASES = [
    *convolutions(),
    *images(),
    *elements(),
    *products(),
    *reductions(),
    *shapes(),
    *picks(),
    *diagonals(),
    *segments(),
    *quantized(),
]
