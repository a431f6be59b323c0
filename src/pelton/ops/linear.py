"""Matrix multiplication, and determinants."""

from __future__ import annotations

import contextlib

import numpy as np

from pelton.ir import scalar as sc
from pelton.ir.graph import Value
from pelton.ir.types import I32, DType, TensorType, broadcast_shapes

from .math import cast, sub
from .op import TermLike, expect, expect_equal, structured


def product_type(a: DType, b: DType, accumulate: DType | None, to: DType | None) -> DType:
    """Returns the element type of a sum of products; raises ValueError if the types do not fit.

    accumulate: the type of the sum, by default that of the operands. to: the type of the result.
    """
    expect(a is b or accumulate is not None and a.is_integer and b.is_integer, "needs operands of one element type")
    if accumulate is not None:
        expect(
            accumulate.is_integer == a.is_integer
            and accumulate.is_float == a.is_float
            and accumulate.bits >= max(a.bits, b.bits),
            f"cannot sum products of {a.value} in {accumulate.value}",
        )
    expect(to is None or to.is_float or to.is_integer, "needs a numeric output type")
    return to or accumulate or a


def summed_in(array: np.ndarray, accumulate: DType | None) -> np.ndarray:
    """Converts an operand for a reference: integers to the type of the sum, floats unchanged."""
    return array if accumulate is None or array.dtype.kind == "f" else array.astype(accumulate.numpy)


def converted(array: np.ndarray, to: DType | None) -> np.ndarray:
    """Converts a result of a reference: integers to the type `to`, floats not yet rounded."""
    if to is None or to.is_float:
        return array if to is None or array.dtype.kind == "f" else array.astype(np.float64)
    return sc.cast(array, to)


def _cast(thing: TermLike, dtype: DType, to: DType) -> TermLike:
    return thing if dtype is to else cast(thing, to=to)


def summed(op: TermLike, operands: tuple[Value, ...], accumulate: DType | None, to: DType | None, **attrs) -> TermLike:
    """Builds a typed product from one of cast operands, with a cast of its result."""
    within = accumulate or operands[0].type.dtype
    return _cast(op(*(_cast(v, v.type.dtype, within) for v in operands), **attrs), within, to or within)


@structured(
    "MatMul",
    product=True,
    heavy=True,
    examples=(
        ("f32[5, 7]", "f32[7, 3]"),
        ("f32[2, 1, 5, 7]", "f32[3, 7, 4]"),
        ("f32[58, 125]", "f32[125, 37]"),
        ("f32[13]", "f32[13]"),
        ("f32[13]", "f32[2, 13, 5]"),
        ("f32[3, 5, 13]", "f32[13]"),
        ("f32[1, 61]", "f32[61, 129]"),
        ("i32[3, 5]", "i32[5, 2]"),
        ("u8[2, 3, 5]", "i8[2, 5, 4]", dict(accumulate=I32, a_zero=255, b_zero=-128)),
    ),
)
class matmul:
    """C[…, m, n] = Σₖ (A[…, m, k] − a_zero) · (B[…, k, n] − b_zero), summed in the type `accumulate`, converted to the
    type `to`. Only sums of integers that name their type have zero points; these are numbers of the operands' types."""

    def infer(
        a: TensorType,
        b: TensorType,
        *,
        accumulate: DType | None = None,
        to: DType | None = None,
        a_zero: int = 0,
        b_zero: int = 0,
    ) -> TensorType:
        expect(a.rank >= 1 and b.rank >= 1, "needs operands of rank 1 and more")
        dtype = product_type(a.dtype, b.dtype, accumulate, to)
        for zero, of in ((a_zero, a.dtype), (b_zero, b.dtype)):
            types = (of, accumulate or of)
            held = accumulate is not None and all(t.is_integer and t.lowest <= zero <= t.highest for t in types)
            expect(zero == 0 or held, f"needs sums of integers, and a zero point that {of.value} holds, got {zero}")
        expect_equal(a.shape[-1], b.shape[-2 if b.rank > 1 else 0], "needs equal inner dimensions")
        rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
        return a.with_dtype(dtype).with_shape(broadcast_shapes(a.shape[:-2], b.shape[:-2]) + rows + columns)

    def reference(a, b, *, accumulate=None, to=None, a_zero=0, b_zero=0):
        a, b = (
            summed_in(array, accumulate) - zero if zero else summed_in(array, accumulate)
            for array, zero in ((a, a_zero), (b, b_zero))
        )
        return converted(np.matmul(a, b), to)

    def expand(a: Value, b: Value, *, accumulate: DType | None, to: DType | None, a_zero: int, b_zero: int) -> TermLike:
        if accumulate is not None and (a_zero or b_zero):
            less = [sub(_cast(v, v.type.dtype, accumulate), zero) for v, zero in ((a, a_zero), (b, b_zero))]
            return matmul(*less, accumulate=accumulate, to=to)
        return None if accumulate is to is None else summed(matmul, (a, b), accumulate, to)

    def flops(a: TensorType, b: TensorType, **attrs) -> int:
        return 2 * a.shape[-1] * matmul.infer(a, b, **attrs).size


@structured("Det", examples=(("f32[5, 5]",), ("f32[2, 3, 7, 7]",), ("f32[3, 1, 1]",)))
class det:
    """Y[…] = |X[…, :, :]|, the determinants of matrices."""

    def infer(x: TensorType) -> TensorType:
        expect(x.rank >= 2 and x.dtype.is_float, "needs matrices of floating point")
        expect_equal(x.shape[-1], x.shape[-2], "needs matrices as high as wide")
        return x.with_shape(x.shape[:-2])

    def reference(x):
        return np.linalg.det(x)

    def flops(x: TensorType) -> int:
        return 2 * x.size * x.shape[-1] // 3


@structured(examples=(("f32[5, 5]",), ("f32[2, 3, 7, 7]",), ("f32[3, 1, 1]",)))
class inverse:
    """Y[…, :, :] = X[…, :, :]⁻¹; NaN where a matrix has none."""

    def infer(x: TensorType) -> TensorType:
        expect(x.rank >= 2 and x.dtype.is_float, "needs matrices of floating point")
        expect_equal(x.shape[-1], x.shape[-2], "needs matrices as high as wide")
        return x

    def reference(x):
        out = np.full(x.shape, np.nan, x.dtype)
        for i in np.ndindex(x.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                out[i] = np.linalg.inv(x[i])
        return out

    def flops(x: TensorType) -> int:
        return 2 * x.size * x.shape[-1]
