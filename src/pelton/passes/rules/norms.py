"""Recognizes layer, RMS, instance and group norms, and their scales and shifts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pelton.ir.graph import Value
from pelton.ops.op import Term
from pelton.ops.words import (
    add,
    div,
    expand,
    group_norm,
    instance_norm,
    layer_norm,
    mul,
    pow_,
    reciprocal,
    reduce_mean,
    reshape,
    rms_norm,
    sqrt,
    sub,
)
from pelton.passes.rewriting.rule import array, is_constant, is_filled_with, rule, scalar, when

X, ROW, IMAGE = "f32[2, 3, 8]", "=f32[8]", "f32[2, 4, 3, 5]"


def _over_root(x, power, epsilon):
    """Returns the forms of x / √(power + ε)."""
    biased = add(power, epsilon)
    return div(x, sqrt(biased)), mul(x, reciprocal(sqrt(biased))), mul(x, pow_(biased, -0.5)), div(x, pow_(biased, 0.5))


def _layer(x, epsilon, axes, square, k):
    centred = sub(x, reduce_mean(x, axes=axes))
    return _over_root(centred, reduce_mean(square(centred), axes=axes), epsilon)[k]


_SQUARES = (lambda d: mul(d, d), lambda d: pow_(d, 2))


def _first_of_last(x: Value, axes: tuple[int, ...]) -> int:
    """Returns the first of the axes, which must be the last ones of x."""
    when(sorted(axes) == list(range(x.type.rank - len(axes), x.type.rank)))
    return min(axes)


@rule(
    *[
        lambda x, eps, *, axes, square=square, k=k: _layer(x, eps, axes, square, k)
        for square in _SQUARES
        for k in range(4)
    ],
    stage="recognize",
    examples=[dict(x=X, eps=1e-5, axes=(2,)), dict(x=X, eps=1e-3, axes=(1, 2)), dict(x=IMAGE, eps=1e-5, axes=(2, 3))],
)
def layer_norm_parts(x, eps, axes):
    """(x − mean) / √(variance + ε), over all of space an instance norm; other rules add scale and bias."""
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
    """Builds x · (g / √(variance + ε)) + (b − mean · (g / √(variance + ε))), as Keras does."""
    mean, root = _scaled_root(x, eps, axes, square)
    factor = mul(root, g)
    return add(mul(x, factor), sub(b, mul(mean, factor)))


@rule(
    *[lambda x, eps, g, b, *, axes, square=square: _affine_first(x, eps, g, b, axes, square) for square in _SQUARES],
    stage="recognize",
    examples=[dict(x=X, eps=1e-5, g=ROW, b=ROW, axes=(2,))],
)
def layer_norm_affine_first(x, eps, g, b, axes):
    """x · f + (bias − mean · f), with the scale and the root in the factor f."""
    axis = _first_of_last(x, axes)
    return layer_norm(x, _spread(g, x, axis), _spread(b, x, axis), axis=axis, epsilon=float(scalar(eps)))


@rule(
    *[
        lambda x, eps, *, axes, square=square, k=k: _over_root(x, reduce_mean(square(x), axes=axes), eps)[k]
        for square in _SQUARES
        for k in range(4)
    ],
    stage="recognize",
    examples=[dict(x=X, eps=1e-6, axes=(2,))],
)
def rms_norm_parts(x, eps, axes):
    """x / √(mean x² + ε)"""
    axis = _first_of_last(x, axes)
    return rms_norm(x, np.ones(x.type.shape[axis:]), axis=axis, epsilon=float(scalar(eps)))


def _spread(c: Value, x: Value, axis: int) -> Any:
    """Returns a factor or shift of a norm over the last axes, in their shape; skips if it varies elsewhere."""
    shape = x.type.shape[axis:]
    when(c.type.rank <= len(shape) and all(d in (1, n) for d, n in zip(reversed(c.type.shape), reversed(shape))))
    if is_constant(c):
        return np.broadcast_to(array(c), shape)
    return c if c.type.shape == shape else expand(c, shape=shape)


def _per_channel(c: Value, x: Value) -> Any:
    """Returns a factor or shift per channel of x, as a vector; skips if it varies elsewhere."""
    shape = (*[1] * (x.type.rank - c.type.rank), *c.type.shape)
    when(len(shape) == x.type.rank and shape[1] in (1, x.type.shape[1]) and math.prod(shape) == shape[1])
    if is_constant(c):
        return np.broadcast_to(array(c).reshape(-1), x.type.shape[1:2])
    when(shape[1] == x.type.shape[1])
    return c if c.type.rank == 1 else reshape(c, shape=x.type.shape[1:2])


def _scale(norm: Callable[..., Term], g: Value, b: Value, c: Value, factor: Any) -> Term:
    """Multiplies a norm with scale g and bias b by a factor: c in the norm's shape."""
    if is_filled_with(g, 1) and is_filled_with(b, 0):
        return norm(factor, b)
    when(is_constant(g, b, c))
    return norm(array(g) * factor, array(b) * factor)


