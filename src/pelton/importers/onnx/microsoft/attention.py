"""Readers of the attention operators that ONNX Runtime writes into exported transformers: masks, caches of keys and
values, packed projections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I32, I64

from pelton.importers.onnx.ops.attention import causal_mask, split_heads, merge_heads, repeat_heads
from pelton.importers.onnx.ops.index import take
from pelton.importers.onnx.ops.norm import FUSED_EPSILON, layer_norm
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

# hides a score, whatever else is added to it, and stays finite
FAR = float(np.finfo(np.float32).min) / 4


@dataclass(frozen=True)
class Scores:
    """How scores become weights: scaled, capped softly, masked by what is added, beside a sink that takes weight and
    gives nothing."""

    scale: float
    softcap: float = 0.0
    sink: Value | None = None  # one per head; None: no sink


def attend(n: Reading, q: Value, k: Value, v: Value, mask: Value | None, how: Scores) -> Value:
    """softmax(how(Q·Kᵀ) + mask)·V over [batch, heads, rows, depth]."""
    if not how.softcap and how.sink is None:
        return n.emit("attention", q, k, v, n.like(q, 0) if mask is None else mask, scale=how.scale)
    return n.emit("matmul", weights_of(n, scores_of(n, q, k, mask, how), how), v)


def scores_of(n: Reading, q: Value, k: Value, mask: Value | None, how: Scores) -> Value:
    """how(Q·Kᵀ) + mask, before softmax."""
    scores = n.emit("matmul", n.emit("mul", q, n.like(q, how.scale)), n.transpose(k, (0, 1, 3, 2)))
    if how.softcap:
        capped = n.emit("tanh", n.emit("div", scores, n.like(scores, how.softcap)))
        scores = n.emit("mul", capped, n.like(scores, how.softcap))
    return scores if mask is None else n.emit("add", scores, mask)


def weights_of(n: Reading, scores: Value, how: Scores) -> Value:
    if how.sink is None:
        return n.emit("softmax", scores, axis=3)
    batch, heads, rows, keys = scores.type.shape
    beside = n.expand(n.reshape(how.sink, (1, heads, 1, 1)), (batch, heads, rows, 1))
    return n.slice(n.emit("softmax", n.emit("concat", scores, beside, axis=3), axis=3), 3, 0, keys)


def scale_of(n: Reading, *heads: Value) -> float:
    """What is given, or of the size of heads, which is that of queries and of keys: one of them may be known where the
    other is not."""
    given, known = n.attr("scale", 0.0), [d for v in heads if isinstance(d := v.type.shape[3], int)]
    if not given and not known:
        raise n.refuse(f"{n.op} needs a known size of its heads, or a scale; got {heads[0].type.shape[3]}")
    return given or 1 / math.sqrt(known[0])


def split_parts(n: Reading, x: Value, widths: tuple[int, ...]) -> list[Value]:
    """The last axis cut into parts of these widths."""
    if not equal(x.type.shape[-1], sum(widths)):
        raise n.refuse(f"{n.op} needs a last axis of {' + '.join(map(str, widths))}, got {x.type}")
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    return [n.slice(x, x.type.rank - 1, end - width, end) for width, end in zip(widths, ends)]


def add_present(n: Reading, parts: list[Value | None]) -> Value | None:
    """Adds those of the values that are present; None if none is."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else n.emit("add", total, part)
    return total


def mask_scores(n: Reading, shown: Value, like: Value, filter: float) -> Value:
    """What is added to scores: nothing where they are shown, the filter value where they are not."""
    return n.emit("where", shown, n.like(like, 0), n.like(like, filter))


def _length_mask(n: Reading, lengths: Value, keys: Size) -> Value:
    """[batch, 1, 1, keys]: whether a key lies within the length of its batch."""
    return n.emit("less", n.count(keys), n.reshape(n.cast(lengths, I64), (lengths.type.size, 1, 1, 1)))


