"""Attention kernels."""

from kernel_harness import Case, check, check_dynamic, declare, program, region_of, walk
import numpy as np
import pytest

from pelton.codegen.template import TEMPLATES
from pelton.plan.layout import dense

# heads as slices of rows, as a projection leaves them
HEADS = dict(q=(0, 2, 1, 3), k=(0, 2, 1, 3), v=(0, 2, 1, 3), z=(0, 2, 1, 3))
NONE = np.zeros((), np.float32)


def attention(name, q, k, v, mask="f32[]", orders=None, tail=(), arrays=None, more=None, **attrs):
    inputs = dict(q=q, k=k, v=v, mask=mask, **(more or {}))
    inputs = {n: f"f32{list(x)}" if isinstance(x, tuple) else x for n, x in inputs.items()}
    return Case(
        name,
        program(("y", "attention", "q k v mask", dict(dict(scale=0.3), **attrs)), *tail, **inputs),
        orders or {},
        arrays or {},
    )


def hidden(rows, columns, seen):
    """A mask under which row i sees the columns from a to b, for (a, b) = seen(i)."""
    mask = np.full((rows, columns), -np.inf, np.float32)
    for i in range(rows):
        mask[i, slice(*seen(i))] = 0
    return mask


RESIDUAL = [("s", "add", "y z"), ("out", "relu", "s")]
FEW = [
    attention("decode", (1, 4, 1, 64), (1, 4, 37, 64), (1, 4, 37, 64), NONE, HEADS),
    attention("wide-values", (2, 1, 2, 13), (2, 1, 29, 13), (2, 1, 29, 137), (2, 1, 1, 29)),
    attention("few-narrow", (3, 3, 1), (3, 5, 1), (3, 5, 1), (5,), causal=True),
    attention("few-causal", (1, 2, 4, 33), (1, 2, 3, 33), (1, 2, 3, 21), NONE, HEADS, causal=True),
    attention(
        "few-shared-keys",
        (2, 4, 3, 8),
        (2, 1, 6, 8),
        (2, 1, 6, 8),
        (2, 1, 1, 6),
        HEADS,
        RESIDUAL,
        more=dict(z=(2, 4, 3, 8)),
    ),
    attention(
        "few-nothing",
        (2, 4, 20),
        (2, 40, 20),
        (2, 40, 9),
        (4, 40),
        arrays=dict(mask=hidden(4, 40, lambda i: (0, 0 if i % 2 else 37))),
    ),
    attention(
        "few-hidden", (3, 20), (40, 20), (40, 9), (3, 40), arrays=dict(mask=hidden(3, 40, lambda i: (17 + i, 18 + i)))
    ),
]
BLOCKED = [
    attention("bert", (1, 2, 61, 64), (1, 2, 61, 64), (1, 2, 61, 64), (1, 1, 1, 61), HEADS),
    attention(
        "nothing",
        (2, 23, 8),
        (2, 600, 8),
        (2, 600, 5),
        (23, 600),
        arrays=dict(mask=hidden(23, 600, lambda i: (i, i + 530 * (i % 3)))),
    ),
    attention("unmasked", (2, 2, 50, 32), (2, 2, 50, 32), (2, 2, 50, 32), NONE, HEADS),
    attention(
        "awkward",
        (1, 3, 23, 19),
        (1, 3, 71, 19),
        (1, 3, 71, 21),
        (23, 71),
        HEADS,
        RESIDUAL,
        more=dict(z=(1, 3, 23, 21)),
    ),
    attention("mask-per-query", (2, 13, 8), (2, 17, 8), (2, 17, 3), (1, 13, 1)),
    attention("causal", (1, 2, 70, 40), (1, 2, 70, 40), (1, 2, 70, 24), (70, 70), causal=True),
    attention("causal-more-queries", (45, 9), (31, 9), (31, 5), NONE, causal=True),
    attention("causal-more-keys", (19, 9), (90, 9), (90, 5), NONE, causal=True),
    attention("shared-keys", (2, 3, 7, 16), (1, 3, 18, 16), (2, 1, 18, 16), (3, 1, 18)),
    attention("broadcast-queries", (1, 7, 16), (4, 18, 16), (4, 18, 8), NONE),
    attention("same-operand", (6, 5, 8), (6, 5, 8), (6, 5, 8), NONE),
    attention("narrow", (19, 1), (3, 1), (3, 1), NONE),
    attention("running", (1, 1, 50, 16), (1, 1, 1100, 16), (1, 1, 1100, 24), (50, 1100)),
    attention(
        "running-hidden",
        (50, 8),
        (1100, 8),
        (1100, 17),
        (50, 1100),
        arrays=dict(mask=hidden(50, 1100, lambda i: (22 * i, 22 * i + 30))),
    ),
    attention("running-causal", (1, 1100, 8), (1, 1100, 8), (1, 1100, 5), NONE, causal=True),
    attention("large-scores", (9, 8), (40, 8), (40, 8), (9, 40), scale=40.0),
]


