"""Readers of operators that equal an operator of ONNX, or a few of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads, schema_of
from pelton.importers.onnx.ops.conv import conv_transpose, window
from pelton.importers.onnx.ops.image import grid_sample
from pelton.importers.onnx.ops.index import gather_nd
from pelton.importers.onnx.ops.linear import scale_by, transpose_last_axes
from pelton.importers.onnx.ops.math import identity
from pelton.importers.onnx.ops.quant import qlinear_conv
from pelton.importers.onnx.ops.shape import pad, range_, trilu
from pelton.ir.dims import Size, bounds, is_known
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64

# operator → the equal operator of ai.onnx, and its opset
TWINS = {"GatherND": ("GatherND", 13), "GridSample": ("GridSample", 16), "Pad": ("Pad", 13), "Trilu": ("Trilu", 14)}
_READERS = {"GatherND": gather_nd, "GridSample": grid_sample, "Pad": pad, "Trilu": trilu}
_WINDOW = "auto_pad kernel_shape strides pads"


def as_standard(n: Reading, op: str, opset: int, bindings: tuple[Binding, ...] | None = None) -> Reading:
    """Returns the node as one of ai.onnx, with that operator's default attributes, and optionally other inputs."""
    bindings = n.bindings if bindings is None else bindings
    return replace(n, opset=opset, schema=schema_of(op, opset, ""), bindings=bindings)


def twin(n: Reading) -> Binding | tuple[Binding, ...]:
    return _READERS[n.op](as_standard(n, *TWINS[n.op]))


for _op, _known, _most in (
    ("GatherND", "", 2),
    ("GridSample", "align_corners mode padding_mode", 2),
    ("Pad", "mode", 3),
    ("Trilu", "upper", 2),
):
    reads(_op, domain=MICROSOFT, attributes=_known, inputs=_most)(twin)
reads("SampleOp", domain=MICROSOFT, attributes="", inputs=1)(identity)
reads("MemcpyFromHost", "MemcpyToHost", attributes="", inputs=1)(identity)


@reads("Range", domain=MICROSOFT, attributes="", inputs=3)
def stepped_range(n: Reading) -> Binding | tuple[Binding, ...]:
    """Reads a Range with a default step of 1."""
    step = n.optional(2) or n.like(n.input(0), 1)
    return range_(as_standard(n, "Range", 11, (n.input(0), n.input(1), step)))


@reads("ExpandDims", domain=MICROSOFT, attributes="", inputs=2)
def expand_dims(n: Reading) -> Binding:
    x, axes = n.input(0), n.integers(1, "axis")
    if len(axes) != 1:
        raise n.refuse(f"ExpandDims needs one axis, got {list(axes)}")
    at = n.axis(axes[0], x.type.rank + 1)
    return n.reshape(x, (*x.type.shape[:at], 1, *x.type.shape[at:]))


@reads("UnfoldTensor", domain=MICROSOFT, attributes="dim size step", inputs=1)
def unfold_tensor(n: Reading) -> Binding:
    """Returns windows of `size` elements along an axis, every `step`, with their elements along a new last axis."""
    x, size, step = n.input(0), n.attr("size", 0), n.attr("step", 1)
    rank = x.type.rank
    axis = n.axis(n.attr("dim", -1), rank)
    whole = x.type.shape[axis] if rank else 0
    if not rank or size < 1 or step < 1 or bounds(whole)[1] < size:
        raise n.refuse(f"UnfoldTensor needs a size from 1 to {whole} and a step of at least 1, got {size} and {step}")
    count = (whole - size) // step + 1
    starts = n.emit("mul", n.reshape(n.count(count), (count, 1)), n.constant(step, I64))
    y = n.emit("gather", x, n.emit("add", starts, n.count(size)), axis=axis)
    return n.transpose(y, (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1))


# --- matrices


@reads("Inverse", domain=MICROSOFT, attributes="", inputs=1)
def inverse(n: Reading) -> Binding:
    return n.emit("inverse", n.input(0))


@reads("MatMulInteger16", domain=MICROSOFT, attributes="", inputs=2)
def matmul_integer16(n: Reading) -> Binding:
    a, b = (n.cast(v, I32) for v in n.inputs)
    return n.emit("matmul", a, b)


@reads("SparseToDenseMatMul", domain=MICROSOFT, attributes="alpha transA transB", inputs=2)
def sparse_to_dense_matmul(n: Reading) -> Binding:
    """Reads sparse matrices, which models hold with their zeros."""
    a, b = n.inputs
    a, b = transpose_last_axes(n, a) if n.flag("transA") else a, transpose_last_axes(n, b) if n.flag("transB") else b
    return scale_by(n, n.emit("matmul", a, b), n.attr("alpha", 1.0))


