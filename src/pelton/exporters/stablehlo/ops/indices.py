"""Writers of ops that read and write elements by indices."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ir.graph import Node
from pelton.ir.types import I32, I64, TensorType

from ..blocks import Operations, SsaValue
from ..literals import integers
from ..registry import writes

_JOINS = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


def numbers(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def counted(s: Operations, indices: SsaValue) -> SsaValue:
    """Converts indices to i32 or i64."""
    if indices.dtype in (I32, I64):
        return indices
    return s.convert(indices, I32 if indices.dtype.bits < 32 else I64)


def from_start(s: Operations, indices: SsaValue, sizes: SsaValue | int) -> SsaValue:
    """Counts negative indices from the end: of `sizes`, numbers that broadcast."""
    return s.select(s.compare("LT", indices, 0), s.add(indices, sizes), indices)


def take(s: Operations, x: SsaValue, indices: SsaValue, axis: int) -> SsaValue:
    """Writes a gather along an axis, with indices from 0 on."""
    count, rank = len(indices.shape), len(x.shape)
    offsets = [i if i < axis else i + count - 1 for i in range(rank) if i != axis]
    window = [1 if i == axis else n for i, n in enumerate(x.shape)]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return _gather(s, x, indices, shape, offsets, [axis], [axis], count, window)


def _gather(
    s: Operations,
    x: SsaValue,
    indices: SsaValue,
    shape: Sequence[int],
    offsets: Sequence[int],
    collapsed: Sequence[int],
    mapped: Sequence[int],
    depth_axis: int,
    window: Sequence[int],
) -> SsaValue:
    places = (
        f"#stablehlo.gather<offset_dims = {numbers(offsets)}, collapsed_slice_dims = {numbers(collapsed)},"
        f" start_index_map = {numbers(mapped)}, index_vector_dim = {depth_axis}>"
    )
    attrs = {"dimension_numbers": places, "slice_sizes": integers(window), "indices_are_sorted": "false"}
    return s.one("gather", [x, indices], TensorType(x.dtype, tuple(shape)), attrs)


def take_tuples(s: Operations, x: SsaValue, tuples: SsaValue) -> SsaValue:
    """Writes a gather whose indices' last axis are tuples for the first axes of x, from 0 on."""
    depth, points = tuples.shape[-1], len(tuples.shape) - 1
    rest = x.shape[depth:]
    offsets, mapped = range(points, points + len(rest)), range(depth)
    shape = (*tuples.shape[:-1], *rest)
    return _gather(s, x, tuples, shape, offsets, mapped, mapped, points, [1] * depth + list(rest))


def _tuples_along(s: Operations, indices: SsaValue, axis: int) -> SsaValue:
    """Returns full index tuples: those of an axis, and their own along the others."""
    wide = (*indices.shape, 1)
    parts = [
        s.reshape(indices, wide) if i == axis else s.iota(wide, i, indices.dtype) for i in range(len(indices.shape))
    ]
    return s.concatenate(parts, len(indices.shape))


def _with_batch(s: Operations, tuples: SsaValue, batch: int) -> SsaValue:
    """Puts the indices of batch dimensions in front of index tuples."""
    if not batch:
        return tuples
    wide, last = (*tuples.shape[:-1], 1), len(tuples.shape) - 1
    return s.concatenate([*(s.iota(wide, i, tuples.dtype) for i in range(batch)), tuples], last)


@writes("gather")
def gather(s: Operations, node: Node, x: SsaValue, indices: SsaValue) -> SsaValue:
    axis = node.attrs["axis"]
    if indices.array is not None and indices.array.size == 1:
        at = int(indices.array.reshape(())) % max(1, x.shape[axis])
        return s.reshape(s.slice(x, axis, at, at + 1), node.outputs[0].type.shape)
    if indices.array is not None:
        n = x.shape[axis]
        at = indices.array.astype("int64")
        held = s.constant((at + (at < 0) * n).astype(I32.numpy if n < 1 << 31 else I64.numpy))
        return take(s, x, held, axis)
    return take(s, x, from_start(s, counted(s, indices), x.shape[axis]), axis)


