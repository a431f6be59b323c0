"""Scaled dot-product attention."""
from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.types import TensorType, broadcast_shapes

from .linear import matmul
from .math import add, greater, mul, where
from .norm import softmax
from .op import composite, expect, expect_equal
from .shape import reshape, transpose
from .sizes import iota


def _causal(rows: int, columns: int) -> np.ndarray:
    """An additive mask: row i reads columns 0 to i."""
    return np.where(np.tri(rows, columns, dtype=bool), 0.0, -np.inf)


def _looks_ahead(rows: Size, columns: Size):
    """A term: where row i meets columns behind i."""
    return greater(iota(size=columns), reshape(iota(size=rows), shape=(rows, 1)))


@composite("Attention", examples=(
    ("f32[2, 3, 5, 8]", "f32[2, 3, 7, 8]", "f32[2, 3, 7, 4]", "f32[5, 7]", dict(scale=0.353)),
    ("f32[1, 2, 13, 58]", "f32[1, 2, 13, 58]", "f32[1, 2, 13, 58]", "f32[]", dict(scale=0.131, causal=True)),
    ("f32[7, 3]", "f32[11, 3]", "f32[11, 5]", "f32[1, 11]", dict(scale=0.577)),
    ("f32[2, 4, 5, 8]", "f32[2, 1, 6, 8]", "f32[2, 1, 6, 8]", "f32[2, 1, 1, 6]", dict(scale=1.0))))
class attention:
    """Y = softmax(scale · Q·Kᵀ + mask) · V over the last two axes; `causal` lets row i read columns 0 to i."""

    def infer(q: TensorType, k: TensorType, v: TensorType, mask: TensorType, *, scale: float, causal: bool = False) -> TensorType:
        expect(q.dtype.is_float and q.dtype is k.dtype is v.dtype is mask.dtype, "needs operands of one floating-point type")
        expect(q.rank == k.rank == v.rank and q.rank >= 2, "needs queries, keys and values of one rank, 2 and more")
        expect_equal(q.shape[-1], k.shape[-1], "needs queries and keys of equal depth")
        expect_equal(k.shape[-2], v.shape[-2], "needs as many keys as values")
        batch = broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        scores = (*batch, q.shape[-2], k.shape[-2])
        expect(broadcast_shapes(scores, mask.shape) == scores, f"needs a mask that broadcasts to {list(scores)}")
        return q.with_shape((*batch, q.shape[-2], v.shape[-1]))

    def expand(q, k, v, mask, *, scale, causal):
        rank = q.type.rank
        scores = matmul(mul(q, scale), transpose(k, perm=(*range(rank - 2), rank - 1, rank - 2)))
        if causal:
            rows, columns = q.type.shape[-2], k.type.shape[-2]
            known = is_known(rows, columns)
            scores = add(scores, _causal(rows, columns)) if known else where(_looks_ahead(rows, columns), -np.inf, scores)
        return matmul(softmax(add(scores, mask), axis=rank - 1), v)

    def reference(q, k, v, mask, *, scale, causal=False):
        scores = scale * (q @ k.swapaxes(-1, -2)) + mask
        if causal:
            scores = scores + _causal(*scores.shape[-2:]).astype(scores.dtype)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    def flops(q: TensorType, k: TensorType, v: TensorType, mask: TensorType, *, scale: float, causal: bool = False) -> int:
        out = attention.infer(q, k, v, mask, scale=scale, causal=causal)
        rows, keys = math.prod(out.shape[:-1]), k.shape[-2]
        return rows * keys * (2 * q.shape[-1] + 2 * v.shape[-1] + 16)
