"""Converts nodes of opset 21 to older opsets, where possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import NodeProto, helper

OLDEST, NOW = 7, 21
_REDUCTIONS = (
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)

# operator: until which opset its later inputs were attributes, and which
_WERE_ATTRIBUTES: dict[str, tuple[int, tuple[str, ...]]] = {
    "Squeeze": (13, ("axes",)),
    "Unsqueeze": (13, ("axes",)),
    "ReduceSum": (13, ("axes",)),
    "Split": (13, ("split",)),
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "Slice": (10, ("starts", "ends", "axes", "steps")),
    "TopK": (10, ("k",)),
    "Upsample": (9, ("scales",)),
    **dict.fromkeys(_REDUCTIONS, (18, ("axes",))),
}
_SCALARS = {"min", "max", "value", "k"}

# attribute: since when there is one, and what was meant before
_CAME: dict[tuple[str, str], tuple[int, object]] = {
    ("TopK", "largest"): (11, 1),
    ("TopK", "sorted"): (11, 1),
    ("ArgMax", "select_last_index"): (12, 0),
    ("ArgMin", "select_last_index"): (12, 0),
    ("MaxPool", "ceil_mode"): (10, 0),
    ("AveragePool", "ceil_mode"): (10, 0),
    ("DepthToSpace", "mode"): (11, "DCR"),
    ("Slice", "steps"): (10, [1]),
    ("ScatterElements", "reduction"): (16, "none"),
    ("ScatterND", "reduction"): (16, "none"),
    ("QuantizeLinear", "axis"): (13, 1),
    ("DequantizeLinear", "axis"): (13, 1),
    ("Resize", "coordinate_transformation_mode"): (11, "asymmetric"),
    ("Resize", "nearest_mode"): (11, "floor"),
}


def aged(node: NodeProto, opset: int, held: Mapping[str, np.ndarray]) -> NodeProto:
    """The node for an opset before 21, with the same meaning; LookupError if there is none. held: arrays by name."""
    if node.domain or opset >= NOW:
        return node
    op, inputs = node.op_type, list(node.input)
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attrs = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    shapes = [held[n].shape for n in inputs if n]
    if op == "Resize" and opset < 11:
        op, inputs = "Upsample" if opset < 10 else op, [inputs[0], inputs[2]]
        require(held[inputs[1]].min() >= 1)
        if op == "Upsample":
            require(
                attrs.pop("coordinate_transformation_mode") == "asymmetric" and attrs.pop("nearest_mode") == "floor"
            )
    if op in ("Max", "Min", "Sum", "Mean") and opset < 8:
        require(len(set(shapes)) == 1)
    if op in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
        require(all(d == 1 for d in shapes[0][attrs.get("axis", -1) % len(shapes[0]) + 1 :]))
    if op == "ScatterElements" and opset < 11:
        require(attrs.pop("reduction", "none") == "none")
        op = "Scatter"
    until, names = _WERE_ATTRIBUTES.get(op, (0, ()))
    if opset < until:
        for name, given in zip(names, inputs[1:]):
            if given:
                require(not held[given].dtype.name.startswith("bfloat"))
                attrs[name] = (
                    held[given].reshape(-1).tolist()[0] if name in _SCALARS else held[given].reshape(-1).tolist()
                )
        del inputs[1:]
    for (of, name), (since, meant) in _CAME.items():
        if of == op and opset < since and name in attrs:
            require(attrs.pop(name) == meant)
    if opset < 11 and shapes and op != "OneHot":  # axes are counted from the first one
        rank = len(shapes[0]) + (len(attrs.get("axes", ())) if op == "Unsqueeze" else 0)
        for name in attrs.keys() & {"axis", "axes"}:
            if name == "axes":
                attrs[name] = [a % rank for a in attrs[name]]
            elif attrs[name] < 0:
                attrs[name] += rank
    return helper.make_node(op, inputs, list(node.output), node.name, **attrs)


def require(holds: bool) -> None:
    if not holds:
        raise LookupError("older opsets have no such thing")


def agreed(
    node: NodeProto, opset: int, held: Mapping[str, np.ndarray], codes: Mapping[str, int], constants: Collection[str]
) -> None:
    """Raises LookupError where the onnx package has no such node in that opset. Later inputs must be constants."""
    if opset >= NOW or node.domain:
        return
    require(all(not n or n in constants for n in node.input[1:]) or node.op_type not in _WERE_ATTRIBUTES)
    old = aged(node, opset, held)
    inputs = [
        helper.make_tensor_value_info(n, codes[held[n].dtype.name], held[n].shape)
        for n in dict.fromkeys(old.input)
        if n and n not in constants
    ]
    graph = helper.make_graph(
        [old],
        "one",
        inputs,
        [onnx.ValueInfoProto(name=o) for o in old.output],
        [onnx.numpy_helper.from_array(held[n], n) for n in dict.fromkeys(old.input) if n in constants],
    )
    m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = m.ir_version, {"": opset}
    try:
        onnx.checker.check_node(old, context)
        onnx.shape_inference.infer_shapes(m, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError) as e:
        raise LookupError(str(e)) from None
