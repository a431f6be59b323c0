"""Folds constant factors and shifts around convolutions and products into weights and bias."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import broadcast_shapes
from pelton.ops.words import (
    add,
    batch_norm,
    conv_transpose,
    convolution,
    matmul,
    mul,
    neg,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reshape,
    sub,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import array, is_constant, require, rule, when

WINDOW = dict(strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1))
DENSE = dict(WINDOW, x="f32[2, 4, 5, 6]", w="=f32[3, 4, 3, 2]", b="=f32[3]")
GROUPED = dict(WINDOW, x="f32[2, 4, 5, 6]", w="=f32[6, 2, 3, 2]", b="=f32[6]", group=2)
UP = dict(WINDOW, x="f32[2, 4, 3, 4]", w="=f32[4, 3, 3, 2]", b="=f32[3]", output_padding=(0, 1))
UP_GROUPED = dict(UP, b="=f32[6]", group=2)
STATISTICS = dict(g="=f32[3]", s="=f32[3]", m="=f32[3]", v="=f32[3]", epsilon=1e-3)
STATISTICS_GROUPED = dict(g="=f32[6]", s="=f32[6]", m="=f32[6]", v="=f32[6]", epsilon=1e-5)


def per_channel(c: Value, rank: int, channels: int) -> np.ndarray:
    """Returns a constant that varies along axis 1 alone as a vector over the channels; rejects any other."""
    shape = (*[1] * (rank - c.type.rank), *c.type.shape)
    require(
        len(shape) == rank and math.prod(shape) == shape[1] and shape[1] in (1, channels),
        f"%{c.name} varies within a channel",
    )
    return np.broadcast_to(array(c).reshape(-1), (channels,))


def _filters(w: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Multiplies each filter of a convolution by its factor."""
    return w * factor.reshape(-1, *[1] * (w.ndim - 1))


def _planes(w: np.ndarray, factor: np.ndarray, group: int) -> np.ndarray:
    """Multiplies filters of a transposed convolution, whose output channels are axis 1, group by group."""
    grouped = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    return (grouped * factor.reshape(group, 1, w.shape[1], *[1] * (w.ndim - 2))).reshape(w.shape)


# --- batch norms


