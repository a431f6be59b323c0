"""Reductions, arg-extrema, cumulative sums and products, and top-k."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir import scalar as sc
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I8, I32, I64, U8, DType, TensorType

from .math import abs_, add, cast, exp, is_inf, log, mul, sqrt, sub, where
from .op import TermLike, composite, expect, structured
from .shape import reshape

Axes = tuple[int, ...]
_ANY = (
    ("f32[5, 13]", dict(axes=(1,))),
    ("f32[2, 3, 7, 5]", dict(axes=(2, 3), keepdims=False)),
    ("f32[2, 3, 7, 5]", dict(axes=(1,))),
    ("f32[3, 1009]", dict(axes=(0, 1), keepdims=False)),
    ("f32[58, 7, 3]", dict(axes=(0, 2))),
)


def reduced(x: TensorType, axes: Axes, keepdims: bool) -> TensorType:
    """Returns the type of a reduction over the axes."""
    expect(x.dtype.is_float or x.dtype.is_integer or x.dtype is BOOL, "needs numbers or truth values")
    expect(
        len(axes) > 0 and len(set(axes)) == len(axes) and all(0 <= a < x.rank for a in axes),
        f"needs distinct axes from 0 to {x.rank - 1}, got {list(axes)}",
    )
    return x.with_shape((1 if i in axes else d) for i, d in enumerate(x.shape) if keepdims or i not in axes)


def _summed(x: TensorType, axes: Axes, keepdims: bool) -> TensorType:
    expect(x.dtype.is_float or x.dtype.is_integer, "needs numbers")
    return reduced(x, axes, keepdims)


def _flops(x: TensorType, **attrs) -> int:
    """Counts one operation per element."""
    return x.size


@structured("ReduceSum", examples=(*_ANY, ("i32[5, 13]", dict(axes=(0,)))))
class reduce_sum:
    """Y = Σ X over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return _summed(x, axes, keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.sum(x, axes, dtype=x.dtype, keepdims=keepdims)

    flops = _flops


@structured(
    examples=(
        ("i8[5, 13]", dict(axes=(1,))),
        ("u8[2, 3, 7, 5]", dict(axes=(2, 3), keepdims=False)),
        ("i8[2, 37, 7]", dict(axes=(0, 2))),
        ("u8[3, 1009]", dict(axes=(0, 1))),
    )
)
class byte_sum:
    """Y = Σ X over the axes in i32, X of bytes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        expect(x.dtype in (I8, U8), "needs bytes")
        return reduced(x, axes, keepdims).with_dtype(I32)

    def reference(x, *, axes, keepdims=True):
        return np.sum(x, axes, dtype=np.int32, keepdims=keepdims)

    def expand(x: Value, *, axes: Axes, keepdims: bool = True) -> TermLike:
        return reduce_sum(cast(x, to=I32), axes=axes, keepdims=keepdims)

    flops = _flops


@structured("ReduceMean", keeps_range=True, examples=(*_ANY, ("i32[5, 13]", dict(axes=(0,)))))
class reduce_mean:
    """Y = Σ X / n over the axes; integers round towards zero."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return _summed(x, axes, keepdims)

    def reference(x, *, axes, keepdims=True):
        wide = {"f": x.dtype, "u": np.uint64}.get(x.dtype.kind, np.int64)
        total = np.sum(x, axes, dtype=wide, keepdims=keepdims)
        return sc.apply("div", total, total.dtype.type(math.prod(x.shape[a] for a in axes))).astype(x.dtype)

    flops = _flops


@structured("ReduceMax", examples=(*_ANY, ("i64[5, 13]", dict(axes=(0,))), ("bool[5, 13]", dict(axes=(1,)))))
class reduce_max:
    """Y = max X over the axes; without elements, the lowest value of the type."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return reduced(x, axes, keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.max(x, axes, keepdims=keepdims, initial=DType.of(x).lowest)

    flops = _flops


@structured("ReduceMin", examples=(*_ANY, ("i64[5, 13]", dict(axes=(0,))), ("bool[5, 13]", dict(axes=(1,)))))
class reduce_min:
    """Y = min X over the axes; without elements, the highest value of the type."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return reduced(x, axes, keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.min(x, axes, keepdims=keepdims, initial=DType.of(x).highest)

    flops = _flops


@structured(
    "ReduceProd",
    domain=(0.8, 1.25),
    examples=(
        ("f32[5, 13]", dict(axes=(1,))),
        ("f32[2, 3, 7, 5]", dict(axes=(2, 3), keepdims=False)),
        ("i32[3, 5]", dict(axes=(0,))),
    ),
)
class reduce_prod:
    """Y = Π X over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return _summed(x, axes, keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.prod(x, axes, dtype=x.dtype, keepdims=keepdims)

    flops = _flops


@composite("ReduceL1", examples=_ANY)
class reduce_l1:
    """Y = Σ |X| over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return _summed(x, axes, keepdims)

    def expand(x, *, axes, keepdims):
        return reduce_sum(abs_(x), axes=axes, keepdims=keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.sum(np.abs(x), axes, dtype=x.dtype, keepdims=keepdims)


@composite("ReduceL2", examples=_ANY)
class reduce_l2:
    """Y = √Σ X² over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        return reduced(x, axes, keepdims)

    def expand(x, *, axes, keepdims):
        return sqrt(reduce_sum(mul(x, x), axes=axes, keepdims=keepdims))

    def reference(x, *, axes, keepdims=True):
        return np.sqrt(np.sum(x * x, axes, keepdims=keepdims))


@composite("ReduceSumSquare", examples=_ANY)
class reduce_sum_square:
    """Y = Σ X² over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        return _summed(x, axes, keepdims)

    def expand(x, *, axes, keepdims):
        return reduce_sum(mul(x, x), axes=axes, keepdims=keepdims)

    def reference(x, *, axes, keepdims=True):
        return np.sum(x * x, axes, dtype=x.dtype, keepdims=keepdims)


@composite("ReduceLogSum", domain=(0.1, 3.0), examples=_ANY)
class reduce_log_sum:
    """Y = log Σ X over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        return reduced(x, axes, keepdims)

    def expand(x, *, axes, keepdims):
        return log(reduce_sum(x, axes=axes, keepdims=keepdims))

    def reference(x, *, axes, keepdims=True):
        return np.log(np.sum(x, axes, keepdims=keepdims))


@composite("ReduceLogSumExp", examples=_ANY)
class reduce_log_sum_exp:
    """Y = max X + log Σ e^(X − max X) over the axes."""

    def infer(x: TensorType, *, axes: Axes, keepdims: bool = True) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        return reduced(x, axes, keepdims)

    def expand(x, *, axes, keepdims):
        top = reduce_max(x, axes=axes, keepdims=True)
        top = where(is_inf(top), 0.0, top)  # if all are −∞, the sum is 0, not ∞ − ∞
        y = add(top, log(reduce_sum(exp(sub(x, top)), axes=axes, keepdims=True)))
        return y if keepdims else reshape(y, shape=reduced(x.type, axes, keepdims=False).shape)

    def reference(x, *, axes, keepdims=True):
        top = np.max(x, axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isinf(top), 0.0, top)
        y = top + np.log(np.sum(np.exp(x - top), axes, keepdims=True))
        return y if keepdims else y.squeeze(axes)


_ARG = (
    ("f32[5, 13]", dict(axis=1)),
    ("f32[2, 3, 7]", dict(axis=0, keepdims=False)),
    ("i32[7, 11]", dict(axis=1, select_last_index=True)),
)


def _arg(best, x: np.ndarray, axis: int, keepdims: bool, last: bool) -> np.ndarray:
    if not last:
        return best(x, axis=axis, keepdims=keepdims)
    return x.shape[axis] - 1 - best(np.flip(x, axis), axis=axis, keepdims=keepdims)


@structured("ArgMax", examples=_ARG)
class arg_max:
    """The index of the largest element along an axis; the first one (or the last one) of equals."""

    def infer(x: TensorType, *, axis: int, keepdims: bool = True, select_last_index: bool = False) -> TensorType:
        output = reduced(x, (axis,), keepdims).with_dtype(I64)
        expect(output.size == 0 or x.size > 0, "needs something to search")
        return output

    def reference(x, *, axis, keepdims=True, select_last_index=False):
        return _arg(np.argmax, x, axis, keepdims, select_last_index)

    flops = _flops


@structured("ArgMin", examples=_ARG)
class arg_min:
    """The index of the smallest element along an axis; the first one (or the last one) of equals."""

    def infer(x: TensorType, *, axis: int, keepdims: bool = True, select_last_index: bool = False) -> TensorType:
        output = reduced(x, (axis,), keepdims).with_dtype(I64)
        expect(output.size == 0 or x.size > 0, "needs something to search")
        return output

    def reference(x, *, axis, keepdims=True, select_last_index=False):
        return _arg(np.argmin, x, axis, keepdims, select_last_index)

    flops = _flops


def _running(join, start: int, x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """Computes cumulative sums or products along an axis."""
    x = np.flip(x, axis) if reverse else x
    y = join(x, axis, dtype=x.dtype)
    if exclusive:
        y = np.roll(y, 1, axis)
        np.moveaxis(y, axis, 0)[:1] = start
    return np.flip(y, axis) if reverse else y


@structured(
    "CumSum",
    examples=(
        ("f32[5, 13]", dict(axis=1)),
        ("f32[3, 7]", dict(axis=0, exclusive=True)),
        ("i32[3, 7]", dict(axis=1, reverse=True)),
        ("f32[2, 3, 7]", dict(axis=1, exclusive=True, reverse=True)),
    ),
)
class cumsum:
    """Yᵢ = Σ_{j ≤ i} Xⱼ along an axis; `exclusive` leaves out j = i, `reverse` sums from the end."""

    def infer(x: TensorType, *, axis: int, exclusive: bool = False, reverse: bool = False) -> TensorType:
        expect(0 <= axis < x.rank, f"needs an axis from 0 to {x.rank - 1}, got {axis}")
        return x

    def reference(x, *, axis, exclusive=False, reverse=False):
        return _running(np.cumsum, 0, x, axis, exclusive, reverse)

    flops = _flops


@structured(
    "CumProd",
    domain=(0.6, 1.6),
    examples=(
        ("f32[5, 13]", dict(axis=1)),
        ("f32[3, 7]", dict(axis=0, exclusive=True)),
        ("i32[3, 7]", dict(axis=1, reverse=True)),
    ),
)
class cumprod:
    """Yᵢ = Π_{j ≤ i} Xⱼ along an axis; `exclusive` leaves out j = i, `reverse` goes from the end."""

    def infer(x: TensorType, *, axis: int, exclusive: bool = False, reverse: bool = False) -> TensorType:
        return cumsum.infer(x, axis=axis)

    def reference(x, *, axis, exclusive=False, reverse=False):
        return _running(np.cumprod, 1, x, axis, exclusive, reverse)

    flops = _flops


@structured(
    "TopK",
    examples=(
        ("f32[5, 13]", dict(k=3, axis=1)),
        ("f32[7, 3]", dict(k=7, axis=0, largest=False)),
        ("i32[2, 11]", dict(k=5, axis=1)),
    ),
)
class top_k:
    """The k largest (or smallest) elements along an axis and their indices, in order; the first ones of equals."""

    def infer(
        x: TensorType, *, k: int, axis: int, largest: bool = True, sorted: bool = True
    ) -> tuple[TensorType, TensorType]:
        expect(0 <= axis < x.rank, f"needs an axis from 0 to {x.rank - 1}, got {axis}")
        expect(0 <= k <= x.shape[axis], f"needs k from 0 to {x.shape[axis]}, got {k}")
        values = x.with_shape((*x.shape[:axis], k, *x.shape[axis + 1 :]))
        return values, values.with_dtype(I64)

    def reference(x, *, k, axis, largest=True, sorted=True):
        # the last k of a stable sort of the flipped array: equals keep their order
        if largest:
            order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        indices = np.take(order, np.arange(k), axis)
        return np.take_along_axis(x, indices, axis), indices

    flops = _flops
