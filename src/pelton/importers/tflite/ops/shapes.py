"""Operators that move elements: reshapes, transposes, joins, slices, pads; and shapes as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Dim, Size, equal, is_known, maximum, minimum
from pelton.ir.imported import OnData
from pelton.ir.types import I32, broadcast_shapes
from pelton.network import NetworkTensor
from pelton.ops.shape import length

from ..held import to_first
from ..node import MAX_FILLED, Given, TFLiteReading, reads
from .images import stored_zero


@reads("RESHAPE")
def reshape(n: TFLiteReading) -> Given:
    shape: Sequence[Size]
    if n.has(1) and n.given(1).rank == 1:
        shape = n.integers(1, "shape")
    else:
        shape = tuple(map(int, n.option("new_shape"))) or n.outputs[0].shape
    return n.net.reshape(n.moved(0), shape)


@reads("SQUEEZE")
def squeeze(n: TFLiteReading) -> Given:
    x = n.moved(0)
    axes = n.axes(map(int, n.option("axes")), x.rank)
    axes = axes or tuple(i for i, d in enumerate(x.shape) if is_known(d) and d == 1)
    if not all(equal(x.shape[a], 1) for a in axes):
        raise n.refuse(f"removes axes {list(axes)} of {x!r}, not all of size 1")
    return n.net.squeeze(x, axes)


@reads("EXPAND_DIMS")
def expand_dims(n: TFLiteReading) -> Given:
    x = n.moved(0)
    return n.net.unsqueeze(x, n.known_axis(1, x.rank + 1))


@reads("TRANSPOSE")
def transpose(n: TFLiteReading) -> Given:
    x, perm = n.given(0), n.known(1, "order")
    if sorted(p % x.rank if x.rank else p for p in perm) != list(range(x.rank)):
        raise n.refuse(f"needs an order of the {x.rank} axes of {x.spec}, got {list(perm)}")
    perm = tuple(p % x.rank for p in perm)
    if n.prefers_first(0):  # in one step
        placed = to_first(x.rank)
        return n.net.transpose(n.moved(0, first=True), tuple(placed.index(p) for p in perm))
    return n.net.transpose(n.moved(0), perm)


@reads("CONCATENATION")
def concatenation(n: TFLiteReading) -> Given:
    if not n.count:
        raise n.refuse("needs inputs")
    rank = n.given(0).rank
    axis, every = n.axis(n.option("axis"), rank), range(n.count)
    first = n.prefers_first(*every)
    parts = [n.moved(i, *every, first=first) for i in every]
    placed = to_first(rank).index(axis) if first else axis
    joined = n.net.concat(parts, axis=placed) if n.count > 1 else parts[0]
    return n.ordered(n.activated(joined), first)


@reads("SPLIT", "SPLIT_V")
def split(n: TFLiteReading) -> tuple[Given, ...]:
    x = n.given(0 if n.op == "SPLIT_V" else 1)
    axis = n.known_axis(2 if n.op == "SPLIT_V" else 0, x.rank)
    size, count = x.shape[axis], len(n.outputs)
    if n.op == "SPLIT":
        if not count or not equal(size % count, 0):
            raise n.refuse(f"cannot split {size} elements into {count} equal parts")
        sizes: list[Size] = [size // count] * count
    else:
        sizes = list(n.integers(1, "sizes"))
        rest = [i for i, d in enumerate(sizes) if is_known(d) and d == -1]
        if len(rest) == 1:
            sizes[rest[0]] = size - sum(d for i, d in enumerate(sizes) if i != rest[0])
    reason = f"cannot split {size} elements into {list(sizes)}, as the file has {count}"
    for part in sizes:
        n.at_least(part, 0, reason)
    if len(sizes) != count or not equal(sum(sizes), size):
        raise n.refuse(reason)
    first = x.is_first and x.rank >= 4
    moves = x.spec.dtype is n.outputs[0].dtype and x.spec.quantization == n.outputs[0].quantization
    real = x.raw(first) if moves else x.real(first)
    parts = n.net.split(real, sizes, to_first(x.rank).index(axis) if first else axis)
    return tuple(n.ordered(p, first) for p in parts)


@reads("PACK")
def pack(n: TFLiteReading) -> Given:
    every = range(n.count)
    parts = [n.moved(i, *every) for i in every]
    axis = n.axis(n.option("axis"), n.given(0).rank + 1)
    return n.net.concat([n.net.unsqueeze(p, axis) for p in parts], axis=axis)


@reads("UNPACK")
def unpack(n: TFLiteReading) -> tuple[Given, ...]:
    x = n.moved(0)
    axis = n.axis(n.option("axis"), x.rank)
    if not equal(x.shape[axis], len(n.outputs)):
        raise n.refuse(f"has {len(n.outputs)} outputs for {x!r}, which has other sizes along axis {axis}")
    return tuple(n.net.squeeze(part, axis) for part in n.net.split(x, len(n.outputs), axis))


@reads("PAD", "PADV2", "MIRROR_PAD")
def pad(n: TFLiteReading) -> Given:
    x, edges = n.given(0), n.integers(1, "padding")
    pairs = list(zip(edges[::2], edges[1::2]))
    reason = f"needs a padding of 0 and more for both ends of {x.rank} axes, got {list(edges)}"
    if len(edges) != 2 * x.rank:
        raise n.refuse(reason)
    for edge in edges:
        n.at_least(edge, 0, reason)
    first = n.prefers_first(0)
    ordered = [pairs[a] for a in to_first(x.rank)] if first else pairs
    moved = n.moved(0, first=first)
    if n.op == "MIRROR_PAD":
        mode = n.option("mode")
        for d, edge in [(d, edge) for d, pair in zip(moved.shape, ordered) for edge in pair if edge != 0]:
            n.at_least(d - (mode == 0), edge, f"mirrors more elements of {moved!r} than there are: {ordered}")
        return n.ordered(
            n.net.pad(moved, ordered, mode="reflect") if mode == 0 else _mirrored(n, moved, ordered), first
        )
    if n.op == "PAD":
        value: Any = stored_zero(n)
    else:
        value = n.given(2).raw() if n.moves(0) else n.input(2)
    return n.ordered(n.net.pad(moved, ordered, value), first)


def _mirrored(n: TFLiteReading, x: NetworkTensor, pairs: Sequence[tuple[Size, Size]]) -> NetworkTensor:
    """Pads x with its edges mirrored, the outermost elements included."""
    for axis, (before, after) in enumerate(pairs):
        if before != 0 or after != 0:
            x = n.net.gather(x, _mirror(n, before, x.shape[axis], after), axis=axis)
    return x


def _mirror(n: TFLiteReading, before: Size, size: Size, after: Size) -> NetworkTensor | np.ndarray:
    """Returns the source indices of a padded axis."""
    if is_known(before, size, after):
        places = [*range(before)[::-1], *range(size), *range(size - after, size)[::-1]]
        return np.asarray(places, np.int64)
    net = n.net
    offset = net.sub(n.numbered(before + size + after), n.scalar(before))
    behind = net.where(net.less(offset, np.int64(0)), net.sub(np.int64(-1), offset), offset)
    return net.minimum(behind, net.sub(n.scalar(2 * size - 1), behind))


@reads("SLICE")
def slice_(n: TFLiteReading) -> Given:
    x, begin, sizes = n.given(0), n.integers(1, "begin"), n.integers(2, "size")
    if not len(begin) == len(sizes) == x.rank:
        raise n.refuse(f"needs a begin and a size for {x.rank} axes, got {list(begin)} and {list(sizes)}")
    ends = [d if is_known(s) and s == -1 else b + s for d, b, s in zip(x.shape, begin, sizes)]
    return _cut(n, begin, ends, [1] * x.rank)


@reads("STRIDED_SLICE")
def strided_slice(n: TFLiteReading) -> Given:
    """Computes x[begin:end:step, …], with bit masks for omitted ends, … and new or single axes."""
    x = n.given(0)
    begin, end, steps = n.integers(1, "begin"), n.integers(2, "end"), n.known(3, "steps")
    masks = {k: n.option(f"{k}_mask") for k in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if not len(begin) == len(end) == len(steps) <= 32 or 0 in steps or masks["ellipsis"] & (masks["ellipsis"] - 1):
        raise n.refuse(f"needs a begin, an end and a step for each axis, got {list(begin)}, {list(end)}, {list(steps)}")

    def has(mask: str, i: int) -> bool:
        return bool(masks[mask] >> i & 1)

    count = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(len(begin)))
    if count > x.rank:
        raise n.refuse(f"cuts {count} axes of {x.spec}")
    parts, gone, new = list[tuple[Size, Size, int]](), list[int](), list[int]()
    for i in range(len(begin)):
        axis = len(parts)
        if has("ellipsis", i):
            parts += [(0, d, 1) for d in x.shape[axis : axis + x.rank - count]]
        elif has("new_axis", i):
            new.append(len(parts) - len(gone) + len(new))
        else:
            size, step = x.shape[axis], steps[i]
            if has("shrink_axis", i):
                at = _at(begin[i], size) if not has("begin", i) else 0
                for high, low in ((at, 0), (size, at + 1)):
                    n.at_least(high, low, f"picks element {begin[i]} of {size}")
                parts.append((at, at + 1, 1))
                gone.append(axis)
            else:
                parts.append(_range(begin[i], end[i], step, size, has("begin", i), has("end", i), n.option("offset")))
    parts += [(0, d, 1) for d in x.shape[len(parts) :]]
    y = _cut(n, *zip(*parts)) if parts else n.moved(0)
    if not gone and not new:
        return y
    plain = n.finished(y, n.outputs[0])
    tensor = n.net.squeeze(plain.raw(), gone) if gone else plain.raw()
    return n.net.unsqueeze(tensor, new) if new else tensor


def _at(index: Size, size: Size) -> Size:
    return index + size if is_known(index) and index < 0 else index


def _range(
    begin: Size, end: Size, step: int, size: Size, from_edge: bool, to_edge: bool, offset: bool
) -> tuple[Size, Size, int]:
    """Returns (start, end, step) with Python's ends; None is an end that `slice` of programs knows."""
    last = begin + end if offset else end
    if is_known(size, begin, end):
        return tuple(slice(None if from_edge else begin, None if to_edge else last, step).indices(size))  # type: ignore
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def clamped(at: Size) -> Size:
        return minimum(maximum(at + size if at < 0 else at, low), high)

    start, stop = (low, high) if step > 0 else (high, low)
    return start if from_edge else clamped(begin), stop if to_edge else clamped(last), step


