"""Readers of resizing and of the exchange between depth and space."""
from __future__ import annotations

import math

from pelton.ir.dims import Dim, Size, is_known

from .onnx_reading import Reading, Thing, reads


@reads("DepthToSpace")
def depth_to_space(n: Reading) -> Thing | tuple[Thing, ...]:
    if n.input(0).type.rank != 4:
        return n.program.body(n)
    return n.emit("depth_to_space", n.input(0), block=n.attr("blocksize"), mode=n.attr("mode", "DCR"))


@reads("SpaceToDepth")
def space_to_depth(n: Reading) -> Thing | tuple[Thing, ...]:
    if n.input(0).type.rank != 4 or n.attr("mode", "DCR") != "DCR":
        return n.program.body(n)
    return n.emit("space_to_depth", n.input(0), block=n.attr("blocksize"))


@reads("Upsample")
def upsample(n: Reading) -> Thing:
    """Scales are an attribute before opset 9, an input in 9; the rule is that of the first Resize."""
    scales = n.attr("scales") if n.opset < 9 else tuple(float(s) for s in _floats(n, 1) or ())
    return _by_scales(n, scales)


def _by_scales(n: Reading, scales: tuple[float, ...]) -> Thing:
    """Upsample and Resize of opset 10: coordinates divided by the scale; nearest rounds down, when shrinking up."""
    x = n.input(0)
    if len(scales) != x.type.rank:
        raise n.refuse(f"{n.op} needs a scale for each of {x.type.rank} axes, got {list(scales)}")
    shape = tuple(_scaled(d, s) for d, s in zip(x.type.shape, scales))
    shrinks = any(s < 1 for s in scales) and not any(s > 1 for s in scales)
    return n.emit("resize", x, shape=shape, scales=scales, mode=_mode(n), coordinates="asymmetric", nearest="ceil" if shrinks else "floor")


def _scaled(size: Size, scale: float) -> Size:
    """A size times a scale, rounded down."""
    if not isinstance(size, Dim):
        return math.floor(size * scale)
    over, under = scale.as_integer_ratio()
    return size * over // under


def _mode(n: Reading) -> str:
    mode = n.attr("mode")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise n.refuse(f"{n.op} needs mode nearest, linear or cubic, got {mode!r}")
    return "linear" if mode == "bilinear" else mode


def _floats(n: Reading, i: int) -> list[float] | None:
    """Scales: a constant input of numbers; None where it is absent or empty."""
    if n.optional(i) is None:
        return None
    return [float(v) for v in n.numbers(i, "scales").reshape(-1)] or None


@reads("Resize")
def resize(n: Reading) -> Thing | tuple[Thing, ...]:
    """By scales or by sizes (11), along some axes only (18), the shape of the pixels kept if asked for (18)."""
    if n.opset < 11:
        return _by_scales(n, tuple(_floats(n, 1) or ()))
    coordinates = n.attr("coordinate_transformation_mode")
    if n.flag("antialias") or coordinates == "tf_crop_and_resize":
        return n.foreign()
    x = n.input(0)
    rank, given, sizes = x.type.rank, _floats(n, 2), n.some_integers(3, "sizes")
    axes = tuple(n.axis(a, rank) for a in n.attr("axes") or range(rank))
    sizes = sizes or None
    if (given is None) == (sizes is None) or len(given or sizes or ()) != len(axes):
        raise n.refuse(f"Resize needs scales or sizes, one for each of {len(axes)} axes, got scales {given} and sizes {sizes}")
    scales, shape = [1.0] * rank, list(x.type.shape)
    if given is not None:
        for axis, scale in zip(axes, given):
            scales[axis], shape[axis] = scale, _scaled(x.type.shape[axis], scale)
    elif sizes is not None and not is_known(*sizes, *(x.type.shape[a] for a in axes)):
        if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise n.refuse("Resize that keeps the shape of pixels needs sizes that are known before a run")
        for axis, size in zip(axes, sizes):
            scales[axis], shape[axis] = 1.0 if size == x.type.shape[axis] else 0.0, size            # 0: the scale is that of the sizes
    elif sizes is not None:
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        factors = [size / x.type.shape[axis] for axis, size in zip(axes, sizes)]
        for axis, size, factor in zip(axes, sizes, factors):
            kept = min(factors) if policy == "not_larger" else max(factors) if policy == "not_smaller" else None
            scales[axis] = factor if kept is None else kept
            shape[axis] = int(size) if kept is None else math.floor(kept * x.type.shape[axis] + 0.5)
    if x.type.dtype.is_integer and _mode(n) != "nearest":            # interpolated as floats, and cut back
        return n.foreign()
    if tuple(shape) == x.type.shape and all(s == 1 for s in scales):
        return x
    return n.emit("resize", x, shape=tuple(shape), scales=tuple(scales), mode=_mode(n), coordinates=coordinates, nearest=n.attr("nearest_mode"),
                  cubic_a=n.attr("cubic_coeff_a"), exclude_outside=n.flag("exclude_outside"), extrapolation=n.attr("extrapolation_value"))
