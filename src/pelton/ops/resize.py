"""Resizing by interpolation: nearest, linear and cubic along each axis, with ONNX's coordinate rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I64, DType, TensorType

from .index import gather
from .logic import equal
from .math import abs_, add, cast, ceil, div, floor, maximum, minimum, mul, sub, where
from .op import TermLike, expect, structured
from .reduce import reduce_sum
from .sample import at_once, blend, curve, number, within
from .shape import expand as spread
from .shape import reshape
from .sizes import iota

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_HOW = dict(
    mode="nearest",
    coordinates="half_pixel",
    nearest="round_prefer_floor",
    cubic_a=-0.75,
    exclude_outside=False,
    antialias=False,
)
_ROUNDINGS: dict[str, Callable] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def source_coordinates(
    size: int, out: int, scale: float, coordinates: str, crop: tuple[float, float] = (0.0, 1.0), dtype: DType = F64
) -> np.ndarray:
    """Returns the coordinate on the input's axis of each output element; a scale of 0 is out / size.

    crop: the part of the axis that tf_crop_and_resize resizes. dtype: the type of the computation.
    """
    scale = float(np.asarray(scale or out / size, dtype.numpy))
    at = np.arange(out, dtype=dtype.numpy)
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "align_corners":
        # not rounded, so that the last element may be before the corner
        whole = scale * size
        return at * (size - 1) / (whole - 1) if out > 1 else np.zeros(out)
    if coordinates == "tf_crop_and_resize":
        start, end = crop
        steps = at / (out - 1) if out > 1 else np.full(1, 0.5)
        return (start + steps * (end - start)) * (size - 1)
    if coordinates == "pytorch_half_pixel" and out == 1:
        return np.zeros(1)
    if coordinates == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    centred = (at + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        return centred + size / 2 * (1 - out / (scale * size))
    return centred


def _precision(mode: str, scale: float) -> DType:
    """Returns the type for coordinates: f32 where an explicit scale makes them round to one element or the next.

    This follows ONNX Runtime and the onnx package: 3 / 0.6 is 5 then, although 0.6 in f32 is larger than 0.6.
    """
    return F32 if mode == "nearest" and scale else F64


def _linear(t: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(t), 0)


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Evaluates the cubic kernel of Keys (1981)."""
    t = np.abs(t)
    return np.where(
        t <= 1, ((a + 2) * t - (a + 3)) * t * t + 1, np.where(t < 2, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a, 0.0)
    )


def _taps(
    size: int, out: int, scale: float, axis: int, rank: int, roi: tuple[float, ...], **how
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Returns the taps of one axis; None if it is unchanged."""
    crop = (roi[axis], roi[rank + axis]) if roi else (0.0, 1.0)
    if size == out and scale in (0, 1) and crop == (0.0, 1.0):
        return None
    return axis_taps(size, out, scale, crop=crop, **how)


def _outside(shape: tuple[int, ...], to: tuple[int, ...], roi: tuple[float, ...]) -> np.ndarray:
    """Returns the mask of output elements outside of the input, as an array that broadcasts."""
    mask = np.zeros((1,) * len(shape), bool)
    for axis, (size, out) in enumerate(zip(shape, to)):
        x = source_coordinates(size, out, 0.0, "tf_crop_and_resize", (roi[axis], roi[len(shape) + axis]))
        beyond = (x < 0) | (x > size - 1)
        if beyond.any():
            mask = mask | beyond.reshape(-1, *[1] * (len(shape) - 1 - axis))
    return mask


def axis_taps(
    size: int,
    out: int,
    scale: float,
    *,
    mode: str,
    coordinates: str,
    nearest: str,
    cubic_a: float,
    exclude_outside: bool,
    antialias: bool = False,
    crop: tuple[float, float] = (0.0, 1.0),
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (input indices, weights) per tap: Y[o] = Σ weights[o] · X[indices[o]] along one axis.

    Antialiasing widens the window by the factor by which the axis shrinks.
    """
    x = source_coordinates(size, out, scale, coordinates, crop, _precision(mode, scale))
    if mode == "nearest":
        return [(np.clip(_ROUNDINGS[nearest](x), 0, size - 1).astype(np.int64), np.ones(out))]
    first = np.floor(x)
    # elements of the input per unit of the kernel
    wide = min(scale or out / size, 1.0) if antialias else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / wide))
    places = [first + k for k in range(1 - reach, 1 + reach)]
    weights = [_linear(wide * (p - x)) if mode == "linear" else _cubic(wide * (p - x), cubic_a) for p in places]
    if exclude_outside:
        weights = [np.where((p >= 0) & (p < size), w, 0.0) for p, w in zip(places, weights)]
    if exclude_outside or wide != 1:
        total = sum(weights)
        # 0 if no tap is inside
        weights = [w / np.where(total == 0, 1.0, total) for w in weights]
    return [(np.clip(p, 0, size - 1).astype(np.int64), w) for p, w in zip(places, weights)]


