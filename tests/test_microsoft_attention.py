"""ONNX Runtime's Attention and MultiHeadAttention, each beside what its documentation says, written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Maker, apart, attention, causal, check_refusal, floats, judge, node
from onnx import helper
from onnx_models import MICROSOFT, model

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import with_sizes

CASES: dict[str, Maker] = {}


def case(fn: Maker) -> Maker:
    CASES[fn.__name__] = fn
    return fn


# --- Attention


def _attention(rng, mask=None, past=False, bias=True, added=False, filter=-10000.0, shown=None, **attrs) -> Case:
    b, s, h, d, before = 2, 5, 3, 4, 3 if past else 0
    x, w, c = floats(rng, b, s, 7), floats(rng, 7, 3 * h * d), floats(rng, 3 * h * d)
    old = floats(rng, 2, b, h, before, d)
    extra = floats(rng, b, h, s, s + before)
    q, k, v = (apart(t, h) for t in np.split(x.astype(np.float64) @ w + (c if bias else 0), 3, -1))
    if past:
        k, v = np.concatenate([old[0], k], 2), np.concatenate([old[1], v], 2)
    more = (np.where(shown(b, s, s + before), 0.0, filter) if shown else 0.0) + (extra if added else 0.0)
    more = more + (causal(s, s + before) if attrs.get("unidirectional") else 0.0)
    return node(
        "Attention",
        [
            ("fed", x),
            w,
            c if bias else None,
            None if mask is None else ("fed", mask),
            ("fed", old) if past else None,
            ("fed", extra) if added else None,
        ],
        [attention(q, k, v, more, attrs.get("scale")), np.stack([k, v])],
        num_heads=h,
        **attrs,
    )


@case
def attention_plain(rng):
    return _attention(rng, bias=False)


@case
def attention_lengths(rng):
    n = np.array([3, 5], np.int32)
    return _attention(rng, n, shown=lambda b, s, t: (np.arange(t) < n[:, None])[:, None, None])


@case
def attention_ends_and_starts(rng):
    ends, starts = np.array([4, 5], np.int32), np.array([1, 0], np.int32)
    return _attention(
        rng,
        np.concatenate([ends, starts]),
        shown=lambda b, s, t: ((np.arange(t) < ends[:, None]) & (np.arange(t) >= starts[:, None]))[:, None, None],
    )


@case
def attention_mask_of_keys(rng):
    m = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)
    return _attention(
        rng, m, shown=lambda b, s, t: (m != 0)[:, None, None], scale=0.3, mask_filter_value=-3.0, filter=-3.0
    )


@case
def attention_mask_of_scores(rng):
    m = (rng.random((2, 5, 8)) < 0.7).astype(np.int32)
    return _attention(rng, m, past=True, shown=lambda b, s, t: (m != 0)[:, None])


@case
def attention_causal_with_past_and_bias(rng):
    return _attention(rng, past=True, added=True, unidirectional=1)


@case
def attention_causal_and_masked(rng):
    m = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int32)
    return _attention(rng, m, shown=lambda b, s, t: (m != 0)[:, None, None], unidirectional=1)


# --- MultiHeadAttention


def _multi(rng, form="apart", bias=False, mask=None, added=False, past=False, shown=None, keys=6, **attrs) -> Case:
    b, s, h, d, dv, before = 2, 5, 3, 4, 4, 2 if past else 0
    q, k, v, c = (
        floats(rng, b, s, h * d),
        floats(rng, b, keys, h * d),
        floats(rng, b, keys, h * dv),
        floats(rng, 3 * h * d),
    )
    old = [floats(rng, b, h, before, d) for _ in range(2)]
    if form == "packed":
        k, v = floats(rng, b, s, h * d), floats(rng, b, s, h * d)
    given = {
        "apart": lambda: [q, k, v],
        "pairs": lambda: [q, np.stack([t.reshape(b, -1, h, d) for t in (k, v)], 3), None],
        "packed": lambda: [np.stack([t.reshape(b, s, h, d) for t in (q, k, v)], 3), None, None],
        "heads": lambda: [q, *(apart(t, h).astype(np.float32) for t in (k, v))],
    }[form]()
    extra = floats(rng, 1, h, s, k.shape[1] + before)
    cq, ck, cv = np.split(c if bias else np.zeros_like(c), 3)
    q, k, v = apart(q + cq, h), apart(k + ck, h), apart(v + cv, h)
    if past:
        k, v = np.concatenate([old[0], k], 2), np.concatenate([old[1], v], 2)
    more = (np.where(shown(k.shape[2]), 0.0, -10000.0) if shown else 0.0) + (extra if added else 0.0)
    more = more + (causal(s, k.shape[2]) if attrs.get("unidirectional") else 0.0)
    y = attention(q, k, v, more, attrs.get("scale"))
    operands = [None if g is None else ("fed", g) for g in given] + [
        c if bias else None,
        None if mask is None else ("fed", mask),
        ("fed", extra) if added else None,
        *(("fed", o) if past else None for o in old),
    ]
    while operands[-1] is None:
        operands.pop()
    return node("MultiHeadAttention", operands, [y, k, v] if past else [y], num_heads=h, **attrs)


@case
def multi_head_apart(rng):
    return _multi(rng, bias=True, added=True)


@case
def multi_head_masked(rng):
    m = np.array([[1, 1, 0, 1, 0, 1], [1] * 6], np.int32)
    return _multi(rng, mask=m, shown=lambda t: (m != 0)[:, None, None], scale=0.7)


@case
def multi_head_lengths(rng):
    n = np.array([4, 6], np.int32)
    return _multi(rng, mask=n, shown=lambda t: (np.arange(t) < n[:, None])[:, None, None])


@case
def multi_head_pairs(rng):
    return _multi(rng, "pairs")


@case
def multi_head_packed(rng):
    return _multi(rng, "packed", unidirectional=1)


@case
def multi_head_of_heads(rng):
    return _multi(rng, "heads")


@case
def multi_head_past(rng):
    return _multi(rng, past=True, keys=5, unidirectional=1)


# --- tests


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


def test_heads_whose_size_only_the_keys_say():
    """Queries that data made may have an open width; what scores are scaled by is that of the keys."""
    rng = np.random.default_rng()
    made = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain=MICROSOFT, num_heads=1)
    graph = load(
        model(
            [made],
            {"q": "f32[2, 3, width]", "k": "f32[2, 4, 8]", "v": "f32[2, 4, 8]"},
            ["y"],
            {},
            domains={MICROSOFT: 1},
        )
    ).graph
    fed = {"q": floats(rng, 2, 3, 8), "k": floats(rng, 2, 4, 8), "v": floats(rng, 2, 4, 8)}
    found = evaluate(with_sizes(graph, {"width": 8}, {})[0], fed)
    assert np.allclose(found["y"], attention(*(apart(fed[name], 1) for name in "qkv")), atol=2e-5)


def test_a_mask_of_another_form_is_refused():
    check_refusal(lambda rng: _attention(rng, np.zeros((2, 3), np.int32)), r"needs a mask \[batch\]")
