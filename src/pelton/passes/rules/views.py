"""Simplifies reshapes, transposes, expansions and tiles, which compute nothing, and reductions over axes of one."""

from __future__ import annotations

import math

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import broadcast_shapes
from pelton.ops.words import (
    conv_transpose,
    convolution,
    expand,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reshape,
    tile,
    transpose,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, rule, skip, uses, when

from .simplify import POINTWISE

Ints = tuple[Size, ...]
FUSED = 16  # limit of ops searched behind a convolution
POINT = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))


@rule(lambda x: reshape(x, shape=ANY), lambda x: expand(x, shape=ANY), examples=[dict(x="f32[2, 3]", shape=(2, 3))])
def reshape_same(x, shape):
    """A reshape or expansion to the same shape is removed."""
    when(x.type.shape == shape)
    return x


@rule(
    lambda x, *, between, shape: reshape(reshape(x, shape=between), shape=shape),
    shared=True,
    examples=[dict(x="f32[2, 6]", between=(3, 4), shape=(4, 3))],
)
def reshape_reshape(x, shape):
    """Only the last of consecutive reshapes remains."""
    return reshape(x, shape=shape)


@rule(
    lambda x, *, between, shape: expand(expand(x, shape=between), shape=shape),
    shared=True,
    examples=[dict(x="f32[1, 3]", between=(2, 3), shape=(4, 2, 3))],
)
def expand_expand(x, shape):
    """Only the last of consecutive expansions remains."""
    return expand(x, shape=shape)


@rule(lambda x: expand(x, shape=ANY), examples=[dict(x="f32[2, 3]", shape=(1, 1, 2, 3))])
def expand_ones(x, shape):
    """An expansion without repetition only adds axes: it becomes a reshape."""
    when(math.prod(shape) == x.type.size and x.type.shape != shape)
    return reshape(x, shape=shape)


def _kept(shape: Ints, left: Ints) -> list[int] | None:
    """Returns the axes that remain when a reshape drops axes of one; None for any other reshape."""
    axes: list[int] = []
    for axis, d in enumerate(shape):
        if len(axes) < len(left) and d == left[len(axes)]:
            axes.append(axis)
        elif d != 1:
            return None
    return axes if len(axes) == len(left) < len(shape) else None


def _behind_convolution(x: Value) -> bool:
    """True if a value is a convolution's output, or computed from one element by element."""
    for _ in range(FUSED):
        maker = producer_of(x)
        if maker is None or maker.op in (convolution, conv_transpose):
            return maker is not None
        x = (
            next((v for v in maker.inputs if v.type.shape == maker.output.type.shape and not is_constant(v)), x)
            if maker.op.scalar is not None
            else x
        )
    return False


@rule(
    lambda *xs, **attrs: POINTWISE(*xs, **attrs),
    shared=True,
    examples=[
        dict(
            xs=(
                reshape(convolution("f32[2, 4, 1, 6]", "f32[3, 4, 1, 1]", "f32[3]", **POINT), shape=(2, 3, 6)),
                "=f32[3, 1]",
            )
        ),
        dict(
            xs=(
                "f32[2, 3, 6]",
                reshape(convolution("f32[2, 4, 6, 1]", "f32[3, 4, 1, 1]", "f32[3]", **POINT), shape=(2, 3, 6)),
            )
        ),
    ],
)
def pointwise_of_squeezed(*xs, node, **attrs):
    """Pointwise nodes behind a squeezed convolution move before the squeeze, into the convolution's kernel."""
    for x in xs:
        maker = producer_of(x)
        if (
            maker is not None
            and maker.op is reshape
            and uses(x) == 1
            and x.type.shape == node.output.type.shape
            and _behind_convolution(maker.inputs[0])
        ):
            source = maker.inputs[0]
            kept = _kept(source.type.shape, x.type.shape)
            if kept is not None:
                return reshape(
                    node.op(*(source if y is x else _among(y, kept, source.type.rank) for y in xs), **attrs),
                    shape=x.type.shape,
                )
    skip()


def _among(y: Value, kept: list[int], rank: int):
    """Returns an operand with an axis of one for each axis that the reshape drops."""
    sizes = dict(zip(kept[len(kept) - y.type.rank :], y.type.shape))
    shape = tuple(sizes.get(axis, 1) for axis in range(min(sizes, default=rank), rank))
    if is_constant(y):
        return elements(y).reshape(shape)
    return y if shape == y.type.shape else reshape(y, shape=shape)


