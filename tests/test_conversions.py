"""Models that another package converted to ONNX, beside their own framework: right ones pass silently, wrong ones are
refused."""

import logging
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pelton.errors import ModelError
from pelton.importers import conversions
from pelton.importers.conversions import NoReference, Reference, compared
from pelton.importers.onnx.file import Source
from pelton.importers.onnx.load import load
from pelton.ir import dims

RNG = np.random.default_rng(7)
F, INT = TensorProto.FLOAT, TensorProto.INT64


def source(nodes, inputs, outputs, **weights):
    """A model of nodes "y = Op(a, b)" with attributes; inputs and outputs: name → (type, shape)."""
    ports = [[helper.make_tensor_value_info(n, *of) for n, of in side.items()] for side in (inputs, outputs)]
    held = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    made = [helper.make_node(op, given, results, **attrs) for op, given, results, attrs in nodes]
    graph = helper.make_graph(made, "net", *ports, held)
    return Source(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), None)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def reference(inputs, *outputs, again=None, layers=None):
    return Reference("Reef 3.1", inputs, outputs, lambda: again or outputs, (lambda: layers) if layers else dict)


X = floats(5, 7)
RELU = source([("Relu", ["x"], ["r"], {}), ("Mul", ["r", "r"], ["y"], {})], {"x": (F, [5, 7])}, {"y": (F, [5, 7])})
RIGHT = np.maximum(X, 0) ** 2


def note(model, of, accept=False):
    return compared(model, of, accept).conversion


def test_what_is_right_is_noted_in_silence(caplog):
    assert note(RELU, reference({"x": X}, RIGHT)) == "equal to Reef 3.1 on its example inputs"
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("off, right", [(0.9e-3, True), (1.3e-3, False), (np.nan, False), (np.inf, False)])
def test_a_thousandth_of_the_largest_is_the_limit(off, right):
    expected = RIGHT.astype(np.float64)
    expected[2, 3] += off * RIGHT.max()
    if right:
        assert note(RELU, reference({"x": X}, expected)).startswith("equal")
    else:
        with pytest.raises(ModelError, match="net: the conversion to ONNX differs from Reef 3.1: output 'y' "):
            note(RELU, reference({"x": X}, expected))


def test_the_first_layer_that_differs_is_named(caplog):
    wrong = np.maximum(X, 0.1)
    of = reference({"x": X}, wrong**2, layers={"r": ("'relu' (reef.relu)", wrong), "y": ("'square'", wrong**2)})
    with pytest.raises(
        ModelError, match=r"the first layer that differs is 'relu' \(reef.relu\), which is off by 0.0?1"
    ):
        note(RELU, of)
    assert note(RELU, of, accept=True).startswith("differs from Reef 3.1 (accepted): output 'y' is off by")
    assert "(accepted)" in caplog.text


def test_other_shapes_and_other_counts_of_outputs():
    with pytest.raises(ModelError, match=r"has shape \[5, 7\] instead of \[7, 5\]"):
        note(RELU, reference({"x": X}, RIGHT.T))
    assert "not compared with Reef 3.1: it has 1 outputs" in note(RELU, reference({"x": X}, RIGHT, RIGHT))


def test_infinities_and_nan_are_part_of_the_result():
    model = source([("Log", ["x"], ["y"], {})], {"x": (F, [35])}, {"y": (F, [35])})
    x = np.where(np.arange(35) % 5, X.reshape(-1), 0)
    with np.errstate(all="ignore"):
        right = np.log(x)
    assert note(model, reference({"x": x}, right)).startswith("equal")
    with pytest.raises(ModelError, match="infinities or NaN that differ, in 7 of 35"):
        note(model, reference({"x": x}, np.where(np.isinf(right), -1e30, right)))


def test_random_numbers_are_no_mistake():
    other = RIGHT + floats(5, 7)
    of = reference({"x": X}, other, again=(other + floats(5, 7),))
    assert note(RELU, of) == "not compared with Reef 3.1: its results differ from run to run"
    two = replace(RELU, model=onnx.ModelProto.FromString(RELU.model.SerializeToString()))
    two.model.graph.output.append(helper.make_tensor_value_info("r", F, [5, 7]))
    drawn = reference({"x": X}, other, np.maximum(X, 0), again=(other * 2, np.maximum(X, 0)))
    assert "but for 1 outputs" in note(two, drawn)
    with pytest.raises(ModelError, match="output 'r'"):  # the other one is as random as before
        note(two, reference({"x": X}, other, X, again=(other * 2, X)))


def top_k(largest=1):
    nodes = [("TopK", ["x", "k"], ["v", "i"], {"axis": 1, "largest": largest})]
    return source(nodes, {"x": (F, [3, 40])}, {"v": (F, [3, 9]), "i": (INT, [3, 9])}, k=np.array([9]))


