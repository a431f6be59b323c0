"""Writes ONNX graphs and models, and their inputs, in few words."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

N = h.make_node
FLOATS = (T.FLOAT, ["n"])  # type and shape of a port


def values(ports: dict[str, tuple[int, Any]]) -> list[onnx.ValueInfoProto]:
    return [h.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in ports.items()]


def graph(nodes, inputs=None, outputs=None, constants=None, name="g") -> onnx.GraphProto:
    held = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return h.make_graph(nodes, name, values(inputs or {}), values(outputs or {}), held)


def model(*args, opset: int = 20, **kw) -> onnx.ModelProto:
    made = h.make_model(graph(*args, **kw), opset_imports=[h.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)
