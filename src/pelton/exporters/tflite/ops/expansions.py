"""Expansions of ops that TFLite has no operator for: interpolation, and pads by elements."""

from __future__ import annotations

from typing import Any

from pelton.ir.dims import is_known
from pelton.ir.op import TermLike, get
from pelton.ops.words import add, concat, conv_transpose, expand, gather, mul, pad, reshape, slice_

from ..tensors import NoForm
from ..writing import expands

MOST = 64  # elements that a point is interpolated of


def _along(x: TermLike, axis: int, start: Any, end: Any) -> TermLike:
    return slice_(x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


@expands("blend")
def blend(x, indices, weights, *, axis, batch_dims=0):
    """Sums products of picked elements."""
    taps, points = indices.type.shape[-1], indices.type.shape[:-1]
    if batch_dims or not is_known(taps) or taps > MOST:
        raise NoForm("TFLite picks elements of all batches alike, and up to 64 for each point")
    total: TermLike = None
    for t in range(taps):
        at = reshape(_along(indices, len(points), t, t + 1), shape=points)
        by = reshape(_along(weights, len(points), t, t + 1), shape=(*points, *[1] * (x.type.rank - axis - 1)))
        part = mul(gather(x, at, axis=axis), by)
        total = part if total is None else add(total, part)
    return total


@expands("conv_transpose")
def by_groups(x, w, b, *, group, **attrs):
    """Joins transposed convolutions of each group, or sums the taps of a plain convolution."""
    if group == 1:
        return get("conv_transpose").expand(x, w, b, group=group, **attrs)
    inner, outer = w.type.shape[0] // group, w.type.shape[1]
    parts = [
        conv_transpose(
            _along(x, 1, g * inner, (g + 1) * inner),
            _along(w, 0, g * inner, (g + 1) * inner),
            _along(b, 0, g * outer, (g + 1) * outer),
            group=1,
            **attrs,
        )
        for g in range(group)
    ]
    return concat(*parts, axis=1)


@expands("pad")
def pads(x, value, *, pads, mode="constant"):
    """Crops where pads are negative, and repeats the edges, or the whole, axis by axis."""
    rank, sizes = x.type.rank, list(x.type.shape)
    if not is_known(*pads) or mode not in ("edge", "wrap", "constant"):
        raise NoForm(f"TFLite does not pad by the mode {mode}, nor by dynamic sizes")
    y: TermLike = x
    for axis, (before, after) in enumerate(zip(pads[:rank], pads[rank:])):
        if before < 0 or after < 0:
            start, end = max(-before, 0), sizes[axis] - max(-after, 0)
            y, sizes[axis] = _along(y, axis, start, end), end - start
    rest = tuple(max(p, 0) for p in pads)
    if mode == "constant":
        if rest == pads:
            raise NoForm("TFLite pads by a constant")
        return pad(y, value, pads=rest) if any(rest) else y
    for axis, (before, after) in enumerate(zip(rest[:rank], rest[rank:])):
        size, parts = sizes[axis], [y]
        if mode == "wrap" and (not is_known(size) or max(before, after) > size):
            raise NoForm("TFLite repeats an axis by joining it with itself once")
        for count, first in ((before, True), (after, False)):
            if not count:
                continue
            if mode == "wrap":
                part = _along(y, axis, size - count, size) if first else _along(y, axis, 0, count)
            else:
                one = _along(y, axis, 0, 1) if first else _along(y, axis, size - 1, size)
                part = expand(one, shape=(*sizes[:axis], count, *sizes[axis + 1 :]))
            parts = [part, *parts] if first else [*parts, part]
        y = concat(*parts, axis=axis) if len(parts) > 1 else y
        sizes[axis] = size + before + after
    return y
