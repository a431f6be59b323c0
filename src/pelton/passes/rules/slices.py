"""Simplifies slices, concatenations and gathers: of each other, of parts, and at known indices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pelton.ir.dims import Size, is_known, minimum
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64
from pelton.ops.shape import length
from pelton.ops.words import codebook_linear, concat, expand, gather, iota, matmul, quantized_linear, reshape, slice_
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, require, rule, skip, uses, when

Ints = tuple[Size, ...]


class AxisSlice(NamedTuple):
    """The slice of one axis: range(start, end, step), of sizes that may be dynamic."""

    start: Size
    end: Size
    step: int = 1

    @property
    def canonical(self) -> AxisSlice:
        """The canonical form: empty slices are 0..0, and a single element has step 1."""
        count = length(*self)
        if count == 0:
            return AxisSlice(0, 0)
        return AxisSlice(self.start, self.start + 1) if count == 1 else self


def full(shape: Ints, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> list[AxisSlice]:
    """Returns the slice of every axis."""
    taken = [AxisSlice(0, d) for d in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        taken[axis] = AxisSlice(start, end, step)
    return taken


def sliced(x: Value, taken: list[AxisSlice]):
    """Returns x, or its slice by these; whole axes are omitted."""
    part = [
        (cut.start, cut.end, axis, cut.step)
        for axis, (cut, d) in enumerate(zip(taken, x.type.shape))
        if cut.canonical != AxisSlice(0, d)
    ]
    if not part:
        return x
    starts, ends, axes, steps = zip(*part)
    return slice_(x, starts=starts, ends=ends, axes=axes, steps=steps)


@rule(
    lambda x, **at: slice_(x, **at),
    stage="views",
    examples=[
        dict(x="f32[2, 5]", starts=(0, 0), ends=(2, 5), axes=(0, 1), steps=(1, 1)),
        dict(x="f32[2, 5]", starts=(0, 1), ends=(2, 4), axes=(0, 1), steps=(1, 1)),
    ],
)
def slice_whole(x, **at):
    """A slice omits axes that it keeps entirely."""
    kept = sliced(x, full(x.type.shape, **at))
    when(kept is x or len(kept.attrs["axes"]) < len(at["axes"]))
    return kept


@rule(
    lambda x, *, s, e, a, t, **at: slice_(slice_(x, starts=s, ends=e, axes=a, steps=t), **at),
    stage="views",
    shared=True,
    examples=[
        dict(x="f32[12, 5]", s=(1,), e=(11,), a=(0,), t=(2,), starts=(1, 2), ends=(5, 4), axes=(0, 1), steps=(2, 1))
    ],
)
def slice_slice(x, s, e, a, t, **at):
    """Nested slices become one; steps stay positive."""
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
    stage="views",
    shared=True,
    examples=[
        dict(x="f32[2, 3, 8]", split=(2, 3, 4, 2), shape=(2, 3, 4), starts=(1,), ends=(2,), axes=(3,), steps=(1,)),
        dict(x="f32[2, 3, 8]", split=(2, 3, 2, 4), shape=(2, 3, 4), starts=(1,), ends=(2,), axes=(2,), steps=(1,)),
    ],
)
def slice_split(x, split, shape, axes, starts, ends, steps):
    """An index of one part of a split last axis, or of one element of each part, becomes a slice of that axis."""
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
    lambda x, w, *, s, e, a, t, **of: slice_(matmul(x, w, **of), starts=s, ends=e, axes=a, steps=t),
    stage="views",
    examples=[
        dict(x="f32[2, 5, 3]", w="f32[3, 4]", s=(4,), e=(5,), a=(1,), t=(1,)),
        dict(x="f32[2, 5, 3]", w="f32[3, 4]", s=(3, 1), e=(0, 2), a=(1, 0), t=(-2, 1)),
    ],
    rejections=[
        (
            dict(x="f32[2, 5, 3]", w="f32[2, 3, 4]", s=(4,), e=(5,), a=(1,), t=(1,)),
            "its right operand is several matrices",
        )
    ],
)
def slice_rows(x, w, s, e, a, t, **of):
    """Some rows of a product are the product of these rows."""
    when(x.type.rank - 1 not in a)
    require(w.type.rank == 2, "its right operand is several matrices")
    return matmul(sliced(x, full(x.type.shape, s, e, a, t)), w, **of)


@rule(
    lambda x, *w, block, bits, round_rows, **at: slice_(
        quantized_linear(x, *w, block=block, bits=bits, round_rows=round_rows), **at
    ),
    stage="views",
    examples=[
        dict(
            x="f32[5, 32]",
            w=("=u8[8, 16]", "=f32[8, 2]"),
            **dict(block=16, bits=4, round_rows=False),
            **dict(starts=(4,), ends=(5,), axes=(0,), steps=(1,)),
        )
    ],
)
def slice_rows_of_few_bits(x, *w, block, bits, round_rows, **at):
    """Some rows of a product with weights of few bits are the product of these rows."""
    when(x.type.rank - 1 not in at["axes"])
    return quantized_linear(sliced(x, full(x.type.shape, **at)), *w, block=block, bits=bits, round_rows=round_rows)


@rule(
    lambda x, w, s, *, block, table, **at: slice_(codebook_linear(x, w, s, block=block, table=table), **at),
    stage="views",
    examples=[
        dict(
            x="f32[5, 32]",
            w="=u8[8, 16]",
            s="=f32[8, 2]",
            **dict(block=16, table=tuple(map(float, range(16)))),
            **dict(starts=(4,), ends=(5,), axes=(0,), steps=(1,)),
        )
    ],
)
def slice_rows_by_codebook(x, w, s, *, block, table, **at):
    """Some rows of a product with weights of a table are the product of these rows."""
    when(x.type.rank - 1 not in at["axes"])
    return codebook_linear(sliced(x, full(x.type.shape, **at)), w, s, block=block, table=table)


@rule(
    lambda *xs, axis, **at: slice_(concat(*xs, axis=axis), **at),
    stage="views",
    shared=True,
    examples=[dict(xs=("f32[2, 3]", "f32[2, 4]"), axis=1, starts=(3, 1), ends=(6, 2), axes=(1, 0), steps=(2, 1))],
)
def slice_concat(*xs, axis, **at):
    """A slice within one part of a concatenation becomes a slice of that part."""
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


@rule(lambda x, *, axis: concat(x, axis=axis), stage="views", examples=[dict(x="f32[2, 3]", axis=0)])
def concat_one(x):
    """A concatenation of one part is that part."""
    return x


@rule(
    lambda *xs, axis: concat(*xs, axis=axis),
    stage="views",
    examples=[
        dict(xs=(concat("f32[2, 3]", "f32[2, 1]", axis=1), "f32[2, 4]"), axis=1),
        dict(xs=("f32[0, 4]", "f32[2, 4]", "f32[3, 4]"), axis=0),
    ],
)
def concat_concat(*xs, axis):
    """Nested concatenations become one, without empty parts."""
    parts: list[Value] = []
    for x in xs:
        maker = producer_of(x)
        inner = maker is not None and maker.op is concat and maker.attrs["axis"] == axis and uses(x) == 1
        if maker is not None and inner:
            parts.extend(maker.inputs)
        elif x.type.shape[axis]:
            parts.append(x)
    when(bool(parts) and parts != list(xs))
    return concat(*parts, axis=axis)


@rule(
    lambda *xs, axis: concat(*xs, axis=axis),
    stage="views",
    examples=[
        dict(xs=[slice_("whole: f32[2, 7]", starts=(k,), ends=(k + 3,), axes=(1,), steps=(1,)) for k in (0, 3)], axis=1)
    ],
)
def concat_slices(*xs, axis):
    """A concatenation of adjacent slices of a value becomes one slice."""
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
    stage="views",
    examples=[
        dict(x="f32[2, 5, 3]", i=np.array(-1), axis=1),
        dict(x="f32[2, 5, 3]", i=np.array([1, 3]), axis=1),
        dict(x="f32[7]", i=np.array([[4, 3], [2, 1]]), axis=0),
    ],
)
def gather_known(x, i, axis, node):
    """Known indices at equal distances become a slice."""
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
    stage="views",
    shared=True,
    examples=[dict(x="f32[2, 5, 3]", size=4, dtype=I64, axis=1), dict(x="f32[7]", size=7, dtype=I32, axis=0)],
    rejections=[(dict(x="f32[2, 5, 3]", size=6, dtype=I64, axis=1), "behind the end")],
)
def gather_iota(x, size, axis):
    """Gathering the first elements along an axis becomes a slice."""
    require(size <= x.type.shape[axis], "it reads behind the end")
    taken = [AxisSlice(0, d) for d in x.type.shape]
    taken[axis] = AxisSlice(0, size)
    return sliced(x, taken)


@rule(
    lambda x, i, *, shape: gather(x, expand(i, shape=shape), axis=ANY),
    stage="views",
    shared=True,
    examples=[
        dict(x="f32[3, 4]", i=np.array(1), shape=(2, 5), axis=0),
        dict(x="f32[3, 4]", i=np.array([[1], [2]]), shape=(5, 2, 3), axis=1),
    ],
)
def gather_expand(x, i, shape, axis, node):
    """Repeated gathers of an element become one gather and an expansion."""
    at = (*[1] * (len(shape) - i.type.rank), *i.type.shape)
    element = gather(x, reshape(i, shape=at), axis=axis)
    when(at != shape)
    return expand(element, shape=node.output.type.shape)