def _shift(norm: Callable[..., Term], g: Value, b: Value, c: Value, shift: Any) -> Term:
    if is_filled_with(b, 0):
        return norm(g, shift)
    when(is_constant(b, c))
    return norm(g, array(b) + shift)


_PLAIN = dict(g=np.ones(8, np.float32), b=np.zeros(8, np.float32))
_LAYERS = [dict(_PLAIN, x=X, c="f32[8]", axis=2, epsilon=1e-3), dict(x=X, g=ROW, b=ROW, c=0.5, axis=2)]
_CHANNELS = [
    dict(x=IMAGE, g="=f32[4]", b="=f32[4]", c="=f32[1, 4, 1, 1]", groups=2),
    dict(x=IMAGE, g=np.ones(4, np.float32), b=np.zeros(4, np.float32), c="f32[4, 1, 1]", groups=2),
]
_CHANNEL_NORMS = (instance_norm, group_norm)


@rule(lambda x, g, b, c, **at: mul(layer_norm(x, g, b, **at), c), stage="recognize", examples=_LAYERS)
def layer_norm_scale(x, g, b, c, axis, epsilon):
    """A factor behind a layer norm scales its scale and its bias."""
    return _scale(lambda g, b: layer_norm(x, g, b, axis=axis, epsilon=epsilon), g, b, c, _spread(c, x, axis))


@rule(lambda x, g, b, c, **at: add(layer_norm(x, g, b, **at), c), stage="recognize", examples=_LAYERS)
def layer_norm_shift(x, g, b, c, axis, epsilon):
    """A shift behind a layer norm is added to its bias."""
    return _shift(lambda g, b: layer_norm(x, g, b, axis=axis, epsilon=epsilon), g, b, c, _spread(c, x, axis))


@rule(
    *[lambda x, g, b, c, norm=norm, **at: mul(norm(x, g, b, **at), c) for norm in _CHANNEL_NORMS],
    stage="recognize",
    examples=_CHANNELS,
)
def channel_norm_scale(x, g, b, c, **at):
    """A factor per channel behind an instance or group norm scales its scale and its bias."""
    norm = group_norm if "groups" in at else instance_norm
    return _scale(lambda g, b: norm(x, g, b, **at), g, b, c, _per_channel(c, x))


@rule(
    *[lambda x, g, b, c, norm=norm, **at: add(norm(x, g, b, **at), c) for norm in _CHANNEL_NORMS],
    stage="recognize",
    examples=_CHANNELS,
)
def channel_norm_shift(x, g, b, c, **at):
    """A shift per channel behind an instance or group norm is added to its bias."""
    norm = group_norm if "groups" in at else instance_norm
    return _shift(lambda g, b: norm(x, g, b, **at), g, b, c, _per_channel(c, x))


@rule(
    lambda x, g, c, **at: mul(rms_norm(x, g, **at), c),
    stage="recognize",
    examples=[dict(x=X, g=np.ones(8, np.float32), c="f32[8]", axis=2), dict(x=X, g=ROW, c=ROW, axis=2)],
)
def rms_norm_scale(x, g, c, axis, epsilon):
    """A factor behind an RMS norm scales its scale."""
    factor = _spread(c, x, axis)
    if not is_filled_with(g, 1):
        when(is_constant(g, c))
        factor = array(g) * factor
    return rms_norm(x, factor, axis=axis, epsilon=epsilon)


@rule(
    lambda x, g, b, *, grouped, shape, epsilon: reshape(
        instance_norm(reshape(x, shape=grouped), g, b, epsilon=epsilon), shape=shape
    ),
    stage="recognize",
    examples=[
        dict(x="f32[2, 6, 3, 3]", g="=f32[3]", b="=f32[3]", grouped=(2, 3, 18), shape=(2, 6, 3, 3), epsilon=1e-5)
    ],
)
def group_norm_parts(x, g, b, grouped, shape, epsilon):
    """An instance norm over groups of channels becomes a group norm."""
    when(
        shape == x.type.shape
        and len(shape) >= 2
        and grouped[0] == shape[0]
        and shape[1] % grouped[1] == 0
        and is_constant(g, b)
    )
    scale, bias = (np.repeat(array(c), shape[1] // grouped[1]) for c in (g, b))
    return group_norm(x, scale, bias, groups=grouped[1], epsilon=epsilon)
