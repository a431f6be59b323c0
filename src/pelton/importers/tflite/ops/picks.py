"""Operators that pick elements by indices, and write them."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.types import I64

from ..node import Given, TFLiteReading, reads


@reads("GATHER")
def gather(n: TFLiteReading) -> Given:
    x, indices, batch = n.moved(0), n.given(1).raw(), n.option("batch_dims")
    axis = n.axis(n.option("axis"), x.rank)
    batch = batch + indices.rank if batch < 0 else batch
    if not batch:
        return n.net.gather(x, indices, axis=axis)
    if not 0 < batch <= min(axis, indices.rank) or not is_known(*x.shape[: axis + 1], *indices.shape):
        raise n.refuse(f"needs {batch} equal axes in front of axis {axis} of {x!r} and {indices!r}")
    net, front = n.net, x.shape[:batch]
    # one axis of rows for all of the batch: their numbers are those within, behind those before
    order = (*range(batch), axis, *range(batch, axis), *range(axis + 1, x.rank))
    rows = net.transpose(x, order)
    size, rest = x.shape[axis], rows.shape[batch + 1 :]
    count = int(np.prod(front))
    flat = net.reshape(rows, (count * size, *rest))
    begin = (np.arange(count) * size).reshape(*front, *[1] * (indices.rank - batch))
    found = net.gather(flat, net.add(net.cast(indices, to=I64), begin), axis=0)
    middle = indices.rank - batch
    places = [*range(batch), *range(indices.rank, indices.rank + axis - batch)]
    places += [*range(batch, batch + middle), *range(indices.rank + axis - batch, found.rank)]
    return net.transpose(found, places)


@reads("EMBEDDING_LOOKUP")
def embedding_lookup(n: TFLiteReading) -> Given:
    table = n.given(1)
    return n.net.gather(table.real(), n.given(0).raw(), axis=0)


@reads("GATHER_ND")
def gather_nd(n: TFLiteReading) -> Given:
    return n.net.gather_nd(n.moved(0), n.net.cast(n.given(1).raw(), to=I64))


@reads("SCATTER_ND")
def scatter_nd(n: TFLiteReading) -> Given:
    """Sums of the updates at their places, zeros elsewhere."""
    indices, updates, shape = n.given(0).raw(), n.given(1).raw(), n.known(2, "shape")
    zeros = n.net.expand(np.zeros((), updates.dtype.numpy), shape)
    return n.net.scatter_nd(zeros, n.net.cast(indices, to=I64), updates, reduction="add")


@reads("ONE_HOT")
def one_hot(n: TFLiteReading) -> Given:
    indices, (depth, *_) = n.given(0).raw(), n.known(1, "depth")
    on, off = (n.net.reshape(n.given(i).raw(), ()) for i in (2, 3))
    axis = n.option("axis")
    axis = n.axis(axis, indices.rank + 1)
    if not 0 <= depth < 1 << 24:
        raise n.refuse(f"needs a depth from 0 on, got {depth}")
    numbers = np.arange(depth, dtype=indices.dtype.numpy).reshape(-1, *[1] * (indices.rank - axis))
    return n.net.where(n.net.equal(n.net.unsqueeze(indices, axis), numbers), on, off)


@reads("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(n: TFLiteReading) -> Given:
    """x with another array at a place, which is moved inside where it reaches out."""
    x, update = n.moved(0, 1), n.moved(1, 0)
    if (
        not is_known(*x.shape, *update.shape)
        or x.rank != update.rank
        or any(u > d for u, d in zip(update.shape, x.shape))
    ):
        raise n.refuse(f"cannot put {update!r} into {x!r}")
    net = n.net
    most = np.asarray([d - u for d, u in zip(x.shape, update.shape)], np.int64)
    at = net.clip(net.cast(n.given(2).raw(), to=I64), np.int64(0), np.int64(1 << 40))
    at = net.minimum(at, most)
    grid = np.stack(np.meshgrid(*map(np.arange, update.shape), indexing="ij"), -1) if x.rank else np.zeros(0, np.int64)
    return net.scatter_nd(x, net.add(grid.astype(np.int64), at), update)
