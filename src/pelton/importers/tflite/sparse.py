"""Sparse constants as dense arrays.

The format is that of the schema's `SparsityParameters`: an order of dimensions, and of blocks of them behind; along
each, either all elements are stored or those in lists, like the rows of a CSR matrix (TACO's formats).
"""

from __future__ import annotations

import math

import numpy as np

from pelton.errors import ModelError

from .flatbuffer import Table

VECTORS = {1: "Int32Vector", 2: "Uint16Vector", 3: "Uint8Vector"}
SPARSEST = 64  # dense elements per byte of the file


def densified(sparsity: Table, values: np.ndarray, shape: tuple[int, ...], file_size: int, where: str) -> np.ndarray:
    """Returns a dense array with these values at their places and zeros elsewhere; ModelError if they do not fit."""
    order, blocks, axes = (sparsity.get(k) for k in ("order", "blocks", "axes"))
    rank = len(shape)
    count = math.prod(shape)
    if count > SPARSEST * file_size:
        raise ModelError(f"{where} has {count} elements with its zeros, too many for a file of {file_size} bytes")
    if (
        sorted(order) != list(range(rank + blocks.size))
        or len(axes) != order.size
        or (blocks < 0).any()
        or (blocks >= rank).any()
    ):
        raise ModelError(f"{where} is sparse along {order.size} axes, but its shape is {list(shape)}")
    position, coordinates = np.zeros(1, np.int64), dict[int, np.ndarray]()
    sizes: dict[int, int] = {}
    for axis, table in zip(map(int, order), axes):
        if table.get("format") == 0:
            size = sizes[axis] = table.get("size")
            if not 0 <= position.size * size <= count:
                raise ModelError(f"{where} has more stored elements than its shape {list(shape)}")
            parents, here = np.repeat(np.arange(position.size), size), np.tile(np.arange(size), position.size)
            position = position[parents] * size + here
        else:
            parents, position, here = _listed(table, position, count, where)
            sizes[axis] = int(here.max(initial=-1)) + 1
        coordinates = {a: c[parents] for a, c in coordinates.items()}
        coordinates[axis] = here
    inner = {int(b): sizes[rank + i] for i, b in enumerate(blocks)}
    flat = np.zeros(position.size, np.int64)
    for axis, size in enumerate(shape):
        at = coordinates[axis] * inner.get(axis, 1)
        at = at + sum(coordinates[rank + i] for i, b in enumerate(blocks) if b == axis)
        if at.size and not 0 <= at.min() <= at.max() < size:
            raise ModelError(f"{where} has stored elements outside of its shape {list(shape)}")
        flat = flat * size + at
    if position.size != values.size or (position.size and position.max() >= values.size):
        raise ModelError(f"{where} stores {values.size} elements, but positions of {position.size}")
    dense = np.zeros(count, values.dtype)
    dense[flat] = values[position]
    return dense.reshape(shape)


def _listed(table: Table, position: np.ndarray, most: int, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, for a sparse axis, the parent of each stored element, its position, and its coordinate."""
    segments, indices = (_vector(table, side, where) for side in ("segments", "indices"))
    if segments.size < position.size + 1 or (np.diff(segments) < 0).any() or segments[0] < 0:
        raise ModelError(f"{where} has damaged segments of a sparse axis")
    begin, end = segments[position], segments[position + 1]
    lengths = end - begin
    if lengths.sum() > most or end.max(initial=0) > indices.size:
        raise ModelError(f"{where} has more stored elements than its shape")
    parents = np.repeat(np.arange(position.size), lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = begin[parents] + within
    return parents, at, indices[at]


def _vector(table: Table, side: str, where: str) -> np.ndarray:
    kind = VECTORS.get(table.get(f"{side}_type"))
    vector = None if kind is None else table.union(side, kind)
    if vector is None:
        raise ModelError(f"{where} has a sparse axis without {side}")
    return vector.get("values").astype(np.int64)