@pytest.mark.parametrize("kind", ["floats", "equals"])
def test_equal_elements_may_come_in_any_order(kind):
    """Ranks among equals are nobody's promise; ranks among others are."""
    x = floats(3, 40) if kind == "floats" else np.maximum(floats(3, 40) - 1.5, 0)
    order = x.shape[1] - 1 - np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]  # the first of equals first
    values, last = np.take_along_axis(x, order, 1)[:, :9], np.argsort(-x[:, ::-1], 1, kind="stable")[:, :9]
    assert note(top_k(), reference({"x": x}, values, order[:, :9])).startswith("equal")
    assert note(top_k(), reference({"x": x}, values, x.shape[1] - 1 - last)).startswith("equal")
    wrong = order[:, :9].copy()
    wrong[:, 0] = order[:, 1]
    if kind == "floats":
        with pytest.raises(ModelError, match="output 'i' differs in 3 of 27 elements"):
            note(top_k(), reference({"x": x}, values, wrong))


def test_roundings_that_fall_otherwise_are_no_mistake():
    """A quotient between two integers may become either; one that is not becomes one."""
    scale = np.float32(0.1)
    nodes = [("Mul", ["x", "s"], ["m"], {}), ("Round", ["m"], ["r"], {}), ("Cast", ["r"], ["y"], {"to": INT})]
    model = source(nodes, {"x": (F, [200])}, {"y": (INT, [200])}, s=scale)
    x = np.concatenate([(np.arange(100, dtype=np.float32) + np.float32(0.5)) / scale, floats(100) * 100])
    right = np.rint(x * scale).astype(np.int64)
    flipped = right.copy()
    flipped[:100] = np.where(np.arange(100) % 3 == 1, np.floor(x[:100] * scale), right[:100])
    assert note(model, reference({"x": x}, right)).startswith("equal")
    with pytest.raises(ModelError, match="output 'y' differs in 100 of 200"):
        note(model, reference({"x": x}, np.concatenate([right[:100], right[100:] + 1])))
    assert (flipped != right).any()


def test_sums_that_cancel_are_no_mistake():
    """All of a result may be what roundings left."""
    nodes = [("Add", ["x", "c"], ["a"], {}), ("Sub", ["a", "c"], ["b"], {}), ("Sub", ["b", "x"], ["y"], {})]
    model, x = source(nodes, {"x": (F, [9])}, {"y": (F, [9])}, c=np.float32(1000)), floats(9)
    left = (x + np.float32(1000)) - np.float32(1000) - x
    assert np.abs(left).max() > 1e-6
    for result in (left, -left, np.zeros_like(left)):
        assert note(model, reference({"x": x}, result)).startswith("equal")
    with pytest.raises(ModelError):
        note(model, reference({"x": x}, left + np.float32(1e-2)))


def test_where_the_data_decides_what_runs():
    nodes = [("NonZero", ["x"], ["n"], {}), ("Cast", ["n"], ["y"], {"to": F})]
    model, x = source(nodes, {"x": (F, [6, 4])}, {"y": (F, [2, "n"])}), np.maximum(floats(6, 4), 0)
    assert note(model, reference({"x": x}, np.stack(np.nonzero(x)).astype(np.float32))).startswith("equal")
    with pytest.raises(ModelError, match="output 'y'"):
        note(model, reference({"x": x}, np.stack(np.nonzero(x.T)[::-1]).astype(np.float32)))


def test_indices_that_a_table_lacks():
    model = source([("Gather", ["w", "x"], ["y"], {})], {"x": (INT, [4])}, {"y": (F, [4, 3])}, w=floats(9, 3))
    with pytest.raises(ModelError, match="rejects inputs of Reef 3.1: layer .* has an index that its table lacks"):
        note(model, reference({"x": np.array([1, 2, 9, 0])}, floats(4, 3)))


def test_what_cannot_be_compared_says_why(monkeypatch):
    assert (
        note(RELU, NoReference("Reef 3.1", "its run fails: Oops")) == "not compared with Reef 3.1: its run fails: Oops"
    )
    assert note(RELU, reference({"z": X}, RIGHT)) == "not compared with Reef 3.1: no value is known of its input 'x'"
    monkeypatch.setattr(conversions, "MOST_WORK", 10)
    assert "needs 7e+01 operations, more than 1e+01" in note(RELU, reference({"x": X}, RIGHT))
    monkeypatch.setattr(conversions, "MOST_WORK", 1e9)
    monkeypatch.setattr(conversions.share, "memory", lambda: 1000)
    assert "GB of memory" in note(RELU, reference({"x": X}, RIGHT))


@pytest.mark.parametrize("batch", [10, "size"])
@pytest.mark.parametrize("scale, size", [(0.7, 7), (0.6, 6), (1.7, 17), (0.35, 3), (2.0, 20), (1 / 3, 3)])
def test_sizes_that_scales_give_are_computed_in_f32(batch, scale, size):
    """As in ONNX Runtime and in frameworks: 10 · 0.7 is 7, though 0.7 as f32 lies below."""
    scales = np.array([1, 1, scale], np.float32)
    nodes = [
        ("Resize", ["x", "", "s"], ["y"], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"})
    ]
    model = source(nodes, {"x": (F, [1, 2, batch])}, {"y": (F, [1, 2, None])}, s=scales)
    (output,) = load(model).graph.outputs
    length = output.type.shape[2]
    assert size == (length if batch == 10 else dims.at(length, {"size": 10}))
