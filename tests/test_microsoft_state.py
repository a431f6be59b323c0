"""ONNX Runtime's layers with a state per sequence beside their documentation, token by token, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, check_refusal, floats, judge, node, sigmoid
from onnx_models import MICROSOFT, model, node as onnx_node

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import with_sizes

CASES = Cases()


def softplus(x):
    return np.logaddexp(0, x.astype(np.float64))


def recurrence(q, k, v, decay, beta, state, retrieve, scale) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one sequence: q [tokens, own heads, keys], k [tokens, own heads, keys], v [tokens, heads, values], factors
    [tokens, heads, keys or 1], beta [tokens, heads], state [heads, keys, values] → outputs, state, changes."""
    heads, s, y, deltas = v.shape[1], state.astype(np.float64), [], []
    for t in range(len(v)):
        rows = []
        for h in range(heads):
            key = k[t, h * k.shape[1] // heads].astype(np.float64)
            s_h = s[h] * decay[t, h][:, None]
            delta = beta[t, h] * (v[t, h] - (key @ s_h if retrieve else 0))
            s[h] = s_h + np.outer(key, delta)
            rows.append(delta)
        deltas.append(rows)
        count = max(heads, q.shape[1])
        y.append([scale * q[t, i * q.shape[1] // count] @ s[i * heads // count] for i in range(count)])
    return np.array(y), s, np.array(deltas)


def _linear(rng, rule="gated_delta", heads=(2, 2, 2), rows=5, past=True, by_key=False, shared=False, **attrs) -> Case:
    b, keys, values = 2, 6, 4
    own_q, own_k, h = heads
    q, k, v = (
        floats(rng, b, rows, own_q * keys),
        floats(rng, b, rows, own_k * keys) / 3,
        floats(rng, b, rows, h * values),
    )
    gated, retrieve = rule.startswith("gated"), rule.endswith("delta")
    g = -np.abs(floats(rng, b, rows, h * (keys if by_key else 1)))
    beta = rng.uniform(0.1, 0.9, (b, rows, 1 if shared else h)).astype(np.float32)
    old = floats(rng, b, h, keys, values) if past else np.zeros((b, h, keys, values))
    decay = np.exp(g.astype(float)).reshape(b, rows, h, -1) if gated else np.ones((b, rows, h, 1))
    rate = np.broadcast_to(beta, (b, rows, h)).astype(float) if retrieve else np.ones((b, rows, h))
    found = [
        recurrence(
            *(t[i].reshape(rows, n, -1) for t, n in ((q, own_q), (k, own_k), (v, h))),
            *(decay[i], rate[i], old[i], retrieve, attrs.get("scale") or keys**-0.5),
        )
        for i in range(b)
    ]
    operands = [("fed", t) for t in (q, k, v)]
    operands += [("fed", old) if past else None, ("fed", g) if gated else None, ("fed", beta) if retrieve else None]
    while operands[-1] is None:
        operands.pop()
    want = [np.stack([y for y, _, _ in found]).reshape(b, rows, -1), np.stack([s for _, s, _ in found])]
    return node("LinearAttention", operands, want, q_num_heads=own_q, kv_num_heads=h, update_rule=rule, **attrs)


for _rule in ("linear", "gated", "delta", "gated_delta"):
    CASES[f"{_rule}_attention"] = lambda rng, rule=_rule: _linear(rng, rule)
    CASES[f"{_rule}_attention_of_one_more"] = lambda rng, rule=_rule: _linear(rng, rule, rows=1)


@CASES.add
def linear_attention_by_key(rng):
    return _linear(rng, by_key=True)


@CASES.add
def linear_attention_by_key_of_one_more(rng):
    return _linear(rng, by_key=True, rows=1, shared=True)


@CASES.add
def linear_attention_from_nothing(rng):
    return _linear(rng, past=False, shared=True)


@CASES.add
def linear_attention_with_more_queries(rng):
    return _linear(rng, heads=(4, 1, 2), scale=0.3)


@CASES.add
def linear_attention_with_more_queries_of_one_more(rng):
    return _linear(rng, heads=(4, 2, 2), rows=1)


@CASES.add
def linear_attention_with_fewer_queries(rng):
    return _linear(rng, heads=(2, 2, 4), chunk_size=4)


@CASES.add
def linear_attention_gate(rng):
    a, b, bias, scale = floats(rng, 2, 3, 4), floats(rng, 2, 3, 4), floats(rng, 4), -np.abs(floats(rng, 4))
    return node("LinearAttentionGate", [("fed", a), bias, scale, ("fed", b)], [scale * softplus(a + bias), sigmoid(b)])


# --- GatedDeltaNet


def _packed(rng, lengths=(3, 1, 4), rule="gated_delta", gate="none", layout="apart", captured=None, **attrs) -> Case:
    own, h, keys, values = 2, 4, 6, 3
    tokens, b = sum(lengths), len(lengths)
    q, k, v = floats(rng, tokens, own, keys), floats(rng, tokens, own, keys), floats(rng, tokens, h, values)
    raw, rate, old = floats(rng, tokens, h, keys), floats(rng, tokens, h), floats(rng, b, h, values, keys)
    a, bias = floats(rng, h), floats(rng, h, keys)
    gates = {
        "none": -np.abs(raw),
        "softplus": -np.exp(a[:, None]) * softplus(raw + bias),
        "sigmoid": -4.0 * sigmoid(np.exp(a[:, None]) * (raw + bias)),
    }
    raw = -np.abs(raw) if gate == "none" else raw
    normal = [t / np.sqrt((t.astype(float) ** 2).sum(-1, keepdims=True) + 1e-6) for t in (q, k)]
    beta = sigmoid(rate) if rule.endswith("delta") else np.ones_like(rate)
    decay = np.exp(gates[gate].astype(float)) if rule.startswith("gated") else np.ones((tokens, h, 1))
    ends = np.cumsum([0, *lengths])
    found = [
        recurrence(
            *(t[low:high] for t in (*normal, v, decay, beta)),
            *(old[i].transpose(0, 2, 1), rule.endswith("delta"), keys**-0.5),
        )
        for i, (low, high) in enumerate(zip(ends, ends[1:]))
    ]
    y = np.concatenate([y for y, _, _ in found])
    state, update = np.stack([s.transpose(0, 2, 1) for _, s, _ in found]), None
    operands: list = [("fed", t) for t in (q, k, v)]
    if layout == "together":
        operands = [("fed", np.concatenate([t.reshape(tokens, -1) for t in (q, k, v)], 1)), None, None]
    operands += [("fed", ends.astype(np.int32)) if layout != "batch" else None]
    operands += [("fed", raw) if rule.startswith("gated") else None, ("fed", rate) if rule.endswith("delta") else None]
    operands += [("fed", old), *((a, bias) if gate != "none" else (None, None))]
    if captured is not None:
        deltas, capacity = np.concatenate([d for _, _, d in found]), attrs["state_update_capacity"]
        operands += [("fed", np.array(captured, np.int32))]
        update = []
        for i, count in enumerate(captured):
            first = slice(ends[i], ends[i] + min(count, capacity, lengths[i]))
            whole = [np.zeros((capacity, *t.shape[1:])) for t in (decay, normal[1], deltas)]
            for to, t in zip(whole, (decay, normal[1], deltas)):
                to[: first.stop - first.start] = t[first]
            update.append(np.concatenate([t.reshape(-1) for t in whole]))
        update = np.stack(update)
    if layout == "batch":
        operands[:6] = [o and ("fed", o[1].reshape(b, -1, *o[1].shape[1:])) for o in operands[:6]]
        y = y.reshape(b, -1, *y.shape[1:])
    while operands[-1] is None:
        operands.pop()
    attrs |= dict(
        update_rule=rule, gate_activation=gate, beta_activation="sigmoid", qk_l2_norm=1, gate_lower_bound=-4.0
    )
    return node("GatedDeltaNet", operands, [y, state, *([] if update is None else [update])], **attrs)


@CASES.add
def packed_sequences(rng):
    return _packed(rng)


@CASES.add
def packed_queries_keys_and_values(rng):
    return _packed(rng, gate="softplus", layout="together")


@CASES.add
def sequences_of_one_length(rng):
    return _packed(rng, lengths=(4, 4), gate="sigmoid", layout="batch")


@CASES.add
def packed_sequences_without_a_gate(rng):
    return _packed(rng, rule="delta")


@CASES.add
def packed_sequences_that_only_decay(rng):
    return _packed(rng, rule="gated")


@CASES.add
def packed_sequences_with_captured_changes(rng):
    return _packed(rng, captured=(2, 5, 0), state_update_capacity=3)


# --- causal convolutions


def convolved(before, x, w, bias, dilation) -> np.ndarray:
    """Of [tokens, channels] behind [reach, channels]."""
    both, width = np.concatenate([before, x]).astype(np.float64), w.shape[2]
    taps = [both[j * dilation : j * dilation + len(x)] * w[:, 0, j] for j in range(width)]
    return sum(taps) + bias


def _convolution(rng, rows=7, width=3, dilation=1, bias=True, past=True, last=False, activation="none") -> Case:
    b, channels = 2, 6
    x, w, reach = floats(rng, b, rows, channels), floats(rng, channels, 1, width), (width - 1) * dilation
    c = floats(rng, channels) if bias else np.zeros(channels)
    old = floats(rng, b, reach, channels) if past else np.zeros((b, reach, channels))
    y = np.stack([convolved(old[i], x[i], w, c, dilation) for i in range(b)])
    y = y * sigmoid(y) if activation == "silu" else y
    new = np.concatenate([old, x], 1)[:, rows:]
    form = (lambda t: t.reshape(*t.shape[:2], 2, 3)) if last else (lambda t: t.transpose(0, 2, 1))
    operands = [("fed", form(x)), w, c.astype(np.float32) if bias else None, ("fed", form(old)) if past else None]
    while operands[-1] is None:
        operands.pop()
    attrs = dict(activation=activation, dilation=dilation, channels_last=int(last), state_length=0)
    return node("CausalConvWithState", operands, [form(y), form(new)], **attrs)


@CASES.add
def causal_convolution(rng):
    return _convolution(rng)


@CASES.add
def causal_convolution_of_one_more(rng):
    return _convolution(rng, rows=1, width=4, activation="silu")


@CASES.add
def causal_convolution_of_channels_last(rng):
    return _convolution(rng, last=True, dilation=2, bias=False)


@CASES.add
def causal_convolution_from_nothing(rng):
    return _convolution(rng, past=False, rows=2, dilation=3)


def _packed_convolution(rng, width, dilation, captured=None) -> Case:
    lengths, channels = (3, 1, 9), 5
    tokens, ends, reach = sum(lengths), np.cumsum([0, *lengths]), (width - 1) * dilation
    x, w, c = floats(rng, tokens, channels), floats(rng, channels, 1, width), floats(rng, channels)
    old = floats(rng, 3, channels, reach)
    y, state, update = [], [], []
    for i, (low, high) in enumerate(zip(ends, ends[1:])):
        y.append(convolved(old[i].T, x[low:high], w, c, dilation))
        state.append(np.concatenate([old[i].T, x[low:high]])[lengths[i] :].T)
        first = np.zeros((2, channels))
        count = 0 if captured is None else min(captured[i], 2, lengths[i])
        first[:count] = x[low : low + count]
        update.append(first)
    y = np.concatenate(y)
    operands = [("fed", x), w, ("fed", ends.astype(np.int32)), c, ("fed", old)]
    operands += [] if captured is None else [("fed", np.array(captured, np.int32))]
    want = [y * sigmoid(y), np.stack(state), *([] if captured is None else [np.stack(update)])]
    attrs = dict(activation="silu", dilation=dilation) | ({} if captured is None else {"state_update_capacity": 2})
    return node("VarlenCausalConvWithState", operands, want, **attrs)


@CASES.add
def causal_convolution_of_packed_sequences(rng):
    return _packed_convolution(rng, 3, 2)


@CASES.add
def causal_convolution_of_packed_sequences_with_captured_tokens(rng):
    return _packed_convolution(rng, 4, 1, captured=(1, 4, 2))


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


REFUSED = {
    "states of several tokens": (lambda rng: _linear(rng, state_window=2), "with attribute 'state_window'"),
    "a rule": (lambda rng: _linear(rng, "gated_forget"), "needs update_rule linear, gated, delta or gated_delta"),
    "heads that do not fit": (lambda rng: _linear(rng, heads=(3, 2, 2)), "heads of queries and of keys that fit 2"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])


def test_sizes_of_linear_attention():
    """Batch and rows are those of each run, and one more row is a product."""
    call = onnx_node("LinearAttention", "q k v s", "y n", domain=MICROSOFT, q_num_heads=2, kv_num_heads=2)
    call.attribute.append(onnx_node("X", "", "", update_rule="linear").attribute[0])
    inputs = {name: "f32[b, t, 8]" for name in "qkv"} | {"s": "f32[b, 2, 4, 4]"}
    graph = load(model([call], inputs, ["y", "n"], domains={MICROSOFT: 1})).graph
    rng = np.random.default_rng(0)
    for b, t in ((1, 1), (3, 4)):
        fed = {name: floats(rng, b, t, 8) for name in "qkv"} | {"s": floats(rng, b, 2, 4, 4)}
        found = evaluate(with_sizes(graph, {"b": b, "t": t}, {})[0], fed)
        for i in range(b):
            parts = [fed[name][i].reshape(t, 2, 4) for name in "qkv"]
            y, s, _ = recurrence(*parts, np.ones((t, 2, 1)), np.ones((t, 2)), fed["s"][i], False, 0.5)
            assert np.allclose(found["y"][i], y.reshape(t, 8), atol=1e-5) and np.allclose(found["n"][i], s, atol=1e-5)
    made, _, _ = _linear(rng, rows=1)
    assert "delta_rule" not in {n.op.name for n in load(made).graph.nodes}
