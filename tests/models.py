"""Small test networks: random weights, awkward sizes, made with onnx.helper."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(nodes, inputs, outputs, constants, opset=17) -> onnx.ModelProto:
    """inputs and outputs: name → shape (float32), or (shape, TensorProto type)."""

    def info(name, what):
        shape, kind = (
            what
            if isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], (tuple, list))
            else (what, TensorProto.FLOAT)
        )
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "test",
        [info(*i) for i in inputs.items()],
        [info(*o) for o in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def small_cnn(seed=0, size=20) -> onnx.ModelProto:
    """Convolutions of all kinds, a join, a residual, pooling and a classifier: x [1, 3, size, size] → y [1, 10]."""
    rng = np.random.default_rng(seed)
    constants, nodes = {}, []

    def conv(x, y, c, oc, k, relu=True, **attrs):
        depth = c // attrs.get("group", 1)
        constants[y + ".w"] = (rng.standard_normal((oc, depth, k, k)) * np.sqrt(2 / (depth * k * k))).astype(np.float32)
        constants[y + ".b"] = (rng.standard_normal(oc) * 0.1).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv", [x, y + ".w", y + ".b"], [y + (".c" if relu else "")], name=y, **{"pads": [k // 2] * 4, **attrs}
            )
        )
        if relu:
            nodes.append(helper.make_node("Relu", [y + ".c"], [y], name=y + ".relu"))

    conv("x", "stem", 3, 13, 5, strides=[2, 2])
    conv("stem", "a", 13, 8, 1)
    conv("stem", "b", 13, 11, 3)
    nodes.append(helper.make_node("Concat", ["a", "b"], ["ab"], axis=1, name="join"))
    conv("ab", "wide", 19, 24, 3)
    conv("wide", "dw", 24, 24, 3, group=24)
    conv("dw", "proj", 24, 24, 1, relu=False)
    nodes.append(helper.make_node("Add", ["proj", "wide"], ["sum"], name="residual"))
    nodes.append(helper.make_node("Sigmoid", ["sum"], ["gate"], name="gate"))
    nodes.append(helper.make_node("Mul", ["sum", "gate"], ["swish"], name="swish"))
    nodes.append(helper.make_node("GlobalAveragePool", ["swish"], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], name="flat"))
    constants["fc.w"], constants["fc.b"] = (
        rng.standard_normal((10, 24)).astype(np.float32),
        rng.standard_normal(10).astype(np.float32),
    )
    nodes.append(helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["y"], transB=1, name="fc"))
    return model(nodes, {"x": (1, 3, size, size)}, {"y": (1, 10)}, constants)


def wide_cnn(seed=0) -> onnx.ModelProto:
    """3×3 convolutions of which Winograd would want many times the weights: x [1, 32, 12, 12] → y [1, 128, 6, 6]."""
    rng = np.random.default_rng(seed)
    constants, nodes, x = {}, [], "x"
    for i, (c, oc) in enumerate([(32, 32), (32, 64), (64, 128), (128, 128)]):
        constants[f"w{i}"] = (rng.standard_normal((oc, c, 3, 3)) * np.sqrt(2 / (9 * c))).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], pads=[1] * 4, name=f"conv{i}"))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        x = f"r{i}"
        if i == 1:
            nodes.append(helper.make_node("MaxPool", [x], ["pooled"], kernel_shape=[2, 2], strides=[2, 2], name="pool"))
            x = "pooled"
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    return model(nodes, {"x": (1, 32, 12, 12)}, {"y": (1, 128, 6, 6)}, constants)


def inverted_residuals(seed=0, size=28) -> onnx.ModelProto:
    """A stem, then chains of 1×1, depthwise and 1×1 convolutions: without the first, with a sum around it, over two
    pixels, and with its middle weighed by what it is on average, which leaves two to go together: x [1, 3, size, size]
    → y [1, 10]."""
    rng = np.random.default_rng(seed)
    constants, nodes = dict(low=np.float32(0), high=np.float32(6)), []

    def conv(x, y, c, oc, k, act=True, **attrs):
        depth = c // attrs.get("group", 1)
        constants[y + ".w"] = (rng.standard_normal((oc, depth, k, k)) * np.sqrt(2 / (depth * k * k))).astype(np.float32)
        constants[y + ".b"] = (rng.standard_normal(oc) * 0.1).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv", [x, y + ".w", y + ".b"], [y + (".c" if act else "")], name=y, **{"pads": [k // 2] * 4, **attrs}
            )
        )
        if act:
            nodes.append(helper.make_node("Clip", [y + ".c", "low", "high"], [y], name=y + ".relu6"))

    conv("x", "stem", 3, 48, 3)
    conv("stem", "first.dw", 48, 48, 3, group=48)
    conv("first.dw", "first", 48, 8, 1, act=False)
    conv("first", "sum.wide", 8, 48, 1)
    conv("sum.wide", "sum.dw", 48, 48, 3, group=48)
    conv("sum.dw", "sum.c", 48, 8, 1, act=False)
    nodes.append(helper.make_node("Add", ["sum.c", "first"], ["sum"], name="sum.add"))
    conv("sum", "half.wide", 8, 50, 1)
    conv("half.wide", "half.dw", 50, 50, 5, group=50, strides=[2, 2])
    conv("half.dw", "half", 50, 13, 1, act=False)
    conv("half", "gate.wide", 13, 96, 1)
    conv("gate.wide", "gate.dw", 96, 96, 3, group=96)
    nodes.append(helper.make_node("GlobalAveragePool", ["gate.dw"], ["gate.mean"], name="gate.pool"))
    conv("gate.mean", "gate.in", 96, 6, 1)
    conv("gate.in", "gate.out", 6, 96, 1, act=False)
    nodes.append(helper.make_node("HardSigmoid", ["gate.out"], ["gate.by"], name="gate.sigmoid"))
    nodes.append(helper.make_node("Mul", ["gate.dw", "gate.by"], ["gated"], name="gate.mul"))
    conv("gated", "last", 96, 10, 1, act=False)
    nodes.append(helper.make_node("GlobalAveragePool", ["last"], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"], name="flat"))
    return model(nodes, {"x": (1, 3, size, size)}, {"y": (1, 10)}, constants)
