"""Quantization of layers by tensor ranges: the selected layers, their scales, and the effect of switches."""

from __future__ import annotations

import numpy as np
import pytest

from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value
from pelton.ir.types import F32, I8, U8, TensorType
from pelton.ir.verify import verify
from pelton.metrics import sqnr
from pelton.ops import get
from pelton.passes.precision.calibrated import SWITCHES, layers, quantize_layers, scaled_values

WINDOW = dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
POOL = dict(kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))


class Net:
    """A small network, written op by op."""

    def __init__(self, *shape: int):
        self.b, self.r = Builder(), np.random.default_rng()
        self.x = self.b.input(TensorType(F32, shape), "x")

    def emit(self, op: str, *inputs: Value, name: str = "", **attrs) -> Value:
        return self.b.emit(get(op), inputs, attrs, names=[name], node_name=name)[0]

    def normal(self, *shape: int) -> Value:
        return self.b.constant(self.r.standard_normal(shape).astype(np.float32))

    def conv(self, x: Value, channels: int, name: str, **window) -> Value:
        w, b = self.normal(channels, x.type.shape[1] // window.get("group", 1), 3, 3), self.normal(channels)
        return self.emit("convolution", x, w, b, name=name, **{**WINDOW, **window})


def inception() -> Graph:
    """Two convolutions joined, pooled, and read by a third and by an output."""
    net = Net(2, 5, 7, 9)
    a = net.emit("relu", net.conv(net.x, 7, "one"), name="one.relu")
    b = net.emit("relu", net.conv(net.x, 6, "two"), name="two.relu")
    joined = net.emit("concat", a, b, axis=1, name="joined")
    pooled = net.emit("max_pool", joined, name="pooled", **POOL)
    y = net.conv(pooled, 4, "three")
    mean = net.emit("reduce_mean", joined, axes=(2, 3), name="mean")
    rows = net.emit("reshape", mean, shape=(2, 13))
    z = net.emit("matmul", net.emit("tanh", rows, name="rows"), net.normal(13, 3), name="head")
    return net.b.graph([y, z, a])


def scales_of(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, float]:
    chosen = layers(graph)
    inner = {v.name: v for n in graph.nodes for v in n.outputs} | {v.name: v for v in graph.inputs}
    names = scaled_values(chosen)
    found = evaluate(graph.replace(outputs=tuple(inner[n] for n in names if n not in feeds)), feeds)
    return {n: float(np.abs({**found, **feeds}[n]).max()) / 127 for n in names}


@pytest.fixture
def graph() -> Graph:
    return inception()


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng().standard_normal((2, 5, 7, 9)).astype(np.float32)}


def test_layers_are_named_in_order(graph):
    assert [layer.name for layer in layers(graph)] == ["one", "two", "three", "head"]
    assert scaled_values(layers(graph)) == ["x", "pooled", "rows"]
    assert [layer.macs for layer in layers(graph)] == [2 * 7 * 63 * 45, 2 * 6 * 63 * 45, 2 * 4 * 63 * 117, 2 * 3 * 13]


@pytest.mark.parametrize("levels", [127, 64])
def test_programs_are_close_and_keep_their_outputs(graph, feeds, levels):
    quantized = quantize_layers(graph, layers(graph), scales_of(graph, feeds), levels)
    verify(quantized)
    assert [v.name for v in quantized.outputs] == [v.name for v in graph.outputs]
    want, found = evaluate(graph, feeds), evaluate(quantized, feeds)
    for name in want:
        assert 25 < sqnr(want[name], found[name]) < 70, name


def test_joined_and_pooled_tensors_share_a_scale_and_have_no_sign(graph, feeds):
    quantized = quantize_layers(graph, layers(graph), scales_of(graph, feeds), 127)
    stored = {n.inputs[0].name: n for n in quantized.nodes if n.op is get("quantize")}
    # at the relus, not behind the join or the pool
    assert stored.keys() == {"x", "one.relu", "two.relu", "rows"}
    scales = {name: float(quantized.constants[n.inputs[1]]) for name, n in stored.items()}
    types = {name: n.attrs["to"] for name, n in stored.items()}
    assert types == {"x": I8, "one.relu": U8, "two.relu": U8, "rows": U8}
    assert scales["one.relu"] == scales["two.relu"] == np.float32(scales_of(graph, feeds)["pooled"] * 127 / 255)
    assert scales["x"] == np.float32(scales_of(graph, feeds)["x"])


