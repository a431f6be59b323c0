"""Weighted sums of gathered elements, and sampling between the elements of a feature map by these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, I64, DType, TensorType

from .logic import less_equal, logical_and
from .math import abs_, add, cast, div, floor, maximum, minimum, mul, round_, sub, where
from .op import Term, TermLike, composite, expect, expect_equal, structured
from .shape import reshape, slice_
from .sizes import sizes


@structured(
    examples=(
        ("f32[5, 13]", "i64[4, 3]", "f32[4, 3]", dict(axis=0)),
        ("f32[2, 3, 7]", "i32[5, 2, 4]", "f32[5, 2, 4]", dict(axis=2)),
        ("f32[2, 7, 9]", "i32[2, 5, 2, 1]", "f32[2, 5, 2, 1]", dict(axis=1, batch_dims=1)),
        ("f32[2, 3, 7]", "i64[2, 5, 3]", "f32[2, 5, 3]", dict(axis=2, batch_dims=1)),
        ("f64[7]", "i64[2]", "f64[2]", dict(axis=0)),
        ("f16[3, 7]", "i64[2, 2]", "f32[2, 2]", dict(axis=1)),
    )
)
class blend:
    """Y[b…, m…, p…, r…] = Σₜ weights[b…, p…, t] · X[b…, m…, indices[b…, p…, t], r…], the axis replaced by points p.

    A weight of 0 contributes nothing, whatever the element.
    """

    def infer(x: TensorType, indices: TensorType, weights: TensorType, *, axis: int, batch_dims: int = 0) -> TensorType:
        expect(
            0 <= batch_dims <= axis < x.rank,
            f"needs an axis behind {batch_dims} batch dimensions and below {x.rank}, got {axis}",
        )
        expect(
            x.dtype.is_float and weights.dtype is wide(x.dtype),
            "needs floating point, and weights as f64 for f64, else as f32",
        )
        expect(
            indices.dtype.is_integer and indices.rank > batch_dims,
            f"needs integer indices of rank {batch_dims + 1} and more",
        )
        expect_equal(indices.shape, weights.shape, "needs as many weights as indices")
        expect_equal(indices.shape[:batch_dims], x.shape[:batch_dims], f"needs {batch_dims} equal batch dimensions")
        return x.with_shape((*x.shape[:axis], *indices.shape[batch_dims:-1], *x.shape[axis + 1 :]))

    def reference(x, indices, weights, *, axis, batch_dims=0):
        points = indices.shape[batch_dims:-1]
        y = np.zeros((*x.shape[:axis], *points, *x.shape[axis + 1 :]), np.result_type(x, weights))
        for at in np.ndindex(*indices.shape[:batch_dims]):
            for t in range(indices.shape[-1]):
                by = np.reshape(weights[at][..., t], (*points, *[1] * (x.ndim - axis - 1)))
                y[at] += np.where(by == 0, 0, by * np.take(x[at], indices[at][..., t], axis - batch_dims))
        return y.astype(x.dtype)

    def flops(x: TensorType, indices: TensorType, weights: TensorType, *, axis: int, batch_dims: int = 0) -> int:
        return 2 * indices.shape[-1] * blend.infer(x, indices, weights, axis=axis, batch_dims=batch_dims).size


def wide(dtype: DType) -> DType:
    """Returns the type for coordinates and weights of elements of a type."""
    return F64 if dtype is F64 else F32


def number(size: Size, dtype: DType) -> TermLike:
    """Returns a size, known or dynamic, as a scalar."""
    return np.asarray(size, dtype.numpy) if is_known(size) else cast(sizes(values=(size,), shape=()), to=dtype)


def at_once(op: TermLike, a, b):
    """Applies an op to two numbers, folded if both are known."""
    return (
        op(a, b) if isinstance(a, Term) or isinstance(b, Term) else op.evaluate((np.asarray(a), np.asarray(b)), {})[0]
    )


def counted_in(size: Size) -> DType:
    """Returns the type of indices into `size` elements."""
    return I32 if is_known(size) and size < 1 << 31 else I64


def within(x: TermLike, low, high) -> TermLike:
    return logical_and(less_equal(low, x), less_equal(x, high))


def _mirrored(x: TermLike, last: TermLike, align_corners: bool) -> TermLike:
    """Reflects a coordinate into the axis, at the centers of the first and last element or at their outer edges."""
    low, span = (0.0, at_once(maximum, last, 1e-9)) if align_corners else (-0.5, at_once(add, last, 1.0))
    far, there_and_back = abs_(sub(x, low)), at_once(mul, span, 2.0)
    far = sub(far, mul(there_and_back, floor(div(far, there_and_back))))
    return add(minimum(far, sub(there_and_back, far)), low)


def curve(t: TermLike, mode: str, a: float = -0.75) -> TermLike:
    """Returns the weight of an element at a distance: a linear or Keys' cubic kernel."""
    if mode == "linear":
        return maximum(sub(1.0, t), 0.0)
    near = add(mul(mul(sub(mul(t, a + 2), a + 3), t), t), 1.0)
    far = sub(mul(add(mul(sub(mul(t, a), 5 * a), t), 8 * a), t), 4 * a)
    return where(less_equal(t, 1.0), near, where(less_equal(t, 2.0), far, 0.0))


