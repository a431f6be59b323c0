"""Layers of language models: attention and products, for all families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pelton.network import Network, NetworkTensor

from .architecture import Architecture, LayerNumbers, Rotation
from .weights import DecoderWeights, product


@dataclass(frozen=True)
class LayerPositions:
    """What layers need of positions.

    angles: cosines and sines of each rotation, f32 [batch, tokens, 1, pairs]. shown: by window, what is added to
    scores, f32 [batch, 1 or heads, tokens, keys]; None: nothing.
    """

    angles: tuple[tuple[NetworkTensor, NetworkTensor], ...]
    shown: Mapping[int, NetworkTensor | None]


class AttentionLayer:
    """A layer of attention and products, whose parts are methods that add to the network."""

    def __init__(
        self, net: Network, a: Architecture, weights: DecoderWeights, i: int, numbers: LayerNumbers, at: LayerPositions
    ):
        self.net, self.a, self.weights, self.i, self.numbers, self.at = net, a, weights, i, numbers, at

    def attention(self, x: NetworkTensor) -> NetworkTensor:
        """Adds attention behind x [batch, tokens, width]."""
        return x + self.ended(self.attended(self.norm(x, "attention_norm")), "attention_end_norm")

    def attended(self, y: NetworkTensor) -> NetworkTensor:
        """Adds the products of attention and the attention between them."""
        net, a, at = self.net, self.a, self.at
        q = self.heads(self.product(y, "q", a.heads * a.head_size), "q_norm", a.heads)
        k = self.heads(self.product(y, "k", a.kv_heads * a.head_size), "k_norm", a.kv_heads)
        v = self.split(self.product(y, "v", a.kv_heads * a.head_size), a.kv_heads)
        k, v = (self.extended(t, f"{self.i}.{name}") for t, name in ((k, "key"), (v, "value")))
        mask = at.shown[self.numbers.window]
        scale = a.score_scale or a.head_size**-0.5
        if a.score_cap:
            k, v = (self.repeated(t) for t in (k, v))
            scores = capped(net, net.matmul(q * np.float32(scale), net.transpose(k, (0, 1, 3, 2))), a.score_cap)
            y = net.matmul(net.softmax(scores if mask is None else scores + mask, axis=3), v)
        else:
            y = net.attention(q, k, v, mask, scale=scale)
        return self.joined(y, "output")

    def joined(self, y: NetworkTensor, part: str) -> NetworkTensor:
        """Adds the product behind attention. y: [batch, heads, tokens, size]."""
        net, a, (batch, _, count, _) = self.net, self.a, y.shape
        y = net.reshape(net.transpose(y, (0, 2, 1, 3)), (batch, count, a.heads * a.head_size))
        return self.product(y, part, a.width, a.heads * a.head_size)

    def hidden(self, x: NetworkTensor) -> NetworkTensor:
        """Adds the products between activations behind x."""
        return x + self.ended(self.fed(self.norm(x, "hidden_norm")), "hidden_end_norm")

    def fed(self, y: NetworkTensor) -> NetworkTensor:
        """Adds the products between activations."""
        a = self.a
        up = self.product(y, "up", a.hidden)
        y = self.activation(self.product(y, "gate", a.hidden)) * up if a.gated else self.activation(up)
        return self.product(y, "down", a.width, a.hidden)

    def product(self, x: NetworkTensor, part: str, rows: int, columns: int | None = None) -> NetworkTensor:
        matrix = self.weights.matrix(part, rows, columns or self.a.width, self.i)
        return product(self.net, x, matrix, self.weights.bias(part, rows, self.i), part)

    def norm(self, x: NetworkTensor, part: str) -> NetworkTensor:
        return normed(self.net, self.a, self.weights, x, part, self.a.width, self.i)

    def ended(self, x: NetworkTensor, part: str) -> NetworkTensor:
        return self.norm(x, part) if self.a.sandwich else x

    def activation(self, x: NetworkTensor) -> NetworkTensor:
        net = self.net
        kinds = {"silu": net.swish, "gelu": net.gelu, "gelu_tanh": net.gelu_tanh, "relu": net.relu}
        return kinds[self.a.activation](x)

    def split(self, x: NetworkTensor, heads: int) -> NetworkTensor:
        """[batch, tokens, heads · size] → [batch, heads, tokens, size]."""
        batch, count, _ = x.shape
        return self.net.transpose(self.net.reshape(x, (batch, count, heads, self.a.head_size)), (0, 2, 1, 3))

    def heads(self, x: NetworkTensor, norm: str, heads: int) -> NetworkTensor:
        """Splits queries or keys into heads, norms and rotates them."""
        net, a, (batch, count, _) = self.net, self.a, x.shape
        x = net.reshape(x, (batch, count, heads, a.head_size))
        if a.head_norms:
            x = normed(net, a, self.weights, x, norm, a.head_size, self.i)
        if self.numbers.rotation is not None:
            cos, sin = self.at.angles[self.numbers.rotation]
            x = net.rotary(x, cos, sin, interleaved=a.rotations[self.numbers.rotation].interleaved)
        return net.transpose(x, (0, 2, 1, 3))

    def extended(self, rows: NetworkTensor, name: str) -> NetworkTensor:
        """Returns all keys or values, of which these rows are the latest: here, those are all."""
        return rows

    def repeated(self, x: NetworkTensor) -> NetworkTensor:
        """Repeats heads of keys or values for all heads of queries that share them."""
        batch, heads, keys, size = x.shape
        groups = self.a.heads // heads
        wide = self.net.expand(self.net.reshape(x, (batch, heads, 1, keys, size)), (batch, heads, groups, keys, size))
        return self.net.reshape(wide, (batch, heads * groups, keys, size))


def normed(
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


def capped(net: Network, x: NetworkTensor, cap: float) -> NetworkTensor:
    return net.tanh(x * np.float32(1 / cap)) * np.float32(cap) if cap else x


def turns(r: Rotation, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of all positions, f32 [positions, pairs]; those of long sequences follow."""
    both = [r.frequencies] if r.long is None or most <= r.long_from else [r.frequencies, r.long]
    angles = np.concatenate([np.arange(most, dtype=np.float64)[:, None] * f for f in both])
    cos, sin = ((f(angles) * r.factor).astype(np.float32) for f in (np.cos, np.sin))
    return cos, sin
