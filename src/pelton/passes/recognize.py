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
      examples=[dict(x=X, eps=1e-5, axes=(2,)), dict(x=X, eps=1e-3, axes=(1, 2)), dict(x=IMAGE, eps=1e-5, axes=(2, 3))])
def layer_norm_parts(x, eps, axes):
    """(x − mean) / √(variance + ε), over all of space an instance norm; scale and bias join by rules of their own."""
    axis, epsilon = _first_of_last(x, axes), float(scalar(eps))
    if axis == 2 and x.type.rank > 3:
        ones = np.ones(x.type.shape[1])
        return instance_norm(x, ones, 0 * ones, epsilon=epsilon)
    ones = np.ones(x.type.shape[axis:])
    return layer_norm(x, ones, 0 * ones, axis=axis, epsilon=epsilon)


def _scaled_root(x, eps, axes, square):
    mean = reduce_mean(x, axes=axes)
    centred = sub(x, mean)
    return mean, reciprocal(sqrt(add(reduce_mean(square(centred), axes=axes), eps)))


def _affine_first(x, eps, g, b, axes, square):
    """x · (g / √(variance + ε)) + (b − mean · (g / √(variance + ε))), the way of Keras."""
    mean, root = _scaled_root(x, eps, axes, square)
    factor = mul(root, g)
    return add(mul(x, factor), sub(b, mul(mean, factor)))


@rule(*[lambda x, eps, g, b, *, axes, square=square: _affine_first(x, eps, g, b, axes, square) for square in _SQUARES],
      examples=[dict(x=X, eps=1e-5, g=ROW, b=ROW, axes=(2,))])
def layer_norm_affine_first(x, eps, g, b, axes):
    axis = _first_of_last(x, axes)
    return layer_norm(x, _spread(g, x, axis), _spread(b, x, axis), axis=axis, epsilon=float(scalar(eps)))


@rule(*[lambda x, eps, *, axes, square=square, k=k: _over_root(x, reduce_mean(square(x), axes=axes), eps)[k] for square in _SQUARES for k in range(4)],
      examples=[dict(x=X, eps=1e-6, axes=(2,))])
def rms_norm_parts(x, eps, axes):
    """x / √(mean x² + ε)"""
    axis = _first_of_last(x, axes)
    return rms_norm(x, np.ones(x.type.shape[axis:]), axis=axis, epsilon=float(scalar(eps)))


def _spread(c: Value, x: Value, axis: int) -> Any:
    """A factor or shift of a norm over the last axes, in their shape; what varies elsewhere is none."""
    shape = x.type.shape[axis:]
    when(c.type.rank <= len(shape) and all(d in (1, n) for d, n in zip(reversed(c.type.shape), reversed(shape))))
    return np.broadcast_to(array(c), shape) if constant(c) else c if c.type.shape == shape else expand(c, shape=shape)


def _per_channel(c: Value, x: Value) -> Any:
    """A factor or shift per channel of x, as a vector; what varies elsewhere is none."""
    shape = (*[1] * (x.type.rank - c.type.rank), *c.type.shape)
    when(len(shape) == x.type.rank and shape[1] in (1, x.type.shape[1]) and math.prod(shape) == shape[1])
    if constant(c):
        return np.broadcast_to(array(c).reshape(-1), x.type.shape[1:2])
    when(shape[1] == x.type.shape[1])
    return c if c.type.rank == 1 else reshape(c, shape=x.type.shape[1:2])


def _affine(node: Node, c: Value) -> tuple[Node, Any]:
    """The norm behind a factor or shift, and c in the shape that the norm wants."""
    norm = next(n for n in map(made_by, node.inputs) if n is not None and n.op in NORMS)
    x = norm.inputs[0]
    return norm, _spread(c, x, norm.attrs["axis"]) if "axis" in norm.attrs else _per_channel(c, x)


