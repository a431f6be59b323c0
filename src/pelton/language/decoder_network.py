"""The network of a decoder: one description for all families."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pelton.ir.dims import Size, maximum
from pelton.network import Network, NetworkTensor

from .architecture import Architecture, LayerNumbers
from .description import DecoderPorts
from .distances import earlier_biases
from .heads import KEPT, ROWS, kept_rows
from .layers import AttentionLayer, LayerPositions, capped, normed, turns
from .source import DecoderSizes
from .weights import DecoderWeights, product, table_rows

IDS, MASK, LONG, LOGITS = "input_ids", "attention_mask", "long", "logits"
LENGTHS, SOURCES = "source_lengths", "source_rows"
SEQUENCES = 64  # the most in one run
USUAL_SOURCES = 64  # rows of an encoder that engines are tuned for


@dataclass(frozen=True)
class Sources:
    """Rows of an encoder. most: those for which keys and values have room. count: those of a run. hidden: what is added
    to scores, f32 [batch, 1, 1, rows]; None if all count."""

    most: int
    count: Size
    hidden: NetworkTensor | None


@dataclass(frozen=True)
class TokenPositions(LayerPositions):
    """Where the tokens of a run are. begin, end: i64 [batch]. rows: i64 [batch, tokens]. total: the number of keys,
    most: of them. sources: of a decoder with an encoder."""

    begin: NetworkTensor
    end: NetworkTensor
    rows: NetworkTensor
    total: Size
    most: int
    sources: Sources | None = None


def decoder_network(a: Architecture, weights: DecoderWeights, sizes: DecoderSizes) -> tuple[Network, DecoderPorts]:
    """Returns the network of an architecture with its weights, and its ports. Raises ModelError for weights of another
    shape."""
    net, most = Network(a.family), sizes.context
    total = f"total=1..{min(2 * sizes.prompt, most)}..{most}"
    ids = net.input(IDS, f"i64[batch=1..1..{SEQUENCES}, tokens=1..{sizes.prompt}..{most}]")
    mask = net.input(MASK, f"i64[batch, {total}]")
    table = weights.matrix("embedding", a.vocabulary, a.width)
    x = table_rows(net, table, ids, "embedding")
    if a.embedding_scale != 1:
        x = x * np.float32(a.embedding_scale)
    at = _positions(net, a, weights, ids, mask, most)
    if a.sources:
        at = replace(at, sources=_sources(net, a, ids.shape[0], sizes.sources))
    if a.positions:
        x = x + table_rows(net, weights.matrix("positions", a.context, a.width), at.rows, "positions")
    caches, crosses = list[str](), list[str]()
    for i, numbers in enumerate(a.layers):
        with net.scope(f"layer{i}"):
            layer = _CachedLayer(net, a, weights, i, numbers, at, caches, crosses)
            x = layer.attention(x)
            x = layer.hidden(x + layer.crossed(layer.norm(x, "cross_norm")) if a.sources else x)
    x = kept_rows(net, normed(net, a, weights, x, "norm", a.width), most)
    if a.head_scale != 1:
        x = x * np.float32(a.head_scale)
    tied = not weights.has("head")
    head = table if tied else weights.matrix("head", a.vocabulary, a.width)
    y = product(net, x, head, None if tied else weights.bias("head", a.vocabulary), "head")
    net.output(capped(net, y, a.logit_cap), LOGITS)
    long = LONG if LONG in net else None
    ports = DecoderPorts(IDS, MASK, None, ROWS, LOGITS, tuple(caches), "batch", "tokens", "capacity", KEPT, long)
    if a.sources:
        lengths = (None, None) if a.padded else (LENGTHS, SOURCES)
        ports = replace(ports, crosses=tuple(crosses), source_lengths=lengths[0], source_rows=lengths[1])
    return net, ports


class _CachedLayer(AttentionLayer):
    """A layer whose keys and values follow those in caches. caches, crosses: names of inputs, which it appends: caches,
    and the keys and values of an encoder's rows."""

    def __init__(
        self,
        net: Network,
        a: Architecture,
        weights: DecoderWeights,
        i: int,
        numbers: LayerNumbers,
        positions: TokenPositions,
        caches: list[str],
        crosses: list[str],
    ):
        super().__init__(net, a, weights, i, numbers, positions)
        self.positions, self.caches, self.crosses = positions, caches, crosses

    def extended(self, rows: NetworkTensor, name: str) -> NetworkTensor:
        """Writes rows into a cache; returns all keys or values of it."""
        net, a, at = self.net, self.a, self.positions
        size = f"capacity=1..{at.most}..{at.most}" if not self.caches else "capacity"
        past = net.input(f"past.{name}", f"f32[batch, {a.kv_heads}, {size}, {a.head_size}]")
        self.caches.append(past.name)
        length = maximum(past.shape[2], at.total)
        after = net.cache_write(past, rows, at.begin, at.end, length=length)
        net.output(after, f"present.{name}")
        return net.slice(after, starts=(0,), ends=(at.total,), axes=(2,), steps=(1,))

    def crossed(self, y: NetworkTensor) -> NetworkTensor:
        """Adds attention of rows y to those of an encoder."""
        net, a, sources = self.net, self.a, self.positions.sources
        assert sources is not None
        q = self.split(self.product(y, "cross_q", a.heads * a.head_size), a.heads)
        k, v = (self.source(cross_name(self.i, part), sources) for part in ("key", "value"))
        scale = a.score_scale or a.head_size**-0.5
        return self.joined(net.attention(q, k, v, sources.hidden, scale=scale), "cross_output")

    def source(self, name: str, sources: Sources) -> NetworkTensor:
        """Adds an input with keys or values of an encoder's rows; returns those of a run."""
        net, a = self.net, self.a
        x = net.input(name, f"f32[batch, {a.kv_heads}, {sources.most}, {a.head_size}]")
        self.crosses.append(name)
        return x if a.padded else net.slice(x, starts=(0,), ends=(sources.count,), axes=(2,), steps=(1,))


