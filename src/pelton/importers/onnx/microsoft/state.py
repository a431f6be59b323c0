"""Readers of layers with a state per sequence: linear attention and causal convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pelton.ir.dims import Size, equal, is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, I64

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

_RULES = ("linear", "gated", "delta", "gated_delta")


@dataclass(frozen=True)
class Recurrence:
    """Contributions of the tokens of all sequences, [tokens, heads, …], in f32: queries [tokens, heads, queries, keys],
    keys, values, factors of the state, and weights of the contributions."""

    q: Value
    k: Value
    v: Value
    decay: Value
    beta: Value


def _rule(n: Reading) -> tuple[bool, bool]:
    """Returns two flags: states decay, and their present values are subtracted."""
    rule = n.attr("update_rule", "gated_delta")
    if rule not in _RULES:
        raise n.refuse(f"{n.op} needs update_rule {', '.join(_RULES[:-1])} or {_RULES[-1]}, got {rule!r}")
    return rule.startswith("gated"), rule.endswith("delta")


def _grouped_heads(n: Reading, q: Value, k: Value, heads: int) -> tuple[Value, Value]:
    """Returns [tokens, heads, queries, keys] and [tokens, heads, keys] from [tokens, own heads, keys]: there may be
    more or fewer heads of queries than of values, and fewer of keys."""
    (tokens, own, keys), own_keys = q.type.shape, k.type.shape[1]
    if max(own, heads) % min(own, heads) or heads % own_keys:
        raise n.refuse(
            f"{n.op} needs heads of queries and of keys that fit {heads} heads of values, got {own} and {own_keys}"
        )
    q = n.reshape(q, (tokens, heads, own // heads, keys)) if own > heads else _repeated(n, q, heads // own)
    q = q if q.type.rank == 4 else n.reshape(q, (tokens, heads, 1, keys))
    return q, _repeated(n, k, heads // own_keys)


def _repeated(n: Reading, x: Value, times: int) -> Value:
    """Repeats every head of [tokens, heads, width], copies adjacent."""
    if times == 1:
        return x
    tokens, heads, width = x.type.shape
    wide = n.expand(n.reshape(x, (tokens, heads, 1, width)), (tokens, heads, times, width))
    return n.reshape(wide, (tokens, heads * times, width))


def _by_turns(n: Reading, r: Recurrence, state: Value, of: Value, retrieve: bool) -> tuple[Value, Value, Value]:
    y, ends, changes = n.emit_all("delta_rule", r.q, r.k, r.v, r.decay, r.beta, state, of, retrieve=retrieve)
    return y, ends, changes


def _at_once(n: Reading, r: Recurrence, state: Value, retrieve: bool) -> tuple[Value, Value]:
    """Computes the results for one token of each sequence as products."""
    batch, heads, keys, values = state.type.shape

    def beside(v: Value, *last: Size) -> Value:
        return n.reshape(v, (batch, heads, *last))

    state = n.emit("mul", state, beside(r.decay, r.decay.type.shape[2], 1))
    v, k = beside(r.v, 1, values), beside(r.k, 1, keys)
    v = n.emit("sub", v, n.emit("matmul", k, state)) if retrieve else v
    delta = n.emit("mul", v, beside(r.beta, 1, 1))
    state = n.emit("add", state, n.emit("matmul", n.reshape(k, (batch, heads, keys, 1)), delta))
    return n.emit("matmul", r.q, state), state


@reads(
    "LinearAttention",
    domain=MICROSOFT,
    attributes="q_num_heads kv_num_heads update_rule scale chunk_size",
    inputs=6,
)
def linear_attention(n: Reading) -> tuple[Binding, ...]:
    """Updates a state [batch, heads, keys, values] by each token's key and value, and reads it by its query. The hint
    chunk_size has no effect."""
    gated, retrieve = _rule(n)
    queries, heads = n.attr("q_num_heads", 0), n.attr("kv_num_heads", 0)
    q, k, v, past, decay, beta = n.input(0), n.input(1), n.input(2), n.optional(3), n.optional(4), n.optional(5)
    known = [isinstance(t.type.shape[-1], int) and t.type.rank == 3 for t in (q, k, v)]
    if not all(known) or min(queries, heads) < 1 or q.type.shape[2] % queries or v.type.shape[2] % heads:
        raise n.refuse(
            f"LinearAttention needs queries, keys and values [batch, tokens, heads · depth] for {queries} and {heads}"
            f" heads, got {q.type}, {k.type} and {v.type}"
        )
    (batch, rows, width), depth = q.type.shape, v.type.shape[2] // heads
    keys, tokens = width // queries, batch * rows
    if k.type.shape[2] % keys:
        raise n.refuse(f"LinearAttention needs keys of a depth of {keys}, got {k.type}")

    def apart(t: Value, each: int) -> Value:
        return n.reshape(n.cast(t, F32), (tokens, t.type.shape[2] // each, each))

    scale = n.attr("scale", 0.0) or 1 / math.sqrt(keys)
    q = apart(q, keys)
    grouped = _grouped_heads(n, n.emit("mul", q, n.like(q, scale)), apart(k, keys), heads)
    r = Recurrence(
        *grouped, apart(v, depth), _decay(n, decay, gated, tokens, heads), _beta(n, beta, retrieve, tokens, heads)
    )
    state = n.filled(0, (batch, heads, keys, depth), F32) if past is None else n.cast(past, F32)
    if is_known(rows) and rows == 1:
        y, state = _at_once(n, r, state, retrieve)
    else:
        of = n.reshape(n.expand(n.reshape(n.count(batch), (batch, 1)), (batch, rows)), (tokens,))
        y, state, _ = _by_turns(n, r, state, of, retrieve)
    y = n.reshape(y, (batch, rows, max(queries, heads) * depth))
    return n.cast(y, n.input(0).type.dtype), n.cast(state, n.input(0).type.dtype if past is None else past.type.dtype)


def _decay(n: Reading, given: Value | None, used: bool, tokens: Size, heads: int) -> Value:
    """Returns factors of the state, [batch, tokens, heads] or [batch, tokens, heads · keys], from their logarithms."""
    if not used:
        return n.filled(1, (tokens, heads, 1), F32)
    if given is None:
        raise n.refuse(f"{n.op} needs decays with update_rule {n.attr('update_rule', 'gated_delta')!r}")
    return n.emit("exp", n.reshape(n.cast(given, F32), (tokens, heads, given.type.shape[-1] // heads)))


def _beta(n: Reading, given: Value | None, used: bool, tokens: Size, heads: int) -> Value:
    if not used:
        return n.filled(1, (tokens, heads, 1), F32)
    if given is None:
        raise n.refuse(f"{n.op} needs betas with update_rule {n.attr('update_rule', 'gated_delta')!r}")
    each = n.reshape(n.cast(given, F32), (tokens, given.type.shape[-1], 1))
    return n.expand(each, (tokens, heads, 1))


@reads("LinearAttentionGate", domain=MICROSOFT, attributes="", inputs=4)
def linear_attention_gate(n: Reading) -> tuple[Binding, ...]:
    """Computes decay_scale · softplus(a + dt_bias), and the sigmoid of b."""
    a, b = n.input(0), n.optional(3)
    bias, scale = (n.reshape(n.cast(n.input(i), F32), a.type.shape[-1:]) for i in (1, 2))
    decay = n.emit("mul", n.emit("softplus", n.emit("add", n.cast(a, F32), bias)), scale)
    beta = None if b is None else n.cast(n.emit("sigmoid", n.cast(b, F32)), a.type.dtype)
    return n.cast(decay, a.type.dtype), beta


# --- causal convolutions


@reads(
    "CausalConvWithState",
    domain=MICROSOFT,
    attributes="""ndim=1 activation dilation channels_last input_channels=0 input_channel_offset=0
        state_channels_last=-1 state_length=0 state_update_capacity=0""",
    inputs=4,
)
def causal_convolution(n: Reading) -> tuple[Binding, ...]:
    """Convolves the state and the tokens behind it, depthwise, along the last axis, or the second one with channels
    last; the new state is the end of both."""
    x, w, bias, past = n.input(0), n.input(1), n.optional(2), n.optional(3)
    last, dilation = n.flag("channels_last"), n.attr("dilation", 1)
    if w.type.rank != 3 or dilation < 1 or x.type.rank < 3 or x.type.rank > 3 and not last:
        raise n.refuse(
            f"CausalConvWithState needs an input [batch, channels, tokens], weights [channels, 1, width] and a dilation"
            f" from 1 on, got {x.type}, {w.type} and {dilation}"
        )
    channels, _, width = w.type.shape
    inner, reach = x.type.shape[2:], (width - 1) * dilation

    def first(v: Value) -> Value:  # channels first
        return n.transpose(n.reshape(v, (*v.type.shape[:2], channels)), (0, 2, 1)) if last else v

    def back(v: Value) -> Value:
        return n.reshape(n.transpose(v, (0, 2, 1)), (v.type.shape[0], v.type.shape[2], *inner)) if last else v

    tokens = first(x)
    batch, _, rows = tokens.type.shape
    before = n.filled(0, (batch, channels, reach), x.type.dtype) if past is None else first(past)
    both = n.emit("concat", before, tokens, axis=2) if reach else tokens
    y = n.emit(
        "convolution",
        both,
        w,
        n.filled(0, (channels,), x.type.dtype) if bias is None else bias,
        strides=(1,),
        pads=(0, 0),
        dilations=(dilation,),
        group=channels,
    )
    return back(_activated(n, y)), back(n.slice(both, 2, rows, rows + reach))


def _activated(n: Reading, y: Value) -> Value:
    kind = n.attr("activation", "none")
    if kind not in ("none", "silu", "swish"):
        raise n.refuse(f"{n.op} needs activation none, silu or swish, got {kind!r}")
    return y if kind == "none" else n.emit("swish", y, alpha=1.0)


# --- concatenated sequences of different lengths


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of each sequence: its first one and one behind its last (ends[i] = starts[i + 1]); for each token, its
    sequence and its index there."""

    starts: Value
    ends: Value
    of: Value
    places: Value


