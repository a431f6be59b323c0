"""TensorFlow functions that models of Keras 2 call (TFOpLambda), mapped to equivalent operations of Keras 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..held import HeldTensor
from ..reading import KerasReading, reads
from .moves import picked
from .operation import Operation, applied, reads_operation

X = {"x": "x"}
FEATURES = {"features": "x"}
INPUT = {"input": "x"}
BOTH = {"x": "x1", "y": "x2"}
REDUCED = {"input_tensor": "x", "axis": "axis", "keepdims": "keepdims"}
ELEMENTS = (
    "exp",
    "log",
    "sqrt",
    "square",
    "abs",
    "negative",
    "rsqrt",
    "tanh",
    "sigmoid",
    "softplus",
    "erf",
    "sin",
    "cos",
)
# function → the operation, and its names of the arguments, in order
FUNCTIONS: dict[str, tuple[str, dict[str, str]]] = {
    **{f"math.{name}": (name.capitalize(), X) for name in (*ELEMENTS, "floor", "ceil", "sign", "round", "reciprocal")},
    **{f"math.reduce_{name}": (name.capitalize(), REDUCED) for name in ("mean", "sum", "max", "min", "prod")},
    "math.reduce_logsumexp": ("Logsumexp", REDUCED),
    "math.reduce_variance": ("Var", REDUCED),
    "math.reduce_std": ("Std", REDUCED),
    "math.add": ("Add", BOTH),
    "__operators__.add": ("Add", BOTH),
    "math.subtract": ("Subtract", BOTH),
    "math.multiply": ("Multiply", BOTH),
    "math.divide": ("TrueDivide", BOTH),
    "math.truediv": ("TrueDivide", BOTH),
    "math.maximum": ("Maximum", BOTH),
    "math.minimum": ("Minimum", BOTH),
    "math.pow": ("Power", BOTH),
    "math.squared_difference": ("SquaredDifference", BOTH),
    "math.greater": ("Greater", BOTH),
    "math.greater_equal": ("GreaterEqual", BOTH),
    "math.less": ("Less", BOTH),
    "math.less_equal": ("LessEqual", BOTH),
    "math.equal": ("Equal", BOTH),
    "math.not_equal": ("NotEqual", BOTH),
    "math.logical_and": ("LogicalAnd", BOTH),
    "math.logical_or": ("LogicalOr", BOTH),
    "math.logical_not": ("LogicalNot", X),
    "math.argmax": ("Argmax", {"input": "x", "axis": "axis"}),
    "math.l2_normalize": ("L2Normalize", {"x": "x", "axis": "axis", "epsilon": "epsilon"}),
    "linalg.l2_normalize": ("L2Normalize", {"x": "x", "axis": "axis", "epsilon": "epsilon"}),
    "nn.relu": ("Relu", FEATURES),
    "nn.relu6": ("Relu6", FEATURES),
    "nn.elu": ("Elu", FEATURES),
    "nn.selu": ("Selu", FEATURES),
    "nn.silu": ("Silu", FEATURES),
    "nn.swish": ("Silu", FEATURES),
    "nn.softplus": ("Softplus", FEATURES),
    "nn.softsign": ("Softsign", FEATURES),
    "nn.sigmoid": ("Sigmoid", X),
    "nn.tanh": ("Tanh", X),
    "nn.gelu": ("TensorFlowGelu", {"features": "x", "approximate": "approximate"}),
    "nn.leaky_relu": ("LeakyRelu", {"features": "x", "alpha": "negative_slope"}),
    "nn.softmax": ("Softmax", {"logits": "x", "axis": "axis"}),
    "nn.log_softmax": ("LogSoftmax", {"logits": "x", "axis": "axis"}),
    "nn.depth_to_space": ("DepthToSpace", {"input": "x", "block_size": "block"}),
    "nn.space_to_depth": ("SpaceToDepth", {"input": "x", "block_size": "block"}),
    "linalg.matmul": ("TensorFlowMatmul", {k: k for k in ("a", "b", "transpose_a", "transpose_b")}),
    "image.resize": ("Resize", {"images": "images", "size": "size", "method": "interpolation"}),
    "concat": ("Concatenate", {"values": "xs", "axis": "axis"}),
    "stack": ("Stack", {"values": "x", "axis": "axis"}),
    "unstack": ("Unstack", {"value": "x", "num": "num", "axis": "axis"}),
    "split": ("TensorFlowSplit", {"value": "x", "num_or_size_splits": "sizes", "axis": "axis"}),
    "reshape": ("Reshape", {"tensor": "x", "shape": "newshape"}),
    "transpose": ("Transpose", {"a": "x", "perm": "axes"}),
    "compat.v1.transpose": ("Transpose", {"a": "x", "perm": "axes"}),
    "expand_dims": ("ExpandDims", {"input": "x", "axis": "axis"}),
    "squeeze": ("Squeeze", {"input": "x", "axis": "axis"}),
    "compat.v1.squeeze": ("Squeeze", {"input": "x", "axis": "axis"}),
    "tile": ("Tile", {"input": "x", "multiples": "repeats"}),
    "reverse": ("Flip", {"tensor": "x", "axis": "axis"}),
    "pad": ("Pad", {"tensor": "x", "paddings": "pad_width", "constant_values": "constant_values"}),
    "gather": ("Take", {"params": "x", "indices": "indices", "axis": "axis"}),
    "clip_by_value": ("Clip", {"t": "x", "clip_value_min": "x_min", "clip_value_max": "x_max"}),
    "cast": ("Cast", {"x": "x", "dtype": "dtype"}),
    "where": ("Where", {"condition": "condition", "x": "x1", "y": "x2"}),
    "identity": ("Identity", {"input": "variable"}),
    "stop_gradient": ("Identity", {"input": "variable"}),
    "zeros_like": ("ZerosLike", INPUT),
    "ones_like": ("OnesLike", INPUT),
}
# Arguments without effect at these values.
NEUTRAL: dict[str, Any] = {"conjugate": False, "name": None, "mode": "CONSTANT", "batch_dims": 0, "data_format": "NHWC"}
NEUTRAL |= {"preserve_aspect_ratio": False, "antialias": False, "output_type": "int32"}
FRACTIONS = ("Mean", "TrueDivide")  # operations whose integer results differ from TensorFlow's


@reads("TFOpLambda", arguments=True)
def function(r: KerasReading) -> Any:
    name = r.layer.option("function")
    if name not in FUNCTIONS:
        raise r.refuse(f"calls tf.{name!s:.60}, which is not supported")
    type, names = FUNCTIONS[name]
    call = {next(iter(names)): r.args[0], **r.kwargs}
    extra = [k for k, v in call.items() if k not in names and k != "name" and v is not None and v != NEUTRAL.get(k)]
    if extra:
        raise r.refuse(f"calls tf.{name} with {', '.join(map(repr, extra))}, which is not supported")
    arguments = {names[k]: v for k, v in call.items() if k in names}
    if type in FRACTIONS and any(isinstance(v, HeldTensor) and not v.dtype.is_float for v in arguments.values()):
        raise r.refuse(f"calls tf.{name} with integers, which is not supported")
    if type == "Take" and arguments.get("axis") is None:
        arguments["axis"] = 0
    if type == "Argmax" and r.kwargs.get("output_type") != "int32":
        return applied(r, "Cast", {"x": applied(r, type, {"axis": 0, **arguments}), "dtype": "int64"})
    return applied(r, type, arguments)


@reads("SlicingOpLambda", arguments=True)
def slicing(r: KerasReading) -> Any:
    key = r.kwargs.get("slice_spec")
    if r.layer.option("function") != "__operators__.getitem" or set(r.kwargs) - {"slice_spec", "name", "var"}:
        raise r.refuse("picks elements in an unknown way")
    parts = [_part(r, k) for k in (key if isinstance(key, list) else [key])]
    return r.of(picked(Operation(r, "GetItem", {}), r.input(), parts))


def _part(r: KerasReading, k: Any) -> Any:
    if isinstance(k, dict) and set(k) == {"start", "stop", "step"}:
        return slice(k["start"], k["stop"], k["step"])
    if isinstance(k, dict):
        if k.get("type") != "Ellipsis" and k.get("class_name") != "__ellipsis__":
            raise r.refuse(f"indexes with {k!r:.60}, which is not supported")
        return Ellipsis
    return k


@reads_operation("TensorFlowMatmul")
def matmul(o: Operation) -> HeldTensor:
    a, b = o.floats("a").tensor(), o.floats("b").tensor()
    if min(a.rank, b.rank) < 2:
        raise o.refuse("multiplies vectors, which is not supported")
    a, b = (_turned(o, t) if o.get(f"transpose_{n}", False) else t for t, n in ((a, "a"), (b, "b")))
    return o.of(o.net.matmul(a, b))


def _turned(o: Operation, t: Any) -> Any:
    return o.net.transpose(t, (*range(t.rank - 2), t.rank - 1, t.rank - 2))


@reads_operation("TensorFlowSplit")
def split(o: Operation) -> list[HeldTensor]:
    x, sizes = o.held("x"), o.integers("sizes", low=1)
    parts = sizes[0] if isinstance(o.get("sizes"), int) else sizes
    return [o.of(t) for t in o.net.split(x.tensor(), parts, o.axis("axis", x.rank, 0))]


@reads_operation("TensorFlowGelu")
def gelu(o: Operation) -> HeldTensor:
    tanh = bool(o.get("approximate", False))
    return o.floats("x").mapped(lambda t: o.net.gelu_tanh(t) if tanh else o.net.gelu(t))


@reads_operation("L2Normalize")
def l2_normalize(o: Operation) -> HeldTensor:
    """Divides by the root of the sum of squares, or of epsilon if that is larger."""
    x, least = o.floats("x"), float(np.sqrt(o.number("epsilon", 1e-12)))
    axes = tuple(x.axis(a) for a in o.axes("axis", x.rank))
    return x.mapped(lambda t: o.net.l2_normalize(t, axes, epsilon=least))


@reads_operation("DepthToSpace", "SpaceToDepth")
def blocks(o: Operation) -> HeldTensor:
    x, (block,) = o.floats("x"), o.integers("block", low=1)
    if x.rank != 4:
        raise o.refuse(f"needs an image, got {list(x.shape)}")
    op = o.net.depth_to_space if o.type == "DepthToSpace" else o.net.space_to_depth
    return HeldTensor(o.net, first=op(x.image(), block=block))
