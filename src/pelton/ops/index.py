"""Ops that read and write elements by indices: gathers, scatters and one-hot."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import Dim
from pelton.ir.types import TensorType

from .logic import equal, logical_or
from .math import add, where
from .op import composite, expect, expect_equal, structured
from .shape import Ints, along, check_axis, reshape
from .sizes import iota


@structured(
    "Gather",
    moves=True,
    indexed=True,
    examples=(
        ("f32[5, 13]", "i64[3]", dict(axis=0)),
        ("f32[2, 7, 3]", "i32[2, 5]", dict(axis=1)),
        ("f32[7, 3]", "i64[]", dict(axis=0)),
        ("i64[4]", "i64[1]", dict(axis=0)),
    ),
)
class gather:
    """Y[…, i…, …] = X[…, indices[i…], …] along an axis; negative indices count from the end."""

    def infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
        check_axis(x.rank, axis)
        expect(indices.dtype.is_integer, "needs integer indices")
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def reference(x, indices, *, axis):
        return np.take(x, indices, axis)


def _along(indices: np.ndarray, axis: int) -> tuple:
    """Returns a numpy index: for each of `indices`, that element along the axis, its own index along the others."""
    place = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
    place[axis] = indices
    return tuple(place)


def _check_along(x: TensorType, indices: TensorType, axis: int) -> None:
    check_axis(x.rank, axis)
    expect(indices.dtype.is_integer, "needs integer indices")
    expect(indices.rank == x.rank, "needs indices of the rank of the input")
    expect(
        all(i == axis or d <= n for i, (d, n) in enumerate(zip(indices.shape, x.shape))),
        f"needs indices no larger than the input off axis {axis}",
    )


@structured(
    "GatherElements",
    moves=True,
    indexed=True,
    examples=(("f32[5, 7]", "i64[5, 3]", dict(axis=1)), ("f32[3, 5, 2]", "i32[4, 3, 2]", dict(axis=0))),
)
class gather_elements:
    """Y[i, j, …] = X[i, indices[i, j, …], …], the index replaced along an axis."""

    def infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
        _check_along(x, indices, axis)
        return x.with_shape(indices.shape)

    def reference(x, indices, *, axis):
        return x[_along(indices, axis)]


@structured(
    "GatherND",
    moves=True,
    indexed=True,
    examples=(
        ("f32[5, 7, 3]", "i64[4, 2]", {}),
        ("f32[2, 5, 3]", "i64[2, 7, 1]", dict(batch_dims=1)),
        ("f32[2, 3]", "i64[2]", {}),
    ),
)
class gather_nd:
    """Y[b…, i…] = X[b…, indices[b…, i…, :], …]: the last axis of the indices is an index tuple."""

    def infer(x: TensorType, indices: TensorType, *, batch_dims: int = 0) -> TensorType:
        expect(indices.dtype.is_integer and indices.rank >= 1, "needs integer indices of rank 1 and more")
        depth = indices.shape[-1]
        expect(0 <= batch_dims < indices.rank, f"needs {batch_dims} equal batch dimensions")
        expect_equal(x.shape[:batch_dims], indices.shape[:batch_dims], f"needs {batch_dims} equal batch dimensions")
        expect(batch_dims + depth <= x.rank, f"needs index tuples of at most {x.rank - batch_dims}, got {depth}")
        return x.with_shape((*indices.shape[:-1], *x.shape[batch_dims + depth :]))

    def reference(x, indices, *, batch_dims=0):
        shape = indices.shape[:-1]
        place = tuple(np.arange(d).reshape(-1, *[1] * (len(shape) - 1 - i)) for i, d in enumerate(shape[:batch_dims]))
        return np.broadcast_to(
            x[place + tuple(np.moveaxis(indices, -1, 0))], shape + x.shape[batch_dims + indices.shape[-1] :]
        )


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scatter(x: np.ndarray, index: tuple, updates: np.ndarray, reduction: str) -> np.ndarray:
    y = x.copy()
    if reduction == "none":
        y[index] = updates
    else:
        _REDUCTIONS[reduction].at(y, index, updates)
    return y


def _check_updates(x: TensorType, updates: TensorType, shape: Ints, reduction: str) -> None:
    expect(updates.dtype is x.dtype, f"needs updates of type {x.with_shape(shape)}")
    expect_equal(updates.shape, tuple(shape), f"needs updates of type {x.with_shape(shape)}")
    expect(reduction in ("none", *_REDUCTIONS), f"needs reduction none, add, mul, min or max, got {reduction!r}")


@structured(
    "ScatterElements",
    indexed=True,
    examples=(
        ("f32[5, 7]", "i64[5, 3]", "f32[5, 3]", dict(axis=1, reduction="add")),
        ("f32[3, 5]", "i64[3, 1]", "f32[3, 1]", dict(axis=1)),
        ("f32[3, 5]", "i32[7, 4]", "f32[7, 4]", dict(axis=0, reduction="max")),
    ),
)
class scatter_elements:
    """X with X[i, indices[i, j, …], …] replaced by (or combined with) updates[i, j, …]."""

    def infer(
        x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, reduction: str = "none"
    ) -> TensorType:
        _check_along(x, indices, axis)
        _check_updates(x, updates, indices.shape, reduction)
        return x

    def reference(x, indices, updates, *, axis, reduction="none"):
        return _scatter(x, _along(indices, axis), updates, reduction)


@structured(
    "ScatterND",
    indexed=True,
    examples=(
        ("f32[5, 7, 3]", "i64[4, 2]", "f32[4, 3]", dict(reduction="add")),
        ("f32[7, 3]", "i64[1, 1]", "f32[1, 3]", {}),
        ("f32[5]", "i64[3, 1]", "f32[3]", dict(reduction="mul")),
    ),
)
class scatter_nd:
    """X with X[indices[i…, :], …] replaced by (or combined with) updates[i…, …]."""

    def infer(x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str = "none") -> TensorType:
        expect(indices.dtype.is_integer and indices.rank >= 1, "needs integer indices of rank 1 and more")
        expect(indices.shape[-1] <= x.rank, f"needs index tuples of at most {x.rank}, got {indices.shape[-1]}")
        _check_updates(x, updates, indices.shape[:-1] + x.shape[indices.shape[-1] :], reduction)
        return x

    def reference(x, indices, updates, *, reduction="none"):
        return _scatter(x, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


@composite(
    "OneHot",
    examples=(
        ("i64[2, 3]", "f32[2]", dict(depth=5, axis=2)),
        ("i32[7]", "i64[2]", dict(depth=3, axis=0)),
        ("i64[2, 3]", "f32[2]", dict(depth=5, axis=1)),
    ),
)
class one_hot:
    """Y[…, d, …] = values[1] where the index is d (or d − depth), else values[0]; d runs along a new axis."""

    def infer(indices: TensorType, values: TensorType, *, depth: int, axis: int) -> TensorType:
        check_axis(indices.rank + 1, axis)
        expect(indices.dtype.is_integer or indices.dtype.is_float, "needs numbers as indices")
        expect(depth >= 1, f"needs a depth of 1 and more, got {depth}")
        expect(values.shape == (2,), "needs two values: off and on")
        return values.with_shape((*indices.shape[:axis], depth, *indices.shape[axis:]))

    def expand(indices, values, *, depth, axis):
        type = indices.type
        spread = reshape(indices, shape=(*type.shape[:axis], 1, *type.shape[axis:]))
        ones = [1] * (type.rank - axis)
        places = np.arange(depth).astype(type.dtype.numpy).reshape(depth, *ones)
        if isinstance(depth, Dim):
            places = reshape(iota(size=depth, dtype=type.dtype), shape=(depth, *ones))
        hit = logical_or(equal(spread, places), equal(add(spread, depth), places))
        off, on = along(values, 0, 0, 1), along(values, 0, 1, 2)
        return where(hit, on, off)

    def reference(indices, values, *, depth, axis):
        places = np.arange(depth).reshape(depth, *[1] * (indices.ndim - axis))
        spread = np.expand_dims(indices, axis)
        return np.where((spread == places) | (spread + depth == places), values[1], values[0])
