"""The network of an encoder: one description for all families, of sentence encoders and of those beside decoders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pelton.errors import ModelError
from pelton.network import Network, NetworkTensor

from .distances import all_biases
from .encoder_architecture import EncoderArchitecture
from .layers import AttentionLayer, LayerPositions, normed, turns
from .pooling import Pooling, pooled
from .sentence import EMBEDDINGS, IDS, LENGTHS, TEXTS
from .weights import DecoderWeights, table_rows


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
    valid = net.iota(count) < net.reshape(lengths, (batch, 1))  # [batch, tokens]
    net.output(pooled(net, encoded(net, a, weights, ids, valid, most), valid, pooling), EMBEDDINGS)
    return net


def encoded(
    net: Network,
    a: EncoderArchitecture,
    weights: DecoderWeights,
    ids: NetworkTensor,
    valid: NetworkTensor | None,
    most: int,
) -> NetworkTensor:
    """Returns the rows of tokens, f32 [batch, tokens, width]. ids: i64 [batch, tokens], at most `most` of them. valid:
    bool [batch, tokens], false behind the end of a text; None: all are."""
    count = ids.shape[1]
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
    at = _positions(net, a, weights, ids, valid, most)
    return layered(net, a, weights, x, at)


def layered(
    net: Network, a: EncoderArchitecture, weights: DecoderWeights, x: NetworkTensor, at: LayerPositions
) -> NetworkTensor:
    """Adds all layers behind x [batch, tokens, width], and the norm at the end."""
    for i, numbers in enumerate(a.layers):
        with net.scope(f"layer{i}"):
            layer = _EncoderLayer(net, a, weights, i, numbers, at)
            x = layer.hidden(layer.attention(x))
    return x if a.after else normed(net, a, weights, x, "norm", a.width)


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
    net: Network,
    a: EncoderArchitecture,
    weights: DecoderWeights,
    ids: NetworkTensor,
    valid: NetworkTensor | None,
    most: int,
) -> LayerPositions:
    batch, count = ids.shape
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
    biases = all_biases(net, a, weights, rows, most) if a.buckets else None
    if valid is None:
        assert not a.causal and not any(numbers.window for numbers in a.layers)
        return LayerPositions(tuple(angles), {0: biases})
    counted = net.reshape(valid, (batch, 1, 1, count))
    shown = dict[int, NetworkTensor | None]()
    for window in {numbers.window for numbers in a.layers}:
        visible = net.logical_and(counted, keys <= row) if a.causal else counted
        if window:
            near = keys > row - window
            if not a.causal:
                near = net.logical_and(near, keys < row + window)
            # rows behind the end of a text see themselves, so that no softmax is of nothing
            visible = net.logical_or(net.logical_and(visible, near), net.equal(keys, row))
        scores = net.where(visible, np.float32(0), np.float32(-np.inf))
        shown[window] = scores if biases is None else scores + biases
    return LayerPositions(tuple(angles), shown)
