"""Kernels of linear attention: sequences of any order and length, in any layout, with any results."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, walk
from kernel_harness import check, declare

import pelton


def rule(of, batch, heads, queries, keys, values, decays=1, retrieve=True, places="i64", keep="y s d", orders=None):
    """of: the sequence of each token; keep: the results that are read."""
    n = len(of)
    shapes = dict(
        q=(n, heads, queries, keys),
        k=(n, heads, keys),
        v=(n, heads, values),
        a=(n, heads, decays),
        b=(n, heads, 1),
        x=(batch, heads, keys, values),
    )
    types = {name: f"f32{list(shape)}" for name, shape in shapes.items()}
    graph = program(("y s d", "delta_rule", "q k v a b x i", dict(retrieve=retrieve)), **types, i=f"{places}[{n}]")
    graph = graph.replace(outputs=tuple(v for v in graph.outputs if v.name in keep.split()))
    rng = np.random.default_rng(len(of) + keys)
    arrays = {name: rng.uniform(0.1, 0.9, shapes[name]).astype(np.float32) for name in "ab"}
    arrays["k"] = (rng.standard_normal(shapes["k"]) / np.sqrt(keys)).astype(np.float32)
    name = named((batch, heads, keys, values), of, decays, keep, places, not retrieve and "sums", orders and "strided")
    return Case(name, graph, orders or {}, {**arrays, "i": np.array(of)})


declare(
    "delta_rule",
    rule([0, 0, 1, 1, 0], 2, 2, 3, 4, 6),
    rule([1, -1, 0, 2], 3, 1, 1, 5, 37, decays=5, places="i32"),
    rule([0] * 33, 1, 3, 1, 16, 64, retrieve=False, orders=dict(q=(1, 0, 2, 3), v=(1, 0, 2), x=(1, 0, 2, 3))),
    rule([0, 1, 1], 4, 2, 2, 7, 131, keep="y"),
    rule([3, 3], 4, 1, 1, 3, 17, keep="s"),
    rule([0, 0], 1, 2, 1, 2, 1, keep="d s"),
)


@pytest.mark.parametrize("template, case", walk("delta_rule"))
def test_cases(template, case):
    check(template, case)


def layer(rows):
    """A layer of gated linear attention with a recurrent state."""
    net = pelton.Network("layer")
    batch = "batch=1..1..5"
    q = net.input("q", f"f32[{batch}, {rows}, 3, 1, 7]")
    k, v = net.input("k", "f32[batch, rows, 3, 7]"), net.input("v", "f32[batch, rows, 3, 19]")
    decay, beta = (net.input(name, "f32[batch, rows, 3, 1]") for name in ("decay", "beta"))
    return net, (q, k, v, decay, beta), net.input("past_state", "f32[batch, 3, 7, 19]")


def test_engines_update_recurrent_states_in_place():
    net, operands, past = layer("rows=1..1..40")
    batch, rows = operands[0].shape[:2]
    flat = [net.reshape(t, (batch * rows, *t.shape[2:])) for t in operands]
    of = net.reshape(net.expand(net.reshape(net.iota(batch), (batch, 1)), (batch, rows)), (batch * rows,))
    y, state, _ = net.delta_rule(*flat, past, of)
    net.output(y, "y")
    net.output(state, "present_state")
    engine = pelton.build(net, level=0, threads=1)
    assert [p.shares for p in engine.outputs] == [None, "past_state"] and not any(s.host for s in engine.steps)
    rng, state, context = np.random.default_rng(), engine.state(batch=2), engine.context(1)
    memory, want = state.arrays["past_state"], np.zeros((2, 3, 7, 19))
    for rows in (5, 1, 1, 9):
        inputs = {p.name: rng.uniform(0.1, 0.5, (2, rows, *p.shape[2:])).astype("f") for p in engine.inputs[:5]}
        apart = context.run({**inputs, "past_state": memory.copy()})
        got = state.run(context, inputs)["y"].reshape(2, rows, 3, 19)
        q, k, v, decay, beta = (inputs[p.name].astype(float) for p in engine.inputs[:5])
        for t in range(rows):
            want *= decay[:, t, :, :, None]
            change = beta[:, t] * (v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], want))
            want += k[:, t, :, :, None] * change[:, :, None]
            np.testing.assert_allclose(got[:, t], np.einsum("bhk,bhkv->bhv", q[:, t, :, 0], want), rtol=1e-4)
        assert state.arrays["past_state"] is memory and np.array_equal(apart["present_state"], memory)
        np.testing.assert_allclose(memory, want, rtol=1e-4, atol=1e-5)