def _key_mask(n: Reading, mask: Value, batch: Size, rows: Size, keys: Size) -> Value:
    """[batch or 1, 1, rows or 1, keys]: what mask_index and key_padding_mask show, whichever of their forms they
    have."""
    shape = mask.type.shape
    if len(shape) == 1 and shape[0] == batch:  # how many keys
        return _length_mask(n, mask, keys)
    if len(shape) == 1 and shape[0] == 2 * batch:  # where the keys end, then where they begin
        ends, starts = n.slice(mask, 0, 0, batch), n.slice(mask, 0, batch, 2 * batch)
        return n.emit("logical_and", _length_mask(n, ends, keys), n.emit("logical_not", _length_mask(n, starts, keys)))
    shown = n.emit("logical_not", n.emit("equal", mask, n.like(mask, 0))) if mask.type.dtype is not BOOL else mask
    if len(shape) == 2 and shape[1] == keys:
        return n.reshape(shown, (shape[0], 1, 1, keys))
    if len(shape) == 3 and shape[1:] == (rows, keys):
        return n.reshape(shown, (shape[0], 1, rows, keys))
    raise n.refuse(
        f"{n.op} needs a mask [batch], [2·batch], [batch, keys] or [batch, rows, keys] for {batch} batches of {rows}"
        f" rows and {keys} keys, got {mask.type}; export the model with attention masks of two axes"
    )


# --- Attention and QAttention: one product gives queries, keys and values


@reads("Attention", domain=MICROSOFT)
def attention(n: Reading) -> tuple[Binding, ...]:
    return emit_attention_of_projections(n, n.input(0), n.input(1), n.optional(2), mask=3, past=4, added=5)


