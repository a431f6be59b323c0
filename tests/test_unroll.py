"""Recurrent layers written out step by step mean what they meant, and directions are chains of their own."""
from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close
from draw import examples, operands

from pelton.build import plan
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Builder, Graph
from pelton.ir.types import TensorType
from pelton.kernels.triton import library  # noqa: F401  (declares the templates)
from pelton.ops import get
from pelton.options import Options
from pelton.passes.unroll import LAYERS, STEPS, unroll
from pelton.plan import lower
from pelton.targets import gpu_target

RECURRENT = [e for kind in ("structured", "composite") for e in examples(kind) if e[1].name in (*LAYERS, *STEPS)]


def graph_of(op, types, arrays: list[np.ndarray], attrs) -> tuple[Graph, dict[str, np.ndarray]]:
    """The op on inputs, weights (the second one) as a constant, and what the inputs are."""
    b = Builder()
    values = [b.constant(a, f"x{i}") if i == 1 else b.input(t, f"x{i}") for i, (t, a) in enumerate(zip(types, arrays))]
    return b.graph(b.emit(op, values, attrs)), {f"x{i}": a for i, a in enumerate(arrays) if i != 1}


@pytest.mark.parametrize("name, op, types, attrs", RECURRENT, ids=[e[0] for e in RECURRENT])
def test_steps_mean_what_the_recurrence_did(name, op, types, attrs):
    graph, feeds = graph_of(op, types, operands(op, types, attrs), attrs)
    written = unroll(graph, lambda node: True)
    usual = op.name in STEPS or not attrs.get("activations")
    assert all(n.outputs[0].type.shape[:2] == (1, 1) for n in written.nodes if n.op.name in STEPS)
    assert all(n.op.name not in LAYERS for n in written.nodes) or not usual
    want, got = evaluate(graph, feeds), evaluate(written, feeds)
    for v, w in zip(graph.outputs, written.outputs):
        assert_close(got[w.name], want[v.name], about=name)


def test_directions_run_side_by_side():
    b = Builder()
    g, h, c = (b.input(TensorType.parse(t), n) for t, n in zip(("f32[6, 3, 32]", "f32[2, 3, 4]", "f32[2, 3, 4]"), "ghc"))
    operands = (g, b.constant(np.ones((2, 16, 4), np.float32)), h, c, b.constant(np.zeros((2, 12), np.float32)))
    graph = b.graph(b.emit(get("lstm_steps"), operands, {"direction": "bidirectional"})[:1])
    placed, *_ = plan(unroll(graph, lambda node: True), Options(target="cuda:sm_90"), gpu_target((90,)))
    steps = [(wave, t.region.title()) for wave, t in zip(lower.waves(placed), placed.tasks) if t.region.anchor is not None]
    assert sorted(steps) == [(wave, "lstm_steps") for wave in range(6) for _ in range(2)]
    assert len(placed.tasks) == len(steps) and not placed.copies            # each writes where its step of the output lies
