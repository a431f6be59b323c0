"""Writers of pooling, local response normalization, and pooling of regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.ir.graph import Node
from pelton.ir.types import F32, F64

from ..blocks import Operations, SsaValue
from ..registry import summed_as, writes
from .indices import counted, from_start, take


def _sides(x: SsaValue, node: Node) -> list[tuple[int, int]]:
    """Returns the padding of each spatial axis, with which exactly as many windows fit as the output has."""
    a, sides = node.attrs, []
    space = len(a["kernel"])
    for i, (n, k, stride, dilation, out) in enumerate(
        zip(x.shape[2:], a["kernel"], a["strides"], a["dilations"], node.outputs[0].type.shape[2:])
    ):
        before, after = a["pads"][i], a["pads"][space + i]
        reach = dilation * (k - 1) + 1
        if (n + before + after - reach) // stride + 1 != out:
            after = (out - 1) * stride + reach - before - n
        sides.append((before, after))
    return sides


def _pool(s: Operations, node: Node, x: SsaValue, kind: str, start: float) -> SsaValue:
    a = node.attrs
    window, strides, dilations = ((1, 1, *a[k]) for k in ("kernel", "strides", "dilations"))
    return s.reduce_window(kind, x, start, window, strides, dilations, [(0, 0), (0, 0), *_sides(x, node)])


@writes("max_pool")
def max_pool(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    return _pool(s, node, x, "maximum", x.dtype.lowest)


@writes("average_pool")
def average_pool(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    """Writes sums of windows, divided by the numbers of their elements."""
    total = _pool(s, node, s.convert(x, summed_as(x.dtype)), "add", 0)
    count = s.constant(_counts(x.shape[2:], node), total.dtype)
    return s.convert(s.divide(total, s.broadcast(count, total.shape)), x.dtype)


def _counts(space: Sequence[int], node: Node) -> np.ndarray:
    """Counts the elements that each window's mean is of."""
    a, counts = node.attrs, np.ones((1, 1))
    for axis, (n, k, stride, dilation, out) in enumerate(
        zip(space, a["kernel"], a["strides"], a["dilations"], node.outputs[0].type.shape[2:])
    ):
        before, after = a["pads"][axis], a["pads"][len(space) + axis]
        low, high = (-before, n + after) if a["count_include_pad"] else (0, n)
        at = np.arange(out)[:, None] * stride - before + np.arange(k) * dilation
        counts = counts[..., None] * ((at >= low) & (at < high)).sum(1)
    return counts


@writes("lrn")
def lrn(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    size, alpha, beta, bias = (node.attrs[k] for k in ("size", "alpha", "beta", "bias"))
    wide, ones = s.convert(x, summed_as(x.dtype)), [1] * len(x.shape)
    before = (size - 1) // 2
    sides = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (len(x.shape) - 2)]
    window = [1, size, *ones[2:]]
    total = s.reduce_window("add", s.multiply(wide, wide), 0, window, ones, ones, sides)
    base = s.add(s.multiply(total, alpha / size), bias)
    return s.convert(s.divide(wide, s.binary("power", base, beta)), x.dtype)


@writes("max_roi_pool")
def max_roi_pool(s: Operations, node: Node, x: SsaValue, rois: SsaValue, batch: SsaValue) -> SsaValue:
    """Writes maxima of the columns of each bin, then of its rows, with the others masked."""
    a, within = node.attrs, F64 if x.dtype is F64 else F32
    corners = s.multiply(s.convert(rois, within), a["scale"])
    lowest, touched = x.dtype.lowest, list[tuple[SsaValue, int]]()
    y = take(s, x, from_start(s, counted(s, batch), x.shape[0]), 0)  # [roi, channel, row, column]
    for axis, bins in ((3, a["width"]), (2, a["height"])):
        begin, end = (s.slice(corners, 1, k, k + 1) for k in (3 - axis, 5 - axis))
        there = _bins(s, _rounded(s, begin), _rounded(s, end), bins, x.shape[axis])  # [roi, bin, element]
        wide = (*y.shape[:axis], bins, *y.shape[axis:])
        spread = s.spread(y, wide, [i for i in range(len(wide)) if i != axis])
        held = s.select(s.spread(there, wide, [0, axis, axis + 1]), spread, lowest)
        y = s.reduce("maximum", held, [axis + 1], lowest)
        touched.append((s.reduce("or", there, [2], False), axis))
    for some, axis in touched:
        y = s.select(s.spread(some, y.shape, [0, axis]), y, 0)
    return y


def _rounded(s: Operations, x: SsaValue) -> SsaValue:
    """Rounds halves away from zero."""
    return s.multiply(s.unary("floor", s.add(s.unary("abs", x), 0.5)), s.unary("sign", x))


def _bins(s: Operations, begin: SsaValue, end: SsaValue, bins: int, size: int) -> SsaValue:
    """Returns the mask [roi, bin, element] of the elements of an axis that the bins of each region touch."""
    long = s.binary("maximum", s.add(s.subtract(end, begin), 1.0), 1.0)
    steps = s.constant(np.arange(bins + 1, dtype=np.float64).reshape(1, -1).astype(begin.dtype.numpy))
    edges = s.divide(s.multiply(steps, long), float(bins))  # [roi, bin + 1], rounded once
    low = s.add(begin, s.unary("floor", s.slice(edges, 1, 0, bins)))
    high = s.add(begin, s.unary("ceil", s.slice(edges, 1, 1, bins + 1)))
    shape = (begin.shape[0], bins, size)
    place = s.iota(shape, 2, begin.dtype)
    above, below = s.spread(low, shape, [0, 1]), s.spread(high, shape, [0, 1])
    return s.binary("and", s.compare("GE", place, above), s.compare("LT", place, below))
