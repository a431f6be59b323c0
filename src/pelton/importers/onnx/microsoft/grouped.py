"""Readers of attention with a cache and several query heads per key head: causal, in a window, or sparse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import Size, is_known, maximum
from pelton.ir.graph import Value
from pelton.ir.types import F32, I8, I64, U8, DType

from pelton.importers.onnx.ops.attention import merge_heads, repeat_heads
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads
from .attention import Scores, add_present, attend, mask_scores, scale_of, scores_of, split_parts, weights_of
from .few_bits import unpack_bits


@dataclass(frozen=True)
class Places:
    """Positions of tokens, for each sequence [batch, 1]: the number of keys, the number of those before, and the
    position of each row [batch, rows]."""

    totals: Value
    before: Value
    rows: Value


def _places(n: Reading, totals: Value, rows: Size, valid: Value | None) -> Places:
    """Returns positions of rows behind those before; any surplus rows are padding."""
    totals = n.reshape(n.cast(totals, I64), (totals.type.size, 1))
    own = (
        n.emit("minimum", totals, n.sizes(rows)) if valid is None else n.reshape(n.cast(valid, I64), totals.type.shape)
    )
    before = n.emit("sub", totals, own)
    return Places(totals, before, n.emit("add", before, n.count(rows)))


def _heads(n: Reading, heads: int, kv_heads: int) -> list[Value]:
    """Returns queries, keys and values, [batch, rows, heads, depth]."""
    q, k, v = n.input(0), n.optional(1), n.optional(2)
    if k is None and v is None:  # packed
        depth = q.type.shape[-1] // (heads + 2 * kv_heads)
        q, k, v = split_parts(n, q, (heads * depth, kv_heads * depth, kv_heads * depth))
    if k is None or v is None:
        raise n.refuse(f"{n.op} needs values for keys")
    batch, rows = q.type.shape[:2]
    return [n.reshape(t, (batch, rows, h, t.type.shape[2] // h)) for t, h in ((q, heads), (k, kv_heads), (v, kv_heads))]


def _rotate(n: Reading, parts: list[Value], at: Value, caches: tuple[int, int]) -> list[Value]:
    """Rotates [batch, rows, heads, depth] by the angles of the positions [batch, rows]."""
    batch, rows = parts[0].type.shape[:2]
    cos, sin = (n.emit("gather", n.input(i), at, axis=0) for i in caches)
    cos, sin = (n.reshape(t, (batch, rows, 1, t.type.shape[2])) for t in (cos, sin))
    return [n.emit("rotary", t, cos, sin, interleaved=n.flag("rotary_interleaved")) for t in parts]


# --- caches


@dataclass(frozen=True)
class CacheNumbers:
    """Number format of a cache: unchanged, or integers of `bits` bits, times scales that fit [batch, heads, rows,
    depth]."""

    bits: int = 0
    scale: Value | None = None


def _cache(n: Reading, name: str, i: int, heads: int) -> CacheNumbers:
    """Returns the format of the cache of keys or of values, with its scales in input i."""
    kind = n.attr(f"{name}_quant_type", "NONE")
    if kind == "NONE":
        return CacheNumbers()
    bits = n.attr("kv_cache_bit_width", 8)
    if kind not in ("PER_TENSOR", "PER_CHANNEL") or bits not in (4, 8):
        raise n.refuse(
            f"{n.op} needs {name}_quant_type NONE, PER_TENSOR or PER_CHANNEL, and 4 or 8 bits, got {kind} and {bits}"
        )
    scale = n.cast(n.input(i), F32)
    if kind == "PER_TENSOR":
        return CacheNumbers(bits, n.reshape(scale, ()))
    return CacheNumbers(bits, n.reshape(scale, (1, heads, 1, scale.type.size // heads)))


def _from_cache(n: Reading, v: Value, cache: CacheNumbers) -> Value:
    if cache.scale is None:
        return v
    if cache.bits == 4:
        v = n.emit("sub", n.cast(unpack_bits(n, v, 4), F32), n.constant(8, F32))
    return n.emit("mul", n.cast(v, F32), cache.scale)


def _to_cache(n: Reading, v: Value, cache: CacheNumbers) -> Value:
    """Rounds to integers if the cache holds them."""
    if cache.scale is None:
        return v
    if cache.bits == 8:
        return quantize_by(n, n.cast(v, F32), cache.scale, I8)
    x = n.emit("round", n.emit("div", n.cast(v, F32), cache.scale))
    x = n.cast(n.emit("add", n.emit("clip", x, n.like(x, -8), n.like(x, 7)), n.like(x, 8)), U8)
    *shape, depth = x.type.shape
    pairs = n.reshape(x, (*shape, depth // 2, 2))
    low, high = (n.reshape(n.slice(pairs, len(shape) + 1, i, i + 1), (*shape, depth // 2)) for i in (0, 1))
    return n.emit("bitwise_or", low, n.emit("shift_left", high, n.constant(4, U8)))


def quantize_by(n: Reading, x: Value, scale: Value, to: DType) -> Value:
    """Computes x / scale, rounded half to even and saturated; scales broadcast."""
    x = n.emit("round", n.emit("div", x, scale))
    return n.cast(n.emit("clip", x, n.like(x, to.lowest), n.like(x, to.highest)), to)


def _extend(n: Reading, past: Value | None, new: Value, places: Places, length: Size, in_place: bool = False) -> Value:
    """Returns [batch, heads, length, …]: the past, then the new ones [batch, heads, rows, …], then 0, or, in place, the
    previous content."""
    batch, _, rows, _ = new.type.shape
    if past is None or equal_known(past.type.shape[2], 0) and equal_known(length, rows):
        return new
    begin, end = (n.reshape(v, (batch,)) for v in (places.before, places.totals))
    return n.emit("cache_write", past, new, begin, end, length=length, keep=in_place)


@dataclass(frozen=True)
class Stored:
    """Keys and values in the numbers of their caches, [batch, heads, keys, depth]; the caches of the next run; and
    [batch, 1, rows, keys]: true if a row sees a key."""

    parts: list[Value]
    presents: list[Value]
    shown: Value


def _store_all(n: Reading, news: list[Value], places: Places) -> Stored:
    """Appends new keys and values [batch, heads, rows, depth] to caches of the whole sequence."""
    pasts, total, length = _lengths(n, news[0].type.shape[2])
    presents = [_extend(n, past, new, places, length) for past, new in zip(pasts, news)]
    return Stored([n.slice(t, 2, 0, total) for t in presents], presents, _shown(n, places, n.count(total)))


def _store_window(n: Reading, news: list[Value], places: Places) -> Stored:
    """Appends new keys and values to caches of the last positions, in increasing order from index 0.

    A cache of C positions and a window of W drops C - W + 1 positions at once, as soon as it lacks room: at length t,
    it starts at the largest multiple of C - W + 1 that is at most max(t - W, 0). Positions behind those are undefined.
    """
    window, past_k, past_v = n.attr("local_window_size", -1), n.optional(3), n.optional(4)
    if window <= 0 or past_k is None or past_v is None or n.optional(10) is not None or n.is_output_used(3):
        raise n.refuse(
            "GroupQueryAttention with sliding_window_cache needs a local_window_size and caches, and neither a bias nor"
            " an output of scores"
        )
    batch, _, rows, _ = news[0].type.shape
    capacity = past_k.type.shape[2]
    if capacity < window:
        raise n.refuse(
            f"GroupQueryAttention with sliding_window_cache needs caches of at least {window} positions, its"
            f" local_window_size, got {capacity}"
        )
    step, zero = n.sizes(capacity - window + 1), n.constant(0, I64)

    def positions(length: Value) -> Value:
        behind = n.emit("maximum", n.emit("sub", length, n.constant(window, I64)), zero)
        return n.emit("add", n.emit("mul", n.emit("div", behind, step), step), n.count(capacity))

    old, kept = positions(places.before), positions(places.totals)  # [batch, capacity]
    keys = n.emit("where", n.emit("less", old, places.before), old, places.totals)  # no row sees the total length
    shown = _shown(n, places, n.reshape(n.emit("concat", keys, places.rows, axis=1), (batch, 1, 1, capacity + rows)))
    from_old = n.emit("sub", kept, n.slice(old, 1, 0, 1))
    from_new = n.emit("add", n.emit("sub", kept, places.before), n.sizes(capacity))
    order = n.emit("where", n.emit("less", kept, places.before), from_old, from_new)
    order = n.emit("maximum", n.emit("minimum", order, n.sizes(capacity + rows - 1)), zero)
    order = n.reshape(order, (batch, capacity, 1))
    parts = [n.emit("concat", past, new, axis=2) for past, new in zip((past_k, past_v), news)]
    by_position = (n.transpose(t, (0, 2, 1, 3)) for t in parts)
    presents = [n.transpose(n.emit("gather_nd", t, order, batch_dims=1), (0, 2, 1, 3)) for t in by_position]
    return Stored(parts, presents, shown)


def equal_known(a: Size, b: Size) -> bool:
    return is_known(a - b) and a - b == 0


# --- GroupQueryAttention


@reads(
    "GroupQueryAttention",
    domain=MICROSOFT,
    attributes="""num_heads kv_num_heads scale softcap do_rotary rotary_interleaved local_window_size smooth_softmax
        causal qk_output k_quant_type v_quant_type kv_cache_bit_width qk_norm_epsilon q_norm_epsilon k_norm_epsilon
        sliding_window_cache""",
    inputs=17,
)
def group_query_attention(n: Reading) -> tuple[Binding, ...]:
    """Reads positions from seqlens_k. New keys follow the valid part of the cache, which may be longer. Output scores
    are 0 for keys invisible to a row."""
    heads, kv_heads = n.attr("num_heads"), n.attr("kv_num_heads")
    q, k, v = _heads(n, heads, kv_heads)
    batch, rows, _, depth = q.type.shape
    places = _places(n, n.emit("add", n.cast(n.input(5), I64), n.constant(1, I64)), rows, n.optional(16))
    if n.optional(14) is not None:
        default = n.attr("qk_norm_epsilon", 1e-6)
        q, k = (
            n.emit(
                "rms_norm", t, n.cast(n.input(i), t.type.dtype), axis=3, epsilon=n.attr(f"{name}_norm_epsilon", default)
            )
            for t, i, name in ((q, 14, "q"), (k, 15, "k"))
        )
    if n.flag("do_rotary"):
        at = n.optional(9)
        q, k = _rotate(n, [q, k], places.rows if at is None else _given_places(n, at, rows), (7, 8))
    q, k, v = (n.transpose(t, (0, 2, 1, 3)) for t in (q, k, v))
    caches = _cache(n, "k", 12, kv_heads), _cache(n, "v", 13, kv_heads)
    news = [_to_cache(n, t, cache) for t, cache in zip((k, v), caches)]
    stored = (_store_window if n.flag("sliding_window_cache") else _store_all)(n, news, places)
    k, v = (
        repeat_heads(n, n.cast(_from_cache(n, t, cache), q.type.dtype), heads // kv_heads)
        for t, cache in zip(stored.parts, caches)
    )
    sink = n.optional(11)
    if sink is None and n.attr("smooth_softmax", 0) > 0:
        sink = n.filled(0, (heads,), q.type.dtype)
    mask = add_present(n, [mask_scores(n, stored.shown, q, -np.inf), n.optional(10)])
    how = Scores(scale_of(n, q, k), n.attr("softcap", 0.0), sink)
    if not n.is_output_used(3):
        return merge_heads(n, attend(n, q, k, v, mask, how)), *stored.presents
    scores = scores_of(n, q, k, mask, how)
    weights = weights_of(n, scores, how)
    kind = n.attr("qk_output", 0)
    if kind not in (1, 2):
        raise n.refuse(f"GroupQueryAttention needs qk_output 1 or 2 to output scores, got {kind}")
    output_scores = n.emit("where", stored.shown, scores, n.like(scores, 0)) if kind == 1 else weights
    return merge_heads(n, n.emit("matmul", weights, v)), *stored.presents, output_scores


def _lengths(n: Reading, rows: Size) -> tuple[list[Value | None], Size, Size]:
    """Returns the nonempty caches, the number of valid keys, and the length of the caches afterwards."""
    pasts = [past if past is None or past.type.shape[2] != 0 else None for past in (n.optional(3), n.optional(4))]
    if pasts[0] is None or pasts[1] is None:
        return [None, None], rows, rows
    held, (total,) = pasts[0].type.shape[2], n.integers(6, "total_sequence_length")
    return pasts, total, maximum(held, total)


def _given_places(n: Reading, given: Value, rows: Size) -> Value:
    """Returns position_ids; in the first prompt, only the first one counts, and the others follow it."""
    _, total, _ = _lengths(n, rows)
    given = n.cast(given, I64)
    following = n.emit("add", n.reshape(n.slice(n.slice(given, 0, 0, 1), 1, 0, 1), (1, 1)), n.count(rows))
    following = n.expand(following, given.type.shape)
    if is_known(total - rows):
        return following if total == rows else given
    return n.emit("where", n.emit("equal", n.sizes(total), n.sizes(rows)), following, given)


def _shown(n: Reading, places: Places, key: Value) -> Value:
    """Returns [batch, 1, rows, keys]: true if a row sees a key. key: positions, [keys] or [batch, 1, 1, keys]."""
    batch, rows = places.rows.type.shape
    position, window = n.reshape(places.rows, (batch, 1, rows, 1)), n.attr("local_window_size", -1)
    if not n.flag("causal", 1):
        if window > 0:
            raise n.refuse("GroupQueryAttention with a local_window_size must be causal")
        return n.emit("less", key, n.reshape(places.totals, (batch, 1, 1, 1)))
    last = n.emit("sub", n.reshape(places.totals, (batch, 1, 1, 1)), n.constant(1, I64))
    shown = n.emit("less_equal", key, n.emit("minimum", position, last))  # padding sees all keys
    if window > 0:
        shown = n.emit("logical_and", shown, n.emit("greater", key, n.emit("sub", position, n.constant(window, I64))))
    return shown


# --- SparseAttention


@reads(
    "SparseAttention",
    domain=MICROSOFT,
    attributes="num_heads kv_num_heads scale do_rotary rotary_interleaved sparse_block_size",
    inputs=11,
)
def sparse_attention(n: Reading) -> tuple[Binding, ...]:
    """Reads GroupQueryAttention that sees keys before a row in the blocks of its head's layout: for each block of rows,
    block_row_indices locate its blocks of keys in block_col_indices. Heads use the layouts in turn."""
    heads, kv_heads = n.attr("num_heads"), n.attr("kv_num_heads")
    q, k, v = _heads(n, heads, kv_heads)
    batch, rows, _, _ = q.type.shape
    places = _places(n, n.input(8), rows, None)
    if n.flag("do_rotary"):
        q, k = _rotate(n, [q, k], places.rows, (9, 10))
    q, k, v = (n.transpose(t, (0, 2, 1, 3)) for t in (q, k, v))
    pasts = n.input(3), n.input(4)
    length = pasts[0].type.shape[2]
    presents = [_extend(n, past, t, places, length, in_place=True) for past, t in zip(pasts, (k, v))]
    k, v = (repeat_heads(n, t, heads // kv_heads) for t in presents)
    shown = n.emit("logical_and", _shown(n, places, n.count(length)), _in_layout(n, places, heads, length))
    how = Scores(scale_of(n, q, k))
    return merge_heads(n, attend(n, q, k, v, mask_scores(n, shown, q, -np.inf), how)), *presents


def _in_layout(n: Reading, places: Places, heads: int, length: Size) -> Value:
    """Returns [batch, heads, rows, keys]: true if the head's layout has the key's block for the row's block."""
    starts, blocks, size = n.cast(n.input(5), I64), n.cast(n.input(6), I64), n.attr("sparse_block_size")
    batch, rows = places.rows.type.shape
    (layouts, count), longest = starts.type.shape, blocks.type.shape[1]
    if not is_known(layouts, count, longest) or heads % layouts:
        raise n.refuse(f"SparseAttention needs layouts of known sizes that divide {heads} heads, got {starts.type}")
    # [layouts, rows of blocks, stored blocks]: true if a block belongs to a row
    at = n.reshape(n.count(longest), (1, 1, longest))
    first, behind = (n.reshape(n.slice(starts, 1, i, i + count - 1), (layouts, count - 1, 1)) for i in (0, 1))
    own = n.emit("logical_and", n.emit("less_equal", first, at), n.emit("less", at, behind))
    hit = n.emit(
        "equal", n.reshape(blocks, (layouts, 1, 1, longest)), n.reshape(n.count(count - 1), (1, 1, count - 1, 1))
    )
    both = n.emit("logical_and", n.reshape(own, (layouts, count - 1, 1, longest)), hit)
    table = n.emit("reduce_max", both, axes=(3,), keepdims=False)  # [layouts, row blocks, key blocks]
    key_blocks = n.emit("gather", table, n.emit("div", n.count(length), n.constant(size, I64)), axis=2)
    row_blocks = n.emit("minimum", n.emit("div", places.rows, n.constant(size, I64)), n.constant(count - 2, I64))
    chosen = n.emit("gather", key_blocks, row_blocks, axis=1)  # [layouts, batch, rows, keys]
    chosen = n.reshape(n.transpose(chosen, (1, 0, 2, 3)), (batch, 1, layouts, rows, length))
    wide = n.expand(chosen, (batch, heads // layouts, layouts, rows, length))
    return n.reshape(wide, (batch, heads, rows, length))
