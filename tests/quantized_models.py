"""Quantized models as tools write them: QuantizeLinear and DequantizeLinear around every layer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_models import model, node

STEP, ZERO = 0.03, np.uint8(121)  # activations are near a normal distribution


class Quantizer:
    """Writes nodes whose values are quantized and dequantized, and what these read."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def quantized(self, x: str, scale: float = STEP, zero: np.generic = ZERO) -> str:
        """x, quantized and dequantized."""
        self.constants |= {f"{x}_scale": np.asarray(scale, np.float32), f"{x}_zero": np.asarray(zero)}
        self.nodes += [
            node("QuantizeLinear", f"{x} {x}_scale {x}_zero", f"{x}_q", name=f"{x}_Quantize"),
            node("DequantizeLinear", f"{x}_q {x}_scale {x}_zero", f"{x}_dq", name=f"{x}_Dequantize"),
        ]
        return f"{x}_dq"

    def weights(self, name: str, *shape: int) -> str:
        """i8 weights with a scale for each output channel."""
        integers = self.rng.integers(-127, 128, shape).astype(np.int8)
        scale = self.rng.uniform(0.5, 1.5, shape[0]) / 73 / np.sqrt(np.prod(shape[1:]))
        self.constants |= {name: integers, f"{name}_scale": scale.astype(np.float32)}
        self.constants[f"{name}_zero"] = np.zeros(shape[0], np.int8)
        self.nodes.append(node("DequantizeLinear", f"{name} {name}_scale {name}_zero", f"{name}_dq", axis=0))
        return f"{name}_dq"

    def convolution(self, x: str, y: str, *shape: int, **attrs) -> str:
        """A convolution with bias and ReLU; the result is not quantized."""
        w = self.weights(f"{y}_w", *shape)
        self.constants[f"{y}_b"] = self.rng.uniform(-0.3, 0.3, shape[0]).astype(np.float32)
        self.nodes += [
            node("Conv", f"{x} {w} {y}_b", f"{y}_sum", name=y, **attrs),
            node("Relu", f"{y}_sum", y, name=f"{y}_relu"),
        ]
        return y


def qdq_cnn(seed: int = 0, last: float | None = STEP) -> onnx.ModelProto:
    """Images of 13 × 11 to 10 scores: three convolutions, a residual, a pool, a product; the scores are quantized in
    steps of `last`, or not at all."""
    q = Quantizer(seed)
    x = q.quantized("x", 0.02, np.uint8(128))
    a = q.quantized(q.convolution(x, "a", 13, 3, 3, 3, pads=[1, 1, 1, 1]))
    b = q.quantized(q.convolution(a, "b", 13, 13, 3, 3, pads=[1, 1, 1, 1]))
    q.nodes.append(node("Add", f"{a} {b}", "c", name="c"))
    c = q.quantized("c", 0.05, np.uint8(0))
    q.nodes.append(node("MaxPool", c, "d", name="d", kernel_shape=[2, 2], strides=[2, 2]))
    e = q.quantized(q.convolution(q.quantized("d", 0.05, np.uint8(0)), "e", 7, 13, 1, 1))
    q.nodes.append(node("GlobalAveragePool", e, "f", name="f"))
    q.nodes.append(node("Flatten", q.quantized("f", 0.01, np.uint8(0)), "g", name="g"))
    w = q.weights("h_w", 10, 7)
    q.constants["h_b"] = q.rng.uniform(-1, 1, 10).astype(np.float32)
    q.nodes.append(node("Gemm", f"g {w} h_b", "h", name="h", transB=1))
    y = "h" if last is None else q.quantized("h", last, np.int8(-3))
    q.nodes.append(node("Identity", y, "y"))
    return model(q.nodes, {"x": "f32[1, 3, 13, 11]"}, ["y"], q.constants)


def qdq_attention(tokens: int | str = 13, unit: float = 1 / 255) -> onnx.ModelProto:
    """Three heads of 7 channels over `tokens` tokens of two samples, whose scores have a mask; the probabilities are
    quantized in steps of `unit`, the result in steps of 0.017."""
    q = Quantizer()
    q.constants |= dict(heads=np.array([2, -1, 3, 7]), flat=np.array([2, -1, 21]), root=np.float32(7**0.5))
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        zero = dict(q=ZERO, k=np.int8(-5), v=np.uint8(255))[name]
        q.nodes += [
            node("Reshape", f"{q.quantized(name, zero=zero)} heads", f"{name}_heads"),
            node("Transpose", f"{name}_heads", f"{name}_turned", perm=perm),
        ]
    q.nodes += [
        node("MatMul", "q_turned k_turned", "scores", name="scores"),
        node("Div", f"{q.quantized('scores', 0.1, np.uint8(128))} root", "scaled", name="scaled"),
        node("Add", f"{q.quantized('scaled')} mask", "masked", name="masked"),
        node("Softmax", "masked", "p", name="p", axis=-1),
        node("MatMul", f"{q.quantized('p', unit, np.uint8(0))} v_turned", "mixed", name="mixed"),
        node("Transpose", q.quantized("mixed", 0.017, np.uint8(128)), "joined", perm=[0, 2, 1, 3]),
        node("Reshape", "joined flat", "y"),
    ]
    inputs = {name: f"f32[2, {tokens}, 21]" for name in "qkv"} | {"mask": f"f32[2, 1, 1, {tokens}]"}
    return model(q.nodes, inputs, ["y"], q.constants)
