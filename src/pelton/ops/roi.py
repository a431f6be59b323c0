"""Resamples regions of interest of feature maps to one size: by interpolation, or by their largest elements."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, TensorType

from .math import abs_, add, cast, floor, maximum, minimum, mul, sub, where
from .op import TermLike, composite, expect, expect_equal, structured
from .reduce import reduce_max
from .sample import at_once, blend, counted_in, number, wide, within
from .shape import reshape, slice_, transpose


def _points(begin: float, long: float, bins: int, i: int, count: int, size: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns the points of bin i of an axis that are inside the feature map.

    Returns their neighboring elements, the weights of these, and True if there are points outside.
    """
    step = long / bins / count if count else 0.0
    first = begin + long / bins * i
    edges = (-1.0, float(size)) if step > 0 else (float(size), -1.0)
    low, high = (
        (int(np.clip(np.floor((edge - first) / step) + more, 0, count)) for edge, more in zip(edges, (-1, 2)))
        if step
        else (0, count)
    )
    at = first + step * (np.arange(low, high) + 0.5)
    inside = (at >= -1) & (at <= size)
    at = np.clip(at[inside], 0, size - 1)
    left = np.floor(at).astype(np.int64)
    return (
        np.stack([left, np.minimum(left + 1, size - 1)], -1).reshape(-1),
        np.stack([1 - (at - left), at - left], -1).reshape(-1),
        int(inside.sum()) < count,
    )


