"""Readers of sliding windows: convolutions, transposed convolutions and pooling, their padding made explicit."""
from __future__ import annotations

import math
from dataclasses import dataclass

from pelton.ir.dims import maximum, minimum
from pelton.ir.graph import Value
from pelton.ir.types import I32

from .onnx_ops_linear import without_zero_point
from .onnx_reading import MICROSOFT, Reading, Thing, reads

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    kernel: Ints
    strides: Ints
    pads: Ints                   # begin…, end…
    dilations: Ints


def window(n: Reading, x: Value, kernel: Ints | None = None) -> Window:
    """The window of a node over x [batch, channels, space…]; `kernel` where the weights say its size."""
    spatial = x.type.rank - 2
    if spatial < 1:
        raise n.refuse(f"{n.op} needs an input of rank 3 and more, got {x.type}")
    given = n.attr("kernel_shape")
    if kernel is not None and given and given != kernel:
        raise n.refuse(f"{n.op} needs weights of its kernel_shape {list(given)}, got {list(kernel)}")
    kernel = given or () if kernel is None else kernel
    strides, dilations = n.attr("strides") or (1,) * spatial, n.attr("dilations") or (1,) * spatial
    pads = n.attr("pads") or (0,) * (2 * spatial)
    if not len(kernel) == len(strides) == len(dilations) == len(pads) / 2 == spatial or min(*kernel, *strides, *dilations) < 1:
        raise n.refuse(f"{n.op} needs a positive kernel size, stride and dilation and two pads for each of {spatial} axes, "
                       f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads)}")
    auto = n.attr("auto_pad") or "NOTSET"
    if auto == "VALID":
        pads = (0,) * (2 * spatial)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        pads = split_pads([maximum((-(-size // s) - 1) * s + r - size, 0) for size, s, r in zip(x.type.shape[2:], strides, reach)], auto)
    elif auto != "NOTSET":
        raise n.refuse(f"{n.op} needs auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {auto!r}")
    return Window(kernel, strides, pads, dilations)


def split_pads(totals: list[int], auto: str) -> Ints:
    """The padding of each axis shared between begin and end; SAME_UPPER puts what is odd at the end."""
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(less + more if auto == "SAME_UPPER" else more + less)


def _cropped(n: Reading, x: Value, w: Window) -> tuple[Value, Window]:
    """Negative pads as a slice of the input."""
    if all(p >= 0 for p in w.pads):
        return x, w
    pads = (0, 0, *(minimum(p, 0) for p in w.pads[:len(w.kernel)]), 0, 0, *(minimum(p, 0) for p in w.pads[len(w.kernel):]))
    return n.emit("pad", x, n.like(x, 0), pads=pads), Window(w.kernel, w.strides, tuple(maximum(p, 0) for p in w.pads), w.dilations)


# --- convolutions

@reads("Conv")
def conv(n: Reading) -> Thing:
    return convolution(n, n.input(0), n.input(1), n.optional(2))


def convolution(n: Reading, x: Value, w: Value, b: Value | None) -> Value:
    x, win = _cropped(n, x, window(n, x, w.type.shape[2:]))
    b = b if b is not None else n.filled(0, w.type.shape[:1], x.type.dtype)
    return n.emit("convolution", x, w, b, strides=win.strides, pads=win.pads, dilations=win.dilations, group=n.attr("group", 1))


@reads("ConvInteger")
def conv_integer(n: Reading) -> Thing:
    """In 32-bit integers around the zero points, so that padding is zero. Those of w are per tensor or per output channel."""
    w, z = n.cast(n.input(1), I32), n.optional(3)
    if z is not None:
        z = n.cast(z, I32)
        w = n.emit("sub", w, n.reshape(z, () if z.type.size == 1 else (z.type.size, *[1] * (w.type.rank - 1))))
    return convolution(n, without_zero_point(n, 0, 2), w, None)


_ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


@reads("FusedConv", domain=MICROSOFT)
def fused_conv(n: Reading) -> Thing:
    """A convolution, + Z, and an activation."""
    y, z = convolution(n, n.input(0), n.input(1), n.optional(2)), n.optional(3)
    y = y if z is None else n.emit("add", y, z)
    return activated(n, y, n.attr("activation", ""), n.attr("activation_params", ()))


def activated(n: Reading, y: Value, name: str, params: tuple[float, ...]) -> Value:
    """The activation that ONNX Runtime fused into a convolution or a product."""
    if name in _ACTIVATIONS:
        return n.emit(_ACTIVATIONS[name], y)
    if name == "LeakyRelu":
        return n.emit("leaky_relu", y, alpha=params[0] if params else 0.01)
    if name == "Clip" and len(params) == 2:
        return n.emit("clip", y, n.like(y, params[0]), n.like(y, params[1]))
    if name == "HardSigmoid" and len(params) == 2:
        return n.emit("hard_sigmoid", y, alpha=params[0], beta=params[1])
    if name:
        raise n.refuse(f"{n.op} with activation {name!r} and parameters {list(params)} is not supported; export the model without that optimization")
    return y


@reads("ConvTranspose")
def conv_transpose(n: Reading) -> Thing:
    """`output_shape` and auto_pad say the size of the output; what the pads cannot give, output_padding does."""
    x, w, b = n.input(0), n.input(1), n.optional(2)
    spatial, group = x.type.rank - 2, n.attr("group", 1)
    win = window(n, x, w.type.shape[2:])
    extra = n.attr("output_padding") or (0,) * spatial
    wanted, auto = n.attr("output_shape"), n.attr("auto_pad")
    if wanted or auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = (wanted or tuple(s * size for s, size in zip(win.strides, x.type.shape[2:])))[-spatial:]
        totals = [s * (size - 1) + e + (k - 1) * d + 1 - o for s, size, e, k, d, o in
                  zip(win.strides, x.type.shape[2:], extra, win.kernel, win.dilations, wanted)]
        extra = tuple(e + maximum(-t, 0) for e, t in zip(extra, totals))
        win = Window(win.kernel, win.strides, split_pads([maximum(t, 0) for t in totals], auto), win.dilations)
    b = b if b is not None else n.filled(0, (w.type.shape[1] * group,), x.type.dtype)
    return n.emit("conv_transpose", x, w, b, strides=win.strides, pads=win.pads, dilations=win.dilations, group=group, output_padding=extra)


# --- pooling

@reads("MaxPool")
def max_pool(n: Reading) -> Thing | tuple[Thing, ...]:
    if n.wants(1):
        return n.foreign()
    x = n.input(0)
    w = window(n, x)
    return n.emit("max_pool", x, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, ceil_mode=n.flag("ceil_mode"))


@reads("AveragePool")
def average_pool(n: Reading) -> Thing:
    return average(n, n.input(0), n.flag("count_include_pad"))


def average(n: Reading, x: Value, count_include_pad: bool) -> Value:
    w = window(n, x)
    return n.emit("average_pool", x, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, ceil_mode=n.flag("ceil_mode"),
                  count_include_pad=count_include_pad)


@reads("LpPool")
def lp_pool(n: Reading) -> Thing | tuple[Thing, ...]:
    """(Σ |x|ᵖ)^(1/p) over each window: an average that counts the padding, times the size of the window."""
    if n.flag("ceil_mode"):
        return n.foreign()
    p, x = n.attr("p"), n.input(0)
    mean = average(n, powered(n, x, p), count_include_pad=True)
    return rooted(n, n.emit("mul", mean, n.like(x, math.prod(n.attr("kernel_shape")))), p)


def powered(n: Reading, x: Value, p: int) -> Value:
    """|x|ᵖ."""
    if p == 2:
        return n.emit("mul", x, x)
    x = n.emit("abs", x)
    return x if p == 1 else n.emit("pow", x, n.like(x, p))


def rooted(n: Reading, x: Value, p: int) -> Value:
    """x^(1/p)."""
    return x if p == 1 else n.emit("sqrt", x) if p == 2 else n.emit("pow", x, n.like(x, 1 / p))


def _space(n: Reading) -> Ints:
    if n.input(0).type.rank < 3:
        raise n.refuse(f"{n.op} needs an input of rank 3 and more, got {n.input(0).type}")
    return tuple(range(2, n.input(0).type.rank))


@reads("GlobalAveragePool")
def global_average_pool(n: Reading) -> Thing:
    return n.emit("reduce_mean", n.input(0), axes=_space(n), keepdims=True)


@reads("GlobalMaxPool")
def global_max_pool(n: Reading) -> Thing:
    return n.emit("reduce_max", n.input(0), axes=_space(n), keepdims=True)


@reads("GlobalLpPool")
def global_lp_pool(n: Reading) -> Thing:
    p, x = n.attr("p"), n.input(0)
    return rooted(n, n.emit("reduce_sum", powered(n, x, p), axes=_space(n), keepdims=True), p)
