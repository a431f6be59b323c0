"""Ops without inputs, whose results follow from dynamic dimensions alone and are computed once per shape."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.types import I64, DType, TensorType

from .op import expect, structured

Ints = tuple[int, ...]


@structured(
    examples=(
        (dict(values=(2, 3, 7), shape=(3,)),),
        (dict(values=(5,), shape=()),),
        (dict(values=(1, -1, 4, 9), shape=(2, 2)),),
    )
)
class sizes:
    """Sizes as an i64 tensor of a known shape: its elements in row-major order."""

    def infer(*, values: Ints, shape: Ints) -> TensorType:
        expect(
            math.prod(shape) == len(values),
            f"needs {math.prod(shape)} values for shape {list(shape)}, got {len(values)}",
        )
        return TensorType(I64, tuple(shape))

    def reference(*, values, shape):
        return np.array(values, np.int64).reshape(shape)


@structured(
    examples=((dict(size=5),), (dict(size=0),), (dict(size=13, dtype=DType.I32),), (dict(size=7, dtype=DType.F32),))
)
class iota:
    """0, 1, … size − 1."""

    def infer(*, size: int, dtype: DType = I64) -> TensorType:
        expect(size >= 0, f"needs a size of zero and more, got {size}")
        return TensorType(dtype, (size,))

    def reference(*, size, dtype=I64):
        return np.arange(size).astype(dtype.numpy)