def cross_name(layer: int, part: str) -> str:
    """Returns the name of keys or values of an encoder's rows, an output of the encoder and an input of the decoder."""
    return f"cross.{layer}.{part}"


def _sources(net: Network, a: Architecture, batch: Size, most: int) -> Sources:
    """Adds the inputs that count the rows of the encoder."""
    if a.padded:
        return Sources(most, most, None)
    rows = net.input(SOURCES, f"i64[sources=1..{min(most, USUAL_SOURCES)}..{most}]")
    count = rows.shape[0]
    lengths = net.input(LENGTHS, "i64[batch]")
    valid = rows < net.reshape(lengths, (batch, 1, 1, 1))
    return Sources(most, count, net.where(valid, np.float32(0), np.float32(-np.inf)))


def _positions(
    net: Network, a: Architecture, weights: DecoderWeights, ids: NetworkTensor, mask: NetworkTensor, most: int
) -> TokenPositions:
    batch, count = ids.shape
    total = mask.shape[1]
    end = net.reduce_sum(mask, axes=1)  # [batch, 1]
    begin = end - net.reshape(net.shape_of(ids)[1], (1, 1))
    rows = begin + net.iota(count)
    angles = list[tuple[NetworkTensor, NetworkTensor]]()
    for r in a.rotations:
        at, table = rows, turns(r, most)
        if r.long is not None and most > r.long_from:
            long = net.tensor(LONG) if LONG in net else net.input(LONG, "i64[batch, 1]")
            at = rows + long * most
        parts = (net.gather(half, at, axis=0) for half in table)
        cos, sin = (net.reshape(t, (batch, count, 1, len(r.frequencies))) for t in parts)
        angles.append((cos, sin))
    keys, position = net.iota(total), net.reshape(rows, (batch, 1, count, 1))
    biases = None
    if a.buckets:
        distance = net.reshape(rows, (batch, count, 1)) - keys
        biases = earlier_biases(net, a, weights, distance, most)
    shown = {}
    for window in {numbers.window for numbers in a.layers}:
        visible = keys <= position
        if window:
            visible = net.logical_and(visible, keys > position - window)
        shown[window] = net.where(visible, np.float32(0) if biases is None else biases, np.float32(-np.inf))
    first, last = (net.reshape(t, (batch,)) for t in (begin, end))
    return TokenPositions(tuple(angles), shown, first, last, rows, total, most)
