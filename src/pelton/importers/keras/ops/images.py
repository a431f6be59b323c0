"""Operations on images."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import DType

from ..held import HeldTensor
from ..layers.images import METHODS, resized
from .operation import Operation, reads_operation


def _first(o: Operation) -> bool:
    """True if images have channels first; files state it unless it is the default."""
    layout = o.get("data_format", "channels_last")
    if layout not in ("channels_first", "channels_last"):
        raise o.refuse(f"has the data_format {layout!r:.30}")
    return layout == "channels_first"


def _each(o: Operation, name: str, axes: int, default: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = o.integers(name, low=1) if o.get(name) is not None else default
    sizes = (sizes,) * axes if isinstance(sizes, int) else sizes
    return sizes * axes if len(sizes) == 1 else sizes


@reads_operation("Resize", args=("images",))
def resize(o: Operation) -> HeldTensor:
    first, size = _first(o), o.integers("size", low=1)
    o.expect(antialias=False, crop_to_aspect_ratio=False, pad_to_aspect_ratio=False)
    o.get("fill_mode"), o.get("fill_value")
    method, x = o.get("interpolation", "bilinear"), o.held("images")
    if x.dtype is not DType.F32:
        raise o.refuse(f"resizes {x.form.type}, which is not supported")
    if method not in METHODS or x.rank != 4 or len(size) != 2:
        raise o.refuse(f"resizes by {method!r:.30}, which is not supported")
    y = resized(o.net, o.reading.image(x, first), size, method)
    return o.reading.of_image(y, first)


@reads_operation("MaxPool", "AveragePool", args=("inputs",))
def pool(o: Operation) -> HeldTensor:
    x, first, padding = o.floats("inputs"), _first(o), o.get("padding", "valid")
    axes = x.rank - 2
    size = _each(o, "pool_size", axes, 1)
    if padding not in ("valid", "same") or axes < 1:
        raise o.refuse(f"pools in an unknown way, {padding!r:.30}")
    op = o.net.max_pool if o.type == "MaxPool" else o.net.average_pool
    y = op(o.reading.image(x, first), size, stride=_each(o, "strides", axes, size), padding=padding)
    return o.reading.of_image(y, first)


@reads_operation("Conv", args=("inputs", "kernel"))
def convolution(o: Operation) -> HeldTensor:
    """Convolves with a constant kernel [window…, inputs, outputs]."""
    x, first, padding = o.floats("inputs"), _first(o), o.get("padding", "valid")
    kernel, axes = o.get("kernel"), x.rank - 2
    if not isinstance(kernel, np.ndarray) or kernel.ndim != x.rank or padding not in ("valid", "same"):
        raise o.refuse("convolves with a kernel that is computed, or in an unknown way")
    filters = np.ascontiguousarray(kernel.transpose(axes + 1, axes, *range(axes)).astype(np.float32))
    t = o.reading.image(x, first)
    y = o.net.convolution(
        t,
        filters,
        stride=_each(o, "strides", axes, 1),
        padding=padding,
        dilation=_each(o, "dilation_rate", axes, 1),
        groups=o.reading.number(t.shape[1], "its channels") // filters.shape[1],
    )
    return o.reading.of_image(y, first)
