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


IMAGE, VECTOR = "f32[2, 6, 7, 8]", "f32[2, 3, 5]"
UNARY = ("Abs", "Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu",
         "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "IsNaN")
BINARY = ("Add", "Sub", "Mul", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "PRelu", "Max", "Min", "Sum", "Mean", "Pow")

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
    ("Cast", strings("1.5", "2"), {"to": TensorProto.FLOAT}),
    ("CastLike", VECTOR, "i32[1]", {}),
    ("Identity", VECTOR, {}),
    ("Dropout", VECTOR, {}),
    ("Dropout", VECTOR, {"ratio": 0.5, "opset": 7}),
    ("Dropout", VECTOR, {"outputs": 2}),
    # products
    ("MatMul", "f32[2, 3, 4]", "f32[4, 5]", {}),
    ("MatMul", "f32[4]", weights(4, 5), {}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[5]", {}),
    ("Gemm", "f32[4, 3]", weights(5, 4), weights(3, 1), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", {}),
    ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[3, 5]", {"beta": 0.0, "opset": 9}),
    ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", np.uint8(2), np.uint8(3), {}),
    ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", {}),
    *(("Einsum", *operands, {"equation": equation}) for equation, *operands in (
        ("ij,jk->ik", "f32[3, 4]", "f32[4, 5]"), ("bij,bjk->bik", "f32[2, 3, 4]", "f32[2, 4, 5]"), ("bhid,bhjd->bhij", "f32[2, 3, 4, 5]", "f32[2, 3, 6, 5]"),
        ("ij->ji", "f32[3, 4]"), ("ij->i", "f32[3, 4]"), ("ij->", "f32[3, 4]"), ("i,j->ij", "f32[3]", "f32[4]"), ("i,i->", "f32[3]", "f32[3]"),
        ("ij,ij->ij", "f32[3, 4]", "f32[3, 4]"), ("...ij,...jk->...ik", "f32[2, 3, 4]", "f32[2, 4, 5]"), ("bij, bjk", "f32[2, 3, 4]", "f32[2, 4, 5]"),
        ("ij,jk,kl->il", "f32[2, 3]", "f32[3, 4]", "f32[4, 2]"), ("ijk,jil->kl", "f32[3, 4, 2]", "f32[4, 3, 5]"), ("ii->i", "f32[3, 3]"),
        ("ij,k->i", "f32[3, 4]", "f32[2]"))),
    # windows
    ("Conv", IMAGE, weights(4, 6, 3, 3), weights(4), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("Conv", IMAGE, weights(4, 6, 1, 1), {}),
    ("Conv", IMAGE, weights(6, 2, 3, 3), {"group": 3, "dilations": [2, 1]}),
    ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2]}),
    ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_LOWER", "kernel_shape": [4]}),
    ("Conv", IMAGE, weights(4, 6, 3, 3), {"auto_pad": "VALID"}),
    ("Conv", "f32[1, 2, 4, 5, 6]", weights(3, 2, 2, 3, 2), {}),
    ("ConvInteger", "u8[1, 2, 5, 5]", RNG.integers(0, 9, (3, 2, 3, 3)).astype(np.uint8), np.uint8(2), np.uint8(1), {"pads": [1, 1, 1, 1]}),
    ("ConvTranspose", IMAGE, weights(6, 4, 3, 3), weights(4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"output_shape": [10, 8], "strides": [3, 2]}),
    ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("ConvTranspose", "f32[1, 1, 5, 3]", weights(1, 2, 2, 2), {"dilations": [2, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1, "dilations": [2, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "opset": 7}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "outputs": 2}),
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
    *((op, IMAGE, {"axes": [1, -1], "keepdims": k}) for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
                                                               "ReduceMin", "ReduceProd", "ReduceSumSquare") for k in (0, 1)),
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
    *(("Constant", {name: value}) for name, value in (
        ("value_float", 1.5), ("value_floats", [1.5, 2.0]), ("value_int", 3), ("value_ints", [1, 2]), ("value_string", "a"),
                                                      ("value_strings", ["a", "b"]), ("value", helper.make_tensor("v", TensorProto.FLOAT, [2], [1, 2])))),
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
    # images
    ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2}),
    ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", "f32[1, 2, 4, 6]", {"blocksize": 2}),
    ("Upsample", "f32[1, 2, 3, 3]", f32(1, 1, 2, 3), {"opset": 9}),
    ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 2, 2), {}),
    ("Resize", "f32[1, 1, 4, 4]", None, None, i64(1, 1, 6, 3), {"mode": "linear"}),
    ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 0.5, 2),
     {"mode": "cubic", "coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
    ("Resize", "f32[1, 1, 4, 5]", None, None, i64(8, 8), {"opset": 18, "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 0.6, 0.6), {"mode": "linear", "antialias": 1, "opset": 18}),
    ("Resize", "f32[1, 1, 4, 4]", f32(), f32(1, 1, 1, 1), {"opset": 11}),
    # quantization
    ("QuantizeLinear", IMAGE, np.float32(0.01), np.uint8(3), {}),
    ("QuantizeLinear", IMAGE, np.abs(weights(6)) + 0.01, np.zeros(6, np.int8), {"axis": 1}),
    ("QuantizeLinear", IMAGE, np.float32(0.01), {}),
    ("DequantizeLinear", "u8[2, 3]", np.float32(0.1), np.uint8(3), {"opset": 19}),
    ("DequantizeLinear", "i32[3]", np.float32(0.1), {"opset": 19}),
    ("DequantizeLinear", "i8[2, 3]", f32(0.1, 0.2, 0.3), np.array([1, 2, 3], np.int8), {"axis": 1, "opset": 21}),
    ("DequantizeLinear", "u8[4, 3]", np.abs(weights(2, 3)), {"axis": 0, "block_size": 2, "opset": 21}),
    ("QLinearMatMul", "u8[3, 4]", np.float32(0.1), np.uint8(2), "u8[4, 2]", np.float32(0.2), np.uint8(1), np.float32(0.05), np.uint8(9), {}),
    ("QLinearConv", "u8[1, 2, 5, 5]", np.float32(0.1), np.uint8(2), RNG.integers(0, 9, (3, 2, 3, 3)).astype(np.uint8), np.float32(0.2), np.uint8(1),
     np.float32(0.5),     np.uint8(9), np.array([1, 2, 3], np.int32), {}),
    # attention and recurrence
    *(("Attention", *operands, {"opset": 23, **attrs}) for *operands, attrs in (
        ("f32[2, 3, 4, 8]", "f32[2, 3, 6, 8]", "f32[2, 3, 6, 5]", {}),
        ("f32[2, 4, 24]", "f32[2, 6, 24]", "f32[2, 6, 24]", {"q_num_heads": 3, "kv_num_heads": 3}),
        ("f32[2, 4, 5, 8]", "f32[2, 2, 5, 8]", "f32[2, 2, 5, 8]", {"is_causal": 1, "scale": 0.5}),
        ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", "f32[3, 5]", {}),
        ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", np.tri(3, 5, -1, dtype=bool), {}),
        ("f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", {"softcap": 2.0}))),
    *(("RotaryEmbedding", *operands, {"opset": 23, **attrs}) for *operands, attrs in (
        ("f32[2, 3, 5, 8]", "f32[2, 5, 4]", "f32[2, 5, 4]", {}), ("f32[1, 3, 5, 8]", "f32[1, 5, 4]", "f32[1, 5, 4]", {"interleaved": 1}),
        ("f32[1, 2, 3, 9]", weights(7, 2), weights(7, 2), np.array([[5, 0, 2]]), {"rotary_embedding_dim": 4}),
        ("f32[2, 3, 12]", weights(7, 2), weights(7, 2), "i64[2, 3]", {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1}))),
    ("LSTM", "f32[3, 2, 4]", weights(1, 20, 4), weights(1, 20, 5), {"hidden_size": 5, "outputs": 3}),
    ("LSTM", "f32[3, 2, 4]", weights(1, 20, 4), weights(1, 20, 5), weights(1, 40), np.array([3, 3], np.int32),
     weights(1, 2, 5), weights(1, 2, 5), weights(1, 15), {"hidden_size": 5}),
    ("GRU", "f32[3, 2, 4]", weights(1, 15, 4), weights(1, 15, 5), weights(1, 30), {"hidden_size": 5, "linear_before_reset": 1, "outputs": 2}),
    ("RNN", "f32[3, 2, 4]", weights(1, 5, 4), weights(1, 5, 5), {"hidden_size": 5, "outputs": 2}),
]


# What the reference evaluator has other ideas about than the specification, or none: the last item makes the wanted output of the inputs, in float64.

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
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def by_kernel(x):
    return np.einsum("bci,mc->bmi", x, KERNEL[:, :, 0].astype(np.float64))


def response(x):
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return x / (1.5 + 0.1 / 3 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.6


TABLE = np.linspace(0, 1, 20, dtype=np.float32).reshape(10, 2)


def turned(x, at):
    """[batch, rows, depth], two pairs of elements as halves, from position `at` on."""
    a, b, cos, sin = x[..., :2], x[..., 2:4], TABLE[at:at + x.shape[-2]], -TABLE[at:at + x.shape[-2]]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 4:]], -1)


