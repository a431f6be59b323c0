"""Scaled dot-product attention, and the rotary embedding of positions before it."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.types import BF16, F16, I8, TensorType, broadcast_shapes

from .linear import matmul
from .logic import equal, greater
from .math import add, cast, mul, sub, where
from .norm import softmax
from .op import composite, expect, expect_equal
from .reduce import reduce_max
from .shape import concat, reshape, slice_, transpose
from .sizes import iota


def _causal(rows: int, columns: int) -> np.ndarray:
    """Returns an additive mask: row i reads columns 0 to i."""
    return np.where(np.tri(rows, columns, dtype=bool), 0.0, -np.inf)


def _looks_ahead(rows: Size, columns: Size):
    """Builds a term that is true where row i meets columns behind i."""
    return greater(iota(size=columns), reshape(iota(size=rows), shape=(rows, 1)))


@composite(
    "Attention",
    heavy=True,
    examples=(
        ("f32[2, 3, 5, 8]", "f32[2, 3, 7, 8]", "f32[2, 3, 7, 4]", "f32[5, 7]", dict(scale=0.353)),
        ("f32[1, 2, 13, 58]", "f32[1, 2, 13, 58]", "f32[1, 2, 13, 58]", "f32[]", dict(scale=0.131, causal=True)),
        ("f32[7, 3]", "f32[11, 3]", "f32[11, 5]", "f32[1, 11]", dict(scale=0.577)),
        ("f32[2, 4, 5, 8]", "f32[2, 1, 6, 8]", "f32[2, 1, 6, 8]", "f32[2, 1, 1, 6]", dict(scale=1.0)),
    ),
)
class attention:
    """Y = softmax(scale · Q·Kᵀ + mask) · V over the last two axes; `causal` lets row i read columns 0 to i.

    A row whose mask is −∞ everywhere is 0, as in ONNX since opset 23 and in PyTorch.
    """

    def infer(
        q: TensorType, k: TensorType, v: TensorType, mask: TensorType, *, scale: float, causal: bool = False
    ) -> TensorType:
        expect(
            q.dtype.is_float and q.dtype is k.dtype is v.dtype is mask.dtype,
            "needs operands of one floating-point type",
        )
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
            scores = (
                add(scores, _causal(rows, columns)) if known else where(_looks_ahead(rows, columns), -np.inf, scores)
            )
        scores = add(scores, mask)
        nothing = equal(reduce_max(scores, axes=(rank - 1,), keepdims=True), -np.inf)
        y = matmul(softmax(where(nothing, 0.0, scores), axis=rank - 1), v)
        return where(nothing, 0.0, y)

    def reference(q, k, v, mask, *, scale, causal=False):
        scores = scale * (q @ k.swapaxes(-1, -2)) + mask
        if causal:
            scores = scores + _causal(*scores.shape[-2:]).astype(scores.dtype)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        e = np.exp(scores - np.where(top == -np.inf, 0, top))
        total = e.sum(-1, keepdims=True)
        return e / np.where(total == 0, 1, total) @ v

    def flops(
        q: TensorType, k: TensorType, v: TensorType, mask: TensorType, *, scale: float, causal: bool = False
    ) -> int:
        out = attention.infer(q, k, v, mask, scale=scale, causal=causal)
        rows, keys = math.prod(out.shape[:-1]), k.shape[-2]
        return rows * keys * (2 * q.shape[-1] + 2 * v.shape[-1] + 7)  # two products, scale, mask and softmax


STORED = (F16, BF16, I8)  # numbers of caches


@composite(
    heavy=True,
    examples=(
        ("f32[2, 3, 5, 8]", "f16[2, 3, 7, 8]", "f32[]", "f16[2, 3, 7, 4]", "f32[]", "f32[5, 7]", dict(scale=0.353)),
        (
            *("f32[2, 4, 3, 8]", "i8[2, 1, 6, 8]", "f32[2, 1, 6, 1]", "i8[2, 1, 6, 5]", "f32[2, 1, 6, 1]"),
            *("f32[2, 1, 1, 6]", dict(scale=0.013)),
        ),
        ("f32[7, 3]", "bf16[7, 3]", "f32[1]", "bf16[7, 5]", "f32[7, 1]", "f32[]", dict(scale=0.577, causal=True)),
    ),
)
class cache_attention:
    """Attention over keys and values as a cache stores them, in f16, bf16 or i8: K · key_scale and V · value_scale.

    Both have numbers of one type. A scale is of all numbers, or of rows: it broadcasts to [..., keys, 1].
    """

    def infer(
        q: TensorType,
        k: TensorType,
        key_scale: TensorType,
        v: TensorType,
        value_scale: TensorType,
        mask: TensorType,
        *,
        scale: float,
        causal: bool = False,
    ) -> TensorType:
        expect(k.dtype is v.dtype and k.dtype in STORED, "needs keys and values in f16, bf16 or i8, both in one type")
        for rows, factor in ((k, key_scale), (v, value_scale)):
            expect(factor.dtype is q.dtype, "needs scales of the type of the queries")
            expect(rows.rank >= 2, "needs keys and values of rank 2 and more")
            each = (*rows.shape[:-1], 1)
            expect(broadcast_shapes(each, factor.shape) == each, f"needs scales that broadcast to {list(each)}")
        k, v = k.with_dtype(q.dtype), v.with_dtype(q.dtype)
        return attention.infer(q, k, v, mask, scale=scale, causal=causal)

    def expand(q, k, key_scale, v, value_scale, mask, *, scale, causal):
        k, v = (mul(cast(x, to=q.type.dtype), factor) for x, factor in ((k, key_scale), (v, value_scale)))
        return attention(q, k, v, mask, scale=scale, causal=causal)

    def reference(q, k, key_scale, v, value_scale, mask, *, scale, causal=False):
        k, v = (x.astype(q.dtype) * factor for x, factor in ((k, key_scale), (v, value_scale)))
        return attention.reference(q, k, v, mask, scale=scale, causal=causal)

    def flops(
        q: TensorType,
        k: TensorType,
        key_scale: TensorType,
        v: TensorType,
        value_scale: TensorType,
        mask: TensorType,
        *,
        scale: float,
        causal: bool = False,
    ) -> int:
        k, v = k.with_dtype(q.dtype), v.with_dtype(q.dtype)
        return attention.flops(q, k, v, mask, scale=scale, causal=causal)


@composite(
    "RotaryEmbedding",
    examples=(
        ("f32[2, 3, 5, 8]", "f32[5, 4]", "f32[5, 4]"),
        ("f32[1, 2, 7, 58]", "f32[1, 1, 7, 13]", "f32[7, 13]"),
        ("f32[2, 5, 3, 6]", "f32[2, 5, 1, 3]", "f32[5, 1, 3]", dict(interleaved=True)),
        ("f32[7, 37]", "f32[1, 11]", "f32[7, 11]", dict(interleaved=True)),
    ),
)
class rotary:
    """Y = X with pairs (a, b) along its last axis rotated: (a · cos − b · sin, b · cos + a · sin).

    Su et al. 2021, RoFormer. There are as many pairs as elements of cos and sin along that axis: (i, i + pairs), or
    (2i, 2i + 1) if `interleaved`. Elements behind them are unchanged.
    """

    def infer(x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool = False) -> TensorType:
        expect(x.dtype.is_float and x.dtype is cos.dtype is sin.dtype, "needs operands of one floating-point type")
        expect(x.rank >= 1 and cos.rank >= 1 and sin.rank >= 1, "needs operands of rank 1 and more")
        pairs = cos.shape[-1]
        expect(
            1 <= pairs == sin.shape[-1] and 2 * pairs <= x.shape[-1],
            "needs cosines and sines for 1 and more pairs, as many as the last axis has room for",
        )
        angles = (*x.shape[:-1], pairs)
        expect(
            broadcast_shapes(angles, cos.shape, sin.shape) == angles,
            f"needs cosines and sines that broadcast to {list(angles)}",
        )
        return x

    def expand(x, cos, sin, *, interleaved):
        shape, pairs = x.type.shape, cos.type.shape[-1]
        lead = shape[:-1]

        def part(start, end, step=1):
            return slice_(x, starts=(start,), ends=(end,), axes=(len(lead),), steps=(step,))

        a, b = (
            (part(0, 2 * pairs, 2), part(1, 2 * pairs, 2)) if interleaved else (part(0, pairs), part(pairs, 2 * pairs))
        )
        turned = [sub(mul(a, cos), mul(b, sin)), add(mul(b, cos), mul(a, sin))]
        if interleaved:
            turned = [
                reshape(
                    concat(*(reshape(t, shape=(*lead, pairs, 1)) for t in turned), axis=len(lead) + 1),
                    shape=(*lead, 2 * pairs),
                )
            ]
        if shape[-1] > 2 * pairs:
            turned.append(part(2 * pairs, shape[-1]))
        return concat(*turned, axis=len(lead)) if len(turned) > 1 else turned[0]

    def reference(x, cos, sin, *, interleaved=False):
        pairs = cos.shape[-1]
        first, second = (
            (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
            if interleaved
            else (slice(0, pairs), slice(pairs, 2 * pairs))
        )
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    def flops(x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool = False) -> int:
        return x.size // x.shape[-1] * 6 * cos.shape[-1]
