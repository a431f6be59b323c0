"""Image layers: resizing, unpooling, and pooling by regions."""

from __future__ import annotations

import math

import numpy as np

from pelton.importers.caffe.layer import LARGEST, LayerReading, reads
from pelton.ir.types import I64
from pelton.network.tensor import NetworkTensor


@reads("Interp")
def interpolate(n: LayerReading) -> NetworkTensor:
    """Resizes linearly between the corners, to a size or by factors (DeepLab); negative padding crops first."""
    p, x = n.param("interp_param"), n.image()
    if max(p.pad_beg, p.pad_end) > 0:
        raise n.refuse(f"needs padding of at most 0 (cropping), got {p.pad_beg} and {p.pad_end}")
    if p.pad_beg or p.pad_end:
        x = n.net.pad(x, [(0, 0), (0, 0), *[(p.pad_beg, p.pad_end)] * 2])
    sizes = [n.number(d, "the size of the image") for d in x.shape[2:]]
    if len(n.bottoms) > 1:
        to = [n.number(d, "the size of the second bottom") for d in n.image(1).shape[2:]]
    elif p.height or p.width:
        to = [p.height, p.width]
    elif p.shrink_factor < 1 or p.zoom_factor < 1:
        raise n.refuse(f"needs factors of 1 and more, got {p.shrink_factor} and {p.zoom_factor}")
    else:
        shrunk = [(d - 1) // p.shrink_factor + 1 for d in sizes]
        to = [d + (d - 1) * (p.zoom_factor - 1) for d in shrunk]
    if len(to) != 2 or not all(1 <= d <= LARGEST for d in to):
        raise n.refuse(f"needs a height and a width of 1 and more, got {to}")
    _check(n, x, to)
    return x if to == sizes else n.net.resize(x, to, mode="linear", coordinates="align_corners", name=n.name)


@reads("Upsample")
def upsample(n: LayerReading) -> NetworkTensor:
    """Puts elements back where a pooling's mask found them, zeros elsewhere (SegNet); without a mask, repeats each
    element."""
    p, x = n.param("upsample_param"), n.image()
    factors = (p.scale_h or p.scale, p.scale_w or p.scale)
    if min(factors) < 1:
        raise n.refuse(f"needs a scale of 1 and more, got {factors}")
    sizes = [n.number(d, "the size of the image") for d in x.shape[2:]]
    to = [
        target or size * factor - odd
        for target, size, factor, odd in zip((p.upsample_h, p.upsample_w), sizes, factors, (p.pad_out_h, p.pad_out_w))
    ]
    _check(n, x, to)
    if len(n.bottoms) == 1:
        return n.net.resize(x, to, mode="nearest", coordinates="asymmetric", nearest="floor", name=n.name)
    mask = n.input(1)
    if mask.shape != x.shape:
        raise n.refuse(f"needs a mask of the shape of {x!r}, got {mask!r}")
    rows = n.number(x.shape[0] * x.shape[1], "the batch")
    places = n.net.reshape(n.net.cast(mask, to=I64), (rows, math.prod(sizes)))
    empty = n.net.expand(np.float32(0), (rows, math.prod(to)))
    full = n.net.scatter_elements(empty, places, n.net.reshape(x, (rows, math.prod(sizes))), axis=1)
    return n.net.reshape(full, (*x.shape[:2], *to), name=n.name)


def _check(n: LayerReading, x: NetworkTensor, to: list[int]) -> None:
    if min(to) < 1 or math.prod(to) * n.number(x.shape[1], "the number of channels") > LARGEST:
        raise n.refuse(f"needs sizes of 1 and more, and at most {LARGEST} elements, got {to}")


@reads("ROIPooling")
def regions(n: LayerReading) -> NetworkTensor:
    """Returns the maxima of the bins of each region [image, x₁, y₁, x₂, y₂] (Fast R-CNN)."""
    p, x = n.param("roi_pooling_param"), n.image()
    if n.input(1).rank < 2:
        raise n.refuse(f"needs regions [regions, 5] as its second bottom, got {n.input(1)!r}")
    rois = n.net.reshape(n.input(1), (n.input(1).shape[0], 5))
    if min(p.pooled_h, p.pooled_w) < 1:
        raise n.refuse(f"needs pooled_h and pooled_w of 1 and more, got {p.pooled_h} and {p.pooled_w}")
    batch = n.net.cast(rois[:, 0], to=I64)
    how = dict(height=p.pooled_h, width=p.pooled_w, scale=p.spatial_scale)
    return n.net.max_roi_pool(x, rois[:, 1:], batch, **how, name=n.name)