def _cut(n: TFLiteReading, begin: Sequence[Size], end: Sequence[Size], steps: Sequence[int]) -> Given:
    """Slices x along all axes, in its present order."""
    x, first = n.given(0), n.prefers_first(0)
    for d, b, e in [(d, b, e) for d, b, e, s in zip(x.shape, begin, end, steps) if s > 0 and (b, e) != (0, d)]:
        for high, low in ((b, 0), (d, b), (d, e)):
            n.at_least(high, low, f"cuts from {b} to {e} out of {d} elements")
    cut = [(a, b, e, s) for a, (d, b, e, s) in enumerate(zip(x.shape, begin, end, steps)) if (b, e, s) != (0, d, 1)]
    moved = n.moved(0, first=first)
    if not cut:
        return n.ordered(moved, first)
    axes, starts, ends, by = zip(*cut)
    placed = tuple(to_first(x.rank).index(a) for a in axes) if first else axes
    return n.ordered(n.net.slice(moved, starts=starts, ends=ends, axes=placed, steps=by), first)


@reads("REVERSE_V2")
def reverse(n: TFLiteReading) -> Given:
    x = n.moved(0)
    axes = n.axes(n.known(1, "axes"), x.rank)
    ends, starts = (-1,) * len(axes), tuple(x.shape[a] - 1 for a in axes)
    return n.net.slice(x, starts=starts, ends=ends, axes=axes, steps=ends) if axes else x


