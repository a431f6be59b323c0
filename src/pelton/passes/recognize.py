"""Recognition: activations, softmax, norms and attention, from the parts that exporters write them in."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pelton.ir.graph import Value
from pelton.ops.attention import attention
from pelton.ops.linear import matmul
from pelton.ops.math import (add, clip, div, erf, exp, gelu, gelu_tanh, hard_sigmoid, hard_swish, leaky_relu, log, maximum, mish, mul, neg, pow_, prelu,
                             reciprocal, sigmoid, softplus, sqrt, sub, swish, tanh, where)
from pelton.ops.norm import batch_norm, group_norm, instance_norm, layer_norm, log_softmax, rms_norm, softmax
from pelton.ops.reduce import reduce_max, reduce_mean, reduce_sum
from pelton.ops.shape import reshape, transpose

from .pattern import ANY
from .rewrite import array, constant, everywhere, require, rule, scalar, when

X, ROW = "f32[2, 3, 8]", "=f32[8]"


# --- activations

@rule(lambda x: reciprocal(add(exp(neg(x)), 1)), examples=[dict(x=X)])
def sigmoid_parts(x):
    return sigmoid(x)


@rule(lambda x: log(add(exp(x), 1)), examples=[dict(x=X)])
def softplus_parts(x):
    return softplus(x)


@rule(lambda x: mul(x, sigmoid(x)), lambda x: div(x, add(exp(neg(x)), 1)), lambda x, a: mul(x, sigmoid(mul(x, a))), examples=[dict(x=X, a=1.702)])
def swish_parts(x, a=None):
    return swish(x, alpha=1.0 if a is None else float(scalar(a)))


@rule(lambda x: mul(x, tanh(softplus(x))), examples=[dict(x=X)])
def mish_parts(x):
    return mish(x)


@rule(lambda x, a, b: clip(add(mul(x, a), b), 0, 1), lambda x, a, b: div(clip(add(x, b), 0, a), a), lambda x, a, b: mul(clip(add(x, b), 0, 6), a),
      examples=[dict(x=X, a=1 / 6, b=3.0), dict(x=X, a=6.0, b=3.0)])
def hard_sigmoid_parts(x, a, b, node):
    a, b = float(scalar(a)), float(scalar(b))
    if node.op is clip:
        return hard_sigmoid(x, alpha=a, beta=b)
    alpha = 1 / a if node.op is div else a
    when(alpha > 0 and (node.op is div or abs(alpha * 6 - 1) < 1e-6))
    return hard_sigmoid(x, alpha=alpha, beta=b * alpha)


@rule(lambda x: mul(x, hard_sigmoid(x, alpha=ANY, beta=ANY)), examples=[dict(x=X, alpha=1 / 6, beta=0.5)])
def hard_swish_parts(x, alpha, beta):
    when(abs(alpha * 6 - 1) < 1e-6 and beta == 0.5)
    return hard_swish(x)


@rule(lambda x: div(mul(x, clip(add(x, 3), 0, 6)), 6), lambda x: mul(mul(x, clip(add(x, 3), 0, 6)), 1 / 6),
      lambda x: mul(mul(x, 1 / 6), clip(add(x, 3), 0, 6)), examples=[dict(x=X)])
def hard_swish_clip(x):
    return hard_swish(x)


@rule(lambda x, a: maximum(x, mul(x, a)), lambda x, a: prelu(x, a), examples=[dict(x=X, a=0.1)])
def leaky_relu_parts(x, a, node):
    slope = float(scalar(a))
    when(node.op is prelu or 0 <= slope <= 1)
    return leaky_relu(x, alpha=slope)


def _halves(x, gate):
    """The spellings of 0.5 · x · gate."""
    return mul(mul(x, gate), 0.5), mul(mul(x, 0.5), gate), mul(x, mul(gate, 0.5)), div(mul(x, gate), 2)


def _spellings(*parts: Callable, whole: Callable, count: int) -> list[Callable]:
    return [lambda x, part=part, k=k: whole(x, part(x))[k] for part in parts for k in range(count)]


@rule(*_spellings(lambda x: add(erf(mul(x, math.sqrt(0.5))), 1), lambda x: add(erf(div(x, math.sqrt(2))), 1), whole=_halves, count=4), examples=[dict(x=X)])
def gelu_parts(x):
    """0.5 · x · (1 + erf(x / √2))"""
    return gelu(x)


_CUBES = (lambda x: mul(mul(x, x), x), lambda x: pow_(x, 3))


@rule(*_spellings(*[lambda x, cube=cube: add(tanh(mul(add(x, mul(cube(x), 0.044715)), math.sqrt(2 / math.pi))), 1) for cube in _CUBES],
                  lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, 0.044715), x), 1))), 1),
                  lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, x), 0.044715), 1))), 1), whole=_halves, count=4), examples=[dict(x=X)])
def gelu_tanh_parts(x):
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))"""
    return gelu_tanh(x)


# --- softmax

