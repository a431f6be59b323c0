"""GroupQueryAttention with caches of a sliding window (sliding_window_cache), beside its documentation."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, apart, attention, check_refusal, floats, node
from onnx import helper

import pelton
from pelton.errors import InputError
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate

HEADS, KV, DEPTH = 4, 2, 16
RAGGED = {
    "prompt longer than the cache": (5, 5, [0], [13]),
    "prompt that fits": (8, 5, [0], [6]),
    "cache that is not full yet": (9, 5, [3], [1]),
    "cache that shifts by one": (5, 5, [5], [1]),
    "cache that shifts several": (8, 5, [8], [1]),
    "cache that keeps room": (8, 5, [9], [3]),
    "steps longer than the cache": (6, 4, [11], [9]),
    "sequences of other lengths": (8, 5, [11, 4, 8], [1, 1, 1]),
}


def resident(length: int, capacity: int, window: int) -> int:
    """Returns how many positions a cache holds, as the operator's documentation defines it."""
    freed = capacity - window + 1
    return length if length <= capacity else length - freed * -(-(length - capacity) // freed)


def _case(rng, capacity, window, before, rows, **attrs) -> tuple[Case, list[np.ndarray]]:
    """Returns a node with its operands, the output of attention over whole sequences, and the sequences' keys and
    values, [batch][heads, tokens, depth]."""
    batch, count = len(before), rows[0]
    whole = [[floats(rng, KV, b + count, DEPTH) for b in before] for _ in range(2)]
    pasts = [floats(rng, batch, KV, capacity, DEPTH) for _ in range(2)]  # undefined positions hold anything
    q, want = floats(rng, batch, count, HEADS * DEPTH), []
    for i, b in enumerate(before):
        held = resident(b, capacity, window)
        for past, tokens in zip(pasts, whole):
            past[i, :, :held] = tokens[i][:, b - held : b]
        key, place = np.arange(b + count), b + np.arange(count)[:, None]
        hides = np.where((key <= place) & (key > place - window), 0.0, -np.inf)
        keys, values = (t[i][None].astype(np.float64).repeat(HEADS // KV, 1) for t in whole)
        want.append(attention(apart(q[i : i + 1], HEADS), keys, values, hides)[0])
    news = [np.stack([t[:, -count:].transpose(1, 0, 2).reshape(count, -1) for t in tokens]) for tokens in whole]
    totals = np.array(before) + count
    fed = [("fed", a) for a in (q, *news, *pasts, (totals - 1).astype(np.int32))]
    attrs = dict(num_heads=HEADS, kv_num_heads=KV, local_window_size=window, sliding_window_cache=1) | attrs
    case = node("GroupQueryAttention", [*fed, np.array(totals.max(), np.int32)], [np.array(want), None, None], **attrs)
    return case, whole


def _check(outputs, want, whole, capacity, window, before, rows) -> None:
    assert np.allclose(outputs["y0"], want, rtol=2e-5, atol=2e-5)
    for name, tokens in zip(("y1", "y2"), whole):
        assert outputs[name].shape == (len(before), KV, capacity, DEPTH)
        for i, b in enumerate(before):
            held = resident(b + rows[i], capacity, window)
            assert np.array_equal(outputs[name][i, :, :held], tokens[i][:, b + rows[i] - held :])


@pytest.mark.parametrize("what", RAGGED)
def test_rows_see_the_window_and_the_cache_keeps_it(what):
    (model, fed, (want, _, _)), whole = _case(np.random.default_rng(0), *RAGGED[what])
    graph = load(model, outputs=["y0", "y1", "y2"]).graph
    assert not any(n.op.kind == "foreign" for n in graph.nodes), "runs on the host"
    _check(evaluate(graph, fed), want, whole, *RAGGED[what])


def test_engines_take_caches_of_any_capacity():
    capacity, window, before, rows = RAGGED["cache that keeps room"]
    (model, fed, _), _ = _case(np.random.default_rng(0), capacity, window, before, rows)
    for name in ("x3", "x4"):
        place = next(i for i in model.graph.input if i.name == name)
        place.type.tensor_type.shape.dim[2].dim_param = "capacity"
    for output in model.graph.output:
        output.CopyFrom(helper.make_empty_tensor_value_info(output.name))
    engine = pelton.build(model, level=0, threads=1)
    for other in (5, 8, 11, 30):
        (_, fed, (want, _, _)), whole = _case(np.random.default_rng(other), other, window, before, rows)
        _check(engine.run(fed), want, whole, other, window, before, rows)
    with pytest.raises(InputError, match="may have 5 and more, got 4"):
        engine.run({**fed, **{name: fed[name][:, :, :4] for name in ("x3", "x4")}})


REFUSED = {
    "a cache that is too short": (dict(capacity=4, window=5), "at least 5 positions, its local_window_size, got 4"),
    "no window": (dict(capacity=8, window=5, local_window_size=-1), "needs a local_window_size"),
    "both directions": (dict(capacity=8, window=5, causal=0), "must be causal"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    sizes, says = REFUSED[what]
    check_refusal(lambda rng: _case(rng, before=[0], rows=[3], **sizes)[0], says)
