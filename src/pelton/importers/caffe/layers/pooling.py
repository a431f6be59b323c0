"""Pooling as Caffe defines it: sizes round up, and means include the padding within a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.importers.caffe.schema import Message, enum_name
from pelton.ir.dims import Size, is_known
from pelton.ir.types import F32
from pelton.network.tensor import NetworkTensor

Ints = Sequence[int]
TINY = float(np.finfo(np.float32).tiny)  # keeps stochastic pooling from dividing zero by zero


@reads("Pooling")
def pooling(n: LayerReading) -> Sequence[NetworkTensor]:
    p, x = n.param("pooling_param"), n.image()
    method = enum_name(p, "PoolMethod", p.pool)
    with_mask = len(n.tops) > 1
    if p.global_pooling:
        if with_mask:
            raise n.refuse("has a mask only with a kernel_size, not with global_pooling")
        return [_over_all(n, x, method)]
    kernel, stride, padding = (_pair(n, p, *names) for names in (("kernel_size", "kernel"), ("stride",), ("pad",)))
    if min(*kernel, *stride) < 1 or any(before >= size for before, size in zip(padding, kernel)):
        raise n.refuse(
            f"needs a kernel and strides of 1 and more, and less padding than the kernel, got kernel {kernel}, strides"
            f" {stride}, padding {padding}"
        )
    rounds_up = (
        p.ceil_mode and p.round_mode == p.DESCRIPTOR.enum_types_by_name["RoundMode"].values_by_name["CEIL"].number
    )
    if rounds_up:
        kernel = [_within(*sizes) for sizes in zip(x.shape[2:], kernel, stride, padding)]
    y = pool(n, x, method, kernel, stride, padding, rounds_up)
    return [y, _mask(n, x, kernel, stride, padding, rounds_up)] if with_mask else [y]


def _pair(n: LayerReading, p: Message, field: str, pair: str = "") -> list[int]:
    pair = pair or field
    if p.HasField(f"{pair}_h") or p.HasField(f"{pair}_w"):
        if p.HasField(field):
            raise n.refuse(f"needs either {field} or {pair}_h and {pair}_w")
        return [getattr(p, f"{pair}_h"), getattr(p, f"{pair}_w")]
    return [getattr(p, field)] * 2


def _within(size: Size, kernel: int, stride: int, padding: int) -> int:
    """Shrinks a kernel larger than the image to the image, if it has one window."""
    reach = size + 2 * padding
    return int(reach) if is_known(reach) and 0 < kernel - reach < stride else kernel


def _over_all(n: LayerReading, x: NetworkTensor, method: str) -> NetworkTensor:
    if method == "MAX":
        return n.net.reduce_max(x, axes=(2, 3), keepdims=True, name=n.name)
    mean = n.net.global_average_pool(x, name=n.name if method == "AVE" else "")
    return mean if method == "AVE" else n.net.div(n.net.global_average_pool(x * x), mean + TINY, name=n.name)


def pool(
    n: LayerReading, x: NetworkTensor, method: str, kernel: Ints, stride: Ints, padding: Ints, rounds_up: bool
) -> NetworkTensor:
    """Pools ⌈(size + 2 · padding − kernel) / stride⌉ + 1 windows, without one that would start in the padding behind,
    as in `ceil_mode`. Without any padding, Caffe keeps that window, which is empty."""
    window: dict[str, Any] = dict(stride=stride, padding=padding, ceil_mode=rounds_up)
    beyond = _empty_windows(x, kernel, stride) if rounds_up and not any(padding) else [0, 0]
    name = "" if any(beyond) else n.name
    if method == "MAX":
        y = n.net.max_pool(x, kernel, **window, name=name)
    elif method == "AVE":
        y = n.net.average_pool(x, kernel, **window, count_include_pad=True, name=name)
    else:  # the expectation of elements drawn with probability proportional to their size
        means = [n.net.average_pool(v, kernel, **window) for v in (x * x, x)]
        y = n.net.div(means[0], means[1] + TINY, name=name)
    if not any(beyond):
        return y
    nothing = np.float32(np.finfo(np.float32).min if method == "MAX" else 0)
    return n.net.pad(y, [(0, 0), (0, 0), *((0, more) for more in beyond)], nothing, name=n.name)


def _empty_windows(x: NetworkTensor, kernel: Ints, stride: Ints) -> list[int]:
    """Returns, for each axis, 1 if the last window starts behind the image, else 0."""
    return [
        int(is_known(size) and s > k and -(-(size - k) // s) * s >= size)
        for size, k, s in zip(x.shape[2:], kernel, stride)
    ]


def _mask(
    n: LayerReading, x: NetworkTensor, kernel: Ints, stride: Ints, padding: Ints, rounds_up: bool
) -> NetworkTensor:
    """Returns the indices of the largest elements within each channel."""
    height, width = (n.number(d, "the size of the image") for d in x.shape[2:])
    if rounds_up and not any(padding) and any(_empty_windows(x, kernel, stride)):
        raise n.refuse(f"has no mask for windows that start behind the image (kernel {kernel}, stride {stride})")
    places = n.net.max_pool_places(
        x,
        kernel=tuple(kernel),
        strides=tuple(stride),
        pads=(*padding, *padding),
        dilations=(1, 1),
        ceil_mode=rounds_up,
    )
    return n.net.cast(n.net.mod(places, height * width), to=F32)


@reads("SPP")
def spatial_pyramid(n: LayerReading) -> NetworkTensor:
    """Concatenates poolings into 1, 2², 4², … bins (He et al. 2014)."""
    p, x = n.param("spp_param"), n.image()
    height, width = (n.number(d, "the size of the image") for d in x.shape[2:])
    method = enum_name(p, "PoolMethod", p.pool)
    if not 1 <= p.pyramid_height <= 16 or 2 ** (p.pyramid_height - 1) > min(height, width):
        raise n.refuse(
            f"needs a pyramid_height from 1 to the maximum of {height} × {width} elements, got {p.pyramid_height}"
        )
    parts = []
    for level in range(p.pyramid_height):
        bins = 2**level
        kernel = [-(-size // bins) for size in (height, width)]
        padding = [(k * bins - size + 1) // 2 for k, size in zip(kernel, (height, width))]
        if any(before >= k for before, k in zip(padding, kernel)):
            raise n.refuse(f"needs an image that {bins} bins fit into, got {height} × {width}")
        parts.append(n.net.flatten(pool(n, x, method, kernel, kernel, padding, True)))
    return n.net.concat(parts, 1, name=n.name)
