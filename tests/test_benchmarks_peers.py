"""The torch and JAX networks of benchmarks/gpu compute the same as their source programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import inverted_residuals, model, small_cnn
from onnx import helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu import suite  # noqa: E402

from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.passes import pipeline  # noqa: E402


def needs(name: str, how: str):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed: {how}")


def windows() -> Any:
    """Operators that torch names differently: pools and convolutions padded more at the end, LRN, an LSTM."""
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[0, 1, 2, 1], strides=[1, 2]),
        helper.make_node("MaxPool", ["a"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("LRN", ["m"], ["l"], size=3, alpha=0.1, beta=0.75, bias=1.0),
        helper.make_node("AveragePool", ["l"], ["p"], kernel_shape=[3, 2], pads=[0, 0, 1, 1]),
        helper.make_node("Reshape", ["p", "flat"], ["s"]),
        helper.make_node("LSTM", ["s", "wl", "rl", "bl"], ["y"], hidden_size=4, direction="bidirectional"),
    ]
    constants = {
        "w": rng.standard_normal((6, 3, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(6).astype(np.float32),
        "flat": np.array([6, 1, -1]),
        **{
            n: rng.standard_normal(s).astype(np.float32) / 3
            for n, s in (("wl", (2, 16, 16)), ("rl", (2, 16, 4)), ("bl", (2, 32)))
        },
    }
    return model(nodes, {"x": (1, 3, 10, 18)}, {"y": (6, 2, 1, 4)}, constants)


def transformer() -> Any:
    from test_triton_networks import block

    return block()


@needs("torch", "pip install torch")
@pytest.mark.parametrize("make", [small_cnn, inverted_residuals, windows, transformer])
def test_networks_of_torch_are_the_same(make):
    import torch
    from benchmarks.gpu import torch_network

    graph = importer.load(make()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    want = evaluate(graph, feeds, round=False)
    for program in (graph, torch_network.optimized(graph)):
        with torch.no_grad():
            outputs = torch_network.network(program)(*(torch.from_numpy(a) for a in feeds.values()))
        assert suite.off({v.name: y.numpy() for v, y in zip(program.outputs, outputs)}, want) < 1e-5
    if make is windows:
        # torch's local response is not there in half precision on CPUs
        return
    with torch.no_grad():
        half = [
            torch.from_numpy(a.astype(np.float32)).bfloat16() if a.dtype.kind == "f" else torch.from_numpy(a)
            for a in feeds.values()
        ]
        outputs = torch_network.network(torch_network.optimized(graph), torch.bfloat16)(*half)
    assert (
        suite.off({v.name: y.float().numpy() for v, y in zip(graph.outputs, outputs)}, want) < suite.TOLERANCE["bf16"]
    )


def small_resnet() -> Any:
    """A stem, and blocks with and without a side convolution, strided in their first or middle convolution."""
    rng = np.random.default_rng(6)
    nodes, constants = [], {}

    def conv(x: str, y: str, i: int, o: int, k: int, stride: int = 1, relu: bool = True) -> str:
        constants[y + "w"], constants[y + "b"] = (
            (rng.standard_normal(s) / np.sqrt(n)).astype(np.float32) for s, n in (((o, i, k, k), i * k * k), ((o,), 9))
        )
        nodes.append(helper.make_node("Conv", [x, y + "w", y + "b"], [y], pads=[k // 2] * 4, strides=[stride] * 2))
        nodes.extend([helper.make_node("Relu", [y], [y + "r"])] if relu else [])
        return y + "r" if relu else y

    x = conv("x", "stem", 3, 8, 7, 2)
    nodes.append(helper.make_node("MaxPool", [x], ["pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    x, channels = "pool", 8
    for i, (first, middle, side) in enumerate(((1, 1, True), (1, 1, False), (2, 1, True), (1, 2, True), (1, 1, False))):
        y = conv(conv(conv(x, f"{i}a", channels, 6, 1, first), f"{i}b", 6, 6, 3, middle), f"{i}c", 6, 16, 1, relu=False)
        nodes.append(
            helper.make_node(
                "Add", [y, conv(x, f"{i}s", channels, 16, 1, first * middle, relu=False) if side else x], [f"{i}t"]
            )
        )
        nodes.append(helper.make_node("Relu", [f"{i}t"], [f"{i}u"]))
        x, channels = f"{i}u", 16
    constants["out"], constants["bias"] = (
        rng.standard_normal((16, 10)).astype(np.float32),
        rng.standard_normal(10).astype(np.float32),
    )
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "out", "bias"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    return model(nodes, {"x": (2, 3, 40, 40)}, {"y": (2, 10)}, constants)


@needs("jax", "pip install jax")
def test_resnet_in_jax_is_the_same():
    import jax.numpy as jnp
    from benchmarks.gpu import jax_networks

    graph = importer.load(small_resnet()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    run, weights = jax_networks.resnet50(pipeline.run(graph)[0], jnp.float32)
    assert (
        suite.off({"y": np.asarray(run(weights, jnp.asarray(feeds["x"])))}, evaluate(graph, feeds, round=False)) < 1e-5
    )


def small_bert(layers: int = 2, width: int = 12, heads: int = 3, words: int = 1000, rows: int = 7) -> Any:
    """An encoder as torch exports it: three products for Q, K and V, an additive mask, GELU by its error function."""
    from onnx import TensorProto

    rng = np.random.default_rng(7)
    scalars = {"one": 1, "hidden": -10000, "root": 2, "two": np.sqrt(2), "half": 0.5}
    constants: dict[str, Any] = {
        "split": np.array([2, rows, heads, width // heads]),
        "join": np.array([2, rows, width]),
        "axes": np.array([1, 2]),
        **{name: np.float32(value) for name, value in scalars.items()},
    }
    nodes = []

    def put(op: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attrs))
        return f"v{len(nodes) - 1}"

    def weight(*shape: int) -> str:
        constants[f"c{len(constants)}"] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return f"c{len(constants) - 1}"

    def norm(x: str) -> str:
        return put("LayerNormalization", x, weight(width), weight(width), axis=-1)

    def dense(x: str, i: int, o: int) -> str:
        return put("Add", weight(o), put("MatMul", x, weight(i, o)))

    x = norm(
        put("Add", put("Add", put("Gather", weight(words, width), "ids"), weight(rows, width)), weight(rows, width))
    )
    mask = put("Mul", put("Sub", "one", put("Cast", put("Unsqueeze", "mask", "axes"), to=TensorProto.FLOAT)), "hidden")
    for _ in range(layers):
        q, k, v = (
            put("Transpose", put("Reshape", dense(x, width, width), "split"), perm=p)
            for p in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        p = put("Softmax", put("Add", put("Div", put("MatMul", q, k), "root"), mask), axis=-1)
        a = put("Reshape", put("Transpose", put("MatMul", p, v), perm=[0, 2, 1, 3]), "join")
        x = norm(put("Add", x, dense(a, width, width)))
        wide = dense(x, width, 4 * width)
        gelu = put("Mul", put("Mul", wide, put("Add", put("Erf", put("Div", wide, "two")), "one")), "half")
        x = norm(put("Add", x, dense(gelu, 4 * width, width)))
    put("Identity", x)
    nodes[-1].output[0] = "y"
    return model(
        nodes,
        {"ids": ((2, rows), TensorProto.INT64), "mask": ((2, rows), TensorProto.INT64)},
        {"y": (2, rows, width)},
        constants,
    )


@needs("jax", "pip install jax")
def test_bert_in_jax_is_the_same():
    import jax.numpy as jnp
    from benchmarks.gpu import jax_networks

    graph = importer.load(small_bert()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    assert not feeds["mask"].all()
    want = evaluate(graph, feeds, round=False)
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, suite.TOLERANCE["bf16"])):
        run, weights = jax_networks.bert(pipeline.run(graph)[0], dtype)
        got = np.asarray(run(weights, *(jnp.asarray(a) for a in feeds.values())).astype(jnp.float32))
        assert suite.off({"y": got}, want) < tolerance


@needs("torch", "pip install torch")
def test_bert_of_torch_is_the_same():
    test_networks_of_torch_are_the_same(small_bert)