@reads("TILE")
def tile(n: TFLiteReading) -> Given:
    x, repeats = n.moved(0), n.integers(1, "repeats")
    reason = f"needs a count of 0 and more for each of {x.rank} axes, got {list(repeats)}"
    if len(repeats) != x.rank:
        raise n.refuse(reason)
    for count in repeats:
        n.at_least(count, 0, reason)
    return n.net.tile(x, repeats=repeats)


@reads("BROADCAST_TO")
def broadcast_to(n: TFLiteReading) -> Given:
    return n.net.expand(n.moved(0), n.integers(1, "shape"))


# --- shapes as data, and tensors filled by shape


@reads("BROADCAST_ARGS")
def broadcast_args(n: TFLiteReading) -> Given:
    """Returns the broadcast shape of two tensors of these shapes."""
    shapes = (n.integers(i, "shape") for i in (0, 1))
    return n.sizes(broadcast_shapes(*shapes), n.given(0).raw().dtype)


@reads("SHAPE")
def shape(n: TFLiteReading) -> Given:
    return n.sizes(n.given(0).shape, n.dtype(n.option("out_type")) if n.option("out_type") else I32)


@reads("RANK")
def rank(n: TFLiteReading) -> Given:
    return np.asarray(n.given(0).rank, np.int32)


@reads("FILL")
def fill(n: TFLiteReading) -> Given:
    sizes, value = n.integers(0, "shape"), n.moved(1)
    few = is_known(*sizes) and 0 <= math.prod(sizes) <= MAX_FILLED
    if few and value.array is not None and value.rank == 0:
        return np.full(sizes, value.array)
    return n.net.expand(value, sizes)


@reads("RANGE")
def range_(n: TFLiteReading) -> Given:
    start, limit, delta = (n.numbers(i, what) for i, what in enumerate(("start", "limit", "delta")))
    if not start.size == limit.size == delta.size == 1:
        raise n.refuse("needs one start, one limit and one delta")
    first, last, step = start.item(), limit.item(), delta.item()
    if not is_known(first, last, step):
        return _range_of_sizes(n, first, last, step)
    if step == 0 or not (abs(last - first) / abs(step) <= MAX_FILLED):
        raise n.refuse(f"from {first} to {last} by {step} has no end, or too many elements")
    return np.arange(first, last, step).astype(start.dtype)


def _range_of_sizes(n: TFLiteReading, first: Any, last: Any, step: Any) -> NetworkTensor:
    """Returns first, first + step, … of integers that depend on dynamic dimensions, before last."""
    whole = all(isinstance(x, Dim) or x == int(x) for x in (first, last, step))
    if isinstance(step, Dim) or not whole or step == 0:
        raise OnData(f"{n.op} from {first} to {last} by {step} needs numbers as its delta ({n.where})")
    first, last, step = (x if isinstance(x, Dim) else int(x) for x in (first, last, step))
    net, dtype = n.net, n.dtype(n.outputs[0].code)
    places = net.tensor_of(n.numbered(length(first, last, step), dtype))
    places = places if step == 1 else net.mul(places, np.asarray(step, dtype.numpy))
    return places if is_known(first) and first == 0 else net.add(places, n.scalar(first, dtype))
