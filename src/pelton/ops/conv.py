"""Convolution over any number of spatial axes."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, DType, TensorType

from .linear import converted, matmul, product_type, summed, summed_in
from .math import add
from .op import TermLike, expect, expect_equal, structured
from .shape import along, concat, pad, reshape, slice_
from .windows import MAX_TERMS, Ints, check_window, fold_depth, pad_space, pad_term, taps, unfold_depth, window_sizes


def is_product(node: Node) -> bool:
    """True if a convolution is one matrix product over all pixels."""
    a = node.attrs
    return (
        all(d == 1 for d in node.inputs[1].type.shape[2:])
        and a["group"] == 1
        and all(s == 1 for s in a["strides"])
        and not any(a["pads"])
    )


def _join_axes(x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> TermLike:
    """Merges two adjacent axes of one tap each; None if there are none."""
    shape, kernel, spatial = x.type.shape, w.type.shape[2:], len(strides)
    plain = [
        k == s == 1 and before == after == 0
        for k, s, before, after in zip(kernel, strides, pads[:spatial], pads[spatial:])
    ]
    axis = next((i for i in range(spatial - 1) if plain[i] and plain[i + 1]), None)
    if axis is None:
        return None
    kept = [i for i in range(spatial) if i != axis]
    y = convolution(
        reshape(x, shape=(*shape[: 2 + axis], shape[2 + axis] * shape[3 + axis], *shape[4 + axis :])),
        reshape(w, shape=(*w.type.shape[:2], *(kernel[i] for i in kept))),
        b,
        strides=tuple(strides[i] for i in kept),
        pads=tuple(pads[i + k] for k in (0, spatial) for i in kept),
        dilations=tuple(dilations[i] for i in kept),
        group=group,
    )
    return reshape(y, shape=(shape[0], w.type.shape[0], *window_sizes(shape[2:], kernel, strides, pads, dilations)))


def _sum_over_depth(
    x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int
) -> TermLike:
    """Sums over the kernel's taps along the first spatial axis, each a convolution over one axis less."""
    n, c, *space = x.type.shape
    m, _, depth_taps, *kernel = w.type.shape
    spatial = len(space)
    depth, *sizes = window_sizes(tuple(space), w.type.shape[2:], strides, pads, dilations)
    deep = pad_term(x, (pads[0], *[0] * (spatial - 1), pads[spatial], *[0] * (spatial - 1)))
    flat = dict(
        strides=strides[1:], pads=(*pads[1:spatial], *pads[spatial + 1 :]), dilations=dilations[1:], group=group
    )
    total: TermLike = None
    no_bias = np.zeros(m, b.type.dtype.numpy)
    for k in range(depth_taps):
        start = k * dilations[0]
        window = fold_depth(
            along(deep, 2, start, start + (depth - 1) * strides[0] + 1, strides[0]), (n, c, depth, *space[1:])
        )
        part = convolution(
            window,
            reshape(along(w, 2, k, k + 1), shape=(m, w.type.shape[1], *kernel)),
            b if total is None else no_bias,
            **flat,
        )
        total = part if total is None else add(total, part)
    return unfold_depth(total, n, depth, (n * depth, m, *sizes))


