"""Cases of TFLite operators on quantized tensors."""

from __future__ import annotations

import numpy as np
from tflite_cases import POOL, F, Case, Q, conv, depthwise, ints, normal, hard_swish, relu, sigmoid, softmax, windows
from tflite_models import ModelWriter


def quantized():
    x = Q((2, 6, 5, 8), "i8", 0.05, -7)
    w = integers(12, 3, 3, 8)
    yield from _quantized_convolutions(x, w)
    u = Q((2, 6, 5, 8), "u8", 0.05, 120)
    out = Q((), "i8", 0.1, 5)
    yield Case("ADD", (x, Q(x.shape, "i8", 0.03, 9)), np.add, "AddOptions", dict(activation=0), (out,), label="i8")
    yield Case("MUL", (x, Q(x.shape, "i8", 0.03, 9)), np.multiply, "MulOptions", outputs=(out,), label="i8")
    kind, options = "Pool2DOptions", dict(POOL, padding=1)
    pool = lambda y: windows(y, (2, 3), (1, 2), padding=1)  # noqa: E731
    yield Case(
        "MAX_POOL_2D", (x,), lambda y: pool(y).max((-2, -1)), kind, options, (Q((), "i8", 0.05, -7),), label="i8"
    )
    yield Case(
        "AVERAGE_POOL_2D", (u,), lambda y: pool(y).mean((-2, -1)), kind, options, (Q((), "u8", 0.05, 120),), label="u8"
    )
    yield Case("LOGISTIC", (x,), sigmoid, outputs=(Q((), "i8", 1 / 256, -128),), label="i8")
    yield Case("HARD_SWISH", (x,), hard_swish, outputs=(Q((), "i8", 0.04, -100),), label="i8")
    yield Case("SOFTMAX", (x,), softmax, "SoftmaxOptions", dict(beta=1), (Q((), "i8", 1 / 256, -128),), label="i8")
    means = dict(keep_dims=True)
    yield Case(
        "MEAN",
        (x, ints(1, 2)),
        lambda y, a: y.mean((1, 2), keepdims=True),
        "ReducerOptions",
        means,
        (Q((), "i8", 0.02, 3),),
        label="i8",
    )
    edges = np.asarray([[0, 0], [1, 2], [0, 3], [0, 0]], np.int32)
    yield Case("PAD", (x, edges), lambda y, e: np.pad(y, e.astype(int)), outputs=(Q((), "i8", 0.05, -7),), label="i8")
    yield Case("QUANTIZE", (x,), lambda y: y, outputs=(Q((), "u8", 0.07, 100),), label="i8 to u8")
    yield Case("QUANTIZE", ((3, 5),), lambda y: y, outputs=(Q((), "i8", 0.03, 4),), label="f32")
    yield Case("DEQUANTIZE", (u,), lambda y: y, label="u8")
    weights = Q((), "i8", 0.02)
    yield _fully_connected(weights)


def integers(*shape):
    return np.clip(np.round(40 * normal(*shape)), -127, 127).astype(np.int8)


class QuantizedLayer(Case):
    """A layer whose weights and bias are quantized constants: (array, scale, axis)."""

    def model(self, results):
        w = ModelWriter()
        x, (weights, scale, axis), (bias, unit) = self.inputs
        given = [w.main.input(x.shape, x.dtype, scale=x.scale, zero=x.zero, name="x0")]
        given.append(w.main.constant(weights, scale=scale, axis=axis))
        given.append(w.main.constant(bias, scale=unit))
        (of,) = self.outputs
        output = w.main.output(results[0].shape, of.dtype, scale=of.scale, zero=of.zero)
        w.main.op(self.op, given, [output], self.kind, **(self.options or {}))
        return w.bytes()

    def feeds(self):
        return Case("", self.inputs[:1], None).feeds()

    def results(self, feeds):
        x, (weights, scale, axis), (bias, unit) = self.inputs
        shape = [1] * weights.ndim
        shape[axis] = np.size(scale)
        y = self.expected(x.real(feeds[0]), weights * np.reshape(scale, shape), bias * np.asarray(unit, np.float64))
        return [self.outputs[0].quantized(y)]


def _quantized_convolutions(x, w):
    scales = np.linspace(0.01, 0.03, 12).astype(F)
    bias = np.round(300 * normal(12)).astype(np.int32)
    options = dict(padding=0, stride_h=1, stride_w=1, activation=1)
    out = Q((), "i8", 0.2, -128)
    layer = (x, (w, scales, 0), (bias, (x.scale * scales).astype(F)))
    yield QuantizedLayer("CONV_2D", layer, conv(act=relu), "Conv2DOptions", options, (out,), label="i8 by channel")
    deep = np.linspace(0.01, 0.03, 8).astype(F)
    weights = integers(1, 3, 3, 8)
    layer = (x, (weights, deep, 3), (bias[:8], (x.scale * deep).astype(F)))
    kind, options = "DepthwiseConv2DOptions", {**options, "multiplier": 1}
    yield QuantizedLayer("DEPTHWISE_CONV_2D", layer, depthwise(act=relu), kind, options, (out,), label="i8 by channel")


def _fully_connected(weights):
    x = Q((3, 40), "i8", 0.05, -7)
    layer = (
        x,
        (integers(9, 40), np.asarray([0.02], F), 0),
        (np.round(300 * normal(9)).astype(np.int32), F(0.05 * 0.02)),
    )
    expected = lambda a, w, b: a @ w.T + b  # noqa: E731
    return QuantizedLayer(
        "FULLY_CONNECTED", layer, expected, "FullyConnectedOptions", {}, (Q((), "i8", 0.3, 2),), label="i8"
    )
