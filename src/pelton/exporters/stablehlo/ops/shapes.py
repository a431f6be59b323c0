"""Writers of ops that arrange elements."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Node
from pelton.ir.types import I32, I64

from ..blocks import Operations, SsaValue
from ..casts import cast
from ..registry import writes
from .indices import take

PARTS = 16  # runs of indices up to which slices are written instead of a gather


@writes("reshape")
def reshape(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    return s.reshape(x, node.attrs["shape"])


@writes("transpose")
def transpose(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    return s.transpose(x, node.attrs["perm"])


@writes("concat")
def concat(s: Operations, node: Node, *xs: SsaValue) -> SsaValue:
    return s.concatenate(xs, node.attrs["axis"])


@writes("slice")
def slice_(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    """Writes slices with positive steps, of reversed axes for negative ones."""
    a = node.attrs
    for start, end, axis, step in zip(a["starts"], a["ends"], a["axes"], a["steps"]):
        n = x.shape[axis]
        if step < 0:
            x, start, end = s.reverse(x, [axis]), n - 1 - start, n - 1 - end
        if end <= start:
            start = end = 0
        x = s.slice(x, axis, start, end, abs(step))
    return x


@writes("expand")
def expand(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    return s.broadcast(x, node.attrs["shape"])


@writes("tile")
def tile(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    repeats = node.attrs["repeats"]
    if all(r == 1 for r in repeats):
        return x
    apart = [n for pair in zip(repeats, x.shape) for n in pair]
    wide = s.spread(x, apart, range(1, len(apart), 2))
    return s.reshape(wide, [r * n for r, n in zip(repeats, x.shape)])


@writes("pad")
def pad(s: Operations, node: Node, x: SsaValue, value: SsaValue) -> SsaValue:
    pads, mode, rank = node.attrs["pads"], node.attrs["mode"], len(x.shape)
    sides = list(zip(pads[:rank], pads[rank:]))
    if mode == "constant":
        return s.pad(x, value, sides)
    for axis, (before, after) in enumerate(sides):
        kept = np.arange(max(0, -before), x.shape[axis] - max(0, -after))
        around = (max(0, before), max(0, after))
        x = taken(s, x, axis, np.pad(kept, around, mode) if any(around) else kept)
    return x


def taken(s: Operations, x: SsaValue, axis: int, indices: np.ndarray) -> SsaValue:
    """Writes the elements at known indices of an axis: as slices where these are few, else as a gather."""
    n = x.shape[axis]
    if np.array_equal(indices, np.arange(n)):
        return x
    runs = _runs(indices)
    if len(runs) > PARTS:
        return take(s, x, s.constant(indices, I32 if n < 1 << 31 else I64), axis)
    parts = []
    for first, last, step in runs:
        low, high = min(first, last), max(first, last)
        part = s.slice(x, axis, low, high + 1, max(1, abs(step)))
        parts.append(s.reverse(part, [axis]) if step < 0 else part)
    return s.concatenate(parts, axis) if parts else s.slice(x, axis, 0, 0)


def _runs(indices: np.ndarray) -> list[tuple[int, int, int]]:
    """Splits indices into (first, last, step) of arithmetic sequences whose steps are not 0."""
    runs: list[tuple[int, int, int]] = []
    for i in map(int, indices):
        if runs:
            first, last, step = runs[-1]
            if (step == 0 and i != last) or (step and i - last == step):
                runs[-1] = (first, i, step or i - last)
                continue
        runs.append((i, i, 0))
    return runs


@writes("trilu")
def trilu(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    rows, columns = x.shape[-2:]
    k, upper = node.attrs["k"], node.attrs["upper"]
    below = s.subtract(s.iota((rows, columns), 1, I64), s.iota((rows, columns), 0, I64))
    return s.select(s.compare("GE" if upper else "LE", below, k), x, 0)


@writes("bit_cast")
def bit_cast(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    to = node.outputs[0].type
    if x.dtype is to.dtype:
        return x
    if "bool" in (x.dtype.value, to.dtype.value):  # whose bits StableHLO does not define: a byte of 0 or 1
        return cast(s, x, to.dtype)
    return s.one("bitcast_convert", [x], to)


@writes("sizes")
def sizes(s: Operations, node: Node) -> SsaValue:
    return s.constant(np.array(node.attrs["values"], np.int64).reshape(node.attrs["shape"]))


@writes("iota")
def iota(s: Operations, node: Node) -> SsaValue:
    size, dtype = node.attrs["size"], node.attrs["dtype"]
    if dtype.bits < 32:
        return s.convert(s.iota((size,), 0, I32), dtype)
    return s.iota((size,), 0, dtype)
