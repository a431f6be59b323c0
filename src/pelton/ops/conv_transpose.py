"""Transposed convolution over any number of spatial axes."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import TensorType

from .conv import convolution
from .math import add
from .op import TermLike, expect, expect_equal, structured
from .shape import along, concat, pad, reshape, slice_, transpose
from .shape import expand as spread
from .windows import MAX_TERMS, Ints, check_window, fold_depth, pad_term, taps


def _by_phases(
    x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int, output_padding: Ints
) -> TermLike:
    """Computes one phase of the stride along the first spatial axis after the other.

    The same taps of the kernel contribute to outputs that are congruent modulo the stride. Each such phase is a sum of
    transposed convolutions over one axis less, and the output interleaves the phases.
    """
    n, c, inner, *space = x.type.shape
    depth_taps, spatial, stride = w.type.shape[2], x.type.rank - 2, strides[0]
    _, m, depth, *sizes = conv_transpose.infer(
        x.type,
        w.type,
        b.type,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=group,
        output_padding=output_padding,
    ).shape
    flat = dict(
        strides=strides[1:],
        pads=(*pads[1:spatial], *pads[spatial + 1 :]),
        dilations=dilations[1:],
        group=group,
        output_padding=output_padding[1:],
    )
    deep, rows = fold_depth(x, x.type.shape), -(-depth // stride)
    phases = []
    for phase in range(stride):
        total: TermLike = None
        for k in range(depth_taps):
            shift, of = divmod(k * dilations[0] - pads[0], stride)
            if of == phase:
                filters = reshape(along(w, 2, k, k + 1), shape=(c, w.type.shape[1], *w.type.shape[3:]))
                part: TermLike = reshape(
                    conv_transpose(deep, filters, np.zeros(m, b.type.dtype.numpy), **flat), shape=(n, inner, m, *sizes)
                )
                part = pad(
                    part, 0, pads=(0, shift, *[0] * (1 + len(sizes)), 0, rows - inner - shift, *[0] * (1 + len(sizes)))
                )
                total = part if total is None else add(total, part)
        total = (
            add(total, reshape(b, shape=(m, *[1] * len(sizes))))
            if total is not None
            else spread(reshape(b, shape=(m, *[1] * len(sizes))), shape=(n, rows, m, *sizes))
        )
        phases.append(reshape(total, shape=(n, rows, 1, m, *sizes)))
    interleaved = reshape(concat(*phases, axis=2), shape=(n, rows * stride, m, *sizes))
    return transpose(along(interleaved, 1, 0, depth), perm=(0, 2, 1, *range(3, 2 + spatial)))


def _by_convolution(
    x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int, output_padding: Ints
) -> TermLike:
    """Builds a convolution of x, with zeros between its elements, with the filters reversed along all spatial axes."""
    n, c, *space = x.type.shape
    each, kernel, spatial = w.type.shape[1], w.type.shape[2:], len(space)
    apart: TermLike = pad(
        reshape(x, shape=(n, c, *(size for d in space for size in (d, 1)))),
        0,
        pads=(*[0] * (2 + 2 * spatial), 0, 0, *(p for s in strides for p in (0, s - 1))),
    )
    apart = reshape(apart, shape=(n, c, *(d * s for d, s in zip(space, strides))))
    reach = tuple((k - 1) * d for k, d in zip(kernel, dilations))
    around = (
        *(r - p for r, p in zip(reach, pads)),
        *(r - p + extra + 1 - s for r, p, extra, s in zip(reach, pads[spatial:], output_padding, strides)),
    )
    filters: TermLike = transpose(
        reshape(w, shape=(group, c // group, each, *kernel)), perm=(0, 2, 1, *range(3, 3 + spatial))
    )
    filters = slice_(
        reshape(filters, shape=(group * each, c // group, *kernel)),
        starts=tuple(k - 1 for k in kernel),
        ends=(-1,) * spatial,
        axes=tuple(range(2, 2 + spatial)),
        steps=(-1,) * spatial,
    )
    return convolution(
        pad_term(apart, around),
        filters,
        b,
        strides=(1,) * spatial,
        pads=(0,) * 2 * spatial,
        dilations=dilations,
        group=group,
    )


@structured(
    "ConvTranspose",
    product=True,
    heavy=True,
    examples=(
        (
            "f32[2, 3, 5, 7]",
            "f32[3, 8, 3, 3]",
            "f32[8]",
            dict(strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), output_padding=(1, 1)),
        ),
        (
            "f32[1, 58, 4, 5]",
            "f32[58, 7, 2, 2]",
            "f32[7]",
            dict(strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), output_padding=(0, 0)),
        ),
        (
            "f32[1, 6, 4, 5]",
            "f32[6, 2, 3, 2]",
            "f32[6]",
            dict(strides=(1, 3), pads=(0, 1, 1, 0), dilations=(2, 1), group=3, output_padding=(0, 2)),
        ),
        (
            "f32[2, 3, 11]",
            "f32[3, 5, 4]",
            "f32[5]",
            dict(strides=(3,), pads=(2, 1), dilations=(1,), output_padding=(0,)),
        ),
        (
            "f32[1, 2, 3, 4, 3]",
            "f32[2, 3, 2, 3, 2]",
            "f32[3]",
            dict(strides=(2, 1, 2), pads=(0, 1, 0, 1, 1, 0), dilations=(1, 1, 1), output_padding=(0, 0, 1)),
        ),
        (
            "f32[2, 2, 3, 4, 3]",
            "f32[2, 3, 2, 3, 2]",
            "f32[3]",
            dict(strides=(3, 1, 1), pads=(2, 1, 0, 3, 1, 0), dilations=(2, 1, 1), output_padding=(2, 0, 0)),
        ),
        (
            "f64[2, 6, 4, 5]",
            "f64[6, 2, 3, 2]",
            "f64[6]",
            dict(strides=(2, 3), pads=(0, 1, 1, 0), dilations=(2, 1), group=3, output_padding=(1, 2)),
        ),
    ),
)
class conv_transpose:
    """Y[n, m, i·stride + k·dilation − pad] += X[n, c, i] · W[c, m, k], plus B[m].

    This is the gradient of a convolution with respect to its input.
    """

    def infer(
        x: TensorType,
        w: TensorType,
        b: TensorType,
        *,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        group: int = 1,
        output_padding: Ints,
    ) -> TensorType:
        expect(
            x.dtype is w.dtype is b.dtype and (x.dtype.is_float or x.dtype.is_integer),
            "needs numbers of one element type",
        )
        expect(w.rank == x.rank, "needs weights of the rank of the input")
        check_window(x, w.shape[2:], strides, pads, dilations)
        spatial = x.rank - 2
        expect(
            len(output_padding) == spatial and min(output_padding) >= 0,
            f"needs output_padding per spatial axis ({spatial}), zero and more",
        )
        expect_equal(x.shape[1], w.shape[0], f"needs weights for {x.shape[1]} input channels, got {w.shape[0]}")
        expect(group >= 1, f"needs groups, got {group}")
        expect_equal(w.shape[0] % group, 0, f"needs input channels divisible by the {group} groups, got {x.shape[1]}")
        expect_equal(b.shape, (w.shape[1] * group,), f"needs a bias of shape [{w.shape[1] * group}]")
        space = tuple(
            s * (n - 1) + d * (k - 1) + 1 + extra - begin - end
            for n, k, s, d, extra, begin, end in zip(
                x.shape[2:], w.shape[2:], strides, dilations, output_padding, pads[:spatial], pads[spatial:]
            )
        )
        expect(all(d >= 1 for d in space), f"needs pads that leave something, got an output of {list(space)}")
        return x.with_shape((x.shape[0], w.shape[1] * group, *space))

    def reference(x, w, b, *, strides, pads, dilations, group=1, output_padding):
        n, c, *space = x.shape
        kernel, spatial = w.shape[2:], len(space)
        full = tuple(
            s * (i - 1) + d * (k - 1) + 1 + extra
            for i, k, s, d, extra in zip(space, kernel, strides, dilations, output_padding)
        )
        w = w.reshape(group, c // group, w.shape[1], *kernel).swapaxes(1, 2)
        x = x.reshape(n, group, c // group, math.prod(space))
        y = np.zeros((n, b.shape[0], *full), np.result_type(x, w))
        for at, window in taps(kernel, strides, dilations, tuple(space)):
            y[window] += (w[at] @ x).reshape(n, b.shape[0], *space)
        inside = (..., *(slice(begin, size - end) for begin, end, size in zip(pads[:spatial], pads[spatial:], full)))
        return y[inside] + b.reshape(-1, *[1] * spatial)

    def expand(x: Value, w: Value, b: Value, **attrs) -> TermLike:
        if x.type.rank > 4:
            return _by_phases(x, w, b, **attrs) if w.type.shape[2] + attrs["strides"][0] <= MAX_TERMS else None
        return _by_convolution(x, w, b, **attrs)

    def flops(
        x: TensorType,
        w: TensorType,
        b: TensorType,
        *,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        group: int = 1,
        output_padding: Ints,
    ) -> int:
        return 2 * x.size * math.prod(w.shape[1:])
