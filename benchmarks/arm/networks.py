"""The networks whose kernels are counted. Counts depend on sizes alone, so weights may be random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import pelton
from pelton.ir.types import DType
from pelton.network.tensor import NetworkTensor

# expansion, outputs, blocks, stride (Sandler et al., "MobileNetV2", 2018, table 2)
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def resnet20() -> pelton.Network:
    """The network of the demo, on one picture of 32 × 32."""
    return pelton.import_onnx(
        Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx", {"image": (1, 3, 32, 32)}
    )


def mobilenet_v2() -> pelton.Network:
    net, draw = pelton.Network("mobilenet_v2"), np.random.default_rng(0)

    def layer(x: NetworkTensor, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> NetworkTensor:
        shape = (outputs, x.shape[1] // groups, kernel, kernel)
        w = draw.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5)
        return net.convolution(
            x, w, draw.standard_normal(outputs, np.float32), stride=stride, padding=kernel // 2, groups=groups
        )

    x = net.clip(layer(net.input("x", "f32[1, 3, 224, 224]"), 32, 3, 2), 0, 6)
    for expansion, outputs, blocks, first in INVERTED:
        for i in range(blocks):
            stride, channels = first if i == 0 else 1, x.shape[1]
            wide = channels * expansion
            y = x if expansion == 1 else net.clip(layer(x, wide), 0, 6)
            y = layer(net.clip(layer(y, wide, 3, stride, wide), 0, 6), outputs)
            x = net.add(x, y) if stride == 1 and channels == outputs else y
    x = net.flatten(net.global_average_pool(net.clip(layer(x, 1280), 0, 6)))
    net.output(net.linear(x, draw.standard_normal((1000, 1280), np.float32), np.zeros(1000, np.float32)), "scores")
    return net


def mlperf_tiny() -> pelton.Network:
    """The image classification of MLPerf Tiny, a ResNet-8 (Banbury et al., 2021), of bytes throughout."""
    net, draw = pelton.Network("mlperf_tiny"), np.random.default_rng(0)
    scale, zero = np.float32(0.05), np.int8(-128)

    def numbers(x: NetworkTensor) -> NetworkTensor:
        return net.dequantize(x, scale, zero)

    def layer(x: NetworkTensor, outputs: int, kernel: int, stride: int, relu: bool = True) -> NetworkTensor:
        channels = int(x.shape[1])
        w = draw.integers(-127, 128, (outputs, channels, kernel, kernel)).astype(np.int8)
        per = (draw.uniform(0.5, 1, outputs) * 0.02 / (kernel * channels**0.5)).astype(np.float32)
        filters = net.dequantize(w, per, np.zeros(outputs, np.int8), axis=0)
        bias = net.dequantize(
            draw.integers(-999, 999, outputs).astype(np.int32), per * scale, np.zeros(outputs, np.int32)
        )
        y = net.convolution(numbers(x), filters, bias, stride=stride, padding="same")
        return net.quantize(net.relu(y) if relu else y, scale, zero, to=DType.I8)

    x = layer(net.input("x", "i8[1, 3, 32, 32]"), 16, 3, 1)
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        y = layer(layer(x, outputs, 3, stride), outputs, 3, 1, relu=False)
        if stride > 1:
            x = layer(x, outputs, 1, stride, relu=False)
        x = net.quantize(net.relu(net.add(numbers(x), numbers(y))), scale, zero, to=DType.I8)
    net.output(x, "features")
    return net


NETWORKS: dict[str, Callable[[], pelton.Network]] = {
    "resnet20": resnet20,
    "mobilenet_v2": mobilenet_v2,
    "mlperf_tiny": mlperf_tiny,
}
