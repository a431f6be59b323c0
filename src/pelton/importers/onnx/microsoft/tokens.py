"""Readers of operators on tokens and keys: hashes, n-grams, words of characters; and of those with data-dependent
output shapes, which only scripts run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads
from pelton.ir.dims import Size, is_known, maximum
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64, STRING, DType


@reads("BifurcationDetector", domain=MICROSOFT, attributes="min_ngram_size max_ngram_size", inputs=4)
@reads("DynamicTimeWarping", "Unique", domain=MICROSOFT, attributes="", inputs=1)
def data_dependent_length(n: Reading) -> tuple[Binding, ...]:
    raise n.data_dependent_control()


@reads("MurmurHash3", domain=MICROSOFT, attributes="positive seed", inputs=1)
def murmur_hash3(n: Reading) -> Binding:
    """Computes MurmurHash3_x86_32 of the bytes of each element."""
    x = n.input(0)
    if x.type.dtype is STRING:
        raise n.refuse("MurmurHash3 of strings is not supported; hash them before the model")
    if x.type.dtype.size not in (4, 8):
        raise n.refuse(f"MurmurHash3 needs elements of 32 or 64 bits, got {x.type}")

    def constant(number: int) -> Value:
        return n.constant(np.uint32(number))

    def turn(v: Value, by: int) -> Value:
        ends = n.emit("shift_left", v, constant(by)), n.emit("shift_right", v, constant(32 - by))
        return n.emit("bitwise_or", *ends)

    def spread(v: Value, by: int, factor: int | None) -> Value:
        v = n.emit("bitwise_xor", v, n.emit("shift_right", v, constant(by)))
        return v if factor is None else n.emit("mul", v, constant(factor))

    hash = n.expand(constant(n.attr("seed", 0) % (1 << 32)), x.type.shape)
    for word in _words(n, x):
        mixed = n.emit("mul", turn(n.emit("mul", word, constant(0xCC9E2D51)), 15), constant(0x1B873593))
        hash = turn(n.emit("bitwise_xor", hash, mixed), 13)
        hash = n.emit("add", n.emit("mul", hash, constant(5)), constant(0xE6546B64))
    hash = n.emit("bitwise_xor", hash, constant(x.type.dtype.size))
    for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        hash = spread(hash, by, factor)
    return hash if n.flag("positive", 1) else n.emit("bit_cast", hash, to=I32)


def _words(n: Reading, x: Value) -> list[Value]:
    """Splits the bytes of each element into 32-bit words, the lowest first."""
    if x.type.dtype.size == 4:
        return [x if x.type.dtype is DType.U32 else n.emit("bit_cast", x, to=DType.U32)]
    whole = x if x.type.dtype is DType.U64 else n.emit("bit_cast", x, to=DType.U64)
    low = n.emit("bitwise_and", whole, n.constant(np.uint64(0xFFFFFFFF)))
    return [n.cast(v, DType.U32) for v in (low, n.emit("shift_right", whole, n.constant(np.uint64(32))))]


@reads("NGramRepeatBlock", domain=MICROSOFT, attributes="ngram_size", inputs=2)
def n_gram_repeat_block(n: Reading) -> Binding:
    """Returns scores [batch, vocabulary] with −∞ for tokens that would repeat an n-gram of the ids [batch, tokens]."""
    ids, scores, length = n.input(0), n.input(1), n.attr("ngram_size", 0)
    if ids.type.rank != 2 or scores.type.rank != 2 or length < 1:
        raise n.refuse(f"NGramRepeatBlock needs matrices and an ngram_size, got {ids.type}, {scores.type} and {length}")
    batch, tokens = ids.type.shape
    count = maximum(tokens - length + 1, 0)  # of n-grams
    repeated = n.expand(n.constant(True), (batch, count))
    for k in range(length - 1):
        last = maximum(tokens - length + 1 + k, 0)
        same = n.emit("equal", n.slice(ids, 1, k, k + count), n.slice(ids, 1, last, last + 1))
        repeated = n.emit("logical_and", repeated, same)
    bound = n.emit("where", repeated, n.like(scores, -np.inf), n.like(scores, np.inf))
    following = n.slice(ids, 1, length - 1, length - 1 + count)
    return n.emit("scatter_elements", scores, following, bound, axis=1, reduction="min")


@reads(
    "WordConvEmbedding",
    domain=MICROSOFT,
    attributes="embedding_size conv_window_size char_embedding_size",
    inputs=4,
)
def word_conv_embedding(n: Reading) -> Binding:
    """Returns the largest tanh(W · characters + b) over the windows of each word [words, characters]. Characters above
    0 count; each word has at least one window. A word without a first character gives 0."""
    words, w, bias, table = n.inputs
    if words.type.rank != 2 or w.type.rank != 4 or table.type.rank != 2 or not is_known(*w.type.shape):
        raise n.refuse(
            "WordConvEmbedding needs words [count, characters], W [filters, 1, window, size] and characters"
            f" [number, size], got {words.type}, {w.type} and {table.type}"
        )
    filters, _, width, depth = w.type.shape
    wanted = [n.attr(name, -1) for name in ("embedding_size", "conv_window_size", "char_embedding_size")]
    if any(d not in (-1, size) for d, size in zip(wanted, (filters, width, depth))):
        raise n.refuse(f"WordConvEmbedding needs W of its sizes {wanted}, got {w.type}")
    count, longest = words.type.shape
    zero = n.like(words, 0)
    present = n.emit("greater", words, zero)
    lengths = n.emit("reduce_sum", n.cast(present, I64), axes=(1,), keepdims=True)
    windows = longest - width + 1
    at = n.emit("add", n.reshape(n.count(windows), (windows, 1)), n.count(width))
    characters = n.emit("gather", table, n.emit("gather", words, at, axis=1), axis=0)
    flat = n.reshape(characters, (count, windows, width * depth))
    y = n.emit("matmul", flat, n.transpose(n.reshape(w, (filters, width * depth)), (1, 0)))
    y = n.emit("tanh", n.emit("add", y, bias))
    fits = n.emit("less_equal", n.count(windows), n.emit("maximum", n.emit("sub", lengths, n.sizes(width)), n.sizes(0)))
    y = n.emit("where", n.reshape(fits, (count, windows, 1)), y, n.like(y, -np.inf))
    y = n.emit("reduce_max", y, axes=(1,), keepdims=False)
    return n.emit("where", n.slice(present, 1, 0, 1), y, n.like(y, 0))


# --- hashes of n-grams


_HASHING = "max_ngram_size n_head_per_ngram pad_id reset_on_eos"


@reads("NGramHashMapping", domain=MICROSOFT, attributes=_HASHING, inputs=7)
def n_gram_hash_mapping(n: Reading) -> tuple[Binding, ...]:
    """Hashes each of the ids [batch, tokens] with up to `history` ids before it, the first from the last run."""
    ids, history = n.input(0), _history(n)
    batch, tokens = ids.type.shape
    eos, segments = n.optional(5), n.optional(6)
    missing = n.cast(n.reshape(eos, ()), ids.type.dtype) if eos is not None else n.like(ids, n.attr("pad_id"))
    past = n.optional(3)
    whole = n.emit("concat", n.expand(missing, (batch, history)) if past is None else past, ids, axis=1)
    shifted = [n.slice(whole, 1, history - k, history - k + tokens) for k in range(history + 1)]
    apart = []
    if segments is not None:
        padded = n.emit("pad", segments, n.like(segments, 0), pads=(0, history, 0, 0), mode="edge")
        places = [n.slice(padded, 1, history - k, history - k + tokens) for k in range(history + 1)]
        apart = [n.emit("logical_not", n.emit("equal", a, b)) for a, b in zip(places, places[1:])]
    hashes = _hashes(n, _reset(n, shifted, apart, eos, missing), n.input(1), n.input(2), n.optional(4))
    return hashes, n.slice(whole, 1, tokens, tokens + history)


def _history(n: Reading) -> int:
    history, heads = n.attr("max_ngram_size", 0) - 1, n.attr("n_head_per_ngram", 0)
    rank = 1 if n.op.startswith("Varlen") else 2
    if history < 1 or heads < 1 or n.input(0).type.rank != rank or n.attr("pad_id") is None:
        raise n.refuse(
            f"{n.op} needs ids of rank {rank}, max_ngram_size of 2 and more, n_head_per_ngram and pad_id, got"
            f" {n.input(0).type}, {history + 1}, {heads} and {n.attr('pad_id')}"
        )
    return history


def _reset(n: Reading, shifted: list[Value], apart: list[Value], eos: Value | None, missing: Value) -> list[Value]:
    """Returns the preceding tokens, with `missing` for those of another sequence: from an end, or a boundary, on."""
    ends = eos is not None and n.flag("reset_on_eos")
    gone, tokens = None, shifted[:1]
    for k, token in enumerate(shifted[1:]):
        for cut in [n.emit("equal", token, missing)] * ends + apart[k : k + 1]:
            gone = cut if gone is None else n.emit("logical_or", gone, cut)
        tokens.append(token if gone is None else n.emit("where", gone, missing, token))
    return tokens


def _hashes(n: Reading, tokens: list[Value], factors: Value, sizes: Value, offsets: Value | None) -> Value:
    """Computes, for 2 tokens, 3 and so on, the xor of token · factor, modulo the size of each head."""
    heads, lead = n.attr("n_head_per_ngram"), tokens[0].type.shape
    factor = [n.reshape(n.slice(factors, 0, k, k + 1), ()) for k in range(len(tokens))]
    mixed, parts = n.emit("mul", tokens[0], factor[0]), []
    for k, token in enumerate(tokens[1:], 1):
        mixed = n.emit("bitwise_xor", mixed, n.emit("mul", token, factor[k]))
        size = n.slice(sizes, 0, (k - 1) * heads, k * heads)
        parts.append(n.emit("mod", n.reshape(mixed, (*lead, 1)), size))
    hashes = parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=len(lead))
    return hashes if offsets is None else n.emit("add", hashes, offsets)


@dataclass(frozen=True)
class _Packed:
    """Concatenated sequences: starts and ends, and the length of their kept past."""

    n: Reading
    starts: Value  # [requests]
    history: int

    @property
    def requests(self) -> Size:
        return self.starts.type.size

    def at(self, places: Value, request: Value, values: Value, past: Value | None, missing: Value) -> Value:
        """Returns the values at places of requests. Before a request's start, it returns its past [requests, history],
        or `missing` without one."""
        n = self.n
        start = n.emit("gather", self.starts, request, axis=0)
        inside = n.emit("gather", values, n.emit("maximum", places, n.constant(0, I64)), axis=0)
        if past is not None:
            back = n.emit("add", n.emit("sub", places, start), n.constant(self.history, I64))
            back = n.emit("clip", back, n.constant(0, I64), n.constant(self.history - 1, I64))
            row = n.emit("mul", request, n.constant(self.history, I64))
            flat = n.reshape(past, (self.requests * self.history,))
            missing = n.emit("gather", flat, n.emit("add", row, back), axis=0)
        return n.emit("where", n.emit("greater_equal", places, start), inside, missing)

    def before(self, places: Value, values: Value, past: Value | None, missing: Value) -> Value:
        """Returns the `history` values before places [requests, ...], along a new last axis."""
        n = self.n
        shape = places.type.shape
        back = n.emit("add", n.reshape(places, (*shape, 1)), n.constant(np.arange(-self.history, 0), I64))
        request = n.reshape(n.count(self.requests), (self.requests, *[1] * len(shape)))
        return self.at(back, n.expand(request, back.type.shape), values, past, missing)


@reads("VarlenNGramHashMapping", domain=MICROSOFT, attributes=f"{_HASHING} state_update_capacity", inputs=10)
def varlen_n_gram_hash_mapping(n: Reading) -> tuple[Binding, ...]:
    """Does the same for ids [tokens] of several concatenated sequences, with starts and ends in the limits."""
    ids, limits, history = n.input(0), n.cast(n.input(3), I64), _history(n)
    past, eos, segments, past_segments = (n.optional(i) for i in (4, 6, 7, 8))
    (tokens,), requests = ids.type.shape, limits.type.shape[0] - 1
    missing = n.cast(n.reshape(eos, ()), ids.type.dtype) if eos is not None else n.like(ids, n.attr("pad_id"))
    ends = n.slice(limits, 0, 1, requests + 1)
    packed = _Packed(n, n.slice(limits, 0, 0, requests), history)
    place = n.count(tokens)
    ended = n.cast(n.emit("less_equal", ends, n.reshape(place, (tokens, 1))), I64)
    request = n.emit("reduce_sum", ended, axes=(1,), keepdims=False)
    request = n.emit("minimum", request, n.sizes(requests - 1))

    def shifted(*of: Value | None) -> list[Value]:
        back = [n.emit("sub", place, n.constant(k, I64)) for k in range(history + 1)]
        return [packed.at(p, request, *of) for p in back]  # type: ignore[arg-type]

    apart, kept_segments = [], None
    if segments is not None:
        first = n.emit("gather", segments, packed.starts, axis=0)
        marks = shifted(segments, past_segments, n.emit("gather", first, request, axis=0))
        apart = [n.emit("logical_not", n.emit("equal", a, b)) for a, b in zip(marks, marks[1:])]
        kept_segments = packed.before(ends, segments, past_segments, n.reshape(first, (requests, 1)))
    hashes = _hashes(
        n, _reset(n, shifted(ids, past, missing), apart, eos, missing), n.input(1), n.input(2), n.optional(5)
    )
    capacity, states = n.attr("state_update_capacity", 0), None
    if capacity:
        slot = n.count(capacity)
        after = n.emit("add", n.reshape(packed.starts, (requests, 1)), n.emit("add", slot, n.constant(1, I64)))
        taken = n.emit("minimum", n.cast(n.input(9), I64), n.emit("sub", ends, packed.starts))
        is_taken = n.emit("less", slot, n.reshape(taken, (requests, 1)))
        states = packed.before(after, ids, past, missing)
        states = n.emit("where", n.reshape(is_taken, (requests, capacity, 1)), states, missing)
    return hashes, packed.before(ends, ids, past, missing), kept_segments, states