def cached(name, q, k, v, kind, mask="f32[]", orders=None, tail=(), more=None, scales=None, **attrs):
    """Attention over a cache. scales: the shapes of both; by default those of rows for i8, else 1."""
    shapes = scales or [(*x[:-1], 1) if kind == "i8" else () for x in (k, v)]
    inputs = dict(q=f"f32{list(q)}", k=f"{kind}{list(k)}", v=f"{kind}{list(v)}", mask=mask, **(more or {}))
    for scale, shape in zip(("c", "d"), shapes):
        inputs[scale] = f"f32{list(shape)}" if shape else np.ones((), np.float32)
    inputs["mask"] = f"f32{list(mask)}" if isinstance(mask, tuple) else mask
    node = ("y", "cache_attention", "q k c v d mask", dict(dict(scale=0.01 if kind == "i8" else 0.3), **attrs))
    return Case(f"{name}-{kind}", program(node, *tail, **inputs), orders or {}, {})


RESIDUAL_OF = dict(z="f32[2, 4, 3, 9]")
FEW_CACHED = [
    *[cached("decode", (1, 4, 1, 64), (1, 4, 37, 64), (1, 4, 37, 64), t, NONE, HEADS) for t in ("f16", "bf16", "i8")],
    *[
        cached("groups", (2, 2, 3, 1, 33), (2, 2, 1, 45, 33), (2, 2, 1, 45, 21), t, (2, 1, 1, 1, 45))
        for t in ("f16", "i8")
    ],
    cached("tail", (2, 4, 3, 8), (2, 1, 6, 8), (2, 1, 6, 9), "i8", (2, 1, 1, 6), HEADS, RESIDUAL, RESIDUAL_OF),
    cached("one-scale", (2, 3, 8), (2, 19, 8), (2, 19, 5), "i8", NONE, scales=((2, 1, 1), (19, 1))),
    cached("scaled", (3, 17), (40, 17), (40, 9), "f16", (3, 40), dict(c=(1, 0)), scales=((40, 1), (40, 1))),
]
MANY_CACHED = [
    *[
        cached("many", (1, 3, 23, 19), (1, 3, 71, 19), (1, 3, 71, 21), t, (23, 71), HEADS)
        for t in ("f16", "bf16", "i8")
    ],
    cached("running", (1, 50, 16), (1, 1100, 16), (1, 1100, 24), "i8", (50, 1100)),
    cached("causal", (1, 2, 70, 40), (1, 1, 70, 40), (1, 1, 70, 24), "i8", NONE, causal=True),
]
declare("attention_few", *FEW, *FEW_CACHED)
declare("attention", *FEW, *BLOCKED, *FEW_CACHED, *MANY_CACHED)


@pytest.mark.parametrize("template, case", walk("attention_few", "attention"))
def test_attention(template, case):
    check(template, case)


@pytest.mark.parametrize(
    "template, case",
    [
        ("attention", attention("rows", (1, 2, 24, 8), (1, 2, 33, 8), (1, 2, 33, 19), (24, 33))),
        ("attention", attention("blocks", (7, 8), (600, 8), (600, 9), NONE, causal=True)),
        ("attention_few", attention("few", (2, 3, 8), (2, 20, 8), (2, 20, 9), (1, 20))),
        ("attention_few", cached("few", (2, 3, 8), (2, 20, 8), (2, 20, 9), "i8", (1, 20))),
        ("attention", cached("rows", (1, 2, 24, 8), (1, 2, 33, 8), (1, 2, 33, 19), "f16", (24, 33))),
    ],
)
def test_every_rest(template, case):
    """What is left after the whole tiles is a number of its own in the code."""
    assert check_dynamic(TEMPLATES[template], case, most=2, more=range(-2, 10)) >= 12


def test_heads_are_written_in_the_order_of_the_queries():
    """Transposing and reshaping the result back to rows is then a view."""
    region = region_of(attention("", (1, 12, 128, 64), (1, 12, 128, 64), (1, 12, 128, 64), NONE).graph)
    q, k, v = region.body.inputs
    # slices of one projection to queries, keys and values
    joined = {x: (294912, 64, 2304, 1) for x in (q, k, v)}
    blocked = TEMPLATES["attention"]
    assert all(blocked.fits(region, x, joined) for x in (q, k, v))
    assert blocked.output_order(region, region.output, joined) == (0, 2, 1, 3)
    assert blocked.output_order(region, region.output, {x: dense(x.type.shape) for x in (q, k, v)}) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "reason, case",
    [
        ("not f32", attention("", "f16[2, 5, 8]", "f16[2, 5, 8]", "f16[2, 5, 8]", "f16[]")),
        ("nothing to compute", attention("", (2, 0, 8), (2, 5, 8), (2, 5, 8))),
        ("its scale is no finite f32", attention("", (2, 3, 8), (2, 5, 8), (2, 5, 8), scale=1e39)),
    ],
)
def test_refusals_say_why(reason, case):
    assert TEMPLATES["attention"].rejection(region_of(case.graph)) == reason