def taps(
    at: Sequence[TermLike], space: Sequence[Size], dtype: DType, *, mode: str, padding: str, align_corners: bool = True
) -> tuple[TermLike, TermLike]:
    """Returns (row-major indices into `space`, and weights) [points…, taps] at coordinates `at` [points…, 1].

    at: one per axis. padding: outside are zeros, the elements of the border, or a reflection.
    """
    offsets = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    grid = np.array(list(itertools.product(offsets, repeat=len(space))), dtype.numpy).T  # [axis, tap]
    counted = counted_in(math.prod(space))
    index: TermLike = None
    weight: TermLike = None
    for axis, (x, size) in enumerate(zip(at, space)):
        last = number(size - 1, dtype)
        x = round_(x) if mode == "nearest" else x
        # cubic interpolation continues outside, over copies of the border, as in PyTorch and ONNX Runtime
        if padding == "border" and mode != "cubic":
            x = minimum(maximum(x, 0.0), last)
        elif padding == "reflection":
            x = where(
                within(x, 0.0 if align_corners else -0.5, last if align_corners else at_once(add, last, 0.5)),
                x,
                _mirrored(x, last, align_corners),
            )
        place = add(x if mode == "nearest" else floor(x), grid[axis])
        by = None if mode == "nearest" else curve(abs_(sub(x, place)), mode)
        if padding == "zeros":
            there = within(place, 0.0, last)
            by = where(there, number(1, dtype) if by is None else by, 0.0)
        elif padding == "reflection":
            place = round_(_mirrored(place, last, align_corners))
        place = cast(minimum(maximum(place, 0.0), last), to=counted)
        below = math.prod(space[axis + 1 :])
        place = place if axis == len(space) - 1 else mul(place, number(below, counted))
        index = place if index is None else add(index, place)
        if by is not None:
            weight = by if weight is None else mul(weight, by)
    return index, weight if weight is not None else add(mul(cast(index, to=dtype), 0.0), 1.0)


@composite(
    "GridSample",
    position_operand=1,
    examples=(
        ("f32[2, 3, 5, 7]", "f32[2, 4, 6, 2]", dict()),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(padding="border")),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(padding="reflection")),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(padding="reflection", align_corners=True)),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(mode="cubic", padding="reflection")),
        ("f32[1, 2, 5, 1]", "f32[1, 4, 6, 2]", dict(mode="cubic")),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(mode="nearest", padding="border")),
        ("f32[1, 3, 5, 7]", "f32[1, 4, 6, 2]", dict(mode="nearest")),
        ("f64[1, 3, 5, 7]", "f64[1, 4, 6, 2]", dict(mode="cubic", padding="border", align_corners=True)),
        ("f32[1, 2, 3, 4, 5]", "f32[1, 2, 4, 3, 3]", dict()),
        ("f32[1, 2, 3, 4, 5]", "f32[1, 2, 4, 3, 3]", dict(mode="nearest", padding="reflection")),
    ),
    domain=(-1.3, 1.3),
)
class grid_sample:
    """Y[n, c, p…] = X[n, c] at grid[n, p…], whose last axis has a coordinate per spatial axis, the last one first.

    Coordinates are −1 at the start of an axis, 1 at its end.
    """

    def infer(
        x: TensorType, grid: TensorType, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
    ) -> TensorType:
        expect(
            3 <= x.rank <= 6 and grid.rank == x.rank,
            "needs an input of one to four axes of space, and a grid of its rank",
        )
        expect(x.dtype.is_float and grid.dtype.is_float, "needs floating point")
        expect_equal(
            (grid.shape[0], grid.shape[-1]),
            (x.shape[0], x.rank - 2),
            f"needs a grid of the same batch and {x.rank - 2} coordinates per point",
        )
        expect(mode in ("nearest", "linear", "cubic"), f"needs mode nearest, linear or cubic, got {mode!r}")
        expect(
            padding in ("zeros", "border", "reflection"), f"needs padding zeros, border or reflection, got {padding!r}"
        )
        expect(all(d > 0 for d in x.shape[2:]), "has nothing to sample")
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    def expand(x: Value, grid: Value, *, mode: str, padding: str, align_corners: bool) -> TermLike:
        space, dtype = x.type.shape[2:], wide(x.type.dtype)
        at = []
        for axis, size in enumerate(space):
            k = len(space) - 1 - axis
            v = cast(slice_(grid, starts=(k,), ends=(k + 1,), axes=(grid.type.rank - 1,), steps=(1,)), to=dtype)
            scale = number(size - 1 if align_corners else size, dtype)
            moved = mul(add(v, 1.0), scale)
            at.append(mul(moved if align_corners else sub(moved, 1.0), 0.5))
        index, weight = taps(at, space, dtype, mode=mode, padding=padding, align_corners=align_corners)
        return blend(reshape(x, shape=(*x.type.shape[:2], math.prod(space))), index, weight, axis=2, batch_dims=1)
