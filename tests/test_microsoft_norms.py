"""ONNX Runtime's norms, embeddings and products of floats, each beside its documentation, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Cases, floats, judge, node

CASES = Cases()


def normed(x, scale, bias, epsilon) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + bias


@CASES.add
def skip_layer_norm(rng):
    x, skip, bias = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8), floats(rng, 8)
    scale, beta = floats(rng, 8), floats(rng, 8)
    total = x.astype(np.float64) + skip + bias
    return node(
        "SkipLayerNormalization",
        [("fed", x), ("fed", skip), scale, beta, bias],
        [normed(total, scale, beta, 1e-12), None, None, total],
    )


@CASES.add
def skip_rms_norm(rng):
    x, skip, scale = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8), floats(rng, 8)
    total = x.astype(np.float64) + skip
    return node(
        "SkipSimplifiedLayerNormalization",
        [("fed", x), ("fed", skip), scale],
        [total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * scale, None, None, total],
        epsilon=1e-6,
    )


@CASES.add
def embeddings(rng):
    ids, segments = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    words, places, kinds, scale, bias = (
        floats(rng, 9, 8),
        floats(rng, 6, 8),
        floats(rng, 2, 8),
        floats(rng, 8),
        floats(rng, 8),
    )
    total = words.astype(np.float64)[ids] + places[:5] + kinds[segments]
    return node(
        "EmbedLayerNormalization",
        [("fed", ids), ("fed", segments), words, places, kinds, scale, bias, ("fed", mask)],
        [normed(total, scale, bias, 1e-12), mask.sum(1), total],
    )


@CASES.add
def embeddings_without_segments(rng):
    ids, at = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 6, (2, 5)).astype(np.int32)
    words, places, scale, bias = floats(rng, 9, 8), floats(rng, 6, 8), floats(rng, 8), floats(rng, 8)
    total = words.astype(np.float64)[ids] + places[at]
    return node(
        "EmbedLayerNormalization",
        [("fed", ids), None, words, places, None, scale, bias, None, ("fed", at)],
        [normed(total, scale, bias, 1e-12), None],
    )


@CASES.add
def fused_gemm(rng):
    a, b, c = floats(rng, 5, 7), floats(rng, 3, 5), floats(rng, 3)
    y = 0.5 * a.T.astype(np.float64) @ b.T + 2 * c
    return node(
        "FusedGemm",
        [("fed", a), b, c],
        [np.where(y > 0, y, 0.2 * y)],
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
        activation="LeakyRelu",
        activation_alpha=0.2,
    )


@CASES.add
def fused_matmul_of_moved_batches(rng):
    a, b = floats(rng, 4, 2, 3, 5), floats(rng, 2, 3, 5, 6)
    return node(
        "FusedMatMul",
        [("fed", a), ("fed", b)],
        [0.5 * np.moveaxis(a.astype(np.float64), 0, -2) @ b],
        transBatchA=1,
        alpha=0.5,
    )


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])