def _shares(e, axes):
    """The spellings of e / Σ e."""
    total = reduce_sum(e, axes=axes)
    return div(e, total), mul(e, reciprocal(total))


@rule(*[lambda x, *, axes, k=k: _shares(exp(sub(x, reduce_max(x, axes=axes))), axes)[k] for k in range(2)],
      *[lambda x, *, axes, k=k: _shares(exp(x), axes)[k] for k in range(2)], examples=[dict(x=X, axes=(2,))])
def softmax_parts(x, axes):
    """eˣ / Σ eˣ, with or without the maximum taken off first."""
    when(len(axes) == 1)
    return softmax(x, axis=axes[0])


@rule(lambda x: log(softmax(x, axis=ANY)), examples=[dict(x=X, axis=1)])
def log_softmax_parts(x, axis):
    return log_softmax(x, axis=axis)


# --- norms

def _over_root(x, power, epsilon):
    """The spellings of x / √(power + ε)."""
    biased = add(power, epsilon)
    return div(x, sqrt(biased)), mul(x, reciprocal(sqrt(biased))), mul(x, pow_(biased, -0.5)), div(x, pow_(biased, 0.5))


def _layer(x, epsilon, axes, square, k):
    centred = sub(x, reduce_mean(x, axes=axes))
    return _over_root(centred, reduce_mean(square(centred), axes=axes), epsilon)[k]


_SQUARES = (lambda d: mul(d, d), lambda d: pow_(d, 2))


def _trailing(x: Value, axes: tuple[int, ...]) -> int:
    """The first of the axes, which have to be the last ones of x."""
    when(sorted(axes) == list(range(x.type.rank - len(axes), x.type.rank)))
    return min(axes)


@rule(*[lambda x, eps, *, axes, square=square, k=k: _layer(x, eps, axes, square, k) for square in _SQUARES for k in range(4)],
      examples=[dict(x=X, eps=1e-5, axes=(2,)), dict(x=X, eps=1e-3, axes=(1, 2))])
def layer_norm_parts(x, eps, axes):
    """(x − mean) / √(variance + ε); scale and bias join by rules of their own."""
    return layer_norm(x, 1.0, 0.0, axis=_trailing(x, axes), epsilon=float(scalar(eps)))


@rule(*[lambda x, eps, *, axes, square=square, k=k: _over_root(x, reduce_mean(square(x), axes=axes), eps)[k] for square in _SQUARES for k in range(4)],
      examples=[dict(x=X, eps=1e-6, axes=(2,))])
def rms_norm_parts(x, eps, axes):
    """x / √(mean x² + ε)"""
    return rms_norm(x, 1.0, axis=_trailing(x, axes), epsilon=float(scalar(eps)))


def _fits(c: Value, x: Value, axis: int) -> bool:
    """Whether c varies along the normalised axes alone."""
    return c.type.rank <= x.type.rank - axis and all(d in (1, n) for d, n in zip(reversed(c.type.shape), reversed(x.type.shape)))


@rule(lambda x, g, b, c, *, axis, epsilon: mul(layer_norm(x, g, b, axis=axis, epsilon=epsilon), c),
      examples=[dict(x=X, g=1.0, b=0.0, c="f32[8]", axis=2, epsilon=1e-5), dict(x=X, g=ROW, b=ROW, c=ROW, axis=2, epsilon=1e-5)])
def layer_norm_scale(x, g, b, c, axis, epsilon):
    when(_fits(c, x, axis))
    if everywhere(g, 1) and everywhere(b, 0):
        return layer_norm(x, c, 0.0, axis=axis, epsilon=epsilon)
    when(constant(g, b, c))
    return layer_norm(x, array(g) * array(c), array(b) * array(c), axis=axis, epsilon=epsilon)


@rule(lambda x, g, b, c, *, axis, epsilon: add(layer_norm(x, g, b, axis=axis, epsilon=epsilon), c),
      examples=[dict(x=X, g=ROW, b=0.0, c="f32[8]", axis=2, epsilon=1e-5), dict(x=X, g=ROW, b=ROW, c=ROW, axis=2, epsilon=1e-5)])
def layer_norm_shift(x, g, b, c, axis, epsilon):
    when(_fits(c, x, axis))
    if everywhere(b, 0):
        return layer_norm(x, g, c, axis=axis, epsilon=epsilon)
    when(constant(b, c))
    return layer_norm(x, g, array(b) + array(c), axis=axis, epsilon=epsilon)


@rule(lambda x, g, c, *, axis, epsilon: mul(rms_norm(x, g, axis=axis, epsilon=epsilon), c),
      examples=[dict(x=X, g=1.0, c="f32[8]", axis=2, epsilon=1e-5), dict(x=X, g=ROW, c=ROW, axis=2, epsilon=1e-5)])
def rms_norm_scale(x, g, c, axis, epsilon):
    when(_fits(c, x, axis))
    if everywhere(g, 1):
        return rms_norm(x, c, axis=axis, epsilon=epsilon)
    when(constant(g, c))
    return rms_norm(x, array(g) * array(c), axis=axis, epsilon=epsilon)