def test_tensors_that_reach_less_far_below_zero_have_a_zero_point(graph, feeds):
    scales = scales_of(graph, feeds)
    lows = {"x": -0.25 * 127 * scales["x"]}
    quantized = quantize_layers(graph, layers(graph), scales, 127, lows=lows)
    (node,) = [n for n in quantized.nodes if n.op is get("quantize") and n.inputs[0].name == "x"]
    scale, zero = (quantized.constants[v] for v in node.inputs[1:])
    assert node.attrs["to"] is U8 and zero == 51 and scale == np.float32(1.25 * 127 * scales["x"] / 255)
    verify(quantized)
    x = np.clip(feeds["x"], lows["x"], None)
    want, found = evaluate(graph, {"x": x}), evaluate(quantized, {"x": x})
    assert 25 < sqnr(want["three"], found["three"]) < 70


def test_weights_have_a_scale_for_each_channel(graph, feeds):
    quantized = quantize_layers(graph, layers(graph), scales_of(graph, feeds), 127)
    makers = {n.output: n for n in quantized.nodes if n.op is get("dequantize")}
    for layer in layers(graph):
        (node,) = [n for n in quantized.nodes if n.name == layer.name and n.op is layer.node.op]
        levels, scales = (quantized.constants[v] for v in makers[node.inputs[1]].inputs)
        w, others = graph.constants[layer.w], tuple(i for i in range(layer.w.type.rank) if i != layer.axis)
        assert scales.shape == (w.shape[layer.axis],) and (np.abs(levels).max(others) == 127).all()
        by = scales.reshape([-1 if i == layer.axis else 1 for i in range(w.ndim)])
        assert np.abs(levels * by - w).max() <= by.max() / 2 * (1 + 1e-5)


def test_a_channel_of_zeros_stays_zero():
    net = Net(3, 5)
    w = np.random.default_rng().standard_normal((5, 4)).astype(np.float32)
    w[:, 2] = 0
    graph = net.b.graph([net.emit("matmul", net.x, net.b.constant(w), name="m")])
    quantized = quantize_layers(graph, layers(graph), {"x": 0.02}, 127)
    (y,) = evaluate(quantized, {"x": np.random.default_rng().standard_normal((3, 5)).astype(np.float32)}).values()
    assert np.isfinite(y).all() and not y[:, 2].any()


def test_what_integers_cannot_compute_is_no_layer():
    net = Net(1, 6, 5, 5)
    few = net.conv(net.x, 4, "few", group=2)
    by_data = net.emit("matmul", few, net.emit("transpose", few, perm=(0, 1, 3, 2)), name="by data")
    infinite = net.b.constant(np.full((5, 3), np.inf, np.float32))
    y = net.emit("matmul", by_data, infinite, name="infinite")
    assert layers(net.b.graph([y])) == []


def test_depthwise_convolutions_are_layers():
    net = Net(1, 6, 5, 5)
    assert [layer.macs for layer in layers(net.b.graph([net.conv(net.x, 6, "depthwise", group=6)]))] == [6 * 25 * 9]


def test_switches_choose_a_precision_for_each_layer(graph, feeds):
    chosen, scales = layers(graph), scales_of(graph, feeds)
    switched = quantize_layers(graph, chosen, scales, 127, switched=True)
    verify(switched)
    want = evaluate(graph, feeds)

    def run(*switches: float) -> dict[str, np.ndarray]:
        return evaluate(switched, {**feeds, SWITCHES: np.array(switches, np.float32)})

    for name, found in run(0, 0, 0, 0).items():
        np.testing.assert_array_equal(found, want[name])
    every, quantized = run(1, 1, 1, 1), evaluate(quantize_layers(graph, chosen, scales, 127), feeds)
    # the mean, which is no layer, reads what is joined unrounded where there are switches
    np.testing.assert_allclose(every["three"], quantized["three"], atol=1e-4 * np.abs(want["three"]).max())
    assert 20 < sqnr(want["head"], every["head"]) < 70
    alone = run(0, 0, 0, 1)
    np.testing.assert_array_equal(alone["three"], want["three"])
    assert 25 < sqnr(want["head"], alone["head"]) < 70
