"""ONNX Runtime's gates, norms and mixtures of streams, and its LSTM with attention, beside numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Cases, Maker, check_refusal, floats, judge, node, sigmoid, softmax
from onnx import TensorProto, helper
from onnx_models import MICROSOFT, model

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate

CASES = Cases()


def rms(x, epsilon=1e-5):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


@CASES.add
def scaled_silu(rng):
    x = floats(rng, 3, 7)
    return node("ScaledSiLU", [("fed", x), np.float32(0.7)], [0.7 * x * sigmoid(np.float64(0.7) * x)])


@CASES.add
def scaled_silu_by_an_attribute(rng):
    x = floats(rng, 3, 7)
    return node("ScaledSiLU", [("fed", x)], [1.5 * x * sigmoid(1.5 * x)], alpha=1.5)


@CASES.add
def gated_add(rng):
    x, y, gate = floats(rng, 2, 3, 5), floats(rng, 2, 3, 5), floats(rng, 2, 3, 1)
    return node("GatedAdd", [("fed", x), ("fed", y), ("fed", gate)], [x + y.astype(np.float64) * gate])


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("size", [4, 12])
def test_gated_norms(activation, size):
    def make(rng):
        x, scale, gate = floats(rng, 2, 3, 12), floats(rng, size), floats(rng, 2, 3, 12)
        normed = (rms(x.reshape(2, 3, -1, size), 0.2) * scale).reshape(x.shape)
        want = normed * sigmoid(gate) * (1 if activation == "sigmoid" else gate)
        return node("GatedRMSNorm", [("fed", x), scale, ("fed", gate)], [want], activation=activation, epsilon=0.2)

    judge(make)


@CASES.add
def gated_rms_norm(rng):
    x, scale, gate = floats(rng, 3, 8), floats(rng, 8), floats(rng, 3, 8)
    return node("GatedRMSNorm", [("fed", x), scale, ("fed", gate)], [rms(x) * scale * sigmoid(gate) * gate])


@CASES.add
def engram_gate(rng):
    key, query, value = floats(rng, 2, 3, 4, 8), floats(rng, 2, 3, 4, 8), floats(rng, 2, 3, 8)
    scales = [floats(rng, 4, 8) for _ in range(3)]
    dot = (rms(key) * scales[0] * rms(query) * scales[1]).sum(-1, keepdims=True) / np.sqrt(8)
    y = sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), 1e-6))) * value[:, :, None]
    return node("EngramGate", [("fed", key), ("fed", query), ("fed", value), *scales], [y, rms(y) * scales[2]])


# --- several streams


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 6), (2, 3, 24)])
def test_streams_are_mixed(flat, shape):
    if len(shape) == 3 and shape[-1] == 24 and not flat:
        return

    def gates(given):
        return given.reshape(2, 3, 4, -1).astype(np.float64)

    def before(rng):
        x, given = floats(rng, 2, 3, 4, 6), floats(rng, *shape)
        fed = x.reshape(2, 3, 24) if flat else x
        want = 0.5 * (x * gates(given)).sum(2)
        return node(
            "HyperConnectionPreMix", [("fed", fed), given], [want], reduction_scale=0.5, num_branches=4 if flat else 0
        )

    def after(rng):
        x, given, block, mix = (
            floats(rng, 2, 3, 4, 6),
            floats(rng, *shape),
            floats(rng, 2, 3, 6),
            floats(rng, 2, 3, 4, 4),
        )
        fed = x.reshape(2, 3, 24) if flat else x
        want = np.einsum("btck,btch->btkh", mix.astype(np.float64), x) + gates(given) * block[:, :, None]
        operands = [("fed", fed), ("fed", block), ("fed", given), ("fed", mix)]
        return node("HyperConnectionPostMix", operands, [want.reshape(fed.shape)], num_branches=4 if flat else 0)

    judge(before)
    if shape[-1] != 24:
        judge(after)


@CASES.add
def hyper_connection_pre_mix(rng):
    x, given = floats(rng, 3, 4, 6), floats(rng, 3, 4)
    return node(
        "HyperConnectionPreMix", [("fed", x), ("fed", given)], [(x * given[..., None].astype(np.float64)).sum(1)]
    )


@CASES.add
def hyper_connection_post_mix_without_a_mixture(rng):
    x, given, block = floats(rng, 3, 4, 6), floats(rng, 3, 4), floats(rng, 3, 6)
    want = x + given[..., None].astype(np.float64) * block[:, None]
    return node("HyperConnectionPostMix", [("fed", x), ("fed", block), ("fed", given)], [want])


@pytest.mark.parametrize("shape", [None, (24,), (4, 6), (6,)])
@pytest.mark.parametrize("flat", [False, True])
def test_streams_are_normed(shape, flat):
    def make(rng):
        x = floats(rng, 2, 3, 4, 6)
        fed = x.reshape(2, 3, 24) if flat else x
        scale = None if shape is None else floats(rng, *shape)
        want = rms(x) * (1 if scale is None else scale.reshape(-1, 6))
        return node("BranchwiseRMSNorm", [("fed", fed), scale], [want.reshape(fed.shape)], num_branches=4 * flat)

    judge(make)


@CASES.add
def branchwise_rms_norm(rng):
    x = floats(rng, 3, 4, 6)
    return node("BranchwiseRMSNorm", [("fed", x)], [rms(x, 0.1)], epsilon=0.1)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_results_have_the_type_of_the_input(dtype):
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=dtype),
        helper.make_node("BranchwiseRMSNorm", ["h", "s"], ["y"], "n", domain=MICROSOFT),
    ]
    m = model(nodes, {"x": "f32[3, 4, 6]", "s": "f32[6]"}, ["y"], domains={MICROSOFT: 1})
    rng = np.random.default_rng(0)
    x, scale = floats(rng, 3, 4, 6), floats(rng, 6)
    graph = load(m).graph
    assert graph.outputs[0].type.dtype.value == {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16"}[dtype]
    found = evaluate(graph, {"x": x, "s": scale})["y"].astype(np.float64)
    assert np.allclose(found, rms(x) * scale, atol=0.03)


# --- AttnLSTM


def attended(x, w, r, b, lengths, h, c, p, query, keys, vector, memory, limits, layer, back):
    """One direction, by loops over batch and steps."""
    steps, batch, hidden = len(x), x.shape[1], r.shape[1]
    y, last_h, last_c = np.zeros((steps, batch, hidden)), h.astype(np.float64), c.astype(np.float64)
    for i in range(batch):
        state, cell, extra = last_h[i], last_c[i], np.zeros(w.shape[1] - x.shape[2])
        values = memory[i, : limits[i]].astype(np.float64)
        order = range(lengths[i])
        for t in reversed(order) if back else order:
            gates = w @ np.concatenate([x[t, i], extra]) + r @ state + b[: 4 * hidden] + b[4 * hidden :]
            put, out, forget, new = gates.reshape(4, hidden)
            put, forget = sigmoid(put + p[:hidden] * cell), sigmoid(forget + p[2 * hidden :] * cell)
            cell = forget * cell + put * np.tanh(new)
            state = sigmoid(out + p[hidden : 2 * hidden] * cell) * np.tanh(cell)
            y[t, i] = state
            weights = softmax((np.tanh(values @ keys + state @ query) @ vector)[None])[0]
            extra = weights @ values if layer is None else np.concatenate([state, weights @ values]) @ layer
        last_h[i], last_c[i] = state, cell
    return y, last_h, last_c


def with_attention(direction: str, count: int, whole: bool, layered: bool) -> Maker:
    def make(rng):
        steps, batch, inputs, hidden, size, depth, places, wide = 5, 3, 4, 6, 5, 7, 8, 3
        extra = wide if layered else depth
        shapes = {
            "w": (count, 4 * hidden, inputs + extra),
            "r": (count, 4 * hidden, hidden),
            "b": (count, 8 * hidden),
            "h": (count, batch, hidden),
            "c": (count, batch, hidden),
            "p": (count, 3 * hidden),
            "query": (count, hidden, size),
            "keys": (count, depth, size),
            "vector": (count, size),
            "layer": (count, hidden + depth, wide),
        }
        held = {name: floats(rng, *shape) * np.float32(0.5) for name, shape in shapes.items()}
        x, memory = floats(rng, steps, batch, inputs), floats(rng, batch, places, depth)
        lengths, limits = np.array([5, 2, 3], np.int32), np.array([8, 3, 5], np.int32)
        if whole:
            held |= {name: np.zeros_like(held[name]) for name in "bhcp"}
            lengths, limits = np.full(3, steps), np.full(3, places)
        backs = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        found = []
        for d, back in enumerate(backs):
            own = {name: a[d] for name, a in held.items()}
            layer = own.pop("layer") if layered else (own.pop("layer"), None)[1]
            found.append(attended(x, lengths=lengths, memory=memory, limits=limits, layer=layer, back=back, **own))
        y, h, c = (np.stack(parts, axis) for parts, axis in zip(zip(*found), (1, 0, 0)))

        def operand(name):
            return None if whole and name in "bhcp" else held[name]

        operands = [
            ("fed", x),
            held["w"],
            held["r"],
            operand("b"),
            None if whole else ("fed", lengths),
            *map(operand, "hcp"),
            held["query"],
            held["keys"],
            held["vector"],
            ("fed", memory),
            None if whole else ("fed", limits),
            *([held["layer"]] if layered else []),
        ]
        return node("AttnLSTM", operands, [y, h, c], hidden_size=hidden, direction=direction)

    return make


CASES["lstm_with_attention"] = with_attention("forward", 1, False, True)


@pytest.mark.parametrize("direction, count", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("layered", [False, True])
def test_lstm_with_attention(direction, count, whole, layered):
    judge(with_attention(direction, count, whole, layered))


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


def gated(rng):
    return node("GatedAdd", [("fed", floats(rng, 2, 3))] * 3 + [floats(rng, 3, 1)], [None])


def wrong_gates(rng):
    return node("HyperConnectionPreMix", [("fed", floats(rng, 2, 4, 6)), floats(rng, 4, 6)], [None])


@pytest.mark.parametrize(
    "make, says", [(gated, "only runs on GPUs"), (wrong_gates, "a gate for each stream or feature")]
)
def test_refusals(make, says):
    check_refusal(make, says)
