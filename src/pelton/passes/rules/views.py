"""What moves elements without computing: reshapes, transposes, slices, joins, pads and the reductions over nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pelton.ir.dims import Size, is_known, minimum
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64, broadcast_shapes
from pelton.ops.shape import length

from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import (
    elements,
    is_constant,
    is_filled_with,
    producer_of,
    require,
    rule,
    skip,
    uses,
    when,
)
from .simplify import POINTWISE
from pelton.ops.words import (
    average_pool,
    concat,
    conv_transpose,
    convolution,
    expand,
    gather,
    iota,
    max_pool,
    pad,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reshape,
    slice_,
    tile,
    transpose,
)

Ints = tuple[Size, ...]
FUSED = 16  # ops behind a convolution that are looked at
IMAGE = "f32[1, 2, 5, 6]"
WINDOW = dict(strides=(1, 2), dilations=(1, 1))
POINT = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))


# --- reshape, transpose, expand, tile


@rule(lambda x: reshape(x, shape=ANY), lambda x: expand(x, shape=ANY), examples=[dict(x="f32[2, 3]", shape=(2, 3))])
def reshape_same(x, shape):
    """A reshape or expansion to its own shape is none."""
    when(x.type.shape == shape)
    return x


@rule(
    lambda x, *, between, shape: reshape(reshape(x, shape=between), shape=shape),
    shared=True,
    examples=[dict(x="f32[2, 6]", between=(3, 4), shape=(4, 3))],
)
def reshape_reshape(x, shape):
    """The last of several reshapes counts."""
    return reshape(x, shape=shape)


@rule(
    lambda x, *, between, shape: expand(expand(x, shape=between), shape=shape),
    shared=True,
    examples=[dict(x="f32[1, 3]", between=(2, 3), shape=(4, 2, 3))],
)
def expand_expand(x, shape):
    """The last of several expansions counts."""
    return expand(x, shape=shape)


@rule(lambda x: expand(x, shape=ANY), examples=[dict(x="f32[2, 3]", shape=(1, 1, 2, 3))])
def expand_ones(x, shape):
    """An expansion that repeats nothing only adds axes."""
    when(math.prod(shape) == x.type.size and x.type.shape != shape)
    return reshape(x, shape=shape)


def _kept(shape: Ints, left: Ints) -> list[int] | None:
    """The axes that remain of a shape where others, of one, are left out; None where that is not what a reshape
    does."""
    axes: list[int] = []
    for axis, d in enumerate(shape):
        if len(axes) < len(left) and d == left[len(axes)]:
            axes.append(axis)
        elif d != 1:
            return None
    return axes if len(axes) == len(left) < len(shape) else None


def _behind_convolution(x: Value) -> bool:
    """Whether a value is what a convolution gives, or made of that element by element."""
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
    """What follows a convolution element by element follows it before its axes of one are left out: then it is the end
    of the same kernel."""
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
    """An operand with axes of one where the others have theirs."""
    sizes = dict(zip(kept[len(kept) - y.type.rank :], y.type.shape))
    shape = tuple(sizes.get(axis, 1) for axis in range(min(sizes, default=rank), rank))
    return elements(y).reshape(shape) if is_constant(y) else y if shape == y.type.shape else reshape(y, shape=shape)


@rule(
    lambda x: tile(x, repeats=ANY),
    examples=[dict(x="f32[2, 1, 3]", repeats=(1, 4, 1)), dict(x="f32[2, 3]", repeats=(1, 1))],
)
def tile_ones(x, repeats):
    """What is repeated along axes of one is broadcast."""
    shape = tuple(d * r for d, r in zip(x.type.shape, repeats))
    when(all(r == 1 or d == 1 for d, r in zip(x.type.shape, repeats)) and math.prod(shape) > 0)
    return x if shape == x.type.shape else expand(x, shape=shape)


@rule(
    lambda x: transpose(x, perm=ANY),
    examples=[dict(x="f32[2, 3, 1, 5]", perm=(2, 0, 1, 3)), dict(x="f32[2, 3]", perm=(0, 1))],
)
def transpose_ones(x, perm, node):
    """A transpose that leaves the axes longer than one in order is a reshape."""
    moved = [p for p in perm if x.type.shape[p] != 1]
    when(moved == sorted(moved))
    return x if perm == tuple(sorted(perm)) else reshape(x, shape=node.output.type.shape)


@rule(
    lambda x, *, first, perm: transpose(transpose(x, perm=first), perm=perm),
    shared=True,
    examples=[dict(x="f32[2, 3, 4]", first=(1, 2, 0), perm=(0, 2, 1)), dict(x="f32[2, 3]", first=(1, 0), perm=(1, 0))],
)
def transpose_transpose(x, first, perm):
    """A transpose of a transpose is one, or none."""
    return transpose(x, perm=tuple(first[p] for p in perm))


def _groups(shape: Ints, joined: Ints) -> list[list[int]]:
    """The axes that make up each axis of a shape that joins neighbours; has nothing to do where it does anything
    else."""
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
    """Axes that are joined for a transpose, and taken apart after it, may stay apart."""
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
    """Pointwise ops broadcast by themselves."""
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
    """A reduction over axes of one is none."""
    when(all(x.type.shape[a] == 1 for a in axes))
    return reshape(x, shape=node.output.type.shape)


# --- slice, concat, gather


class AxisSlice(NamedTuple):
    """What a slice takes along an axis, as range() counts, but of sizes."""

    start: Size
    end: Size
    step: int = 1

    @property
    def plain(self) -> AxisSlice:
        """The same with the step 1 where nothing is between two elements."""
        count = length(*self)
        return AxisSlice(0, 0) if count == 0 else AxisSlice(self.start, self.start + 1) if count == 1 else self


def full(shape: Ints, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> list[AxisSlice]:
    """What a slice takes along every axis."""
    taken = [AxisSlice(0, d) for d in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        taken[axis] = AxisSlice(start, end, step)
    return taken


def sliced(x: Value, taken: list[AxisSlice]):
    """x, or the slice of it that takes these; axes taken whole are not mentioned."""
    part = [
        (cut.start, cut.end, axis, cut.step)
        for axis, (cut, d) in enumerate(zip(taken, x.type.shape))
        if cut.plain != AxisSlice(0, d)
    ]
    if not part:
        return x
    starts, ends, axes, steps = zip(*part)
    return slice_(x, starts=starts, ends=ends, axes=axes, steps=steps)


@rule(
    lambda x, **at: slice_(x, **at),
    examples=[
        dict(x="f32[2, 5]", starts=(0, 0), ends=(2, 5), axes=(0, 1), steps=(1, 1)),
        dict(x="f32[2, 5]", starts=(0, 1), ends=(2, 4), axes=(0, 1), steps=(1, 1)),
    ],
)
def slice_whole(x, **at):
    """A slice does not mention what it takes whole."""
    kept = sliced(x, full(x.type.shape, **at))
    when(kept is x or len(kept.attrs["axes"]) < len(at["axes"]))
    return kept


@rule(
    lambda x, *, s, e, a, t, **at: slice_(slice_(x, starts=s, ends=e, axes=a, steps=t), **at),
    shared=True,
    examples=[
        dict(x="f32[12, 5]", s=(1,), e=(11,), a=(0,), t=(2,), starts=(1, 2), ends=(5, 4), axes=(0, 1), steps=(2, 1))
    ],
)
def slice_slice(x, s, e, a, t, **at):
    """A slice of a slice is one slice; steps stay positive."""
    when(min(*t, *at["steps"]) > 0)
    outer = full(x.type.shape, s, e, a, t)
    inner = full(tuple(length(*o) for o in outer), **at)
    return sliced(
        x,
        [
            AxisSlice(o.start + i.start * o.step, minimum(o.start + i.end * o.step, o.end), o.step * i.step)
            for o, i in zip(outer, inner)
        ],
    )


@rule(
    lambda x, *, split, shape, **at: reshape(slice_(reshape(x, shape=split), **at), shape=shape),
    shared=True,
    examples=[
        dict(x="f32[2, 3, 8]", split=(2, 3, 4, 2), shape=(2, 3, 4), starts=(1,), ends=(2,), axes=(3,), steps=(1,)),
        dict(x="f32[2, 3, 8]", split=(2, 3, 2, 4), shape=(2, 3, 4), starts=(1,), ends=(2,), axes=(2,), steps=(1,)),
    ],
)
def slice_split(x, split, shape, axes, starts, ends, steps):
    """One of the parts into which a reshape splits the last axis, or one of the places in each part, is a slice of that
    axis."""
    last = x.type.rank - 1
    when(
        len(split) == last + 2
        and split[:last] == x.type.shape[:last] == shape[:-1]
        and 1 not in split[last:]
        and 0 not in split[last:]
    )
    when(
        len(axes) == 1
        and axes[0] >= last
        and ends[0] == starts[0] + 1
        and shape[-1] * split[axes[0]] == x.type.shape[last]
    )
    start, step = starts[0], split[last + 1]
    taken = [AxisSlice(0, d) for d in x.type.shape]
    taken[last] = (
        AxisSlice(start * step, (start + 1) * step)
        if axes[0] == last
        else AxisSlice(start, x.type.shape[last] - step + start + 1, step)
    )
    return sliced(x, taken)


@rule(
    lambda *xs, axis, **at: slice_(concat(*xs, axis=axis), **at),
    shared=True,
    examples=[dict(xs=("f32[2, 3]", "f32[2, 4]"), axis=1, starts=(3, 1), ends=(6, 2), axes=(1, 0), steps=(2, 1))],
)
def slice_concat(*xs, axis, **at):
    """What comes out of one part of a joined value is a slice of that part."""
    shape = (*xs[0].type.shape[:axis], sum(x.type.shape[axis] for x in xs), *xs[0].type.shape[axis + 1 :])
    taken, begin = full(shape, **at), 0
    along = taken[axis]
    when(along.step > 0 and length(*along) > 0)
    last = along.start + (length(*along) - 1) * along.step
    for x in xs:
        end = begin + x.type.shape[axis]
        if begin <= along.start and last < end:
            taken[axis] = AxisSlice(along.start - begin, minimum(along.end, end) - begin, along.step)
            return sliced(x, taken)
        begin = end
    skip()


@rule(lambda x, *, axis: concat(x, axis=axis), examples=[dict(x="f32[2, 3]", axis=0)])
def concat_one(x):
    """A single part is the whole."""
    return x


@rule(
    lambda *xs, axis: concat(*xs, axis=axis),
    examples=[
        dict(xs=(concat("f32[2, 3]", "f32[2, 1]", axis=1), "f32[2, 4]"), axis=1),
        dict(xs=("f32[0, 4]", "f32[2, 4]", "f32[3, 4]"), axis=0),
    ],
)
def concat_concat(*xs, axis):
    """Parts of parts are parts, and empty parts are none."""
    parts: list[Value] = []
    for x in xs:
        maker = producer_of(x)
        inner = maker is not None and maker.op is concat and maker.attrs["axis"] == axis and uses(x) == 1
        parts.extend(maker.inputs if maker is not None and inner else (x,) if x.type.shape[axis] else ())
    when(bool(parts) and parts != list(xs))
    return concat(*parts, axis=axis)


@rule(
    lambda *xs, axis: concat(*xs, axis=axis),
    examples=[
        dict(xs=[slice_("whole: f32[2, 7]", starts=(k,), ends=(k + 3,), axes=(1,), steps=(1,)) for k in (0, 3)], axis=1)
    ],
)
def concat_slices(*xs, axis):
    """Neighbouring slices of one value, joined again, are one slice."""
    for i, (x, y) in enumerate(zip(xs, xs[1:])):
        first, second = producer_of(x), producer_of(y)
        if (
            first is None
            or second is None
            or first.op is not slice_
            or second.op is not slice_
            or first.inputs != second.inputs
        ):
            continue
        source = first.inputs[0]
        one, two = full(source.type.shape, **first.attrs), full(source.type.shape, **second.attrs)
        if (
            one[axis].step == two[axis].step == 1
            and one[axis].end == two[axis].start
            and one[:axis] == two[:axis]
            and one[axis + 1 :] == two[axis + 1 :]
        ):
            one[axis] = AxisSlice(one[axis].start, two[axis].end)
            return concat(*xs[:i], sliced(source, one), *xs[i + 2 :], axis=axis)
    skip()


@rule(
    lambda x, i: gather(x, i, axis=ANY),
    examples=[
        dict(x="f32[2, 5, 3]", i=np.array(-1), axis=1),
        dict(x="f32[2, 5, 3]", i=np.array([1, 3]), axis=1),
        dict(x="f32[7]", i=np.array([[4, 3], [2, 1]]), axis=0),
    ],
)
def gather_known(x, i, axis, node):
    """Known indices at equal distances are a slice."""
    when(is_constant(i) and not is_constant(x) and i.type.size > 0)
    size = x.type.shape[axis]
    at = [int(k) if k >= 0 else int(k) + size for k in elements(i).flat]
    step = at[1] - at[0] if len(at) > 1 else 1
    when(is_known(step) and step != 0 and all(b - a == step for a, b in zip(at, at[1:])))
    taken = [AxisSlice(0, d) for d in x.type.shape]
    taken[axis] = AxisSlice(at[0], at[-1] + (1 if step > 0 else -1), step)
    kept = sliced(x, taken)
    return kept if i.type.rank == 1 else reshape(kept, shape=node.output.type.shape)


@rule(
    lambda x, *, size, dtype: gather(x, iota(size=size, dtype=dtype), axis=ANY),
    shared=True,
    examples=[dict(x="f32[2, 5, 3]", size=4, dtype=I64, axis=1), dict(x="f32[7]", size=7, dtype=I32, axis=0)],
    rejections=[(dict(x="f32[2, 5, 3]", size=6, dtype=I64, axis=1), "behind the end")],
)
def gather_iota(x, size, axis):
    """The first elements along an axis are a slice."""
    require(size <= x.type.shape[axis], "it reads behind the end")
    taken = [AxisSlice(0, d) for d in x.type.shape]
    taken[axis] = AxisSlice(0, size)
    return sliced(x, taken)


@rule(
    lambda x, i, *, shape: gather(x, expand(i, shape=shape), axis=ANY),
    shared=True,
    examples=[
        dict(x="f32[3, 4]", i=np.array(1), shape=(2, 5), axis=0),
        dict(x="f32[3, 4]", i=np.array([[1], [2]]), shape=(5, 2, 3), axis=1),
    ],
)
def gather_expand(x, i, shape, axis, node):
    """What is picked many times is picked once and repeated."""
    at = (*[1] * (len(shape) - i.type.rank), *i.type.shape)
    found = gather(x, reshape(i, shape=at), axis=axis)
    when(at != shape)
    return expand(found, shape=node.output.type.shape)


# --- pad


@rule(
    lambda x, v: pad(x, v, pads=ANY, mode=ANY),
    examples=[dict(x="f32[2, 3]", v="f32[]", pads=(0, 0, 0, 0), mode="edge")],
)
def pad_nothing(x, pads):
    """Pads of zero elements are none."""
    when(not any(pads))
    return x


def _spatial(pads: Ints) -> Ints:
    """The pads of the spatial axes; refuses where others, or less than nothing, are padded."""
    rank = len(pads) // 2
    require(not any(pads[:2]) and not any(pads[rank : rank + 2]), "the batch or the channels are padded, too")
    require(all(p >= 0 for p in pads), "the pad takes away")
    return pads[2:rank] + pads[rank + 2 :]


@rule(
    lambda x, v, w, b, *, before, **conv: convolution(pad(x, v, pads=before), w, b, **conv),
    examples=[
        dict(
            x=IMAGE,
            v=0.0,
            w="f32[3, 2, 3, 3]",
            b="f32[3]",
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            pads=(0, 1, 0, 0),
            **WINDOW,
        )
    ],
    rejections=[
        (
            dict(
                x=IMAGE,
                v=1.0,
                w="f32[3, 2, 3, 3]",
                b="f32[3]",
                before=(0, 0, 1, 0, 0, 0, 2, 1),
                pads=(0, 1, 0, 0),
                **WINDOW,
            ),
            "not zero",
        ),
        (
            dict(
                x=IMAGE,
                v=0.0,
                w="f32[3, 3, 3, 3]",
                b="f32[3]",
                before=(0, 1, 1, 0, 0, 0, 2, 1),
                pads=(0, 1, 0, 0),
                **WINDOW,
            ),
            "channels are padded",
        ),
    ],
)
def pad_convolution(x, v, w, b, before, pads, **conv):
    """Zeros put around the input of a convolution are padding of its own."""
    require(is_filled_with(v, 0), "the padding is not zero")
    return convolution(x, w, b, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), **conv)


@rule(
    lambda x, v, *, before, **pool: average_pool(pad(x, v, pads=before), **pool),
    examples=[
        dict(
            x=IMAGE,
            v=0.0,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 0, 0, 0),
            ceil_mode=False,
            count_include_pad=False,
            **WINDOW,
        ),
        dict(
            x=IMAGE,
            v=0.0,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 1, 0, 0),
            ceil_mode=False,
            count_include_pad=True,
            **WINDOW,
        ),
    ],
    rejections=[
        (
            dict(
                x=IMAGE,
                v=0.0,
                before=(0, 0, 1, 0, 0, 0, 2, 1),
                kernel=(3, 3),
                pads=(0, 1, 0, 0),
                ceil_mode=False,
                count_include_pad=False,
                **WINDOW,
            ),
            "does not count",
        )
    ],
)
def pad_average_pool(x, v, before, pads, ceil_mode, count_include_pad, **pool):
    """Zeros put around the input of an average pool are padding of its own, which it counts."""
    require(is_filled_with(v, 0), "the padding is not zero")
    require(not ceil_mode, "in ceil mode, windows may begin in padding of a value but not in that of the pool")
    require(count_include_pad or not any(pads), "the pool does not count its own padding")
    return average_pool(x, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), count_include_pad=True, **pool)


@rule(
    lambda x, v, *, before, **pool: max_pool(pad(x, v, pads=before), **pool),
    examples=[
        dict(
            x=IMAGE,
            v=-math.inf,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 1, 0, 0),
            ceil_mode=False,
            **WINDOW,
        )
    ],
)
def pad_max_pool(x, v, before, pads, ceil_mode, **pool):
    """What is less than everything, put around the input of a max pool, is padding of its own."""
    when(is_filled_with(v, -math.inf))
    require(not ceil_mode, "in ceil mode, windows may begin in padding of a value but not in that of the pool")
    return max_pool(x, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), **pool)