def _unpack_lengths(n: Reading, offsets: Value, tokens: Size) -> PackedTokens:
    """Parses offsets [sequences + 1]: starts of sequences, and the number of tokens."""
    offsets = n.cast(offsets, I64)
    if offsets.type.rank != 1:
        raise n.refuse(f"{n.op} needs offsets [sequences + 1], got {offsets.type}")
    count = offsets.type.size - 1
    starts, ends = n.slice(offsets, 0, 0, count), n.slice(offsets, 0, 1, count + 1)
    behind = n.emit("less_equal", n.reshape(ends, (1, count)), n.reshape(n.count(tokens), (tokens, 1)))
    of = n.emit("reduce_sum", n.cast(behind, I64), axes=(1,), keepdims=False)
    places = n.emit("sub", n.count(tokens), n.emit("gather", starts, of, axis=0))
    return PackedTokens(starts, ends, of, places)


def _first_tokens(n: Reading, x: Value, packed: PackedTokens, counts: Value, capacity: int) -> Value:
    """Returns [sequences, capacity, …]: the first tokens of each sequence, up to its count; 0 behind them."""
    batch, tokens = packed.starts.type.size, x.type.shape[0]
    i = n.reshape(n.count(capacity), (1, capacity))
    at = n.emit("add", n.reshape(packed.starts, (batch, 1)), i)
    lengths = n.emit("minimum", n.emit("sub", packed.ends, packed.starts), n.cast(counts, I64))
    taken = n.emit("less", i, n.reshape(lengths, (batch, 1)))
    rows = n.emit("gather", x, n.emit("minimum", at, n.sizes(tokens - 1)), axis=0)
    return n.emit("where", n.reshape(taken, (batch, capacity, *[1] * (x.type.rank - 1))), rows, n.like(rows, 0))