@reads("CDist", domain=MICROSOFT, attributes="metric", inputs=2)
def cdist(n: Reading) -> Binding:
    """Computes distances of all rows of A to all rows of B, by differences: products would cancel for close rows."""
    (a, b), metric = n.inputs, n.attr("metric", "sqeuclidean")
    if a.type.rank != 2 or b.type.rank != 2 or metric not in ("euclidean", "sqeuclidean"):
        raise n.refuse(
            f"CDist needs matrices and metric euclidean or sqeuclidean, got {a.type}, {b.type} and {metric!r}"
        )
    (rows, width), columns = a.type.shape, b.type.shape[0]
    apart = n.emit("sub", n.reshape(a, (rows, 1, width)), n.reshape(b, (1, columns, b.type.shape[1])))
    return n.emit("reduce_sum_square" if metric == "sqeuclidean" else "reduce_l2", apart, axes=(2,), keepdims=False)


# --- windows


@reads("NhwcMaxPool", domain=MICROSOFT, attributes=f"{_WINDOW} dilations ceil_mode", inputs=1)
def nhwc_max_pool(n: Reading) -> Binding:
    x = _channels_second(n, n.input(0))
    w = window(n, x)
    how = dict(kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, ceil_mode=n.flag("ceil_mode"))
    return _channels_last(n, n.emit("max_pool", x, **how))


def _channels_second(n: Reading, x: Value) -> Value:
    rank = x.type.rank
    return n.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def _channels_last(n: Reading, x: Value) -> Value:
    return n.transpose(x, (0, *range(2, x.type.rank), 1))


@reads("QLinearConv", domain=MICROSOFT, attributes=f"{_WINDOW} dilations group channels_last", inputs=9)
def qlinear_conv_of_either_layout(n: Reading) -> Binding | tuple[Binding, ...]:
    """Reads ONNX's QLinearConv, possibly of images with channels last; weights are the same."""
    if not n.flag("channels_last"):
        return qlinear_conv(n)
    x = _channels_second(n, n.input(0))
    y = qlinear_conv(replace(n, bindings=(x, *n.bindings[1:])))
    assert isinstance(y, Value)
    return _channels_last(n, y)


@reads(
    "ConvTransposeWithDynamicPads",
    domain=MICROSOFT,
    attributes="auto_pad kernel_shape strides dilations group output_padding",
    inputs=4,
)
def conv_transpose_with_dynamic_pads(n: Reading) -> Binding:
    """Reads a ConvTranspose whose pads are an input: crops the output of a convolution without pads."""
    pads, bindings = n.some_integers(2, "pads"), (*n.bindings[:2], *n.bindings[3:4])
    y = conv_transpose(as_standard(n, "ConvTranspose", 11, bindings))
    assert isinstance(y, Value)
    spatial = y.type.rank - 2
    if pads is None:
        return y
    if len(pads) != 2 * spatial or any(bounds(p)[0] < 0 for p in pads):
        raise n.refuse(f"{n.op} needs two pads of 0 and more for each of {spatial} axes, got {list(pads)}")
    for axis, (low, high) in enumerate(zip(pads, pads[spatial:]), 2):
        y = n.slice(y, axis, low, y.type.shape[axis] - high)
    return y