def repeated(scale: float, how: Mapping[str, Any]) -> bool:
    """True if the nearest neighbors repeat each element equally often."""
    even = (how["coordinates"], how["nearest"]) == ("asymmetric", "floor") or (
        how["coordinates"] in ("half_pixel", "pytorch_half_pixel") and how["nearest"].startswith("round")
    )
    return how["mode"] == "nearest" and even and scale >= 1 and scale == int(scale)


def _repeat(x: TermLike, shape: tuple[Size, ...], axis: int, times: int) -> TermLike:
    split = reshape(x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    return reshape(
        spread(split, shape=(*shape[: axis + 1], times, *shape[axis + 1 :])),
        shape=(*shape[:axis], shape[axis] * times, *shape[axis + 1 :]),
    )


def _open_coordinates(size: Size, out: Size, scale: float, coordinates: str, dtype: DType) -> TermLike:
    """Builds `source_coordinates` as a program, for dynamic dimensions."""
    at, old, new = cast(iota(size=out), to=dtype), number(size, dtype), number(out, dtype)
    by: TermLike = scale or at_once(div, new, old)
    if coordinates == "asymmetric":
        return div(at, by)
    if coordinates == "align_corners":
        whole = at_once(mul, old, scale) if scale else new
        return div(mul(at, at_once(sub, old, 1.0)), at_once(maximum, at_once(sub, whole, 1.0), 1e-9))
    if coordinates == "tf_half_pixel_for_nn":
        return div(add(at, 0.5), by)
    centred = sub(div(add(at, 0.5), by), 0.5)
    if coordinates == "pytorch_half_pixel":
        # 0 where there is one element
        return mul(centred, at_once(minimum, at_once(sub, new, 1.0), 1.0))
    if coordinates == "half_pixel_symmetric" and scale:
        rest = at_once(sub, 1.0, at_once(div, new, at_once(mul, old, scale)))
        return add(centred, at_once(mul, at_once(mul, old, 0.5), rest))
    return centred


def open_taps(
    size: Size,
    out: Size,
    scale: float,
    *,
    mode: str,
    coordinates: str,
    nearest: str,
    cubic_a: float,
    exclude_outside: bool,
    antialias: bool,
) -> tuple[TermLike, TermLike]:
    """Builds `axis_taps` as a program: indices and weights [out, tap], or only indices [out] for mode nearest."""
    dtype = _precision(mode, scale)
    x, last = _open_coordinates(size, out, scale, coordinates, dtype), at_once(sub, number(size, dtype), 1.0)
    if mode == "nearest":
        indices = {
            "round_prefer_floor": lambda: ceil(sub(x, 0.5)),
            "round_prefer_ceil": lambda: floor(add(x, 0.5)),
            "floor": lambda: floor(x),
            "ceil": lambda: ceil(x),
        }[nearest]()
        return cast(minimum(maximum(indices, 0.0), last), to=I64), None
    share = min(scale, 1.0) if antialias else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / share))
    x = reshape(x, shape=(out, 1))
    places = add(floor(x), np.arange(1.0 - reach, 1.0 + reach))
    weights = curve(mul(abs_(sub(places, x)), share), mode, cubic_a)
    if exclude_outside:
        weights = where(within(places, 0.0, last), weights, 0.0)
    if exclude_outside or share != 1:
        total = reduce_sum(weights, axes=(1,), keepdims=True)
        weights = div(weights, where(equal(total, 0.0), 1.0, total))
    return cast(minimum(maximum(places, 0.0), last), to=I64), weights


