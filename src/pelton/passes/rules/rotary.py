"""Recognizes rotary embeddings (pairs of elements rotated by angles) in the forms that exporters write."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import broadcast_shapes
from pelton.ops.op import Term
from pelton.ops.words import (
    add,
    concat,
    cos,
    expand,
    gather,
    gather_nd,
    mul,
    neg,
    reshape,
    rotary,
    sin,
    slice_,
    sub,
    transpose,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, reject, require, rule, when

from .slices import AxisSlice, full, sliced

# --- pairs of elements


def _slice_of(x: Value) -> tuple[Value, list[AxisSlice], range]:
    """Returns the source of a slice, its slices of all axes but the last, and its range on the last, of known size."""
    producer = producer_of(x)
    source, axes = x, [AxisSlice(0, d) for d in x.type.shape]
    if producer is not None and producer.op is slice_:
        source = producer.inputs[0]
        axes = full(source.type.shape, **producer.attrs)
    *others, last = axes
    require(is_known(*last), f"the width of %{x.name} is not known")
    return source, others, range(*last)


def _positions(first: int, step: int, count: int) -> range:
    return range(first, first + (count - 1) * step + 1, step)


def _pairs(positions: range, interleaved: bool) -> tuple[range, range]:
    """Returns the positions of the first and of the second elements of all pairs."""
    return (
        (positions[::2], positions[1::2])
        if interleaved
        else (positions[: len(positions) // 2], positions[len(positions) // 2 :])
    )


def _is_pairs(x: Value, a: Value, b: Value, interleaved: bool) -> bool:
    """True if a holds the first elements of the pairs in x, and b the second ones."""
    (source, around, whole), (of_a, around_a, first), (of_b, around_b, second) = map(_slice_of, (x, a, b))
    return of_a is source is of_b and around_a == around == around_b and (first, second) == _pairs(whole, interleaved)


def _source_of_pairs(a: Value, b: Value, interleaved: bool) -> Any:
    """Returns the value whose pairs have their first elements in a, and the second ones in b."""
    (source, around, first), (of_b, around_b, second) = _slice_of(a), _slice_of(b)
    when(of_b is source and a.type == b.type and around == around_b and len(first) > 0)
    count, apart = len(first), second[0] - first[0]
    step = apart if interleaved else apart // count
    when(step > 0)
    positions = _positions(first[0], step, 2 * count)
    when(_pairs(positions, interleaved) == (first, second))
    return sliced(source, [*around, AxisSlice(positions.start, positions.stop, positions.step)])


# --- angles


def _angles_per_pair(c: Value, pairs: int, interleaved: bool) -> Any:
    """Returns cosines or sines per pair from those per element; rejects unless pairs provably share them."""

    @cache
    def per_pair(v: Value) -> Any:
        if v.type.shape[-1:] in ((), (1,)):
            return v  # one for all
        shape, last = (*v.type.shape[:-1], pairs), v.type.rank - 1
        if is_constant(v):
            one, other = (elements(v)[..., p.start : p.stop : p.step] for p in _pairs(range(2 * pairs), interleaved))
            require(np.array_equal(one, other), f"%{v.name} has different angles for the elements of a pair")
            return one.copy()
        producer = producer_of(v)
        if producer is None or not producer.inputs:
            reject(f"%{v.name} is not seen to have one angle per pair")
        x, others, attrs = producer.inputs[0], producer.inputs[1:], producer.attrs
        if producer.op.kind == "pointwise":
            return producer.op(*map(per_pair, producer.inputs), **attrs)
        if producer.op is concat and not interleaved and attrs["axis"] == last and others == (x,):
            return x
        if producer.op is reshape and interleaved and x.type.shape == (*shape, 2):
            repeated = producer_of(x)
            if (
                repeated is not None
                and (repeated.op is expand or repeated.op is concat and len(set(repeated.inputs)) == 1)
                and repeated.inputs[0].type.shape == (*shape, 1)
            ):
                return reshape(repeated.inputs[0], shape=shape)
        if producer.op in (reshape, expand) and x.type.shape[-1:] == (2 * pairs,):
            return producer.op(per_pair(x), shape=shape)
        if (
            producer.op is transpose
            and attrs["perm"][-1] == last
            or producer.op is slice_
            and last not in attrs["axes"]
            or producer.op is gather
            and attrs["axis"] < x.type.rank - 1
            or producer.op is gather_nd
            and attrs["batch_dims"] + others[0].type.shape[-1] < x.type.rank
        ):
            return producer.op(per_pair(x), *others, **attrs)
        reject(f"%{v.name} is not seen to have one angle per pair")

    return per_pair(c)


def _same(c: Value, d: Value) -> bool:
    """True if two values are identical or equal constants: each reader may have its own reshape of a constant."""
    return c is d or is_constant(c, d) and np.array_equal(elements(c), elements(d))


# --- angles per element: x · cos + rotated(x) · sin


def _per_element(x: Value, a: Value, b: Value, c: Value, s: Value, interleaved: bool) -> Term:
    pairs = a.type.shape[-1]
    when(x.type.dtype.is_float and pairs != 0 and _is_pairs(x, a, b, interleaved))
    when(broadcast_shapes(x.type.shape, c.type.shape, s.type.shape) == x.type.shape)
    for v in (c, s):
        require(v.type.shape[-1:] == (2 * pairs,), f"%{v.name} does not have an angle per element")
    return rotary(
        x, _angles_per_pair(c, pairs, interleaved), _angles_per_pair(s, pairs, interleaved), interleaved=interleaved
    )


def _angles(pairs: int, interleaved: bool, lead: tuple[int, ...] = ()) -> np.ndarray:
    """Returns example cosines, each for both elements of a pair."""
    one = np.cos(np.arange(np.prod(lead, dtype=int) * pairs)).astype(np.float32).reshape(*lead, pairs)
    return np.repeat(one, 2, -1) if interleaved else np.concatenate([one, one], -1)


def _elements(x: str, start: int, end: int, step: int = 1) -> Term:
    return slice_(x, starts=(start,), ends=(end,), axes=(3,), steps=(step,))


_X, _F, _T = "x: f32[2, 3, 5, 8]", "f: f32[2, 1, 5, 4]", "t: f32[7, 4]"
_HALVES = dict(x=_X, a=_elements(_X, 0, 4), b=_elements(_X, 4, 8), axis=3)
_PART = dict(x=_elements(_X, 1, 7), a=_elements(_X, 1, 4), b=_elements(_X, 4, 7), axis=3)
_TWICE = concat(_F, _F, axis=3)
_LOOKED_UP = reshape(gather(concat(_T, _T, axis=1), np.array([4, 0, 2, 2, 6]), axis=0), shape=(1, 5, 8))
_CUT = transpose(slice_(_angles(4, False, (6, 2)), starts=(0,), ends=(5,), axes=(0,), steps=(1,)), perm=(1, 0, 2))


@rule(
    lambda x, a, b, c, s, *, axis: add(mul(x, c), mul(concat(neg(b), a, axis=axis), s)),
    stage="recognize",
    examples=[
        dict(_HALVES, c=_angles(4, False, (5,)), s=_angles(4, False, (2, 1, 5))),
        dict(_PART, c=_angles(3, False), s=_angles(3, False, (3, 1))),
        dict(_HALVES, c=cos(_TWICE), s=mul(sin(_TWICE), 0.5)),
        dict(_HALVES, c=_LOOKED_UP, s=reshape(_CUT, shape=(2, 1, 5, 8))),
    ],
    rejections=[
        (dict(_HALVES, c=_angles(4, True), s=_angles(4, False)), "different angles"),
        (dict(_HALVES, c=_angles(4, False), s=0.5), "an angle per"),
        (dict(_HALVES, c=_angles(4, False), s="f32[8]"), "not seen"),
    ],
)
def rotary_halves(x, a, b, c, s, axis):
    """x · cos + (−x₂, x₁) · sin, x₁ and x₂ the halves of x"""
    when(axis == x.type.rank - 1)
    return _per_element(x, a, b, c, s, False)


_PAIRS = dict(
    x=_X,
    a=_elements(_X, 0, 7, 2),
    b=_elements(_X, 1, 8, 2),
    one=(2, 3, 5, 4, 1),
    two=(2, 3, 5, 4, 1),
    axis=4,
    shape=(2, 3, 5, 8),
)
_STACKED = reshape(concat(*[reshape(_F, shape=(2, 1, 5, 4, 1))] * 2, axis=4), shape=(2, 1, 5, 8))
_REPEATED = reshape(expand(reshape(_F, shape=(2, 1, 5, 4, 1)), shape=(2, 1, 5, 4, 2)), shape=(2, 1, 5, 8))


@rule(
    lambda x, a, b, c, s, *, one, two, axis, shape: add(
        mul(x, c), mul(reshape(concat(reshape(neg(b), shape=one), reshape(a, shape=two), axis=axis), shape=shape), s)
    ),
    stage="recognize",
    examples=[
        dict(_PAIRS, c=_angles(4, True, (5,)), s=_angles(4, True, (3, 1))),
        dict(_PAIRS, c=cos(_REPEATED), s=_STACKED),
    ],
    rejections=[(dict(_PAIRS, c=_angles(4, False), s=_angles(4, True)), "different angles")],
)
def rotary_pairs(x, a, b, c, s, one, two, axis, shape):
    """x · cos + (−x₁, x₀, −x₃, x₂, …) · sin"""
    when(shape == x.type.shape and one == two == (*a.type.shape, 1) and axis == x.type.rank)
    return _per_element(x, a, b, c, s, True)


# --- angles per pair: (a · cos − b · sin, b · cos + a · sin)


def _rotate(a, b, c, s, c2, s2):
    return sub(mul(a, c), mul(b, s)), add(mul(b, c2), mul(a, s2))


def _per_pair(a: Value, b: Value, c: Value, s: Value, c2: Value, s2: Value, interleaved: bool) -> Term:
    when(_same(c, c2) and _same(s, s2) and a.type.dtype.is_float)
    when(
        c.type.shape[-1:] == s.type.shape[-1:] == a.type.shape[-1:]
        and broadcast_shapes(a.type.shape, c.type.shape, s.type.shape) == a.type.shape
    )
    return rotary(_source_of_pairs(a, b, interleaved), c, s, interleaved=interleaved)


_INPUTS = dict(c="c: f32[5, 4]", s="s: f32[2, 1, 5, 4]", c2="c: f32[5, 4]", s2="s: f32[2, 1, 5, 4]")
_CONSTANTS = dict(
    zip(("c", "s", "c2", "s2"), (np.linspace(k, 1, 20, dtype=np.float32).reshape(5, 4) for k in (0, -1, 0, -1)))
)


@rule(
    lambda a, b, c, s, c2, s2, *rest, axis: concat(*_rotate(a, b, c, s, c2, s2), *rest, axis=axis),
    stage="recognize",
    examples=[dict(_HALVES, **_INPUTS, rest=()), dict(_HALVES, **_CONSTANTS, rest=("f32[2, 3, 5, 1]",))],
)
def rotary_split(a, b, c, s, c2, s2, *rest, axis):
    """(x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin), x₁ and x₂ the halves of x; the concat keeps further operands."""
    when(axis == a.type.rank - 1)
    rotated = _per_pair(a, b, c, s, c2, s2, False)
    return concat(rotated, *rest, axis=axis) if rest else rotated


@rule(
    lambda a, b, c, s, c2, s2, *, one, two, axis, shape: reshape(
        concat(*(reshape(t, shape=n) for t, n in zip(_rotate(a, b, c, s, c2, s2), (one, two))), axis=axis), shape=shape
    ),
    stage="recognize",
    examples=[dict(_PAIRS, **_INPUTS), dict(_PAIRS, **_CONSTANTS)],
)
def rotary_split_pairs(a, b, c, s, c2, s2, one, two, axis, shape):
    """The same with x₁ and x₂ the even and odd elements of x, interleaved again."""
    when(
        one == two == (*a.type.shape, 1) and axis == a.type.rank and shape == (*a.type.shape[:-1], 2 * a.type.shape[-1])
    )
    return _per_pair(a, b, c, s, c2, s2, True)


# --- a part of the elements


@rule(
    lambda x, c, s, rest, *more, axis: concat(rotary(x, c, s, interleaved=ANY), rest, *more, axis=axis),
    stage="recognize",
    examples=[
        dict(
            x=_elements(_X, 0, 4),
            c="f32[5, 2]",
            s="f32[5, 2]",
            interleaved=True,
            rest=_elements(_X, 4, 8),
            more=(),
            axis=3,
        ),
        dict(
            x=_elements(_X, 1, 5),
            c="f32[5, 1]",
            s="f32[5, 1]",
            interleaved=False,
            rest=_elements(_X, 5, 7),
            more=("f32[2, 3, 5, 2]",),
            axis=3,
        ),
    ],
)
def rotary_part(x, c, s, rest, *more, axis, interleaved):
    """Unrotated elements behind the rotated ones become part of the rotary op."""
    when(axis == x.type.rank - 1)
    (source, around, first), (of, around_rest, left) = _slice_of(x), _slice_of(rest)
    when(of is source and around == around_rest and len(first) > 0 and len(left) > 0)
    count = len(first)
    positions = _positions(first[0], first.step, count + len(left))
    when(first.step > 0 and (positions[:count], positions[count:]) == (first, left))
    whole = rotary(
        sliced(source, [*around, AxisSlice(positions.start, positions.stop, positions.step)]),
        c,
        s,
        interleaved=interleaved,
    )
    return concat(whole, *more, axis=axis) if more else whole
