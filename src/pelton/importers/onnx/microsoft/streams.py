"""Readers of norms, gates and mixtures of several streams of a layer (hyper-connections), computed in f32, and of the
hashes of n-grams that tables of embeddings are read by."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import F32, I64

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

_EPSILON = 1e-5


def _wide(n: Reading, *values: Value) -> tuple[Value, ...]:
    return tuple(n.cast(v, F32) for v in values)


def _grouped(n: Reading, x: Value) -> Value:
    """[…, branches, features] of that or, with num_branches, of […, branches · features]."""
    branches = n.attr("num_branches", 0)
    return n.reshape(x, (*x.type.shape[:-1], branches, x.type.shape[-1] // branches)) if branches else x


def _rms(n: Reading, x: Value) -> Value:
    """x over the root of its mean square, along the last axis."""
    ones = n.filled(1, x.type.shape[-1:], F32)
    return n.emit("rms_norm", x, ones, axis=x.type.rank - 1, epsilon=n.attr("epsilon", _EPSILON))


# --- norms


@reads("BranchwiseRMSNorm", domain=MICROSOFT, attributes="epsilon num_branches", inputs=2)
def branchwise_rms_norm(n: Reading) -> Binding:
    x, scale = n.input(0), n.optional(1)
    wide = _grouped(n, n.cast(x, F32))
    y = _rms(n, wide)
    if scale is not None:
        features = wide.type.shape[-2:] if scale.type.size != wide.type.shape[-1] else wide.type.shape[-1:]
        y = n.emit("mul", y, n.reshape(n.cast(scale, F32), features))
    return n.cast(n.reshape(y, x.type.shape), x.type.dtype)


@reads("GatedRMSNorm", domain=MICROSOFT, attributes="activation epsilon", inputs=3)
def gated_rms_norm(n: Reading) -> Binding:
    """Over as many features as there are scales, times the gate's activation."""
    x, scale, gate = n.input(0), n.input(1), n.input(2)
    kind, size, width = n.attr("activation", "silu"), scale.type.size, x.type.shape[-1]
    if kind not in ("silu", "swish", "sigmoid"):
        raise n.refuse(f"GatedRMSNorm needs activation silu, swish or sigmoid, got {kind!r}")
    apart = (*x.type.shape[:-1], width // size, size)
    y = n.emit("mul", _rms(n, n.reshape(n.cast(x, F32), apart)), n.reshape(n.cast(scale, F32), (size,)))
    z = n.reshape(n.cast(gate, F32), apart)
    z = n.emit("sigmoid", z) if kind == "sigmoid" else n.emit("swish", z, alpha=1.0)
    return n.cast(n.reshape(n.emit("mul", y, z), x.type.shape), x.type.dtype)


# --- gates


@reads("LinearAttentionGate", domain=MICROSOFT, attributes="", inputs=4)
def linear_attention_gate(n: Reading) -> tuple[Binding, ...]:
    """decay_scale · softplus(a + dt_bias), and the sigmoid of b."""
    a, b = n.input(0), n.optional(3)
    bias, scale = (n.reshape(n.cast(n.input(i), F32), a.type.shape[-1:]) for i in (1, 2))
    decay = n.emit("mul", n.emit("softplus", n.emit("add", n.cast(a, F32), bias)), scale)
    beta = None if b is None else n.cast(n.emit("sigmoid", n.cast(b, F32)), a.type.dtype)
    return n.cast(decay, a.type.dtype), beta


@reads("GatedAdd", domain=MICROSOFT, attributes="", inputs=3)
def gated_add(n: Reading) -> Binding:
    return n.emit("add", n.input(0), n.emit("mul", n.input(1), n.input(2)))


@reads("ScaledSiLU", domain=MICROSOFT, attributes="alpha", inputs=2)
def scaled_silu(n: Reading) -> Binding:
    """z · sigmoid(z) of z = scale · x, each rounded to the type of x."""
    x, scale = n.input(0), n.optional(1)
    factor = n.constant(n.attr("alpha", 1.0), F32) if scale is None else n.reshape(n.cast(scale, F32), ())
    z = n.cast(n.emit("mul", n.cast(x, F32), factor), x.type.dtype)
    return n.emit("mul", z, n.emit("sigmoid", z))


@reads("EngramGate", domain=MICROSOFT, attributes="epsilon", inputs=6)
def engram_gate(n: Reading) -> tuple[Binding, ...]:
    """sigmoid(sign(d) · √max(|d|, 1e-6)) of d, the product of normalized keys and queries, times the values; and that,
    normalized."""
    kind = n.input(0).type.dtype
    keys, queries, values, key_scale, query_scale = _wide(n, *(n.input(i) for i in range(5)))
    *rest, width = keys.type.shape
    both = n.emit("mul", n.emit("mul", _rms(n, keys), key_scale), n.emit("mul", _rms(n, queries), query_scale))
    dot = n.emit("reduce_sum", both, axes=(keys.type.rank - 1,), keepdims=True)
    dot = n.emit("mul", dot, n.like(dot, 1 / math.sqrt(width)))
    root = n.emit("sqrt", n.emit("maximum", n.emit("abs", dot), n.like(dot, 1e-6)))
    gate = n.emit("sigmoid", n.emit("mul", n.emit("sign", dot), root))
    y = n.emit("mul", gate, n.reshape(values, (*values.type.shape[:-1], 1, width)))
    if not n.is_output_used(1):
        return (n.cast(y, kind),)
    (scale,) = _wide(n, n.input(5))
    return n.cast(y, kind), n.cast(n.emit("mul", _rms(n, y), scale), kind)


# --- hyper-connections


@reads("HyperConnectionPreMix", domain=MICROSOFT, attributes="num_branches reduction_scale", inputs=2)
def pre_mix(n: Reading) -> Binding:
    """The sum of all branches, each times its gate or the gates of its features."""
    kind = n.input(0).type.dtype
    x, gates = _wide(n, n.input(0), n.input(1))
    x = _grouped(n, x)
    y = n.emit("mul", x, _gates(n, gates, x.type.shape))
    y = n.emit("reduce_sum", y, axes=(x.type.rank - 2,), keepdims=False)
    return n.cast(n.emit("mul", y, n.like(y, n.attr("reduction_scale", 1.0))), kind)


def _gates(n: Reading, gates: Value, shape: tuple[Size, ...]) -> Value:
    """Gates of branches […, branches] or […, branches, 1], or of their features, as they multiply that shape."""
    *lead, branches, features = shape
    last = gates.type.shape[-1]
    if gates.type.rank == len(shape):
        return gates
    return n.reshape(gates, (*lead, branches, 1 if last == branches else features))


@reads("HyperConnectionPostMix", domain=MICROSOFT, attributes="num_branches", inputs=4)
def post_mix(n: Reading) -> Binding:
    """The streams, mixed by matrices if there are some, and a block's output in all of them, times their gates."""
    streams, mix = n.input(0), n.optional(3)
    x, block, gates = _wide(n, streams, n.input(1), n.input(2))
    x = _grouped(n, x)
    added = n.emit("mul", _gates(n, gates, x.type.shape), n.reshape(block, (*x.type.shape[:-2], 1, x.type.shape[-1])))
    if mix is not None:
        rank = mix.type.rank
        x = n.emit("matmul", n.transpose(n.cast(mix, F32), (*range(rank - 2), rank - 1, rank - 2)), x)
    return n.cast(n.reshape(n.emit("add", x, added), streams.type.shape), streams.type.dtype)


# --- routers


@reads("MoEGroupRouter", domain=MICROSOFT, attributes="top_k n_group topk_group group_topk router_sentinel", inputs=3)
def group_router(n: Reading) -> tuple[Binding, ...]:
    """Scores are sigmoids; with expert_bias they select. Experts are those of the groups whose best ones, summed, are
    largest, and of these the largest; where they are not selected, the result is router_sentinel, else the logarithm of
    the score. Or scores with and without the bias, of logits or of activations times weights."""
    x, weights = n.input(0), n.optional(2)
    kind = x.type.dtype
    x = n.cast(n.reshape(x, (math.prod(x.type.shape[:-1]), x.type.shape[-1])), F32)
    if weights is not None:
        x = n.emit("matmul", x, n.transpose(n.cast(weights, F32), (1, 0)))
    tokens, experts = x.type.shape
    scores = n.emit("sigmoid", x)
    biased = n.emit("add", scores, n.reshape(n.cast(n.input(1), F32), (experts,)))
    if not n.is_output_used(0):
        return None, biased, scores
    groups, k = n.attr("n_group", 1), n.attr("top_k")
    each = experts // groups
    apart = n.reshape(biased, (tokens, groups, each))
    best, _ = n.emit_all("top_k", apart, k=min(n.attr("group_topk", 2), each), axis=2)
    sums = n.emit("reduce_sum", best, axes=(2,), keepdims=False)
    chosen = one_of(n, n.emit_all("top_k", sums, k=min(n.attr("topk_group", 1), groups), axis=1)[1], groups)
    allowed = n.emit("where", n.reshape(chosen, (tokens, groups, 1)), apart, n.like(apart, -np.inf))
    allowed = n.reshape(allowed, (tokens, experts))
    selected = one_of(n, n.emit_all("top_k", allowed, k=k, axis=1)[1], experts)
    found = n.emit("log", n.emit("maximum", scores, n.like(scores, 1e-20)))
    sentinel = n.like(found, n.attr("router_sentinel", -10000.0))
    return n.cast(n.emit("where", selected, found, sentinel), kind), biased, scores


def one_of(n: Reading, places: Value, count: int) -> Value:
    """[rows, count]: whether a number is among the places of its row."""
    hit = n.emit("equal", n.reshape(places, (*places.type.shape, 1)), n.constant(np.arange(count), I64))
    return n.emit("reduce_max", hit, axes=(1,), keepdims=False)
