"""Operators that gather and scatter elements by indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Size, equal, is_known, minimum
from pelton.ir.types import I64

from ..held import parameters
from ..node import Given, TFLiteReading, reads


@reads("GATHER")
def gather(n: TFLiteReading) -> Given:
    x, indices, batch = n.moved(0), n.given(1).raw(), n.option("batch_dims")
    axis = n.axis(n.option("axis"), x.rank)
    batch = batch + indices.rank if batch < 0 else batch
    if not batch:
        return n.net.gather(x, indices, axis=axis)
    if not 0 < batch <= min(axis, indices.rank):
        raise n.refuse(f"needs {batch} equal axes in front of axis {axis} of {x!r} and {indices!r}")
    net, front = n.net, x.shape[:batch]
    # one axis of rows for the whole batch: local indices plus the rows before
    order = (*range(batch), axis, *range(batch, axis), *range(axis + 1, x.rank))
    rows = net.transpose(x, order)
    size, rest, count = x.shape[axis], rows.shape[batch + 1 :], math.prod(front)
    flat = net.reshape(rows, (count * size, *rest))
    begin: Any
    if is_known(size, *front):
        begin = (np.arange(count) * size).reshape(*front, *[1] * (indices.rank - batch))
    else:
        begin = net.reshape(net.mul(n.numbered(count), n.scalar(size)), (*front, *[1] * (indices.rank - batch)))
    y = net.gather(flat, net.add(net.cast(indices, to=I64), begin), axis=0)
    middle = indices.rank - batch
    places = [*range(batch), *range(indices.rank, indices.rank + axis - batch)]
    places += [*range(batch, batch + middle), *range(indices.rank + axis - batch, y.rank)]
    return net.transpose(y, places)


@reads("EMBEDDING_LOOKUP")
def embedding_lookup(n: TFLiteReading) -> Given:
    table = n.given(1)
    return n.net.gather(table.real(), n.given(0).raw(), axis=0)


@reads("GATHER_ND")
def gather_nd(n: TFLiteReading) -> Given:
    return n.net.gather_nd(n.moved(0), n.net.cast(n.given(1).raw(), to=I64))


@reads("SCATTER_ND")
def scatter_nd(n: TFLiteReading) -> Given:
    """Sums the updates at their places, with zeros elsewhere."""
    indices, updates, shape = n.given(0).raw(), n.given(1).raw(), n.integers(2, "shape")
    zeros = n.net.expand(np.zeros((), updates.dtype.numpy), shape)
    return n.net.scatter_nd(zeros, n.net.cast(indices, to=I64), updates, reduction="add")


@reads("ONE_HOT")
def one_hot(n: TFLiteReading) -> Given:
    indices, depth = n.given(0).raw(), n.size(1, "depth")
    on, off = (n.net.reshape(n.given(i).raw(), ()) for i in (2, 3))
    axis = n.option("axis")
    axis = n.axis(axis, indices.rank + 1)
    n.at_least(depth, 0, f"needs a depth from 0 on, got {depth}")
    if is_known(depth) and depth >= 1 << 24:
        raise n.refuse(f"needs a depth below 2²⁴, got {depth}")
    numbers = n.numbered(depth, indices.dtype, behind=indices.rank - axis)
    return n.net.where(n.net.equal(n.net.unsqueeze(indices, axis), numbers), on, off)


@reads("WHERE")
def where(n: TFLiteReading) -> Given:
    """Returns the places [count, rank] of nonzero elements."""
    return np.argwhere(n.array(0, "condition")).astype(np.int64)


@reads("UNIQUE")
def unique(n: TFLiteReading) -> tuple[Given, ...]:
    """Returns the distinct elements in order of first occurrence, and for each element the index of its value."""
    _, first, inverse = np.unique(x := n.array(0, "elements"), return_index=True, return_inverse=True)
    order = np.argsort(first)
    return x[first[order]], np.argsort(order)[inverse.reshape(-1)]


@reads("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(n: TFLiteReading) -> Given:
    """Writes an array into x at a place; one that sticks out is moved inside."""
    x, update = n.moved(0, 1), n.moved(1, 0)
    if x.rank != update.rank:
        raise n.refuse(f"cannot put {update!r} into {x!r}")
    for u, d in zip(update.shape, x.shape):
        n.at_least(d, u, f"cannot put {update!r} into {x!r}")
    net = n.net
    room = [d - u for d, u in zip(x.shape, update.shape)]
    most = np.asarray(room, np.int64) if is_known(*room) else n.sizes(room, I64)
    at = net.clip(net.cast(n.given(2).raw(), to=I64), np.int64(0), np.int64(1 << 40))
    at = net.minimum(at, most)
    return net.scatter_nd(x, net.add(_grid(n, update.shape), at), update)


def _grid(n: TFLiteReading, shape: Sequence[Size]) -> Any:
    """Returns the place of each element, [*shape, rank]."""
    net, rank = n.net, len(shape)
    if is_known(*shape):
        return np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1) if rank else np.zeros(0, np.int64)
    along = [net.reshape(n.numbered(d), (*[1] * a, d, *[1] * (rank - a))) for a, d in enumerate(shape)]
    return net.concat([net.expand(x, (*shape, 1)) for x in along], axis=rank)


@reads("SPARSE_TO_DENSE")
def sparse_to_dense(n: TFLiteReading) -> Given:
    """Writes values at places [count, rank] (or [count], or a single one) of a tensor of a default value."""
    net, places, shape = n.net, n.given(0).raw(), n.integers(1, "shape")
    values, default = n.given(2).raw(), n.given(3).raw()
    rank = len(shape)
    if places.rank > 2 or places.rank < 2 and rank != 1 or places.rank == 2 and places.shape[1] != rank:
        raise n.refuse(f"needs places of {rank} axes, got {places!r}")
    rows = net.reshape(net.cast(places, to=I64), (-1, rank))
    count = (rows.shape[0],)
    values = net.expand(values, count) if values.rank == 0 else values
    return net.scatter_nd(net.expand(net.reshape(default, ()), shape), rows, values)


@reads("REVERSE_SEQUENCE")
def reverse_sequence(n: TFLiteReading) -> Given:
    x = n.moved(0)
    time, batch = (n.axis(n.option(axis), x.rank) for axis in ("seq_dim", "batch_dim"))
    return n.net.reverse_sequence(x, n.given(1).raw(), time_axis=time, batch_axis=batch)


# --- diagonals of matrices


@reads("MATRIX_DIAG")
def matrix_diag(n: TFLiteReading) -> Given:
    """Returns matrices [..., d, d] of zeros with diagonals [..., d]."""
    diagonal = n.moved(0)
    return n.net.where(_is_diagonal(n, diagonal.shape[-1], diagonal.shape[-1]), n.net.unsqueeze(diagonal, -1), _zero(n))


@reads("MATRIX_SET_DIAG")
def matrix_set_diag(n: TFLiteReading) -> Given:
    """Replaces the diagonals [..., min(rows, columns)] of matrices [..., rows, columns]."""
    x, diagonal = n.moved(0, 1), n.moved(1, 0)
    rows, columns = x.shape[-2:]
    if not equal(diagonal.shape[-1], minimum(rows, columns)):
        raise n.refuse(f"needs as many elements as the diagonals of {x!r} have, got {diagonal!r}")
    chosen = _is_diagonal(n, rows, columns)
    wide = n.net.unsqueeze(diagonal, -1 if rows <= columns else -2)  # one element per row, or per column
    return n.net.where(chosen, wide, x)


def _is_diagonal(n: TFLiteReading, rows: Size, columns: Size) -> Any:
    if is_known(rows, columns):
        return np.eye(rows, columns, dtype=bool)
    return n.net.equal(n.numbered(rows, behind=1), n.numbered(columns))


def _zero(n: TFLiteReading) -> np.ndarray:
    spec = n.given(0).spec
    zero = parameters(spec)[1].reshape(-1)[0] if n.given(0).is_quantized and n.moves(0) else 0
    return np.asarray(zero, n.moved(0).dtype.numpy)


# --- segments: rows combined by group number

_JOINED = {
    "SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}


@reads(*_JOINED)
def segments(n: TFLiteReading) -> Given:
    """Combines the rows of x with equal group numbers: [groups, ...]; drops rows with negative numbers."""
    net, x, of, joined = n.net, n.input(0), n.given(1).raw(), _JOINED[n.op]
    if of.rank != 1 or x.rank < 1:
        raise n.refuse(f"needs the number of a group for each row, got {of!r} for {x!r}")
    count = n.size(2, "number of groups") if n.has(2) else int(n.array(1, "groups").max(initial=-1)) + 1
    n.at_least(count, 0, f"has {count} groups")
    if is_known(count) and count >= 1 << 24:
        raise n.refuse(f"has {count} groups")
    info = np.finfo(x.dtype.numpy) if x.dtype.is_float else np.iinfo(x.dtype.numpy)
    begin = dict(add=0, mul=1, max=info.min, min=info.max)[joined]
    empty = net.expand(np.asarray(begin, x.dtype.numpy), (count + 1, *x.shape[1:]))
    numbers = net.cast(of, to=I64)
    last = n.scalar(count)
    kept = net.logical_and(net.greater_equal(numbers, np.int64(0)), net.less(numbers, last))
    places = net.unsqueeze(net.where(kept, numbers, last), 1)
    y = net.scatter_nd(empty, places, x, reduction=joined)
    return net.slice(y, starts=(0,), ends=(count,), axes=(0,), steps=(1,))
