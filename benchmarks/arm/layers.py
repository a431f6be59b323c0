"""The convolutions of a network: their sizes and their numbers of multiply-adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pelton.ir.graph import Graph
from pelton.ops.words import convolution


@dataclass(frozen=True)
class ConvolutionLayer:
    """A convolution of square windows: its sizes, as xnnpack.c reads them."""

    name: str
    height: int
    width: int
    channels: int
    outputs: int
    kernel: int
    stride: int
    before: int  # padding above and to the left
    after: int
    groups: int

    @property
    def sizes(self) -> tuple[int, ...]:
        image = (self.height, self.width, self.channels, self.outputs)
        return *image, self.kernel, self.stride, self.before, self.after, self.groups

    @property
    def products(self) -> int:
        """The number of multiply-adds, those with padding included."""
        extra = self.before + self.after - self.kernel
        high, wide = ((size + extra) // self.stride + 1 for size in (self.height, self.width))
        return high * wide * self.outputs * self.channels // self.groups * self.kernel**2

    def __str__(self) -> str:
        kind = "depthwise " if self.groups == self.channels > 1 else ""
        stride = f" / {self.stride}" if self.stride > 1 else ""
        return f"{kind}{self.kernel}×{self.kernel}{stride}, {self.height}×{self.width}×{self.channels} → {self.outputs}"


def convolutions(graph: Graph) -> list[ConvolutionLayer]:
    """Returns the convolutions of a program of fixed sizes, in its order."""
    layers = []
    for node in graph.nodes:
        if node.op is not convolution:
            continue
        x, w = (v.type.shape for v in node.inputs[:2])
        strides, pads = node.attrs["strides"], node.attrs["pads"]
        square = w[2] == w[3] and strides[0] == strides[1] and pads[0] == pads[1] and pads[2] == pads[3]
        if not square or math.prod(node.attrs["dilations"]) != 1:
            raise ValueError(f"{node.name}: windows, strides and padding must be square, without dilation")
        sizes = (x[2], x[3], x[1], w[0], w[2], strides[0], pads[0], pads[2], node.attrs["group"])
        layers.append(ConvolutionLayer(node.name, *map(int, sizes)))
    return layers
