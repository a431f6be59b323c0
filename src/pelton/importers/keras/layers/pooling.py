"""Pools, of windows and of whole images."""

from __future__ import annotations

from ..held import HeldTensor
from ..reading import KerasReading, reads


@reads(
    *(f"{kind}{n}D" for kind in ("MaxPooling", "MaxPool", "AveragePooling", "AvgPool") for n in (1, 2, 3)),
)
def pool(r: KerasReading) -> HeldTensor:
    axes, first = int(r.layer.type[-2]), r.is_channels_first()
    x = r.image(r.floats((axes + 2,)), first)
    size = r.layer.integers("pool_size", axes)
    strides = size if r.layer.option("strides", None) is None else r.layer.integers("strides", axes)
    padding = r.layer.choice("padding", "valid", "same")
    pooled = r.net.max_pool if r.layer.type.startswith("Max") else r.net.average_pool
    return r.of_image(pooled(x, size, stride=strides, padding=padding), first)


GLOBAL = ("GlobalMaxPooling", "GlobalMaxPool", "GlobalAveragePooling", "GlobalAvgPool")


@reads(*(f"{kind}{n}D" for kind in GLOBAL for n in (2, 3)), "GlobalMaxPooling1D", "GlobalMaxPool1D")
@reads("GlobalAveragePooling1D", "GlobalAvgPool1D", masks=True)
def global_pool(r: KerasReading) -> HeldTensor:
    axes, first = int(r.layer.type[-2]), r.is_channels_first()
    x, keeps = r.floats((axes + 2,)), r.layer.flag("keepdims", False)
    reduce = r.net.reduce_max if "Max" in r.layer.type else r.net.reduce_mean
    y = reduce(r.image(x, first), axes=tuple(range(2, axes + 2)), keepdims=keeps)
    return r.of_image(y, first) if keeps else r.of(y)