def replaced(x):
    y = x.copy()
    y[0, 0, 3], y[0, 0, 0] = 7, 8
    return y


BY_HAND = [
    ("Softmax", SHAPE, {"opset": 11}, lambda x: softmax(x, (1, 2))),
    ("LogSoftmax", SHAPE, {"opset": 9, "axis": 1}, lambda x: np.log(softmax(x, (1, 2)))),
    ("Hardmax", SHAPE, {"opset": 11}, lambda x: x == x.max((1, 2), keepdims=True)),
    ("GroupNormalization", SHAPE, SCALE[:2], BIAS[:2], {"num_groups": 2, "opset": 18},
     lambda x: (normal(x.reshape(2, 2, 12)) * SCALE[:2, None] + BIAS[:2, None]).reshape(2, 6, 4)),
    ("LayerNormalization", SHAPE, SCALE, BIAS, {"opset": 11}, lambda x: normal(x) * SCALE + BIAS),
    ("LayerNormalization", SHAPE, SCALE, BIAS, FUSED, lambda x: normal(x) * SCALE + BIAS),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, {}, lambda x: rms(x) * SCALE),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, FUSED, lambda x: rms(x) * SCALE),
    ("SkipLayerNormalization", SHAPE, SHAPE, SCALE, BIAS, BIAS, FUSED, lambda x, skip: normal(x + skip + BIAS, epsilon=1e-12) * SCALE + BIAS),
    ("SkipSimplifiedLayerNormalization", SHAPE, SHAPE, SCALE, FUSED, lambda x, skip: rms(x + skip, 1e-12) * SCALE),
    ("Gelu", SHAPE, FUSED, erf_gelu),
    ("BiasGelu", SHAPE, BIAS, FUSED, lambda x: erf_gelu(x + BIAS)),
    ("FastGelu", SHAPE, BIAS, FUSED, lambda x: tanh_gelu(x + BIAS)),
    ("FastGelu", SHAPE, FUSED, tanh_gelu),
    ("QuickGelu", SHAPE, FUSED, lambda x: x / (1 + np.exp(-1.702 * x))),
    ("RotaryEmbedding", SHAPE, i64(3), TABLE, -TABLE, FUSED, lambda x: turned(x, 3)),
    ("RotaryEmbedding", "f32[1, 3, 4, 5]", np.arange(4).reshape(1, 4), TABLE, -TABLE, {**FUSED, "rotary_embedding_dim": 4, "num_heads": 3},
     lambda x: turned(x, 0)),
    ("FusedMatMul", SHAPE, MATRIX, {**FUSED, "transB": 1}, lambda x: x @ MATRIX.T),
    ("TransposeMatMul", SHAPE, MATRIX.T, {**FUSED, "alpha": 2.0}, lambda x: 2 * x @ MATRIX.T),
    ("FusedConv", SHAPE, KERNEL, FUSED, by_kernel),
    ("FusedConv", SHAPE, KERNEL, np.zeros(3, np.float32), "f32[2, 3, 4]", {**FUSED, "activation": "Relu"}, lambda x, z: np.maximum(by_kernel(x) + z, 0)),
    ("FusedConv", SHAPE, KERNEL, {**FUSED, "activation": "LeakyRelu", "activation_params": [0.1]}, lambda x: np.maximum(by_kernel(x), 0.1 * by_kernel(x))),
    ("FusedConv", SHAPE, KERNEL, {**FUSED, "activation": "Clip", "activation_params": [-0.1, 0.2]}, lambda x: np.clip(by_kernel(x), -0.1, 0.2)),
    ("FusedConv", SHAPE, KERNEL, {**FUSED, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]}, lambda x: np.clip(0.3 * by_kernel(x) + 0.4, 0, 1)),
    ("ConvTranspose", SHAPE, KERNEL.reshape(6, 3, 1), {"group": 2},
     lambda x: np.concatenate([np.einsum("bci,cm->bmi", x[:, c:c + 3], KERNEL.reshape(6, 3)[c:c + 3].astype(np.float64)) for c in (0, 3)], 1)),
    ("Upsample", PICTURE, {"scales": [1.0, 1.0, 2.0, 3.0], "opset": 7}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    ("Resize", PICTURE, f32(1, 1, 2, 2), {"opset": 10}, lambda x: x.repeat(2, 2).repeat(2, 3)),
    ("TopK", SHAPE, {"k": 2, "opset": 9}, lambda x: -np.sort(-x, -1)[..., :2]),
    ("Pad", SHAPE, {"pads": [0, 0, 1, 0, 0, 0], "value": 2.0, "opset": 9}, lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0)), constant_values=2)),
    ("Pad", SHAPE, i64(0, 1, -1, 0, 0, 0), {}, lambda x: np.pad(x, ((0, 0), (1, 0), (0, 0)))[..., 1:]),
    ("LRN", PICTURE, {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 1.5}, response),
    ("GlobalLpPool", SHAPE, {"p": 1}, lambda x: x.sum(2, keepdims=True)),
    ("GlobalLpPool", SHAPE, {}, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    ("GlobalMaxPool", SHAPE, {}, lambda x: x.max(2, keepdims=True)),
    ("Scatter", SHAPE, np.array([[[3, 0]]]), f32(7, 8).reshape(1, 1, 2), {"axis": 2, "opset": 10}, replaced),
    ("OneHot", "f32[3]", f32(3), f32(0, 2), {"axis": 0}, lambda x: np.array([[2, 2, 2], [0, 0, 0], [0, 0, 0]])),
    ("MatMulInteger", "i8[3, 4]", np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int8), np.array([1, 2, 3], np.int8), np.array([1, 2], np.int8), {},
     lambda x: (x - [[1], [2], [3]]) @ np.array([[0, 0], [2, 2], [4, 4], [6, 6]])),
    *(("BatchNormalization", SHAPE, *[np.full(6, v, np.float32) for v in (2, 3, 4, 0.25)], {"opset": opset, "epsilon": 0.0}, lambda x: (x - 4) * 4 + 3)
      for opset in (7, 9, 14)),
]
