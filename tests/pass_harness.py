"""Shared by tests of passes: comparison of graphs as text, and of their results on random inputs."""

from __future__ import annotations

import numpy as np

from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.ir.text import key, parse, to_text
from pelton.ir.verify import verify
from pelton.passes.rewriting.example import draw

QKV = """graph main(%x: f32[2, 5, 8]) {
  %wq = constant f32[8, 8]
  %wk = constant f32[8, 8]
  %wv = constant f32[8, 6]
  %bq = constant f32[8]
  %bk = constant f32[8]
  %bv = constant f32[6]
  %q = matmul(%x, %wq) "query/matmul"
  %k = matmul(%x, %wk) "key/matmul"
  %v = matmul(%x, %wv) "value/matmul"
  %qb = add(%q, %bq) "query/add"
  %kb = add(%bk, %k) "key/add"
  %vb = add(%v, %bv) "value/add"
  return %qb, %kb, %vb }"""


def assert_becomes(after: Graph, expected: str) -> None:
    """Equal up to the names of values and the elements of large constants."""
    verify(after)
    wanted = parse(expected)
    assert key(after) == key(wanted), f"got\n{to_text(after, data=True)}\nexpected\n{to_text(wanted, data=True)}"


def assert_same(before: Graph, after: Graph, tolerance: float) -> None:
    verify(after)
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs] and [v.name for v in before.outputs] == [
        v.name for v in after.outputs
    ]
    rng = np.random.default_rng(3)
    inputs = {v.name: rng.uniform(-2, 2, v.type.shape).astype(v.type.dtype.numpy) for v in before.inputs}
    wanted, found = evaluate(before, inputs, round=False), evaluate(after, inputs, round=False)
    for name, w in wanted.items():
        np.testing.assert_allclose(
            found[name], w, rtol=0, atol=tolerance * max(1.0, np.abs(w).max(initial=0)), err_msg=name
        )


def assert_same_in_float64(before: Graph, after: Graph, tolerance: float) -> None:
    """Equal names, types and results of outputs, all computed in float64, within a tolerance relative to the largest
    element."""
    verify(after)
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs]
    assert [(v.name, v.type) for v in before.outputs] == [(v.name, v.type) for v in after.outputs]
    rng = np.random.default_rng(7)
    inputs = {v.name: draw(v.type, rng, -3, 3) for v in before.inputs}
    wanted, found = evaluate(before, inputs, round=False), evaluate(after, inputs, round=False)
    for name, w in wanted.items():
        w, f = np.asarray(w, np.float64), np.asarray(found[name], np.float64)
        assert (np.isfinite(w) == np.isfinite(f)).all(), f"{name} is finite in other places\n{to_text(after)}"
        largest = np.abs(w[np.isfinite(w)]).max(initial=1e-30)
        error = np.abs(np.where(np.isfinite(w), w - f, 0)).max(initial=0) / largest
        assert error <= tolerance, (
            f"{name} is off by {error:.1e} of its largest element\n{to_text(before)}{to_text(after)}"
        )


def random_constants(text: str) -> Graph:
    """The program with random elements for the constants that the text gives none for."""
    graph, rng = parse(text), np.random.default_rng(0)
    return graph.replace(
        constants={
            v: a if a.any() else rng.uniform(-1, 1, v.type.shape).astype(v.type.dtype.numpy)
            for v, a in graph.constants.items()
        }
    )
