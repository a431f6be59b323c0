"""Pairs of inputs and outputs that `Engine.state` hands from run to run: by names, by the caller; how they are kept."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from pelton.diagnose.explain import explain
from pelton.engine.pairs import named_pairs
from pelton.engine.plan import DynamicDimension, Port
from pelton.errors import InputError
from pelton.runtime.state import growing_axes


def ports(names):
    return [Port(name, "float32", (1, "length", 3)) for name in names.split()]


@pytest.mark.parametrize(
    "inputs, outputs, pairs",
    [
        ("ids past_key_values.0.key past_key_values.10.value", "logits present.0.key present.10.value", "1-1 2-2"),
        ("past_key_values.0.decoder.key past_key_values.0.encoder.key", "present.0.encoder.key", "1-0"),
        ("past_key_values_0_key", "present_key_values_0_key", "0-0"),
        ("past_key_0 past_value_0", "present_value_0 present_key_0", "0-1 1-0"),
        ("conv_state past_state", "present_state present_conv", "0-1 1-0"),
        ("past.0.conv past.0.recurrent", "present.0.conv present.0.recurrent", "0-0 1-1"),
        ("past", "present", "0-0"),
        ("input state sr", "output stateN", "1-1"),
        ("input h c", "output hn cn", "1-1 2-2"),
        ("x h0 c0", "y hn cn", "1-1 2-2"),
        ("x h_0 c_0", "y h_n c_n", "1-1 2-2"),
        ("X initial_h initial_c", "Y Y_h Y_c", "1-1 2-2"),
        ("hiddenIn x", "hiddenOut", "0-0"),
        ("conv_cache", "conv_cache_out", "0-0"),
        ("cache_last_time", "cache_last_time_next", "0-0"),
        ("cached_key_0", "new_cached_key_0", "0-0"),
        ("input_states_1 input_states_2", "output_states_2 output_states_1", "0-1 1-0"),
        # no states
        ("input_image", "output_image", ""),
        ("input", "output", ""),
        ("frame x", "new_frame x_out", ""),
        ("h", "h_out h_next", ""),  # which of both?
    ],
)
def test_names_of_pairs(inputs, outputs, pairs):
    ins, outs = ports(inputs), ports(outputs)
    numbers = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
    assert named_pairs(ins, outs) == {ins[i].name: outs[o].name for i, o in numbers}


def test_pairs_have_one_type_and_one_shape():
    before, after = Port("h", "float32", (2, 3)), Port("h_out", "float32", (2, "n"))
    assert named_pairs([before], [after]) == {"h": "h_out"}
    for other in (Port("h_out", "float16", (2, 3)), Port("h_out", "float32", (3, 3)), Port("h_out", "float32", (2,))):
        assert named_pairs([before], [other]) == {}


def made(nodes, inputs, outputs, constants=()):
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [tensor(*i) for i in inputs], [tensor(*o) for o in outputs], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def recurrent(names):
    """An LSTM of one layer; names: of the two states before, and behind."""
    rng, hidden, width = np.random.default_rng(3), 5, 3
    weights = {"W": (1, 4 * hidden, width), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden)}
    constants = [onnx.numpy_helper.from_array(rng.standard_normal(s).astype("f") / 2, n) for n, s in weights.items()]
    h, c, hn, cn = names
    node = helper.make_node("LSTM", ["x", "W", "R", "B", "", h, c], ["y", hn, cn], hidden_size=hidden)
    state = (1, [1, 2, hidden])
    inputs = [("x", 1, ["rows", 2, width]), (h, *state), (c, *state)]
    return made([node], inputs, [("y", 1, None), (hn, *state), (cn, *state)], constants)


@pytest.mark.parametrize("names", [("h0", "c0", "hn", "cn"), ("initial_h", "initial_c", "Y_h", "Y_c"), tuple("pqrs")])
def test_an_lstm_in_pieces_computes_what_it_computes_at_once(names):
    engine = pelton.build(recurrent(names), {"x": ("1..4..64", 2, 3)}, level=0, threads=1)
    pairs = {"p": "r", "q": "s"} if names[0] == "p" else None
    if pairs:
        with pytest.raises(InputError, match='keeps no state between runs that names show.*pairs={"h": "h_out"}'):
            engine.state()
    state, context, x = engine.state(pairs), engine.context(1), np.random.default_rng().standard_normal((11, 2, 3))
    x = x.astype("f")
    zeros = np.zeros((1, 2, 5), np.float32)
    whole = context.run({"x": x, names[0]: zeros, names[1]: zeros})
    parts = [state.run(context, {"x": part})["y"] for part in np.split(x, [1, 2, 7])]
    np.testing.assert_allclose(np.concatenate(parts), whole["y"], rtol=1e-5, atol=1e-6)
    for before, after in zip(names[:2], names[2:]):
        np.testing.assert_allclose(state.arrays[before], whole[after], rtol=1e-5, atol=1e-6)
    assert f"{names[0]} [1, 2, 5] ← {names[2]}" in repr(state)


@pytest.mark.parametrize(
    "pairs, why",
    [
        ({"h": "hn"}, "'h', which is no input of the engine; it has x, h0, c0"),
        ({"h0": "h"}, "'h', which is no output of the engine; it has y, hn, cn"),
        ({"h0": "y"}, r"'y' is no next value of 'h0': 'h0' has shape \[1, 2, 5\]"),
        ({"h0": "hn", "c0": "hn"}, "the output 'hn' twice"),
        (["h0"], "a dict from inputs to outputs, got"),
    ],
)
def test_pairs_that_are_refused(pairs, why):
    engine = pelton.build(recurrent(("h0", "c0", "hn", "cn")), {"x": (1, 2, 3)}, level=0, threads=1)
    with pytest.raises(InputError, match=why):
        engine.state(pairs)


def test_the_callers_pairs_replace_those_of_names():
    engine = pelton.build(recurrent(("h0", "c0", "hn", "cn")), {"x": (1, 2, 3)}, level=0, threads=1)
    assert engine.state().outputs == {"h0": "hn", "c0": "cn"}
    assert engine.state({"h0": "cn", "c0": "hn"}).outputs == {"h0": "cn", "c0": "hn"}
    assert engine.state(pairs={"h0": "cn"}).outputs == {"h0": "cn"}


def convolution(width=4, channels=6):
    rng = np.random.default_rng(4)
    w = onnx.numpy_helper.from_array(rng.standard_normal((channels, 1, width)).astype("f"), "w")
    node = helper.make_node("CausalConvWithState", ["x", "w", "", "conv_state"], ["y", "present_conv"], "conv")
    node.domain = "com.microsoft"
    state = (1, ["batch", channels, width - 1])
    inputs = [("x", 1, ["batch", channels, "rows"]), ("conv_state", *state)]
    return made([node], inputs, [("y", 1, None), ("present_conv", 1, None)], [w])


def test_a_causal_convolution_keeps_its_last_rows():
    engine = pelton.build(convolution(), {"batch": "1..1..8", "rows": "1..4..64"}, level=0, threads=1)
    x = np.random.default_rng().standard_normal((3, 6, 13)).astype("f")
    context, state = engine.context(1), engine.state(batch=3)
    whole = context.run({"x": x, "conv_state": np.zeros((3, 6, 3), "f")})
    parts = [state.run(context, {"x": part})["y"] for part in np.split(x, [1, 2, 8], axis=2)]
    np.testing.assert_allclose(np.concatenate(parts, axis=2), whole["y"], rtol=1e-5, atol=1e-6)
    assert np.array_equal(state.arrays["conv_state"], x[:, :, -3:])


def growing(minimum=0):
    """Concat of a cache and new rows, as torch.onnx and optimum write caches."""
    nodes = [
        helper.make_node("Concat", ["past_key_values.0.key", "rows"], ["present.0.key"], axis=-2),
        helper.make_node("ReduceSum", ["present.0.key", "axis"], ["sums"], keepdims=0),
    ]
    inputs = [("past_key_values.0.key", 1, ["batch", 2, "past", 4]), ("rows", 1, ["batch", 2, "new", 4])]
    axis = onnx.numpy_helper.from_array(np.array([2]), "axis")
    model = made(nodes, inputs, [("present.0.key", 1, ["batch", 2, "past + new", 4]), ("sums", 1, None)], [axis])
    return pelton.build(
        model, {"batch": "1..1..8", "past": f"{minimum}..16..99", "new": "1..1..64"}, level=0, threads=1
    )


def test_caches_that_grow_begin_empty(tmp_path):
    engine, rng = growing(), np.random.default_rng()
    context, state, rows = engine.context(1), engine.state(batch=2), rng.standard_normal((2, 2, 13, 4)).astype("f")
    assert state.arrays["past_key_values.0.key"].shape == (2, 2, 0, 4)
    for end, part in zip((5, 6, 13), np.split(rows, [5, 6], axis=2)):
        sums = state.run(context, {"rows": part})["sums"]
        np.testing.assert_allclose(sums, rows[:, :, :end].sum(2), rtol=1e-4, atol=1e-5)
    assert np.array_equal(state.arrays["past_key_values.0.key"], rows)
    state.save(tmp_path / "state.npz")
    fork, other = state.fork(), engine.state(batch=2)
    other.load(tmp_path / "state.npz")
    for name, a in state.arrays.items():
        assert np.array_equal(other.arrays[name], a) and np.array_equal(fork.arrays[name], a)
    fork.reset()
    assert fork.arrays["past_key_values.0.key"].shape == (2, 2, 0, 4) and state.arrays[name].shape[2] == 13
    with pytest.raises(InputError, match=r"float32\[2, 2, length, 4\] there, float32\[1, 2, length, 4\] here"):
        engine.state(batch=1).load(tmp_path / "state.npz")


def test_caches_that_may_not_be_empty_need_a_length():
    engine = growing(minimum=1)
    with pytest.raises(
        InputError, match=r"accepts no empty one .*shapes=.'past': .* from 0 on, as in 0..16..99, or pass past="
    ):
        engine.state()
    assert engine.state(past=3).arrays["past_key_values.0.key"].shape == (1, 2, 3, 4)


def test_lengths_that_only_runs_decide_may_grow():
    """As in scripts, whose outputs have sizes of their own."""
    batch, past = DynamicDimension("batch", 1, 1, 8), DynamicDimension("past", 0, 16, 99)
    before, after = Port("past", "float32", ("batch", "past", 3)), Port("present", "float32", ("out_0", "out_1", 3))
    engine = SimpleNamespace(plain=SimpleNamespace(sizes={}), symbols=(batch, past), inputs=(before,), outputs=(after,))
    assert growing_axes(engine, {"past": "present"}) == {"past": 1}


def cached():
    net = pelton.Network("cached")
    past = net.input("past", "f32[1, 2, capacity=1..16..99, 4]")
    rows, begin = net.input("rows", "f32[1, 2, total=1..1..64, 4]"), net.input("begin", "i64[1]")
    length = past.shape[2]
    present = net.cache_write(past, rows, begin, begin + 1, length=length)
    net.output(present, "present")
    return net


def test_explain_says_which_values_are_copied_and_why():
    assert [(k.input, k.output, k.copied) for k in explain(cached(), level=0).states] == [("past", "present", "")]
    (kept,) = explain(convolution(), shapes={"batch": 1, "rows": 4}, level=0).states
    assert kept.type == "f32[1, 6, 3]" and "slice" in kept.copied
    assert explain(recurrent(tuple("pqrs")), shapes={"x": (4, 2, 3)}, level=0).states == []
    kept = explain(recurrent(("h0", "c0", "hn", "cn")), shapes={"x": (4, 2, 3)}, level=0).states
    assert [(k.input, k.output) for k in kept] == [("h0", "hn"), ("c0", "cn")] and all(k.copied for k in kept)
