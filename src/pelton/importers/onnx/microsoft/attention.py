"""Readers of the attention operators that ONNX Runtime writes into exported transformers: masks, caches of keys and
values, packed projections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, F32, I32, I64

from pelton.importers.onnx.ops.attention import causal_mask, merge_heads, split_heads
from pelton.importers.onnx.ops.index import take
from pelton.importers.onnx.ops.norm import FUSED_EPSILON, layer_norm
from pelton.importers.onnx.ops.quant import dequantize
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

# hides a score, whatever is added to it, and stays finite
FAR = float(np.finfo(np.float32).min) / 4


@dataclass(frozen=True)
class Scores:
    """Conversion of scores to weights: scaled, softly capped, masked by addition, beside a sink that takes weight and
    has no value."""

    scale: float
    softcap: float = 0.0
    sink: Value | None = None  # one per head; None: no sink


def attend(n: Reading, q: Value, k: Value, v: Value, mask: Value | None, how: Scores) -> Value:
    """Computes softmax(how(Q·Kᵀ) + mask)·V over [batch, heads, rows, depth]."""
    if not how.softcap and how.sink is None:
        return n.emit("attention", q, k, v, n.like(q, 0) if mask is None else mask, scale=how.scale)
    return n.emit("matmul", weights_of(n, scores_of(n, q, k, mask, how), how), v)


def scores_of(n: Reading, q: Value, k: Value, mask: Value | None, how: Scores) -> Value:
    """Computes how(Q·Kᵀ) + mask, before softmax."""
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
    """Returns the given scale, or that of the size of heads, which queries and keys share: one of them may be known
    alone."""
    scale, known = n.attr("scale", 0.0), [d for v in heads if isinstance(d := v.type.shape[3], int)]
    if not scale and not known:
        raise n.refuse(f"{n.op} needs a known size of its heads, or a scale; got {heads[0].type.shape[3]}")
    return scale or 1 / math.sqrt(known[0])


def split_parts(n: Reading, x: Value, widths: tuple[int, ...]) -> list[Value]:
    """Splits the last axis into parts of these widths."""
    if not equal(x.type.shape[-1], sum(widths)):
        raise n.refuse(f"{n.op} needs a last axis of {' + '.join(map(str, widths))}, got {x.type}")
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    return [n.slice(x, x.type.rank - 1, end - width, end) for width, end in zip(widths, ends)]


def add_present(n: Reading, parts: list[Value | None]) -> Value | None:
    """Adds the present values; None if there are none."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else n.emit("add", total, part)
    return total


def mask_scores(n: Reading, shown: Value, like: Value, filter: float) -> Value:
    """Converts a mask to terms added to scores: 0 for visible ones, the filter value for others."""
    return n.emit("where", shown, n.like(like, 0), n.like(like, filter))


def _length_mask(n: Reading, lengths: Value, keys: Size) -> Value:
    """Returns [batch, 1, 1, keys]: true if a key lies within the length of its batch."""
    return n.emit("less", n.count(keys), n.reshape(n.cast(lengths, I64), (lengths.type.size, 1, 1, 1)))


def _key_mask(n: Reading, mask: Value, batch: Size, rows: Size, keys: Size) -> Value:
    """Returns [batch or 1, 1, rows or 1, keys]: the keys visible by mask_index or key_padding_mask, in any of their
    forms."""
    shape = mask.type.shape
    if len(shape) == 1 and shape[0] == batch:  # number of keys
        return _length_mask(n, mask, keys)
    if len(shape) == 1 and shape[0] == 2 * batch:  # ends of the keys, then starts
        ends, starts = n.slice(mask, 0, 0, batch), n.slice(mask, 0, batch, 2 * batch)
        return n.emit("logical_and", _length_mask(n, ends, keys), n.emit("logical_not", _length_mask(n, starts, keys)))
    if len(shape) == 1 and shape[0] == 3 * batch + 2:  # number of keys, then starts of packed rows and keys
        return _length_mask(n, n.slice(mask, 0, 0, batch), keys)
    shown = n.emit("greater", mask, n.like(mask, 0)) if mask.type.dtype is not BOOL else mask
    if len(shape) == 2 and shape[1] == keys:
        return n.reshape(shown, (shape[0], 1, 1, keys))
    if len(shape) == 3 and shape[1:] == (rows, keys):
        return n.reshape(shown, (shape[0], 1, rows, keys))
    raise n.refuse(
        f"{n.op} needs a mask [batch], [2·batch], [batch, keys] or [batch, rows, keys] for {batch} batches of {rows}"
        f" rows and {keys} keys, got {mask.type}; export the model with attention masks of two axes"
    )


