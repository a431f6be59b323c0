"""Versions of operators: the first one of TFLite's that has what an operator uses.

The source is tensorflow/lite/tools/versioning/op_version.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pelton.ir.types import BOOL, F32, I8, I32, I64, DType

# operators of integers that came with version 2
SECOND = set(
    "ADD SUB MUL AVERAGE_POOL_2D MAX_POOL_2D CONCATENATION SOFTMAX LOGISTIC TANH PAD PADV2 TRANSPOSE MEAN SUM SLICE"
    " STRIDED_SLICE SPACE_TO_DEPTH DEPTH_TO_SPACE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR DEQUANTIZE LOG_SOFTMAX"
    " TRANSPOSE_CONV MAXIMUM MINIMUM RELU RELU6 LEAKY_RELU PACK SPLIT GATHER TILE REDUCE_MAX REDUCE_MIN ARG_MAX ARG_MIN"
    " L2_NORMALIZATION EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL BATCH_MATMUL TOPK_V2 MIRROR_PAD".split()
)
HALF_PIXELS = 3  # version of RESIZE_*


def version_of(operator: str, types: Sequence[DType | None], options: Mapping[str, Any]) -> int:
    """Returns the version of an operator. types: of its inputs, None for absent ones."""
    integers = I8 in types
    match operator:
        case "CONV_2D":
            return 3 if integers else 1
        case "DEPTHWISE_CONV_2D":
            dilated = options["dilation_w"] > 1 or options["dilation_h"] > 1
            return 3 if integers else 1 + dilated
        case "FULLY_CONNECTED":
            if types[2:] in ([], [None]):
                return 6
            return 5 if options["keep_num_dims"] else 1 + 3 * integers
        case "TRANSPOSE_CONV":
            return 3 if len(types) > 3 else 1 + integers
        case "RESIZE_BILINEAR" | "RESIZE_NEAREST_NEIGHBOR":
            return HALF_PIXELS if options["half_pixel"] or options["align_corners"] else 1 + integers
        case "QUANTIZE":
            return 1 if types[0] is F32 else 2
        case "GELU" | "SELECT_V2" | "BROADCAST_TO" if integers or operator == "BROADCAST_TO":
            return 2
        case "GATHER":
            return 3 if types[0] is BOOL else 1 + integers
        case "EQUAL" | "NOT_EQUAL" if BOOL in types:
            return 1 + integers
        case "ARG_MAX" | "ARG_MIN":
            return 1 + integers
        case "FLOOR_DIV" | "FLOOR_MOD" if types[0] not in (I32, I64):
            return 2
    return 2 if integers and operator in SECOND else 1
