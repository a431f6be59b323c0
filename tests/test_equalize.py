"""Equalized channels and corrected biases: programs keep their meaning, and lose less by quantization."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_calibrated import Net, scales_of

from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value
from pelton.ir.verify import verify
from pelton.metrics import sqnr
from pelton.ops import get
from pelton.passes.precision.calibrated import layers, mean_errors, quantize_layers
from pelton.passes.precision.equalize import (
    ChannelRange,
    Equalized,
    candidates,
    channel_ranges,
    choose_factors,
    equalize,
    with_equalized,
)


def product(net: Net, x, columns: int, name: str):
    return net.emit("matmul", x, net.normal(x.type.shape[-1], columns), name=name)


def uneven(graph: Graph) -> Graph:
    """A program of the same meaning whose channels have ranges up to a hundred times apart."""
    r, chosen = np.random.default_rng(), []
    for x, of in candidates(graph, layers(graph)).items():
        by = 10 ** r.uniform(-1, 1, x.type.shape[of[0].channels]).astype(np.float32)
        chosen.append(Equalized(x, Value(x.type, f"{x.name}.uneven"), of[0].channels, by))
    return equalize(graph, chosen, layers(graph))


def chain() -> Graph:
    """Convolutions behind one another, with a relu between them: free."""
    net = Net(2, 3, 6, 5)
    first = net.emit("relu", net.conv(net.x, 8, "one"), name="a")
    return net.b.graph([net.conv(net.conv(first, 8, "two", group=8), 5, "three")])


def residual() -> Graph:
    """A sum that convolutions and the next sum read, and an output that a convolution reads."""
    net = Net(2, 3, 6, 5)
    limits = (net.b.constant(np.float32(0)), net.b.constant(np.float32(2)))
    x = net.conv(net.x, 8, "one")
    y = net.emit("add", x, net.emit("clip", net.conv(x, 8, "two"), *limits), name="sum")
    z = net.emit("add", y, net.conv(y, 8, "three", group=2), name="last")
    return net.b.graph([z, net.conv(z, 4, "four")])


def transformer() -> Graph:
    """A layer norm that products and a sum read, and a gelu."""
    net = Net(2, 7, 12)
    x = net.emit("layer_norm", product(net, net.x, 12, "in"), net.normal(12), net.normal(12), axis=2, name="norm")
    up = net.emit("gelu", net.emit("add", product(net, x, 16, "up"), net.normal(16)), name="gelu")
    down = net.emit("add", product(net, up, 12, "down"), net.normal(12), name="down.bias")
    y = net.emit("add", x, down, name="sum")
    hidden = net.emit("relu", net.emit("add", product(net, down, 6, "side"), net.normal(6)), name="hidden")
    return net.b.graph([y, product(net, hidden, 3, "head")])


PROGRAMS = [chain, residual, transformer]


def sample(graph: Graph) -> dict[str, np.ndarray]:
    (x,) = graph.inputs
    return {x.name: np.random.default_rng().standard_normal(x.type.shape).astype(np.float32)}


def equalized(graph: Graph, feeds: dict[str, np.ndarray], levels: int = 127) -> list[Equalized]:
    tensors = candidates(graph, layers(graph))
    found = iter(evaluate(channel_ranges(graph, {x: of[0].channels for x, of in tensors.items()}), feeds).values())
    ranges = [ChannelRange(low, high, square) for low, high, square in zip(found, found, found)]
    names: set[str] = set()
    chosen = (choose_factors(graph, x, of, seen, levels, names) for (x, of), seen in zip(tensors.items(), ranges))
    return [e for e in chosen if e is not None]


@pytest.mark.parametrize("make", PROGRAMS)
def test_equalized_programs_mean_the_same(make: Callable[[], Graph]):
    graph = uneven(make())
    feeds = sample(graph)
    chosen = equalized(graph, feeds)
    assert len(chosen) >= 2
    after = equalize(graph, chosen, layers(graph))
    verify(after)
    assert [layer.name for layer in layers(after)] == [layer.name for layer in layers(graph)]
    want, found = evaluate(graph, feeds, round=False), evaluate(after, feeds, round=False)
    for a, b in zip(want.values(), found.values()):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * np.abs(a).max())


def test_what_is_divided_for_free():
    """Nothing is added to chains; sums multiply what they read, and what is an output stays."""
    counts = {}
    for make in PROGRAMS:
        counts[make] = sum(n.op is get("mul") for n in uneven(make()).nodes)
    assert counts[chain] == 0 and counts[residual] > 0 and counts[transformer] > 0


@pytest.mark.parametrize("levels", [127, 64])
@pytest.mark.parametrize("make", PROGRAMS)
def test_less_is_lost(make: Callable[[], Graph], levels: int):
    graph = uneven(make())
    feeds = sample(graph)
    chosen = equalized(graph, feeds, levels)
    after = equalize(graph, chosen, layers(graph))
    want = evaluate(graph, feeds)
    losses = []
    for program in (graph, after):
        found = evaluate(quantize_layers(program, layers(program), scales_of(program, feeds), levels), feeds)
        losses.append(sum(10 ** (-sqnr(want[k], v) / 10) for k, v in found.items()))
    assert losses[1] < losses[0] / 4


def test_the_divided_tensors_are_beside_the_others():
    graph = uneven(residual())
    feeds = sample(graph)
    chosen = equalized(graph, feeds)
    beside = with_equalized(graph, chosen)
    verify(beside)
    outputs = tuple(v for e in chosen for v in (e.x, e.y))
    found = evaluate(beside.replace(outputs=outputs), feeds)
    for e in chosen:
        np.testing.assert_allclose(found[e.y.name] * e.spread(), found[e.x.name], rtol=1e-5, atol=1e-6)


def test_channels_alike_stay_as_they_are():
    net = Net(2, 3, 6, 5)
    w = net.b.constant(np.ones((8, 3, 1, 1), np.float32))
    window = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1)
    x = net.emit("convolution", net.x, w, net.b.constant(np.zeros(8, np.float32)), name="alike", **window)
    graph = net.b.graph([net.conv(x, 4, "next")])
    assert candidates(graph, layers(graph)) and not equalized(graph, sample(graph))
    nothing = {net.x.name: np.zeros(net.x.type.shape, np.float32)}
    assert not equalized(graph, nothing)


def test_bytes_that_move_are_not_equalized():
    net = Net(2, 8, 6, 5)
    joined = net.emit("concat", net.conv(net.x, 4, "one"), net.conv(net.x, 4, "two"), axis=1, name="joined")
    graph = net.b.graph([net.conv(joined, 4, "three")])
    assert not candidates(graph, layers(graph))


@pytest.mark.parametrize("make", PROGRAMS)
def test_corrections_take_the_mean_error_away(make: Callable[[], Graph]):
    """Of each layer's own quantization, on inputs in f32; of the first layer, it is that of what it gives."""
    graph = make()
    feeds, own = sample(graph), layers(graph)
    scales = {name: scale / 2 for name, scale in scales_of(graph, feeds).items()}  # saturates, which has a mean
    program = mean_errors(graph, own, scales, 64)
    verify(program)
    errors = list(evaluate(program, feeds).values())
    corrections = {layer.node: e for layer, e in zip(own, errors)}
    means = []
    for given in ({}, corrections):
        quantized = quantize_layers(graph, own[:1], scales, 64, corrections=given)
        verify(quantized)
        first = own[0].node.output
        found = evaluate(quantized.replace(outputs=(first,)), feeds)[first.name]
        want = evaluate(graph.replace(outputs=(first,)), feeds)[first.name]
        others = tuple(a for a in range(first.type.rank) if a != own[0].output_channels)
        means.append(np.abs((want - found).mean(others)).max())
    assert means[0] > 100 * means[1]