# --- Attention and QAttention: one product for queries, keys and values


PROJECTED = "num_heads scale mask_filter_value unidirectional past_present_share_buffer"


@reads("Attention", domain=MICROSOFT, attributes=f"{PROJECTED} qkv_hidden_sizes rotary_embedding_dim", inputs=6)
def attention(n: Reading) -> tuple[Binding, ...]:
    return emit_attention_of_projections(n, n.input(0), n.input(1), n.optional(2), mask=3, past=4, added=5)


def emit_attention_of_projections(
    n: Reading, x: Value, weights: Value, bias: Value | None, *, mask: int, past: int, added: int | None = None
) -> tuple[Binding, ...]:
    """Returns the output, and keys and values stacked as `past` of the next run; `mask`, `past` and `added` (to the
    scores) are numbers of inputs."""
    if n.optional(past) is not None and n.flag("past_present_share_buffer"):
        raise n.refuse(f"{n.op} with past_present_share_buffer is not supported; export the model without")
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


@reads(
    "MultiHeadAttention",
    domain=MICROSOFT,
    attributes="num_heads mask_filter_value scale unidirectional",
    inputs=9,
)
def multi_head_attention(n: Reading) -> tuple[Binding, ...]:
    """Computes attention. With `unidirectional`, the last row sees all keys, whatever their number, as in ONNX
    Runtime's kernel. As there, keys and values that come as [batch, heads, keys, depth] get no bias."""
    heads = n.attr("num_heads")
    q, k, v = _add_biases(n, _split_inputs(n, heads), 3)
    rows, new = q.type.shape[2], k.type.shape[2]
    k, v, before, keys = _with_past(n, k, v, 6, 8)
    hidden = None
    if n.flag("unidirectional"):
        last = n.emit("equal", n.reshape(n.count(rows), (rows, 1)), n.sizes(rows - 1))
        at = n.emit("add", n.reshape(n.count(rows), (rows, 1)), before)
        hidden = n.emit("logical_not", n.emit("logical_or", last, n.emit("less_equal", n.count(keys), at)))
    ends = None if n.optional(8) is None else n.emit("add", before, n.sizes(new))
    y, scores = _attend_masked(n, q, k, v, (4, 5), hidden, ends)
    return y, k, v, scores


def _attend_masked(
    n: Reading, q: Value, k: Value, v: Value, inputs: tuple[int, int], hidden: Value | None, ends: Value | None
) -> tuple[Value, Value | None]:
    """Returns attention's output, and its scores if they are read. inputs: the mask, and terms added to scores; hidden:
    keys invisible to rows; ends: the number of valid keys, if others follow."""
    batch, _, rows, _ = q.type.shape
    shown, added = n.optional(inputs[0]), n.optional(inputs[1])
    if ends is not None:  # masks may be as long as the valid part
        long = [v.type.shape[-1] for v in (shown, added) if v is not None and v.type.rank > 1]
        keys = long[0] if long else k.type.shape[2]
        k, v = (n.slice(t, 2, 0, keys) for t in (k, v))
        hidden = hidden if hidden is None else n.slice(hidden, 1, 0, keys)
    keys = k.type.shape[2]
    if ends is not None:
        behind = n.emit("less_equal", ends, n.count(keys))
        hidden = behind if hidden is None else n.emit("logical_or", hidden, behind)
    masks = [added]
    if shown is not None:
        masks.append(mask_scores(n, _key_mask(n, shown, batch, rows, keys), q, n.attr("mask_filter_value", -10000.0)))
    how = Scores(scale_of(n, q, k))
    if not n.is_output_used(3):
        if hidden is not None:
            masks.append(mask_scores(n, n.emit("logical_not", hidden), q, FAR))
        return merge_heads(n, attend(n, q, k, v, add_present(n, masks), how)), None
    if ends is not None and shown is None and added is None:
        raise n.refuse(
            f"{n.op} with scores as output of a part of a cache needs a mask, whose length is that of the part"
        )
    scores = scores_of(n, q, k, add_present(n, masks), how)
    if hidden is not None:
        scores = n.emit("where", hidden, n.like(scores, float(np.finfo(np.float32).min)), scores)
    return merge_heads(n, n.emit("matmul", weights_of(n, scores, how), v)), scores


