"""Splitting of recurrent layers into a matrix product and the steps."""

import draw
import numpy as np
import pytest
from compare import assert_close

from pelton.ir.evaluate import evaluate
from pelton.ir.builder import Builder
from pelton.ir.graph import Graph
from pelton.ir.verify import verify
from pelton.ops import get
from pelton.passes.decompose import decompose, expansion

LAYER_OPS = ("lstm", "gru", "rnn")


def split_recurrent(graph: Graph) -> Graph:
    return decompose(graph, lambda graph, node: node.op.name not in LAYER_OPS)


def layer(op, types, attrs, free=()):
    """A graph of one layer whose weights are constant, but for those named in `free` by position."""
    b, arrays = Builder(), draw.operands(op, types, attrs)
    values = [
        b.input(t, f"x{i}") if i == 0 or i > 3 or i in free else b.constant(a, f"c{i}")
        for i, (t, a) in enumerate(zip(types, arrays))
    ]
    graph = b.graph(b.emit(op, values, attrs, names=("y", "last_h", "last_c"), node_name="layer"))
    return graph, {v.name: a for v, a in zip(values, arrays) if v in graph.inputs}


LAYERS = [pytest.param(*example[1:], id=example[0]) for example in draw.examples() if example[1].name in LAYER_OPS]


@pytest.mark.parametrize("op, types, attrs", LAYERS)
def test_split_layers_compute_the_same(op, types, attrs):
    graph, inputs = layer(op, types, attrs)
    split = split_recurrent(graph)
    verify(split)
    assert_close(evaluate(split, inputs), evaluate(graph, inputs))
    names = {n.op.name for n in split.nodes}
    if expansion(graph.nodes[0]) is not None:
        assert op.name not in names and f"{op.name}_steps" in names
        assert {n.name for n in split.nodes} == {"layer"}
    else:
        assert split.nodes == graph.nodes


def test_usual_activations_may_be_spelled_out():
    attrs = dict(hidden=5, activations=("SIGMOID", "Tanh", "tanh"))
    _, op, types, _ = next(e for e in draw.examples() if e[0] == "lstm-0")
    graph, inputs = layer(op, types, op.complete(attrs))
    split = split_recurrent(graph)
    assert "lstm_steps" in {n.op.name for n in split.nodes}
    assert_close(evaluate(split, inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("op, types, attrs", LAYERS)
@pytest.mark.parametrize("free", [(1,), (2,), (3,), (1, 2, 3)], ids=str)
def test_layers_whose_weights_are_fed_are_split_too(op, types, attrs, free):
    graph, inputs = layer(op, types, attrs, free)
    split = split_recurrent(graph)
    verify(split)
    assert_close(evaluate(split, inputs), evaluate(graph, inputs))
    assert (f"{op.name}_steps" in {n.op.name for n in split.nodes}) == (expansion(graph.nodes[0]) is not None)


def test_two_layers_and_other_nodes_keep_their_places():
    b = Builder()
    x = b.input(*[draw.TensorType.parse("f32[4, 3, 7]")], "x")
    rng = np.random.default_rng(0)

    def gru(x, inputs):
        w, r, bias, h = (
            b.constant(rng.standard_normal(s).astype(np.float32))
            for s in ((1, 15, inputs), (1, 15, 5), (1, 30), (1, 3, 5))
        )
        y, last = b.emit(get("gru"), (x, w, r, bias, h), dict(hidden=5))
        return b.emit(get("reshape"), (y,), dict(shape=(4, 3, 5)))[0], last

    one, last = gru(x, 7)
    two, _ = gru(b.emit(get("relu"), (one,))[0], 5)
    graph = b.graph((two, last))
    split = split_recurrent(graph)
    verify(split)
    assert split.outputs == graph.outputs
    inputs = {"x": rng.standard_normal((4, 3, 7)).astype(np.float32)}
    assert_close(evaluate(split, inputs), evaluate(graph, inputs))
