"""ONNX Runtime's mixtures of experts beside their documentation, token by token, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, check_refusal, floats, judge, node, sigmoid, softmax
from test_microsoft_few_bits import packed

CASES = Cases()
EXPERTS, HIDDEN, INNER, LIMIT = 5, 16, 32, 1.5


def gated(gate, linear):
    gate, linear = np.minimum(gate, LIMIT), np.clip(linear, -LIMIT, LIMIT)
    return gate * sigmoid(1.7 * gate) * (linear + 0.5)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}
SWIGLU = dict(activation_type="swiglu", activation_alpha=1.7, activation_beta=0.5, swiglu_limit=LIMIT)


def mixed(x, shares, layers, activate) -> np.ndarray:
    """Σ shares · (w₂ activate(w₁ x + b₁) + b₂) over the experts of each token that have a share."""
    w1, b1, w2, b2 = layers
    flat = x.astype(np.float64).reshape(-1, x.shape[-1])
    y = np.zeros_like(flat)
    for t, e in zip(*np.nonzero(shares)):
        y[t] += shares[t, e] * (w2[e] @ activate(w1[e] @ flat[t] + b1[e]) + b2[e])
    return y.reshape(x.shape)


def routed(logits, k) -> np.ndarray:
    """Whether an expert is among the k largest of a token."""
    return np.argsort(np.argsort(-logits, -1), -1) < k


def _mixture(rng, k=2, normalize=0, bias=True, **attrs) -> Case:
    kind = attrs.get("activation_type", "relu")
    wide = 2 * INNER if attrs.get("swiglu_fusion") else INNER
    x, p = floats(rng, 2, 3, HIDDEN), floats(rng, 6, EXPERTS)
    w1, b1 = floats(rng, EXPERTS, wide, HIDDEN) / 4, floats(rng, EXPERTS, wide)
    w2, b2 = floats(rng, EXPERTS, HIDDEN, INNER) / 4, floats(rng, EXPERTS, HIDDEN)
    shares = softmax(p.astype(np.float64)) * routed(p, k)
    shares = shares / shares.sum(-1, keepdims=True) if normalize else shares
    b = (b1, b2) if bias else (np.zeros_like(b1), np.zeros_like(b2))
    activate = ACTIVATIONS.get(kind)
    if attrs.get("swiglu_fusion") == 1:
        activate = lambda h: gated(h[::2], h[1::2])  # noqa: E731
    elif attrs.get("swiglu_fusion") == 2:
        activate = lambda h: gated(h[:INNER], h[INNER:])  # noqa: E731
    want = mixed(x, shares, (w1, b[0], w2, b[1]), activate)
    operands = [("fed", x), ("fed", p), w1, b1 if bias else None, w2, *([b2] if bias else [])]
    return node("MoE", operands, [want], k=k, normalize_routing_weights=normalize, **attrs)


for _kind in ACTIVATIONS:
    CASES[f"mixture_{_kind}"] = lambda rng, kind=_kind: _mixture(rng, activation_type=kind)


@CASES.add
def mixture_of_one(rng):
    return _mixture(rng, k=1)


@CASES.add
def mixture_of_all_normalized(rng):
    return _mixture(rng, k=EXPERTS, normalize=1)


@CASES.add
def mixture_normalized_without_biases(rng):
    return _mixture(rng, k=3, normalize=1, bias=False)


@CASES.add
def mixture_gated_in_turns(rng):
    return _mixture(rng, swiglu_fusion=1, **SWIGLU)


@CASES.add
def mixture_gated_one_after_the_other(rng):
    return _mixture(rng, swiglu_fusion=2, **SWIGLU)


@CASES.add
def mixture_gated_by_a_layer_of_its_own(rng):
    x, p = floats(rng, 4, HIDDEN), floats(rng, 4, EXPERTS)
    w1, w3 = (floats(rng, EXPERTS, INNER, HIDDEN) / 4 for _ in range(2))
    w2 = floats(rng, EXPERTS, HIDDEN, INNER) / 4
    shares = softmax(p.astype(np.float64)) * routed(p, 2)
    both = np.concatenate([w1, w3], 1)
    none = np.zeros((EXPERTS, 2 * INNER)), np.zeros((EXPERTS, HIDDEN))
    want = mixed(x, shares, (both, none[0], w2, none[1]), lambda h: gated(h[:INNER], h[INNER:]))
    return node("MoE", [("fed", x), ("fed", p), w1, None, w2, None, w3], [want], k=2, **SWIGLU)


# --- QMoE


def quantized_mixture(
    rng,
    bits=4,
    size=0,
    zeros=False,
    others=False,
    normalize=0,
    fed=False,
    hidden=HIDDEN,
    inner=INNER,
    tokens=6,
    apart=False,
    biased=True,
) -> Case:
    """apart: the first layer's gate and linear part are layers of their own."""

    def weights(rows, width):
        blocks = width // size if size else 1
        q, s = rng.integers(0, 1 << bits, (EXPERTS, rows, width)), rng.uniform(0.02, 0.05, (EXPERTS, rows, blocks))
        z = rng.integers(0, 1 << bits, s.shape) if zeros else np.full(s.shape, 1 << (bits - 1))
        s = s.astype(np.float32)
        w = (q - z.repeat(width // blocks, 2)) * s.astype(float).repeat(width // blocks, 2)
        return packed(q, bits), s if size else s[..., 0], packed(z if size else z[..., 0], bits), w

    def bias(rows):
        return floats(rng, EXPERTS, rows) * biased

    x, p = floats(rng, tokens, hidden), floats(rng, tokens, EXPERTS)
    wide = inner if apart else 2 * inner
    layers = [weights(wide, hidden), weights(hidden, inner), *([weights(inner, hidden)] if apart else [])]
    biases = [bias(len(w[0])) for *_, w in layers]
    r, chosen = rng.uniform(0.1, 1, p.shape).astype(np.float32), routed(p, 2)
    shares = r * chosen if others else softmax(np.where(chosen, p.astype(float), -np.inf))
    shares = shares / shares.sum(-1, keepdims=True) if normalize else shares
    w1, b1 = layers[0][3], biases[0]
    activate = lambda h: gated(h[::2], h[1::2])  # noqa: E731
    if apart:
        w1, b1 = np.concatenate([w1, layers[2][3]], 1), np.concatenate([b1, biases[2]], 1)
        activate = lambda h: gated(h[:inner], h[inner:])  # noqa: E731
    want = mixed(x, shares, (w1, b1, layers[1][3], biases[1]), activate)
    operands = [("fed", x), ("fed", p)]
    for i in range(3):
        q, s, b = (*layers[i][:2], biases[i]) if i < len(layers) else (None, None, None)
        operands += [("fed", q) if fed and i == 0 else q, s, b if biased else None]
    operands += [layers[i][2] if zeros and i < len(layers) else None for i in range(3)]
    operands += [("fed", r)] if others else []
    while operands[-1] is None:
        operands.pop()
    attrs = dict(k=2, swiglu_fusion=int(not apart), expert_weight_bits=bits, normalize_routing_weights=normalize)
    return node("QMoE", operands, [want], **attrs, **SWIGLU, **({"block_size": size} if size else {}))


@CASES.add
def quantized_by_rows(rng):
    return quantized_mixture(rng)


@CASES.add
def quantized_by_blocks_with_zero_points(rng):
    return quantized_mixture(rng, size=16, zeros=True)


@CASES.add
def quantized_bytes_by_rows_with_zero_points(rng):
    return quantized_mixture(rng, bits=8, zeros=True)


@CASES.add
def quantized_two_bits(rng):
    return quantized_mixture(rng, bits=2, size=16)


@CASES.add
def quantized_rows_with_packed_zero_points(rng):
    return quantized_mixture(rng, zeros=True)


@CASES.add
def quantized_with_weights_of_another_router(rng):
    return quantized_mixture(rng, others=True)


@CASES.add
def quantized_with_normalized_weights_of_another_router(rng):
    return quantized_mixture(rng, others=True, normalize=1)


@CASES.add
def quantized_weights_that_are_fed(rng):
    return quantized_mixture(rng, size=16, zeros=True, fed=True)


# --- routers


def _router(rng, groups, best, of_each, k) -> Case:
    x, b = floats(rng, 2, 3, 16), floats(rng, 16) / 10
    flat = x.astype(np.float64).reshape(6, 16)
    scores = sigmoid(flat)
    biased = scores + b
    apart = biased.reshape(6, groups, -1)
    sums = np.sort(apart, -1)[..., ::-1][..., :of_each].sum(-1)
    allowed = np.where(routed(sums, best)[..., None], apart, -np.inf).reshape(6, 16)
    want = np.where(routed(allowed, k), np.log(scores), -9.0)
    attrs = dict(n_group=groups, topk_group=best, group_topk=of_each, top_k=k, router_sentinel=-9.0)
    return node("MoEGroupRouter", [("fed", x), b], [want], **attrs)


@CASES.add
def router_of_groups(rng):
    return _router(rng, 4, 2, 2, 3)


@CASES.add
def router_of_one_group(rng):
    return _router(rng, 1, 1, 2, 4)


@CASES.add
def router_that_gives_scores(rng):
    x, b, w = floats(rng, 6, 24), floats(rng, 16) / 10, floats(rng, 16, 24) / 8
    scores = sigmoid(x.astype(np.float64) @ w.T)
    return node("MoEGroupRouter", [("fed", x), b, w], [None, scores + b, scores], top_k=3)


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


REFUSED = {
    "more experts than there are": (lambda rng: _mixture(rng, k=EXPERTS + 1), "k from 1 to the number of its experts"),
    "an activation": (
        lambda rng: _mixture(rng, activation_type="relu", swiglu_limit_after_activation=1),
        "_after_activation",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])


def test_experts_that_are_not_selected_do_not_count():
    """Not even where they give no number."""

    def overflowing(rng):
        model, fed, (want,) = _mixture(rng, k=1)
        fed["x1"] = np.tile(np.array([0, 9, 1, 2, 3], np.float32), (6, 1))
        w2 = next(t for t in model.graph.initializer if t.name == "x4")
        held = np.frombuffer(w2.raw_data, np.float32).reshape(EXPERTS, HIDDEN, INNER).copy()
        held[0] = np.inf
        w2.raw_data = held.tobytes()
        arrays = {t.name: np.frombuffer(t.raw_data, np.float32).reshape(t.dims) for t in model.graph.initializer}
        shares = softmax(fed["x1"].astype(float)) * routed(fed["x1"], 1)
        layers = arrays["x2"], arrays["x3"], held.astype(float), arrays["x5"]
        return model, fed, [mixed(fed["x0"], shares, layers, ACTIVATIONS["relu"])]

    judge(overflowing)
