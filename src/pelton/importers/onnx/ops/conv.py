"""Readers of sliding windows: convolutions, transposed convolutions and pooling, their padding made explicit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import equal, is_known, maximum, minimum
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I32
from pelton.ops.windows import window_sizes

from .linear import subtract_zero_point
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    kernel: Ints
    strides: Ints
    pads: Ints  # begin…, end…
    dilations: Ints


def window(n: Reading, x: Value, kernel: Ints | None = None) -> Window:
    """Returns the window of a node over x [batch, channels, space…]; `kernel`: the size of the weights, if any."""
    spatial = x.type.rank - 2
    if spatial < 1:
        raise n.refuse(f"{n.op} needs an input of rank 3 or more, got {x.type}")
    kernel_shape = n.attr("kernel_shape")
    if kernel is not None and kernel_shape and kernel_shape != kernel:
        raise n.refuse(f"{n.op} needs weights of its kernel_shape {list(kernel_shape)}, got {list(kernel)}")
    kernel = kernel_shape or () if kernel is None else kernel
    strides, dilations = n.attr("strides") or (1,) * spatial, n.attr("dilations") or (1,) * spatial
    pads = n.attr("pads") or (0,) * (2 * spatial)
    if (
        not len(kernel) == len(strides) == len(dilations) == len(pads) / 2 == spatial
        or min(*kernel, *strides, *dilations) < 1
    ):
        raise n.refuse(
            f"{n.op} needs a positive kernel size, stride and dilation and two pads for each of {spatial} axes, "
            f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads)}"
        )
    auto = n.attr("auto_pad") or "NOTSET"
    if auto == "VALID":
        pads = (0,) * (2 * spatial)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        pads = split_pads(
            [maximum((-(-size // s) - 1) * s + r, size) - size for size, s, r in zip(x.type.shape[2:], strides, reach)],
            auto,
        )
    elif auto != "NOTSET":
        raise n.refuse(f"{n.op} needs auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {auto!r}")
    return Window(kernel, strides, pads, dilations)


def split_pads(totals: list[int], auto: str) -> Ints:
    """Splits the padding of each axis between begin and end; SAME_UPPER puts the odd element at the end."""
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(less + more if auto == "SAME_UPPER" else more + less)


def _crop(n: Reading, x: Value, w: Window) -> tuple[Value, Window]:
    """Turns negative pads into a crop of the input."""
    if all(p >= 0 for p in w.pads):
        return x, w
    pads = (
        0,
        0,
        *(minimum(p, 0) for p in w.pads[: len(w.kernel)]),
        0,
        0,
        *(minimum(p, 0) for p in w.pads[len(w.kernel) :]),
    )
    return n.emit("pad", x, n.like(x, 0), pads=pads), Window(
        w.kernel, w.strides, tuple(maximum(p, 0) for p in w.pads), w.dilations
    )


# --- convolutions


def _add_channels(n: Reading, x: Value, w: Value, axis: int, each: int) -> tuple[Value, Value]:
    """Replaces images without channels by zeros with one channel per group, `each` along that axis of w."""
    if (
        min(x.type.rank, w.type.rank) < 3
        or w.type.shape[axis] != 0
        or not equal(x.type.shape[1], 0)
        or n.attr("group", 1) < 1
    ):
        return x, w
    shape = (*w.type.shape[:axis], each, *w.type.shape[axis + 1 :])
    return n.filled(0, (x.type.shape[0], n.attr("group", 1), *x.type.shape[2:]), x.type.dtype), n.filled(
        0, shape, w.type.dtype
    )


@reads("Conv")
def conv(n: Reading) -> Binding:
    return convolution(n, n.input(0), n.input(1), n.optional(2))


def convolution(n: Reading, x: Value, w: Value, b: Value | None) -> Value:
    x, w = _add_channels(n, x, w, axis=1, each=1)
    x, win = _crop(n, x, window(n, x, w.type.shape[2:]))
    b = b if b is not None else n.filled(0, w.type.shape[:1], x.type.dtype)
    return n.emit(
        "convolution", x, w, b, strides=win.strides, pads=win.pads, dilations=win.dilations, group=n.attr("group", 1)
    )


@reads("ConvInteger")
def conv_integer(n: Reading) -> Binding:
    """Computes in 32-bit integers around the zero points, so that padding is zero.

    The zero points of w are per tensor or per output channel.
    """
    w, z = n.cast(n.input(1), I32), n.optional(3)
    if z is not None:
        z = n.cast(z, I32)
        w = n.emit("sub", w, n.reshape(z, () if z.type.size == 1 else (z.type.size, *[1] * (w.type.rank - 1))))
    return convolution(n, subtract_zero_point(n, 0, 2), w, None)


# an activation that ONNX Runtime fuses → the op, and its attributes
_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Celu": ("celu", ("alpha",)),
    "Elu": ("elu", ("alpha",)),
    "HardSigmoid": ("hard_sigmoid", ("alpha", "beta")),
    "HardSwish": ("hard_swish", ()),
    "LeakyRelu": ("leaky_relu", ("alpha",)),
    "Relu": ("relu", ()),
    "Selu": ("selu", ("alpha", "gamma")),
    "Sigmoid": ("sigmoid", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "Tanh": ("tanh", ()),
    "ThresholdedRelu": ("thresholded_relu", ("alpha",)),
}


@reads("FusedConv", domain=MICROSOFT)
def fused_conv(n: Reading) -> Binding:
    """Computes a convolution, + Z, and an activation."""
    y, z = convolution(n, n.input(0), n.input(1), n.optional(2)), n.optional(3)
    y = y if z is None else n.emit("add", y, z)
    return emit_activation(n, y, n.attr("activation", ""), n.attr("activation_params", ()))


def emit_activation(n: Reading, y: Value, name: str, params: Sequence[float] | Mapping[str, float]) -> Value:
    """Emits the activation that ONNX Runtime fused into a convolution, with parameters by order, or into a product,
    with parameters by name."""
    if not name:
        return y
    if name == "Clip" and len(params) == 2 and not isinstance(params, Mapping):
        return n.emit("clip", y, n.like(y, params[0]), n.like(y, params[1]))
    op, words = _ACTIVATIONS.get(name, ("", ("a supported name",)))
    attrs = {w: params[w] for w in words if w in params} if isinstance(params, Mapping) else dict(zip(words, params))
    if len(attrs) < len(words):
        raise n.refuse(
            f"{n.op} with activation {name!r} and parameters {params} is not supported; export the model without that"
            " optimization"
        )
    return n.emit(op, y, **attrs)


@reads("ConvTranspose")
def conv_transpose(n: Reading) -> Binding:
    """Reads the output's size from output_shape and auto_pad; output_padding adds elements missing with pads of 0."""
    group, b = n.attr("group", 1), n.optional(2)
    x, w = _add_channels(n, n.input(0), n.input(1), axis=0, each=group)
    spatial = x.type.rank - 2
    win = window(n, x, w.type.shape[2:])
    extra = n.attr("output_padding") or (0,) * spatial
    spatial_shape, auto = n.attr("output_shape"), n.attr("auto_pad")
    if spatial_shape or auto in ("SAME_UPPER", "SAME_LOWER"):
        spatial_shape = spatial_shape or tuple(s * size for s, size in zip(win.strides, x.type.shape[2:]))
        spatial_shape = spatial_shape[-spatial:]
        totals = [
            s * (size - 1) + e + (k - 1) * d + 1 - o
            for s, size, e, k, d, o in zip(
                win.strides, x.type.shape[2:], extra, win.kernel, win.dilations, spatial_shape
            )
        ]
        extra = tuple(e + maximum(-t, 0) for e, t in zip(extra, totals))
        win = Window(win.kernel, win.strides, split_pads([maximum(t, 0) for t in totals], auto), win.dilations)
    b = b if b is not None else n.filled(0, (w.type.shape[1] * group,), x.type.dtype)
    return n.emit(
        "conv_transpose",
        x,
        w,
        b,
        strides=win.strides,
        pads=win.pads,
        dilations=win.dilations,
        group=group,
        output_padding=extra,
    )


