"""Ops that arrange elements without computing on them: shapes, axes, slices, padding, blocks."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, maximum, minimum
from pelton.ir.types import TensorType, broadcast_shapes

from .op import TermLike, composite, expect, expect_equal, structured

Ints = tuple[int, ...]


def check_axis(rank: int, axis: int) -> None:
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
        # bounds may not show that a product of sizes is at least 0
        expect(all(d == x.size or d >= 0 for d in shape), f"needs sizes of at least 0, got {list(shape)}")
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
    """The inputs concatenated along an axis."""

    def infer(*xs: TensorType, axis: int) -> TensorType:
        expect(len(xs) >= 1, "needs at least one input")
        check_axis(xs[0].rank, axis)
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
    """Returns the number of elements of a slice."""
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
    """Y[i] = X[start + i · step] along each axis, up to before `end`; an end of −1 includes element 0."""

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
    """Slices one axis."""
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
    """X padded at both ends of each axis by a value, its reflection, its edge or itself; negative pads crop."""

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
