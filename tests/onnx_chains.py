"""Chains of ONNX nodes that compute shapes from dynamic dimensions, and their ops."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import model, node

I64, F32 = TensorProto.INT64, TensorProto.FLOAT
# (inputs, nodes, the names of the ops)
CHAINS = [
    # reshapes as exporters write them
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "b"),
            node("Gather", "s one", "n"),
            node("Unsqueeze", "b zeros", "b1"),
            node("Unsqueeze", "n zeros", "n1"),
            node("Concat", "b1 n1 four minus", "to", axis=0),
            node("Reshape", "x to", "y"),
        ],
        ["reshape"],
    ),
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s", start=0, end=2),
            node("Concat", "s minus", "to", axis=0),
            node("Reshape", "x to", "y"),
        ],
        ["copy"],
    ),
    ("x: f32[b, n, 12]", [node("Reshape", "x keep", "y")], ["reshape"]),
    ("x: f32[b, n, 12]", [node("Flatten", "x", "f"), node("Shape", "f", "y")], ["sizes"]),
    (
        "x: f32[b, n, m]",
        [node("Shape", "x", "s"), node("ReduceProd", "s", "p", keepdims=1), node("Reshape", "x p", "y")],
        ["reshape"],
    ),
    (
        "x: f32[b, n, m]",
        [node("Size", "x", "p"), node("Unsqueeze", "p zeros", "p1"), node("Reshape", "x p1", "y")],
        ["reshape"],
    ),
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s"),
            node("Split", "s", "b n c"),
            node("Mul", "b n", "r"),
            node("Concat", "r c", "to", axis=0),
            node("Reshape", "x to", "f"),
            node("MatMul", "f w", "g"),
            node("Concat", "b n minus", "back", axis=0),
            node("Reshape", "g back", "y"),
        ],
        ["reshape", "matmul", "reshape"],
    ),
    # halves of an axis, integers and floats
    (
        "x: f32[b, 2*n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Div", "n two", "d"),
            node("Unsqueeze", "d zeros", "h"),
            node("Slice", "x zeros h ones", "y"),
        ],
        ["slice"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Cast", "n", "f", to=F32),
            node("Mul", "f half", "h"),
            node("Floor", "h", "g"),
            node("Cast", "g", "i", to=I64),
            node("Unsqueeze", "i zeros", "e"),
            node("Slice", "x zeros e ones", "y"),
        ],
        ["slice"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Cast", "n", "f", to=F32),
            node("Div", "f f2", "h"),
            node("Ceil", "h", "g"),
            node("Cast", "g", "i", to=I64),
            node("Unsqueeze", "i zeros", "e"),
            node("Slice", "x zeros e ones", "y"),
        ],
        ["slice"],
    ),
    # expansions, with -1 left as it is
    (
        "x: f32[b, 1, n]",
        [
            node("Shape", "x", "s"),
            node("ConstantOfShape", "three", "o", value=helper.make_tensor("", I64, [1], [1])),
            node("Mul", "o minus", "m"),
            node("Equal", "s m", "e"),
            node("Where", "e o s", "t"),
            node("Expand", "x t", "v"),
            node("Expand", "v wide", "y"),
        ],
        ["expand"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("ConstantOfShape", "s", "o", value=helper.make_tensor("", F32, [1], [2.5])),
            node("Mul", "x o", "y"),
        ],
        ["expand", "mul"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Expand", "half s", "o"), node("Add", "x o", "y")],
        ["expand", "add"],
    ),
    (
        "x: f32[b, n]; z: f32[b, n]",
        [
            node("Shape", "z", "s"),
            node("Slice", "s ones two1", "n"),
            node("Concat", "ones n", "r", axis=0),
            node("Tile", "x r", "y"),
        ],
        ["tile"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Pad", "s before one", "r"), node("Reshape", "x r", "y")],
        ["reshape"],
    ),
    # positions
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Range", "zero n one", "r"),
            node("Cast", "r", "f", to=F32),
            node("Add", "x f", "y"),
        ],
        ["iota", "cast", "add"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Add", "n two", "m"),
            node("Range", "two m one", "y"),
        ],
        ["iota", "add"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Gather", "s one", "n"), node("Range", "n zero down", "y")],
        ["sizes", "iota", "mul", "add"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Add", "n two", "m"),
            node("Range", "n m one", "y"),
        ],
        ["sizes"],
    ),
    ("x: f32[b, n]", [node("EyeLike", "x", "y", k=1)], ["iota", "reshape", "add", "iota", "equal", "cast"]),
    (
        "i: i64[b, n]",
        [node("Shape", "i", "s"), node("Gather", "s one", "n"), node("OneHot", "i n onoff", "y")],
        ["one_hot"],
    ),
    ("x: f32[b, n]", [node("Hardmax", "x", "y")], ["arg_max", "iota", "equal", "cast"]),
    # slices
    *(
        (f"x: f32[b, n + {more}, 3]", [node("Slice", f"x {start} {end} ones", "y")], ["slice"])
        for more, start, end in (
            (0, "ones", "end"),
            (1, "zeros", "minus"),
            (2, "minus2", "end"),
            (3, "ones", "minus"),
            (2, "zeros", "two1"),
            (2, "ones", "two1"),
        )
    ),
    ("x: f32[b, n, 3]", [node("Slice", "x minus least ones minus", "y")], ["slice"]),
    ("x: f32[b, n + 1, 3]", [node("Slice", "x zeros end ones two1", "y")], ["slice"]),
    ("x: f32[b, n, 3]", [node("Slice", "x zeros end ones", "y")], ["copy"]),
    ("x: f32[b, n, 3]", [node("Gather", "x down", "y", axis=1)], ["slice", "reshape"]),
    ("x: f32[b, n + 1, 3]", [node("Gather", "x pair", "y", axis=1)], ["gather"]),
    ("x: f32[b, 3*n]", [node("Split", "x", "a y c", axis=1)], ["slice"]),
    ("x: f32[b, n + 2]", [node("Split", "x", "a y", axis=1, num_outputs=2)], ["slice"]),
    (
        "x: f32[b, n]; z: f32[b, m]",
        [
            node("Concat", "x z", "c", axis=1),
            node("Shape", "x", "s"),
            node("Slice", "s ones two1", "n"),
            node("Slice", "c n end ones", "y"),
        ],
        ["concat", "slice"],
    ),
    # pads, sizes, windows
    (
        "x: f32[b, n, 3]",
        [
            node("Shape", "x", "s"),
            node("Slice", "s ones two1", "n"),
            node("Concat", "zeros n zeros zeros zeros zeros", "p", axis=0),
            node("Pad", "x p", "y"),
        ],
        ["pad"],
    ),
    (
        "x: f32[b, 2, h, w]; z: f32[b, 2, g, v]",
        [node("Shape", "z", "s"), node("Resize", "x _ _ s", "y", mode="linear")],
        ["resize"],
    ),
    (
        "x: f32[b, 2, h, w]",
        [
            node(
                "Resize",
                "x _ scales",
                "y",
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        ["resize"],
    ),
    (
        "x: f32[b, 2, h, w]",
        [
            node("Conv", "x k", "c", strides=[2, 2], pads=[2, 2, 2, 2]),
            node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("ReduceMax", "p", "y"),
        ],
        ["convolution", "max_pool", "reduce_max"],
    ),
    ("x: f32[b, 2, h, w]", [node("Conv", "x k", "y", strides=[2, 2], auto_pad="SAME_UPPER")], ["convolution"]),
    ("x: f32[b, 2, h, w]", [node("ConvTranspose", "x k", "y", strides=[2, 2])], ["conv_transpose"]),
    # sizes as data: once, whoever reads them
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Cast", "s", "f", to=F32),
            node("Gather", "f one", "n"),
            node("Div", "x n", "d"),
            node("Sub", "d n", "y"),
        ],
        ["sizes", "cast", "gather", "div", "sub"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Cast", "s", "i", to=TensorProto.INT32), node("Less", "i i2", "y")],
        ["sizes", "cast", "less"],
    ),
    ("x: f32[b, n]", [node("Shape", "x", "y")], ["sizes"]),
    # attention with a cache and a causal mask out of a table
    (
        "q: f32[b, 2, n, 8]; c: f32[b, 2, p + n, 8]",
        [
            node("Shape", "q", "qs"),
            node("Shape", "c", "ks"),
            node("Slice", "qs two1 three", "n"),
            node("Slice", "ks two1 three", "t"),
            node("Sub", "t n", "p"),
            node("Slice", "table p t zeros", "rows"),
            node("Slice", "rows zeros t ones", "may"),
            node("Transpose", "c", "kt", perm=[0, 1, 3, 2]),
            node("MatMul", "q kt", "a"),
            node("Where", "may a low", "m"),
            node("Softmax", "m", "v"),
            node("MatMul", "v c", "y"),
        ],
        ["slice", "slice", "transpose", "matmul", "where", "softmax", "matmul"],
    ),
    ("x: f32[b, n, 8]", [node("LSTM", "x wl rl", "y h", hidden_size=5)], ["expand", "expand", "lstm"]),
]
CONSTANTS = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.int64(2),
    "down": np.int64(-1),
    "zeros": [0],
    "ones": [1],
    "minus": [-1],
    "minus2": [-2],
    "two1": [2],
    "three": [3],
    "four": [4],
    "pair": [0, -1],
    "keep": [0, -1, 6, 2],
    "wide": [1, 3, 1],
    "end": [np.iinfo(np.int64).max],
    "least": [np.iinfo(np.int64).min],
    "half": np.float32(0.5),
    "f2": np.float32(2),
    "low": np.float32(-1e4),
    "onoff": np.float32([0.5, 2]),
    "i2": np.int32(2),
    "scales": np.float32([1, 1, 2, 1.5]),
    "w": np.linspace(0, 1, 60, dtype=np.float32).reshape(12, 5),
    "table": np.tri(16, dtype=bool),
    "k": np.linspace(-1, 1, 36, dtype=np.float32).reshape(2, 2, 3, 3),
    "wl": np.linspace(-1, 1, 160, dtype=np.float32).reshape(1, 20, 8),
    "rl": np.linspace(1, -1, 100, dtype=np.float32).reshape(1, 20, 5),
    "before": [1, 0],
}


def chain(declared: str, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A model of inputs such as `x: f32[b, n]; z: f32[n]`, and the constants that its nodes read."""
    inputs = dict(text.strip().split(": ") for text in declared.split(";"))
    read = {name for n in nodes for name in n.input}
    return model(nodes, inputs, ["y"], {k: np.asarray(a) for k, a in CONSTANTS.items() if k in read}, opset=18)
