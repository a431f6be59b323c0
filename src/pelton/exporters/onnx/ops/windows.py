"""Writers of sliding windows: convolutions, transposed convolutions, pooling; and of products of bytes."""

from __future__ import annotations

from typing import Any

from pelton.ir.dims import is_known
from pelton.ir.types import F64, I8, I32, U8
from pelton.ops.windows import window_sizes

from ..schemas import NeedsOpset
from ..writing import Writing, writes

_BYTES = (I8, U8)


def _padded(w: Writing, value: float) -> tuple[str, dict[str, Any]]:
    """Returns the input and the attributes of the window; pads that depend on sizes become a node."""
    a, x = w.attrs, w.input(0)
    pads, space = a["pads"], len(a["strides"])
    if not is_known(*pads):
        every = (0, 0, *pads[:space], 0, 0, *pads[space:])
        x, pads = w.emit("Pad", x, w.ints(every), w.constant(value, w.type(0).dtype)), (0,) * (2 * space)
    return x, dict(strides=a["strides"], pads=pads, dilations=a["dilations"])


@writes("convolution")
def convolution(w: Writing) -> str:
    a = w.attrs
    if a["pad_value"] or len(w.inputs) > 3:
        raise w.refuse("Conv pads with zeros")
    of = w.type(0).dtype, w.type(1).dtype
    if a["accumulate"] is I32 and all(d in _BYTES for d in of):
        x, window = _padded(w, 0)
        y = w.emit("ConvInteger", x, w.input(1), **window, group=a["group"])
        bias = w.known(2)
        if bias is None or bias.any():
            y = w.emit("Add", y, w.reshape(w.input(2), (-1, *[1] * (w.type(0).rank - 2))))
        return w.cast(y, a["to"] or I32)
    if a["accumulate"] is not None or a["to"] is not None:
        raise w.refuse("Conv sums in the type of its input")
    x, window = _padded(w, 0)
    bias = w.known(2)
    operands = (x, w.input(1), *([w.input(2)] if bias is None or bias.any() else []))
    return w.emit("Conv", *operands, **window, group=a["group"])


@writes("matmul")
def matmul(w: Writing) -> str:
    a = w.attrs
    if a["accumulate"] is I32 and all(w.type(i).dtype in _BYTES for i in (0, 1)):
        zeros = [a["a_zero"], a["b_zero"]]
        operands = [w.constant(zero, w.type(i).dtype) for i, zero in enumerate(zeros)] if any(zeros) else []
        return w.cast(w.emit("MatMulInteger", *w.inputs, *operands), a["to"] or I32)
    if a["accumulate"] is not None or a["to"] is not None:
        raise w.refuse("MatMul sums in the type of its operands")
    return w.emit("MatMul", *w.inputs)


@writes("conv_transpose")
def conv_transpose(w: Writing) -> str:
    a = w.attrs
    if not is_known(*a["pads"], *a["output_padding"]):
        raise w.refuse("ConvTranspose needs paddings that are numbers")
    window = {k: a[k] for k in ("strides", "pads", "dilations", "output_padding", "group")}
    return w.emit("ConvTranspose", *w.inputs, **window)


@writes("deform_convolution")
def deform_convolution(w: Writing) -> str:
    a, (x, weight, offset, bias, mask) = w.attrs, w.inputs
    if w.type(0).rank != 4 or not is_known(*a["pads"]):
        raise w.refuse("DeformConv needs images of two axes of space, and paddings that are numbers")
    window = {k: a[k] for k in ("strides", "pads", "dilations", "group", "offset_group")}
    return w.emit("DeformConv", x, weight, offset, bias, mask, **window)


def _is_ceil(w: Writing) -> bool:
    """True if a pool needs ceil_mode. Before opset 22, ONNX counts a last window that starts behind the input; our
    pools have none."""
    a, x = w.attrs, w.type(0).shape[2:]
    if not a["ceil_mode"] or not is_known(*x):
        return a["ceil_mode"]
    sizes = [window_sizes(x, a["kernel"], a["strides"], a["pads"], a["dilations"], ceil) for ceil in (False, True)]
    counted = [
        -(-(n + before + after - d * (k - 1) - 1) // s) + 1
        for n, before, after, k, s, d in zip(
            x, a["pads"], a["pads"][len(x) :], a["kernel"], a["strides"], a["dilations"]
        )
    ]
    if sizes[0] != sizes[1] and list(sizes[1]) != counted and w.model.opset < 22:
        raise NeedsOpset("a pool whose last window would start behind its input", 22)
    return sizes[0] != sizes[1]


def _pool(w: Writing, x: str, window: dict[str, Any]) -> dict[str, Any]:
    ceil, dilations = _is_ceil(w), window["dilations"]
    return dict(
        window,
        kernel_shape=w.attrs["kernel"],
        ceil_mode=1 if ceil else None,
        dilations=dilations if any(d != 1 for d in dilations) else None,
    )


@writes("max_pool")
def max_pool(w: Writing) -> str:
    """Casts integers that MaxPool does not support to f64, which holds those of 32 bits."""
    dtype = w.type(0).dtype
    x, window = _padded(w, dtype.lowest)
    through = dtype if dtype in _BYTES or dtype.is_float else F64
    if through is F64 and dtype is not F64 and dtype.bits > 32:
        raise w.refuse(f"MaxPool does not take {dtype.value}")
    return w.cast(w.emit("MaxPool", w.cast(x, through), **_pool(w, x, window)), dtype)


@writes("max_pool_places")
def max_pool_places(w: Writing) -> str:
    if not is_known(*w.attrs["pads"]):
        raise w.refuse("MaxPool counts places in its padded input")
    x, window = _padded(w, 0)
    pool = dict(_pool(w, x, window), storage_order=int(w.attrs["column_major"]) or None)
    return w.emit_all("MaxPool", [x], [None, None], **pool)[1]


@writes("average_pool")
def average_pool(w: Writing) -> str:
    a = w.attrs
    if not is_known(*a["pads"]):
        raise w.refuse("AveragePool counts elements within explicit pads")
    x, window = _padded(w, 0)
    return w.emit("AveragePool", x, **_pool(w, x, window), count_include_pad=int(a["count_include_pad"]) or None)


@writes("max_roi_pool")
def max_roi_pool(w: Writing) -> str:
    """Writes MaxRoiPool, which expects the number of the image in front of each region."""
    a, dtype = w.attrs, w.type(0).dtype
    of = w.cast(w.reshape(w.input(2), (-1, 1)), dtype)
    rois = w.emit("Concat", of, w.cast(w.input(1), dtype), axis=1)
    return w.emit("MaxRoiPool", w.input(0), rois, pooled_shape=(a["height"], a["width"]), spatial_scale=a["scale"])
