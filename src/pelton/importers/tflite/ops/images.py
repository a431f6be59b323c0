"""Convolutions, pools, resizing and other operators of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Size, equal, is_known, maximum
from pelton.ir.imported import OnData
from pelton.ir.types import DType
from pelton.network import NetworkTensor

from ..held import ChannelsFirst
from ..node import Given, TFLiteReading, reads


def bias_of(n: TFLiteReading, i: int, weight: int, axis: int, outputs: Any) -> Any:
    """Returns a bias; integers are in units of the scales of the image and the weights, unless it has its own scale."""
    if not n.has(i):
        return np.zeros(outputs, np.float32)
    bias = n.given(i)
    if bias.rank != 1:
        raise n.refuse(f"needs a bias of one axis, got {bias.spec}")
    if bias.spec.dtype not in (DType.I32, DType.I64):
        return bias.real()
    stated, x, w = (n.given(k).spec.quantization for k in (i, 0, weight))
    if stated is not None and (stated.scale > 0).all():
        unit = stated.scale
    elif x is not None and w is not None and not w.block:
        unit = x.scale * w.scale
    else:
        raise n.refuse(f"has a bias of integers, {bias.spec}, without scales")
    elements = bias.elements()
    if isinstance(elements, np.ndarray) and elements.dtype == np.int64 and np.abs(elements).max(initial=0) < 1 << 31:
        elements = elements.astype(np.int32)
    unit = unit.astype(np.float32)
    return n.net.dequantize(elements, unit.reshape(()) if unit.size == 1 else unit, axis=0)


def _image(n: TFLiteReading, rank: int) -> NetworkTensor:
    x = n.given(0)
    if x.rank != rank:
        raise n.refuse(f"needs an input of {rank} axes, got {x.spec}")
    return n.image(0)


def _weights(n: TFLiteReading, i: int, perm: Sequence[int]) -> NetworkTensor:
    w = n.given(i)
    if w.rank != len(perm):
        raise n.refuse(f"needs weights of {len(perm)} axes, got {w.spec}")
    return w.transposed(perm)


@reads("CONV_2D")
def convolution(n: TFLiteReading) -> Given:
    """Reads filters as [outputs, height, width, channels of a group]."""
    x, w = _image(n, 4), _weights(n, 1, (0, 3, 1, 2))
    groups = _groups(n, x, w)
    y = n.net.convolution(
        x,
        w,
        bias_of(n, 2, 1, 0, w.shape[0]),
        stride=n.strides(),
        padding=n.padding,
        dilation=n.strides("dilation"),
        groups=groups,
    )
    return ChannelsFirst(n.activated(y))


def _groups(n: TFLiteReading, x: NetworkTensor, w: NetworkTensor) -> int:
    channels, each = x.shape[1], w.shape[1]
    if not is_known(channels) and equal(channels, each):  # requires as many
        return 1
    if not is_known(channels, each) or each == 0 or channels % each:
        raise n.refuse(f"has filters of {each} channels for an image of {channels}")
    return int(channels // each)


@reads("DEPTHWISE_CONV_2D")
def depthwise(n: TFLiteReading) -> Given:
    """Reads filters as [1, height, width, outputs]; the multiplier gives the number of filters per channel."""
    x, w = _image(n, 4), _weights(n, 1, (3, 0, 1, 2))
    channels, outputs, multiplier = x.shape[1], w.shape[0], n.option("multiplier")
    if not is_known(channels) and multiplier > 0:
        equal(channels * multiplier, outputs)  # requires as many
    if not is_known(channels, outputs) or channels == 0 or outputs % channels or w.shape[1] != 1:
        raise n.refuse(f"has {outputs} filters for {channels} channels")
    y = n.net.convolution(
        x,
        w,
        bias_of(n, 2, 1, 3, outputs),
        stride=n.strides(),
        padding=n.padding,
        dilation=n.strides("dilation"),
        groups=channels,
    )
    return ChannelsFirst(n.activated(y))


@reads("CONV_3D")
def convolution_of_volumes(n: TFLiteReading) -> Given:
    """Reads filters as [depth, height, width, channels, outputs]."""
    x, w = _image(n, 5), _weights(n, 1, (4, 3, 0, 1, 2))
    strides, dilations = n.strides(axes="dhw"), n.strides("dilation", axes="dhw")
    bias = bias_of(n, 2, 1, 4, w.shape[0])
    y = n.net.convolution(x, w, bias, stride=strides, padding=n.padding, dilation=dilations, groups=_groups(n, x, w))
    return ChannelsFirst(n.activated(y))


@reads("TRANSPOSE_CONV")
def transposed_convolution(n: TFLiteReading) -> Given:
    """Reads the shape of the output, filters [outputs, height, width, channels], the image, and a bias."""
    shape, strides = n.integers(0, "shape"), n.strides()
    image, w = n.given(2), _weights(n, 1, (3, 0, 1, 2))
    if len(shape) != 4 or image.rank != 4:
        raise n.refuse(f"needs an image and a shape of 4 axes, got {image.spec} and {list(shape)}")
    x = n.image(2)
    sizes = shape[1:3]
    space = zip(w.shape[2:], strides, sizes)
    before = [maximum((-(-out // s) - 1) * s + k - out, 0) // 2 if n.padding == "same" else 0 for k, s, out in space]
    bias = bias_of(n, 3, 1, 0, w.shape[1]) if n.has(3) else np.zeros(w.shape[1], np.float32)
    return ChannelsFirst(n.activated(deconvolution(n, x, w, bias, strides, before, sizes)))


def deconvolution(
    n: TFLiteReading,
    x: NetworkTensor,
    w: NetworkTensor,
    bias: Any,
    strides: Sequence[int],
    before: Sequence[Size],
    sizes: Sequence[Size],
) -> NetworkTensor:
    """Computes a transposed convolution, cropped by `before` elements in front, of these sizes."""
    whole = [(d - 1) * s + k for d, k, s in zip(x.shape[2:], w.shape[2:], strides)]
    rest = [w - b - size for w, b, size in zip(whole, before, sizes)]
    if not is_known(*before, *rest):
        raise OnData(
            f"{n.op} needs a known padding from {list(sizes)} to {list(x.shape[2:])}; fix the inputs' sizes with"
            f" shapes= ({n.where})"
        )
    if any(size < 1 or -r >= s for size, r, s in zip(sizes, rest, strides)):
        raise n.refuse(f"cannot make {list(sizes)} out of {list(x.shape[2:])} by strides of {list(strides)}")
    return n.net.deconvolution(
        x,
        w,
        bias,
        stride=strides,
        padding=[(b, max(r, 0)) for b, r in zip(before, rest)],
        output_padding=[max(-r, 0) for r in rest],
    )


@reads("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")
def pool(n: TFLiteReading) -> Given:
    attrs: dict[str, Any] = dict(stride=n.strides(), padding=n.padding)
    kernel = n.strides("filter")
    if n.op == "MAX_POOL_2D":
        moves = n.moves(0) and n.given(0).spec.dtype is not DType.I4 and n.option("activation") == 0
        x = n.given(0).raw(first=True) if moves else _image(n, 4)
        y = n.net.max_pool(x, kernel, **attrs)
        return ChannelsFirst(y if moves else n.activated(y))
    x = _image(n, 4)
    if n.op == "AVERAGE_POOL_2D":
        whole = n.padding == "valid" and kernel == x.shape[2:]
        y = n.net.global_average_pool(x) if whole else n.net.average_pool(x, kernel, **attrs)
    else:
        y = n.net.sqrt(n.net.average_pool(n.net.mul(x, x), kernel, **attrs))
    return ChannelsFirst(n.activated(y))


@reads("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(n: TFLiteReading) -> Given:
    size, linear = n.integers(1, "size"), n.op == "RESIZE_BILINEAR"
    if len(size) != 2:
        raise n.refuse(f"needs a height and a width, got {list(size)}")
    for d in size:
        n.at_least(d, 1, f"needs a height and a width of 1 and more, got {list(size)}")
    x, moves = _image(n, 4), not linear and n.moves(0)
    if n.option("align_corners"):
        coordinates = "align_corners"
    elif linear:
        coordinates = "half_pixel" if n.option("half_pixel") else "asymmetric"
    else:
        coordinates = "tf_half_pixel_for_nn" if n.option("half_pixel") else "asymmetric"
    nearest = "round_prefer_ceil" if n.option("align_corners") else "floor"
    y = n.net.resize(
        n.given(0).raw(first=True) if moves else x,
        size,
        mode="linear" if linear else "nearest",
        coordinates=coordinates,
        nearest=nearest,
    )
    return ChannelsFirst(y)


@reads("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def blocks(n: TFLiteReading) -> Given:
    block, x = n.option("block"), n.moved(0, first=True)
    if block < 1:
        raise n.refuse(f"needs a block of 1 and more, got {block}")
    if n.op == "SPACE_TO_DEPTH":
        return ChannelsFirst(n.net.space_to_depth(x, block=block))
    return ChannelsFirst(n.net.depth_to_space(x, block=block))


@reads("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(n: TFLiteReading) -> Given:
    radius, bias, alpha, beta = (n.option(k) for k in ("radius", "bias", "alpha", "beta"))
    size = 2 * radius + 1  # ONNX divides alpha by it, TFLite does not
    return ChannelsFirst(n.net.lrn(_image(n, 4), size=size, alpha=alpha * size, beta=beta, bias=bias))


@reads("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def batches(n: TFLiteReading) -> Given:
    """Moves blocks of space to the batch, as dilated convolutions were once written, and back."""
    net, x = n.net, n.moved(0)
    block, edges = n.known(1, "block"), n.integers(2, "edges")
    space = len(block)
    reason = f"needs blocks and edges of the axes of {x!r}, got {list(block)} and {list(edges)}"
    if x.rank < space + 1 or len(edges) != 2 * space or any(b < 1 for b in block):
        raise n.refuse(reason)
    for edge in edges:
        n.at_least(edge, 0, reason)
    pairs, rest = list(zip(edges[::2], edges[1::2])), x.shape[space + 1 :]
    if n.op == "SPACE_TO_BATCH_ND":
        zero = stored_zero(n)
        x = net.pad(x, [(0, 0), *pairs, *[(0, 0)] * len(rest)], zero) if any(e != 0 for e in edges) else x
        if not all(equal(d % b, 0) for d, b in zip(x.shape[1 : space + 1], block)):
            raise n.refuse(f"cannot cut {x!r} into blocks of {list(block)}")
        sizes = [part for d, b in zip(x.shape[1 : space + 1], block) for part in (d // b, b)]
        y = net.reshape(x, (x.shape[0], *sizes, *rest))
        inner, outer = range(2, 2 * space + 1, 2), range(1, 2 * space, 2)
        y = net.transpose(y, (*inner, 0, *outer, *range(2 * space + 1, y.rank)))
        return net.reshape(y, (x.shape[0] * int(np.prod(block)), *sizes[::2], *rest))
    batch = x.shape[0] // int(np.prod(block))
    y = net.reshape(x, (*block, batch, *x.shape[1:]))
    order = [axis for i in range(space) for axis in (space + 1 + i, i)]
    y = net.transpose(y, (space, *order, *range(2 * space + 1, y.rank)))
    y = net.reshape(y, (batch, *(d * b for d, b in zip(x.shape[1 : space + 1], block)), *rest))
    cut = [slice(a, d - b) for d, (a, b) in zip(y.shape[1 : space + 1], pairs)]
    return n.net.index(y, (slice(None), *cut)) if any(e != 0 for e in edges) else y


def stored_zero(n: TFLiteReading) -> np.ndarray:
    """Returns the stored element for 0, of the type of `moved`."""
    x = n.given(0)
    if not n.moves(0) or not x.is_quantized:
        dtype = x.spec.dtype if not x.is_quantized else DType.F32
        return np.zeros((), dtype.numpy if dtype else np.float32)
    assert x.spec.quantization is not None and x.spec.dtype is not None
    return np.asarray(x.spec.quantization.zero[0], x.spec.dtype.numpy)