NORMS = (layer_norm, instance_norm, group_norm)
_AFFINE = [dict(x=X, g=np.ones(8, np.float32), b=np.zeros(8, np.float32), c="f32[8]", axis=2, epsilon=1e-5), dict(x=X, g=ROW, b=ROW, c=0.5, axis=2),
           dict(x=IMAGE, g="=f32[4]", b="=f32[4]", c="=f32[1, 4, 1, 1]", groups=2),
           dict(x=IMAGE, g=np.ones(4, np.float32), b=np.zeros(4, np.float32), c="f32[4, 1, 1]", groups=2, axis=1)]


@rule(*[lambda x, g, b, c, norm=norm, **at: mul(norm(x, g, b, **at), c) for norm in NORMS], examples=_AFFINE)
def norm_scale(x, g, b, c, node):
    """A factor behind a norm scales its scale and its bias."""
    norm, factor = _affine(node, c)
    if everywhere(g, 1) and everywhere(b, 0):
        return norm.op(x, factor, b, **norm.attrs)
    when(constant(g, b, c))
    return norm.op(x, array(g) * factor, array(b) * factor, **norm.attrs)


@rule(*[lambda x, g, b, c, norm=norm, **at: add(norm(x, g, b, **at), c) for norm in NORMS], examples=_AFFINE)
def norm_shift(x, g, b, c, node):
    """A shift behind a norm joins its bias."""
    norm, shift = _affine(node, c)
    if everywhere(b, 0):
        return norm.op(x, g, shift, **norm.attrs)
    when(constant(b, c))
    return norm.op(x, g, array(b) + shift, **norm.attrs)


@rule(lambda x, g, c, **at: mul(rms_norm(x, g, **at), c), examples=[dict(x=X, g=np.ones(8, np.float32), c="f32[8]", axis=2), dict(x=X, g=ROW, c=ROW, axis=2)])
def rms_norm_scale(x, g, c, axis, epsilon):
    factor = _spread(c, x, axis)
    if not everywhere(g, 1):
        when(constant(g, c))
        factor = array(g) * factor
    return rms_norm(x, factor, axis=axis, epsilon=epsilon)


@rule(lambda x, g, b, *, grouped, shape, epsilon: reshape(instance_norm(reshape(x, shape=grouped), g, b, epsilon=epsilon), shape=shape),
      examples=[dict(x="f32[2, 6, 3, 3]", g="=f32[3]", b="=f32[3]", grouped=(2, 3, 18), shape=(2, 6, 3, 3), epsilon=1e-5)])
def group_norm_parts(x, g, b, grouped, shape, epsilon):
    """Groups of channels laid side by side, normalised as instances."""
    when(shape == x.type.shape and len(shape) >= 2 and grouped[0] == shape[0] and shape[1] % grouped[1] == 0 and constant(g, b))
    scale, bias = (np.repeat(array(c), shape[1] // grouped[1]) for c in (g, b))
    return group_norm(x, scale, bias, groups=grouped[1], epsilon=epsilon)


# --- attention

def _scores(q, kt, c):
    """The spellings of q · kᵀ times or by a number."""
    product = matmul(q, kt)
    return product, mul(product, c), div(product, c)


_QKV = dict(q="f32[2, 3, 5, 8]", kt="f32[2, 3, 8, 7]", v="f32[2, 3, 7, 4]", c=0.25, axis=3)


def _swapped(x: Value):
    """A term: x with its last two axes swapped."""
    rank = x.type.rank
    return transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _attention(q: Value, kt: Value, v: Value, mask: Any, c: Value | None, divided: bool, axis: int):
    when(q.type.rank == kt.type.rank == v.type.rank == axis + 1 >= 2)
    factor = 1.0 if c is None else float(scalar(c))
    when(not divided or factor != 0)
    return attention(q, _swapped(kt), v, mask, scale=1 / factor if divided else factor)


@rule(*[lambda q, kt, c, v, k=k: matmul(softmax(_scores(q, kt, c)[k], axis=ANY), v) for k in range(3)], examples=[_QKV])
def attention_parts(q, kt, v, axis, node, c=None):
    """softmax(scale · q·kᵀ) · v"""
    return _attention(q, kt, v, 0.0, c, _divides(node, 1), axis)
