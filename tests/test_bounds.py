"""Interval arithmetic: bounds contain the programs' values, and are as narrow as activations promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from draw import examples

from pelton.ir.bounds import ANY, Bounds, value_bounds
from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.text import parse
from pelton.ir.types import F32, TensorType
from pelton.ops import REGISTRY


def bounds(text: str) -> Bounds:
    graph = parse(text)
    return value_bounds(graph)[graph.outputs[0]]


@pytest.mark.parametrize(
    "op, expected",
    [
        ("relu(%x)", (0, math.inf)),
        ("sigmoid(%x)", (0, 1)),
        ("tanh(%x)", (-1, 1)),
        ("abs(%x)", (0, math.inf)),
        ("exp(%x)", (0, math.inf)),
        ("hard_sigmoid(%x)", (0, 1)),
        ("neg(%x)", (-math.inf, math.inf)),
        ("mul(%x, %x)", (-math.inf, math.inf)),
    ],
)
def test_activations(op, expected):
    assert bounds(f"graph main(%x: f32[3]) {{ %y = {op}  return %y }}") == expected


def test_views_joins_and_pools_keep_bounds():
    found = bounds("""graph main(%x: f32[1, 2, 5, 5], %z: f32[1, 2, 5, 5]) {
        %a = relu(%x)  %b = sigmoid(%z)  %c = concat(%a, %b) {axis=1}
        %d = max_pool(%c) {kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)}
        %e = transpose(%d) {perm=(0, 2, 3, 1)}
        return %e }""")
    assert found == (0, math.inf)


def test_means_of_values_above_zero_include_it():
    graph = "graph main(%x: f32[2, 7]) { %e = exp(%x)  %s = add(%e, %e)  %m = reduce_mean(%s) {axes=(1,)}  return %m }"
    assert bounds(graph) == (0, math.inf)


def test_unknown_ops_are_unbounded():
    assert bounds("graph main(%x: f32[2, 7]) { %s = relu(%x)  %y = softmax(%s) {axis=1}  return %y }") == ANY


FLOATS = [(name, *e) for name, *e in examples("pointwise") if all(t.dtype is F32 for t in e[1])]


@pytest.mark.parametrize("op, types, attrs", [e[1:] for e in FLOATS], ids=[e[0] for e in FLOATS])
def test_hold_for_every_pointwise_op(op, types, attrs):
    """On random operands within an interval, no result lies outside of the bounds."""
    r = np.random.default_rng()
    low, high = map(np.float32, sorted(r.uniform(*op.domain, 2)))
    b = Builder()
    inputs = [b.input(t, f"x{i}") for i, t in enumerate(types)]
    ends = b.constant(low), b.constant(high)
    clipped = [b.emit(REGISTRY["clip"], (x, *ends))[0] for x in inputs]
    (y,) = b.emit(op, clipped, attrs)
    graph = b.graph([y])
    found = value_bounds(graph)[y]
    (result,) = evaluate(
        graph, {x.name: r.uniform(low, high, x.type.shape).astype(np.float32) for x in inputs}
    ).values()
    if result.dtype.kind == "f":
        finite = result[np.isfinite(result)]
        slack = 1e-5 * max(1.0, float(np.abs(finite).max(initial=0)))
        assert (finite >= found.low - slack).all() and (finite <= found.high + slack).all(), found


def test_clips_have_their_ends():
    b = Builder()
    x = b.input(TensorType(F32, (3,)), "x")
    (y,) = b.emit(REGISTRY["clip"], (x, b.constant(np.float32(-2)), b.constant(np.float32(6))))
    assert value_bounds(b.graph([y]))[y] == (-2, 6)
