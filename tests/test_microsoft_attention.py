"""ONNX Runtime's Attention and MultiHeadAttention, each beside its documentation written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, apart, attention, causal, check_refusal, floats, judge, node, softmax, together
from onnx import helper
from onnx_models import MICROSOFT, model

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import with_sizes

CASES = Cases()


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


@CASES.add
def attention_plain(rng):
    return _attention(rng, bias=False)


@CASES.add
def attention_lengths(rng):
    n = np.array([3, 5], np.int32)
    return _attention(rng, n, shown=lambda b, s, t: (np.arange(t) < n[:, None])[:, None, None])


@CASES.add
def attention_ends_and_starts(rng):
    ends, starts = np.array([4, 5], np.int32), np.array([1, 0], np.int32)
    return _attention(
        rng,
        np.concatenate([ends, starts]),
        shown=lambda b, s, t: ((np.arange(t) < ends[:, None]) & (np.arange(t) >= starts[:, None]))[:, None, None],
    )


@CASES.add
def attention_mask_of_keys(rng):
    m = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)
    return _attention(
        rng, m, shown=lambda b, s, t: (m != 0)[:, None, None], scale=0.3, mask_filter_value=-3.0, filter=-3.0
    )


@CASES.add
def attention_mask_of_scores(rng):
    m = (rng.random((2, 5, 8)) < 0.7).astype(np.int32)
    return _attention(rng, m, past=True, shown=lambda b, s, t: (m != 0)[:, None])


@CASES.add
def attention_causal_with_past_and_bias(rng):
    return _attention(rng, past=True, added=True, unidirectional=1)


@CASES.add
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


@CASES.add
def multi_head_apart(rng):
    return _multi(rng, bias=True, added=True)


@CASES.add
def multi_head_masked(rng):
    m = np.array([[1, 1, 0, 1, 0, 1], [1] * 6], np.int32)
    return _multi(rng, mask=m, shown=lambda t: (m != 0)[:, None, None], scale=0.7)


@CASES.add
def multi_head_lengths(rng):
    n = np.array([4, 6], np.int32)
    return _multi(rng, mask=n, shown=lambda t: (np.arange(t) < n[:, None])[:, None, None])


@CASES.add
def multi_head_pairs(rng):
    return _multi(rng, "pairs")


@CASES.add
def multi_head_packed(rng):
    return _multi(rng, "packed", unidirectional=1)


@CASES.add
def multi_head_of_heads(rng):
    return _multi(rng, "heads")


@CASES.add
def multi_head_past(rng):
    return _multi(rng, past=True, keys=5, unidirectional=1)


# --- tests


# --- MultiHeadAttention and its form for decoders, as ONNX Runtime's kernels have them


def _many(rng, rows=4, keys=6, held=0, counted=None, bias=False, mask=None, added=None, causal=False, apart_keys=False):
    """Operands of MultiHeadAttention and what comes out: y, keys, values, scores. counted: how much of what is held
    counts; the operator then gets that as a number."""
    b, h, d = 2, 3, 4
    q, c = floats(rng, b, rows, h * d), floats(rng, 3 * h * d)
    k, v = (floats(rng, *((b, h, keys, d) if apart_keys else (b, keys, h * d))) for _ in range(2))
    old = [floats(rng, b, h, held, d) for _ in range(2)]
    parts = np.split(c.astype(float) if bias else np.zeros(3 * h * d), 3)
    fq = apart(q + parts[0], h)
    fk, fv = (t.astype(float) if apart_keys else apart(t + p, h) for t, p in ((k, parts[1]), (v, parts[2])))
    before = held if counted is None else counted
    whole = [np.concatenate([o[:, :, :before], t], 2) for o, t in zip(old, (fk, fv))]
    total = before + keys
    more = np.zeros((b, 1, rows, total))
    m = None
    if mask == "keys":
        m = rng.integers(-1, 2, (b, total)).astype(np.int32)
        m[:, 0] = 1
        more = more + np.where(m > 0, 0.0, -10000.0)[:, None, None]
    elif mask == "lengths and places":
        m = np.array([3, 5, 0, 4, 8, 0, 6, 12], np.int32)
        more = more + np.where(np.arange(total) < m[:2, None], 0.0, -10000.0)[:, None, None]
    a = floats(rng, 1, h, rows, total) if added else None
    more = more + (0 if a is None else a)
    if causal:  # the last row sees all keys
        i = np.arange(rows)[:, None]
        more = more + np.where((np.arange(total) <= i + before) | (i == rows - 1), 0.0, -np.inf)
    scores = np.einsum("bhid,bhjd->bhij", fq, whole[0]) / np.sqrt(d) + more
    operands = [("fed", q), ("fed", k), ("fed", v), c if bias else None, None if m is None else ("fed", m)]
    operands += [None if a is None else ("fed", a), *((("fed", o) for o in old) if held else (None, None))]
    operands += [] if counted is None else [("fed", np.array([counted], np.int32))]
    while operands[-1] is None:
        operands.pop()
    if counted is not None:  # in the places of what was there
        kept = [o.astype(float) for o in old]
        for t, new in zip(kept, whole):
            t[:, :, :total] = new
        return operands, [together(softmax(scores) @ whole[1]), *kept]
    return operands, [
        together(softmax(scores) @ whole[1]),
        *whole,
        np.where(np.isinf(scores), np.finfo("f4").min, scores),
    ]


@CASES.add
def many_heads_with_fewer_rows_than_keys(rng):
    return node("MultiHeadAttention", *_many(rng, causal=True), num_heads=3, unidirectional=1)


@CASES.add
def many_heads_with_more_rows_than_keys(rng):
    return node(
        "MultiHeadAttention", *_many(rng, rows=5, keys=3, causal=True, bias=True), num_heads=3, unidirectional=1
    )


@CASES.add
def many_heads_that_give_scores(rng):
    return node("MultiHeadAttention", *_many(rng, held=3, added=True, mask="keys"), num_heads=3)


@CASES.add
def many_heads_with_lengths_and_places(rng):
    return node("MultiHeadAttention", *_many(rng, mask="lengths and places"), num_heads=3)


@CASES.add
def many_heads_with_keys_apart_get_no_bias(rng):
    operands, want = _many(rng, bias=True, apart_keys=True)
    return node("MultiHeadAttention", operands, want[:1], num_heads=3)


@CASES.add
def many_heads_in_a_shared_cache(rng):
    return node(
        "MultiHeadAttention", *_many(rng, rows=2, keys=2, held=9, counted=4, causal=True), num_heads=3, unidirectional=1
    )


def _decoder(operands):
    """The same inputs in the order of DecoderMaskedMultiHeadAttention."""
    operands = [*operands, *[None] * (9 - len(operands))]
    q, k, v, bias, mask, added, old_k, old_v, counted = operands
    found = [q, k, v, mask, added, old_k, old_v, counted, None, None, bias]
    while found[-1] is None:
        found.pop()
    return found


@CASES.add
def decoder_in_a_shared_cache(rng):
    operands, want = _many(rng, rows=1, keys=1, held=9, counted=4, mask="keys", added=True, bias=True)
    attrs = dict(num_heads=3, past_present_share_buffer=1)
    return node("DecoderMaskedMultiHeadAttention", _decoder(operands), want, **attrs)


@CASES.add
def decoder_that_sees_an_encoder(rng):
    operands, want = _many(rng, rows=1, keys=6, apart_keys=True, mask="keys")
    want = [want[0], None, None, want[3]]
    return node("DecoderMaskedMultiHeadAttention", _decoder(operands), want, num_heads=3, output_qk=1)


@CASES.add
def decoder_of_beams(rng):
    """The keys of a beam, but for its newest one, come from the beams that cache_indirection names."""
    beams, h, d, held, counted = 2, 3, 4, 7, 4
    q, k, v = (floats(rng, 4, 1, h * d) for _ in range(3))
    old = [floats(rng, 4, h, held, d) for _ in range(2)]
    of = rng.integers(0, beams, (2, beams, held)).astype(np.int32)
    row = (np.arange(2)[:, None, None] * beams + of).reshape(4, held)[:, :counted]
    picked = [o[row, :, np.arange(counted)].transpose(0, 2, 1, 3).astype(float) for o in old]
    whole = [np.concatenate([p, apart(t, h)], 2) for p, t in zip(picked, (k, v))]
    kept = [o.astype(float) for o in old]
    for t, new in zip(kept, (k, v)):
        t[:, :, counted] = apart(new, h)[:, :, 0]
    y = attention(apart(q, h), *whole)
    operands = [("fed", q), ("fed", k), ("fed", v), None, None, *(("fed", o) for o in old)]
    operands += [("fed", np.array([counted], np.int32)), np.array([beams], np.int32), ("fed", of)]
    attrs = dict(num_heads=h, past_present_share_buffer=1)
    return node("DecoderMaskedMultiHeadAttention", operands, [y, *kept], **attrs)


# --- embeddings


def _rotary_of_three(rng, layout, sections, interleaved=0) -> Case:
    b, rows, h, d = 2, 5, 3, 2 * sum(sections)
    x, at = floats(rng, b, rows, h * d), rng.integers(0, 20, (3, b, rows))
    angle = rng.uniform(0, 6, (20, d // 2)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    of = np.repeat([0, 1, 2], sections)
    if layout:
        of = np.zeros(d // 2, int)
        for i in (1, 2):
            of[i : 3 * sections[i] : 3] = i
    own = at[of].transpose(1, 2, 0)  # the position of each pair
    c, s = (np.take_along_axis(t.astype(float)[None, None], own[..., None, :], 2)[:, :, 0] for t in (cos, sin))
    y = x.astype(float).reshape(b, rows, h, d)
    one, two = (y[..., ::2], y[..., 1::2]) if interleaved else (y[..., : d // 2], y[..., d // 2 :])
    c, s = c[:, :, None], s[:, :, None]
    first, second = one * c - two * s, two * c + one * s
    y = np.stack([first, second], -1).reshape(y.shape) if interleaved else np.concatenate([first, second], -1)
    attrs = dict(mrope_section=list(sections), mrope_layout=layout, interleaved=interleaved, num_heads=h)
    return node("MRotaryEmbedding", [("fed", x), ("fed", at), cos, sin], [y.reshape(x.shape)], **attrs)


@CASES.add
def rotary_of_three_sections(rng):
    return _rotary_of_three(rng, 0, (3, 3, 2))


@CASES.add
def rotary_of_three_in_turns(rng):
    return _rotary_of_three(rng, 1, (4, 2, 2), interleaved=1)


@CASES.add
def embedding_of_bytes(rng):
    tables = [rng.integers(0, 256, s).astype(np.uint8) for s in ((9, 8), (7, 8), (2, 8), (8,), (8,))]
    scales = [np.float32(s) for s in rng.uniform(0.01, 0.05, 5)]
    zeros = [np.uint8(z) for z in rng.integers(100, 150, 5)]
    words, places, kinds, scale, bias = (
        (t.astype(float) - int(z)) * float(s) for t, s, z in zip(tables, scales, zeros)
    )
    ids, segments = (rng.integers(0, n, (2, 5)).astype(np.int32) for n in (9, 2))
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    x = words[ids] + places[:5] + kinds[segments]
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + bias
    operands = [("fed", ids), ("fed", segments), *tables, ("fed", mask), *scales, *zeros]
    return node("QEmbedLayerNormalization", operands, [y, mask.sum(1)], epsilon=1e-6)


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