def _add_biases(n: Reading, parts: list[Value], i: int) -> list[Value]:
    """Adds parts of the bias, input i, to queries, keys and values; not to keys and values with separate heads."""
    bias = n.optional(i)
    if bias is None:
        return parts
    widths = tuple(int(t.type.shape[1] * t.type.shape[3]) for t in parts)
    apart = n.optional(1) is not None and n.input(1).type.rank == 4
    return [
        t if apart and t is not parts[0] else n.emit("add", t, n.reshape(p, (t.type.shape[1], 1, t.type.shape[3])))
        for t, p in zip(parts, split_parts(n, bias, widths))
    ]


def _with_past(n: Reading, k: Value, v: Value, past: int, length: int) -> tuple[Value, Value, Value, Size]:
    """Appends keys and values to those of inputs `past` and `past + 1`; also returns the number before them, and the
    number of keys. An input `length` is the valid length of a longer cache; new ones follow there."""
    past_length = n.optional(length)
    if n.optional(past) is None or n.optional(past + 1) is None:
        return k, v, n.constant(0, I64), k.type.shape[2]
    pasts = n.input(past), n.input(past + 1)
    if past_length is None:
        k, v = (n.emit("concat", p, t, axis=2) for p, t in zip(pasts, (k, v)))
        return k, v, n.sizes(pasts[0].type.shape[2]), k.type.shape[2]
    before, rows, keys = n.reshape(n.cast(past_length, I64), ()), k.type.shape[2], pasts[0].type.shape[2]
    own = n.emit("sub", n.count(keys), before)  # the row at each place
    new = n.emit("logical_and", n.emit("less_equal", n.constant(0, I64), own), n.emit("less", own, n.sizes(rows)))
    at = n.emit("minimum", n.emit("maximum", own, n.constant(0, I64)), n.sizes(rows - 1))
    k, v = (
        n.emit("where", n.reshape(new, (keys, 1)), n.emit("gather", t, at, axis=2), p) for p, t in zip(pasts, (k, v))
    )
    return k, v, before, keys


@reads(
    "DecoderMaskedMultiHeadAttention",
    domain=MICROSOFT,
    attributes="num_heads mask_filter_value scale past_present_share_buffer output_qk",
    inputs=11,
)
def decoder_attention(n: Reading) -> tuple[Binding, ...]:
    """Reads MultiHeadAttention of one row with a cache of valid length past_sequence_length, or without one, with keys
    and values as [batch, heads, keys, depth]. cache_indirection selects the beam of each key within its batch."""
    heads = n.attr("num_heads")
    if n.optional(1) is None:
        x = n.input(0)
        width = x.type.shape[2] // 3
        parts = [split_heads(n, t, heads) for t in split_parts(n, x, (width, width, width))]
    else:
        parts = _split_inputs(n, heads)
    q, k, v = _add_biases(n, parts, 10)
    k, v, before, keys = _with_past(n, k, v, 5, 7)
    presents, ends = (
        (k, v),
        None if n.optional(7) is None or n.optional(5) is None else n.emit("add", before, n.constant(1, I64)),
    )
    if n.optional(9) is not None:
        k, v = (_of_beams(n, t, n.cast(n.input(9), I64), before) for t in (k, v))
    y, scores = _attend_masked(n, q, k, v, (3, 4), None, ends)
    return y, *presents, scores


