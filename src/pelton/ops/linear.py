"""Matrix multiplication, and determinants."""
from __future__ import annotations

import numpy as np

from pelton.ir.types import TensorType, broadcast_shapes

from .op import expect, expect_equal, structured


@structured("MatMul", product=True, heavy=True, examples=(
    ("f32[5, 7]", "f32[7, 3]"), ("f32[2, 1, 5, 7]", "f32[3, 7, 4]"), ("f32[58, 125]", "f32[125, 37]"), ("f32[13]", "f32[13]"),
    ("f32[13]", "f32[2, 13, 5]"), ("f32[3, 5, 13]", "f32[13]"), ("f32[1, 61]", "f32[61, 129]"), ("i32[3, 5]", "i32[5, 2]")))
class matmul:
    """C[…, m, n] = Σₖ A[…, m, k] · B[…, k, n]."""

    def infer(a: TensorType, b: TensorType) -> TensorType:
        expect(a.rank >= 1 and b.rank >= 1, "needs operands of rank 1 and more")
        expect(a.dtype is b.dtype, "needs operands of one element type")
        expect_equal(a.shape[-1], b.shape[-2 if b.rank > 1 else 0], "needs equal inner dimensions")
        rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
        return a.with_shape(broadcast_shapes(a.shape[:-2], b.shape[:-2]) + rows + columns)

    def reference(a, b):
        return np.matmul(a, b)

    def flops(a: TensorType, b: TensorType) -> int:
        return 2 * a.shape[-1] * matmul.infer(a, b).size


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