@structured(
    "Resize",
    examples=(
        (
            "f32[1, 3, 5, 7]",
            dict(
                shape=(1, 3, 10, 14),
                scales=(1.0, 1.0, 2.0, 2.0),
                mode="nearest",
                coordinates="asymmetric",
                nearest="floor",
            ),
        ),
        (
            "f32[1, 58, 4, 4]",
            dict(shape=(1, 58, 8, 8), scales=(1.0, 1.0, 2.0, 2.0), mode="linear", coordinates="half_pixel"),
        ),
        (
            "f32[2, 3, 7, 5]",
            dict(shape=(2, 3, 13, 11), scales=(1.0, 1.0, 13 / 7, 11 / 5), mode="linear", coordinates="align_corners"),
        ),
        (
            "f32[2, 3, 9, 8]",
            dict(shape=(2, 3, 5, 3), scales=(1.0, 1.0, 0.6, 0.4), mode="linear", coordinates="pytorch_half_pixel"),
        ),
        (
            "f32[1, 2, 5, 6]",
            dict(shape=(1, 2, 9, 4), scales=(1.0, 1.0, 1.8125, 0.7), mode="cubic", coordinates="half_pixel"),
        ),
        (
            "f32[1, 2, 5, 6]",
            dict(
                shape=(1, 2, 10, 3),
                scales=(1.0, 1.0, 2.0, 0.5),
                mode="cubic",
                coordinates="asymmetric",
                cubic_a=-0.5,
                exclude_outside=True,
            ),
        ),
        (
            "f32[1, 2, 5, 7]",
            dict(
                shape=(1, 2, 8, 3),
                scales=(1.0, 1.0, 1.6, 3 / 7),
                mode="nearest",
                coordinates="half_pixel",
                nearest="round_prefer_ceil",
            ),
        ),
        (
            "f32[1, 2, 5, 6]",
            dict(shape=(1, 2, 8, 4), scales=(1.0, 1.0, 1.6, 0.8), mode="linear", coordinates="half_pixel_symmetric"),
        ),
        ("f32[1, 2, 3, 4, 5]", dict(shape=(1, 2, 6, 3, 5), scales=(1.0, 1.0, 2.0, 0.75, 1.0), mode="linear")),
        ("f32[1, 2, 5, 4]", dict(shape=(1, 2, 8, 4), scales=(1.0, 1.0, 0.0, 0.0), mode="linear")),
        ("f32[1, 3, 9, 17]", dict(shape=(1, 3, 4, 5), scales=(1.0, 1.0, 0.5, 0.3), mode="linear", antialias=True)),
        (
            "f32[1, 3, 9, 17]",
            dict(shape=(1, 2, 4, 5), scales=(1.0, 0.0, 0.0, 0.0), mode="cubic", antialias=True, exclude_outside=True),
        ),
        (
            "f32[2, 2, 5, 6]",
            dict(
                shape=(2, 2, 4, 3),
                scales=(1.0, 1.0, 0.8, 0.5),
                mode="linear",
                coordinates="tf_crop_and_resize",
                extrapolation=7.0,
                roi=(0.0, 0.0, 0.2, -0.1, 1.0, 1.0, 1.2, 0.6),
            ),
        ),
        (
            "f32[5, 6]",
            dict(
                shape=(4, 1),
                scales=(0.0, 0.0),
                mode="nearest",
                coordinates="tf_crop_and_resize",
                roi=(0.2, 0.0, 0.6, 0.8),
            ),
        ),
        ("i32[5, 6]", dict(shape=(4, 9), scales=(0.8, 1.5), mode="nearest")),
    ),
)
class resize:
    """Y[o] = X interpolated at o's coordinate on the input, axis by axis; X is extended by its edges.

    A scale of 0 is out / size. roi: for tf_crop_and_resize, the starts and then the ends of the part of each axis that
    is resized; elements outside of X are `extrapolation`.
    """

    def infer(
        x: TensorType,
        *,
        shape: tuple[int, ...],
        scales: tuple[float, ...],
        mode: str = "nearest",
        coordinates: str = "half_pixel",
        nearest: str = "round_prefer_floor",
        cubic_a: float = -0.75,
        exclude_outside: bool = False,
        extrapolation: float = 0.0,
        antialias: bool = False,
        roi: tuple[float, ...] = (),
    ) -> TensorType:
        expect(
            len(shape) == len(scales) == x.rank,
            f"needs a size and a scale per axis ({x.rank}), got {list(shape)} and {list(scales)}",
        )
        expect(min(scales, default=1) >= 0, f"needs positive scales (or 0: those of the sizes), got {list(scales)}")
        expect(mode in ("nearest", "linear", "cubic"), f"needs mode nearest, linear or cubic, got {mode!r}")
        expect(coordinates in _COORDINATES, f"needs coordinates {', '.join(_COORDINATES)}, got {coordinates!r}")
        expect(nearest in _ROUNDINGS, f"needs nearest {', '.join(_ROUNDINGS)}, got {nearest!r}")
        expect(all(n > 0 for n in x.shape) or 0 in shape, "has nothing to interpolate")
        expect(
            len(roi) == 2 * x.rank * (coordinates == "tf_crop_and_resize"),
            f"needs a roi of {2 * x.rank} numbers for tf_crop_and_resize, else none, got {list(roi)}",
        )
        expect(x.dtype.is_float or mode == "nearest", "needs floating point to interpolate")
        return x.with_shape(shape)

    def reference(x, *, shape, scales, extrapolation=0.0, roi=(), **how):
        how = {**_HOW, **how}
        if 0 in shape:
            return np.zeros(shape, x.dtype)  # without computing the other axes
        y = x
        for axis, (size, out, scale) in enumerate(zip(x.shape, shape, scales)):
            tables = _taps(size, out, scale, axis, x.ndim, roi, **how)
            along = (-1, *[1] * (x.ndim - 1 - axis))
            if tables is not None and how["mode"] == "nearest":
                y = np.take(y, tables[0][0], axis)
            elif tables is not None:
                y = sum(np.take(y, indices, axis) * weights.reshape(along) for indices, weights in tables)
        y = np.where(_outside(x.shape, shape, roi), extrapolation, y) if roi else y
        return y.astype(x.dtype)

    def expand(x: Value, *, shape, scales, extrapolation=0.0, roi=(), **how) -> TermLike:
        """Gathers or blends axis by axis; for dynamic dimensions, the tables are computed at run time."""
        how, rank = {**_HOW, **how}, x.type.rank
        if 0 in shape:
            return np.zeros(shape, x.type.dtype.numpy)
        y: TermLike = x
        exact = F64 if x.type.dtype is F64 else F32
        for axis, (size, out, scale) in enumerate(zip(x.type.shape, shape, scales)):
            known = is_known(size, out)
            if not known and ((size == out and scale == 1) or repeated(scale, how)):
                y = y if scale == 1 else _repeat(y, (*shape[:axis], *x.type.shape[axis:]), axis, int(scale))
                continue
            if not known and (roi or (how["antialias"] and not scale)):
                return None
            tables: TermLike = (
                _taps(size, out, scale, axis, rank, roi, **how) if known else open_taps(size, out, scale, **how)
            )
            if tables is None:
                continue
            indices, weights = [np.stack([part[i] for part in tables], -1) for i in (0, 1)] if known else tables
            if how["mode"] == "nearest":
                y = gather(y, indices[:, 0] if known else indices, axis=axis)
            else:
                y = blend(y, indices, (weights.astype(exact.numpy) if known else cast(weights, to=exact)), axis=axis)
        outside = _outside(x.type.shape, shape, roi) if roi else np.zeros(())
        if outside.any():
            return where(outside, np.asarray(extrapolation, x.type.dtype.numpy), y)
        return None if y is x else y

    def flops(
        x: TensorType, *, shape: tuple[int, ...], scales: tuple[float, ...], mode: str = "nearest", **others
    ) -> int:
        resized = sum(n != m for n, m in zip(x.shape, shape))
        return x.with_shape(shape).size * {"nearest": 0, "linear": 3, "cubic": 7}[mode] * resized
