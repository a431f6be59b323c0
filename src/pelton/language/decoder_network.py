"""The network of a decoder: one description for all families."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import Size, maximum
from pelton.network import Network, NetworkTensor

from .architecture import Architecture, LayerNumbers, Rotation
from .description import DecoderPorts
from .heads import KEPT, ROWS, kept_rows
from .source import DecoderSizes
from .weights import DecoderWeights, product, table_rows

IDS, MASK, LONG, LOGITS = "input_ids", "attention_mask", "long", "logits"
SEQUENCES = 64  # the most in one run


@dataclass(frozen=True)
class _Positions:
    """Where the tokens of a run are. begin, end: i64 [batch]. rows: i64 [batch, tokens]. total: the number of keys,
    most: of them. angles: cosines and sines of each rotation, f32 [batch, tokens, 1, pairs]. shown: by window, what is
    added to scores, f32 [batch, 1, tokens, total]."""

    begin: NetworkTensor
    end: NetworkTensor
    rows: NetworkTensor
    total: Size
    most: int
    angles: tuple[tuple[NetworkTensor, NetworkTensor], ...]
    shown: dict[int, NetworkTensor]


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
    at = _positions(net, a, ids, mask, most)
    if a.positions:
        x = x + table_rows(net, weights.matrix("positions", a.context, a.width), at.rows, "positions")
    caches = list[str]()
    for i, numbers in enumerate(a.layers):
        with net.scope(f"layer{i}"):
            layer = _Layer(net, a, weights, i, numbers, at)
            x = layer.hidden(layer.attention(x, caches))
    x = kept_rows(net, _norm(net, a, weights, x, "norm", a.width), most)
    tied = not weights.has("head")
    head = table if tied else weights.matrix("head", a.vocabulary, a.width)
    y = product(net, x, head, None if tied else weights.bias("head", a.vocabulary), "head")
    net.output(_capped(net, y, a.logit_cap), LOGITS)
    long = LONG if LONG in net else None
    return net, DecoderPorts(IDS, MASK, None, ROWS, LOGITS, tuple(caches), "batch", "tokens", "capacity", KEPT, long)


class _Layer:
    """A layer of a decoder, whose parts are methods that add to the network."""

    def __init__(
        self, net: Network, a: Architecture, weights: DecoderWeights, i: int, numbers: LayerNumbers, at: _Positions
    ):
        self.net, self.a, self.weights, self.i, self.numbers, self.at = net, a, weights, i, numbers, at

    def attention(self, x: NetworkTensor, caches: list[str]) -> NetworkTensor:
        """Adds attention behind x [batch, tokens, width], and its caches, whose names it appends."""
        net, a, at = self.net, self.a, self.at
        y = self.norm(x, "attention_norm")
        q = self.heads(self.product(y, "q", a.heads * a.head_size), "q_norm", a.heads)
        k = self.heads(self.product(y, "k", a.kv_heads * a.head_size), "k_norm", a.kv_heads)
        v = self.split(self.product(y, "v", a.kv_heads * a.head_size), a.kv_heads)
        k, v = (self.extended(t, f"{self.i}.{name}", caches) for t, name in ((k, "key"), (v, "value")))
        mask = at.shown[self.numbers.window]
        scale = a.score_scale or a.head_size**-0.5
        if a.score_cap:
            k, v = (self.repeated(t) for t in (k, v))
            scores = _capped(net, net.matmul(q * np.float32(scale), net.transpose(k, (0, 1, 3, 2))), a.score_cap)
            y = net.matmul(net.softmax(scores + mask, axis=3), v)
        else:
            y = net.attention(q, k, v, mask, scale=scale)
        batch, _, count, _ = y.shape
        y = net.reshape(net.transpose(y, (0, 2, 1, 3)), (batch, count, a.heads * a.head_size))
        return x + self.ended(self.product(y, "output", a.width, a.heads * a.head_size), "attention_end_norm")

    def hidden(self, x: NetworkTensor) -> NetworkTensor:
        """Adds the products between activations."""
        a = self.a
        y = self.norm(x, "hidden_norm")
        up = self.product(y, "up", a.hidden)
        y = self.activation(self.product(y, "gate", a.hidden)) * up if a.gated else self.activation(up)
        return x + self.ended(self.product(y, "down", a.width, a.hidden), "hidden_end_norm")

    def product(self, x: NetworkTensor, part: str, rows: int, columns: int | None = None) -> NetworkTensor:
        matrix = self.weights.matrix(part, rows, columns or self.a.width, self.i)
        return product(self.net, x, matrix, self.weights.bias(part, rows, self.i), part)

    def norm(self, x: NetworkTensor, part: str) -> NetworkTensor:
        return _norm(self.net, self.a, self.weights, x, part, self.a.width, self.i)

    def ended(self, x: NetworkTensor, part: str) -> NetworkTensor:
        return self.norm(x, part) if self.a.sandwich else x

    def activation(self, x: NetworkTensor) -> NetworkTensor:
        return {"silu": self.net.swish, "gelu": self.net.gelu, "gelu_tanh": self.net.gelu_tanh}[self.a.activation](x)

    def split(self, x: NetworkTensor, heads: int) -> NetworkTensor:
        """[batch, tokens, heads · size] → [batch, heads, tokens, size]."""
        batch, count, _ = x.shape
        return self.net.transpose(self.net.reshape(x, (batch, count, heads, self.a.head_size)), (0, 2, 1, 3))

    def heads(self, x: NetworkTensor, norm: str, heads: int) -> NetworkTensor:
        """Splits queries or keys into heads, norms and rotates them."""
        net, a, (batch, count, _) = self.net, self.a, x.shape
        x = net.reshape(x, (batch, count, heads, a.head_size))
        if a.head_norms:
            x = _norm(net, a, self.weights, x, norm, a.head_size, self.i)
        if self.numbers.rotation is not None:
            cos, sin = self.at.angles[self.numbers.rotation]
            x = net.rotary(x, cos, sin, interleaved=a.rotations[self.numbers.rotation].interleaved)
        return net.transpose(x, (0, 2, 1, 3))

    def extended(self, rows: NetworkTensor, name: str, caches: list[str]) -> NetworkTensor:
        """Writes rows into a cache; returns all keys or values of it."""
        net, a = self.net, self.a
        size = f"capacity=1..{self.at.most}..{self.at.most}" if not caches else "capacity"
        past = net.input(f"past.{name}", f"f32[batch, {a.kv_heads}, {size}, {a.head_size}]")
        caches.append(past.name)
        length = maximum(past.shape[2], self.at.total)
        after = net.cache_write(past, rows, self.at.begin, self.at.end, length=length)
        net.output(after, f"present.{name}")
        return net.slice(after, starts=(0,), ends=(self.at.total,), axes=(2,), steps=(1,))

    def repeated(self, x: NetworkTensor) -> NetworkTensor:
        """Repeats heads of keys or values for all heads of queries that share them."""
        batch, heads, keys, size = x.shape
        groups = self.a.heads // heads
        wide = self.net.expand(self.net.reshape(x, (batch, heads, 1, keys, size)), (batch, heads, groups, keys, size))
        return self.net.reshape(wide, (batch, heads * groups, keys, size))


def _norm(
    net: Network,
    a: Architecture,
    weights: DecoderWeights,
    x: NetworkTensor,
    part: str,
    size: int,
    layer: int | None = None,
) -> NetworkTensor:
    scale = weights.vector(part, size, layer)
    if a.norm == "rms":
        return net.rms_norm(x, (scale + np.float32(a.norm_from)).astype(np.float32), epsilon=a.epsilon, name=part)
    bias = weights.bias(part, size, layer)
    return net.layer_norm(x, scale, bias, axis=-1, epsilon=a.epsilon, name=part)


def _capped(net: Network, x: NetworkTensor, cap: float) -> NetworkTensor:
    return net.tanh(x * np.float32(1 / cap)) * np.float32(cap) if cap else x


def _positions(net: Network, a: Architecture, ids: NetworkTensor, mask: NetworkTensor, most: int) -> _Positions:
    batch, count = ids.shape
    total = mask.shape[1]
    end = net.reduce_sum(mask, axes=1)  # [batch, 1]
    begin = end - net.reshape(net.shape_of(ids)[1], (1, 1))
    rows = begin + net.iota(count)
    angles = list[tuple[NetworkTensor, NetworkTensor]]()
    for r in a.rotations:
        at, table = rows, _table(r, most)
        if r.long is not None and most > r.long_from:
            long = net.tensor(LONG) if LONG in net else net.input(LONG, "i64[batch, 1]")
            at = rows + long * most
        parts = (net.gather(half, at, axis=0) for half in table)
        cos, sin = (net.reshape(t, (batch, count, 1, len(r.frequencies))) for t in parts)
        angles.append((cos, sin))
    keys, position = net.iota(total), net.reshape(rows, (batch, 1, count, 1))
    shown = {}
    for window in {numbers.window for numbers in a.layers}:
        visible = keys <= position
        if window:
            visible = net.logical_and(visible, keys > position - window)
        shown[window] = net.where(visible, np.float32(0), np.float32(-np.inf))
    first, last = (net.reshape(t, (batch,)) for t in (begin, end))
    return _Positions(first, last, rows, total, most, tuple(angles), shown)


def _table(r: Rotation, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of all positions, f32 [positions, pairs]; those of long sequences follow."""
    both = [r.frequencies] if r.long is None or most <= r.long_from else [r.frequencies, r.long]
    angles = np.concatenate([np.arange(most, dtype=np.float64)[:, None] * f for f in both])
    cos, sin = ((f(angles) * r.factor).astype(np.float32) for f in (np.cos, np.sin))
    return cos, sin
