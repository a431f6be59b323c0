"""Models like those of ONNX Runtime's own Python tests, for the cases of docs/onnxruntime.md."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
tensor, node = helper.make_tensor_value_info, helper.make_node


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELTON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PELTON_LEVEL", "0")
        yield
    logging.getLogger("pelton").setLevel(logging.NOTSET)


def model(nodes, inputs, outputs, constants=(), opset: int = 17, **more) -> bytes:
    graph = helper.make_graph(
        nodes, "net", inputs, outputs, [numpy_helper.from_array(a, name) for name, a in dict(constants).items()]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more).SerializeToString()


def mul(**more) -> bytes:
    return model(
        [node("Mul", ["X", "W"], ["Y"], name="mul")],
        [tensor("X", 1, [3, 2])],
        [tensor("Y", 1, [3, 2])],
        {"W": X},
        **more,
    )


def product(rows: int | str = 3) -> bytes:
    return model(
        [node("MatMul", ["X", "W"], ["Y"])],
        [tensor("X", 1, [rows, 2])],
        [tensor("Y", 1, [rows, 1])],
        {"W": np.array([[1], [2]], np.float32)},
    )


def texts() -> bytes:
    return model(
        [node("Identity", ["input:0"], ["output:0"])],
        [tensor("input:0", TensorProto.STRING, [2, 2])],
        [tensor("output:0", TensorProto.STRING, [2, 2])],
    )


def both() -> bytes:
    return model(
        [node("And", ["input1:0", "input:0"], ["output:0"])],
        [tensor(name, TensorProto.BOOL, [2, 2]) for name in ("input1:0", "input:0")],
        [tensor("output:0", TensorProto.BOOL, [2, 2])],
    )


def squares(session, options=None) -> bool:
    return np.allclose(session.run([], {"X": X}, options)[0], X * X)


def sequence(name: str, kind: int, shape=None):
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, shape)))
