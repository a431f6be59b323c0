"""Biases of scores by the distance of a key from its row (T5, arXiv 1910.10683; MPNet)."""

from __future__ import annotations

import numpy as np

from pelton.network import Network, NetworkTensor

from .architecture import Architecture
from .weights import DecoderWeights


def earlier_biases(
    net: Network, a: Architecture, w: DecoderWeights, distance: NetworkTensor, most: int
) -> NetworkTensor:
    """Returns biases of a decoder, f32 [batch, heads, rows, keys]. distance: of rows behind keys, i64 [batch, rows,
    keys], below `most`; later keys have any bias."""
    table = _table(a, w, buckets(-np.arange(most), a.buckets, a.far, both=False))
    biases = net.gather(table, net.maximum(distance, np.int64(0)), axis=1)
    return net.transpose(biases, (1, 0, 2, 3))


def all_biases(net: Network, a: Architecture, w: DecoderWeights, rows: NetworkTensor, most: int) -> NetworkTensor:
    """Returns biases of an encoder, f32 [1, heads, rows, rows]. rows: their numbers, i64 [rows], below `most`."""
    (count,) = rows.shape
    table = _table(a, w, buckets(np.arange(1 - most, most), a.buckets, a.far))
    distance = net.reshape(rows, (1, count)) - net.reshape(rows, (count, 1)) + (most - 1)
    return net.reshape(net.gather(table, distance, axis=1), (1, a.heads, count, count))


def _table(a: Architecture, w: DecoderWeights, each: np.ndarray) -> np.ndarray:
    """Returns the biases of distances, f32 [heads, distances]. each: the buckets of these."""
    return np.ascontiguousarray(np.asarray(w.matrix("buckets", a.buckets, a.heads))[each].T)


def buckets(distance: np.ndarray, count: int, most: int, both: bool = True) -> np.ndarray:
    """Returns the bucket of each distance of a key from its row: one for each small distance, then wider ones up to
    `most`. both: half of them are for keys behind their rows; otherwise there are none."""
    half = count // 2 if both else count
    exact, far = half // 2, np.abs(distance)
    # in f32, as transformers computes it
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(most / exact))
    wide = np.minimum(exact + (steps * np.float32(half - exact)).astype(np.int64), half - 1)
    return np.where(far < exact, far, wide) + (distance > 0) * half