@rule(
    lambda x: tile(x, repeats=ANY),
    examples=[dict(x="f32[2, 1, 3]", repeats=(1, 4, 1)), dict(x="f32[2, 3]", repeats=(1, 1))],
)
def tile_ones(x, repeats):
    """Repetition along axes of one becomes a broadcast."""
    shape = tuple(d * r for d, r in zip(x.type.shape, repeats))
    when(all(r == 1 or d == 1 for d, r in zip(x.type.shape, repeats)) and math.prod(shape) > 0)
    return x if shape == x.type.shape else expand(x, shape=shape)


@rule(
    lambda x: transpose(x, perm=ANY),
    examples=[dict(x="f32[2, 3, 1, 5]", perm=(2, 0, 1, 3)), dict(x="f32[2, 3]", perm=(0, 1))],
)
def transpose_ones(x, perm, node):
    """A transpose that only moves axes of one becomes a reshape."""
    moved = [p for p in perm if x.type.shape[p] != 1]
    when(moved == sorted(moved))
    return x if perm == tuple(sorted(perm)) else reshape(x, shape=node.output.type.shape)


@rule(
    lambda x, *, first, perm: transpose(transpose(x, perm=first), perm=perm),
    shared=True,
    examples=[dict(x="f32[2, 3, 4]", first=(1, 2, 0), perm=(0, 2, 1)), dict(x="f32[2, 3]", first=(1, 0), perm=(1, 0))],
)
def transpose_transpose(x, first, perm):
    """Consecutive transposes become one, or none."""
    return transpose(x, perm=tuple(first[p] for p in perm))


def _groups(shape: Ints, joined: Ints) -> list[list[int]]:
    """Returns the axes that make up each axis of a shape that joins neighbors; skips other reshapes."""
    groups, axis = list[list[int]](), 0
    for size in joined:
        groups.append([])
        while not groups[-1] or math.prod(shape[a] for a in groups[-1]) != size:
            when(axis < len(shape))
            groups[-1].append(axis)
            axis += 1
    when(axis == len(shape))
    return groups


@rule(
    lambda x, *, joined, perm, shape: reshape(transpose(reshape(x, shape=joined), perm=perm), shape=shape),
    examples=[
        dict(x="f32[2, 3, 4, 5]", joined=(6, 4, 5), perm=(0, 2, 1), shape=(2, 3, 5, 4)),
        dict(x="f32[2, 3, 4]", joined=(6, 4), perm=(1, 0), shape=(4, 2, 3)),
    ],
)
def transpose_of_joined(x, joined, perm, shape):
    """Axes that are merged for a transpose, and split after it, stay separate."""
    groups = _groups(x.type.shape, joined)
    flat = tuple(axis for p in perm for axis in groups[p])
    when(shape == tuple(x.type.shape[axis] for axis in flat))
    return transpose(x, perm=flat)


@rule(
    lambda *xs, **attrs: POINTWISE(*xs, **attrs),
    shared=True,
    examples=[dict(xs=(expand("f32[3, 1]", shape=(2, 3, 4)), "f32[2, 1, 4]"))],
)
def unneeded_expand(*xs, node, **attrs):
    """Expansions before pointwise ops are removed: these broadcast."""
    for i, x in enumerate(xs):
        maker = producer_of(x)
        if maker is not None and maker.op is expand:
            source = maker.inputs[0]
            others = [y.type.shape for y in xs[:i] + xs[i + 1 :]]
            if broadcast_shapes(*others, source.type.shape) == node.output.type.shape:
                return node.op(*xs[:i], source, *xs[i + 1 :], **attrs)
    skip()


@rule(
    *[
        lambda x, reduce=reduce: reduce(x, axes=ANY, keepdims=ANY)
        for reduce in (reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod)
    ],
    examples=[dict(x="f32[2, 1, 3, 1]", axes=(1, 3), keepdims=False), dict(x="f32[2, 1]", axes=(1,), keepdims=True)],
)
def reduce_ones(x, axes, node):
    """A reduction over axes of one is removed."""
    when(all(x.type.shape[a] == 1 for a in axes))
    return reshape(x, shape=node.output.type.shape)
