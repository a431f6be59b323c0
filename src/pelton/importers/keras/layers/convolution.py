"""Convolutions."""

from __future__ import annotations

import numpy as np

from pelton.network import NetworkTensor

from ..activations import activated
from ..config import LayerConfig
from ..held import HeldTensor
from ..reading import KerasReading, reads


def kernel_and_bias(layer: LayerConfig) -> list[str]:
    return ["kernel", *["bias"] * layer.flag("use_bias", True)]


def _parts(layer: LayerConfig) -> list[str]:
    return ["depthwise_kernel", "pointwise_kernel", *["bias"] * layer.flag("use_bias", True)]


def _image(r: KerasReading, axes: int) -> tuple[NetworkTensor, bool]:
    """Returns the input as [batch, channels, space…], and True if Keras has it so too."""
    first = r.is_channels_first()
    return r.image(r.floats((axes + 2,)), first), first


def _bias(r: KerasReading, outputs: int) -> np.ndarray | None:
    return r.variable("bias", outputs) if r.layer.flag("use_bias", True) else None


def _filters(kernel: np.ndarray) -> np.ndarray:
    """Transposes [window…, inputs, outputs] to [outputs, inputs, window…]."""
    axes = kernel.ndim
    return np.ascontiguousarray(kernel.transpose(axes - 1, axes - 2, *range(axes - 2)))


def _convolved(
    r: KerasReading, x: NetworkTensor, filters: np.ndarray, bias: np.ndarray | None, groups: int
) -> NetworkTensor:
    axes = x.rank - 2
    strides, dilations = r.layer.integers("strides", axes), r.layer.integers("dilation_rate", axes)
    padding = r.layer.choice("padding", "valid", "same", "causal")
    pads = padding
    if padding == "causal":
        if axes != 1:
            raise r.refuse("has causal padding, which needs one axis")
        pads = [((filters.shape[2] - 1) * dilations[0], 0)]
    return r.net.convolution(x, filters, bias, stride=strides, padding=pads, dilation=dilations, groups=groups)


@reads("Conv1D", "Conv2D", "Conv3D", variables=kernel_and_bias)
def convolution(r: KerasReading) -> HeldTensor:
    axes, outputs = int(r.layer.type[4]), r.layer.integer("filters")
    x, first = _image(r, axes)
    groups, channels = r.layer.integer("groups", 1), r.number(x.shape[1], "its channels")
    window = r.layer.integers("kernel_size", axes)
    kernel = r.variable("kernel", *window, channels // groups, outputs)
    y = _convolved(r, x, _filters(kernel), _bias(r, outputs), groups)
    return activated(r, r.of_image(y, first))


@reads("DepthwiseConv1D", "DepthwiseConv2D", variables=kernel_and_bias)
def depthwise(r: KerasReading) -> HeldTensor:
    axes = int(r.layer.type[-2])
    x, first = _image(r, axes)
    r.layer.expect(groups=1)
    channels, each = r.number(x.shape[1], "its channels"), r.layer.integer("depth_multiplier", 1)
    filters = _depthwise(r.variable("kernel", *r.layer.integers("kernel_size", axes), channels, each))
    y = _convolved(r, x, filters, _bias(r, channels * each), channels)
    return activated(r, r.of_image(y, first))


def _depthwise(kernel: np.ndarray) -> np.ndarray:
    """Transposes [window…, channels, each] to [channels · each, 1, window…]."""
    axes = kernel.ndim - 2
    filters = kernel.transpose(axes, axes + 1, *range(axes))
    return np.ascontiguousarray(filters.reshape(-1, 1, *kernel.shape[:axes]))


@reads("SeparableConv1D", "SeparableConv2D", variables=_parts)
def separable(r: KerasReading) -> HeldTensor:
    axes, outputs = int(r.layer.type[-2]), r.layer.integer("filters")
    x, first = _image(r, axes)
    r.layer.expect(groups=1)
    channels, each = r.number(x.shape[1], "its channels"), r.layer.integer("depth_multiplier", 1)
    window = r.layer.integers("kernel_size", axes)
    filters = _depthwise(r.variable("depthwise_kernel", *window, channels, each))
    pointwise = r.variable("pointwise_kernel", *[1] * axes, channels * each, outputs)
    y = _convolved(r, x, filters, None, channels)
    y = r.net.convolution(y, _filters(pointwise), _bias(r, outputs))
    r.layer.ignore("kernel_initializer", "kernel_regularizer", "kernel_constraint")
    return activated(r, r.of_image(y, first))


@reads("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", variables=kernel_and_bias)
def transposed(r: KerasReading) -> HeldTensor:
    axes, outputs = int(r.layer.type[4]), r.layer.integer("filters")
    x, first = _image(r, axes)
    r.layer.expect(groups=1)
    channels = r.number(x.shape[1], "its channels")
    window = r.layer.integers("kernel_size", axes)
    strides, dilations = r.layer.integers("strides", axes), r.layer.integers("dilation_rate", axes, default=1)
    same = r.layer.choice("padding", "valid", "same") == "same"
    output_padding = r.layer.option("output_padding", None)
    extra = None if output_padding is None else r.layer.integers("output_padding", axes, low=0)
    kernel = r.variable("kernel", *window, outputs, channels)
    pads, behind = [], []
    for i in range(axes):
        reach = (window[i] - 1) * dilations[i] + 1
        cut = _cut(reach, strides[i], same, None if extra is None else extra[i])
        pads.append((max(cut, 0) // 2, max(cut, 0) - max(cut, 0) // 2))
        behind.append(max(-cut, 0))
    weight = np.ascontiguousarray(kernel.transpose(axes + 1, axes, *range(axes)))
    y = r.net.deconvolution(
        x,
        weight,
        _bias(r, outputs),
        stride=strides,
        padding=pads,
        dilation=dilations,
        output_padding=behind,
    )
    return activated(r, r.of_image(y, first))


def _cut(reach: int, stride: int, same: bool, extra: int | None) -> int:
    """Returns by how many elements TensorFlow's output is shorter than (size − 1) · stride + reach along an axis."""
    if extra is None:
        return reach - stride if same else min(reach - stride, 0)
    return reach - reach % 2 - extra if same else -extra
