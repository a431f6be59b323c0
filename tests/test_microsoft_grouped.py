"""ONNX Runtime's GroupQueryAttention beside its documentation, written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, apart, attention, causal, check_refusal, floats, judge, node, together
from onnx import helper, numpy_helper
from onnx_models import MICROSOFT, model

from pelton import InferenceSession
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import with_sizes

CASES = Cases()


def rotated(x, cos, sin, at, interleaved=False) -> np.ndarray:
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
        rotated(t, cos, sin, at, bool(attrs.get("rotary_interleaved"))) if rotary else t.astype(np.float64)
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


@CASES.add
def grouped_prompt(rng):
    return _grouped(rng)


@CASES.add
def grouped_prompt_rotary_packed(rng):
    return _grouped(rng, rotary=True, packed=True)


@CASES.add
def grouped_one_more(rng):
    return _grouped(rng, rows=1, before=6, rotary=True)


@CASES.add
def grouped_one_more_of_different_lengths(rng):
    return _grouped(rng, rows=1, before=6, valid=[3, 6], rotary=True, rotary_interleaved=1)


@CASES.add
def grouped_window(rng):
    return _grouped(rng, rows=7, window=3)


@CASES.add
def grouped_window_with_cache(rng):
    return _grouped(rng, rows=1, before=6, window=3, scale=0.2)


@CASES.add
def grouped_softcap_and_bias(rng):
    return _grouped(rng, softcap=1.5, bias=True)


@CASES.add
def grouped_smooth(rng):
    return _grouped(rng, smooth=True)


@CASES.add
def grouped_sink(rng):
    return _grouped(rng, sink=floats(rng, 6))


# --- what else the operator takes: a batch of one sequence, computed by hand


def _one(
    rng, rows=3, before=4, buffer=None, depth=16, changed=lambda q, k: (q, k), hidden=None, operands=None, **attrs
):
    """Parts of a case of one sequence: queries, keys and values [heads, tokens, depth] in float64, what hides, and the
    operands of the node up to the total length; `changed` is what happens to queries and keys before the cache."""
    h, g = 4, 2
    total = before + rows
    q, k, v = (floats(rng, 1, rows, n * depth) for n in (h, g, g))
    old = [floats(rng, 1, g, buffer or before, depth) for _ in range(2)]
    new_q, new_k = changed(apart(q, h)[0], apart(k, g)[0])
    keys = np.concatenate([old[0][0, :, :before], new_k], 1)
    values = np.concatenate([old[1][0, :, :before], apart(v, g)[0]], 1)
    given = [("fed", t) for t in (q, k, v)]
    given += [("fed", o) for o in old] if before or buffer else [None, None]
    given += [("fed", np.array([total - 1], np.int32)), np.array(total, np.int32)]
    return new_q, keys, values, given


def _weights(q, keys, hides, heads=4):
    scores = np.einsum("hid,hjd->hij", q, keys.repeat(heads // len(keys), 0)) / np.sqrt(q.shape[-1]) + hides
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return scores, e / e.sum(-1, keepdims=True)


def _given(weights, values):
    return together(np.einsum("hij,hjd->hid", weights, values.repeat(2, 0))[None])


@CASES.add
def grouped_in_both_directions(rng):
    q, keys, values, operands = _one(rng)
    _, w = _weights(q, keys, 0.0)
    return node("GroupQueryAttention", operands, [_given(w, values)], num_heads=4, kv_num_heads=2, causal=0)


@CASES.add
def grouped_with_normalized_queries_and_keys(rng):
    scales = rng.uniform(0.5, 2, (2, 16)).astype(np.float32)

    def normal(q, k):
        parts = zip((q, k), scales, (1e-2, 1e-3))
        return [t / np.sqrt((t**2).mean(-1, keepdims=True) + e) * s for t, s, e in parts]

    q, keys, values, operands = _one(rng, changed=normal)
    _, w = _weights(q, keys, causal(3, 7))
    operands += [None] * 7 + [scales[0], scales[1]]
    attrs = dict(num_heads=4, kv_num_heads=2, qk_norm_epsilon=1e-2, k_norm_epsilon=1e-3)
    return node("GroupQueryAttention", operands, [_given(w, values), keys[None], values[None]], **attrs)


@CASES.add
def grouped_that_gives_scores(rng):
    q, keys, values, operands = _one(rng)
    scores, w = _weights(q, keys, causal(3, 7))
    want = [_given(w, values), None, None, np.where(np.isinf(scores), 0, scores)[None]]
    return node("GroupQueryAttention", operands, want, num_heads=4, kv_num_heads=2, qk_output=1)


@CASES.add
def grouped_that_gives_weights(rng):
    q, keys, values, operands = _one(rng)
    _, w = _weights(q, keys, causal(3, 7))
    return node(
        "GroupQueryAttention",
        operands,
        [_given(w, values), None, None, w[None]],
        num_heads=4,
        kv_num_heads=2,
        qk_output=2,
    )


@CASES.add
def grouped_with_a_cache_that_is_longer(rng):
    q, keys, values, operands = _one(rng, rows=1, buffer=11)
    _, w = _weights(q, keys, 0.0)
    whole = [np.pad(t, ((0, 0), (0, 6), (0, 0)))[None] for t in (keys, values)]
    return node("GroupQueryAttention", operands, [_given(w, values), *whole], num_heads=4, kv_num_heads=2)


@CASES.add
def grouped_with_rows_that_are_padding(rng):
    """One of three rows is none: it enters no cache, and what it gives is nobody's business."""
    rows, before = 2, 4
    model, fed, _ = _grouped(rng, rows=3, before=before)
    h, g = 6, 2
    fed["x5"] = np.full(2, before + rows - 1, np.int32)
    model.graph.node[0].input.extend([""] * 9 + ["valid"])
    model.graph.input.append(helper.make_tensor_value_info("valid", 6, [2]))
    fed["valid"] = np.array([rows, rows], np.int32)
    keys, values = (
        np.concatenate([fed[old], apart(fed[new], g)[:, :, :rows]], 2) for new, old in (("x1", "x3"), ("x2", "x4"))
    )
    q = apart(fed["x0"], h)[:, :, :rows]
    y = attention(q, keys.repeat(h // g, 1), values.repeat(h // g, 1), causal(rows, before + rows))
    model.graph.node.append(helper.make_node("Slice", ["y0", "zero", "two", "one"], ["first"]))
    for name, value in (("zero", 0), ("two", rows), ("one", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    model.graph.node[0].output[0], model.graph.node[1].input[0] = "all", "all"
    model.graph.node[1].output[0] = "y0"
    return model, fed, [y, None, None]


def _integers(rng, bits, per_channel):
    h, g, depth, before = 4, 2, 16, 3
    limit = 1 << (bits - 1)
    s = [
        rng.uniform(0.02, 0.05, (1, g, 1, depth) if per_channel else (1,)).astype(np.float32) * (16 / limit) * 8
        for _ in "kv"
    ]
    old = [rng.integers(-limit, limit, (1, g, before, depth)) for _ in "kv"]
    q, k, v = (floats(rng, 1, 1, n * depth) for n in (h, g, g))
    new = [np.clip(np.round(apart(t, g) / c.astype(float)), -limit, limit - 1).astype(int) for t, c in zip((k, v), s)]
    whole = [np.concatenate(pair, 2) for pair in zip(old, new)]
    keys, values = ((t * c.astype(float))[0] for t, c in zip(whole, s))
    _, w = _weights(apart(q, h)[0], keys, 0.0)

    def stored(t):
        return t.astype(np.int8) if bits == 8 else ((t[..., ::2] + 8) | (t[..., 1::2] + 8) << 4).astype(np.uint8)

    operands = [("fed", t) for t in (q, k, v)] + [("fed", stored(t)) for t in old]
    operands += [("fed", np.array([before], np.int32)), np.array(before + 1, np.int32), *[None] * 5, *s]
    kind = "PER_CHANNEL" if per_channel else "PER_TENSOR"
    attrs = dict(k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits, num_heads=h, kv_num_heads=g)
    return node("GroupQueryAttention", operands, [_given(w, values), *(stored(t) for t in whole)], **attrs)


@CASES.add
def grouped_with_a_cache_of_bytes(rng):
    return _integers(rng, 8, True)


@CASES.add
def grouped_with_a_cache_of_four_bits(rng):
    return _integers(rng, 4, False)


# --- tests


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


def test_sizes_of_a_decoder():
    """As exporters write it: the lengths come out of the attention mask, whose own length is that of the cache and of
    the new rows together, or less where the cache is a buffer that is longer than what it holds."""
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
            {"q": f"f32[b, s, {heads * depth}]", "k": new, "v": new, "pk": cache, "pv": cache, "mask": "i64[b, total]"},
            ["y", "nk", "nv"],
            {"one": np.array([1]), "second": np.array(1)},
            domains={MICROSOFT: 1},
        )
    ).graph
    assert [str(v.type) for v in graph.outputs] == ["f32[b, s, 32]", *2 * ["f32[b, 2, max(past, total), 8]"]]
    for b, s, past in ((2, 1, 5), (1, 3, 4)):
        fed = {
            "q": floats(rng, b, s, heads * depth),
            **{name: floats(rng, b, s, kv * depth) for name in "kv"},
            **{name: floats(rng, b, kv, past, depth) for name in ("pk", "pv")},
            "mask": np.ones((b, past + s), np.int64),
        }
        k, v = (np.concatenate([fed["p" + name].astype(np.float64), apart(fed[name], kv)], 2) for name in "kv")
        found = evaluate(with_sizes(graph, {"b": b, "s": s, "past": past, "total": past + s}, {})[0], fed)
        keys, values = k.repeat(heads // kv, 1), v.repeat(heads // kv, 1)
        want = attention(apart(fed["q"], heads), keys, values, causal(s, past + s))
        assert np.allclose(found["y"], want, atol=2e-5) and np.allclose(found["nk"], k) and np.allclose(found["nv"], v)


def test_a_total_length_that_is_fed():
    """It is a size, which the data gives: the model becomes a script, whose engine has the length as a size."""
    q, keys, values, operands = _one(np.random.default_rng(0), rows=1, buffer=9)
    operands[6] = ("fed", operands[6])
    made, fed, _ = node("GroupQueryAttention", operands, [None], num_heads=4, kv_num_heads=2)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", 1, [1, 1, 64]))
    (y,) = InferenceSession(made.SerializeToString()).run(None, fed)
    assert np.allclose(y, _given(_weights(q, keys, 0.0)[1], values), atol=1e-5)


REFUSED = {
    "a cache of a window without one": (
        lambda rng: _grouped(rng, sliding_window_cache=1),
        "sliding_window_cache needs a local_window_size",
    ),
    "a window in both directions": (lambda rng: _grouped(rng, window=2, causal=0), "must be causal"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])
