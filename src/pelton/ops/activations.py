"""Pointwise ops: activation functions."""

from __future__ import annotations

from pelton.ir import scalar as sc

from .math import require_float
from .op import pointwise


@pointwise("Sigmoid")
def sigmoid(x):
    return 1.0 / (1.0 + sc.exp(-x))


@pointwise("Relu", examples=(("f32[5, 13]",), ("i32[5, 13]",)))
def relu(x):
    return sc.maximum(x, 0)


@pointwise("LeakyRelu")
def leaky_relu(x, *, alpha=0.01):
    return sc.select(require_float(x) < 0, alpha * x, x)


@pointwise("PRelu")
def prelu(x, slope):
    return sc.select(x < 0, slope * x, x)


@pointwise("Elu")
def elu(x, *, alpha=1.0):
    return sc.select(x < 0, alpha * (sc.exp(x) - 1.0), x)


@pointwise("Selu")
def selu(x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return gamma * sc.select(x < 0, alpha * (sc.exp(x) - 1.0), x)


@pointwise("Celu")
def celu(x, *, alpha=1.0):
    return sc.select(x < 0, alpha * (sc.exp(x / alpha) - 1.0), x)


@pointwise("ThresholdedRelu")
def thresholded_relu(x, *, alpha=1.0):
    return sc.select(require_float(x) > alpha, x, 0.0)


@pointwise("HardSigmoid")
def hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return sc.minimum(sc.maximum(alpha * require_float(x) + beta, 0.0), 1.0)


@pointwise("HardSwish")
def hard_swish(x):
    return x * sc.minimum(sc.maximum(require_float(x) * (1 / 6) + 0.5, 0.0), 1.0)


@pointwise("Softplus")
def softplus(x):
    """log(1 + eˣ), without overflow for large x."""
    return sc.maximum(x, 0.0) + sc.log(1.0 + sc.exp(-sc.absolute(x)))


@pointwise("Softsign")
def softsign(x):
    return require_float(x) / (1.0 + sc.absolute(x))


@pointwise("Mish")
def mish(x):
    return x * sc.tanh(sc.maximum(x, 0.0) + sc.log(1.0 + sc.exp(-sc.absolute(x))))


@pointwise("Gelu")
def gelu(x):
    return 0.5 * x * (1.0 + sc.erf(x * 0.7071067811865476))


@pointwise("Gelu")
def gelu_tanh(x):
    return 0.5 * x * (1.0 + sc.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


@pointwise("Swish")
def swish(x, *, alpha=1.0):
    return x / (1.0 + sc.exp(-(alpha * x)))


@pointwise(
    "Clip",
    examples=(("f32[5, 13]", "f32[]", "f32[]"), ("f32[2, 3, 9]", "f32[]", "f32[]"), ("i32[5, 13]", "i32[]", "i32[]")),
)
def clip(x, low, high):
    """x clipped to [low, high]; `high` if low > high."""
    return sc.minimum(sc.maximum(x, low), high)
