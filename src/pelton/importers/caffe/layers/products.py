"""Convolutions, matrix products and embedding tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.importers.caffe.schema import Message
from pelton.ir.types import I64
from pelton.network.tensor import NetworkTensor


def _spatial(n: LayerReading, p: Message, field: str, space: int, default: int | None, pair: str = "") -> list[int]:
    """Returns sizes along each spatial axis: given once, for each axis, or as height and width."""
    pair = pair or field
    if p.DESCRIPTOR.fields_by_name.get(f"{pair}_h") and (p.HasField(f"{pair}_h") or p.HasField(f"{pair}_w")):
        if space != 2 or getattr(p, field):
            raise n.refuse(f"needs either {field} or, for images of two axes, {pair}_h and {pair}_w")
        return [getattr(p, f"{pair}_h"), getattr(p, f"{pair}_w")]
    sizes = list(getattr(p, field)) or ([] if default is None else [default])
    if len(sizes) not in (1, space):
        raise n.refuse(f"needs {field} once, or for each of {space} axes, got {sizes}")
    return sizes * space if len(sizes) == 1 else sizes


def _window(n: LayerReading, p: Message, x: NetworkTensor) -> tuple[list[int], dict[str, list[int]]]:
    """Returns the kernel of a convolution, and its stride, padding and dilation."""
    if n.axis(p.axis, x.rank) != 1 or x.rank < 3:
        raise n.refuse(f"needs images of channels along axis 1, got {x!r} and axis {p.axis}")
    space = x.rank - 2
    kernel = _spatial(n, p, "kernel_size", space, None, "kernel")
    how = {
        "stride": _spatial(n, p, "stride", space, 1),
        "padding": _spatial(n, p, "pad", space, 0),
        "dilation": _spatial(n, p, "dilation", space, 1),
    }
    if min(*kernel, *how["stride"], *how["dilation"]) < 1:
        raise n.refuse(f"needs a kernel, strides and dilations of 1 and more, got {kernel} and {how}")
    return kernel, how


def _channels(n: LayerReading, x: NetworkTensor, outputs: int, groups: int) -> int:
    channels = n.number(x.shape[1], "the number of channels")
    if outputs < 1 or groups < 1 or channels % groups or outputs % groups:
        raise n.refuse(f"needs {channels} channels and num_output {outputs} divisible by group {groups}")
    return channels


@reads("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution")
def convolution(n: LayerReading) -> Sequence[NetworkTensor]:
    p, x = n.param("convolution_param"), n.input()
    kernel, how = _window(n, p, x)
    groups = p.group if n.type == "Convolution" else n.number(x.shape[1], "the number of channels")
    channels = _channels(n, x, p.num_output, groups)
    weight = n.filled((p.num_output, channels // groups, *kernel), p, "weight_filler")
    bias = n.filled((p.num_output,), p, "bias_filler", 0) if p.bias_term else None
    return [n.net.convolution(x, weight, bias, **how, groups=groups, name=n.name) for x in n.inputs]


@reads("Deconvolution")
def deconvolution(n: LayerReading) -> Sequence[NetworkTensor]:
    p, x = n.param("convolution_param"), n.input()
    kernel, how = _window(n, p, x)
    channels = _channels(n, x, p.num_output, p.group)
    weight = n.filled((channels, p.num_output // p.group, *kernel), p, "weight_filler")
    bias = n.filled((p.num_output,), p, "bias_filler", 0) if p.bias_term else None
    return [n.net.deconvolution(x, weight, bias, **how, groups=p.group, name=n.name) for x in n.inputs]


@reads("Im2col")
def im2col(n: LayerReading) -> Sequence[NetworkTensor]:
    """Returns the window of each pixel as channels: a convolution with filters of one tap each."""
    p, x = n.param("convolution_param"), n.input()
    kernel, how = _window(n, p, x)
    channels, count = n.number(x.shape[1], "the number of channels"), math.prod(kernel)
    if channels * count**2 > 1 << 24:
        raise n.refuse(f"needs a smaller window than {kernel} of {channels} channels")
    taps = np.tile(np.eye(count, dtype=np.float32).reshape(count, 1, *kernel), (channels, 1, *[1] * len(kernel)))
    return [n.net.convolution(x, taps, **how, groups=channels, name=n.name) for x in n.inputs]


@reads("InnerProduct")
def inner_product(n: LayerReading) -> Sequence[NetworkTensor]:
    p, x = n.param("inner_product_param"), n.input()
    axis = n.axis(p.axis, x.rank)
    features = n.number(math.prod(x.shape[axis:]), "the number of elements that it multiplies")
    weight = n.filled((features, p.num_output) if p.transpose else (p.num_output, features), p, "weight_filler")
    bias = n.filled((p.num_output,), p, "bias_filler", 0) if p.bias_term else None
    columns = weight if p.transpose else np.ascontiguousarray(weight.T)
    rows = [n.net.reshape(x, (*x.shape[:axis], features)) for x in n.inputs]
    if bias is None:
        return [n.net.matmul(x, columns, name=n.name) for x in rows]
    return [n.net.add(n.net.matmul(x, columns), bias, name=n.name) for x in rows]


@reads("Embed")
def embed(n: LayerReading) -> NetworkTensor:
    p = n.param("embed_param")
    table = n.filled((p.input_dim, p.num_output), p, "weight_filler")
    if p.bias_term:
        table = table + n.filled((p.num_output,), p, "bias_filler", 0)
    return n.net.embedding(table, n.net.cast(n.input(), to=I64), name=n.name)


@reads("Parameter")
def parameter(n: LayerReading) -> NetworkTensor:
    return n.net.constant(n.blob(tuple(n.param("parameter_param").shape.dim)), n.name)
