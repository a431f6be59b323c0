"""Readers of attention and of the fused activations that ONNX Runtime writes into transformer models."""
from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import BOOL

from .onnx_reading import MICROSOFT, Reading, Thing, reads

_PLAIN = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}


@reads("Attention")
def attention(n: Reading) -> Thing | tuple[Thing, ...]:
    """The plain form as one op; caches, soft caps and looks inside go by the function body of the schema."""
    q, k, v, mask = n.input(0), n.input(1), n.input(2), n.optional(3)
    unusual = any(t is not None for t in n.things[4:]) or any(n.wants(i) for i in range(1, len(n.node.output)))
    if unusual or n.attr("softcap", 0.0) or not n.attributes.keys() <= _PLAIN or q.type.rank not in (3, 4) or not q.type.dtype.is_float:
        return n.program.body(n)
    flat = q.type.rank == 3
    if flat:
        heads, kv_heads = n.attr("q_num_heads"), n.attr("kv_num_heads")
        if not heads or not kv_heads or any(t.type.rank != 3 or t.type.shape[2] % h for t, h in ((q, heads), (k, kv_heads), (v, kv_heads))):
            raise n.refuse(f"Attention needs q_num_heads and kv_num_heads that divide its last axes, got {heads} and {kv_heads} for {q.type}, {k.type}")
        q, k, v = (_heads(n, t, h) for t, h in ((q, heads), (k, kv_heads), (v, kv_heads)))
    if any(t.type.rank != 4 for t in (k, v)) or q.type.shape[1] % k.type.shape[1]:
        raise n.refuse(f"Attention needs query heads that are a multiple of the key heads, got {q.type} and {k.type}")
    groups = q.type.shape[1] // k.type.shape[1]
    k, v = _repeated(n, k, groups), _repeated(n, v, groups)
    batch, heads, rows, depth = q.type.shape
    scores = (batch, heads, rows, k.type.shape[2])
    if mask is not None and not _fits(mask.type.shape, scores):
        return n.program.body(n)
    choice = mask.type.dtype is BOOL if mask is not None else False
    if mask is None:
        mask = n.like(q, 0)
    elif choice:
        mask = n.emit("where", mask, n.like(q, 0), n.like(q, -np.inf))
    scale = n.attr("scale")
    y = n.emit("attention", q, k, v, n.cast(mask, q.type.dtype), scale=1 / math.sqrt(depth) if scale is None else scale, causal=n.flag("is_causal"))
    if choice:                                             # a row that may look nowhere is 0
        y = n.emit("where", n.emit("is_nan", y), n.like(y, 0), y)
    return n.reshape(n.transpose(y, (0, 2, 1, 3)), (batch, rows, heads * y.type.shape[3])) if flat else y


def _heads(n: Reading, x: Value, heads: int) -> Value:
    """[batch, rows, heads · depth] → [batch, heads, rows, depth]."""
    batch, rows, width = x.type.shape
    return n.transpose(n.reshape(x, (batch, rows, heads, width // heads)), (0, 2, 1, 3))


def _repeated(n: Reading, x: Value, groups: int) -> Value:
    """Every head `groups` times, side by side."""
    if groups == 1:
        return x
    batch, heads, rows, depth = x.type.shape
    wide = n.expand(n.reshape(x, (batch, heads, 1, rows, depth)), (batch, heads, groups, rows, depth))
    return n.reshape(wide, (batch, heads * groups, rows, depth))


def _fits(shape: tuple[Size, ...], wanted: tuple[Size, ...]) -> bool:
    return len(shape) <= len(wanted) and all(d in (1, w) for d, w in zip(reversed(shape), reversed(wanted)))


# --- com.microsoft

@reads("Gelu", domain=MICROSOFT)
def gelu(n: Reading) -> Thing:
    return n.emit("gelu", n.input(0))


@reads("BiasGelu", domain=MICROSOFT)
def bias_gelu(n: Reading) -> Thing:
    return n.emit("gelu", n.emit("add", *n.inputs))


@reads("FastGelu", domain=MICROSOFT)
def fast_gelu(n: Reading) -> Thing:
    x, bias = n.input(0), n.optional(1)
    return n.emit("gelu_tanh", x if bias is None else n.emit("add", x, bias))


@reads("QuickGelu", domain=MICROSOFT)
def quick_gelu(n: Reading) -> Thing:
    return n.emit("swish", n.input(0), alpha=n.attr("alpha", 1.702))