@reads(
    "VarlenCausalConvWithState",
    domain=MICROSOFT,
    attributes="activation dilation state_update_capacity",
    inputs=6,
)
def causal_convolution_of_packed(n: Reading) -> tuple[Binding, ...]:
    """Reads CausalConvWithState of concatenated sequences, [tokens, channels]."""
    x, w, bias, past, capacity = n.input(0), n.input(1), n.optional(3), n.input(4), n.attr("state_update_capacity", 0)
    dilation = n.attr("dilation", 1)
    if x.type.rank != 2 or w.type.rank != 3 or past.type.rank != 3 or dilation < 1:
        raise n.refuse(
            f"{n.op} needs an input [tokens, channels], weights [channels, 1, width] and a state [sequences, channels,"
            f" length], got {x.type}, {w.type} and {past.type}"
        )
    (tokens, channels), width = x.type.shape, w.type.shape[2]
    batch, _, reach = past.type.shape
    if not equal(reach, (width - 1) * dilation):
        raise n.refuse(f"{n.op} needs a state of length {(width - 1) * dilation}, got {past.type}")
    packed = _unpack_lengths(n, n.input(2), tokens)
    kind = x.type.dtype
    x, w, past = (n.cast(v, F32) for v in (x, w, past))
    # the tokens, then the states, which precede the first token of each sequence
    rows = n.emit("concat", x, n.reshape(n.transpose(past, (0, 2, 1)), (batch * reach, channels)), axis=0)

    def pick(local: Value, of: Value) -> Value:
        """Selects tokens by their indices in sequences, from −reach on."""
        own = n.emit("add", local, n.emit("gather", packed.starts, of, axis=0))
        held = n.emit("add", n.emit("mul", of, n.sizes(reach)), n.emit("add", local, n.sizes(tokens + reach)))
        at = n.emit("where", n.emit("less", local, n.constant(0, I64)), held, own)
        return n.emit("gather", rows, at, axis=0)

    y = None
    for j in range(width):
        local = n.emit("sub", packed.places, n.constant((width - 1 - j) * dilation, I64))
        part = n.emit("mul", pick(local, packed.of), n.reshape(n.slice(w, 2, j, j + 1), (1, channels)))
        y = part if y is None else n.emit("add", y, part)
    y = n.value(y)
    y = _activated(n, y if bias is None else n.emit("add", y, n.cast(bias, F32)))
    state = past
    if reach:
        lengths = n.reshape(n.emit("sub", packed.ends, packed.starts), (batch, 1))
        local = n.emit("add", lengths, n.reshape(n.emit("sub", n.count(reach), n.sizes(reach)), (1, reach)))
        of = n.expand(n.reshape(n.count(batch), (batch, 1)), (batch, reach))
        state = n.transpose(pick(local, of), (0, 2, 1))
    update = _first_tokens(n, x, packed, n.input(5), capacity) if capacity else None
    return n.cast(y, kind), n.cast(state, kind), None if update is None else n.cast(update, kind)