@composite(
    "RoiAlign",
    position_operand=1,
    examples=(
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=2, width=3, samples=2)),
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=2, width=2, samples=1, scale=3.0, half_pixel=False)),
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=1, width=2, samples=3, scale=2.0, mode="max")),
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=3, width=2, samples=0, scale=4.0, half_pixel=False)),
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=2, width=2, samples=0, scale=4.0, mode="max")),
    ),
)
class roi_align:
    """Y[r, c, i, j] = the mean (or maximum) of samples² points of X[batch[r], c], evenly spread over a bin.

    Points are interpolated bilinearly, and 0 outside of X; rois are x₁, y₁, x₂, y₂. samples: points per axis of a bin;
    0: as many as the bin is long, rounded up.
    """

    def infer(
        x: TensorType,
        rois: TensorType,
        batch: TensorType,
        *,
        height: int,
        width: int,
        samples: int,
        scale: float = 1.0,
        mode: str = "avg",
        half_pixel: bool = True,
    ) -> TensorType:
        expect(
            x.rank == 4 and rois.rank == 2 and batch.rank == 1,
            "needs feature maps, rois of four numbers and the batch index of each",
        )
        expect_equal(rois.shape, (batch.shape[0], 4), "needs four numbers per roi, and as many rois as batch indices")
        expect(
            x.dtype.is_float and rois.dtype.is_float and batch.dtype.is_integer,
            "needs floating point, and integers for the batch indices",
        )
        expect(
            min(height, width) >= 1 and 0 <= samples <= 1024,
            f"needs bins, and 1 to 1024 samples or 0, got {height} × {width} of {samples}",
        )
        expect(mode in ("avg", "max"), f"needs mode avg or max, got {mode!r}")
        return x.with_shape((batch.shape[0], x.shape[1], height, width))

    def reference(x, rois, batch, *, height, width, samples, scale=1.0, mode="avg", half_pixel=True):
        y = np.zeros((len(batch), x.shape[1], height, width), x.dtype)
        for r, n in enumerate(batch if x.size else ()):
            axes, corners = [], rois[r] * scale - 0.5 * half_pixel
            for size, bins, begin, end in zip(x.shape[2:], (height, width), corners[1::-1], corners[3:1:-1]):
                long = end - begin if half_pixel else max(end - begin, 1.0)
                count = samples or max(int(np.ceil(long / bins)), 0)
                axes.append((count, [_points(begin, long, bins, i, count, size) for i in range(bins)]))
            (rows, down), (columns, right) = axes
            for i, (iy, wy, above) in enumerate(down):
                for j, (ix, wx, beside) in enumerate(right):
                    values = x[n][:, iy][:, :, ix] * wy[:, None] * wx
                    if mode == "avg":
                        y[r, :, i, j] = values.sum((1, 2)) / max(rows * columns, 1)
                    else:
                        y[r, :, i, j] = values.max(
                            (1, 2), initial=0.0 if above or beside or not rows * columns else -np.inf
                        )
        return y

    def expand(
        x: Value,
        rois: Value,
        batch: Value,
        *,
        height: int,
        width: int,
        samples: int,
        scale: float,
        mode: str,
        half_pixel: bool,
    ) -> TermLike:
        if not samples:  # their number depends on each roi: only a kernel can do that
            return (
                None
                if rois.type.dtype is F32 or x.type.dtype is F64
                else roi_align(
                    x,
                    cast(rois, to=F32),
                    batch,
                    height=height,
                    width=width,
                    samples=0,
                    scale=scale,
                    mode=mode,
                    half_pixel=half_pixel,
                )
            )
        if samples > 32:
            return None
        n, c, *space = x.type.shape
        dtype, count, counted = wide(x.type.dtype), batch.type.shape[0], counted_in(n * math.prod(space))
        corners = mul(cast(rois, to=dtype), scale)
        index: TermLike = None
        weight: TermLike = None
        for axis, (size, bins) in enumerate(zip(space, (height, width))):
            begin, end = (
                slice_(corners, starts=(k,), ends=(k + 1,), axes=(1,), steps=(1,)) for k in (1 - axis, 3 - axis)
            )
            long = sub(end, begin) if half_pixel else maximum(sub(end, begin), 1.0)
            steps = (np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(-1) / bins
            # [roi, bin · sample]
            at = add(sub(begin, 0.5 * half_pixel), mul(long, steps))
            last = number(size - 1, dtype)
            there = within(at, -1.0, at_once(add, last, 1.0))
            at = minimum(maximum(at, 0.0), last)
            # [roi, i, j, sᵢ, tᵢ, sⱼ, tⱼ]
            shape = (count, *[1] * axis, bins, *[1] * (1 - axis), *[1] * 2 * axis, samples, 1, *[1] * 2 * (1 - axis))
            at, there = reshape(at, shape=shape), reshape(where(there, number(1, dtype), 0.0), shape=shape)
            along = (2, *[1] * 2 * (1 - axis))
            place = add(floor(at), np.arange(2.0).reshape(along))
            by = mul(maximum(sub(1.0, abs_(sub(at, place))), 0.0), there)
            place = cast(minimum(place, last), to=counted)
            place = place if axis else mul(place, number(space[1], counted))
            index, weight = (place, by) if index is None else (add(index, place), mul(weight, by))
        index = add(
            index, mul(cast(reshape(batch, shape=(count, *[1] * 6)), to=counted), number(math.prod(space), counted))
        )
        flat = reshape(transpose(x, perm=(1, 0, 2, 3)), shape=(c, n * math.prod(space)))
        each = 4 * samples * samples
        shape = (count, height, width, each) if mode == "avg" else (count, height, width, each, 1)
        values = blend(
            flat,
            reshape(index, shape=shape),
            reshape(mul(weight, 1 / samples**2) if mode == "avg" else weight, shape=shape),
            axis=1,
        )
        return transpose(values if mode == "avg" else reduce_max(values, axes=(4,), keepdims=False), perm=(1, 0, 2, 3))


@structured(
    "MaxRoiPool",
    position_operand=1,
    examples=(
        ("f32[2, 3, 9, 11]", "f32[5, 4]", "i64[5]", dict(height=2, width=3, scale=3.0)),
        ("f32[1, 21, 9, 11]", "f32[3, 4]", "i64[3]", dict(height=1, width=2)),
    ),
)
class max_roi_pool:
    """Y[r, c, i, j] = the largest element of X[batch[r], c] that a bin touches, 0 where it touches none; rois are x₁,
    y₁, x₂, y₂, rounded, ends included."""

    def infer(
        x: TensorType, rois: TensorType, batch: TensorType, *, height: int, width: int, scale: float = 1.0
    ) -> TensorType:
        return roi_align.infer(x, rois, batch, height=height, width=width, samples=1, scale=scale)

    def reference(x, rois, batch, *, height, width, scale=1.0):
        y = np.zeros((len(batch), x.shape[1], height, width), x.dtype)
        for r, n in enumerate(batch if x.size else ()):
            spans, corners = [], rois[r] * scale
            for size, bins, begin, end in zip(x.shape[2:], (height, width), corners[1::-1], corners[3:1:-1]):
                start = np.floor(abs(begin) + 0.5) * np.sign(begin)
                long = max(np.floor(abs(end) + 0.5) * np.sign(end) - start + 1, 1.0) / bins
                spans.append(
                    [
                        tuple(
                            int(np.clip(edge, 0, size))
                            for edge in (start + np.floor(i * long), start + np.ceil((i + 1) * long))
                        )
                        for i in range(bins)
                    ]
                )
            for i, (top, bottom) in enumerate(spans[0]):
                for j, (left, right) in enumerate(spans[1]):
                    if top < bottom and left < right:
                        y[r, :, i, j] = x[n, :, top:bottom, left:right].max((1, 2))
        return y

    def flops(
        x: TensorType, rois: TensorType, batch: TensorType, *, height: int, width: int, scale: float = 1.0
    ) -> int:
        """Counts one element per bin: the actual number depends on the data."""
        return batch.shape[0] * x.shape[1] * height * width