@reads("DeformConv")
def deform_conv(n: Reading) -> Binding:
    x, w, offset, b, mask = n.input(0), n.input(1), n.input(2), n.optional(3), n.optional(4)
    win, groups = window(n, x, w.type.shape[2:]), n.attr("offset_group", 1)
    b = b if b is not None else n.filled(0, w.type.shape[:1], x.type.dtype)
    mask = (
        mask
        if mask is not None
        else n.filled(1, (offset.type.shape[0], groups * math.prod(win.kernel), *offset.type.shape[2:]), x.type.dtype)
    )
    return n.emit(
        "deform_convolution",
        x,
        w,
        offset,
        b,
        mask,
        strides=win.strides,
        pads=win.pads,
        dilations=win.dilations,
        group=n.attr("group", 1),
        offset_group=groups,
    )


@reads("Col2Im")
def col2im(n: Reading) -> Binding | tuple[Binding, ...]:
    """Sums overlapping blocks into an image, by a transposed convolution that puts element k of a block at tap k."""
    x = n.input(0)
    image, block = n.integers(1, "image_shape"), n.integers(2, "block_shape")
    spatial = len(image)
    strides, dilations, pads = (
        n.attr("strides") or (1,) * spatial,
        n.attr("dilations") or (1,) * spatial,
        n.attr("pads") or (0,) * 2 * spatial,
    )
    if (
        x.type.rank != 3
        or not is_known(*image, *block)
        or not len(block) == len(strides) == len(dilations) == len(pads) / 2 == spatial
    ):
        raise n.refuse(
            "Col2Im needs an input [batch, channels · block, blocks] and as many sizes of the image as of a block,"
            f" got {x.type}, {list(image)} and {list(block)}"
        )
    sizes = tuple(window_sizes(image, block, strides, pads, dilations))
    taps, batch = math.prod(block), x.type.shape[0]
    channels = x.type.shape[1] // taps
    if not is_known(channels) or channels * taps * taps > 1 << 22:  # filters of mostly zeros
        return n.foreign()
    used = tuple(
        s * (size - 1) + d * (k - 1) + 1 - pads[i] - pads[spatial + i]
        for i, (s, size, d, k) in enumerate(zip(strides, sizes, dilations, block))
    )
    dtype = I32 if x.type.dtype is BOOL else x.type.dtype  # booleans: true if any is
    one = n.constant(np.tile(np.eye(taps).reshape(taps, 1, *block), (channels, *[1] * (1 + spatial))), dtype)
    y = n.emit(
        "conv_transpose",
        n.reshape(n.cast(x, dtype), (batch, x.type.shape[1], *sizes)),
        one,
        n.filled(0, (channels,), dtype),
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=channels,
        output_padding=tuple(p - u for p, u in zip(image, used)),
    )
    return n.cast(y, x.type.dtype)


