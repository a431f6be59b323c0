"""Attention layers, with several heads or one."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import BOOL
from pelton.network import NetworkTensor

from ..config import LayerConfig
from ..held import HeldTensor
from ..reading import KerasReading, reads

FAR = -1e30  # added to scores that do not count


def _projections(layer: LayerConfig) -> list[str]:
    bias = layer.flag("use_bias", True)
    return [
        f"{part}_dense/{name}"
        for part in ("query", "key", "value", "output")
        for name in ("kernel", "bias")
        if name == "kernel" or bias
    ]


@reads("MultiHeadAttention", variables=_projections, masks=True, arguments=True)
def multi_head(r: KerasReading) -> HeldTensor:
    r.layer.ignore("value_dim", "query_shape", "key_shape", "value_shape", "softmax_robust_masking")
    heads, depth = r.layer.integer("num_heads"), r.layer.integer("key_dim")
    value_depth = depth if r.layer.option("value_dim", None) is None else r.layer.integer("value_dim")
    if r.layer.option("attention_axes", None) not in (None, [1], 1):
        raise r.refuse(f"attends along the axes {r.layer.option('attention_axes')}")
    return _attended(r, heads, heads, depth, value_depth)


@reads("GroupQueryAttention", "GroupedQueryAttention", variables=_projections, masks=True, arguments=True)
def grouped(r: KerasReading) -> HeldTensor:
    heads, groups = r.layer.integer("num_query_heads"), r.layer.integer("num_key_value_heads")
    if heads % groups:
        raise r.refuse(f"has {heads} heads of queries, not divisible by {groups} heads of keys")
    depth = r.layer.integer("head_dim")
    return _attended(r, heads, groups, depth, depth)


def _attended(r: KerasReading, heads: int, groups: int, depth: int, value_depth: int) -> HeldTensor:
    r.layer.ignore("dropout", "flash_attention")
    r.layer.expect(use_gate=False, sliding_window=None)
    query = r.argument("query", 0)
    value = r.argument("value", 1)
    if isinstance(query, list) and len(query) == 1:
        (query,) = query
    key = r.argument("key", 2)
    key = value if key is None else key
    if not all(isinstance(x, HeldTensor) and x.rank == 3 for x in (query, key, value)):
        raise r.refuse("needs a query, a value and a key of three axes each")
    r.expect_arguments("query", "value", "key", "attention_mask", "use_causal_mask", places=3)
    if r.layer.option("output_shape", None) is None:
        features = r.number(query.shape[-1], "the size of its query")
    else:
        (features,) = r.layer.integers("output_shape", 1)
    q = _projected(r, "query", query, heads, depth)
    k = _projected(r, "key", key, groups, depth)
    v = _projected(r, "value", value, groups, value_depth)
    mask = r.kwargs.get("attention_mask")
    y = r.net.attention(
        q, k, v, None if mask is None else _added(r, mask), causal=bool(r.kwargs.get("use_causal_mask"))
    )
    batch, _, rows, _ = y.shape
    y = r.net.reshape(r.net.transpose(y, (0, 2, 1, 3)), (batch, rows, heads * value_depth))
    kernel = r.variable("output_dense/kernel", heads, value_depth, features).reshape(heads * value_depth, -1)
    y = r.net.matmul(y, kernel)
    return r.of(y + r.variable("output_dense/bias", features) if r.layer.flag("use_bias", True) else y)


def _projected(r: KerasReading, part: str, x: HeldTensor, heads: int, depth: int) -> NetworkTensor:
    """Computes [batch, heads, steps, depth]."""
    width = r.number(x.shape[-1], "the size of its input")
    kernel = r.variable(f"{part}_dense/kernel", width, heads, depth).reshape(width, heads * depth)
    y = r.net.matmul(x.tensor(), kernel)
    if r.layer.flag("use_bias", True):
        y = y + r.variable(f"{part}_dense/bias", heads, depth).reshape(-1)
    batch, steps, _ = y.shape
    return r.net.transpose(r.net.reshape(y, (batch, steps, heads, depth)), (0, 2, 1, 3))


def _added(r: KerasReading, mask: object) -> NetworkTensor:
    """Converts a mask of valid elements, [batch, rows, columns] or with heads, to terms added to scores."""
    if not isinstance(mask, HeldTensor) or mask.rank not in (3, 4):
        raise r.refuse("has a mask that is no tensor of three or four axes")
    t = mask.tensor()
    t = t if t.dtype is BOOL else r.net.cast(t, to="bool")
    t = r.net.unsqueeze(t, 1) if t.rank == 3 else t
    return r.net.where(t, np.float32(0), np.float32(FAR))


def _scales(layer: LayerConfig) -> list[str]:
    both = layer.type == "Attention" and layer.option("score_mode", "dot") == "concat"
    return [*["scale"] * layer.flag("use_scale", False), *["concat_score_weight"] * both]


def _additive_scales(layer: LayerConfig) -> list[str]:
    return ["scale"] * layer.flag("use_scale", True)


@reads("Attention", variables=_scales, masks=True, arguments=True)
@reads("AdditiveAttention", variables=_additive_scales, masks=True, arguments=True)
def attention(r: KerasReading) -> HeldTensor:
    """Reads dense attention of one head, by products (Luong) or by sums (Bahdanau)."""
    inputs = r.inputs
    r.layer.ignore("dropout")
    if len(inputs) not in (2, 3) or any(x.rank != 3 for x in inputs):
        raise r.refuse("needs a query, a value and perhaps a key of three axes each")
    r.expect_arguments("use_causal_mask", places=1)
    q, v, k = (inputs[i].tensor() for i in (0, 1, len(inputs) - 1))
    k = v if len(inputs) == 2 else k
    additive = r.layer.type == "AdditiveAttention"
    by_sums = additive or r.layer.choice("score_mode", "dot", "concat", default="dot") == "concat"
    scores = _sums(r, q, k, additive) if by_sums else _products(r, q, k)
    if r.kwargs.get("use_causal_mask"):
        rows, columns = (r.number(d, "the number of steps") for d in scores.shape[1:])
        later = np.arange(columns) > np.arange(rows)[:, None]
        scores = scores + np.where(later, np.float32(FAR), np.float32(0))
    return r.of(r.net.matmul(r.net.softmax(scores), v))


def _products(r: KerasReading, q: NetworkTensor, k: NetworkTensor) -> NetworkTensor:
    scores = r.net.matmul(q, r.net.transpose(k, (0, 2, 1)))
    return scores * float(r.variable("scale")) if r.layer.flag("use_scale", False) else scores


def _sums(r: KerasReading, q: NetworkTensor, k: NetworkTensor, additive: bool) -> NetworkTensor:
    sums = r.net.unsqueeze(q, 2) + r.net.unsqueeze(k, 1)
    if additive:
        terms = r.net.tanh(sums)
        if r.layer.flag("use_scale", True):
            terms = terms * r.variable("scale", r.number(q.shape[-1], "the size of its input"))
        return r.net.reduce_sum(terms, axes=(3,), keepdims=False)
    if r.layer.flag("use_scale", False):
        sums = sums * float(r.variable("scale"))
    weight = float(r.variable("concat_score_weight"))
    return r.net.reduce_sum(r.net.tanh(sums), axes=(3,), keepdims=False) * weight
