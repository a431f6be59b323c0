"""Readers of resizing, sampling and cropping of images, of pooling by regions, and of depth to space and back."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from pelton.ir.dims import Dim, Size, Undecided, equal, is_known, maximum
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I64, DType

from pelton.importers.onnx.node import MAX_FILLED, Reading, Binding, reads


@reads("DepthToSpace")
def depth_to_space(n: Reading) -> Binding | tuple[Binding, ...]:
    if n.input(0).type.rank != 4:
        return n.body()
    return n.emit("depth_to_space", n.input(0), block=n.attr("blocksize"), mode=n.attr("mode", "DCR"))


@reads("SpaceToDepth")
def space_to_depth(n: Reading) -> Binding | tuple[Binding, ...]:
    if n.input(0).type.rank != 4 or n.attr("mode", "DCR") != "DCR":
        return n.body()
    return n.emit("space_to_depth", n.input(0), block=n.attr("blocksize"))


@reads("Upsample")
def upsample(n: Reading) -> Binding:
    """Reads scales, attributes before opset 9, an input in 9; coordinates are those of Resize in opset 10."""
    scales: tuple[float, ...]
    if n.opset < 7:
        scales = (1.0, 1.0, n.attr("height_scale"), n.attr("width_scale"))
    else:
        scales = n.attr("scales") if n.opset < 9 else tuple(float(s) for s in _floats(n, 1) or ())
    return _by_scales(n, scales)


def _by_scales(n: Reading, scales: tuple[float, ...]) -> Binding:
    """Does Upsample and Resize of opset 10: divides coordinates by the scale; nearest rounds down, or up to shrink."""
    x = n.input(0)
    if len(scales) != x.type.rank:
        raise n.refuse(f"{n.op} needs a scale for each of {x.type.rank} axes, got {list(scales)}")
    shape = tuple(_scale_size(d, s) for d, s in zip(x.type.shape, scales))
    if _mode(n) != "nearest":
        return emit_resize(n, x, shape=shape, scales=scales, mode=_mode(n), coordinates="asymmetric", nearest="floor")
    for nearest, along in (("ceil", [s < 1 for s in scales]), ("floor", [s > 1 for s in scales])):
        if any(along):
            own, by = zip(
                *((new, s) if a else (old, 1.0) for new, old, s, a in zip(shape, x.type.shape, scales, along))
            )
            x = emit_resize(n, x, shape=own, scales=by, mode="nearest", coordinates="asymmetric", nearest=nearest)
    return x


def _scale_size(size: Size, scale: float) -> Size:
    """Computes ⌊size · scale⌋, with the product in f32, as scales are: 10 · 1.9 is 19.

    For a dynamic size, uses the simplest fraction that equals the scale in f32.
    """
    if not isinstance(size, Dim):
        return math.floor(np.float32(size) * np.float32(scale))
    simple = Fraction(scale).limit_denominator(1000)
    over, under = (simple if np.float32(float(simple)) == np.float32(scale) else Fraction(scale)).as_integer_ratio()
    return size * over // under


def _mode(n: Reading) -> str:
    mode = n.attr("mode")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise n.refuse(f"{n.op} needs mode nearest, linear or cubic, got {mode!r}")
    return "linear" if mode == "bilinear" else mode


def _floats(n: Reading, i: int) -> list[float] | None:
    """Returns the scales of a constant input; None if it is absent or empty."""
    if n.optional(i) is None:
        return None
    scales = [float(v) for v in n.numbers(i, "scales").reshape(-1)]
    if not all(0 < scale < math.inf for scale in scales):
        raise n.refuse(f"{n.op} needs scales above 0, got {scales}")
    return scales or None


@reads("Resize")
def resize(n: Reading) -> Binding | tuple[Binding, ...]:
    """Resizes by scales or by sizes (11), optionally along some axes only (18) and with the aspect ratio kept (18)."""
    if n.opset < 11:
        return _by_scales(n, tuple(_floats(n, 1) or ()))
    coordinates, mode = n.attr("coordinate_transformation_mode"), _mode(n)
    x = n.input(0)
    rank, ratios, sizes = x.type.rank, _floats(n, 2), n.some_integers(3, "sizes")
    axes = tuple(n.axis(a, rank) for a in n.attr("axes") or range(rank))
    sizes = sizes or None
    if (ratios is None) == (sizes is None) or len(ratios or sizes or ()) != len(axes):
        raise n.refuse(
            f"Resize needs scales or sizes, one for each of {len(axes)} axes, got scales {ratios} and sizes {sizes}"
        )
    scales, shape = [1.0] * rank, list(x.type.shape)
    if ratios is not None:
        for axis, scale in zip(axes, ratios):
            scales[axis], shape[axis] = scale, _scale_size(x.type.shape[axis], scale)
    elif sizes is not None and not is_known(*sizes, *(x.type.shape[a] for a in axes)):
        if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Undecided("the size that keeps the aspect ratio depends on dynamic dimensions")
        for axis, size in zip(axes, sizes):
            # 0: the op divides the sizes
            scales[axis], shape[axis] = 1.0 if size == x.type.shape[axis] else 0.0, size
    elif sizes is not None:
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        # 0: of nothing
        factors = [size / x.type.shape[axis] if x.type.shape[axis] else 0.0 for axis, size in zip(axes, sizes)]
        choose = {"not_larger": min, "not_smaller": max}.get(policy)  # one factor for all axes
        for axis, size, factor in zip(axes, sizes, factors):
            if choose is None:
                scales[axis], shape[axis] = factor, int(size)
            else:
                scales[axis] = choose(factors)
                shape[axis] = math.floor(choose(factors) * x.type.shape[axis] + 0.5)
    roi = _roi(n, rank, axes) if coordinates == "tf_crop_and_resize" else ()
    if tuple(shape) == x.type.shape and all(s == 1 for s in scales) and not roi:
        return x
    how = dict(
        shape=tuple(shape),
        scales=tuple(scales),
        mode=mode,
        coordinates=coordinates,
        nearest=n.attr("nearest_mode"),
        cubic_a=n.attr("cubic_coeff_a"),
        exclude_outside=n.flag("exclude_outside"),
        extrapolation=n.attr("extrapolation_value"),
        antialias=n.flag("antialias") and mode != "nearest",
        roi=roi,
    )
    return emit_resize(n, x, **how)


def emit_resize(n: Reading, x: Value, *, mode: str, **how: Any) -> Value:
    """Resizes; integers are interpolated as floats, rounded, and clipped to their range, which cubic may exceed."""
    dtype = x.type.dtype
    if mode == "nearest" or dtype.is_float:
        return n.emit("resize", x, mode=mode, **how)
    if not dtype.is_integer:
        raise n.refuse(
            f"{n.op} of {dtype.value} needs mode nearest, got {mode!r}: such elements cannot be interpolated"
        )
    y, bits = n.emit("round", n.emit("resize", n.cast(x, F32), mode=mode, **how)), int(dtype.value[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    return n.cast(n.emit("clip", y, n.like(y, low), n.like(y, high)), dtype)


def _roi(n: Reading, rank: int, axes: tuple[int, ...]) -> tuple[float, ...]:
    """Returns relative starts, then ends, of the resized part of each axis; 0 and 1 for other axes."""
    roi = [float(v) for v in n.numbers(1, "roi").reshape(-1)] if n.optional(1) is not None else []
    if len(roi) != 2 * len(axes):
        raise n.refuse(f"Resize by tf_crop_and_resize needs a roi of {2 * len(axes)} numbers, got {roi}")
    starts, ends = [0.0] * rank, [1.0] * rank
    for axis, start, end in zip(axes, roi, roi[len(axes) :]):
        starts[axis], ends[axis] = start, end
    return (*starts, *ends)


_SAMPLING = {"bilinear": "linear", "bicubic": "cubic"}  # names of opset 16


@reads("GridSample")
def grid_sample(n: Reading) -> Binding:
    """Samples at a grid; rounds integers towards zero, as the reference does."""
    x, grid, mode = n.input(0), n.input(1), n.attr("mode")
    y = n.emit(
        "grid_sample",
        x if x.type.dtype.is_float else n.cast(x, F64),
        grid,
        mode=_SAMPLING.get(mode, mode),
        padding=n.attr("padding_mode"),
        align_corners=n.flag("align_corners"),
    )
    return n.cast(y, x.type.dtype)


@reads("AffineGrid")
def affine_grid(n: Reading) -> Binding:
    """Computes theta · (x, y[, z], 1) at the points of a regular grid from −1 to 1."""
    size_type = n.input(1).type
    if size_type.rank != 1 or size_type.known and size_type.size not in (4, 5):
        raise n.refuse(
            f"AffineGrid needs a size of 4 or 5 numbers (batch, channels, and two or three of space), got {size_type}"
        )
    theta, (batch, _, *space) = n.input(0), n.integers(1, "size")
    rank = len(space)
    if theta.type.rank != 3 or not all(map(equal, theta.type.shape, (batch, rank, rank + 1))):
        raise n.refuse(
            f"AffineGrid of space {list(space)} needs theta of shape [{batch}, {rank}, {rank + 1}], got {theta.type}"
        )
    if not all(0 < size <= MAX_FILLED for size in space):
        raise n.refuse(f"AffineGrid needs sizes from 1 to {MAX_FILLED} along each axis, got {list(space)}")
    shape = (batch, *[1] * rank, rank)

    def column(k: int) -> Value:
        return n.reshape(n.slice(theta, 2, k, k + 1), shape)

    total = column(rank)
    for axis, size in enumerate(space):
        along = n.reshape(_grid_line(n, size, theta.type.dtype), (size, *[1] * (rank - axis)))
        total = n.emit("add", total, n.emit("mul", column(rank - 1 - axis), along))
    return total


def _grid_line(n: Reading, size: Size, dtype: DType) -> Value:
    """Returns the points of a grid's axis from −1 to 1: the first and the last are corners, or half a step inside. A
    single corner is the last one, as in ONNX Runtime."""
    steps, first = size, size - 1
    if n.flag("align_corners"):
        steps, first = maximum(size - 1, 1), size - 1 - maximum(2 - size, 0)
    if is_known(size, steps):
        return n.constant((2 * np.arange(size) - first) / steps, dtype)
    twice = n.emit("mul", n.count(size, I64), n.constant(2, I64))
    return n.emit("div", n.cast(n.emit("sub", twice, n.sizes(first)), dtype), n.cast(n.sizes(steps), dtype))


@reads("CenterCropPad")
def center_crop_pad(n: Reading) -> Binding:
    """Pads or crops each axis, half of the difference at its begin, the rest at its end."""
    x, sizes = n.input(0), n.integers(1, "shape")
    rank = x.type.rank
    axes = tuple(n.axis(a, rank) for a in n.attr("axes") or range(rank))
    if len(axes) != len(sizes):
        raise n.refuse(f"CenterCropPad needs a size for each of {len(axes)} axes, got {list(sizes)}")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, sizes):
        more = size - x.type.shape[axis]
        before[axis] = maximum(more, 0) // 2 - maximum(-more, 0) // 2
        after[axis] = more - before[axis]
    return n.emit("pad", x, n.like(x, 0), pads=(*before, *after))


@reads("RoiAlign")
def roi_align(n: Reading) -> Binding:
    half = n.attr("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    return n.emit(
        "roi_align",
        n.input(0),
        n.input(1),
        n.input(2),
        height=n.attr("output_height"),
        width=n.attr("output_width"),
        samples=max(n.attr("sampling_ratio"), 0),
        scale=n.attr("spatial_scale"),
        mode=n.attr("mode"),
        half_pixel=half,
    )


@reads("MaxRoiPool")
def max_roi_pool(n: Reading) -> Binding:
    """Reads the first number of each roi as the index of its image in the batch."""
    x, rois, (height, width) = n.input(0), n.input(1), n.attr("pooled_shape")
    if rois.type.rank != 2 or rois.type.shape[1] != 5:
        raise n.refuse(f"MaxRoiPool needs rois of five numbers (batch index, x1, y1, x2, y2), got {rois.type}")
    batch = n.reshape(n.cast(n.slice(rois, 1, 0, 1), I64), (rois.type.shape[0],))
    return n.emit(
        "max_roi_pool", x, n.slice(rois, 1, 1, 5), batch, height=height, width=width, scale=n.attr("spatial_scale")
    )
