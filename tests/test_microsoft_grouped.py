"""ONNX Runtime's GroupQueryAttention beside what its documentation says, written out in float64."""

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


# --- tests


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


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
            {"q": f"f32[b, s, {heads * depth}]", "k": new, "v": new, "pk": cache, "pv": cache, "mask": "i64[b, total]"},
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
        keys, values = k.repeat(heads // kv, 1), v.repeat(heads // kv, 1)
        want = attention(apart(fed["q"], heads), keys, values, causal(s, past + s))
        assert np.allclose(found["y"], want, atol=2e-5) and np.allclose(found["nk"], k) and np.allclose(found["nv"], v)


def test_the_length_of_the_cache_is_checked():
    def longer(rng):
        rows = [("fed", floats(rng, 1, 1, 32)) for _ in range(3)]
        cache = [("fed", floats(rng, 1, 2, 9, 16)) for _ in range(2)]
        operands = [*rows, *cache, ("fed", np.array([3], np.int32)), np.array(4, np.int32)]
        return node("GroupQueryAttention", operands, [None], num_heads=2, kv_num_heads=2)

    says = "total_sequence_length that is the length of its cache, 9, and its rows, 1"
    check_refusal(longer, says)
