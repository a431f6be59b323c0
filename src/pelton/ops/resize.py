"""Resizing by interpolation: nearest, linear and cubic along each axis, with ONNX's coordinate rules."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, structured

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "align_corners", "asymmetric")
_ROUNDINGS: dict[str, Callable] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5), "floor": np.floor, "ceil": np.ceil}


def source_coordinates(size: int, out: int, scale: float, coordinates: str) -> np.ndarray:
    """Where on the input's axis each output element lies; a scale of 0 is out / size."""
    scale = scale or out / size
    at = np.arange(out, dtype=np.float64)
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "align_corners":
        return at * (size - 1) / (out - 1) if out > 1 else np.zeros(1)
    if coordinates == "pytorch_half_pixel" and out == 1:
        return np.zeros(1)
    centred = (at + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        return centred + size / 2 * (1 - out / (scale * size))
    return centred


def axis_taps(size: int, out: int, scale: float, *, mode: str, coordinates: str, nearest: str, cubic_a: float,
              exclude_outside: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """(input indices, weights) per tap: Y[o] = Σ weights[o] · X[indices[o]] along one axis."""
    x = source_coordinates(size, out, scale, coordinates)
    if mode == "nearest":
        return [(np.clip(_ROUNDINGS[nearest](x), 0, size - 1).astype(np.int64), np.ones(out))]
    first = np.floor(x)
    t = x - first
    if mode == "linear":
        weights = [1 - t, t]
    else:
        a = cubic_a
        weights = [((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a, ((a + 2) * t - (a + 3)) * t * t + 1,
                   ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1, ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a]
    places = [first + k for k in ((0, 1) if mode == "linear" else (-1, 0, 1, 2))]
    if exclude_outside:
        weights = [np.where((p >= 0) & (p < size), w, 0.0) for p, w in zip(places, weights)]
        total = sum(weights)
        weights = [w / total for w in weights]
    return [(np.clip(p, 0, size - 1).astype(np.int64), w) for p, w in zip(places, weights)]


@structured("Resize", examples=(
    ("f32[1, 3, 5, 7]", dict(shape=(1, 3, 10, 14), scales=(1.0, 1.0, 2.0, 2.0), mode="nearest", coordinates="asymmetric", nearest="floor")),
    ("f32[1, 58, 4, 4]", dict(shape=(1, 58, 8, 8), scales=(1.0, 1.0, 2.0, 2.0), mode="linear", coordinates="half_pixel")),
    ("f32[2, 3, 7, 5]", dict(shape=(2, 3, 13, 11), scales=(1.0, 1.0, 13 / 7, 11 / 5), mode="linear", coordinates="align_corners")),
    ("f32[2, 3, 9, 8]", dict(shape=(2, 3, 5, 3), scales=(1.0, 1.0, 0.6, 0.4), mode="linear", coordinates="pytorch_half_pixel")),
    ("f32[1, 2, 5, 6]", dict(shape=(1, 2, 9, 4), scales=(1.0, 1.0, 1.8125, 0.7), mode="cubic", coordinates="half_pixel")),
    ("f32[1, 2, 5, 6]", dict(shape=(1, 2, 10, 3), scales=(1.0, 1.0, 2.0, 0.5), mode="cubic", coordinates="asymmetric", cubic_a=-0.5, exclude_outside=True)),
    ("f32[1, 2, 5, 7]", dict(shape=(1, 2, 8, 3), scales=(1.0, 1.0, 1.6, 3 / 7), mode="nearest", coordinates="half_pixel", nearest="round_prefer_ceil")),
    ("f32[1, 2, 5, 6]", dict(shape=(1, 2, 8, 4), scales=(1.0, 1.0, 1.6, 0.8), mode="linear", coordinates="half_pixel_symmetric")),
    ("f32[1, 2, 3, 4, 5]", dict(shape=(1, 2, 6, 3, 5), scales=(1.0, 1.0, 2.0, 0.75, 1.0), mode="linear")),
    ("f32[1, 2, 5, 4]", dict(shape=(1, 2, 8, 4), scales=(1.0, 1.0, 0.0, 0.0), mode="linear"))))
class resize:
    """Y[o] = X interpolated at o's coordinate on the input, one axis after the other; beyond the edge X goes on as at the edge. A scale of 0 is out / size."""

    def infer(x: TensorType, *, shape: tuple[int, ...], scales: tuple[float, ...], mode: str = "nearest", coordinates: str = "half_pixel",
              nearest: str = "round_prefer_floor", cubic_a: float = -0.75, exclude_outside: bool = False, extrapolation: float = 0.0) -> TensorType:
        expect(len(shape) == len(scales) == x.rank, f"needs a size and a scale per axis ({x.rank}), got {list(shape)} and {list(scales)}")
        expect(min(scales, default=1) >= 0, f"needs positive scales (or 0: those of the sizes), got {list(scales)}")
        expect(mode in ("nearest", "linear", "cubic"), f"needs mode nearest, linear or cubic, got {mode!r}")
        expect(coordinates in _COORDINATES, f"needs coordinates {', '.join(_COORDINATES)}, got {coordinates!r}")
        expect(nearest in _ROUNDINGS, f"needs nearest {', '.join(_ROUNDINGS)}, got {nearest!r}")
        expect(all(n > 0 for n in x.shape), "has nothing to interpolate")
        return x.with_shape(shape)

    def reference(x, *, shape, scales, mode="nearest", coordinates="half_pixel", nearest="round_prefer_floor", cubic_a=-0.75,
                  exclude_outside=False, extrapolation=0.0):
        y = x
        for axis, (size, out, scale) in enumerate(zip(x.shape, shape, scales)):
            if size == out and scale in (0, 1):
                continue
            found = axis_taps(size, out, scale, mode=mode, coordinates=coordinates, nearest=nearest, cubic_a=cubic_a, exclude_outside=exclude_outside)
            along = (-1, *[1] * (x.ndim - 1 - axis))
            if mode == "nearest":
                y = np.take(y, found[0][0], axis)
            else:
                y = sum(np.take(y, indices, axis) * weights.reshape(along) for indices, weights in found)
        return y.astype(x.dtype)

    def flops(x: TensorType, *, shape: tuple[int, ...], scales: tuple[float, ...], mode: str = "nearest", **others) -> int:
        resized = sum(n != m for n, m in zip(x.shape, shape))
        return x.with_shape(shape).size * {"nearest": 0, "linear": 3, "cubic": 7}[mode] * resized
