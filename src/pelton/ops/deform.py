"""Deformable convolutions: each tap reads at an offset that is part of the data."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import TensorType

from .conv import convolution
from .math import add, cast, mul
from .op import TermLike, composite, expect, expect_equal
from .sample import blend, taps, wide
from .shape import reshape, slice_
from .windows import Ints, check_window, window_sizes


@composite(
    "DeformConv",
    examples=(
        (
            "f32[1, 4, 6, 7]",
            "f32[3, 4, 2, 3]",
            "f32[1, 24, 3, 8]",
            "f32[3]",
            "f32[1, 12, 3, 8]",
            dict(strides=(2, 1), pads=(0, 1, 1, 2), dilations=(1, 1), group=1, offset_group=2),
        ),
        (
            "f32[2, 4, 6, 7]",
            "f32[6, 2, 2, 2]",
            "f32[2, 8, 5, 6]",
            "f32[6]",
            "f32[2, 4, 5, 6]",
            dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=2, offset_group=1),
        ),
    ),
)
class deform_convolution:
    """A convolution each of whose taps reads X at an offset of its own, between the elements (zeros outside), and times
    its mask."""

    def infer(
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        b: TensorType,
        mask: TensorType,
        *,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        group: int = 1,
        offset_group: int = 1,
    ) -> TensorType:
        check_window(x, w.shape[2:], strides, pads, dilations)
        out = convolution.infer(x, w, b, strides=strides, pads=pads, dilations=dilations, group=group)
        count, outputs = offset_group * math.prod(w.shape[2:]), out.shape[2:]
        offsets, masks = ((x.shape[0], each * count, *outputs) for each in (x.rank - 2, 1))
        expect(x.dtype.is_float, "needs floating point")
        expect(
            offset_group >= 1 and offset.dtype is mask.dtype is x.dtype,
            "needs offsets and a mask of the input's element type, in groups",
        )
        expect_equal(x.shape[1] % offset_group, 0, f"needs channels divisible by {offset_group} groups of offsets")
        expect_equal(offset.shape, offsets, f"needs offsets of shape {list(offsets)}")
        expect_equal(mask.shape, masks, f"needs a mask of shape {list(masks)}")
        return out

    def expand(
        x: Value,
        w: Value,
        offset: Value,
        b: Value,
        mask: Value,
        *,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        group: int,
        offset_group: int,
    ) -> TermLike:
        """Multiplies the samples of each tap, as separate channels, by the filters."""
        n, c, *space = x.type.shape
        kernel, dtype, spatial = w.type.shape[2:], wide(x.type.dtype), len(space)
        sizes = window_sizes(tuple(space), kernel, strides, pads, dilations)
        if not is_known(*sizes, *kernel):
            return None
        places = math.prod(kernel)
        apart = cast(reshape(offset, shape=(n, offset_group, places, spatial, *sizes)), to=dtype)
        steps = np.meshgrid(*(np.arange(k) for k in kernel), indexing="ij")
        at = []
        for axis in range(spatial):
            moved = reshape(
                slice_(apart, starts=(axis,), ends=(axis + 1,), axes=(3,), steps=(1,)),
                shape=(n, offset_group, places, *sizes, 1),
            )
            taken = steps[axis].reshape(-1, *[1] * (spatial + 1)) * dilations[axis] - pads[axis]
            window = (np.arange(sizes[axis]) * strides[axis]).reshape(-1, *[1] * (spatial - axis))
            at.append(add(moved, (taken + window).astype(np.float64)))
        index, weight = taps(at, space, dtype, mode="linear", padding="zeros")
        weight = mul(weight, cast(reshape(mask, shape=(n, offset_group, places, *sizes, 1)), to=dtype))
        apart_x = reshape(x, shape=(n, offset_group, c // offset_group, math.prod(space)))
        samples = reshape(blend(apart_x, index, weight, axis=3, batch_dims=2), shape=(n, c * places, *sizes))
        filters = reshape(w, shape=(w.type.shape[0], w.type.shape[1] * places, *[1] * spatial))
        return convolution(
            samples, filters, b, strides=(1,) * spatial, pads=(0,) * 2 * spatial, dilations=(1,) * spatial, group=group
        )
