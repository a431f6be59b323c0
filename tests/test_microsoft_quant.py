"""ONNX Runtime's quantized operators, each beside its documentation, written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, apart, attention, check_refusal, floats, judge, node, softmax

CASES = Cases()


def _bits(rng, bits, zeros="", bias=False, inner=40, size=16) -> Case:
    columns, blocks, per = 6, -(-inner // size), 8 // bits
    q = rng.integers(0, 1 << bits, (columns, blocks * size))
    scales = rng.uniform(0.05, 0.2, (columns, blocks)).astype(np.float32)
    z = rng.integers(0, 1 << bits, (columns, blocks)) if zeros else np.full((columns, blocks), 1 << (bits - 1))
    packed = (
        sum(q.reshape(columns, -1, per)[..., i] << (bits * i) for i in range(per))
        .astype(np.uint8)
        .reshape(columns, blocks, -1)
    )
    held = np.zeros((columns, -(-blocks // per) * per), int)
    held[:, :blocks] = z
    points = {
        "": None,
        "packed": sum(held.reshape(columns, -1, per)[..., i] << (bits * i) for i in range(per)).astype(np.uint8),
        "plain": z.astype(np.float32),
    }[zeros]
    w = ((q - z.repeat(size, 1)) * scales.astype(np.float64).repeat(size, 1))[:, :inner]
    x, c = floats(rng, 2, 3, inner), floats(rng, columns)
    operands = [("fed", x), packed, scales, points, None, c if bias else None]
    while operands[-1] is None:
        operands.pop()
    return node(
        "MatMulNBits",
        operands,
        [x.astype(np.float64) @ w.T + (c if bias else 0)],
        K=inner,
        N=columns,
        bits=bits,
        block_size=size,
    )


@CASES.add
def four_bits(rng):
    return _bits(rng, 4)


@CASES.add
def four_bits_zero_points_bias(rng):
    return _bits(rng, 4, "packed", bias=True)


@CASES.add
def four_bits_plain_zero_points(rng):
    return _bits(rng, 4, "plain")


@CASES.add
def eight_bits(rng):
    return _bits(rng, 8, "packed")


@CASES.add
def two_bits(rng):
    return _bits(rng, 2, "packed", inner=64)


# --- quantized


def back(x, scale, zero=0) -> np.ndarray:
    return (x.astype(np.float64) - zero) * np.float64(np.float32(scale))


def forth(y, scale, zero, dtype=np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.clip(np.round(y / np.float64(np.float32(scale))) + zero, limits.min, limits.max).astype(dtype)


def whole(rng, *shape, dtype=np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def q(scale, zero, dtype=np.uint8) -> list:
    return [np.float32(scale), np.array(zero, dtype)]


@CASES.add
def qlinear_add(rng):
    a, b = whole(rng, 2, 3, 4), whole(rng, 3, 1)
    return node(
        "QLinearAdd",
        [("fed", a), *q(0.1, 120), ("fed", b), *q(0.06, 130), *q(0.15, 100)],
        [forth(back(a, 0.1, 120) + back(b, 0.06, 130), 0.15, 100)],
    )


@CASES.add
def qlinear_mul(rng):
    a, b = whole(rng, 2, 7, dtype=np.int8), whole(rng, 2, 7, dtype=np.int8)
    return node(
        "QLinearMul",
        [("fed", a), *q(0.03, 3, np.int8), ("fed", b), *q(0.02, -5, np.int8), *q(0.07, 10, np.int8)],
        [forth(back(a, 0.03, 3) * back(b, 0.02, -5), 0.07, 10, np.int8)],
    )


@CASES.add
def qlinear_sigmoid(rng):
    x = whole(rng, 3, 9)
    return node(
        "QLinearSigmoid",
        [("fed", x), *q(0.04, 128), *q(1 / 256, 0)],
        [forth(1 / (1 + np.exp(-back(x, 0.04, 128))), 1 / 256, 0)],
    )


@CASES.add
def qlinear_leaky_relu(rng):
    x = whole(rng, 3, 9)
    y = back(x, 0.04, 128)
    return node(
        "QLinearLeakyRelu",
        [("fed", x), *q(0.04, 128), *q(0.03, 100)],
        [forth(np.where(y > 0, y, 0.2 * y), 0.03, 100)],
        alpha=0.2,
    )


@CASES.add
def qlinear_softmax(rng):
    x = whole(rng, 3, 9)
    return node(
        "QLinearSoftmax",
        [("fed", x), *q(0.04, 128), *q(1 / 256, 0)],
        [forth(softmax(back(x, 0.04, 128)), 1 / 256, 0)],
        axis=-1,
        attribute_opset=13,
    )


@CASES.add
def qlinear_softmax_of_old(rng):
    x = whole(rng, 2, 3, 4)
    y = softmax(back(x, 0.04, 128).reshape(2, 12)).reshape(2, 3, 4)
    return node(
        "QLinearSoftmax",
        [("fed", x), *q(0.04, 128), *q(1 / 256, 0)],
        [forth(y, 1 / 256, 0)],
        axis=1,
        attribute_opset=12,
    )


@CASES.add
def qlinear_concat(rng):
    a, b = whole(rng, 2, 3), whole(rng, 2, 4)
    return node(
        "QLinearConcat",
        [*q(0.1, 110), ("fed", a), *q(0.1, 110), ("fed", b), *q(0.0713, 140)],
        [np.concatenate([forth(back(a, 0.1, 110), 0.1, 110), forth(back(b, 0.0713, 140), 0.1, 110)], 1)],
        axis=1,
    )


@CASES.add
def qlinear_where(rng):
    c, a, b = rng.random((2, 5)) < 0.5, whole(rng, 2, 5), whole(rng, 2, 5)
    return node(
        "QLinearWhere",
        [("fed", c), ("fed", a), *q(0.1, 110), ("fed", b), *q(0.0713, 140), *q(0.09, 120)],
        [forth(np.where(c, back(a, 0.1, 110), back(b, 0.0713, 140)), 0.09, 120)],
    )


@CASES.add
def qlinear_average_pool(rng):
    x = whole(rng, 1, 3, 6, 6)
    y = back(x, 0.1, 120).reshape(1, 3, 3, 2, 3, 2).mean((3, 5))
    return node(
        "QLinearAveragePool",
        [("fed", x), *q(0.1, 120), *q(0.08, 110)],
        [forth(y, 0.08, 110)],
        kernel_shape=[2, 2],
        strides=[2, 2],
    )


@CASES.add
def qlinear_global_average_pool(rng):
    x = whole(rng, 2, 5, 4, 3)
    return node(
        "QLinearGlobalAveragePool",
        [("fed", x), *q(0.1, 120), *q(0.02, 110)],
        [forth(back(x, 0.1, 120).mean((1, 2), keepdims=True), 0.02, 110)],
        channels_last=1,
    )


@CASES.add
def qlinear_reduce_mean(rng):
    x = whole(rng, 2, 5, 4)
    return node(
        "QLinearReduceMean",
        [("fed", x), *q(0.1, 120), *q(0.0431, 110)],
        [forth(back(x, 0.1, 120).mean(1), 0.0431, 110)],
        axes=[1],
        keepdims=0,
    )


@CASES.add
def qlinear_conv_of_channels_last(rng):
    x, w, c = whole(rng, 1, 5, 4, 3), whole(rng, 6, 3, 2, 2, dtype=np.int8), rng.integers(-500, 500, 6).astype(np.int32)
    s = rng.uniform(0.01, 0.02, 6).astype(np.float32)
    fx, fw = back(x, 0.05, 128), w * s.astype(float)[:, None, None, None]
    y = sum(fx[:, i : i + 4, j : j + 3] @ fw[:, :, i, j].T for i in (0, 1) for j in (0, 1)) + c * (0.05 * s)
    operands = [("fed", x), *q(0.05, 128), w, s, np.zeros(6, np.int8), *q(0.1, 100), c]
    return node("QLinearConv", operands, [forth(y, 0.1, 100)], channels_last=1)


@CASES.add
def qgemm(rng):
    a, b, c = whole(rng, 4, 6), whole(rng, 3, 6, dtype=np.int8), rng.integers(-500, 500, 3).astype(np.int32)
    s, z = rng.uniform(0.01, 0.02, 3).astype(np.float32), np.zeros(3, np.int8)
    y = back(a, 0.05, 128) @ (b * s[:, None].astype(np.float64)).T + c * (0.05 * s)
    return node("QGemm", [("fed", a), *q(0.05, 128), b, s, z, c], [y], transB=1)


@CASES.add
def matmul_integer_to_float(rng):
    a, b, s, z, c = (
        whole(rng, 2, 4, 6),
        whole(rng, 6, 3),
        rng.uniform(0.01, 0.02, 3).astype(np.float32),
        whole(rng, 3),
        floats(rng, 3),
    )
    return node(
        "MatMulIntegerToFloat",
        [("fed", a), b, np.float32(0.05), s, np.uint8(128), z, c],
        [back(a, 0.05, 128) @ ((b.astype(float) - z) * s) + c],
    )


@CASES.add
def dynamic_quantize_matmul(rng):
    a, b, c = floats(rng, 2, 4, 6), whole(rng, 6, 3, dtype=np.int8), floats(rng, 3)
    s, z = rng.uniform(0.01, 0.02, 3).astype(np.float32), whole(rng, 3, dtype=np.int8)
    scale = np.float32((max(a.max(), 0) - min(a.min(), 0)) / np.float32(255))
    zero = np.round(-min(a.min(), 0) / scale)
    return node(
        "DynamicQuantizeMatMul",
        [("fed", a), b, s, z, c],
        [back(forth(a, scale, zero), scale, zero) @ ((b.astype(float) - z) * s) + c],
    )


@CASES.add
def qattention(rng):
    b, s, h, d = 2, 5, 3, 4
    x, w, c = whole(rng, b, s, 7), whole(rng, 7, 3 * h * d), floats(rng, 3 * h * d)
    m = np.array([[1, 1, 0, 1, 0], [1] * 5], np.int32)
    q3, k, v = (apart(t, h) for t in np.split(back(x, 0.01, 128) @ back(w, 0.02, 120) + c, 3, -1))
    return node(
        "QAttention",
        [("fed", x), w, c, np.float32(0.01), np.float32(0.02), ("fed", m), np.uint8(128), np.uint8(120)],
        [attention(q3, k, v, np.where(m, 0.0, -10000.0)[:, None, None])],
        num_heads=h,
    )


@CASES.add
def quantize(rng):
    x = floats(rng, 3, 4)
    return node("QuantizeLinear", [("fed", x), *q(0.02, 128)], [forth(x.astype(np.float64), 0.02, 128)])


@CASES.add
def dequantize(rng):
    x, s, z = whole(rng, 3, 4), rng.uniform(0.1, 0.2, 4).astype(np.float32), whole(rng, 4)
    return node("DequantizeLinear", [("fed", x), s, z], [(x.astype(float) - z) * s], axis=1)


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


REFUSED = {
    "weights that are too few": (
        lambda rng: node(
            "MatMulNBits",
            [("fed", floats(rng, 2, 16)), whole(rng, 3, 1, 7), floats(rng, 3)],
            [None],
            K=16,
            N=3,
            block_size=16,
        ),
        "3 × 1 blocks of 8 bytes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])
