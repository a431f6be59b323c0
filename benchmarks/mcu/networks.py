"""The four networks of MLPerf Tiny in 8-bit integers (Banbury et al., "MLPerf Tiny Benchmark", 2021).

No package ships their files, so weights are random. Architectures, types and sizes are those of the benchmark's
reference models (mlcommons/tiny, `benchmark/training`). Images are channels first, as in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import pelton
from pelton.ir.types import DType
from pelton.network.tensor import NetworkTensor, Operand

ZERO = np.int8(-128)
SPREAD = 40.0  # the wanted standard deviation of sums, in steps of the scale of values
OF_BYTES, OF_RECTIFIED = 73.0, 0.58 * SPREAD  # of bytes that are equally likely, and of such sums after a ReLU


class _Layers:
    """Adds layers with random weights. Quantized, all values but scores have one scale, and activations begin at -128;
    else the same layers are of f32, for writers that calibrate."""

    scale = np.float32(0.05)

    def __init__(self, name: str, quantized: bool):
        self.net, self.draw, self.quantized = pelton.Network(name), np.random.default_rng(0), quantized

    def input(self, name: str, shape: tuple[int, ...]) -> NetworkTensor:
        return self.net.input(name, f"{'i8' if self.quantized else 'f32'}{list(shape)}")

    def numbers(self, x: NetworkTensor, zero: np.int8 = ZERO) -> NetworkTensor:
        return self.net.dequantize(x, self.scale, zero) if self.quantized else x

    def bytes(self, x: NetworkTensor, zero: np.int8 = ZERO, scale: np.float32 = scale) -> NetworkTensor:
        return self.net.quantize(x, scale, zero, to=DType.I8) if self.quantized else x

    def constant(self, integers: np.ndarray, scales: np.ndarray, axis: int = 0) -> NetworkTensor | np.ndarray:
        if self.quantized:
            return self.net.dequantize(integers, scales, np.zeros(scales.size, integers.dtype), axis=axis)
        along = [-1 if i == axis else 1 for i in range(integers.ndim)]
        return integers.astype(np.float32) * scales.reshape(along)

    def weights(self, x: NetworkTensor, shape: tuple[int, ...], axis: int) -> tuple[Operand, Operand]:
        """Returns weights and biases. Scales keep the spread of values from layer to layer; weights of an output add up
        to zero or so, else the mean of values would decide all that follows."""
        outputs, taps = shape[axis], int(np.prod(shape)) // shape[axis]
        w = self.draw.integers(-127, 128, shape)
        w = np.clip(w - w.mean(tuple(i for i in range(w.ndim) if i != axis), keepdims=True).round(), -127, 127)
        spread = OF_BYTES if any(x is given for given in self.net.inputs) else OF_RECTIFIED
        per = (self.draw.uniform(0.7, 1.4, outputs) * SPREAD / (spread * OF_BYTES * taps**0.5)).astype(np.float32)
        bias = (self.draw.standard_normal(outputs) * SPREAD / 4 / per).astype(np.int32)
        return self.constant(w.astype(np.int8), per, axis), self.constant(bias, per * self.scale)

    def convolution(
        self,
        x: NetworkTensor,
        outputs: int,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> NetworkTensor:
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        filters, bias = self.weights(x, (outputs, int(x.shape[1]) // groups, rows, columns), 0)
        y = self.net.convolution(self.numbers(x), filters, bias, stride=stride, padding="same", groups=groups)
        return self.bytes(self.net.relu(y) if relu else y)

    def dense(self, x: NetworkTensor, outputs: int, relu: bool = True) -> NetworkTensor:
        factors, bias = self.weights(x, (int(x.shape[1]), outputs), 1)
        y = self.net.add(self.net.matmul(self.numbers(x), factors), bias)
        return self.bytes(self.net.relu(y)) if relu else self.bytes(y, np.int8(0))

    def add(self, x: NetworkTensor, y: NetworkTensor) -> NetworkTensor:
        return self.bytes(self.net.relu(self.net.add(self.numbers(x), self.numbers(y))))

    def classes(self, x: NetworkTensor, outputs: int) -> None:
        """Adds what ends the three classifiers: the mean of each channel, a dense layer and its softmax."""
        mean = self.bytes(self.net.flatten(self.net.global_average_pool(self.numbers(x))))
        shares = self.net.softmax(self.numbers(self.dense(mean, outputs, relu=False), np.int8(0)), axis=1)
        self.net.output(self.bytes(shares, scale=np.float32(1 / 256)), "scores")


def image_classification(quantized: bool = True) -> pelton.Network:
    """ResNet-8 on a picture of 32 × 32."""
    of = _Layers("image_classification", quantized)
    x = of.convolution(of.input("picture", (1, 3, 32, 32)), 16)
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        y = of.convolution(of.convolution(x, outputs, stride=stride), outputs, relu=False)
        if stride > 1:
            x = of.convolution(x, outputs, 1, stride, relu=False)
        x = of.add(x, y)
    of.classes(x, 10)
    return of.net


def keyword_spotting(quantized: bool = True) -> pelton.Network:
    """DS-CNN on 49 frames of 10 features."""
    of = _Layers("keyword_spotting", quantized)
    x = of.convolution(of.input("features", (1, 1, 49, 10)), 64, (10, 4), 2)
    for _ in range(4):
        x = of.convolution(of.convolution(x, 64, groups=64), 64, 1)
    of.classes(x, 12)
    return of.net


# outputs and stride of a separable layer of MobileNetV1 (Howard et al., 2017, table 1), at a quarter of the width
SEPARABLE = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *((128, 1),) * 5, (256, 2), (256, 1))


def visual_wake_words(quantized: bool = True) -> pelton.Network:
    """MobileNetV1 0.25 on a picture of 96 × 96."""
    of = _Layers("visual_wake_words", quantized)
    x = of.convolution(of.input("picture", (1, 3, 96, 96)), 8, 3, 2)
    for outputs, stride in SEPARABLE:
        channels = int(x.shape[1])
        x = of.convolution(of.convolution(x, channels, 3, stride, groups=channels), outputs, 1)
    of.classes(x, 2)
    return of.net


def anomaly_detection(quantized: bool = True) -> pelton.Network:
    """An autoencoder of 640 features: five frames of 128."""
    of = _Layers("anomaly_detection", quantized)
    x = of.input("features", (1, 640))
    for outputs in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = of.dense(x, outputs)
    of.net.output(of.dense(x, 640, relu=False), "reconstruction")
    return of.net


def sample(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Returns a random input in i8: blocks of 4 numbers (images: 4 × 4) with noise. Their means differ."""
    *outer, columns = shape
    blocks = np.repeat(rng.integers(-128, 128, (*outer, -(-columns // 4))), 4, -1)[..., :columns]
    if len(shape) == 4:
        blocks = blocks[..., np.arange(shape[2]) // 4 * 4, :]
    return np.clip(blocks + rng.integers(-16, 17, shape), -128, 127).astype(np.int8)


@dataclass(frozen=True)
class TinyNetwork:
    """A network, its title, and the bounds of its figures on Cortex-M4 (None: no bound): bytes of RAM and of code,
    instructions of a run. `build` makes it quantized if its argument is true, else of f32."""

    build: Callable[[bool], pelton.Network]
    title: str
    ram: int | None = None
    code: int | None = None
    instructions: int | None = None


NETWORKS = {
    "image_classification": TinyNetwork(
        image_classification, "image classification (ResNet-8)", 52_352, 40 << 10, 26_000_000
    ),
    "keyword_spotting": TinyNetwork(keyword_spotting, "keyword spotting (DS-CNN)"),
    "visual_wake_words": TinyNetwork(visual_wake_words, "visual wake words (MobileNetV1 0.25)"),
    "anomaly_detection": TinyNetwork(anomaly_detection, "anomaly detection (autoencoder)"),
}
