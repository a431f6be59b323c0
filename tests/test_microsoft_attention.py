"""ONNX Runtime's attention, norm and embedding operators, each beside what its documentation says, written out in
float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Maker, apart, attention, check_refusal, floats, judge, node
from onnx import helper
from onnx_models import MICROSOFT, model

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import with_sizes

CASES: dict[str, Maker] = {}


def case(fn: Maker) -> Maker:
    CASES[fn.__name__] = fn
    return fn


def causal(rows: int, keys: int) -> np.ndarray:
    return np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, 0.0, -np.inf)


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


# --- GroupQueryAttention


def turned(x, cos, sin, at, interleaved=False) -> np.ndarray:
    """[batch, rows, heads, depth] by the angles of the positions [batch, rows]."""
    c, s, y = cos[at][:, :, None].astype(np.float64), sin[at][:, :, None], x.astype(np.float64).copy()
    half = c.shape[-1]
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    y[..., one], y[..., two] = x[..., one] * c - x[..., two] * s, x[..., two] * c + x[..., one] * s
    return y


def _grouped(
    rng,
    rows=4,
    before=0,
    valid=None,
    packed=False,
    rotary=False,
    window=-1,
    bias=False,
    sink=None,
    smooth=False,
    depth=16,
    **attrs,
) -> Case:
    b, h, g = 2, 6, 2
    valid = [before] * b if valid is None else valid  # how much of the cache counts, in each batch
    q, k, v = floats(rng, b, rows, h, depth), floats(rng, b, rows, g, depth), floats(rng, b, rows, g, depth)
    old = [floats(rng, b, g, before, depth) for _ in range(2)]
    total = before + rows
    angle = rng.uniform(0, 6, (total + 3, depth // 2)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    extra = floats(rng, b, h, rows, total)
    at = np.array(valid)[:, None] + np.arange(rows)
    fq, fk = (
        turned(t, cos, sin, at, bool(attrs.get("rotary_interleaved"))) if rotary else t.astype(np.float64)
        for t in (q, k)
    )
    keys, values = np.zeros((b, g, total, depth)), np.zeros((b, g, total, depth))
    for i in range(b):
        for full, past, new in ((keys, old[0], fk), (values, old[1], v)):
            full[i, :, : valid[i]] = past[i, :, : valid[i]]
            full[i, :, valid[i] : valid[i] + rows] = new[i].transpose(1, 0, 2)
    j, place = np.arange(total), at[:, None, :, None]
    shown = (j <= place) & ((j > place - window) if window > 0 else True)
    more = np.where(shown, 0.0, -np.inf) + (extra if bias else 0.0)
    y = attention(
        fq.transpose(0, 2, 1, 3),
        keys.repeat(h // g, 1),
        values.repeat(h // g, 1),
        more,
        attrs.get("scale"),
        attrs.get("softcap", 0.0),
        np.zeros(h) if smooth else sink,
    )
    flat = [t.reshape(b, rows, -1) for t in (q, k, v)]
    feeds = [("fed", np.concatenate(flat, -1)), None, None] if packed else [("fed", t) for t in flat]
    ends = np.array([n + rows - 1 for n in valid], np.int32)
    operands = [
        *feeds,
        *(("fed", o) if before else None for o in old),
        ("fed", ends),
        np.array(total, np.int32),
        cos if rotary else None,
        sin if rotary else None,
        None,
        ("fed", extra) if bias else None,
        sink,
    ]
    # otherwise what lies behind the valid keys is nobody's business
    whole = valid == [before] * b
    while operands[-1] is None:
        operands.pop()
    attrs.update(
        {"local_window_size": window} if window > 0 else {},
        **({"do_rotary": 1} if rotary else {}),
        **({"smooth_softmax": 1} if smooth else {}),
    )
    return node(
        "GroupQueryAttention",
        operands,
        [y, keys if whole else None, values if whole else None],
        num_heads=h,
        kv_num_heads=g,
        **attrs,
    )


@case
def grouped_prompt(rng):
    return _grouped(rng)


@case
def grouped_prompt_rotary_packed(rng):
    return _grouped(rng, rotary=True, packed=True)


@case
def grouped_one_more(rng):
    return _grouped(rng, rows=1, before=6, rotary=True)


@case
def grouped_one_more_of_different_lengths(rng):
    return _grouped(rng, rows=1, before=6, valid=[3, 6], rotary=True, rotary_interleaved=1)


@case
def grouped_window(rng):
    return _grouped(rng, rows=7, window=3)


@case
def grouped_window_with_cache(rng):
    return _grouped(rng, rows=1, before=6, window=3, scale=0.2)


@case
def grouped_softcap_and_bias(rng):
    return _grouped(rng, softcap=1.5, bias=True)


@case
def grouped_smooth(rng):
    return _grouped(rng, smooth=True)


@case
def grouped_sink(rng):
    return _grouped(rng, sink=floats(rng, 6))


# --- norms, embeddings, products of floats


def normed(x, scale, bias, epsilon) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + bias


@case
def skip_layer_norm(rng):
    x, skip, bias = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8), floats(rng, 8)
    scale, beta = floats(rng, 8), floats(rng, 8)
    total = x.astype(np.float64) + skip + bias
    return node(
        "SkipLayerNormalization",
        [("fed", x), ("fed", skip), scale, beta, bias],
        [normed(total, scale, beta, 1e-12), None, None, total],
    )


@case
def skip_rms_norm(rng):
    x, skip, scale = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8), floats(rng, 8)
    total = x.astype(np.float64) + skip
    return node(
        "SkipSimplifiedLayerNormalization",
        [("fed", x), ("fed", skip), scale],
        [total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * scale, None, None, total],
        epsilon=1e-6,
    )


@case
def embeddings(rng):
    ids, segments = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    words, places, kinds, scale, bias = (
        floats(rng, 9, 8),
        floats(rng, 6, 8),
        floats(rng, 2, 8),
        floats(rng, 8),
        floats(rng, 8),
    )
    total = words.astype(np.float64)[ids] + places[:5] + kinds[segments]
    return node(
        "EmbedLayerNormalization",
        [("fed", ids), ("fed", segments), words, places, kinds, scale, bias, ("fed", mask)],
        [normed(total, scale, bias, 1e-12), mask.sum(1), total],
    )


@case
def embeddings_without_segments(rng):
    ids, at = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 6, (2, 5)).astype(np.int32)
    words, places, scale, bias = floats(rng, 9, 8), floats(rng, 6, 8), floats(rng, 8), floats(rng, 8)
    total = words.astype(np.float64)[ids] + places[at]
    return node(
        "EmbedLayerNormalization",
        [("fed", ids), None, words, places, None, scale, bias, None, ("fed", at)],
        [normed(total, scale, bias, 1e-12), None],
    )


@case
def fused_gemm(rng):
    a, b, c = floats(rng, 5, 7), floats(rng, 3, 5), floats(rng, 3)
    y = 0.5 * a.T.astype(np.float64) @ b.T + 2 * c
    return node(
        "FusedGemm",
        [("fed", a), b, c],
        [np.where(y > 0, y, 0.2 * y)],
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
        activation="LeakyRelu",
        activation_alpha=0.2,
    )


@case
def fused_matmul_of_moved_batches(rng):
    a, b = floats(rng, 4, 2, 3, 5), floats(rng, 2, 3, 5, 6)
    return node(
        "FusedMatMul",
        [("fed", a), ("fed", b)],
        [0.5 * np.moveaxis(a.astype(np.float64), 0, -2) @ b],
        transBatchA=1,
        alpha=0.5,
    )


def test_sizes_of_a_decoder():
    """As exporters write it: the lengths come out of the attention mask, whose own length is that of the cache and of
    the new rows together."""
    heads, kv, depth, rng = 4, 2, 8, np.random.default_rng(0)
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=6),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "second"], ["all"]),
        helper.make_node("Cast", ["all"], ["total"], to=6),
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "pk", "pv", "lengths", "total"],
            ["y", "nk", "nv"],
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=kv,
        ),
    ]
    cache, new = f"f32[b, {kv}, past, {depth}]", f"f32[b, s, {kv * depth}]"
    graph = load(
        model(
            nodes,
            {
                "q": f"f32[b, s, {heads * depth}]",
                "k": new,
                "v": new,
                "pk": cache,
                "pv": cache,
                "mask": "i64[b, total_length]",
            },
            ["y", "nk", "nv"],
            {"one": np.array([1]), "second": np.array(1)},
            domains={MICROSOFT: 1},
        )
    ).graph
    assert [str(v.type) for v in graph.outputs] == ["f32[b, s, 32]", "f32[b, 2, past + s, 8]", "f32[b, 2, past + s, 8]"]
    for b, s, past in ((2, 1, 5), (1, 3, 4)):
        fed = {
            "q": floats(rng, b, s, heads * depth),
            **{name: floats(rng, b, s, kv * depth) for name in "kv"},
            **{name: floats(rng, b, kv, past, depth) for name in ("pk", "pv")},
            "mask": np.ones((b, past + s), np.int64),
        }
        k, v = (np.concatenate([fed["p" + name].astype(np.float64), apart(fed[name], kv)], 2) for name in "kv")
        found = evaluate(with_sizes(graph, {"b": b, "s": s, "past": past}, {})[0], fed)
        want = attention(
            apart(fed["q"], heads), k.repeat(heads // kv, 1), v.repeat(heads // kv, 1), causal(s, past + s)
        )
        assert np.allclose(found["y"], want, atol=2e-5) and np.allclose(found["nk"], k) and np.allclose(found["nv"], v)


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


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


REFUSED = {
    "what its cache may hold": (
        lambda rng: node(
            "GroupQueryAttention",
            [
                ("fed", floats(rng, 1, 1, 32)),
                ("fed", floats(rng, 1, 1, 32)),
                ("fed", floats(rng, 1, 1, 32)),
                ("fed", floats(rng, 1, 2, 9, 16)),
                ("fed", floats(rng, 1, 2, 9, 16)),
                ("fed", np.array([3], np.int32)),
                np.array(4, np.int32),
            ],
            [None],
            num_heads=2,
            kv_num_heads=2,
        ),
        "total_sequence_length that is the length of its cache, 9, and its rows, 1",
    ),
    "a mask of another form": (lambda rng: _attention(rng, np.zeros((2, 3), np.int32)), r"needs a mask \[batch\]"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])
