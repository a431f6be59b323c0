"""Readers of attention and of the fused activations that ONNX Runtime writes into transformer models."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import BOOL

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

_PLAIN = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}


@reads("Attention")
def attention(n: Reading) -> Binding | tuple[Binding, ...]:
    """Emits the plain form as one op; expands the schema's function body for caches, soft caps and inner outputs."""
    q, k, v, mask = n.input(0), n.input(1), n.input(2), n.optional(3)
    is_extended = any(t is not None for t in n.bindings[4:]) or any(
        n.is_output_used(i) for i in range(1, len(n.node.output))
    )
    if (
        is_extended
        or n.attr("softcap", 0.0)
        or not n.attributes.keys() <= _PLAIN
        or q.type.rank not in (3, 4)
        or not q.type.dtype.is_float
    ):
        return n.body()
    dtype, wide = q.type.dtype, max(q.type.dtype, v.type.dtype, key=lambda d: d.size)
    q, k, v = (n.cast(t, wide) for t in (q, k, v))
    flat = q.type.rank == 3
    if flat:
        heads, kv_heads = n.attr("q_num_heads"), n.attr("kv_num_heads")
        if (
            not heads
            or not kv_heads
            or any(t.type.rank != 3 or t.type.shape[2] % h for t, h in ((q, heads), (k, kv_heads), (v, kv_heads)))
        ):
            raise n.refuse(
                f"Attention needs q_num_heads and kv_num_heads that divide its last axes, got {heads} and {kv_heads}"
                f" for {q.type}, {k.type}"
            )
        q, k, v = (split_heads(n, t, h) for t, h in ((q, heads), (k, kv_heads), (v, kv_heads)))
    if any(t.type.rank != 4 for t in (k, v)) or q.type.shape[1] % k.type.shape[1]:
        raise n.refuse(f"Attention needs query heads that are a multiple of the key heads, got {q.type} and {k.type}")
    groups = q.type.shape[1] // k.type.shape[1]
    k, v = repeat_heads(n, k, groups), repeat_heads(n, v, groups)
    batch, heads, rows, depth = q.type.shape
    scores = (batch, heads, rows, k.type.shape[2])
    if mask is not None and not _broadcasts_to(mask.type.shape, scores):
        return n.body()
    if mask is None:
        mask = n.like(q, 0)
    elif mask.type.dtype is BOOL:
        mask = n.emit("where", mask, n.like(q, 0), n.like(q, -np.inf))
    scale = n.attr("scale")
    y = n.emit(
        "attention",
        q,
        k,
        v,
        n.cast(mask, q.type.dtype),
        scale=1 / math.sqrt(depth) if scale is None else scale,
        causal=n.flag("is_causal"),
    )
    return n.cast(merge_heads(n, y) if flat else y, dtype)


def causal_mask(n: Reading, rows: Size, keys: Size, past: Size = 0) -> Value:
    """Returns [rows, keys]: true if a key's position is at most that of a row; the first row follows `past` keys."""
    at = n.emit("add", n.reshape(n.count(rows), (rows, 1)), n.sizes(past))
    return n.emit("less_equal", n.count(keys), at)


