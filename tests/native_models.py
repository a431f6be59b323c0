"""Models for tests of the native library, and their engines."""

from __future__ import annotations

import numpy as np
import pytest
from models import inverted_residuals, small_cnn
from onnx import TensorProto, helper

import pelton


def recurrent() -> bytes:
    """An LSTM on sequences of any length, in any batch, and sizes as outputs."""
    rng = np.random.default_rng(0)
    weights = {"w": (2, 20, 7), "r": (2, 20, 5), "b": (2, 40)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "", ""], hidden_size=5, direction="bidirectional"),
        helper.make_node("Shape", ["y"], ["s"]),
        helper.make_node("Concat", ["y", "y"], ["z"], axis=0),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", "batch", 7]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("s", TensorProto.INT64, [4]),
    ]
    constants = [
        helper.make_tensor(n, TensorProto.FLOAT, s, rng.standard_normal(s).astype(np.float32).tobytes(), raw=True)
        for n, s in weights.items()
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


MODELS = {
    "cnn": (lambda: small_cnn(size=12).SerializeToString(), {"x": "1..4..x3x12x12"}),
    "residuals": (lambda: inverted_residuals(size=14).SerializeToString(), {"x": "1..2..9x3x14x14"}),
    "recurrent": (recurrent, {}),
}


@pytest.fixture(scope="session")
def engines(kernel_cache):
    found = {}
    for name, (made, shapes) in MODELS.items():
        model = made()
        first = next(iter(pelton.build(model, level=0, cache_dir=kernel_cache).inputs)).name
        given = {first: next(iter(shapes.values()))} if shapes else None
        found[name] = pelton.build(model, level=0, cache_dir=kernel_cache, shapes=given).plain
    return found
