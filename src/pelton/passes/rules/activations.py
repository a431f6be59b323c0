"""Recognizes activations and softmax from the parts that exporters write."""

from __future__ import annotations

import math
from collections.abc import Callable

from pelton.ops.words import (
    add,
    clip,
    div,
    erf,
    exp,
    gelu,
    gelu_tanh,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log,
    log_softmax,
    maximum,
    mish,
    mul,
    neg,
    pow_,
    prelu,
    reciprocal,
    reduce_max,
    reduce_sum,
    sigmoid,
    softmax,
    softplus,
    sub,
    swish,
    tanh,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import rule, scalar, when

X = "f32[2, 3, 8]"


# --- activations


@rule(lambda x: reciprocal(add(exp(neg(x)), 1)), stage="recognize", examples=[dict(x=X)])
def sigmoid_parts(x):
    """1 / (1 + e⁻ˣ)"""
    return sigmoid(x)


@rule(lambda x: log(add(exp(x), 1)), stage="recognize", examples=[dict(x=X)])
def softplus_parts(x):
    """log(1 + eˣ)"""
    return softplus(x)


@rule(
    lambda x: mul(x, sigmoid(x)),
    lambda x: div(x, add(exp(neg(x)), 1)),
    lambda x, a: mul(x, sigmoid(mul(x, a))),
    stage="recognize",
    examples=[dict(x=X, a=1.702)],
)
def swish_parts(x, a=None):
    """x · sigmoid(α · x)"""
    return swish(x, alpha=1.0 if a is None else float(scalar(a)))


@rule(lambda x: mul(x, tanh(softplus(x))), stage="recognize", examples=[dict(x=X)])
def mish_parts(x):
    """x · tanh(softplus(x))"""
    return mish(x)


@rule(
    lambda x, a, b: clip(add(mul(x, a), b), 0, 1),
    lambda x, b, d: div(clip(add(x, b), 0, d), d),
    lambda x, b: mul(clip(add(x, b), 0, 6), 1 / 6),
    stage="recognize",
    examples=[dict(x=X, a=0.2, b=0.5), dict(x=X, b=3.0, d=6.0)],
)
def hard_sigmoid_parts(x, b, a=None, d=None):
    """clip(α · x + β, 0, 1); with a quotient by d, the limit is d."""
    when(x.type.dtype.is_float)
    if a is not None:
        return hard_sigmoid(x, alpha=float(scalar(a)), beta=float(scalar(b)))
    limit = 6.0 if d is None else float(scalar(d))
    when(limit > 0)
    return hard_sigmoid(x, alpha=1 / limit, beta=scalar(b) / limit)


@rule(
    lambda x: mul(x, hard_sigmoid(x, alpha=ANY, beta=ANY)),
    stage="recognize",
    examples=[dict(x=X, alpha=1 / 6, beta=0.5)],
)
def hard_swish_parts(x, alpha, beta):
    """x · hard_sigmoid(x), with 1/6 and 1/2"""
    when(abs(alpha * 6 - 1) < 1e-6 and beta == 0.5)
    return hard_swish(x)


@rule(
    lambda x: div(mul(x, clip(add(x, 3), 0, 6)), 6),
    lambda x: mul(mul(x, clip(add(x, 3), 0, 6)), 1 / 6),
    lambda x: mul(mul(x, 1 / 6), clip(add(x, 3), 0, 6)),
    stage="recognize",
    examples=[dict(x=X)],
)
def hard_swish_clip(x):
    """x · clip(x + 3, 0, 6) / 6"""
    when(x.type.dtype.is_float)
    return hard_swish(x)


@rule(lambda x, a: maximum(x, mul(x, a)), lambda x, a: prelu(x, a), stage="recognize", examples=[dict(x=X, a=0.1)])
def leaky_relu_parts(x, a, node):
    """max(x, α · x), or a PReLU with one slope for all"""
    when(x.type.dtype.is_float)
    slope = float(scalar(a))
    when(node.op is prelu or 0 <= slope <= 1)
    return leaky_relu(x, alpha=slope)


def _halves(x, gate):
    """Returns the forms of 0.5 · x · gate."""
    return mul(mul(x, gate), 0.5), mul(mul(x, 0.5), gate), mul(x, mul(gate, 0.5)), div(mul(x, gate), 2)


def _spellings(*parts: Callable, whole: Callable, count: int) -> list[Callable]:
    return [lambda x, part=part, k=k: whole(x, part(x))[k] for part in parts for k in range(count)]


@rule(
    *_spellings(
        lambda x: add(erf(mul(x, math.sqrt(0.5))), 1),
        lambda x: add(erf(div(x, math.sqrt(2))), 1),
        whole=_halves,
        count=4,
    ),
    stage="recognize",
    examples=[dict(x=X)],
)
def gelu_parts(x):
    """0.5 · x · (1 + erf(x / √2))"""
    return gelu(x)


_CUBES = (lambda x: mul(mul(x, x), x), lambda x: pow_(x, 3))


@rule(
    *_spellings(
        *[
            lambda x, cube=cube: add(tanh(mul(add(x, mul(cube(x), 0.044715)), math.sqrt(2 / math.pi))), 1)
            for cube in _CUBES
        ],
        lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, 0.044715), x), 1))), 1),
        lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, x), 0.044715), 1))), 1),
        whole=_halves,
        count=4,
    ),
    stage="recognize",
    examples=[dict(x=X)],
)
def gelu_tanh_parts(x):
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))"""
    return gelu_tanh(x)


# --- softmax


def _shares(e, axes):
    """Returns the forms of e / Σ e."""
    total = reduce_sum(e, axes=axes)
    return div(e, total), mul(e, reciprocal(total))


@rule(
    *[lambda x, *, axes, k=k: _shares(exp(sub(x, reduce_max(x, axes=axes))), axes)[k] for k in range(2)],
    *[lambda x, *, axes, k=k: _shares(exp(x), axes)[k] for k in range(2)],
    stage="recognize",
    examples=[dict(x=X, axes=(2,))],
)
def softmax_parts(x, axes):
    """eˣ / Σ eˣ, with or without subtracting the maximum"""
    when(len(axes) == 1)
    return softmax(x, axis=axes[0])


@rule(lambda x: log(softmax(x, axis=ANY)), stage="recognize", examples=[dict(x=X, axis=1)])
def log_softmax_parts(x, axis):
    """log(softmax(x))"""
    return log_softmax(x, axis=axis)
