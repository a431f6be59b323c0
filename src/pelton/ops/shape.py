"""Ops that move, repeat and pick elements without computing on them, and scatters."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Dim, Size, maximum, minimum
from pelton.ir.types import TensorType, broadcast_shapes

from .math import add, equal, logical_or, where
from .op import TermLike, composite, expect, expect_equal, structured
from .sizes import iota

Ints = tuple[int, ...]


def _check_axis(rank: int, axis: int) -> None:
    expect(0 <= axis < rank, f"needs an axis from 0 to {rank - 1}, got {axis}")


@structured(
    "Reshape",
    moves=True,
    view=True,
    examples=(
        ("f32[2, 3, 7]", dict(shape=(6, 7))),
        ("f32[58, 4]", dict(shape=(2, 29, 2, 2))),
        ("f32[1]", dict(shape=())),
        ("i64[3, 2]", dict(shape=(6,))),
    ),
)
class reshape:
    """The same elements in row-major order under another shape."""

    def infer(x: TensorType, *, shape: Ints) -> TensorType:
        expect_equal(math.prod(shape), x.size, f"needs a shape of {x.size} elements, got {list(shape)}")
        expect(all(d >= 0 for d in shape), f"needs sizes of at least 0, got {list(shape)}")
        return x.with_shape(shape)

    def reference(x, *, shape):
        return x.reshape(shape)


@structured(
    "Transpose",
    moves=True,
    view=True,
    examples=(
        ("f32[5, 7]", dict(perm=(1, 0))),
        ("f32[2, 3, 7, 5]", dict(perm=(0, 2, 3, 1))),
        ("f32[2, 58, 3, 5]", dict(perm=(2, 0, 3, 1))),
        ("i64[3, 1, 2]", dict(perm=(2, 1, 0))),
    ),
)
class transpose:
    """Y's axis i is X's axis perm[i]."""

    def infer(x: TensorType, *, perm: Ints) -> TensorType:
        expect(sorted(perm) == list(range(x.rank)), f"needs a permutation of the {x.rank} axes, got {list(perm)}")
        return x.with_shape(x.shape[p] for p in perm)

    def reference(x, *, perm):
        return x.transpose(perm)


@structured(
    "Concat",
    moves=True,
    view=True,
    examples=(
        ("f32[2, 3, 5, 7]", "f32[2, 58, 5, 7]", "f32[2, 8, 5, 7]", dict(axis=1)),
        ("f32[5, 3]", "f32[5, 4]", dict(axis=1)),
        ("i64[1]", "i64[3]", dict(axis=0)),
    ),
)
class concat:
    """The inputs one behind the other along an axis."""

    def infer(*xs: TensorType, axis: int) -> TensorType:
        expect(len(xs) >= 1, "needs at least one input")
        _check_axis(xs[0].rank, axis)
        first = xs[0].shape
        for x in xs:
            expect(x.rank == len(first), f"needs equal shapes off axis {axis}")
            expect_equal(
                x.shape[:axis] + x.shape[axis + 1 :],
                first[:axis] + first[axis + 1 :],
                f"needs equal shapes off axis {axis}",
            )
        expect(all(x.dtype is xs[0].dtype for x in xs), "needs operands of one element type")
        return xs[0].with_shape((*first[:axis], sum(x.shape[axis] for x in xs), *first[axis + 1 :]))

    def reference(*xs, axis):
        return np.concatenate(xs, axis)


def length(start: Size, end: Size, step: int) -> Size:
    """How many elements a slice takes."""
    return maximum(0, (end - start + step - 1) // step if step > 0 else (start - end - step - 1) // -step)


@structured(
    "Slice",
    moves=True,
    view=True,
    examples=(
        ("f32[5, 13]", dict(starts=(1,), ends=(12,), axes=(1,), steps=(3,))),
        ("f32[2, 58, 7, 7]", dict(starts=(29,), ends=(58,), axes=(1,), steps=(1,))),
        ("f32[7, 5]", dict(starts=(6, 3), ends=(-1, 0), axes=(0, 1), steps=(-2, -1))),
        ("i64[9]", dict(starts=(4,), ends=(4,), axes=(0,), steps=(1,))),
    ),
)
class slice_:
    """Y[i] = X[start + i · step] along each axis, up to before `end`; −1 ends a negative step behind the first
    element."""

    def infer(x: TensorType, *, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> TensorType:
        expect(len(starts) == len(ends) == len(axes) == len(steps), "needs a start, end and step per axis")
        expect(
            len(set(axes)) == len(axes) and all(0 <= a < x.rank for a in axes),
            f"needs distinct axes from 0 to {x.rank - 1}, got {list(axes)}",
        )
        shape = list(x.shape)
        for start, end, axis, step in zip(starts, ends, axes, steps):
            n = x.shape[axis]
            expect(step != 0, "needs steps other than 0")
            shape[axis] = length(start, end, step)
            expect(
                shape[axis] == 0 or (0 <= start and end <= n if step > 0 else start < n and end >= -1),
                f"needs a range inside of axis {axis}, got {start} to {end}",
            )
        return x.with_shape(shape)

    def reference(x, *, starts, ends, axes, steps):
        cut = [slice(None)] * x.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps):
            cut[axis] = slice(start, None if step < 0 and end < 0 else end, step)
        return x[tuple(cut)]


def along(x: TermLike, axis: int, start: int, end: int, step: int = 1) -> TermLike:
    """A slice of one axis."""
    return slice_(x, starts=(start,), ends=(end,), axes=(axis,), steps=(step,))


@structured(
    "Expand",
    moves=True,
    view=True,
    examples=(("f32[3, 1]", dict(shape=(2, 3, 7))), ("f32[]", dict(shape=(5,))), ("i64[1, 4]", dict(shape=(3, 4)))),
)
class expand:
    """X broadcast to a shape."""

    def infer(x: TensorType, *, shape: Ints) -> TensorType:
        expect(
            broadcast_shapes(x.shape, shape) == tuple(shape),
            f"needs a shape that the input broadcasts to, got {list(shape)}",
        )
        return x.with_shape(shape)

    def reference(x, *, shape):
        return np.broadcast_to(x, shape)


@structured(
    "Tile", moves=True, examples=(("f32[3, 5]", dict(repeats=(2, 3))), ("i64[2, 1, 3]", dict(repeats=(1, 7, 2))))
)
class tile:
    """X repeated along each axis."""

    def infer(x: TensorType, *, repeats: Ints) -> TensorType:
        expect(
            len(repeats) == x.rank and all(r >= 0 for r in repeats),
            f"needs {x.rank} repeats, zero and more, got {list(repeats)}",
        )
        return x.with_shape(d * r for d, r in zip(x.shape, repeats))

    def reference(x, *, repeats):
        return np.tile(x, repeats)


@structured(
    "Pad",
    moves=True,
    examples=(
        ("f32[2, 3, 5, 7]", "f32[]", dict(pads=(0, 0, 1, 2, 0, 0, 3, 0))),
        ("f32[5, 7]", "f32[]", dict(pads=(2, 3, 1, 4), mode="reflect")),
        ("f32[5, 3]", "f32[]", dict(pads=(1, 2, 0, 5), mode="edge")),
        ("f32[5, 3]", "f32[]", dict(pads=(1, 2, 3, 1), mode="wrap")),
        ("i64[7]", "i64[]", dict(pads=(-2, 3))),
    ),
)
class pad:
    """X with elements put before and behind each axis: a value, its mirror image, its edge or itself again; negative
    pads take away."""

    def infer(x: TensorType, value: TensorType, *, pads: Ints, mode: str = "constant") -> TensorType:
        expect(len(pads) == 2 * x.rank, f"needs {2 * x.rank} pads, got {list(pads)}")
        expect(
            mode in ("constant", "reflect", "edge", "wrap"), f"needs mode constant, reflect, edge or wrap, got {mode!r}"
        )
        expect(value.dtype is x.dtype and value.size == 1, f"needs one value of type {x.dtype.value}")
        out = x.with_shape(d + before + after for d, before, after in zip(x.shape, pads[: x.rank], pads[x.rank :]))
        kept = (
            d + minimum(before, 0) + minimum(after, 0)
            for d, before, after in zip(x.shape, pads[: x.rank], pads[x.rank :])
        )
        expect(all(d >= 0 for d in kept), f"needs pads that take away no more than there is, got {list(pads)}")
        expect(
            mode == "constant" or all(d > 0 for d, after in zip(x.shape, out.shape) if after > d),
            f"has nothing to {mode} along an empty axis",
        )
        return out

    def reference(x, value, *, pads, mode="constant"):
        sides = list(zip(pads[: x.ndim], pads[x.ndim :]))
        x = x[tuple(slice(max(0, -before), d - max(0, -after)) for d, (before, after) in zip(x.shape, sides))]
        sides = [(max(0, before), max(0, after)) for before, after in sides]
        return np.pad(x, sides, mode, constant_values=value.item()) if mode == "constant" else np.pad(x, sides, mode)


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
        _check_axis(x.rank, axis)
        expect(indices.dtype.is_integer, "needs integer indices")
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def reference(x, indices, *, axis):
        return np.take(x, indices, axis)


def _along(indices: np.ndarray, axis: int) -> tuple:
    """The index that meets, for each element of `indices`, that element along the axis and its own place elsewhere."""
    place = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
    place[axis] = indices
    return tuple(place)


def _check_along(x: TensorType, indices: TensorType, axis: int) -> None:
    _check_axis(x.rank, axis)
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


@structured(
    "Trilu",
    moves=True,
    examples=(("f32[5, 7]", dict(upper=True)), ("f32[2, 7, 5]", dict(k=-1, upper=False)), ("i64[3, 3]", dict(k=2))),
)
class trilu:
    """X with zeros below (upper) or above (lower) its k-th diagonal."""

    def infer(x: TensorType, *, k: int = 0, upper: bool = True) -> TensorType:
        expect(x.rank >= 2, "needs matrices")
        return x

    def reference(x, *, k=0, upper=True):
        return np.triu(x, k) if upper else np.tril(x, k)


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
        _check_axis(indices.rank + 1, axis)
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


def _check_blocks(x: TensorType, block: int) -> None:
    expect(x.rank == 4, "needs an input of rank 4: batch, channels, height, width")
    expect(block >= 1, f"needs a block of 1 and more, got {block}")


@composite(
    "DepthToSpace",
    moves=True,
    examples=(("f32[2, 12, 3, 5]", dict(block=2)), ("f32[1, 18, 2, 3]", dict(block=3, mode="CRD"))),
)
class depth_to_space:
    """Channels become blocks of space: mode DCR takes them depth first, CRD column and row first."""

    def infer(x: TensorType, *, block: int, mode: str = "DCR") -> TensorType:
        _check_blocks(x, block)
        expect(mode in ("DCR", "CRD"), f"needs mode DCR or CRD, got {mode!r}")
        n, c, h, w = x.shape
        expect_equal(c % (block * block), 0, f"needs channels divisible by {block * block}, got {c}")
        return x.with_shape((n, c // (block * block), h * block, w * block))

    def expand(x, *, block, mode):
        n, c, h, w = x.type.shape
        depth = c // (block * block)
        split = (n, block, block, depth, h, w) if mode == "DCR" else (n, depth, block, block, h, w)
        perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
        return reshape(transpose(reshape(x, shape=split), perm=perm), shape=(n, depth, h * block, w * block))


@composite(
    "SpaceToDepth", moves=True, examples=(("f32[2, 3, 6, 10]", dict(block=2)), ("f32[1, 5, 3, 9]", dict(block=3)))
)
class space_to_depth:
    """Blocks of space become channels."""

    def infer(x: TensorType, *, block: int) -> TensorType:
        _check_blocks(x, block)
        n, c, h, w = x.shape
        expect_equal((h % block, w % block), (0, 0), f"needs height and width divisible by {block}, got {h} and {w}")
        return x.with_shape((n, c * block * block, h // block, w // block))

    def expand(x, *, block):
        n, c, h, w = x.type.shape
        split = reshape(x, shape=(n, c, h // block, block, w // block, block))
        return reshape(transpose(split, perm=(0, 3, 5, 1, 2, 4)), shape=(n, c * block * block, h // block, w // block))
