"""Max and average pooling over any number of spatial axes."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64, DType, TensorType

from .logic import greater
from .math import add, cast, where
from .op import Term, TermLike, composite, expect, structured
from .shape import pad, reshape, slice_
from .windows import MAX_TERMS, Ints, check_window, fold_depth, pad_space, taps, unfold_depth, window_sizes

_WINDOWS: tuple[tuple[str, dict], ...] = (
    ("f32[2, 3, 11, 13]", dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))),
    ("f32[1, 58, 7, 7]", dict(kernel=(7, 7), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))),
    ("f32[1, 58, 8, 9]", dict(kernel=(2, 3), strides=(2, 1), pads=(0, 1, 1, 0), dilations=(1, 1))),
    ("f32[1, 5, 12, 12]", dict(kernel=(3, 3), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), ceil_mode=True)),
    ("f32[1, 3, 10, 9]", dict(kernel=(3, 2), strides=(3, 3), pads=(1, 0, 1, 1), dilations=(1, 2), ceil_mode=True)),
    ("f32[2, 5, 31]", dict(kernel=(4,), strides=(3,), pads=(2, 1), dilations=(2,))),
    ("f32[1, 3, 5, 6, 7]", dict(kernel=(2, 3, 2), strides=(1, 2, 2), pads=(0, 1, 1, 1, 1, 0), dilations=(1, 1, 1))),
)


def _infer(x: TensorType, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool) -> TensorType:
    expect(x.dtype.is_float or x.dtype.is_integer, "needs numbers")
    check_window(x, kernel, strides, pads, dilations)
    return x.with_shape((*x.shape[:2], *window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)))


def _flops(
    x: TensorType,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> int:
    return _infer(x, kernel, strides, pads, dilations, ceil_mode).size * math.prod(kernel)


def _pad_to_windows(
    x: np.ndarray, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, sizes: Ints, value
) -> np.ndarray:
    """Pads x by `pads`, and at its ends up to the last window of ceil_mode."""
    spatial = len(kernel)
    reach = [
        (n - 1) * s + (k - 1) * d + 1 - pads[i] - x.shape[2 + i]
        for i, (n, s, k, d) in enumerate(zip(sizes, strides, kernel, dilations))
    ]
    return pad_space(x, (*pads[:spatial], *map(max, pads[spatial:], reach)), value)


def _by_depth(
    op: TermLike, x: Value, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False, **more
) -> TermLike:
    """Pools more than two spatial axes as two ops: over all but the first, with that folded into the batch, then over
    the first. Means are means of means: the number of counted elements is the product of those along each axis."""
    if x.type.rank <= 4:
        return None
    n, c, d = x.type.shape[:3]
    spatial = len(kernel)
    depth, *sizes = window_sizes(x.type.shape[2:], kernel, strides, pads, dilations, ceil_mode)
    flat = op(
        fold_depth(x, x.type.shape),
        kernel=kernel[1:],
        strides=strides[1:],
        pads=(*pads[1:spatial], *pads[spatial + 1 :]),
        dilations=dilations[1:],
        ceil_mode=ceil_mode,
        **more,
    )
    rows = reshape(unfold_depth(flat, n, d, (n * d, c, *sizes)), shape=(n, c, d, math.prod(sizes)))
    pooled = op(
        rows,
        kernel=(kernel[0], 1),
        strides=(strides[0], 1),
        pads=(pads[0], 0, pads[spatial], 0),
        dilations=(dilations[0], 1),
        ceil_mode=ceil_mode,
        **more,
    )
    return reshape(pooled, shape=(n, c, depth, *sizes))


@structured(
    "MaxPool",
    keeps_range=True,
    examples=(*_WINDOWS, ("u8[1, 3, 9, 9]", dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1)))),
)
class max_pool:
    """The largest element of each window; padding is never the largest."""

    def infer(
        x: TensorType, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False
    ) -> TensorType:
        return _infer(x, kernel, strides, pads, dilations, ceil_mode)

    def reference(x, *, kernel, strides, pads, dilations, ceil_mode=False):
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)
        lowest = DType.of(x).lowest
        x = _pad_to_windows(x, kernel, strides, pads, dilations, sizes, lowest)
        y = np.full((*x.shape[:2], *sizes), lowest, x.dtype)
        for _, window in taps(kernel, strides, dilations, sizes):
            np.maximum(y, x[window], out=y)
        return y

    def expand(x: Value, **attrs) -> TermLike:
        return _by_depth(max_pool, x, **attrs)

    flops = _flops


def _index_strides(shape: Ints, column_major: bool) -> list[int]:
    """Returns the index increment of one step along each axis; images are row-major or column-major."""
    space = shape[2:]
    steps = [math.prod(space[:i] if column_major else space[i + 1 :]) for i in range(len(space))]
    return [math.prod(shape[1:]), math.prod(space), *steps]


def _larger(a: tuple[TermLike, TermLike], b: tuple[TermLike, TermLike] | None = None) -> tuple[TermLike, TermLike]:
    """Returns the pair (value, index) of the larger value, the first of equals."""
    if b is None:
        return a
    better = greater(b[0], a[0])
    return where(better, b[0], a[0]), where(better, b[1], a[1])


@composite(
    examples=(
        *((type, dict(attrs, column_major=i % 2 == 1)) for i, (type, attrs) in enumerate(_WINDOWS)),
        ("u8[1, 3, 9, 9]", dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))),
    )
)
class max_pool_places:
    """The index into the elements of X of the largest element of each window (the first of equals)."""

    def infer(
        x: TensorType,
        *,
        kernel: Ints,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        ceil_mode: bool = False,
        column_major: bool = False,
    ) -> TensorType:
        return _infer(x, kernel, strides, pads, dilations, ceil_mode).with_dtype(I64)

    def reference(x, *, kernel, strides, pads, dilations, ceil_mode=False, column_major=False):
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)
        steps = _index_strides(x.shape, column_major)
        index = sum(
            np.arange(d).reshape(-1, *[1] * (x.ndim - 1 - i)) * step for i, (d, step) in enumerate(zip(x.shape, steps))
        )
        lowest = DType.of(x).lowest
        padded, index = (
            _pad_to_windows(a, kernel, strides, pads, dilations, sizes, value) for a, value in ((x, lowest), (index, 0))
        )
        best, places = np.full((*x.shape[:2], *sizes), lowest, x.dtype), np.zeros((*x.shape[:2], *sizes), np.int64)
        for i, (_, window) in enumerate(taps(kernel, strides, dilations, sizes)):
            better = (padded[window] > best) | (i == 0)
            best, places = np.where(better, padded[window], best), np.where(better, index[window], places)
        return places

    def expand(
        x: Value, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool, column_major: bool
    ) -> TermLike:
        shape, spatial = x.type.shape, len(kernel)
        if not is_known(*shape) or math.prod(kernel) > MAX_TERMS:
            return None
        sizes = window_sizes(shape[2:], kernel, strides, pads, dilations, ceil_mode)
        steps = _index_strides(shape, column_major)
        reach = [
            (n - 1) * s + (k - 1) * d + 1 - before - size
            for n, s, k, d, before, size in zip(sizes, strides, kernel, dilations, pads, shape[2:])
        ]
        lowest = np.asarray(x.type.dtype.lowest, x.type.dtype.numpy)
        wide = pad(x, lowest, pads=(0, 0, *pads[:spatial], 0, 0, *map(max, pads[spatial:], reach)))
        each: list[tuple[TermLike, TermLike]] = []  # (elements, index) per tap
        for at, (_, *window) in zip(
            np.ndindex(*kernel), (window for _, window in taps(kernel, strides, dilations, sizes))
        ):
            elements = slice_(
                wide,
                starts=tuple(w.start for w in window),
                ends=tuple(w.stop for w in window),
                axes=tuple(range(2, 2 + spatial)),
                steps=strides,
            )
            offset = sum(k * d * step for k, d, step in zip(at, dilations, steps[2:]))
            each.append((elements, np.asarray(offset, np.int32)))
        # in pairs: a chain would be as deep as the number of taps
        while len(each) > 1:
            each = [_larger(*each[i : i + 2]) for i in range(0, len(each), 2)]
        ((_, place),) = each
        first = [np.arange(d) * step for d, step in zip(shape[:2], steps)]
        first += [(np.arange(n) * s - before) * step for n, s, before, step in zip(sizes, strides, pads, steps[2:])]
        index: TermLike = cast(place, to=I64) if isinstance(place, Term) else None
        for axis, offsets in enumerate(first):
            if offsets.any() or index is None:
                part = offsets.reshape(-1, *[1] * (len(shape) - 1 - axis))
                index = add(part, np.zeros((*shape[:2], *sizes), np.int64)) if index is None else add(index, part)
        return index


@structured(
    "AveragePool",
    keeps_range=True,
    examples=(*_WINDOWS, *((*types, dict(attrs, count_include_pad=True)) for *types, attrs in _WINDOWS)),
)
class average_pool:
    """The mean of each window. `count_include_pad` counts `pads` as zeros; what ceil_mode adds never counts."""

    def infer(
        x: TensorType,
        *,
        kernel: Ints,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        return _infer(x, kernel, strides, pads, dilations, ceil_mode)

    def reference(x, *, kernel, strides, pads, dilations, ceil_mode=False, count_include_pad=False):
        spatial = len(kernel)
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)
        padded = _pad_to_windows(x, kernel, strides, pads, dilations, sizes, 0)
        counted = np.zeros((1, 1, *padded.shape[2:]), x.dtype)
        inside = (
            ...,
            *(
                slice(0, begin + n + end) if count_include_pad else slice(begin, begin + n)
                for begin, n, end in zip(pads[:spatial], x.shape[2:], pads[spatial:])
            ),
        )
        counted[inside] = 1
        total, count = np.zeros((*x.shape[:2], *sizes), x.dtype), np.zeros((1, 1, *sizes), x.dtype)
        for _, window in taps(kernel, strides, dilations, sizes):
            total += padded[window]
            count += counted[window]
        return total / count

    def expand(x: Value, **attrs) -> TermLike:
        return _by_depth(average_pool, x, **attrs)

    flops = _flops
