"""Keeps large weights out of a graph during conversion: TensorFlow's optimizer and tf2onnx copy all constants
repeatedly."""

from collections import defaultdict
from functools import cache

import tensorflow as tf
from onnx import helper
from tf2onnx import tf_utils

SMALLEST = 1 << 14  # bytes of the smallest constant worth it
# Operations that convert without the values of a weight, and the operands that may be one.
READERS = {
    "BatchMatMul": (0, 1),
    "BatchMatMulV2": (0, 1),
    "BatchMatMulV3": (0, 1),
    "Conv2D": (1,),
    "Conv3D": (1,),
    "DepthwiseConv2dNative": (1,),
    "Einsum": (0, 1),
    "GatherV2": (0,),
    "MatMul": (0, 1),
}


def take_out(graph, outputs=()):
    """Replaces large weights of a frozen graph by placeholders; returns the ONNX tensors of these weights by name.
    outputs: tensors (x:0) that stay as they are."""
    readers = defaultdict(list)
    for node in graph.node:
        for i, name in enumerate(node.input):
            readers[name.removesuffix(":0")].append((node, i))
    fixed = {name.removesuffix(":0") for name in outputs}

    @cache
    def is_weight(name):
        return (
            bool(readers[name])
            and name not in fixed
            and all(
                is_weight(node.name) if node.op == "Identity" else i in READERS.get(node.op, ())
                for node, i in readers[name]
            )
        )

    weights = {}
    for node in graph.node:
        if node.op != "Const" or node.ByteSize() < SMALLEST or not is_weight(node.name):
            continue
        tensor, dtype = node.attr["value"].tensor, tf.dtypes.as_dtype(node.attr["dtype"].type)
        if dtype.is_floating:
            array = tf.make_ndarray(tensor)
            name = f"{node.name}:0"
            weights[name] = helper.make_tensor(
                name, tf_utils.map_tf_dtype(dtype), array.shape, array.tobytes(), raw=True
            )
            node.op = "Placeholder"
            node.attr["shape"].shape.CopyFrom(tensor.tensor_shape)
            del node.attr["value"]
    return weights


def put_back(model, weights):
    """Turns the placeholder inputs of an ONNX model back into initializers."""
    inputs = [x for x in model.graph.input if x.name not in weights]
    held = [weights[x.name] for x in model.graph.input if x.name in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(held)
