"""Max and average pooling over any number of spatial axes."""
from __future__ import annotations

import math

import numpy as np

from pelton.ir.types import TensorType

from .conv import Ints, check_window, pad_space, taps, window_sizes
from .op import expect, structured

_WINDOWS = (
    ("f32[2, 3, 11, 13]", dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))),
    ("f32[1, 58, 7, 7]", dict(kernel=(7, 7), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))),
    ("f32[1, 58, 8, 9]", dict(kernel=(2, 3), strides=(2, 1), pads=(0, 1, 1, 0), dilations=(1, 1))),
    ("f32[1, 5, 12, 12]", dict(kernel=(3, 3), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), ceil_mode=True)),
    ("f32[1, 3, 10, 9]", dict(kernel=(3, 2), strides=(3, 3), pads=(1, 0, 1, 1), dilations=(1, 2), ceil_mode=True)),
    ("f32[2, 5, 31]", dict(kernel=(4,), strides=(3,), pads=(2, 1), dilations=(2,))),
    ("f32[1, 3, 5, 6, 7]", dict(kernel=(2, 3, 2), strides=(1, 2, 2), pads=(0, 1, 1, 1, 1, 0), dilations=(1, 1, 1))))


def _infer(x: TensorType, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool) -> TensorType:
    check_window(x, kernel, strides, pads, dilations)
    return x.with_shape((*x.shape[:2], *window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)))


def _flops(x: TensorType, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False, count_include_pad: bool = False) -> int:
    return _infer(x, kernel, strides, pads, dilations, ceil_mode).size * math.prod(kernel)


def _pad_to_windows(x: np.ndarray, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, sizes: Ints, value) -> np.ndarray:
    """x padded as asked, and behind that as far as the last window of ceil_mode reaches."""
    spatial = len(kernel)
    reach = [(n - 1) * s + (k - 1) * d + 1 - pads[i] - x.shape[2 + i] for i, (n, s, k, d) in enumerate(zip(sizes, strides, kernel, dilations))]
    return pad_space(x, (*pads[:spatial], *map(max, pads[spatial:], reach)), value)


@structured("MaxPool", examples=(*_WINDOWS, ("u8[1, 3, 9, 9]", dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1)))))
class max_pool:
    """The largest element of each window; padding is never the largest."""

    def infer(x: TensorType, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False) -> TensorType:
        return _infer(x, kernel, strides, pads, dilations, ceil_mode)

    def reference(x, *, kernel, strides, pads, dilations, ceil_mode=False):
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        x = _pad_to_windows(x, kernel, strides, pads, dilations, sizes, lowest)
        y = np.full((*x.shape[:2], *sizes), lowest, x.dtype)
        for _, window in taps(kernel, strides, dilations, sizes):
            np.maximum(y, x[window], out=y)
        return y

    flops = _flops


@structured("AveragePool", examples=(*_WINDOWS, *((*types, dict(attrs, count_include_pad=True)) for *types, attrs in _WINDOWS)))
class average_pool:
    """The mean of each window; `count_include_pad` counts the padding asked for as zeros, what ceil_mode adds never counts."""

    def infer(x: TensorType, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False,
              count_include_pad: bool = False) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        return _infer(x, kernel, strides, pads, dilations, ceil_mode)

    def reference(x, *, kernel, strides, pads, dilations, ceil_mode=False, count_include_pad=False):
        spatial = len(kernel)
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations, ceil_mode)
        padded = _pad_to_windows(x, kernel, strides, pads, dilations, sizes, 0)
        counted = np.zeros((1, 1, *padded.shape[2:]), x.dtype)
        inside = (..., *(slice(0, begin + n + end) if count_include_pad else slice(begin, begin + n)
                         for begin, n, end in zip(pads[:spatial], x.shape[2:], pads[spatial:])))
        counted[inside] = 1
        total, count = np.zeros((*x.shape[:2], *sizes), x.dtype), np.zeros((1, 1, *sizes), x.dtype)
        for _, window in taps(kernel, strides, dilations, sizes):
            total += padded[window]
            count += counted[window]
        return total / count

    flops = _flops
