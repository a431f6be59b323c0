"""One-node models of ONNX operators that compute shapes, and move, pick and place elements."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from onnx_operands import IMAGE, VECTOR, f32, i64


SHAPES = [
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
]

INDICES = [
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
]