def _as_affine(g: Value, s: Value, m: Value, v: Value, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Converts a batch norm with constant statistics to a factor and a shift per channel."""
    require(is_constant(g, s, m, v), "the statistics are not constant")
    factor = array(g) / np.sqrt(array(v) + epsilon)
    return factor, array(s) - array(m) * factor


@rule(
    lambda x, w, b, g, s, m, v, **conv: batch_norm(convolution(x, w, b, **conv), g, s, m, v, epsilon=ANY),
    examples=[dict(DENSE, **STATISTICS), dict(GROUPED, **STATISTICS_GROUPED)],
    rejections=[
        (dict(DENSE, **STATISTICS, w="f32[3, 4, 3, 2]"), "the weights are not constant"),
        (dict(DENSE, **dict(STATISTICS, v="f32[3]")), "the statistics are not constant"),
    ],
)
def conv_batch_norm(x, w, b, g, s, m, v, epsilon, **conv):
    """A batch norm with constant statistics scales the filters before it and shifts the bias."""
    factor, shift = _as_affine(g, s, m, v, epsilon)
    require(is_constant(w, b), "the weights are not constant")
    return convolution(x, _filters(array(w), factor), array(b) * factor + shift, **conv)


@rule(
    lambda x, w, b, g, s, m, v, **conv: batch_norm(conv_transpose(x, w, b, **conv), g, s, m, v, epsilon=ANY),
    examples=[dict(UP, **STATISTICS), dict(UP_GROUPED, **STATISTICS_GROUPED)],
    rejections=[(dict(UP, **STATISTICS, b="f32[3]"), "the weights are not constant")],
)
def conv_transpose_batch_norm(x, w, b, g, s, m, v, epsilon, group, **conv):
    """The same for a transposed convolution, with output channels along the weights' second axis."""
    factor, shift = _as_affine(g, s, m, v, epsilon)
    require(is_constant(w, b), "the weights are not constant")
    return conv_transpose(x, _planes(array(w), factor, group), array(b) * factor + shift, group=group, **conv)


@rule(
    lambda x, g, s, m, v: batch_norm(x, g, s, m, v, epsilon=ANY),
    examples=[dict(STATISTICS, x="f32[2, 3, 5]"), dict(STATISTICS, x="f32[2, 3]")],
    rejections=[(dict(STATISTICS, x="f32[2, 3, 5]", m="f32[3]"), "the statistics are not constant")],
)
def batch_norm_alone(x, g, s, m, v, epsilon):
    """A batch norm without a convolution becomes a factor and a shift per channel."""
    factor, shift, mean, bias = (
        c.reshape(-1, *[1] * (x.type.rank - 2)) for c in (*_as_affine(g, s, m, v, epsilon), array(m), array(s))
    )
    # subtracting the mean first avoids cancellation in narrow floats
    if x.type.dtype.size < 4:
        return add(mul(sub(x, mean), factor), bias)
    return add(mul(x, factor), shift)


# --- factors and shifts around convolutions


@rule(
    lambda x, w, b, c, **conv: mul(convolution(x, w, b, **conv), c),
    examples=[dict(DENSE, c="=f32[3, 1, 1]"), dict(GROUPED, c=0.3)],
    rejections=[
        (dict(DENSE, c="=f32[4, 1]"), "varies within a channel"),
        (dict(DENSE, w="f32[3, 4, 3, 2]", c=2.0), "the weights are not constant"),
    ],
)
def conv_scale(x, w, b, c, **conv):
    """A factor per channel behind a convolution scales its filters and its bias."""
    when(is_constant(c))
    require(is_constant(w, b), "the weights are not constant")
    factor = per_channel(c, x.type.rank, w.type.shape[0])
    return convolution(x, _filters(array(w), factor), array(b) * factor, **conv)


@rule(lambda x, w, b, **conv: neg(convolution(x, w, b, **conv)), examples=[DENSE])
def conv_neg(x, w, b, **conv):
    """A negated convolution becomes one with negated weights."""
    require(is_constant(w, b), "the weights are not constant")
    return convolution(x, -array(w), -array(b), **conv)


@rule(
    lambda x, w, b, c, **conv: add(convolution(x, w, b, **conv), c),
    examples=[dict(DENSE, c="=f32[1, 3, 1, 1]"), dict(GROUPED, c=0.3)],
    rejections=[(dict(DENSE, c="=f32[4, 1]"), "varies within a channel")],
)
def conv_shift(x, w, b, c, **conv):
    """A shift per channel behind a convolution is added to its bias."""
    when(is_constant(c))
    require(is_constant(b), "the bias is not constant")
    return convolution(x, w, array(b) + per_channel(c, x.type.rank, w.type.shape[0]), **conv)


@rule(
    lambda x, w, b, c, **conv: mul(conv_transpose(x, w, b, **conv), c),
    examples=[dict(UP, c="=f32[3, 1, 1]"), dict(UP_GROUPED, c="=f32[6, 1, 1]")],
)
def conv_transpose_scale(x, w, b, c, group, **conv):
    """A factor per channel behind a transposed convolution scales its weights and its bias."""
    when(is_constant(c))
    require(is_constant(w, b), "the weights are not constant")
    factor = per_channel(c, x.type.rank, b.type.shape[0])
    return conv_transpose(x, _planes(array(w), factor, group), array(b) * factor, group=group, **conv)


@rule(lambda x, w, b, c, **conv: add(conv_transpose(x, w, b, **conv), c), examples=[dict(UP, c="=f32[3, 1, 1]")])
def conv_transpose_shift(x, w, b, c, **conv):
    """A shift per channel behind a transposed convolution is added to its bias."""
    when(is_constant(c))
    require(is_constant(b), "the bias is not constant")
    return conv_transpose(x, w, array(b) + per_channel(c, x.type.rank, b.type.shape[0]), **conv)


def _per_input(c: Value, x: Value, group: int) -> np.ndarray:
    """Returns a constant per input channel of a convolution: [group, channels of a group]."""
    require(broadcast_shapes(x.type.shape, c.type.shape) == x.type.shape, f"%{x.name} is broadcast by it")
    return per_channel(c, x.type.rank, x.type.shape[1]).reshape(group, -1)


@rule(
    lambda x, w, b, c, **conv: convolution(mul(x, c), w, b, **conv),
    examples=[dict(DENSE, c="=f32[4, 1, 1]"), dict(GROUPED, c="=f32[4, 1, 1]")],
    rejections=[
        (dict(DENSE, x="f32[2, 1, 5, 6]", c="=f32[4, 1, 1]"), "is broadcast"),
        (dict(DENSE, c="=f32[6]"), "varies within a channel"),
    ],
)
def scale_conv(x, w, b, c, group, **conv):
    """A factor per input channel scales that channel's weights."""
    when(is_constant(c))
    require(is_constant(w), "the weights are not constant")
    factor, weights = _per_input(c, x, group), array(w)
    filters = weights.reshape(group, -1, *weights.shape[1:]) * factor.reshape(group, 1, -1, *[1] * (weights.ndim - 2))
    return convolution(x, filters.reshape(weights.shape), b, group=group, **conv)


@rule(
    lambda x, w, b, c, **conv: convolution(add(x, c), w, b, **conv),
    examples=[dict(DENSE, c="=f32[4, 1, 1]", pads=(0, 0, 0, 0)), dict(GROUPED, c="=f32[4, 1, 1]", pads=(0, 0, 0, 0))],
    rejections=[(dict(DENSE, c="=f32[4, 1, 1]"), "the padding would be shifted")],
)
def shift_conv(x, w, b, c, pads, group, **conv):
    """A shift per input channel is added to the bias, unless there is padding."""
    when(is_constant(c))
    require(is_constant(w, b), "the weights are not constant")
    require(not any(pads), "the padding would be shifted, too")
    shift, weights = _per_input(c, x, group), array(w)
    taps = weights.reshape(group, -1, weights.shape[1], math.prod(weights.shape[2:])).sum(axis=-1, dtype=weights.dtype)
    bias = array(b) + (taps * shift[:, None, :]).sum(axis=-1, dtype=weights.dtype).reshape(-1)
    return convolution(x, w, bias, pads=pads, group=group, **conv)


# --- factors and shifts around matrix products

LINEAR = dict(x="f32[2, 5, 4]", w="=f32[4, 3]")


def _per_column(c: Value, columns: int) -> np.ndarray:
    require(c.type.rank <= 1 and c.type.size in (1, columns), f"%{c.name} varies within a column")
    return array(c)


@rule(
    lambda x, w, c: mul(matmul(x, w), c),
    examples=[dict(LINEAR, c="=f32[3]"), dict(LINEAR, c=0.3)],
    rejections=[(dict(LINEAR, c="=f32[5, 1]"), "within a column")],
)
def matmul_scale(x, w, c):
    """A factor per column behind a product scales the columns of its matrix."""
    when(is_constant(w, c) and w.type.rank >= 2)
    return matmul(x, array(w) * _per_column(c, w.type.shape[-1]))


@rule(
    lambda x, w, c: matmul(mul(x, c), w),
    examples=[dict(LINEAR, c="=f32[4]"), dict(LINEAR, c=0.3)],
    rejections=[(dict(LINEAR, c="=f32[5, 1]"), "within a column")],
)
def scale_matmul(x, w, c):
    """A factor per column of the left operand scales the rows of the matrix."""
    when(is_constant(w, c) and w.type.rank >= 2)
    require(broadcast_shapes(x.type.shape, c.type.shape) == x.type.shape, f"%{x.name} is broadcast by it")
    return matmul(x, array(w) * _per_column(c, w.type.shape[-2]).reshape(-1, 1))


@rule(
    lambda x, w, b, c: mul(add(matmul(x, w), b), c),
    examples=[dict(LINEAR, b="=f32[3]", c="=f32[3]"), dict(LINEAR, b=1.5, c="=f32[3]")],
)
def linear_scale(x, w, b, c):
    """A factor behind a product with bias scales both."""
    when(is_constant(w, b, c) and w.type.rank >= 2)
    factor = _per_column(c, w.type.shape[-1])
    return add(matmul(x, array(w) * factor), _per_column(b, w.type.shape[-1]) * factor)


@rule(
    lambda x, w, b, c: add(add(matmul(x, w), b), c),
    examples=[dict(LINEAR, b="=f32[3]", c="=f32[3]"), dict(LINEAR, b="=f32[3]", c=0.5)],
)
def linear_shift(x, w, b, c):
    """Two biases become one."""
    when(is_constant(b, c))
    columns = w.type.shape[-1] if w.type.rank > 1 else 1
    return add(matmul(x, w), _per_column(b, columns) + _per_column(c, columns))


# --- chains of reductions

_REDUCTIONS = (reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod)


@rule(
    *[
        lambda x, *, inner, inner_keepdims, axes, keepdims, op=op: op(
            op(x, axes=inner, keepdims=inner_keepdims), axes=axes, keepdims=keepdims
        )
        for op in _REDUCTIONS
    ],
    examples=[
        dict(x="f32[2, 3, 4]", inner=(1,), inner_keepdims=False, axes=(1,), keepdims=True),
        dict(x="f32[2, 3, 4]", inner=(1,), inner_keepdims=True, axes=(0, 1), keepdims=True),
    ],
)
def reduce_reduce(x, inner, inner_keepdims, axes, node):
    """Nested reductions become one over the axes of both."""
    when(x.type.dtype.is_float or node.op is not reduce_mean)
    left = [a for a in range(x.type.rank) if inner_keepdims or a not in inner]
    both = tuple(sorted({*inner, *(left[a] for a in axes)}))
    shape = node.output.type.shape
    if shape == tuple(1 if a in both else d for a, d in enumerate(x.type.shape)):
        return node.op(x, axes=both, keepdims=True)
    reduced = node.op(x, axes=both, keepdims=False)
    if shape == tuple(d for a, d in enumerate(x.type.shape) if a not in both):
        return reduced
    return reshape(reduced, shape=shape)