def emit_attention_of_projections(
    n: Reading, x: Value, weights: Value, bias: Value | None, *, mask: int, past: int, added: int | None = None
) -> tuple[Binding, ...]:
    """The output, and keys and values stacked as they will be `past` in the next run; `mask`, `past` and `added` (to
    the scores) are numbers of inputs."""
    if n.flag("do_rotary") or n.flag("past_present_share_buffer"):
        raise n.refuse(f"{n.op} with do_rotary or past_present_share_buffer is not supported; export the model without")
    heads = n.attr("num_heads")
    width = weights.type.shape[1]
    if not isinstance(width, int) or not heads:
        raise n.refuse(f"{n.op} needs num_heads and weights of a known width, got {heads} and {weights.type}")
    widths = tuple(n.attr("qkv_hidden_sizes", ())) or (width // 3,) * 3
    if len(widths) != 3 or any(w % heads for w in widths):
        raise n.refuse(f"{n.op} needs three widths that {heads} heads divide, got {list(widths)}")
    product = n.emit("matmul", x, weights)
    q, k, v = (
        split_heads(n, part, heads)
        for part in split_parts(n, product if bias is None else n.emit("add", product, bias), widths)
    )
    before = n.optional(past)
    if before is not None:  # [2, batch, heads, past, depth]
        k, v = (
            n.emit("concat", n.reshape(n.slice(before, 0, i, i + 1), before.type.shape[1:]), new, axis=2)
            for i, new in enumerate((k, v))
        )
    batch, _, rows, _ = q.type.shape
    keys = k.type.shape[2]
    filter = n.attr("mask_filter_value", -10000.0)
    shown = n.optional(mask)
    masks = [
        None if shown is None else mask_scores(n, _key_mask(n, shown, batch, rows, keys), q, filter),
        mask_scores(n, causal_mask(n, rows, keys, keys - rows), q, FAR) if n.flag("unidirectional") else None,
        None if added is None else n.optional(added),
    ]
    y = merge_heads(n, attend(n, q, k, v, add_present(n, masks), Scores(scale_of(n, q, k))))
    present = None
    if n.is_output_used(1):
        present = n.emit("concat", *(n.reshape(t, (1, *t.type.shape)) for t in (k, v)), axis=0)
    return y, present


# --- MultiHeadAttention: queries, keys and values apart or packed, from here or from elsewhere


@reads("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(n: Reading) -> tuple[Binding, ...]:
    if n.is_output_used(3) or any(n.optional(i) is not None for i in (8, 9)):
        raise n.refuse(
            "MultiHeadAttention with a shared cache, a cache indirection or scores as output is not supported; export"
            " the model without"
        )
    heads, bias = n.attr("num_heads"), n.optional(3)
    q, k, v = _split_inputs(n, heads)
    if bias is not None:
        widths = tuple(int(t.type.shape[1] * t.type.shape[3]) for t in (q, k, v))
        parts = split_parts(n, bias, widths)  # one part for each, as deep as its heads together
        q, k, v = (
            n.emit("add", t, n.reshape(p, (t.type.shape[1], 1, t.type.shape[3]))) for t, p in zip((q, k, v), parts)
        )
    new = k.type.shape[2]
    for i, past in enumerate((n.optional(6), n.optional(7))):
        if past is not None:
            k, v = (n.emit("concat", past, t, axis=2) if i == j else t for j, t in enumerate((k, v)))
    batch, _, rows, _ = q.type.shape
    keys = k.type.shape[2]
    filter, shown = n.attr("mask_filter_value", -10000.0), n.optional(4)
    added = [
        None if shown is None else mask_scores(n, _key_mask(n, shown, batch, rows, keys), q, filter),
        n.optional(5),
        mask_scores(n, causal_mask(n, rows, keys, keys - new), q, FAR) if n.flag("unidirectional") else None,
    ]
    return merge_heads(n, attend(n, q, k, v, add_present(n, added), Scores(scale_of(n, q, k)))), k, v


def _split_inputs(n: Reading, heads: int) -> list[Value]:
    """Queries, keys and values, each [batch, heads, rows, depth]."""
    x, key, value = n.input(0), n.optional(1), n.optional(2)
    if x.type.rank == 5:  # [batch, rows, heads, 3, depth]
        return _unstack(n, x, 3)
    q = split_heads(n, x, heads)
    if key is None:
        raise n.refuse(f"{n.op} needs keys beside queries of {x.type}")
    if key.type.rank == 5:  # [batch, rows, heads, 2, depth]
        return [q, *_unstack(n, key, 2)]
    if value is None:
        raise n.refuse(f"{n.op} needs values beside keys of {key.type}")
    return [q, *(t if t.type.rank == 4 else split_heads(n, t, heads) for t in (key, value))]


def _unstack(n: Reading, x: Value, count: int) -> list[Value]:
    batch, rows, heads, parts, depth = x.type.shape
    if parts != count:
        raise n.refuse(f"{n.op} needs {count} tensors packed along axis 3, got {x.type}")
    return [
        n.transpose(n.reshape(n.slice(x, 3, i, i + 1), (batch, rows, heads, depth)), (0, 2, 1, 3)) for i in range(count)
    ]


# --- what stands before the first layer


@reads("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(n: Reading) -> tuple[Binding, ...]:
    """norm(words + positions + segments); the second output counts what the mask shows, the third is the sum itself."""
    ids, segments, mask, positions = n.input(0), n.optional(1), n.optional(7), n.optional(8)
    batch, rows = ids.type.shape
    row_positions = n.reshape(n.count(rows), (1, rows)) if positions is None else positions
    total = n.emit("add", n.emit("gather", n.input(2), ids, axis=0), take(n, n.input(3), row_positions))
    if segments is not None:
        total = n.emit("add", total, n.emit("gather", n.input(4), segments, axis=0))
    shown = None
    if n.is_output_used(1):
        shown = n.filled(0, (batch,), I32) if mask is None else n.emit("reduce_sum", mask, axes=(1,), keepdims=False)
    return layer_norm(n, total, n.input(5), n.input(6), default=FUSED_EPSILON), shown, total
