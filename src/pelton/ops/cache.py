"""Caches of attention: the keys and values of earlier tokens, and those of new ones behind them."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.dims import minimum as least
from pelton.ir.graph import Value
from pelton.ir.types import I64, STRING, TensorType

from .index import gather_nd
from .logic import less, logical_and, logical_not, logical_or
from .math import add, cast, maximum, minimum, sub, where
from .op import TermLike, expect, expect_equal, structured
from .shape import concat, reshape, transpose
from .shape import expand as spread
from .sizes import iota, sizes


def _number(size: Size) -> TermLike:
    return sizes(values=(size,), shape=())


@structured(
    examples=(
        ("f32[2, 3, 7, 4]", "f32[2, 3, 2, 4]", "i64[2]", "i64[2]", dict(length=9)),
        ("f32[2, 1, 7, 5]", "f32[2, 1, 3, 5]", "i64[2]", "i64[2]", dict(length=7, keep=True)),
        ("u8[1, 2, 5, 3]", "u8[1, 2, 4, 3]", "i64[1]", "i64[1]", dict(length=6)),
        ("f32[3, 1, 2, 5]", "f32[3, 1, 6, 5]", "i64[3]", "i64[3]", dict(length=5)),
    ),
)
class cache_write:
    """The cache with rows written at the positions begin to end − 1 of each sequence.

    The cache is [batch, heads, capacity, depth], the rows are [batch, heads, rows, depth], the result is [batch, heads,
    length, depth]; begin and end are numbers for each sequence, limited to what there is. Positions from `end` on are
    0, or, with `keep`, as they were.
    """

    def infer(
        cache: TensorType,
        rows: TensorType,
        begin: TensorType,
        end: TensorType,
        *,
        length: int,
        keep: bool = False,
    ) -> TensorType:
        expect(cache.rank == rows.rank == 4, "needs a cache and rows of rank 4")
        expect(cache.dtype is rows.dtype and cache.dtype is not STRING, "needs a cache and rows of one type")
        for axis in (0, 1, 3):
            expect_equal(cache.shape[axis], rows.shape[axis], "needs rows of the cache's shape")
        for places in (begin, end):
            expect(places.dtype.is_integer, "needs integers as positions")
            expect_equal(places.shape, cache.shape[:1], "needs a position for each sequence")
        expect(length >= 0, f"needs a length of 0 or more, got {length}")
        return cache.with_shape((*cache.shape[:2], length, cache.shape[3]))

    def reference(cache, rows, begin, end, *, length, keep=False):
        y = np.zeros((*cache.shape[:2], length, cache.shape[3]), cache.dtype)
        held = min(cache.shape[2], length)
        for b in range(len(y)):
            at = min(max(int(begin[b]), 0), held)
            stop = min(max(int(end[b]), at), at + rows.shape[2], length)
            y[b, :, :at] = cache[b, :, :at]
            y[b, :, at:stop] = rows[b, :, : stop - at]
            if keep and stop < held:
                y[b, :, stop:held] = cache[b, :, stop:held]
        return y

    def expand(cache: Value, rows: Value, begin: Value, end: Value, *, length: Size, keep: bool) -> TermLike:
        batch, _, capacity, _ = cache.type.shape
        count = rows.type.shape[2]
        held = least(capacity, length)
        at = minimum(maximum(_i64(begin), 0), _number(held))
        stop = minimum(minimum(maximum(_i64(end), at), add(at, _number(count))), _number(length))
        at, stop = (reshape(v, shape=(batch, 1)) for v in (at, stop))
        place = iota(size=length)
        kept, written = less(place, at), less(place, stop)
        if keep:
            kept = logical_or(kept, logical_and(logical_not(written), less(place, _number(held))))
            written = logical_or(kept, written)
        behind = add(sub(place, at), _number(capacity))
        order = where(kept, spread(place, shape=(batch, length)), behind)
        order = minimum(order, _number(capacity + count - 1))
        both = transpose(concat(cache, rows, axis=2), perm=(0, 2, 1, 3))
        picked = gather_nd(both, reshape(order, shape=(batch, length, 1)), batch_dims=1)
        zero = np.zeros((), cache.type.dtype.numpy)
        picked = where(reshape(written, shape=(batch, length, 1, 1)), picked, zero)
        return transpose(picked, perm=(0, 2, 1, 3))

    def flops(cache: TensorType, *others: TensorType, **attrs) -> int:
        return 0


def _i64(v: Value) -> TermLike:
    return v if v.type.dtype is I64 else cast(v, to=I64)
