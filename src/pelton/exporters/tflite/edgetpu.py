"""Which operators of a model Google's Edge TPU takes, by its published list; the others run on the CPU.

The source is https://coral.ai/docs/edgetpu/models-intro/#supported-operations (compiler 16). The list is necessary, not
sufficient: the compiler maps no operator behind the first one that it rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pelton.ir.types import I8, I32, U8

from .tensors import TFLiteOperator, TFLiteTensor

LISTED = frozenset(
    (
        "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D EXPAND_DIMS FULLY_CONNECTED L2_NORMALIZATION"
        " LOGISTIC LSTM MAXIMUM MAX_POOL_2D MEAN MINIMUM MUL PACK PAD PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6"
        " RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RSQRT SLICE SOFTMAX SPACE_TO_DEPTH SPLIT"
        " SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TRANSPOSE TRANSPOSE_CONV"
    ).split()
)
SPACE = 3  # innermost axes that may be larger than 1
MOST_CLASSES = 16000  # elements of a softmax


@dataclass(frozen=True)
class Rejection:
    """An operator that is not in the list, or not as it is used: its layer and the reason."""

    operator: str
    layer: str
    reason: str

    def facts(self) -> dict[str, str]:
        return dict(operator=self.operator, layer=self.layer, reason=self.reason)


def rejections(operators: Sequence[TFLiteOperator]) -> list[Rejection]:
    """Returns the operators that an Edge TPU leaves to the CPU, in order."""
    found = ((op, _reason(op)) for op in operators)
    return [Rejection(op.operator, op.layer, reason) for op, reason in found if reason]


def _reason(op: TFLiteOperator) -> str:
    if op.operator not in LISTED:
        return "it is not in the list"
    moving = [t for t in (*op.inputs, *op.outputs) if t is not None and t.data is None]
    if op.operator == "QUANTIZE" and op.inputs[0] is not None and op.inputs[0].dtype not in (I8, U8):
        return "it reads floats"
    for t in (*moving, *(t for t in op.inputs if t is not None and t.data is not None)):
        if t.dtype not in (I8, U8) and not (t.data is not None and t.dtype is I32):
            return f"{t.name!r} is {t.dtype.value}, not a quantized byte"
    for t in moving:
        if any(not isinstance(d, int) for d in t.shape):
            return f"{t.name!r} has dynamic sizes"
        if any(d != 1 for d in t.shape[:-SPACE]):
            return f"{t.name!r} has the shape {list(t.shape)}: only the three innermost axes may be larger than 1"
    return _limit(op)


def _limit(op: TFLiteOperator) -> str:
    """Returns the reason of a limit of one operator."""
    x, options = op.inputs[0], op.options
    match op.operator:
        case "AVERAGE_POOL_2D" | "MAX_POOL_2D" | "CONCATENATION" if options.get("activation"):
            return "it has a fused activation"
        case "CONCATENATION" if any(t is not None and t.data is not None for t in op.inputs):
            return "it joins a constant"
        case "CONV_2D" if options["dilation_h"] != options["dilation_w"]:
            return "it has different dilations of height and width"
        case "CONV_2D" if x is not None and op.inputs[1] is not None and x.shape[3] != op.inputs[1].shape[3]:
            return "it has groups"
        case "DEPTHWISE_CONV_2D" if options["dilation_h"] > 1 or options["dilation_w"] > 1:
            return "it is dilated"
        case "FULLY_CONNECTED" if any(d != 1 for d in op.outputs[0].shape[:-1]):
            return "its output has more than one axis"
        case "MEAN" | "PAD" if not _only_space(op):
            return "it concerns other axes than height and width"
        case "SUM" | "REDUCE_MAX" | "REDUCE_MIN" if 0 in _numbers(op.inputs[1]):
            return "it reduces the batch"
        case "PRELU" if op.inputs[1] is not None and any(d != 1 for d in op.inputs[1].shape[:-1]):
            return "its slopes vary within a channel"
        case "SOFTMAX" if x is not None and (any(d != 1 for d in x.shape[:-1]) or _classes(x) > MOST_CLASSES):
            return "it has more than one row, or more than 16,000 elements"
        case "STRIDED_SLICE" if any(s != 1 for s in _numbers(op.inputs[3])):
            return "it has steps other than 1"
    return ""


def _classes(x: TFLiteTensor) -> int:
    return int(x.shape[-1]) if x.shape else 1


def _numbers(t: TFLiteTensor | None) -> list[int]:
    return [] if t is None or t.data is None else t.data.reshape(-1).tolist()


def _only_space(op: TFLiteOperator) -> bool:
    """True if a mean or a pad concerns axes 1 and 2 alone."""
    numbers: Any = op.inputs[1].data if op.inputs[1] is not None else None
    if numbers is None:
        return False
    if op.operator == "MEAN":
        return {*numbers.reshape(-1).tolist()} <= {1, 2}
    return not any(any(pair) for axis, pair in enumerate(numbers.tolist()) if axis not in (1, 2))
