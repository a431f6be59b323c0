"""Reference outputs of a random graph's nodes: by the onnx package's reference, else by the importer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pelton.errors import Error
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.ops.foreign import bounded

from .operators_quantized import MICROSOFT, ML
from .proposals import CODES

OPSETS, IR = {ML: 3, MICROSOFT: 1}, 10
RECURRENT = ("LSTM", "GRU", "RNN")
LARGEST = 4096  # elements of a value
# relative changes of every value, to learn how much rounding may matter
STEPS = {"float64": 2.0**-46, "float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}


def is_sane(a: np.ndarray) -> bool:
    if a.size > LARGEST or a.dtype.name not in CODES:
        return False
    return a.dtype.name not in STEPS or bool(np.all(np.abs(a.astype(np.float64)) < 1e4))


def is_near(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether rounding leaves a value what it is: the same integers, about the same floats."""
    if a.dtype.name not in STEPS:
        return bool((a == b).all())
    wide = a.astype(np.float64)
    return not a.size or np.abs(wide - b.astype(np.float64)).max() <= 0.03 * np.abs(wide).max()


def build_model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    return helper.make_model(
        graph, ir_version=IR, opset_imports=[helper.make_opsetid(d, v) for d, v in {"": opset, **OPSETS}.items()]
    )


def by_importer(node: onnx.NodeProto) -> bool:
    """Whether the importer's meaning of a node is its reference.

    Where the onnx package has none, ignores attributes, sums the wrong channels, mixes up the pads of two axes, or
    picks a neighbouring pixel where a coordinate is rounded.
    """
    attrs = {a.name: a.ints for a in node.attribute}
    swaps = (
        node.op_type == "MaxPool"
        and len(pads := attrs.get("pads", ())) == 4
        and pads[1] != pads[2]
        and set(attrs.get("strides", ())) <= {1}
    )
    return (
        node.domain == MICROSOFT
        or node.op_type in RECURRENT
        and len(attrs) > 1
        or node.op_type == "LRN"
        or swaps
        or (any(a.s == b"half_pixel_symmetric" for a in node.attribute))
    )


def is_slow(node: onnx.NodeProto) -> bool:
    """Whether the onnx package's reference expands a function again in every run, half a second in nested loops."""
    return not node.domain and onnx.defs.get_schema(node.op_type).has_context_dependent_function


def reference(
    node: onnx.NodeProto, constants: Sequence[str], opset: int
) -> Callable[[dict[str, np.ndarray]], list[np.ndarray] | None]:
    """A function of feeds that gives one node's outputs, or None where the reference fails.

    By the onnx package's reference (with a corrected Erf), or by the importer's meaning of the operator, in float64.
    """

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        held = [numpy_helper.from_array(np.asarray(a), n) for n, a in feeds.items() if n in constants]
        inputs = {n: a for n, a in feeds.items() if n not in constants}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, CODES[a.dtype.name], a.shape) for n, a in inputs.items()],
            [onnx.ValueInfoProto(name=o) for o in node.output],
            held,
        )
        m = build_model(graph, opset)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if by_importer(node):
                    meant = evaluate(importer.load(m).graph, inputs)
                    return [meant[o] for o in node.output]
                inferred = onnx.shape_inference.infer_shapes(m, check_type=True, strict_mode=True)
                found = [np.asarray(a) for a in bounded(m).run(None, inputs)]
        except (
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            AssertionError,
            Error,
        ):
            return None
        declared = [v.type.tensor_type.elem_type for v in inferred.graph.output]
        return None if any(CODES.get(a.dtype.name) != d for a, d in zip(found, declared)) else found

    return run
