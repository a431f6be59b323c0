"""Writers of resizing and sampling of images; forms that ONNX lacks are expanded."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.types import F32, F64, I64
from pelton.ops.resize import axis_taps

from ..writing import Writing, writes


def _scaled(size: Size, scale: float) -> Size:
    over, under = scale.as_integer_ratio()
    return size * over // under


def _by_scales(w: Writing, how: dict) -> list[float] | None:
    """Returns float32 scales for the same sizes and, for nearest neighbors, the same elements; else None."""
    x, a = w.type(0).shape, w.attrs
    scales = [float(np.float32(s)) for s in a["scales"]]
    for size, out, scale, exact in zip(x, a["shape"], scales, a["scales"]):
        if not scale or not math.isfinite(scale) or _scaled(size, scale) != out:
            return None
        if scale == exact:
            continue
        if not is_known(size, out) or w.type(0).dtype is F64:
            return None
        if (
            a["mode"] == "nearest"
            and (axis_taps(size, out, scale, **how)[0][0] != axis_taps(size, out, exact, **how)[0][0]).any()
        ):
            return None
    return scales


@writes("resize")
def resize(w: Writing) -> str:
    a, x = w.attrs, w.type(0).shape
    how = {k: a[k] for k in ("mode", "coordinates", "nearest", "cubic_a", "exclude_outside", "antialias")}
    if a["coordinates"] == "tf_half_pixel_for_nn" or not w.result.known and a["roi"]:
        raise w.refuse(f"Resize does not have coordinates {a['coordinates']!r} here")
    if w.type(0).dtype is F64 and any(float(np.float32(r)) != r for r in a["roi"]):
        raise w.refuse("Resize keeps its roi as float32")
    by_sizes = all(
        s == 0 or (s == 1 if d == out else is_known(d, out) and d and s == out / d)
        for d, out, s in zip(x, a["shape"], a["scales"])
    )
    scales = None if by_sizes else _by_scales(w, how)
    if not by_sizes and scales is None:
        raise w.refuse("Resize stores scales as float32, which would select other elements")
    return w.emit(
        "Resize",
        w.input(0),
        w.constant(a["roi"], F32) if a["roi"] else "",
        w.constant(scales, F32) if scales is not None else "",
        "" if scales is not None else w.ints(a["shape"]),
        gives=w.result.dtype,
        mode=a["mode"],
        coordinate_transformation_mode=a["coordinates"],
        nearest_mode=a["nearest"] if a["mode"] == "nearest" else None,
        cubic_coeff_a=a["cubic_a"] if a["mode"] == "cubic" else None,
        exclude_outside=1 if a["exclude_outside"] else None,
        antialias=1 if a["antialias"] else None,
        extrapolation_value=a["extrapolation"] or None,
    )


_OLD = {"linear": "bilinear", "cubic": "bicubic"}  # names before opset 20


@writes("grid_sample")
def grid_sample(w: Writing) -> str:
    a, rank = w.attrs, w.type(0).rank
    if rank not in (4, 5) or rank == 5 and a["mode"] == "cubic" or w.type(0).dtype is not w.type(1).dtype:
        raise w.refuse("GridSample needs two or three axes of space, and a grid of the image's type")
    mode = a["mode"] if w.model.opset >= 20 else _OLD.get(a["mode"], a["mode"])
    if w.model.opset < 20 and rank != 4:
        raise w.refuse("GridSample needs two axes of space before opset 20")
    return w.emit(
        "GridSample",
        *w.inputs,
        mode=mode,
        padding_mode=a["padding"],
        align_corners=1 if a["align_corners"] else None,
    )


@writes("roi_align")
def roi_align(w: Writing) -> str:
    a = w.attrs
    if w.type(0).dtype is not w.type(1).dtype:
        raise w.refuse("RoiAlign needs regions of the image's type")
    return w.emit(
        "RoiAlign",
        *w.inputs[:2],
        w.cast(w.input(2), I64),
        mode=a["mode"],
        output_height=a["height"],
        output_width=a["width"],
        sampling_ratio=a["samples"],
        spatial_scale=float(a["scale"]),
        coordinate_transformation_mode="half_pixel" if a["half_pixel"] else "output_half_pixel",
    )
