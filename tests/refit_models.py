"""Networks whose weights become constants of engines in many ways: folded, joined, packed, widened, unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from models import model, small_cnn
from onnx import TensorProto, helper, numpy_helper

N = helper.make_node
CASES: dict[str, Callable[[np.random.Generator], onnx.ModelProto]] = {}


def case(make):
    CASES[make.__name__] = make
    return make


def f32(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@case
def cnn(rng):
    return small_cnn(seed=int(rng.integers(1 << 30)))


@case
def batch_norms(rng):
    """Folded into the convolution before, and where there is none, a factor and a shift."""
    nodes = [
        N("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        N("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"]),
        N("MaxPool", ["n"], ["p"], kernel_shape=[2, 2]),
        N("BatchNormalization", ["p", "g2", "s2", "m2", "v2"], ["y"]),
    ]
    held = {"w": f32(rng, 7, 5, 3, 3), "b": np.zeros(7, np.float32)}
    for k in ("", "2"):
        held |= {"g" + k: f32(rng, 7), "s" + k: np.zeros(7, np.float32), "m" + k: f32(rng, 7)}
        held["v" + k] = rng.uniform(0.5, 2, 7).astype(np.float32)
    return model(nodes, {"x": (2, 5, 9, 11)}, {"y": (2, 7, 4, 5)}, held)


@case
def attention(rng):
    """Products of one input are joined; a norm without effect, and biases of zeros, as training begins with."""
    wide, heads = 12, 3
    held = {f"{k}.w": f32(rng, wide, wide) for k in "qkvo"} | {f"{k}.b": np.zeros(wide, np.float32) for k in "qkvo"}
    held |= {"g": np.ones(wide, np.float32), "s": np.zeros(wide, np.float32), "scale": np.float32(0.5)}
    held |= {"cut": np.array([0, 0, heads, -1], np.int64), "join": np.array([0, 0, -1], np.int64)}
    nodes = [N("LayerNormalization", ["x", "g", "s"], ["n"], axis=-1)]
    for k in "qkv":
        nodes += [N("MatMul", ["n", f"{k}.w"], [f"{k}1"]), N("Add", [f"{k}1", f"{k}.b"], [f"{k}2"])]
        nodes += [N("Reshape", [f"{k}2", "cut"], [f"{k}3"])]
        nodes += [N("Transpose", [f"{k}3"], [f"{k}4"], perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3])]
    nodes += [
        N("MatMul", ["q4", "k4"], ["a1"]),
        N("Mul", ["a1", "scale"], ["a2"]),
        N("Softmax", ["a2"], ["a3"], axis=-1),
        N("MatMul", ["a3", "v4"], ["a4"]),
        N("Transpose", ["a4"], ["a5"], perm=[0, 2, 1, 3]),
        N("Reshape", ["a5", "join"], ["a6"]),
        N("MatMul", ["a6", "o.w"], ["o1"]),
        N("Add", ["o1", "o.b"], ["o2"]),
        N("Add", ["x", "o2"], ["y"]),
    ]
    return model(nodes, {"x": (2, 5, wide)}, {"y": (2, 5, wide)}, held)


@case
def turned_while_imported(rng):
    """What exporters compute of weights: transposed, scaled, cast from f16, and a weight that is used twice."""
    nodes = [
        N("Transpose", ["w"], ["wt"], perm=[1, 0]),
        N("Mul", ["wt", "half"], ["ws"]),
        N("MatMul", ["x", "ws"], ["a"]),
        N("Cast", ["h"], ["hf"], to=TensorProto.FLOAT),
        N("Add", ["a", "hf"], ["b"]),
        N("Gemm", ["b", "w", "c"], ["y"]),
    ]
    held = {"w": f32(rng, 9, 13), "half": np.float32(0.3), "h": f32(rng, 9).astype(np.float16), "c": f32(rng, 1, 13)}
    return model(nodes, {"x": (3, 13)}, {"y": (3, 13)}, held)


@case
def recurrent(rng):
    held = {"w": f32(rng, 1, 4 * 6, 5), "r": f32(rng, 1, 4 * 6, 6), "b": f32(rng, 1, 8 * 6), "p": f32(rng, 1, 3 * 6)}
    nodes = [N("LSTM", ["x", "w", "r", "b", "", "", "", "p"], ["y"], hidden_size=6)]
    return model(nodes, {"x": (7, 2, 5)}, {"y": (7, 1, 2, 6)}, held)


@case
def table_and_dynamic_batch(rng):
    """An embedding that is also the last product, and sizes that a run decides."""
    nodes = [
        N("Gather", ["e", "i"], ["a"]),
        N("Div", ["a", "d"], ["b"]),
        N("MatMul", ["b", "w"], ["c"]),
        N("PRelu", ["c", "slope"], ["r"]),
        N("MatMul", ["r", "et"], ["y"]),
        N("Transpose", ["e"], ["et"], perm=[1, 0]),
    ]
    nodes.insert(4, nodes.pop())
    held = {"e": f32(rng, 17, 6), "w": f32(rng, 6, 6), "d": np.array([63, 2, 0.5, 3, 4, 5], np.float32)}
    held["slope"] = np.full(6, 0.25, np.float32)
    return model(nodes, {"i": (["n", 4], TensorProto.INT64)}, {"y": ["n", 4, 17]}, held)


@case
def halves(rng):
    """Whole models in f16, which CPUs compute in f32."""
    held = {"w": f32(rng, 6, 5, 3, 3).astype(np.float16), "b": f32(rng, 6).astype(np.float16)}
    kind = TensorProto.FLOAT16
    nodes = [N("Conv", ["x", "w", "b"], ["c"]), N("Relu", ["c"], ["y"])]
    return model(nodes, {"x": ((1, 5, 7, 8), kind)}, {"y": ((1, 6, 5, 6), kind)}, held)


def trained_further(made: onnx.ModelProto, names, rng) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The same network with other numbers for these weights, and the numbers. Variances stay above 0."""
    other, new = onnx.ModelProto(), dict[str, np.ndarray]()
    other.CopyFrom(made)
    for t in other.graph.initializer:
        if t.name in names:
            was = numpy_helper.to_array(t)
            new[t.name] = (was * rng.uniform(0.5, 1.5, was.shape) + 0.05 * rng.random(was.shape)).astype(was.dtype)
            t.CopyFrom(numpy_helper.from_array(new[t.name], t.name))
    return other, new
