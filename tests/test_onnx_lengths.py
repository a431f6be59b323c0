"""Recurrent layers over sequences of individual lengths: each equals its run alone, with zeros behind its end."""

import numpy as np
import pytest
from compare import assert_close
from onnx_models import one_node

from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ops import get

TIME, BATCH, INPUTS, HIDDEN = 6, 4, 3, 5
LENGTHS = np.array([6, 2, 0, 3], np.int32)


def layer(op, gates, direction, layout, fed):
    """A model, what it is fed, and its operands with time first."""
    rng = np.random.default_rng(0)
    d = 2 if direction == "bidirectional" else 1
    shapes = [
        (TIME, BATCH, INPUTS),
        (d, gates * HIDDEN, INPUTS),
        (d, gates * HIDDEN, HIDDEN),
        (d, 2 * gates * HIDDEN),
        (d, BATCH, HIDDEN),
    ]
    shapes += [(d, BATCH, HIDDEN), (d, 3 * HIDDEN)] if op == "LSTM" else []
    own = [rng.uniform(-1, 1, s).astype(np.float32) for s in shapes]
    given = [a.swapaxes(0, 1) if layout and i in (0, 4, 5) else a for i, a in enumerate(own)]
    given.insert(4, LENGTHS)
    kept = [i for i in range(len(given)) if i and (i != 4 or not fed)]
    types = [f"{'i32' if i == 4 else 'f32'}{list(a.shape)}" for i, a in enumerate(given)]
    operands = [a if i in kept else types[i] for i, a in enumerate(given)]
    m = one_node(
        op,
        *operands,
        opset=14,
        outputs=3 if op == "LSTM" else 2,
        hidden_size=HIDDEN,
        direction=direction,
        layout=layout,
    )
    return m, {f"x{i}": a for i, a in enumerate(given) if i not in kept}, own


@pytest.mark.parametrize("fed", [False, True], ids=["known", "fed"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_each_sequence_is_what_it_is_alone(op, gates, direction, layout, fed):
    m, feeds, (x, w, r, b, *states) = layer(op, gates, direction, layout, fed)
    graph = load(m).graph
    assert all(n.op.kind != "foreign" for n in graph.nodes)
    y = np.zeros((TIME, w.shape[0], BATCH, HIDDEN), np.float32)
    ends = [s.copy() for s in states[:2]]
    for i, length in enumerate(LENGTHS):
        one = [s[:, i : i + 1] for s in states[:2]]
        found = get(op.lower()).reference(
            x[:length, i : i + 1], w, r, b, *one, *states[2:], hidden=HIDDEN, direction=direction
        )
        y[:length, :, i : i + 1] = found[0]
        for end, last in zip(ends, found[1:]):
            end[:, i : i + 1] = last
    want = [y.transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in ends)] if layout else [y, *ends]
    assert_close(evaluate(graph, feeds), {f"y{i}": a for i, a in enumerate(want)}, about=op)


def test_each_direction_takes_its_own_slopes():
    rng = np.random.default_rng(1)
    x, w, r = (
        rng.uniform(-1, 1, s).astype(np.float32)
        for s in ((TIME, BATCH, INPUTS), (2, 3 * HIDDEN, INPUTS), (2, 3 * HIDDEN, HIDDEN))
    )
    how = dict(
        activations=("HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"),
        activation_alpha=(0.3, 0.2, 0.7),
        activation_beta=(0.4, 0.6),
    )
    m = one_node(
        "GRU",
        f"f32{list(x.shape)}",
        w,
        r,
        None,
        LENGTHS,
        opset=14,
        outputs=1,
        hidden_size=HIDDEN,
        direction="bidirectional",
        **how,
    )
    y = np.zeros((TIME, 2, BATCH, HIDDEN), np.float32)
    none = np.zeros((2, 6 * HIDDEN), np.float32), np.zeros((2, 1, HIDDEN), np.float32)
    for i, length in enumerate(LENGTHS):
        y[:length, :, i : i + 1] = get("gru").reference(
            x[:length, i : i + 1], w, r, *none, hidden=HIDDEN, direction="bidirectional", **how
        )[0]
    assert_close(evaluate(load(m).graph, {"x0": x}), {"y0": y})


def test_lengths_beyond_the_input_are_refused():
    m = one_node(
        "GRU",
        "f32[3, 2, 4]",
        np.ones((1, 15, 4), np.float32),
        np.ones((1, 15, 5), np.float32),
        None,
        np.array([3, 4], np.int32),
        hidden_size=5,
    )
    with pytest.raises(ModelError, match=r"GRU needs a length from 0 to 3 for each of 2 sequences, got \[3, 4\]"):
        load(m)