def _of_beams(n: Reading, x: Value, indirection: Value, before: Value) -> Value:
    """Selects [batch · beams, heads, keys, depth], each key before the new one from its beam [batch, beams, keys]."""
    total, heads, keys, depth = x.type.shape
    groups, beams, _ = indirection.type.shape
    indirection = n.slice(indirection, 2, 0, keys)
    own = n.reshape(n.count(beams), (1, beams, 1))
    taken = n.emit("where", n.emit("less", n.count(keys), before), indirection, own)
    first = n.emit("mul", n.reshape(n.count(groups), (groups, 1, 1)), n.sizes(beams))
    rows = n.reshape(n.emit("add", taken, first), (total, keys, 1))
    places = n.expand(n.reshape(n.count(keys), (1, keys, 1)), (total, keys, 1))
    at = n.emit("concat", rows, places, axis=2)
    return n.transpose(n.emit("gather_nd", n.transpose(x, (0, 2, 1, 3)), at), (0, 2, 1, 3))


def _split_inputs(n: Reading, heads: int) -> list[Value]:
    """Returns queries, keys and values, each [batch, heads, rows, depth]."""
    x, key, value = n.input(0), n.optional(1), n.optional(2)
    if x.type.rank == 5:  # [batch, rows, heads, 3, depth]
        return _unstack(n, x, 3)
    q = split_heads(n, x, heads)
    if key is None:
        raise n.refuse(f"{n.op} needs keys for queries of {x.type}")
    if key.type.rank == 5:  # [batch, rows, heads, 2, depth]
        return [q, *_unstack(n, key, 2)]
    if value is None:
        raise n.refuse(f"{n.op} needs values for keys of {key.type}")
    return [q, *(t if t.type.rank == 4 else split_heads(n, t, heads) for t in (key, value))]


def _unstack(n: Reading, x: Value, count: int) -> list[Value]:
    batch, rows, heads, parts, depth = x.type.shape
    if parts != count:
        raise n.refuse(f"{n.op} needs {count} tensors packed along axis 3, got {x.type}")
    return [
        n.transpose(n.reshape(n.slice(x, 3, i, i + 1), (batch, rows, heads, depth)), (0, 2, 1, 3)) for i in range(count)
    ]


# --- embeddings before the first layer


@reads("EmbedLayerNormalization", domain=MICROSOFT, attributes="epsilon mask_index_type", inputs=9)
def embed_layer_normalization(n: Reading) -> tuple[Binding, ...]:
    """Computes norm(words + positions + segments); the second output counts visible rows, the third is the sum."""
    segments = None if n.optional(1) is None else (n.input(1), n.input(4))
    return _embed(n, n.input(2), n.input(3), segments, (n.input(5), n.input(6)), (n.optional(7), n.optional(8)))


@reads("QEmbedLayerNormalization", domain=MICROSOFT, attributes="epsilon", inputs=18)
def embed_quantized_layer_normalization(n: Reading) -> tuple[Binding, ...]:
    """Reads EmbedLayerNormalization with tables, scale and bias in bytes, each with one scale and one zero point."""

    def whole(i: int) -> Value:
        table = n.input({0: 2, 1: 3, 2: 4, 3: 5, 4: 6}[i])
        return dequantize(n, table, n.cast(n.input(8 + i), F32), n.input(13 + i))

    segments = None if n.optional(1) is None else (n.input(1), whole(2))
    return _embed(n, whole(0), whole(1), segments, (whole(3), whole(4)), (n.optional(7), None))[:2]


def _embed(
    n: Reading,
    words: Value,
    places: Value,
    segments: tuple[Value, Value] | None,
    norm: tuple[Value, Value],
    of_rows: tuple[Value | None, Value | None],
) -> tuple[Binding, ...]:
    """Embeds ids. segments: those of rows, and their table; norm: scale and bias; of_rows: mask and positions."""
    ids, (mask, positions) = n.input(0), of_rows
    batch, rows = ids.type.shape
    row_positions = n.reshape(n.count(rows), (1, rows)) if positions is None else positions
    total = n.emit("add", n.emit("gather", words, ids, axis=0), take(n, places, row_positions))
    if segments is not None:
        total = n.emit("add", total, n.emit("gather", segments[1], segments[0], axis=0))
    shown = None
    if n.is_output_used(1):
        counted = mask if n.attr("mask_index_type", 1) else None
        shown = (
            n.filled(0, (batch,), I32) if counted is None else n.emit("reduce_sum", counted, axes=(1,), keepdims=False)
        )
    return layer_norm(n, total, *norm, default=FUSED_EPSILON), shown, total