# --- pooling


@reads("MaxPool")
def max_pool(n: Reading) -> Binding | tuple[Binding, ...]:
    """Returns the flat index of each maximum as second output."""
    x = n.input(0)
    w = window(n, x)
    how = dict(kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, ceil_mode=n.flag("ceil_mode"))
    largest = n.emit("max_pool", x, **how)
    return (
        (largest, n.emit("max_pool_places", x, **how, column_major=n.flag("storage_order")))
        if n.is_output_used(1)
        else largest
    )


@reads("AveragePool")
def average_pool(n: Reading) -> Binding:
    return emit_average_pool(n, n.input(0), n.flag("count_include_pad"))


def emit_average_pool(n: Reading, x: Value, count_include_pad: bool) -> Value:
    w = window(n, x)
    return n.emit(
        "average_pool",
        x,
        kernel=w.kernel,
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        ceil_mode=n.flag("ceil_mode"),
        count_include_pad=count_include_pad,
    )


@reads("LpPool")
def lp_pool(n: Reading) -> Binding:
    """Computes (Σ |x|ᵖ)^(1/p) over each window: an average that counts the padding, times the size of the window.

    As in the onnx package, the sum of a window that reaches past the end in ceil_mode is scaled to a whole window.
    """
    p, x = n.attr("p"), n.input(0)
    mean = emit_average_pool(n, emit_power(n, x, p), count_include_pad=True)
    return emit_root(n, n.emit("mul", mean, n.like(x, math.prod(n.attr("kernel_shape")))), p)


def emit_power(n: Reading, x: Value, p: int) -> Value:
    """Computes |x|ᵖ."""
    if p == 2:
        return n.emit("mul", x, x)
    x = n.emit("abs", x)
    return x if p == 1 else n.emit("pow", x, n.like(x, p))


def emit_root(n: Reading, x: Value, p: int) -> Value:
    """Computes x^(1/p)."""
    if p == 1:
        return x
    return n.emit("sqrt", x) if p == 2 else n.emit("pow", x, n.like(x, 1 / p))


def _spatial_axes(n: Reading) -> Ints:
    if n.input(0).type.rank < 3:
        raise n.refuse(f"{n.op} needs an input of rank 3 or more, got {n.input(0).type}")
    return tuple(range(2, n.input(0).type.rank))


@reads("GlobalAveragePool")
def global_average_pool(n: Reading) -> Binding:
    return n.emit("reduce_mean", n.input(0), axes=_spatial_axes(n), keepdims=True)


@reads("GlobalMaxPool")
def global_max_pool(n: Reading) -> Binding:
    return n.emit("reduce_max", n.input(0), axes=_spatial_axes(n), keepdims=True)


@reads("GlobalLpPool")
def global_lp_pool(n: Reading) -> Binding:
    p, x = n.attr("p"), n.input(0)
    return emit_root(n, n.emit("reduce_sum", emit_power(n, x, p), axes=_spatial_axes(n), keepdims=True), p)