@writes("gather_elements")
def gather_elements(s: Operations, node: Node, x: SsaValue, indices: SsaValue) -> SsaValue:
    axis = node.attrs["axis"]
    held = from_start(s, counted(s, indices), x.shape[axis])
    return take_tuples(s, x, _tuples_along(s, held, axis))


def _tuples(s: Operations, indices: SsaValue, sizes: Sequence[int]) -> SsaValue:
    """Returns index tuples that count from 0, for axes of these sizes."""
    held = counted(s, indices)
    return from_start(s, held, s.constant(list(sizes), held.dtype)) if sizes else held


@writes("gather_nd")
def gather_nd(s: Operations, node: Node, x: SsaValue, indices: SsaValue) -> SsaValue:
    batch = node.attrs["batch_dims"]
    depth = indices.shape[-1]
    tuples = _tuples(s, indices, x.shape[batch : batch + depth])
    return take_tuples(s, x, _with_batch(s, tuples, batch))


def _scatter(s: Operations, x: SsaValue, tuples: SsaValue, updates: SsaValue, reduction: str) -> SsaValue:
    depth, points, rest = tuples.shape[-1], len(tuples.shape) - 1, len(x.shape) - tuples.shape[-1]
    places = (
        f"#stablehlo.scatter<update_window_dims = {numbers(range(points, points + rest))},"
        f" inserted_window_dims = {numbers(range(depth))}, scatter_dims_to_operand_dims = {numbers(range(depth))},"
        f" index_vector_dim = {points}>"
    )
    inner, (old, new) = s.region([TensorType(x.dtype)] * 2)
    inner.finish([new if reduction == "none" else inner.one(_JOINS[reduction], [old, new], old.type)])
    attrs = {"scatter_dimension_numbers": places, "indices_are_sorted": "false", "unique_indices": "false"}
    return s.op("scatter", [x, tuples, updates], [x.type], attrs, [inner])[0]


@writes("scatter_elements")
def scatter_elements(s: Operations, node: Node, x: SsaValue, indices: SsaValue, updates: SsaValue) -> SsaValue:
    axis = node.attrs["axis"]
    held = from_start(s, counted(s, indices), x.shape[axis])
    return _scatter(s, x, _tuples_along(s, held, axis), updates, node.attrs["reduction"])


@writes("scatter_nd")
def scatter_nd(s: Operations, node: Node, x: SsaValue, indices: SsaValue, updates: SsaValue) -> SsaValue:
    tuples = _tuples(s, indices, x.shape[: indices.shape[-1]])
    return _scatter(s, x, tuples, updates, node.attrs["reduction"])


@writes("blend")
def blend(s: Operations, node: Node, x: SsaValue, indices: SsaValue, weights: SsaValue) -> SsaValue:
    """Writes a gather of all taps, times their weights, and a sum; a weight of 0 leaves out even infinities."""
    axis, batch, dtype = node.attrs["axis"], node.attrs["batch_dims"], x.dtype
    wide = weights.dtype
    held = from_start(s, counted(s, indices), x.shape[axis])
    points = indices.shape[batch:]  # and taps
    if batch:
        front = [*range(batch), axis, *(i for i in range(batch, len(x.shape)) if i != axis)]
        tuples = _with_batch(s, s.reshape(held, (*held.shape, 1)), batch)
        y = take_tuples(s, s.transpose(x, front), tuples)  # [batch…, points…, tap, before the axis…, behind…]
        first, count = batch + len(points), axis - batch
        behind = range(first + count, len(y.shape))
        y = s.transpose(y, [*range(batch), *range(first, first + count), *range(batch, first), *behind])
    else:
        y = take(s, x, held, axis)
    tap = axis + len(points) - 1
    by = s.spread(weights, y.shape, [*range(batch), *range(axis, axis + len(points))])
    y = s.select(s.compare("EQ", by, 0), 0, s.multiply(s.convert(y, wide), by))
    return s.convert(s.reduce("add", y, [tap], 0), dtype)