@reads(
    "GatedDeltaNet",
    domain=MICROSOFT,
    attributes="""update_rule scale chunk_size gate_activation gate_lower_bound beta_activation qk_l2_norm
        state_update_capacity""",
    inputs=11,
)
def gated_delta_net(n: Reading) -> tuple[Binding, ...]:
    """Reads LinearAttention of concatenated sequences, with states [sequences, heads, values, keys], and the inputs of
    decays and betas. state_update holds the decays, the keys and the changes of each sequence's first tokens."""
    gated, retrieve = _rule(n)
    initial, capacity = n.optional(6), n.attr("state_update_capacity", 0)
    q, k, v = _queries_keys_values(n, initial)
    lead, kind = q.type.shape[:-2], q.type.dtype
    tokens, heads, depth, keys = math.prod(lead), v.type.shape[-2], v.type.shape[-1], q.type.shape[-1]
    q, k, v = (n.reshape(n.cast(t, F32), (tokens, *t.type.shape[-2:])) for t in (q, k, v))
    if n.flag("qk_l2_norm"):
        q, k = (_of_length_one(n, t) for t in (q, k))
    own_keys = k
    decay = _decay(n, _gate(n, n.optional(4), tokens, heads, keys) if gated else None, gated, tokens, heads)
    beta = n.optional(5)
    if beta is not None:
        beta = n.reshape(n.cast(beta, F32), (tokens, heads))
        beta = n.emit("sigmoid", beta) if _one_of(n, "beta_activation", "none", "sigmoid") == "sigmoid" else beta
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(keys)
    grouped = _grouped_heads(n, n.emit("mul", q, n.like(q, scale)), k, heads)
    r = Recurrence(*grouped, v, decay, _beta(n, beta, retrieve, tokens, heads))
    if n.optional(3) is not None:
        packed = _unpack_lengths(n, n.input(3), tokens)
        batch = packed.starts.type.size
    else:
        if initial is None:
            raise n.refuse("GatedDeltaNet needs cu_seqlens or an initial_state, for the number of sequences")
        batch = initial.type.shape[0]
        packed = _unpack_lengths(n, n.sizes([tokens // batch * i for i in range(batch + 1)]), tokens)
    state = n.filled(0, (batch, heads, keys, depth), F32)
    state = state if initial is None else n.transpose(n.cast(initial, F32), (0, 1, 3, 2))
    y, state, deltas = _by_turns(n, r, state, packed.of, retrieve)
    y = n.cast(n.reshape(y, (*lead, y.type.shape[1] * y.type.shape[2], depth)), kind)
    update = None
    if capacity:
        active, parts = n.optional(10), []
        for t in (decay, own_keys, deltas):
            first = _first_tokens(n, t, packed, n.input(9), capacity)
            parts.append(n.reshape(first, (batch, capacity * t.type.shape[1] * t.type.shape[2])))
        update = n.emit("concat", *parts, axis=1)
        if active is not None:
            off = n.emit("equal", n.reshape(active, ()), n.constant(0, active.type.dtype))
            update = n.emit("where", off, n.like(update, 0), update)
    return y, n.transpose(state, (0, 1, 3, 2)), update


def _queries_keys_values(n: Reading, initial: Value | None) -> tuple[Value, Value, Value]:
    """Returns each as [tokens, heads, depth] or [batch, tokens, heads, depth], given or split from the first input."""
    q, k, v = n.input(0), n.optional(1), n.optional(2)
    if k is not None and v is not None:
        return q, k, v
    if initial is None or k is not None or v is not None or not isinstance(q.type.shape[-1], int):
        raise n.refuse("GatedDeltaNet needs keys and values, or an initial_state next to one tensor of all")
    _, heads, depth, keys = initial.type.shape
    width = q.type.shape[-1] - heads * depth
    if width < 1 or width % (2 * keys):
        raise n.refuse(f"GatedDeltaNet needs queries, keys and values of the sizes of {initial.type}, got {q.type}")
    parts, start = [], 0
    for size, each in ((width // 2, keys), (width // 2, keys), (heads * depth, depth)):
        part = n.slice(q, q.type.rank - 1, start, start + size)
        parts.append(n.reshape(part, (*q.type.shape[:-1], size // each, each)))
        start += size
    return parts[0], parts[1], parts[2]


def _of_length_one(n: Reading, x: Value) -> Value:
    squares = n.emit("reduce_sum_square", x, axes=(x.type.rank - 1,), keepdims=True)
    return n.emit("div", x, n.emit("sqrt", n.emit("add", squares, n.like(squares, 1e-6))))


def _one_of(n: Reading, name: str, *known: str) -> str:
    value = n.attr(name, known[0])
    if value not in known:
        raise n.refuse(f"{n.op} needs {name} {' or '.join(known)}, got {value!r}")
    return value


def _gate(n: Reading, given: Value | None, tokens: Size, heads: int, keys: int) -> Value | None:
    """Returns the logarithms of decays, [tokens, heads] or [tokens, heads · keys]."""
    if given is None:
        return None
    kind = _one_of(n, "gate_activation", "none", "softplus", "qwen", "sigmoid", "kda")
    wide = given.type.rank == n.input(0).type.rank if n.optional(1) is not None else given.type.size != tokens * heads
    each = keys if wide else 1
    x = n.reshape(n.cast(given, F32), (tokens, heads, each))
    if kind != "none":
        bias, rate = n.optional(8), n.emit("exp", n.reshape(n.cast(n.input(7), F32), (heads, 1)))
        if bias is not None:
            x = n.emit("add", x, n.reshape(n.cast(bias, F32), (heads, bias.type.size // heads)))
        if kind in ("softplus", "qwen"):
            x = n.emit("mul", n.emit("neg", rate), n.emit("softplus", x))
        else:
            lowest = n.attr("gate_lower_bound", -5.0)
            x = n.emit("mul", n.like(x, lowest), n.emit("sigmoid", n.emit("mul", rate, x)))
    return n.reshape(x, (tokens, heads * x.type.shape[2]))