def split_heads(n: Reading, x: Value, heads: int) -> Value:
    """Reshapes [batch, rows, heads · depth] to [batch, heads, rows, depth]."""
    batch, rows, width = x.type.shape
    return n.transpose(n.reshape(x, (batch, rows, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(n: Reading, x: Value) -> Value:
    """Reshapes [batch, heads, rows, depth] to [batch, rows, heads · depth]."""
    batch, heads, rows, depth = x.type.shape
    return n.reshape(n.transpose(x, (0, 2, 1, 3)), (batch, rows, heads * depth))


def repeat_heads(n: Reading, x: Value, groups: int) -> Value:
    """Repeats every head `groups` times, copies adjacent."""
    if groups == 1:
        return x
    batch, heads, rows, depth = x.type.shape
    wide = n.expand(n.reshape(x, (batch, heads, 1, rows, depth)), (batch, heads, groups, rows, depth))
    return n.reshape(wide, (batch, heads * groups, rows, depth))


@reads("RotaryEmbedding")
def rotary_embedding(n: Reading) -> Binding:
    """Reads caches as [positions, pairs] if positions are given, else as [batch, rows, pairs].

    rotary_embedding_dim must be twice their width.
    """
    cos, sin, positions = n.input(1), n.input(2), n.optional(3)
    if positions is not None:
        cos, sin = n.emit("gather", cos, positions, axis=0), n.emit("gather", sin, positions, axis=0)
    return _rotate(n, n.attr("num_heads", 0), cos, sin)


def _rotate(n: Reading, heads: int, cos: Value, sin: Value) -> Value:
    """Rotates [batch, heads, rows, depth] or [batch, rows, heads · depth] by angles [batch, rows, pairs]."""
    x = n.input(0)
    if x.type.rank not in (3, 4) or cos.type.rank != 3 or sin.type.rank != 3:
        raise n.refuse(
            f"{n.op} needs an input of rank 3 or 4 and angles of [batch, rows, pairs], got {x.type} and {cos.type},"
            f" {sin.type}"
        )
    batch, rows, pairs = cos.type.shape
    if n.attr("rotary_embedding_dim", 0) not in (0, 2 * pairs):
        raise n.refuse(
            f"{n.op} needs angles for half of its rotary_embedding_dim, got {pairs} for"
            f" {n.attr('rotary_embedding_dim')}"
        )
    split, beside = x, (batch, 1, rows, pairs)
    if x.type.rank == 3:
        if heads < 1 or x.type.shape[2] % heads:
            raise n.refuse(f"{n.op} needs num_heads that divide the last axis of {x.type}, got {heads}")
        split, beside = n.reshape(x, (*x.type.shape[:2], heads, x.type.shape[2] // heads)), (batch, rows, 1, pairs)
    rotated = n.emit("rotary", split, n.reshape(cos, beside), n.reshape(sin, beside), interleaved=n.flag("interleaved"))
    return n.reshape(rotated, x.type.shape)


def _broadcasts_to(shape: tuple[Size, ...], target: tuple[Size, ...]) -> bool:
    return len(shape) <= len(target) and all(d in (1, t) for d, t in zip(reversed(shape), reversed(target)))


# --- com.microsoft


@reads("Gelu", domain=MICROSOFT, attributes="", inputs=1)
def gelu(n: Reading) -> Binding:
    return n.emit("gelu", n.input(0))


@reads("BiasGelu", domain=MICROSOFT, attributes="", inputs=2)
def bias_gelu(n: Reading) -> Binding:
    return n.emit("gelu", n.emit("add", *n.inputs))


@reads("FastGelu", domain=MICROSOFT, attributes="", inputs=2)
def fast_gelu(n: Reading) -> Binding:
    x, bias = n.input(0), n.optional(1)
    return n.emit("gelu_tanh", x if bias is None else n.emit("add", x, bias))


@reads("QuickGelu", domain=MICROSOFT, attributes="alpha", inputs=1)
def quick_gelu(n: Reading) -> Binding:
    return n.emit("swish", n.input(0), alpha=n.attr("alpha", 1.702))


_ROTARY = "interleaved is_packed_batching num_heads rotary_embedding_dim scale"


@reads("RotaryEmbedding", domain=MICROSOFT, attributes=_ROTARY, inputs=4)
def rotary_embedding_fused(n: Reading) -> Binding:
    """Reads a RotaryEmbedding whose positions come before the caches: one per row, or that of the first row.

    Without num_heads, the caches' width determines the depth of heads. `scale` and `is_packed_batching` have no effect,
    as in ONNX Runtime's kernel for CPUs.
    """
    x, positions, cos, sin = n.input(0), n.input(1), n.input(2), n.input(3)
    if positions.type.size == 1:
        batch, rows = x.type.shape[0], x.type.shape[-2]
        positions = n.expand(
            n.emit("add", n.reshape(positions, (1,)), n.constant(np.arange(rows), positions.type.dtype)), (batch, rows)
        )
    heads = n.attr("num_heads", 0) or x.type.shape[-1] // (2 * cos.type.shape[-1])
    return _rotate(n, heads, n.emit("gather", cos, positions, axis=0), n.emit("gather", sin, positions, axis=0))


@reads("MRotaryEmbedding", domain=MICROSOFT, attributes=f"{_ROTARY} mrope_section mrope_layout", inputs=4)
def rotary_embedding_of_three(n: Reading) -> Binding:
    """Reads a RotaryEmbedding whose angles come from three positions of each row, by consecutive sections or, with
    mrope_layout 1, in turns: the second and the third position use every third angle, up to their sections."""
    x, positions, sections = n.input(0), n.input(1), n.attr("mrope_section", ())
    pairs, layout = n.input(2).type.shape[-1], n.attr("mrope_layout", 0)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != pairs or layout not in (0, 1):
        raise n.refuse(
            f"MRotaryEmbedding needs three sections that sum up to {pairs}, the width of its caches, and mrope_layout 0"
            f" or 1, got {list(sections)} and {layout}"
        )
    of = np.zeros(pairs, np.int64)
    for i in (1, 2):
        if layout == 0:
            of[sum(sections[:i]) : sum(sections[: i + 1])] = i
        else:
            of[i : 3 * sections[i] : 3] = i
    batch, rows = positions.type.shape[1:]

    def angles(cache: Value) -> Value:
        each = n.emit("gather", cache, positions, axis=0)  # [3, batch, rows, pairs]
        result = n.reshape(n.slice(each, 0, 0, 1), (batch, rows, pairs))
        for i in (1, 2):
            other = n.reshape(n.slice(each, 0, i, i + 1), (batch, rows, pairs))
            result = n.emit("where", n.constant(of == i), other, result)
        return result

    heads = n.attr("num_heads", 0) or x.type.shape[-1] // (2 * pairs)
    return _rotate(n, heads, angles(n.input(2)), angles(n.input(3)))
