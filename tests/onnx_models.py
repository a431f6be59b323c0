"""Small ONNX models for tests of the importer, one line each."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from pelton.ir.types import DType, TensorType
from pelton.ops.foreign import CODES

MICROSOFT = "com.microsoft"


def value_info(name: str, text: str) -> onnx.ValueInfoProto:
    """`x`, `f32[2, n]` → a declared input; dims that are no numbers are names."""
    dtype, _, dims = text.partition("[")
    shape = [int(d) if d.strip().isdigit() else d.strip() for d in dims.rstrip("]").split(",") if d.strip()]
    return helper.make_tensor_value_info(name, CODES[dtype], shape)


def node(op: str, inputs: str, outputs: str, **attrs) -> onnx.NodeProto:
    """A node; names are separated by spaces, `_` is an absent one."""
    names = [["" if n == "_" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, **attrs)


def model(
    nodes,
    inputs: dict[str, str],
    outputs,
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    functions=(),
    domains: dict[str, int] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [value_info(k, v) for k, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), k) for k, a in (constants or {}).items()],
    )
    imports = {"": opset, **(domains or {})}
    return helper.make_model(
        graph,
        ir_version=ir_version,
        opset_imports=[helper.make_opsetid(k, v) for k, v in imports.items()],
        functions=list(functions),
    )


def one_node(
    op: str, *operands, opset: int = 17, outputs: int = 1, domain: str = "", version: int = 1, **attrs
) -> onnx.ModelProto:
    """A model of one node. Operands: a type (an input), an array (a constant) or None (absent). version: of the domain,
    where that is not ai.onnx."""
    names, inputs, constants = [], {}, {}
    for i, operand in enumerate(operands):
        names.append("" if operand is None else f"x{i}")
        if isinstance(operand, str):
            inputs[f"x{i}"] = operand
        elif operand is not None:
            constants[f"x{i}"] = np.asarray(operand)
    made = [f"y{i}" for i in range(outputs)]
    return model(
        [helper.make_node(op, names, made, "node", domain=domain, **attrs)],
        inputs,
        made,
        constants,
        opset=opset,
        domains={domain: version} if domain else None,
    )


def draw(m: onnx.ModelProto, seed: int = 0, low: float = 0.1, high: float = 0.9) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a model: floats between the bounds, small integers, bools."""
    rng, feeds = np.random.default_rng(seed), {}
    for i in m.graph.input:
        tensor = i.type.tensor_type
        dtype = next(DType(name) for name, code in CODES.items() if code == tensor.elem_type)
        type = TensorType(dtype, tuple(d.dim_value for d in tensor.shape.dim))
        if dtype is DType.BOOL:
            drawn = rng.random(type.shape) < 0.5
        elif dtype.is_integer:
            drawn = rng.integers(0, 4, type.shape)
        else:
            drawn = rng.uniform(low, high, type.shape)
        feeds[i.name] = np.asarray(drawn).astype(dtype.numpy)
    return feeds