@reads("MaxpoolWithMask", domain=MICROSOFT, attributes=_WINDOW, inputs=2)
def max_pool_with_mask(n: Reading) -> Binding:
    """Computes the maxima of windows, each row of which ends before its first hidden element.

    The mask cannot hide element 0 of two axes and more. Its images begin at multiples of an image of x, modulo their
    number, as in ONNX Runtime.
    """
    x, mask = n.input(0), n.input(1)
    lowest = float(np.finfo(np.float32).min)
    w, rank = window(n, x), x.type.rank
    spatial = rank - 2
    if mask.type.rank != rank or mask.type.shape[2:] != x.type.shape[2:] or not is_known(*mask.type.shape[:2]):
        raise n.refuse(f"MaxpoolWithMask needs a mask of images as large as those of x, got {x.type} and {mask.type}")
    shown = n.emit("logical_not", n.emit("equal", mask, n.like(mask, 0)))
    shown = _images_of_mask(n, x, shown)
    if spatial > 1:
        first = n.reshape(n.emit("equal", n.count(_size(x)), n.constant(0, I64)), x.type.shape[2:])
        shown = n.emit("logical_or", shown, first)
    low, high = (0, 0, *w.pads[:spatial]), (0, 0, *w.pads[spatial:])
    x = n.emit("pad", x, n.like(x, lowest), pads=(*low, *high))
    shown = n.emit("pad", shown, n.constant(True), pads=(*low, *high))
    counts = [(size - k) // s + 1 for size, k, s in zip(x.type.shape[2:], w.kernel, w.strides)]
    best, goes_on = None, None

    def tap(v: Value, at: tuple[int, ...]) -> Value:
        ends = tuple(a + (c - 1) * s + 1 for a, c, s in zip(at, counts, w.strides))
        return n.emit("slice", v, starts=at, ends=ends, axes=tuple(range(2, rank)), steps=w.strides)

    for at in product(*map(range, w.kernel)):
        here = tap(shown, at)
        goes_on = here if not at[-1] or goes_on is None else n.emit("logical_and", goes_on, here)
        candidate = n.emit("where", goes_on, tap(x, at), n.like(x, lowest))
        best = candidate if best is None else n.emit("maximum", best, candidate)
    return n.value(best)


def _size(x: Value) -> Size:
    return x.type.with_shape(x.type.shape[2:]).size


def _images_of_mask(n: Reading, x: Value, mask: Value) -> Value:
    """Returns the part of the mask for each image of x."""
    images, size, shape = mask.type.shape[0] * mask.type.shape[1], _size(x), x.type.shape
    if images == 1:
        return n.reshape(mask, (1, 1, *shape[2:]))
    count = shape[0] * shape[1]
    starts = n.emit("mod", n.emit("mul", n.count(count), n.sizes(size)), n.constant(images, I64))
    at = n.emit("add", n.reshape(starts, (count, 1)), n.count(size))
    return n.reshape(n.emit("gather", n.reshape(mask, (images * size,)), at, axis=0), shape)


@reads("CropAndResize", domain=MICROSOFT, attributes="extrapolation_value mode", inputs=4)
def crop_and_resize(n: Reading) -> Binding:
    """Samples boxes (y₁, x₁, y₂, x₂), relative to the last row and column of an image, at a grid from corner to corner.

    Samples outside the image are the extrapolation value.
    """
    x, boxes, batch, mode = n.input(0), n.input(1), n.input(2), n.attr("mode", "bilinear")
    sizes = n.integers(3, "crop_size")
    if (
        x.type.rank != 4
        or boxes.type.rank != 2
        or boxes.type.shape[1] != 4
        or batch.type.rank != 1
        or len(sizes) != 2
        or min(bounds(size)[1] for size in sizes) < 1
        or mode not in ("bilinear", "nearest")
    ):
        raise n.refuse(
            "CropAndResize needs images of rank 4, boxes of four numbers, an image for each box, a crop_size of two"
            f" and mode bilinear or nearest, got {x.type}, {boxes.type}, {batch.type}, {list(sizes)} and {mode!r}"
        )
    count, image = boxes.type.shape[0], n.transpose(x, (0, 2, 3, 1))
    axes = [_grid(n, x, boxes, axis, size) for axis, size in enumerate(sizes)]
    which = n.expand(n.reshape(n.cast(batch, I64), (count, 1, 1, 1)), (count, *sizes, 1))

    def sample(y: Value, x: Value) -> Value:
        places = [n.reshape(n.expand(n.cast(p, I64), (count, *sizes)), (count, *sizes, 1)) for p in (y, x)]
        return n.emit("gather_nd", image, n.emit("concat", which, *places, axis=3))

    def between(a: Value, b: Value, share: Value) -> Value:
        return n.emit("add", a, n.emit("mul", n.emit("sub", b, a), n.reshape(share, (*share.type.shape, 1))))

    (y, rows), (x_at, columns) = axes
    if mode == "nearest":
        samples = sample(*(n.emit("floor", n.emit("add", at, n.like(at, 0.5))) for at in (y, x_at)))
    else:
        (top, down), (left, right) = ([n.emit(way, at) for way in ("floor", "ceil")] for at in (y, x_at))
        across = n.emit("sub", x_at, left)
        above, below = (between(sample(row, left), sample(row, right), across) for row in (top, down))
        samples = between(above, below, n.emit("sub", y, top))
    inside = n.reshape(n.expand(n.emit("logical_and", rows, columns), (count, *sizes)), (count, *sizes, 1))
    samples = n.emit("where", inside, samples, n.like(samples, n.attr("extrapolation_value", 0.0)))
    return n.transpose(samples, (0, 3, 1, 2))


def _grid(n: Reading, x: Value, boxes: Value, axis: int, count: Size) -> tuple[Value, Value]:
    """Returns the samples' positions of each box along an axis, clamped to the image, and true for those inside:
    [boxes, count], with an axis of size 1 for the other axis."""
    last, steps = (n.cast(n.sizes(d - 1), x.type.dtype) for d in (x.type.shape[2 + axis], count))
    start, end = (n.emit("mul", n.slice(boxes, 1, i, i + 1), last) for i in (axis, axis + 2))
    place = n.cast(n.count(count), x.type.dtype)
    step = n.emit("div", n.emit("sub", end, start), n.emit("maximum", steps, n.like(x, 1)))
    at = n.emit("where", n.emit("equal", place, steps), end, n.emit("add", start, n.emit("mul", step, place)))
    middle = n.emit("mul", n.emit("add", start, end), n.like(x, 0.5))
    at = n.emit("where", n.emit("equal", steps, n.like(x, 0)), middle, at)  # for one sample
    at = n.reshape(at, (at.type.shape[0], count, 1) if axis == 0 else (at.type.shape[0], 1, count))
    inside = n.emit("logical_and", n.emit("greater_equal", at, n.like(at, 0)), n.emit("less_equal", at, last))
    return n.emit("clip", at, n.like(at, 0), last), inside
