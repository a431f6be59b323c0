"""The network of a sentence encoder: one description for all families."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pelton.errors import ModelError
from pelton.network import Network, NetworkTensor

from .encoder_architecture import EncoderArchitecture
from .layers import AttentionLayer, LayerPositions, normed, turns
from .pooling import Pooling, pooled
from .sentence import EMBEDDINGS, IDS, LENGTHS, TEXTS
from .weights import DecoderWeights, table_rows

FAR = 128  # from this distance on, all are in the last bucket


@dataclass(frozen=True)
class EncoderSizes:
    """context: the most tokens of a text. usual: those that the engine is tuned for."""

    context: int
    usual: int


def encoder_network(a: EncoderArchitecture, weights: DecoderWeights, pooling: Pooling, sizes: EncoderSizes) -> Network:
    """Returns the network of an architecture with its weights: ids, i64 [batch, tokens], and lengths, i64 [batch], to
    embeddings, f32 [batch, width]. Raises ModelError for weights of another shape."""
    net, most = Network(a.family), sizes.context
    ids = net.input(IDS, f"i64[batch=1..1..{TEXTS}, tokens=1..{sizes.usual}..{most}]")
    lengths = net.input(LENGTHS, "i64[batch]")
    batch, count = ids.shape
    x = table_rows(net, weights.matrix("embedding", a.vocabulary, a.width), ids, "embedding")
    if a.embedding_scale != 1:
        x = x * np.float32(a.embedding_scale)
    if a.types:
        x = x + np.asarray(weights.matrix("types", a.types, a.width))[0]
    if a.positions:
        table = np.asarray(weights.matrix("positions", a.first_row + a.context, a.width))
        x = x + net.gather(table[a.first_row : a.first_row + most], net.iota(count), axis=0, name="positions")
    if a.table_norm:
        x = normed(net, a, weights, x, "table_norm", a.width)
    valid = net.iota(count) < net.reshape(lengths, (batch, 1))  # [batch, tokens]
    at = _positions(net, a, weights, valid, most)
    for i, numbers in enumerate(a.layers):
        with net.scope(f"layer{i}"):
            layer = _EncoderLayer(net, a, weights, i, numbers, at)
            x = layer.hidden(layer.attention(x))
    if not a.after:
        x = normed(net, a, weights, x, "norm", a.width)
    net.output(pooled(net, x, valid, pooling), EMBEDDINGS)
    return net


class _EncoderLayer(AttentionLayer):
    """A layer with norms in front of its parts, or behind their sums."""

    def attention(self, x: NetworkTensor) -> NetworkTensor:
        if self.encoder.after:
            return self.norm(x + self.attended(x), "attention_norm")
        if self.i == 0 and self.encoder.bare_first:
            return x + self.attended(x)
        return super().attention(x)

    def hidden(self, x: NetworkTensor) -> NetworkTensor:
        return self.norm(x + self.fed(x), "hidden_norm") if self.encoder.after else super().hidden(x)

    @property
    def encoder(self) -> EncoderArchitecture:
        assert isinstance(self.a, EncoderArchitecture)
        return self.a


def _positions(
    net: Network, a: EncoderArchitecture, weights: DecoderWeights, valid: NetworkTensor, most: int
) -> LayerPositions:
    """valid: bool [batch, tokens]."""
    batch, count = valid.shape
    rows = net.iota(count)
    angles = list[tuple[NetworkTensor, NetworkTensor]]()
    for r in a.rotations:
        if r.long is not None and most > r.long_from:
            raise ModelError(f"embeddings of this model support texts of at most {r.long_from} tokens: pass context")
        parts = (net.gather(half, rows, axis=0) for half in turns(r, most))
        wide = (
            net.expand(net.reshape(t, (1, count, 1, len(r.frequencies))), (batch, count, 1, len(r.frequencies)))
            for t in parts
        )
        cos, sin = wide
        angles.append((cos, sin))
    keys, row = net.reshape(rows, (1, 1, 1, count)), net.reshape(rows, (1, 1, count, 1))
    counted = net.reshape(valid, (batch, 1, 1, count))
    shown = {}
    for window in {numbers.window for numbers in a.layers}:
        visible = net.logical_and(counted, keys <= row) if a.causal else counted
        if window:
            near = keys > row - window
            if not a.causal:
                near = net.logical_and(near, keys < row + window)
            # rows behind the end of a text see themselves, so that no softmax is of nothing
            visible = net.logical_or(net.logical_and(visible, near), net.equal(keys, row))
        scores = net.where(visible, np.float32(0), np.float32(-np.inf))
        shown[window] = scores + _distances(net, a, weights, rows, most) if a.buckets else scores
    return LayerPositions(tuple(angles), shown)


def _distances(
    net: Network, a: EncoderArchitecture, weights: DecoderWeights, rows: NetworkTensor, most: int
) -> NetworkTensor:
    """Returns biases of scores by the distance of a key from its row, f32 [1, heads, tokens, tokens]."""
    (count,) = rows.shape
    table = np.asarray(weights.matrix("buckets", a.buckets, a.heads))[buckets(np.arange(1 - most, most), a.buckets)]
    distance = net.reshape(rows, (1, count)) - net.reshape(rows, (count, 1)) + (most - 1)
    biases = net.gather(np.ascontiguousarray(table.T), distance, axis=1)
    return net.reshape(biases, (1, a.heads, count, count))


def buckets(distance: np.ndarray, count: int) -> np.ndarray:
    """Returns the bucket of each distance of a key from its row (T5, arXiv 1910.10683, with both directions): one for
    each small distance, then wider ones up to FAR."""
    half = count // 2
    exact, far = half // 2, np.abs(distance)
    # in f32, as transformers computes it
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(FAR / exact))
    wide = np.minimum(exact + (steps * np.float32(half - exact)).astype(np.int64), half - 1)
    return np.where(far < exact, far, wide) + (distance > 0) * half
