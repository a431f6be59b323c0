"""What the tests of the ONNX importer's readers read: one-node models, as data."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper
from onnx_models import MICROSOFT


def i64(*numbers) -> np.ndarray:
    return np.array(numbers, np.int64)


def f32(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


RNG = np.random.default_rng(5)


def weights(*shape) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def strings(*words) -> np.ndarray:
    return np.array(words, object)


TRAINING, ML = {"domain": "ai.onnx.preview.training"}, {"domain": "ai.onnx.ml"}
# two trees: x₀ ≤ 0.5 ? (x₁ > 0.4 ? leaf : leaf) : leaf, and x₂ ≤ 0.3 ? leaf : leaf
TREES = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_values": [0.5, 0.4, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", *["LEAF"] * 3, "BRANCH_LEQ", *["LEAF"] * 2],
    "nodes_missing_value_tracks_true": [0] * 8,
}
HELD = {
    "treeids": [0, 0, 0, 1, 1],
    "nodeids": [2, 3, 4, 1, 2],
    "ids": [0, 1, 2, 1, 0],
    "weights": [0.5, 1.5, -1.0, 2.0, 0.25],
}
IMAGE, VECTOR = "f32[2, 6, 7, 8]", "f32[2, 3, 5]"
UNARY = (
    "Abs",
    "Acos",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "IsNaN",
)
BINARY = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Equal",
    "PRelu",
    "Max",
    "Min",
    "Sum",
    "Mean",
    "Pow",
)

# (op, operands…, attributes and opset): operands that are types are inputs, arrays are constants
CASES = [
    *((op, VECTOR, {}) for op in UNARY),
    *((op, VECTOR, "f32[3, 1]", {}) for op in BINARY),
    *((op, "bool[3, 4]", "bool[4]", {}) for op in ("And", "Or", "Xor")),
    *((op, "i32[3, 4]", "i32[4]", {"opset": 18}) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *((op, "f32[3]", "f32[3]", "f32[1]", {}) for op in ("Max", "Min", "Sum", "Mean")),
    ("Mean", "f32[3]", {}),
    ("Sum", "f32[3]", {"opset": 8}),
    ("Acosh", "f64[3]", {}),
    ("BitwiseNot", "u8[5]", {"opset": 18}),
    ("Not", "bool[5]", {}),
    ("HardSwish", VECTOR, {}),
    ("Mish", VECTOR, {"opset": 18}),
    ("Celu", VECTOR, {"alpha": 2.0}),
    ("Elu", VECTOR, {"alpha": 0.5}),
    ("Selu", VECTOR, {}),
    ("LeakyRelu", VECTOR, {"alpha": 0.3}),
    ("HardSigmoid", VECTOR, {}),
    ("HardSigmoid", VECTOR, {"alpha": 0.5, "beta": 0.1}),
    ("ThresholdedRelu", VECTOR, {"alpha": 0.4}),
    ("Swish", VECTOR, {"alpha": 1.5, "opset": 24}),
    ("Gelu", VECTOR, {"opset": 20}),
    ("Gelu", VECTOR, {"approximate": "tanh", "opset": 20}),
    ("Mod", "i32[3, 4]", np.int32(3), {}),
    ("Mod", VECTOR, f32(0.25), {"fmod": 1}),
    ("Div", "i32[5]", np.int32(2), {}),
    ("Pow", "i64[5]", i64(3), {}),
    ("Pow", VECTOR, i64(2), {}),
    ("BitShift", "u8[5]", np.uint8(2), {"direction": "LEFT"}),
    ("BitShift", "u8[5]", np.uint8(1), {"direction": "RIGHT"}),
    ("BitShift", np.array([-5, 5], np.int8), np.array([9, 9], np.int8), {"direction": "RIGHT", "opset": 28}),
    ("IsInf", "f32[5]", {}),
    ("IsInf", f32(1, math.inf, -math.inf), {"detect_negative": 0}),
    ("Where", "bool[3, 1]", "f32[4]", "f32[3, 4]", {}),
    ("Equal", strings("a", "b"), strings("a", "c"), {"opset": 19}),
    ("Equal", "bool[3]", "bool[3]", {}),
    ("Clip", VECTOR, np.float32(0.2), np.float32(0.5), {}),
    ("Clip", VECTOR, None, np.float32(0.5), {}),
    ("Clip", VECTOR, np.float32(0.5), {}),
    ("Clip", VECTOR, {}),
    ("Clip", VECTOR, {"min": 0.2, "max": 0.5, "opset": 9}),
    ("Clip", VECTOR, {"min": 0.3, "opset": 7}),
    ("Clip", "i32[9]", np.int32(1), np.int32(2), {}),
    ("Cast", VECTOR, {"to": TensorProto.INT32}),
    ("Cast", "i64[3]", {"to": TensorProto.FLOAT16}),
    ("Cast", "f32[3]", {"to": TensorProto.BOOL}),
    ("Cast", "f32[3]", {"to": TensorProto.FLOAT8E4M3FN, "opset": 19}),
    ("Cast", "f16[3]", {"to": TensorProto.FLOAT8E5M2FNUZ, "saturate": 0, "opset": 19}),
    ("Cast", "f32[3]", {"to": TensorProto.FLOAT8E8M0, "round_mode": "down", "opset": 24}),
    ("Cast", "f32[3]", {"to": TensorProto.FLOAT4E2M1, "opset": 24}),
    ("Cast", "i32[7]", {"to": TensorProto.UINT4, "opset": 21}),
    ("BitCast", "f32[3]", {"to": TensorProto.INT32, "opset": 26}),
    ("Cast", strings("1.5", "2"), {"to": TensorProto.FLOAT}),
    ("CastLike", VECTOR, "i32[1]", {}),
    ("Identity", VECTOR, {}),
    ("Dropout", VECTOR, {}),
    ("Dropout", VECTOR, {"ratio": 0.5, "opset": 7}),
    ("Dropout", VECTOR, {"outputs": 2}),
    # products
    ("MatMul", "f32[2, 3, 4]", "f32[4, 5]", {}),
    ("MatMul", "f32[4]", weights(4, 5), {}),
    ("MatMul", "f32[2, 3, 4]", weights(4), {}),
    ("MatMul", "f32[4]", weights(4), {}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[5]", {}),
    ("Gemm", "f32[4, 3]", weights(5, 4), weights(3, 1), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", {}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[3, 5]", {"beta": 0.0, "opset": 9}),
    ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", np.uint8(2), np.uint8(3), {}),
    ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", {}),
    *(
        ("Einsum", *operands, {"equation": equation})
        for equation, *operands in (
            ("ij,jk->ik", "f32[3, 4]", "f32[4, 5]"),
            ("bij,bjk->bik", "f32[2, 3, 4]", "f32[2, 4, 5]"),
            ("bhid,bhjd->bhij", "f32[2, 3, 4, 5]", "f32[2, 3, 6, 5]"),
            ("ij->ji", "f32[3, 4]"),
            ("ij->i", "f32[3, 4]"),
            ("ij->", "f32[3, 4]"),
            ("i,j->ij", "f32[3]", "f32[4]"),
            ("i,i->", "f32[3]", "f32[3]"),
            ("ij,ij->ij", "f32[3, 4]", "f32[3, 4]"),
            ("...ij,...jk->...ik", "f32[2, 3, 4]", "f32[2, 4, 5]"),
            ("bij, bjk", "f32[2, 3, 4]", "f32[2, 4, 5]"),
            ("ij,jk,kl->il", "f32[2, 3]", "f32[3, 4]", "f32[4, 2]"),
            ("ijk,jil->kl", "f32[3, 4, 2]", "f32[4, 3, 5]"),
            ("ii->i", "f32[3, 3]"),
            ("ij,k->i", "f32[3, 4]", "f32[2]"),
        )
    ),
    # windows
    ("Conv", IMAGE, weights(4, 6, 3, 3), weights(4), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("Conv", IMAGE, weights(4, 6, 1, 1), {}),
    ("Conv", "f32[2, 0, 5, 4]", weights(3, 0, 2, 1), weights(3), {"strides": [2, 1]}),
    ("Conv", IMAGE, weights(6, 2, 3, 3), {"group": 3, "dilations": [2, 1]}),
    ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2]}),
    ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_LOWER", "kernel_shape": [4]}),
    ("Conv", IMAGE, weights(4, 6, 3, 3), {"auto_pad": "VALID"}),
    ("Conv", "f32[1, 2, 4, 5, 6]", weights(3, 2, 2, 3, 2), {}),
    (
        "ConvInteger",
        "u8[1, 2, 5, 5]",
        RNG.integers(0, 9, (3, 2, 3, 3)).astype(np.uint8),
        np.uint8(2),
        np.uint8(1),
        {"pads": [1, 1, 1, 1]},
    ),
    (
        "ConvTranspose",
        IMAGE,
        weights(6, 4, 3, 3),
        weights(4),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"output_shape": [10, 8], "strides": [3, 2]}),
    ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("ConvTranspose", "f32[1, 1, 5, 3]", weights(1, 2, 2, 2), {"dilations": [2, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1, "dilations": [2, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "opset": 7}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1, "strides": [2, 2]}),
    ("AveragePool", "f32[1, 3, 9]", {"kernel_shape": [3], "auto_pad": "SAME_UPPER", "strides": [2], "opset": 9}),
    ("LpPool", IMAGE, {"kernel_shape": [2, 3], "p": 2, "pads": [1, 1, 0, 0]}),
    ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 3}),
    ("GlobalAveragePool", IMAGE, {}),
    ("GlobalMaxPool", IMAGE, {}),
    # norms
    ("BatchNormalization", IMAGE, weights(6), weights(6), weights(6), np.abs(weights(6)), {"epsilon": 1e-3}),
    ("InstanceNormalization", IMAGE, weights(6), weights(6), {"epsilon": 1e-3}),
    ("GroupNormalization", IMAGE, weights(6), weights(6), {"num_groups": 3, "opset": 21}),
    ("LayerNormalization", VECTOR, weights(5), weights(5), {}),
    ("LayerNormalization", VECTOR, weights(3, 5), {"axis": 1, "epsilon": 1e-3}),
    ("LayerNormalization", VECTOR, weights(5), weights(5), {"outputs": 3}),
    ("RMSNormalization", VECTOR, weights(5), {"opset": 23}),
    ("LpNormalization", VECTOR, {"p": 1, "axis": 1}),
    ("LpNormalization", VECTOR, {"p": 2}),
    ("Softmax", IMAGE, {}),
    ("Softmax", IMAGE, {"axis": 1}),
    ("LogSoftmax", IMAGE, {"axis": -2}),
    ("Hardmax", IMAGE, {"axis": 1}),
    # reductions
    *(
        (op, IMAGE, {"axes": [1, -1], "keepdims": k})
        for op in (
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSumSquare",
        )
        for k in (0, 1)
    ),
    ("ReduceSum", IMAGE, i64(2, 0), {"keepdims": 0}),
    ("ReduceSum", IMAGE, {}),
    ("ReduceSum", IMAGE, i64(), {"noop_with_empty_axes": 1}),
    ("ReduceSum", IMAGE, {"axes": [1], "opset": 11}),
    ("ReduceMax", IMAGE, i64(1), {"opset": 18}),
    ("ReduceMean", "f32[]", {}),
    ("ReduceMax", "f32[2, 0]", i64(1), {"opset": 20}),
    ("ArgMax", VECTOR, {"axis": 1}),
    ("ArgMin", VECTOR, {"axis": -1, "keepdims": 0}),
    ("ArgMax", "i32[3, 7]", {"axis": 1, "select_last_index": 1}),
    ("CumSum", VECTOR, np.int32(1), {"exclusive": 1, "reverse": 1}),
    ("CumSum", VECTOR, np.int64(-1), {}),
    ("CumProd", VECTOR, np.int64(-1), {"exclusive": 1, "opset": 26}),
    ("TopK", VECTOR, i64(2), {"outputs": 2}),
    ("TopK", VECTOR, i64(2), {"axis": 1, "largest": 0, "outputs": 2}),
    ("TopK", VECTOR, i64(3), {"opset": 10, "outputs": 2}),
    # shapes
    ("Reshape", VECTOR, i64(0, -1), {}),
    ("Reshape", "f32[0, 3]", i64(3, 0), {"allowzero": 1}),
    ("Flatten", IMAGE, {"axis": 2}),
    ("Flatten", IMAGE, {"axis": -1}),
    ("Squeeze", "f32[1, 3, 1]", i64(-1), {}),
    ("Squeeze", "f32[1, 3, 1]", {}),
    ("Squeeze", "f32[1, 3, 1]", {"axes": [0], "opset": 11}),
    ("Unsqueeze", VECTOR, i64(0, -1), {}),
    ("Unsqueeze", VECTOR, {"axes": [0, 2], "opset": 9}),
    ("Transpose", VECTOR, {}),
    ("Transpose", VECTOR, {"perm": [1, 2, 0]}),
    ("Expand", "f32[3, 1]", i64(2, 1, 4), {}),
    ("Tile", VECTOR, i64(1, 2, 3), {}),
    ("Concat", VECTOR, "f32[2, 1, 5]", {"axis": 1}),
    ("Concat", VECTOR, {"axis": -1}),
    ("Split", VECTOR, i64(2, 3), {"axis": 2, "outputs": 2}),
    ("Split", IMAGE, {"axis": 1, "outputs": 3}),
    ("Split", VECTOR, {"axis": 2, "split": [1, 4], "outputs": 2, "opset": 11}),
    ("Split", VECTOR, {"axis": 2, "num_outputs": 2, "outputs": 2, "opset": 18}),
    ("Slice", IMAGE, i64(1, -1), i64(100, -100), i64(1, -1), i64(2, -3), {}),
    ("Slice", IMAGE, i64(0, 1), i64(1, 3), {}),
    ("Slice", IMAGE, {"starts": [1, 2], "ends": [3, -1], "axes": [1, 2], "opset": 9}),
    ("Slice", VECTOR, i64(3), i64(1), i64(2), {}),
    ("Slice", VECTOR, i64(0), i64(5), i64(2), {}),
    ("Pad", VECTOR, i64(0, 1, 0, 0, 0, 2), np.float32(0.5), {}),
    ("Pad", VECTOR, i64(0, 0, 2, 0, 0, 1), {"mode": "reflect"}),
    ("Pad", VECTOR, i64(0, 1, 0, 0, 1, 0), {"mode": "edge"}),
    ("Pad", VECTOR, i64(1, 2), None, i64(1), {"opset": 18}),
    ("Pad", VECTOR, i64(1, 1), None, i64(-1), {"opset": 19, "mode": "wrap"}),
    ("Trilu", "f32[3, 4]", np.int64(1), {}),
    ("Trilu", "f32[2, 3, 3]", {"upper": 0}),
    *(("Trilu", "f32[2, 3, 4]", "i64[]", {"upper": upper}) for upper in (0, 1)),
    ("Det", "f32[2, 3, 3]", {}),
    ("EyeLike", "f32[3, 4]", {"k": 1}),
    ("EyeLike", "f32[3, 4]", {"dtype": TensorProto.INT32}),
    ("Shape", IMAGE, {}),
    ("Shape", IMAGE, {"start": 1, "end": -1}),
    ("Size", IMAGE, {}),
    ("Range", np.int64(3), np.int64(12), np.int64(4), {}),
    ("Range", np.float32(1), np.float32(0), np.float32(-0.25), {}),
    ("ConstantOfShape", i64(2, 3), {}),
    ("ConstantOfShape", i64(2, 3), {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])}),
    ("ConstantOfShape", i64(1100, 1000), {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])}),
    *(
        ("Constant", {name: value})
        for name, value in (
            ("value_float", 1.5),
            ("value_floats", [1.5, 2.0]),
            ("value_int", 3),
            ("value_ints", [1, 2]),
            ("value_string", "a"),
            ("value_strings", ["a", "b"]),
            ("value", helper.make_tensor("v", TensorProto.FLOAT, [2], [1, 2])),
        )
    ),
    # indices
    ("Gather", VECTOR, i64(2, -1), {"axis": 1}),
    ("Gather", VECTOR, "i64[2, 2]", {"axis": -1}),
    ("Gather", VECTOR, np.int64(1), {}),
    ("GatherElements", VECTOR, "i64[2, 3, 4]", {"axis": 2}),
    ("GatherND", VECTOR, np.array([[0, 1], [1, 2]]), {}),
    ("GatherND", VECTOR, np.array([[1], [2]]), {"batch_dims": 1}),
    ("ScatterElements", VECTOR, np.array([[[0, -1]]]), "f32[1, 1, 2]", {"axis": 2}),
    ("ScatterElements", VECTOR, np.array([[[1, 1]]]), "f32[1, 1, 2]", {"axis": 2, "reduction": "add", "opset": 16}),
    ("ScatterND", VECTOR, np.array([[1], [0]]), "f32[2, 3, 5]", {}),
    ("ScatterND", VECTOR, np.array([[0], [0]]), "f32[2, 3, 5]", {"reduction": "mul", "opset": 16}),
    ("OneHot", "i64[2, 3]", np.int64(4), f32(0.5, 2), {}),
    ("OneHot", "i32[3]", np.int32(5), i64(0, 1), {"axis": 0}),
    ("Compress", VECTOR, np.array([True, False, True]), {"axis": 1}),
    ("Compress", VECTOR, np.array([False, True]), {}),
    ("ReverseSequence", "f32[4, 3, 2]", i64(2, 4, 1), {}),
    ("ReverseSequence", "f32[3, 4]", i64(2, 4, 1), {"time_axis": 1, "batch_axis": 0}),
    ("ReverseSequence", "f32[4, 3]", "i64[3]", {}),
    ("TensorScatter", "f32[2, 3, 7, 2]", "f32[2, 3, 4, 2]", i64(3, 0), {"opset": 24}),
    ("TensorScatter", "f32[2, 7, 3]", "f32[2, 4, 3]", "i64[2]", {"opset": 24, "axis": 1, "mode": "circular"}),
    ("TensorScatter", "f32[2, 7, 3]", "f32[2, 4, 3]", {"opset": 24, "axis": 1}),
    # transforms
    *(("DFT", "f32[2, 30, 1]", {"opset": 20, "onesided": one}) for one in (0, 1)),
    *(
        ("DFT", "f32[2, 3, 97, 2]", np.int64(size), np.int64(2), {"opset": 20, "inverse": inverse})
        for inverse in (0, 1)
        for size in (97, 80, 144)
    ),
    ("DFT", "f32[2, 9, 2]", {"opset": 20, "inverse": 1, "onesided": 1}),
    ("DFT", "f32[3, 12, 5, 1]", {"opset": 17, "axis": 1}),
    *(
        ("DFT", "f32[2, 1200, 1]", np.int64(size), {"opset": 20, "onesided": one})
        for one in (0, 1)
        for size in (600, 1031, 2062)
    ),
    ("DFT", "f32[1031, 2, 2]", None, np.int64(0), {"opset": 20, "inverse": 1}),
    ("STFT", "f32[2, 100, 1]", np.int64(7), weights(20), np.int64(20), {}),
    ("STFT", "f32[1, 50, 2]", np.int64(5), None, np.int64(16), {"onesided": 0}),
    # images
    ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2}),
    ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", "f32[1, 2, 4, 6]", {"blocksize": 2}),
    ("Upsample", "f32[1, 2, 3, 3]", f32(1, 1, 2, 3), {"opset": 9}),
    ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 2, 2), {}),
    ("Resize", "f32[1, 1, 4, 4]", None, None, i64(1, 1, 6, 3), {"mode": "linear"}),
    (
        "Resize",
        "f32[1, 1, 4, 4]",
        None,
        f32(1, 1, 0.5, 2),
        {"mode": "cubic", "coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    ),
    (
        "Resize",
        "f32[1, 1, 4, 5]",
        None,
        None,
        i64(8, 8),
        {"opset": 18, "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
    ),
    ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 0.6, 0.6), {"mode": "linear", "antialias": 1, "opset": 18}),
    ("Resize", "u8[1, 1, 4, 4]", None, f32(1, 1, 0.6, 1.6), {"mode": "linear", "opset": 18}),
    (
        "Resize",
        "f32[1, 2, 4, 5]",
        f32(0.1, -0.2, 1.1, 0.6),
        None,
        i64(3, 4),
        {
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "mode": "linear",
            "axes": [2, 3],
            "extrapolation_value": 9.0,
            "opset": 18,
        },
    ),
    ("GridSample", "f32[1, 2, 4, 5]", "f32[1, 3, 2, 2]", {"mode": "cubic", "padding_mode": "reflection", "opset": 20}),
    ("GridSample", "f32[1, 2, 2, 4, 5]", "f32[1, 3, 2, 2, 3]", {"align_corners": 1, "opset": 20}),
    (
        "RoiAlign",
        "f32[2, 3, 5, 5]",
        f32(0, 1, 9, 7, 2, 2, 5, 5).reshape(2, 4),
        i64(1, 0),
        {"output_height": 2, "output_width": 3, "spatial_scale": 0.5},
    ),
    (
        "RoiAlign",
        "f32[2, 3, 5, 5]",
        f32(0, 1, 4, 3).reshape(1, 4),
        i64(1),
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2, "mode": "max"},
    ),
    ("AffineGrid", "f32[2, 2, 3]", i64(2, 3, 4, 5), {"opset": 20}),
    ("AffineGrid", "f32[2, 3, 4]", i64(2, 3, 4, 5, 6), {"align_corners": 1, "opset": 20}),
    ("CenterCropPad", "f32[4, 7, 3]", i64(7, 2), {"axes": [0, -2], "opset": 18}),
    ("Col2Im", "f32[2, 12, 12]", i64(5, 5), i64(2, 3), {"opset": 18}),
    ("Col2Im", "f32[1, 8, 8]", i64(4, 3, 5), i64(1, 2, 2), {"strides": [2, 1, 2], "opset": 18}),
    (
        "MaxUnpool",
        "f32[1, 1, 2, 2]",
        np.array([[[[5, 7], [13, 15]]]]),
        i64(1, 1, 5, 5),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    ("LpPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "p": 3, "ceil_mode": 1, "opset": 18}),
    ("DeformConv", "f32[1, 2, 4, 5]", weights(3, 2, 2, 2), "f32[1, 8, 3, 4]", {"opset": 19}),
    ("Resize", "f32[1, 1, 4, 4]", f32(), f32(1, 1, 1, 1), {"opset": 11}),
    # quantization
    ("QuantizeLinear", IMAGE, np.float32(0.01), np.uint8(3), {}),
    ("QuantizeLinear", IMAGE, np.abs(weights(6)) + 0.01, np.zeros(6, np.int8), {"axis": 1}),
    ("QuantizeLinear", IMAGE, np.float32(0.01), {}),
    ("QuantizeLinear", "f32[3, 5]", np.float32(0.01), {"output_dtype": TensorProto.FLOAT8E4M3FN, "opset": 21}),
    ("QuantizeLinear", "f32[3, 5]", np.float32(0.1), {"output_dtype": TensorProto.FLOAT4E2M1, "opset": 23}),
    ("QuantizeLinear", "f32[3, 5]", np.float32(0.01), {"precision": TensorProto.FLOAT16, "opset": 23}),
    ("DequantizeLinear", "u8[2, 3]", np.float32(0.1), np.uint8(3), {"opset": 19}),
    ("DequantizeLinear", "i32[3]", np.float32(0.1), {"opset": 19}),
    ("DequantizeLinear", "i8[2, 3]", f32(0.1, 0.2, 0.3), np.array([1, 2, 3], np.int8), {"axis": 1, "opset": 21}),
    ("DequantizeLinear", "u8[4, 3]", np.abs(weights(2, 3)), {"axis": 0, "block_size": 2, "opset": 21}),
    (
        "QLinearMatMul",
        "u8[3, 4]",
        np.float32(0.1),
        np.uint8(2),
        "u8[4, 2]",
        np.float32(0.2),
        np.uint8(1),
        np.float32(0.05),
        np.uint8(9),
        {},
    ),
    (
        "QLinearConv",
        "u8[1, 2, 5, 5]",
        np.float32(0.1),
        np.uint8(2),
        RNG.integers(0, 9, (3, 2, 3, 3)).astype(np.uint8),
        np.float32(0.2),
        np.uint8(1),
        np.float32(0.5),
        np.uint8(9),
        np.array([1, 2, 3], np.int32),
        {},
    ),
    # attention and recurrence
    *(
        ("Attention", *operands, {"opset": 23, **attrs})
        for *operands, attrs in (
            ("f32[2, 3, 4, 8]", "f32[2, 3, 6, 8]", "f32[2, 3, 6, 5]", {}),
            ("f32[2, 4, 24]", "f32[2, 6, 24]", "f32[2, 6, 24]", {"q_num_heads": 3, "kv_num_heads": 3}),
            ("f32[2, 4, 5, 8]", "f32[2, 2, 5, 8]", "f32[2, 2, 5, 8]", {"is_causal": 1, "scale": 0.5}),
            ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", "f32[3, 5]", {}),
            ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", np.tri(3, 5, -1, dtype=bool), {}),
            ("f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", {"softcap": 2.0}),
        )
    ),
    *(
        ("RotaryEmbedding", *operands, {"opset": 23, **attrs})
        for *operands, attrs in (
            ("f32[2, 3, 5, 8]", "f32[2, 5, 4]", "f32[2, 5, 4]", {}),
            ("f32[1, 3, 5, 8]", "f32[1, 5, 4]", "f32[1, 5, 4]", {"interleaved": 1}),
            ("f32[1, 2, 3, 9]", weights(7, 2), weights(7, 2), np.array([[5, 0, 2]]), {"rotary_embedding_dim": 4}),
            (
                "f32[2, 3, 12]",
                weights(7, 2),
                weights(7, 2),
                "i64[2, 3]",
                {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1},
            ),
        )
    ),
    ("LSTM", "f32[3, 2, 4]", weights(1, 20, 4), weights(1, 20, 5), {"hidden_size": 5, "outputs": 3}),
    (
        "LSTM",
        "f32[3, 2, 4]",
        weights(1, 20, 4),
        weights(1, 20, 5),
        weights(1, 40),
        np.array([3, 3], np.int32),
        weights(1, 2, 5),
        weights(1, 2, 5),
        weights(1, 15),
        {"hidden_size": 5},
    ),
    *(
        (
            op,
            "f32[3, 2, 4]",
            f"f32[1, {5 * gates}, 4]",
            f"f32[1, {5 * gates}, 5]",
            f"f32[1, {10 * gates}]",
            {"hidden_size": 5},
        )
        for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    ),
    (
        "GRU",
        "f32[3, 2, 4]",
        weights(1, 15, 4),
        weights(1, 15, 5),
        weights(1, 30),
        {"hidden_size": 5, "linear_before_reset": 1, "outputs": 2},
    ),
    ("RNN", "f32[3, 2, 4]", weights(1, 5, 4), weights(1, 5, 5), {"hidden_size": 5, "outputs": 2}),
    (
        "BatchNormalization",
        "f32[2, 3, 4]",
        weights(3),
        weights(3),
        weights(3),
        weights(3) + 2,
        {"training_mode": 1, "outputs": 3},
    ),
    # one step of training
    (
        "Adagrad",
        np.float32(0.1),
        np.int64(3),
        "f32[3]",
        "f32[2, 2]",
        "f32[3]",
        "f32[2, 2]",
        "f32[3]",
        "f32[2, 2]",
        {**TRAINING, "norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-3, "outputs": 4},
    ),
    *(
        (
            "Momentum",
            "f32[]",
            "i64[]",
            *["f32[3]"] * 3,
            {**TRAINING, "alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.02, "mode": mode, "outputs": 2},
        )
        for mode in ("standard", "nesterov")
    ),
    # ai.onnx.ml
    ("ArrayFeatureExtractor", "f32[2, 5]", i64(3, 0), ML),
    ("Binarizer", "f32[2, 5]", {**ML, "threshold": 0.5}),
    ("Scaler", "f32[2, 3]", {**ML, "offset": [0.5, 0.25, 1.0], "scale": [2.0, 3.0, 0.5]}),
    *(("Normalizer", "f32[3, 5]", {**ML, "norm": norm}) for norm in ("MAX", "L1", "L2")),
    (
        "Imputer",
        np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32),
        {**ML, "imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": math.nan},
    ),
    ("OneHotEncoder", "i64[4]", {**ML, "cats_int64s": [2, 0, 5], "zeros": 1}),
    ("FeatureVectorizer", "f32[2, 3]", "f32[2, 2]", {**ML, "inputdimensions": [3, 2]}),
    (
        "LabelEncoder",
        "i64[3, 2]",
        {**ML, "version": 2, "keys_int64s": [2, 0, 5], "values_floats": [0.5, 1.5, 2.5], "default_float": -3.0},
    ),
    (
        "LinearRegressor",
        "f32[3, 4]",
        {**ML, "coefficients": [*map(float, range(8))], "intercepts": [0.5, -0.25], "targets": 2},
    ),
    *(
        (
            "LinearClassifier",
            "f32[3, 2]",
            {
                **ML,
                "coefficients": [1.0, -2.0, 0.5, 0.25, 0.0, 1.0],
                "intercepts": [0.5, 0.0, 0.25],
                "classlabels_ints": [4, 7, 9],
                "post_transform": post,
                "outputs": 2,
            },
        )
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    ),
    *(
        (
            "SVMRegressor",
            "f32[3, 2]",
            {
                **ML,
                "kernel_type": kind,
                "kernel_params": [0.3, 0.2, 2.0],
                "support_vectors": [0.5, 1.0, 0.1, 0.2, -0.5, 1.0],
                "coefficients": [0.5, -1.0, 2.0],
                "rho": [0.25],
                "n_supports": 3,
            },
        )
        for kind in ("LINEAR", "RBF", "POLY", "SIGMOID")
    ),
    *(
        (
            "TreeEnsembleRegressor",
            "f32[9, 3]",
            {**ML, **TREES, **{f"target_{k}": v for k, v in HELD.items()}, "n_targets": 3, "aggregate_function": join},
        )
        for join in ("SUM", "AVERAGE")
    ),
    *(
        (
            "TreeEnsembleRegressor",
            "f32[9, 3]",
            {
                **ML,
                **TREES,
                **{f"target_{k}": v for k, v in HELD.items()},
                "target_ids": [0] * 5,
                "n_targets": 1,
                "aggregate_function": join,
            },
        )
        for join in ("MIN", "MAX")
    ),
    (
        "TreeEnsembleClassifier",
        "f32[9, 3]",
        {
            **ML,
            **TREES,
            **{f"class_{k}": v for k, v in HELD.items()},
            "classlabels_int64s": [3, 5, 8],
            "post_transform": "SOFTMAX",
            "outputs": 2,
        },
    ),
    (
        "TreeEnsemble",
        "f32[9, 2]",
        {
            **ML,
            "version": 5,
            "n_targets": 2,
            "tree_roots": [0, 2],
            "nodes_featureids": [0, 1, 1],
            "leaf_targetids": [0, 1, 1, 0],
            "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [3], [0, 3, 2]),
            "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, [3], [0.5, 0.4, 0.6]),
            "nodes_trueleafs": [0, 1, 1],
            "nodes_truenodeids": [1, 0, 2],
            "nodes_falseleafs": [1, 1, 1],
            "nodes_falsenodeids": [1, 3, 3],
            "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, [4], [0.5, -1.0, 2.0, 0.25]),
        },
    ),
]


# What the reference evaluator has other ideas about than the specification, or none: the last item makes the wanted
# output of the inputs, in float64.

SHAPE, PICTURE = "f32[2, 6, 4]", "f32[2, 6, 2, 2]"
SCALE, BIAS, MATRIX, KERNEL = weights(4), weights(4), weights(5, 4), weights(3, 6, 1)
FUSED = {"domain": MICROSOFT}


def softmax(x, axes=-1):
    e = np.exp(x)
    return e / e.sum(axes, keepdims=True)


def normal(x, axis=-1, epsilon=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def rms(x, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def by_kernel(x):
    return np.einsum("bci,mc->bmi", x, KERNEL[:, :, 0].astype(np.float64))


def response(x):
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return x / (1.5 + 0.1 / 3 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.6


TABLE = np.linspace(0, 1, 20, dtype=np.float32).reshape(10, 2)


def turned(x, at):
    """[batch, rows, depth], two pairs of elements as halves, from position `at` on."""
    a, b, cos, sin = x[..., :2], x[..., 2:4], TABLE[at : at + x.shape[-2]], -TABLE[at : at + x.shape[-2]]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 4:]], -1)


def replaced(x):
    y = x.copy()
    y[0, 0, 3], y[0, 0, 0] = 7, 8
    return y


BY_HAND = [
    ("Softmax", SHAPE, {"opset": 11}, lambda x: softmax(x, (1, 2))),
    ("LogSoftmax", SHAPE, {"opset": 9, "axis": 1}, lambda x: np.log(softmax(x, (1, 2)))),
    ("Hardmax", SHAPE, {"opset": 11}, lambda x: x == x.max((1, 2), keepdims=True)),
    (
        "GroupNormalization",
        SHAPE,
        SCALE[:2],
        BIAS[:2],
        {"num_groups": 2, "opset": 18},
        lambda x: (normal(x.reshape(2, 2, 12)) * SCALE[:2, None] + BIAS[:2, None]).reshape(2, 6, 4),
    ),
    ("LayerNormalization", SHAPE, SCALE, BIAS, {"opset": 11}, lambda x: normal(x) * SCALE + BIAS),
    ("LayerNormalization", SHAPE, SCALE, BIAS, FUSED, lambda x: normal(x) * SCALE + BIAS),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, {}, lambda x: rms(x) * SCALE),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, FUSED, lambda x: rms(x) * SCALE),
    (
        "SkipLayerNormalization",
        SHAPE,
        SHAPE,
        SCALE,
        BIAS,
        BIAS,
        FUSED,
        lambda x, skip: normal(x + skip + BIAS, epsilon=1e-12) * SCALE + BIAS,
    ),
    ("SkipSimplifiedLayerNormalization", SHAPE, SHAPE, SCALE, FUSED, lambda x, skip: rms(x + skip, 1e-12) * SCALE),
    ("Gelu", SHAPE, FUSED, erf_gelu),
    ("BiasGelu", SHAPE, BIAS, FUSED, lambda x: erf_gelu(x + BIAS)),
    ("FastGelu", SHAPE, BIAS, FUSED, lambda x: tanh_gelu(x + BIAS)),
    ("FastGelu", SHAPE, FUSED, tanh_gelu),
    ("QuickGelu", SHAPE, FUSED, lambda x: x / (1 + np.exp(-1.702 * x))),
    ("RotaryEmbedding", SHAPE, i64(3), TABLE, -TABLE, FUSED, lambda x: turned(x, 3)),
    (
        "RotaryEmbedding",
        "f32[1, 3, 4, 5]",
        np.arange(4).reshape(1, 4),
        TABLE,
        -TABLE,
        {**FUSED, "rotary_embedding_dim": 4, "num_heads": 3},
        lambda x: turned(x, 0),
    ),
    ("FusedMatMul", SHAPE, MATRIX, {**FUSED, "transB": 1}, lambda x: x @ MATRIX.T),
    ("TransposeMatMul", SHAPE, MATRIX.T, {**FUSED, "alpha": 2.0}, lambda x: 2 * x @ MATRIX.T),
    ("FusedConv", SHAPE, KERNEL, FUSED, by_kernel),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        np.zeros(3, np.float32),
        "f32[2, 3, 4]",
        {**FUSED, "activation": "Relu"},
        lambda x, z: np.maximum(by_kernel(x) + z, 0),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "LeakyRelu", "activation_params": [0.1]},
        lambda x: np.maximum(by_kernel(x), 0.1 * by_kernel(x)),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "Clip", "activation_params": [-0.1, 0.2]},
        lambda x: np.clip(by_kernel(x), -0.1, 0.2),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        lambda x: np.clip(0.3 * by_kernel(x) + 0.4, 0, 1),
    ),
    (
        "ConvTranspose",
        SHAPE,
        KERNEL.reshape(6, 3, 1),
        {"group": 2},
        lambda x: np.concatenate(
            [
                np.einsum("bci,cm->bmi", x[:, c : c + 3], KERNEL.reshape(6, 3)[c : c + 3].astype(np.float64))
                for c in (0, 3)
            ],
            1,
        ),
    ),
    ("Upsample", PICTURE, {"scales": [1.0, 1.0, 2.0, 3.0], "opset": 7}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    ("Resize", PICTURE, f32(1, 1, 2, 2), {"opset": 10}, lambda x: x.repeat(2, 2).repeat(2, 3)),
    ("TopK", SHAPE, {"k": 2, "opset": 9}, lambda x: -np.sort(-x, -1)[..., :2]),
    (
        "Pad",
        SHAPE,
        {"pads": [0, 0, 1, 0, 0, 0], "value": 2.0, "opset": 9},
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0)), constant_values=2),
    ),
    ("Pad", SHAPE, i64(0, 1, -1, 0, 0, 0), {}, lambda x: np.pad(x, ((0, 0), (1, 0), (0, 0)))[..., 1:]),
    ("LRN", PICTURE, {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 1.5}, response),
    (
        "MaxRoiPool",
        "f32[2, 3, 4, 6]",
        f32(1, 0, 0, 5, 3, 0, 2, 1, 3, 2).reshape(2, 5),
        {"pooled_shape": [2, 2], "spatial_scale": 1.0},
        lambda x: np.stack([x[1].reshape(3, 2, 2, 2, 3).max((2, 4)), x[0, :, 1:3, 2:4]]),
    ),
    ("GlobalLpPool", SHAPE, {"p": 1}, lambda x: x.sum(2, keepdims=True)),
    ("GlobalLpPool", SHAPE, {}, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    ("GlobalMaxPool", SHAPE, {}, lambda x: x.max(2, keepdims=True)),
    (
        "Adam",
        "f32[]",
        np.int64(4),
        *["f32[3]"] * 4,
        {**TRAINING, "alpha": 0.9, "beta": 0.99, "epsilon": 1e-3, "norm_coefficient_post": 0.1},
        lambda rate, x, g, v, h: (
            0.9
            * (
                x
                - rate
                * np.sqrt(1 - 0.99**4)
                / (1 - 0.9**4)
                * (0.9 * v + 0.1 * g)
                / (np.sqrt(0.99 * h + 0.01 * g * g) + 1e-3)
            )
        ),
    ),
    ("Scatter", SHAPE, np.array([[[3, 0]]]), f32(7, 8).reshape(1, 1, 2), {"axis": 2, "opset": 10}, replaced),
    ("OneHot", "f32[3]", f32(3), f32(0, 2), {"axis": 0}, lambda x: np.array([[2, 2, 2], [0, 0, 0], [0, 0, 0]])),
    (
        "MatMulInteger",
        "i8[3, 4]",
        np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int8),
        np.array([1, 2, 3], np.int8),
        np.array([1, 2], np.int8),
        {},
        lambda x: (x - [[1], [2], [3]]) @ np.array([[0, 0], [2, 2], [4, 4], [6, 6]]),
    ),
    *(
        (
            "BatchNormalization",
            SHAPE,
            *[np.full(6, v, np.float32) for v in (2, 3, 4, 0.25)],
            {"opset": opset, "epsilon": 0.0},
            lambda x: (x - 4) * 4 + 3,
        )
        for opset in (7, 9, 14)
    ),
]
