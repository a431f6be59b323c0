"""Readers of operators that gather and scatter elements by indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pelton.ir import dims, sizes
from pelton.ir.dims import Size, Undecided, equal, is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64
from pelton.ops.words import add, cast, expand, iota, reshape

from pelton.importers.onnx.node import Reading, Binding, reads


@reads("Gather")
def gather(n: Reading) -> Binding:
    x, indices = n.inputs
    axis = n.axis(n.attr("axis"), x.type.rank)
    size, at = x.type.shape[axis] if x.type.rank else 0, n.builder.elements(indices)
    indices = _count_from_front(n, indices, size)
    # one index on a dynamic axis is a slice
    if at is not None and at.size == 1 and not is_known(size, at.item()):
        start = at.item() if at.item() >= 0 else at.item() + size
        return n.reshape(
            n.slice(x, axis, start, start + 1), (*x.type.shape[:axis], *indices.type.shape, *x.type.shape[axis + 1 :])
        )
    return take(n, x, indices, axis)


def take(n: Reading, x: Value, indices: Value, axis: int = 0) -> Value:
    """Gathers by indices, which must fit the axis if they count up to a size."""
    size, end = x.type.shape[axis] if x.type.rank else 0, _upper_bound_of(n, indices)
    if end is not None and not is_known(end) and dims.bounds(size - end)[0] < 0:
        raise Undecided(f"indices below {end} must fit an axis of {size}", size - end, ">=", (size - end,))
    return n.emit("gather", x, indices, axis=axis)


def _upper_bound_of(n: Reading, indices: Value) -> Size | None:
    """Returns an exclusive upper bound of indices computed from iota and sizes; None for others."""
    known, producer = n.builder.sizes.get(indices), n.builder.makers.get(indices)
    if known is not None:
        return dims.maximum(*known.flat) + 1 if known.size and sizes.is_integral(known) else None
    if producer is None or producer.op not in (iota, reshape, expand, cast, add):
        return None
    if producer.op is iota:
        return producer.attrs["size"]
    ends = [_upper_bound_of(n, v) for v in producer.inputs]
    return None if any(e is None for e in ends) else sum(e for e in ends if e is not None) - len(ends) + 1


def _count_from_front(n: Reading, indices: Value, size: Size) -> Value:
    """Checks constant indices, and makes them nonnegative if the size is known."""
    array = n.known(indices)
    if array is None or not indices.type.dtype.is_integer:
        return indices
    counted = _counted_from_front(n, array, size)
    return indices if counted is array else n.constant(counted, indices.type.dtype)


def _tuples_from_front(n: Reading, indices: Value, shape: Sequence[Size]) -> Value:
    """Does the same for index tuples along the last axis, into the first dimensions of a shape."""
    array = n.known(indices)
    if array is None or not indices.type.dtype.is_integer or not array.ndim or array.shape[-1] > len(shape):
        return indices
    counted = [_counted_from_front(n, array[..., k], shape[k]) for k in range(array.shape[-1])]
    if not counted or np.array_equal(together := np.stack(counted, -1), array):
        return indices
    return n.constant(together, indices.type.dtype)


def _counted_from_front(n: Reading, array: np.ndarray, size: Size) -> np.ndarray:
    if not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    room = size - max(high + 1, -low)
    if dims.bounds(room)[1] < 0:
        raise n.refuse(f"{n.op} needs indices between {-size} and {size - 1}, got {low} to {high}")
    if dims.bounds(room)[0] < 0:
        raise Undecided(f"indices from {low} to {high} must fit an axis of {size}", room, ">=", (room,))
    if low >= 0 or not is_known(size):
        return array
    return np.where(array < 0, array + size, array)


@reads("GatherElements")
def gather_elements(n: Reading) -> Binding:
    x, indices = n.inputs
    axis = n.axis(n.attr("axis"), x.type.rank)
    return n.emit(
        "gather_elements", x, _count_from_front(n, indices, x.type.shape[axis] if x.type.rank else 0), axis=axis
    )


@reads("GatherND")
def gather_nd(n: Reading) -> Binding:
    x, indices = n.inputs
    batch_dims = n.attr("batch_dims", 0)
    within = x.type.shape[batch_dims:] if batch_dims >= 0 else ()
    return n.emit("gather_nd", x, _tuples_from_front(n, indices, within), batch_dims=batch_dims)


@reads("ScatterElements", "Scatter")
def scatter_elements(n: Reading) -> Binding:
    x, indices, updates = n.inputs
    axis = n.axis(n.attr("axis"), x.type.rank)
    return n.emit(
        "scatter_elements",
        x,
        _count_from_front(n, indices, x.type.shape[axis] if x.type.rank else 0),
        updates,
        axis=axis,
        reduction=n.attr("reduction", "none"),
    )


@reads("ScatterND")
def scatter_nd(n: Reading) -> Binding:
    """Scatters; empty index tuples select the whole data: they become 0 along a new first axis of size 1."""
    x, indices, updates = n.inputs
    selects_all = indices.type.rank > 0 and indices.type.shape[-1] == 0 and is_known(*indices.type.shape)
    if selects_all:
        x, indices = n.reshape(x, (1, *x.type.shape)), n.constant(np.zeros((*indices.type.shape[:-1], 1), np.int64))
    indices = _tuples_from_front(n, indices, x.type.shape)
    y = n.emit("scatter_nd", x, indices, updates, reduction=n.attr("reduction", "none"))
    return n.reshape(y, y.type.shape[1:]) if selects_all else y


@reads("OneHot")
def one_hot(n: Reading) -> Binding:
    """Reads indices that may be floats; those outside the depth give rows of the off value."""
    indices, values = n.cast(n.input(0), I64), n.input(2)
    depths = n.integers(1, "depth")
    if len(depths) != 1 or depths[0] < 1:
        raise n.refuse(f"OneHot needs one number above 0 as its depth, got {list(depths)}")
    return n.emit("one_hot", indices, values, depth=depths[0], axis=n.axis(n.attr("axis"), indices.type.rank + 1))


@reads("Compress")
def compress(n: Reading) -> Binding:
    x, axis = n.input(0), n.attr("axis")
    condition = n.known(n.input(1))
    if condition is None:
        raise n.data_dependent_control()
    if axis is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    axis = n.axis(axis, x.type.rank)
    if is_known(x.type.shape[axis]):
        condition = condition[: x.type.shape[axis]]
    return n.emit(
        "gather", x, _count_from_front(n, n.constant(np.flatnonzero(condition), I64), x.type.shape[axis]), axis=axis
    )


@reads("NonZero", "Unique", "NonMaxSuppression")
def data_dependent_shape(n: Reading) -> tuple[Binding, ...]:
    """Reads operators whose output shape depends on the data: evaluated on constants, else left to scripts."""
    if any(isinstance(t, Value) and n.known(t) is None for t in n.bindings):
        raise n.data_dependent_control()
    return n.foreign()


@reads("ReverseSequence")
def reverse_sequence(n: Reading) -> Binding | tuple[Binding, ...]:
    """Reverses the first `length` elements of every sequence."""
    x, lengths = n.input(0), n.input(1)
    time, batch = n.axis(n.attr("time_axis"), x.type.rank), n.axis(n.attr("batch_axis"), x.type.rank)
    if {time, batch} != {0, 1} or lengths.type.rank != 1 or not equal(lengths.type.size, x.type.shape[batch]):
        raise n.refuse(
            f"ReverseSequence needs 0 and 1 as its time and batch axes, and a length per sequence, got axes {time} and"
            f" {batch}, and lengths {lengths.type}"
        )
    return reverse_sequences(n, x, lengths, time)


def reverse_sequences(n: Reading, x: Value, lengths: Value, time: int) -> Value:
    """Gathers elements by index tuples, (time, batch) or (batch, time) in the order of the axes."""
    batch, known = 1 - time, n.known(lengths)
    steps, count = x.type.shape[time], x.type.shape[batch]
    if known is not None and is_known(steps) and known.size and not 0 <= known.min() <= known.max() <= steps:
        raise n.refuse(f"{n.op} needs lengths between 0 and {steps}, got {known.min()} to {known.max()}")
    at = n.reshape(n.count(steps), (steps, 1) if time == 0 else (1, steps))
    lengths = n.reshape(n.cast(lengths, I64), (1, count) if time == 0 else (count, 1))
    back = n.emit("sub", n.emit("sub", lengths, n.constant(1, I64)), at)
    steps_back = n.emit("where", n.emit("less", at, lengths), back, at)
    rows = n.expand(n.reshape(n.count(count), (1, count) if time == 0 else (count, 1)), steps_back.type.shape)
    return n.emit("gather_nd", x, stack_indices(n, *((steps_back, rows) if time == 0 else (rows, steps_back))))


def stack_indices(n: Reading, *parts: Value) -> Value:
    """Stacks indices to tuples along a new last axis."""
    return n.emit("concat", *(n.reshape(p, (*p.type.shape, 1)) for p in parts), axis=parts[0].type.rank)


@reads("TensorScatter")
def tensor_scatter(n: Reading) -> Binding:
    """Writes updates into a cache along an axis, from a start index per batch element; mode circular wraps around."""
    x, updates, starts = n.input(0), n.input(1), n.optional(2)
    axis = n.axis(n.attr("axis", -2), x.type.rank)
    if (
        axis == 0
        or updates.type.rank != x.type.rank
        or starts is not None
        and not (starts.type.rank == 1 and equal(starts.type.size, x.type.shape[0]))
    ):
        raise n.refuse(
            "TensorScatter needs an axis other than 0, updates of the cache's rank and a start index per batch, got"
            f" axis {axis}, {updates.type}{'' if starts is None else f' and {starts.type}'}"
        )
    lead, circular = updates.type.shape[: axis + 1], n.attr("mode") == "circular"
    if not circular or lead[axis] == 1:
        return _write_rows(n, x, updates, starts, axis, circular)
    indices = _along_axis(n, n.count(lead[axis]), axis, axis + 1)
    if starts is not None:
        indices = n.emit("add", _along_axis(n, n.cast(starts, I64), 0, axis + 1), indices)
    indices = n.emit("mod", indices, n.sizes(x.type.shape[axis]))
    parts = [_along_axis(n, n.count(d), a, axis + 1) for a, d in enumerate(lead[:axis])] + [indices]
    return n.emit("scatter_nd", x, stack_indices(n, *(n.expand(p, lead) for p in parts)), updates, reduction="none")


def _write_rows(n: Reading, x: Value, updates: Value, starts: Value | None, axis: int, circular: bool) -> Value:
    """Writes consecutive rows of an axis, one sequence of them per batch element; `circular` for one row."""
    batch, capacity, count = x.type.shape[0], x.type.shape[axis], updates.type.shape[axis]
    begin = n.constant(np.zeros(1), I64) if starts is None else n.cast(starts, I64)
    if circular:
        begin = n.emit("mod", begin, n.sizes(capacity))
    begin = n.expand(begin, (batch,))
    end = n.emit("add", begin, n.sizes(count))

    def apart(v: Value) -> Value:
        shape = v.type.shape
        return n.reshape(v, (batch, math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 :])))

    y = n.emit("cache_write", apart(x), apart(updates), begin, end, length=capacity, keep=True)
    return n.reshape(y, x.type.shape)


def _along_axis(n: Reading, x: Value, axis: int, rank: int) -> Value:
    """Reshapes a vector to a rank, its elements along an axis."""
    return n.reshape(x, [x.type.size if a == axis else 1 for a in range(rank)])