def _as_product(x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> TermLike:
    """Builds one matrix product of all filters with the window of each pixel (im2col)."""
    n, c = x.type.shape[:2]
    m, kernel = w.type.shape[0], w.type.shape[2:]
    sizes = window_sizes(x.type.shape[2:], kernel, strides, pads, dilations)
    wide, pixels, count = pad_term(x, pads), math.prod(sizes), math.prod(kernel)
    axes = tuple(range(2, 2 + len(kernel)))
    windows = []
    for at in np.ndindex(*kernel):
        starts = tuple(k * d for k, d in zip(at, dilations))
        ends = tuple(start + (size - 1) * s + 1 for start, size, s in zip(starts, sizes, strides))
        windows.append(
            reshape(slice_(wide, starts=starts, ends=ends, axes=axes, steps=strides), shape=(n, c, 1, pixels))
        )
    columns = reshape(concat(*windows, axis=2), shape=(n, group, c // group * count, pixels))
    rows = reshape(w, shape=(1, group, m // group, c // group * count))
    return add(reshape(matmul(rows, columns), shape=(n, m, *sizes)), reshape(b, shape=(m, *[1] * len(sizes))))


@structured(
    "Conv",
    product=True,
    heavy=True,
    examples=(
        ("f32[2, 3, 11, 13]", "f32[8, 3, 3, 3]", "f32[8]", dict(strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))),
        (
            "f32[1, 58, 7, 7]",
            "f32[58, 1, 3, 3]",
            "f32[58]",
            dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=58),
        ),
        ("f32[1, 58, 5, 9]", "f32[31, 58, 1, 1]", "f32[31]", dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))),
        (
            "f32[1, 58, 8, 9]",
            "f32[34, 29, 3, 3]",
            "f32[34]",
            dict(strides=(2, 1), pads=(0, 1, 1, 0), dilations=(1, 1), group=2),
        ),
        (
            "f32[2, 16, 14, 14]",
            "f32[24, 16, 3, 3]",
            "f32[24]",
            dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)),
        ),
        ("f32[1, 3, 23, 23]", "f32[13, 3, 7, 7]", "f32[13]", dict(strides=(2, 2), pads=(3, 3, 3, 3), dilations=(1, 1))),
        ("f32[1, 5, 17, 17]", "f32[7, 5, 3, 3]", "f32[7]", dict(strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2))),
        (
            "f32[1, 3, 9, 10]",
            "f32[6, 1, 5, 2]",
            "f32[6]",
            dict(strides=(2, 3), pads=(2, 0, 1, 1), dilations=(1, 2), group=3),
        ),
        ("f32[2, 5, 31]", "f32[7, 5, 4]", "f32[7]", dict(strides=(3,), pads=(2, 1), dilations=(1,))),
        (
            "f32[1, 3, 5, 6, 7]",
            "f32[4, 3, 3, 2, 3]",
            "f32[4]",
            dict(strides=(1, 2, 1), pads=(1, 0, 1, 1, 1, 0), dilations=(1, 1, 2)),
        ),
        (
            "f32[1, 6, 7, 5, 6]",
            "f32[4, 3, 3, 1, 1]",
            "f32[4]",
            dict(strides=(2, 1, 1), pads=(1, 0, 0, 1, 0, 0), dilations=(1, 1, 1), group=2),
        ),
        (
            "f64[2, 6, 5, 6]",
            "f64[4, 3, 3, 2]",
            "f64[4]",
            dict(strides=(1, 2), pads=(1, 0, 1, 1), dilations=(1, 2), group=2),
        ),
        ("f16[1, 3, 5, 6]", "f16[4, 3, 3, 2]", "f16[4]", dict(strides=(1, 2), pads=(1, 0, 1, 1), dilations=(1, 1))),
        ("i32[1, 3, 9]", "i32[4, 3, 3]", "i32[4]", dict(strides=(1,), pads=(1, 0), dilations=(1,))),
    ),
)
class convolution:
    """Y[n, m, o] = B[m] + Σ_{c, k} X[n, c, o·stride + k·dilation − pad] · W[m, c, k], per group of channels.

    Sums are in the type `accumulate`, which is that of the bias, and converted to the type `to`. Padding holds
    `pad_value`, a zero point, or the number `padding` where that is given.
    """

    def infer(
        x: TensorType,
        w: TensorType,
        b: TensorType,
        padding: TensorType | None = None,
        *,
        strides: Ints,
        pads: Ints,
        dilations: Ints,
        group: int = 1,
        accumulate: DType | None = None,
        to: DType | None = None,
        pad_value: int = 0,
    ) -> TensorType:
        expect(
            (x.dtype is w.dtype or accumulate is not None)
            and b.dtype is (accumulate or x.dtype)
            and (x.dtype.is_float or x.dtype.is_integer),
            "needs numbers of one element type",
        )
        dtype = product_type(x.dtype, w.dtype, accumulate, to)
        expect(
            pad_value == 0 or x.dtype.is_integer and x.dtype.lowest <= pad_value <= x.dtype.highest,
            f"needs padding that {x.dtype.value} holds, got {pad_value}",
        )
        if padding is not None:
            expect(padding.shape == () and padding.dtype is x.dtype, f"needs padding of type {x.dtype.value}[]")
            expect(pad_value == 0, "needs one value for its padding, got two")
        expect(w.rank == x.rank, "needs weights of the rank of the input")
        check_window(x, w.shape[2:], strides, pads, dilations)
        expect(group >= 1 and w.shape[1] >= 1, f"needs groups and channels, got {group} groups of {w.shape[1]}")
        expect_equal(
            x.shape[1],
            w.shape[1] * group,
            f"needs {w.shape[1]} · {group} input channels (weights · groups), got {x.shape[1]}",
        )
        expect_equal(w.shape[0] % group, 0, f"needs output channels divisible by the {group} groups, got {w.shape[0]}")
        expect_equal(b.shape, w.shape[:1], f"needs a bias of shape [{w.shape[0]}]")
        sizes = window_sizes(x.shape[2:], w.shape[2:], strides, pads, dilations)
        return x.with_dtype(dtype).with_shape((x.shape[0], w.shape[0], *sizes))

    def reference(x, w, b, padding=None, *, strides, pads, dilations, group=1, accumulate=None, to=None, pad_value=0):
        x, w = summed_in(x, accumulate), summed_in(w, accumulate)
        pad_value = pad_value if padding is None else padding.item()
        n, m, kernel = x.shape[0], w.shape[0], w.shape[2:]
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations)
        x, w = pad_space(x, pads, pad_value), w.reshape(group, m // group, w.shape[1], *kernel)
        y = np.zeros((n, group, m // group, math.prod(sizes)), np.result_type(x, w))
        every = list(taps(kernel, strides, dilations, sizes))
        # few channels: several taps of the kernel in one product
        together = max(1, 64 // w.shape[2])
        for first in range(0, len(every), together):
            some = every[first : first + together]
            read = np.concatenate([x[window].reshape(n, group, w.shape[2], math.prod(sizes)) for _, window in some], 2)
            y += np.concatenate([w[at] for at, _ in some], -1) @ read
        return converted(y.reshape(n, m, *sizes) + b.reshape(m, *[1] * len(sizes)), to)

    def expand(
        x: Value,
        w: Value,
        b: Value,
        padding: Value | None = None,
        *,
        accumulate: DType | None,
        to: DType | None,
        pad_value: int,
        **attrs,
    ) -> TermLike:
        if pad_value or padding is not None:
            pads, rank = attrs.pop("pads"), x.type.rank - 2
            number = np.array(pad_value, x.type.dtype.numpy) if padding is None else padding
            whole = pad(x, number, pads=(0, 0, *pads[:rank], 0, 0, *pads[rank:]))
            return convolution(whole, w, b, pads=(0,) * 2 * rank, accumulate=accumulate, to=to, **attrs)
        if accumulate is not None or to is not None:
            return summed(convolution, (x, w, b), accumulate, to, **attrs)
        if x.type.rank > 4:
            return _join_axes(x, w, b, **attrs) or (
                _sum_over_depth(x, w, b, **attrs) if w.type.shape[2] <= MAX_TERMS else None
            )
        return None if x.type.dtype is F32 or math.prod(w.type.shape[2:]) > MAX_TERMS else _as_product(x, w, b, **attrs)

    def flops(x: TensorType, w: TensorType, b: TensorType, padding: TensorType | None = None, **attrs) -> int:
        out = convolution.infer(x, w, b, **attrs)
        return 2 * out.size * math.prod(w.shape[1:])
