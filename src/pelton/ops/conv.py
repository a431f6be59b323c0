"""Convolution and transposed convolution over any number of spatial axes."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import minimum
from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, DType, TensorType

from .linear import converted, matmul, product_type, summed, summed_in
from .math import add
from .op import TermLike, expect, expect_equal, structured
from .shape import along, concat, pad, reshape, slice_, transpose
from .shape import expand as spread

Ints = tuple[int, ...]


def check_window(x: TensorType, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> None:
    """What every op with a sliding window demands of its attributes."""
    spatial = x.rank - 2
    expect(spatial >= 1, "needs an input of rank 3 and more: batch, channels, space")
    expect(
        len(kernel) == len(strides) == len(dilations) == spatial and len(pads) == 2 * spatial,
        f"needs a kernel, stride and dilation per spatial axis ({spatial}) and two pads, "
        f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads)}",
    )
    expect(
        min(*kernel, *strides, *dilations) >= 1,
        "needs positive kernel sizes, strides and dilations, "
        f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}",
    )
    expect(all(p >= 0 for p in pads), f"needs pads of zero and more, got {list(pads)}")


def window_sizes(
    space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False
) -> Ints:
    """How many windows fit along each spatial axis; in ceil_mode the last one may reach past the end, but must start
    before it."""
    sizes = []
    for i, n in enumerate(space):
        room = n + pads[i] + pads[i + len(space)] - dilations[i] * (kernel[i] - 1) - 1
        count = (-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1
        if ceil_mode:
            count = minimum(count, -(-(n + pads[i]) // strides[i]))
        expect(
            count >= 1,
            f"needs windows that fit: {dilations[i] * (kernel[i] - 1) + 1} is more than "
            f"{n} + {pads[i]} + {pads[i + len(space)]} along spatial axis {i}",
        )
        sizes.append(count)
    return tuple(sizes)


def is_product(node: Node) -> bool:
    """Whether a convolution is one product over all pixels."""
    a = node.attrs
    return (
        all(d == 1 for d in node.inputs[1].type.shape[2:])
        and a["group"] == 1
        and all(s == 1 for s in a["strides"])
        and not any(a["pads"])
    )


def taps(kernel: Ints, strides: Ints, dilations: Ints, sizes: Ints):
    """(index of one place of the kernel, index of what it meets in a padded input), one after the other."""
    for at in np.ndindex(*kernel):
        yield (
            (..., *at),
            (
                ...,
                *(
                    slice(t * d, t * d + max(0, (n - 1) * s + 1), s)
                    for t, d, s, n in zip(at, dilations, strides, sizes)
                ),
            ),
        )


def pad_space(x: np.ndarray, pads: Ints, value=0) -> np.ndarray:
    """x with its spatial axes padded: begin…, end…."""
    spatial = x.ndim - 2
    if not any(pads):
        return x
    return np.pad(x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:])], constant_values=value)


# --- expansions: pictures of another rank, and element types without kernels of their own

# that an expansion may have, at most: programs should not grow out of proportion
PARTS = 1024


def padded(x: TermLike, pads: Ints) -> TermLike:
    """x [batch, channels, space…] with zeros around its spatial axes, or less of it."""
    spatial = len(pads) // 2
    return pad(x, 0, pads=(0, 0, *pads[:spatial], 0, 0, *pads[spatial:])) if any(p != 0 for p in pads) else x


def pictures(x: TermLike, shape: Ints) -> TermLike:
    """x [batch, channels, depth, space…] as batch · depth pictures."""
    n, c, d, *space = shape
    return reshape(transpose(x, perm=(0, 2, 1, *range(3, len(shape)))), shape=(n * d, c, *space))


def stacked(y: TermLike, batch: int, depth: int, shape: Ints) -> TermLike:
    """Pictures of `shape` [batch · depth, channels, space…] as [batch, channels, depth, space…]."""
    return transpose(reshape(y, shape=(batch, depth, *shape[1:])), perm=(0, 2, 1, *range(3, len(shape) + 1)))


def _joined(x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> TermLike:
    """Neighbouring axes along which the kernel has one place, and nothing is left out or added, as one axis; None where
    there are none such."""
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


def _by_depth(x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> TermLike:
    """A sum over the places of the kernel along the first spatial axis: convolutions of one axis less, each of all
    pictures that a place meets."""
    n, c, *space = x.type.shape
    m, _, places, *kernel = w.type.shape
    spatial = len(space)
    depth, *sizes = window_sizes(tuple(space), w.type.shape[2:], strides, pads, dilations)
    deep = padded(x, (pads[0], *[0] * (spatial - 1), pads[spatial], *[0] * (spatial - 1)))
    flat = dict(
        strides=strides[1:], pads=(*pads[1:spatial], *pads[spatial + 1 :]), dilations=dilations[1:], group=group
    )
    total: TermLike = None
    none = np.zeros(m, b.type.dtype.numpy)
    for k in range(places):
        start = k * dilations[0]
        met = pictures(
            along(deep, 2, start, start + (depth - 1) * strides[0] + 1, strides[0]), (n, c, depth, *space[1:])
        )
        part = convolution(
            met,
            reshape(along(w, 2, k, k + 1), shape=(m, w.type.shape[1], *kernel)),
            b if total is None else none,
            **flat,
        )
        total = part if total is None else add(total, part)
    return stacked(total, n, depth, (n * depth, m, *sizes))


def _by_product(x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> TermLike:
    """One product of all filters with what each pixel's window holds."""
    n, c = x.type.shape[:2]
    m, kernel = w.type.shape[0], w.type.shape[2:]
    sizes = window_sizes(x.type.shape[2:], kernel, strides, pads, dilations)
    wide, pixels, places = padded(x, pads), math.prod(sizes), math.prod(kernel)
    axes = tuple(range(2, 2 + len(kernel)))
    met = []
    for at in np.ndindex(*kernel):
        starts = tuple(k * d for k, d in zip(at, dilations))
        ends = tuple(start + (size - 1) * s + 1 for start, size, s in zip(starts, sizes, strides))
        met.append(reshape(slice_(wide, starts=starts, ends=ends, axes=axes, steps=strides), shape=(n, c, 1, pixels)))
    columns = reshape(concat(*met, axis=2), shape=(n, group, c // group * places, pixels))
    rows = reshape(w, shape=(1, group, m // group, c // group * places))
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
    """Y[n, m, o] = B[m] + Σ_{c, k} X[n, c, o·stride + k·dilation − pad] · W[m, c, k], channels in groups of their own.

    Summed in the type `accumulate`, of which the bias is, given as `to`.
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
        accumulate: DType | None = None,
        to: DType | None = None,
    ) -> TensorType:
        expect(
            (x.dtype is w.dtype or accumulate is not None)
            and b.dtype is (accumulate or x.dtype)
            and (x.dtype.is_float or x.dtype.is_integer),
            "needs numbers of one element type",
        )
        dtype = product_type(x.dtype, w.dtype, accumulate, to)
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

    def reference(x, w, b, *, strides, pads, dilations, group=1, accumulate=None, to=None):
        x, w = summed_in(x, accumulate), summed_in(w, accumulate)
        n, m, kernel = x.shape[0], w.shape[0], w.shape[2:]
        sizes = window_sizes(x.shape[2:], kernel, strides, pads, dilations)
        x, w = pad_space(x, pads), w.reshape(group, m // group, w.shape[1], *kernel)
        y = np.zeros((n, group, m // group, math.prod(sizes)), np.result_type(x, w))
        places = list(taps(kernel, strides, dilations, sizes))
        # few channels: several places of the kernel in one product
        together = max(1, 64 // w.shape[2])
        for first in range(0, len(places), together):
            some = places[first : first + together]
            met = np.concatenate([x[window].reshape(n, group, w.shape[2], math.prod(sizes)) for _, window in some], 2)
            y += np.concatenate([w[at] for at, _ in some], -1) @ met
        return converted(y.reshape(n, m, *sizes) + b.reshape(m, *[1] * len(sizes)), to)

    def expand(x: Value, w: Value, b: Value, *, accumulate: DType | None, to: DType | None, **attrs) -> TermLike:
        if accumulate is not None or to is not None:
            return summed(convolution, (x, w, b), accumulate, to, **attrs)
        if x.type.rank > 4:
            return _joined(x, w, b, **attrs) or (_by_depth(x, w, b, **attrs) if w.type.shape[2] <= PARTS else None)
        return None if x.type.dtype is F32 or math.prod(w.type.shape[2:]) > PARTS else _by_product(x, w, b, **attrs)

    def flops(x: TensorType, w: TensorType, b: TensorType, **attrs) -> int:
        out = convolution.infer(x, w, b, **attrs)
        return 2 * out.size * math.prod(w.shape[1:])


def _by_phases(
    x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int, output_padding: Ints
) -> TermLike:
    """Along the first spatial axis, what is congruent modulo the stride is reached by the same places of the kernel:
    each such phase is a sum of transposed convolutions of one axis less, and the output takes from the phases in
    turn."""
    n, c, inner, *space = x.type.shape
    places, spatial, stride = w.type.shape[2], x.type.rank - 2, strides[0]
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
    deep, rows = pictures(x, x.type.shape), -(-depth // stride)
    phases = []
    for phase in range(stride):
        total: TermLike = None
        for k in range(places):
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
    joined = reshape(concat(*phases, axis=2), shape=(n, rows * stride, m, *sizes))
    return transpose(along(joined, 1, 0, depth), perm=(0, 2, 1, *range(3, 2 + spatial)))


def _by_convolution(
    x: Value, w: Value, b: Value, *, strides: Ints, pads: Ints, dilations: Ints, group: int, output_padding: Ints
) -> TermLike:
    """The convolution of x, with zeros between its elements, with the filters turned round."""
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
        padded(apart, around),
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
    """Y[n, m, i·stride + k·dilation − pad] += X[n, c, i] · W[c, m, k], plus B[m]: the gradient of a convolution by its
    input."""

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
            return _by_phases(x, w, b, **attrs) if w.type.shape[2] + attrs["strides"][0] <= PARTS else None
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
