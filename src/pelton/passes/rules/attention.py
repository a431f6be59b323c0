"""Recognizes attention: its products and softmax, its scale, and its causal masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import broadcast_shapes
from pelton.ops.op import Term
from pelton.ops.words import (
    add,
    attention,
    div,
    expand,
    greater,
    greater_equal,
    iota,
    less,
    less_equal,
    matmul,
    mul,
    reshape,
    softmax,
    transpose,
    trilu,
    where,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import (
    array,
    elements,
    is_constant,
    is_filled_with,
    producer_of,
    require,
    rule,
    scalar,
    when,
)

LITTLE = -1e4  # e to the power of this is 0, even where scores differ by thousands
NOTHING = -1e8  # scores vanish beside it in f32, so that fully masked rows stay means of all


def _scores(q, kt, c, d):
    """Returns the forms of q · kᵀ, times a number, divided by a number."""
    product = matmul(q, kt)
    return product, mul(product, c), div(product, d)


def _attention(
    q: Value, kt: Value, v: Value, mask: Any, shape: tuple[int, ...], c: Value | None, d: Value | None, axis: int
) -> Term:
    """Builds the composite; `shape` is that of the mask."""
    rank = q.type.rank
    when(rank == kt.type.rank == v.type.rank == axis + 1 >= 2)
    scores = (*broadcast_shapes(q.type.shape[:-2], kt.type.shape[:-2]), q.type.shape[-2], kt.type.shape[-1])
    when(broadcast_shapes(scores, shape) == scores)
    scale = 1.0 if c is None else float(scalar(c))
    if d is not None:
        when(scalar(d) != 0)
        scale = 1 / float(scalar(d))
    k = transpose(kt, perm=(*range(rank - 2), rank - 1, rank - 2))
    return attention(q, k, v, mask, scale=scale)


_QKV = dict(q="f32[2, 3, 5, 8]", kt="f32[2, 3, 8, 7]", v="f32[2, 3, 7, 4]", m="f32[2, 1, 1, 7]", c=0.25, d=4.0, axis=3)
_READY = dict(q="f32[2, 3, 5, 8]", k="f32[2, 3, 7, 8]", v="f32[2, 3, 7, 4]", m=0.0, scale=0.5)


@rule(
    *[lambda q, kt, v, c, d, *, axis, k=k: matmul(softmax(_scores(q, kt, c, d)[k], axis=axis), v) for k in range(3)],
    *[
        lambda q, kt, v, m, c, d, *, axis, k=k: matmul(softmax(add(_scores(q, kt, c, d)[k], m), axis=axis), v)
        for k in range(3)
    ],
    stage="recognize",
    examples=[_QKV],
)
def attention_parts(q, kt, v, axis, m=None, c=None, d=None):
    """softmax(scale · q·kᵀ + mask) · v"""
    return _attention(q, kt, v, 0.0, (), c, d, axis) if m is None else _attention(q, kt, v, m, m.type.shape, c, d, axis)


@rule(
    *[
        lambda q, kt, v, keep, low, c, d, *, axis, k=k: matmul(
            softmax(where(keep, _scores(q, kt, c, d)[k], low), axis=axis), v
        )
        for k in range(3)
    ],
    stage="recognize",
    inexact=True,
    examples=[dict(_QKV, keep=np.tri(5, 7, dtype=bool), low=-1e9)],
    rejections=[(dict(_QKV, keep="bool[5, 7]", low=-3.0), "too small")],
)
def attention_where(q, kt, v, keep, low, axis, c=None, d=None):
    """A mask by selection equals an additive mask, as the exponential of a very negative number is 0."""
    sees = is_constant(keep) and array(keep).any(axis=-1).all()
    require(scalar(low) <= (LITTLE if sees else NOTHING), f"a mask of {scalar(low)} is too small to leave nothing")
    return _attention(q, kt, v, where(keep, np.zeros_like(elements(low)), low), keep.type.shape, c, d, axis)


@rule(
    *[
        lambda q, k, v, m, c, at=at, **how: attention(*at(q, k, c), v, m, **how)
        for at in (
            lambda q, k, c: (mul(q, c), k),
            lambda q, k, c: (q, mul(k, c)),
            lambda q, k, c: (q, transpose(mul(k, c), perm=ANY)),
        )
    ],
    stage="recognize",
    examples=[dict(_READY, c=0.5), dict(_READY, c=0.5, perm=(0, 1, 2, 3))],
)
def attention_scale(q, k, v, m, c, scale, causal, perm=None):
    """A factor of queries or keys becomes a factor of the scores."""
    return attention(q, transpose(k, perm=perm) if perm else k, v, m, scale=scale * float(scalar(c)), causal=causal)


def _number(v: Value) -> float | None:
    """Returns the number that all elements of a value provably equal, or None."""
    maker = producer_of(v)
    held = maker.inputs[0] if maker is not None and maker.op in (expand, reshape) else v
    return (
        array(held).flat[0].item()
        if is_constant(held) and held.type.size != 0 and is_filled_with(held, array(held).flat[0])
        else None
    )


def _places(v: Value, axis: int) -> bool:
    """True if a value is 0, 1, … along an axis."""
    maker = producer_of(v)
    if maker is not None and maker.op is reshape:
        return v.type.shape[axis] == v.type.size and _places(maker.inputs[0], -1)
    return maker is not None and maker.op is iota and axis == -1


# op → the operand with the columns; the other one has the rows
_AHEAD, _BEHIND = {greater: 0, less: 1}, {less_equal: 0, greater_equal: 1}


def _tells(v: Value, ahead: bool) -> bool:
    """True if a condition holds exactly ahead of each row, or exactly for the rest."""
    maker = producer_of(v)
    if maker is None:
        return False
    if maker.op in (reshape, expand):
        return maker.inputs[0].type.shape[-2:] == v.type.shape[-2:] and _tells(maker.inputs[0], ahead)
    if maker.op is trilu:
        return (
            maker.attrs == ({"k": 1, "upper": True} if ahead else {"k": 0, "upper": False})
            and _number(maker.inputs[0]) == 1
        )
    columns = (_AHEAD if ahead else _BEHIND).get(maker.op)
    return columns is not None and _places(maker.inputs[columns], -1) and _places(maker.inputs[1 - columns], -2)


def _hides_ahead(v: Value, rows: int, columns: int) -> bool:
    """True if a mask hides exactly the positions ahead of each row."""
    if v.type.shape[-2:] != (rows, columns) or rows != columns or rows == 1:
        return False
    if is_constant(v):
        mask, behind = array(v), np.tri(rows, columns, dtype=bool)
        return bool((mask[..., behind] == 0).all() and (mask[..., ~behind] <= LITTLE).all())
    maker = producer_of(v)
    if maker is None:
        return False
    if maker.op in (reshape, expand):
        return _hides_ahead(maker.inputs[0], rows, columns)
    if maker.op is trilu:
        filled = _number(maker.inputs[0])
        return maker.attrs == {"k": 1, "upper": True} and filled is not None and filled <= LITTLE
    if maker.op is not where or maker.inputs[0].type.shape[-2:] != (rows, columns):
        return False
    low, high = map(_number, maker.inputs[1:])
    return (
        low is not None
        and high is not None
        and (
            _tells(maker.inputs[0], True)
            and low <= LITTLE
            and high == 0
            or _tells(maker.inputs[0], False)
            and low == 0
            and high <= LITTLE
        )
    )


_SQUARE = dict(_READY, k="f32[2, 3, 5, 8]", v="f32[2, 3, 5, 4]")
_ZERO, _LOW = np.array(0, np.float32), np.array(-1e9, np.float32)
_ALL_LOW = expand(_LOW, shape=(5, 5))
_MAY = reshape(trilu(expand(np.array(True), shape=(5, 5)), k=0, upper=False), shape=(1, 1, 5, 5))
_MAY_NOT = greater(iota(size=5), reshape(iota(size=5), shape=(5, 1)))


@rule(
    lambda q, k, v, m, *, scale: attention(q, k, v, m, scale=scale),
    stage="recognize",
    inexact=True,
    examples=[
        dict(_SQUARE, m=np.triu(np.full((1, 5, 5), -1e9, np.float32), 1)),
        dict(_SQUARE, m=trilu(_ALL_LOW, k=1)),
        dict(_SQUARE, m=where(_MAY, _ZERO, _LOW)),
        dict(_SQUARE, m=where(_MAY_NOT, _LOW, _ZERO)),
    ],
)
def attention_causal(q, k, v, m, scale):
    """A mask of exactly the later positions becomes the attribute `causal`."""
    when(_hides_ahead(m, q.type.shape[-2], k.type.shape[-2]))
    return attention(q, k, v, 0.0, scale=scale, causal=True)


def _in_groups(m: Value, heads: int, groups: int) -> Term | Value:
    """Returns a mask [batch, heads, rows, keys] with its heads in groups."""
    if m.type.rank < 3:
        return m
    *batch, count, rows, keys = m.type.shape
    apart = (1, 1) if count == 1 else (heads, groups)
    return reshape(m, shape=(*batch, *apart, rows, keys))


_SHARED = dict(
    _READY,
    **dict(q="f32[2, 6, 5, 8]", k="f32[2, 3, 1, 7, 8]", v="f32[2, 3, 1, 7, 4]", m="f32[2, 1, 5, 7]"),
    **dict(ks=(2, 3, 2, 7, 8), kr=(2, 6, 7, 8), vs=(2, 3, 2, 7, 4), vr=(2, 6, 7, 4)),
)


@rule(
    lambda q, k, v, m, *, ks, kr, vs, vr, **how: attention(
        q, reshape(expand(k, shape=ks), shape=kr), reshape(expand(v, shape=vs), shape=vr), m, **how
    ),
    stage="recognize",
    shared=True,
    examples=[_SHARED, dict(_SHARED, m="f32[6, 1, 7]", causal=False), dict(_SHARED, m=0.0)],
)
def attention_of_groups(q, k, v, m, *, ks, kr, vs, vr, **how):
    """Heads of queries that share a head of keys read it in place, instead of a copy for each."""
    when(q.type.rank == len(kr) == len(vr) == 4 and k.type.rank == v.type.rank == 5)
    for head, wide, whole in ((k, ks, kr), (v, vs, vr)):
        batch, heads, one, *rest = head.type.shape
        when(one == 1 and wide == (batch, heads, wide[2], *rest) and whole == (batch, heads * wide[2], *rest))
    when(ks[1:3] == vs[1:3] and ks[2] != 1)
    batch, _, rows, depth = q.type.shape
    apart = reshape(q, shape=(batch, *ks[1:3], rows, depth))
    y = attention(apart, k, v, _in_groups(m, ks[1], ks[2]), **how)
    return reshape(y, shape=(batch, kr[1], rows, v.type.shape[-1]))
