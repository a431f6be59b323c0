"""Writers of convolutions, pools and resizing: operators of images with channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, I32

from pelton.ops import words

from ..forms import channels_last
from ..tensors import NoForm, Scaling, TFLiteTensor
from ..writing import TFLiteWriting, writes

SAME, VALID = 0, 1


def is_same(sizes: Sequence[Size], outs: Sequence[Size], kernel, strides, pads, dilations) -> bool:
    """True if these pads are those of TFLite's padding SAME, for all sizes."""
    spatial = len(kernel)
    for i, (n, out, k, s, d) in enumerate(zip(sizes, outs, kernel, strides, dilations)):
        before, after = pads[i], pads[spatial + i]
        reach = (k - 1) * d + 1
        if s == 1:
            total: Size = reach - 1
        elif is_known(n, out):
            if out != -(-n // s):
                return False
            total = max((out - 1) * s + reach - n, 0)
        else:
            return False
        if before != total // 2 or s == 1 and after != total - before:
            return False
    return True


def padded(w: TFLiteWriting, x: TFLiteTensor, pads: Sequence[int], value: float | None = 0) -> TFLiteTensor:
    """Pads the space of an image with channels last, by 0 or a value; integers by their zero point, or the lowest."""
    spatial = len(pads) // 2
    if not any(pads):
        return x
    amounts = w.constant([(0, 0), *zip(pads[:spatial], pads[spatial:]), (0, 0)], I32)
    shape = (x.shape[0], *(d + a + b for d, a, b in zip(x.shape[1:-1], pads, pads[spatial:])), x.shape[-1])
    if value == 0:
        return w.emit("PAD", [x, amounts], shape, scaling=x.scaling)
    fill = w.constant(value if x.scaling is None else x.dtype.lowest, x.dtype)
    fill = fill if x.scaling is None else w.model.constant(np.array(x.dtype.lowest, x.dtype.numpy), x.scaling)
    return w.emit("PADV2", [x, amounts, fill], shape, scaling=x.scaling)


def window_options(strides: Sequence[int], same: bool, axes: str = "hw") -> dict[str, Any]:
    return dict(padding=SAME if same else VALID) | {f"stride_{a}": s for a, s in zip(axes, strides)}


def weights_of(w: TFLiteWriting, v: Value, perm: tuple[int, ...], axis: int) -> tuple[TFLiteTensor, np.ndarray | None]:
    """Returns weights in another order of axes, and, of integers, the scale of each output channel, axis `axis`."""
    model = w.model
    if not w.integers:
        return model.get(v, perm), None
    if not model.is_stored(v):
        raise NoForm(f"its weights %{v.name} are not quantized")
    stored, scaling = model.stored(v)
    if scaling.zero != 0 or len(scaling.scale) > 1 and scaling.axis != axis:
        raise NoForm("TFLite's weights have a zero point of 0, and scales for output channels")
    codes = model.known(stored)
    assert codes is not None
    tensor = model.constant(np.asarray(codes.transpose(perm), order="C"), scaling.moved(perm))
    return tensor, np.broadcast_to(np.array(scaling.scale, np.float64), (v.type.shape[axis],))


def bias_of(
    w: TFLiteWriting, bias: Value | None, x: TFLiteTensor, scales: np.ndarray | None, count: int
) -> TFLiteTensor:
    """Returns the bias: of integers, i32 in units of the scales of x and of the weights."""
    array = np.zeros(count, np.float32) if bias is None else w.model.known(bias)
    if array is None:
        assert bias is not None
        if scales is not None:
            raise NoForm("TFLite's biases of integers are constants")
        return w.model.get(bias)
    array = array.reshape(-1)
    if scales is None:
        return w.constant(array, F32)
    assert x.scaling is not None
    units = scales * x.scaling.scale[0]
    codes = np.rint(array.astype(np.float64) / units)
    if (np.abs(codes) >= 1 << 31).any():
        raise NoForm("its bias has more than 32 bits in units of its scales")
    same = len(set(units.tolist())) == 1
    scaling = Scaling(tuple(map(float, units[:1] if same else units)))
    return w.model.constant(codes.astype(np.int32), scaling)


def _lifted(w: TFLiteWriting, v: Value, rank: int) -> Value:
    """Returns an image of one spatial axis as one of two, the first of size 1."""
    if v.type.rank == rank:
        return v
    n, c, size = v.type.shape
    lifted = Value(v.type.with_shape((n, c, 1, size)), v.name)
    w.model.reshape(v, lifted)
    return lifted


@writes("convolution")
def convolution(w: TFLiteWriting) -> None:
    rank, group = w.output.rank, w.attrs["group"]
    strides, pads, dilations = (w.attrs[k] for k in ("strides", "pads", "dilations"))
    if w.output.dtype is not F32 or len(w.node.inputs) > 3 or rank > 5:
        raise NoForm("TFLite's convolutions are of f32, with up to 3 spatial axes, padded with zeros")
    image, filters = _lifted(w, w.input(0), max(4, rank)), w.input(1)
    if rank == 3:
        strides, pads, dilations = (1, *strides), (0, pads[0], 0, pads[1]), (1, *dilations)
        filters = _filters_2d(w, filters)
    shape = w.output.shape
    outs = (1, shape[2]) if rank == 3 else shape[2:]
    kernel, channels, count = filters.type.shape[2:], image.type.shape[1], filters.type.shape[0]
    x = w.tensor(image, channels_last(max(4, rank)))
    same = is_same(image.type.shape[2:], outs, kernel, strides, pads, dilations)
    x = x if same else padded(w, x, pads)
    form = (shape[0], *outs, count)
    if rank == 5:
        _volumes(w, x, filters, same)
        return
    options = window_options(strides, same) | dict(dilation_h=dilations[0], dilation_w=dilations[1], activation=0)
    if group == channels and group > 1 or group == channels == 1 and filters.type.shape[1] == 1 and count > 1 < group:
        weights, scales = weights_of(w, filters, (1, 2, 3, 0), 0)
        kind, name = "DepthwiseConv2DOptions", "DEPTHWISE_CONV_2D"
        options["multiplier"] = count // group
    else:
        weights, scales = weights_of(w, filters, (0, 2, 3, 1), 0)
        kind, name = "Conv2DOptions", "CONV_2D"
    inputs = [x, weights, bias_of(w, w.input(2), x, scales, count)]
    perm = channels_last(rank)
    w.result(name, inputs, perm, kind, shape=form if rank == 3 else None, **options)


def _filters_2d(w: TFLiteWriting, v: Value) -> Value:
    """Returns filters of one spatial axis as ones of two."""
    m, c, k = v.type.shape
    made = Value(v.type.with_shape((m, c, 1, k)), v.name)
    if w.model.is_stored(v):
        stored, scaling = w.model.stored(v)
        codes = w.model.known(stored)
        assert codes is not None
        held = Value(made.type.with_dtype(stored.type.dtype), v.name)
        w.model.put_codes(held, codes.reshape(m, c, 1, k), scaling)
        w.model.put_stored(made, held, scaling)
    else:
        w.model.reshape(v, made)
    return made


def _volumes(w: TFLiteWriting, x: TFLiteTensor, filters: Value, same: bool) -> None:
    if w.integers or w.attrs["group"] != 1:
        raise NoForm("TFLite's CONV_3D is of floats, and of one group")
    strides, dilations = w.attrs["strides"], w.attrs["dilations"]
    options = window_options(strides, same, "dhw") | {f"dilation_{a}": d for a, d in zip("dhw", dilations)}
    weights, _ = weights_of(w, filters, (2, 3, 4, 1, 0), 0)
    bias = bias_of(w, w.input(2), x, None, filters.type.shape[0])
    w.result("CONV_3D", [x, weights, bias], channels_last(5), "Conv3DOptions", **options)


@writes("conv_transpose")
def conv_transpose(w: TFLiteWriting) -> None:
    """Writes the whole output and crops it, unless the pads are those of SAME."""
    strides, pads, dilations, extra = (w.attrs[k] for k in ("strides", "pads", "dilations", "output_padding"))
    if w.output.dtype is not F32 or w.output.rank != 4 or w.attrs["group"] != 1 or any(d != 1 for d in dilations):
        raise NoForm("TFLite's TRANSPOSE_CONV is of f32, two spatial axes, one group, and no dilations")
    image, filters, perm = w.input(0), w.input(1), channels_last(4)
    n, _, *space = w.output.shape
    kernel, count = filters.type.shape[2:], filters.type.shape[1]
    if any(e >= s for e, s in zip(extra, strides)):
        raise NoForm("TFLite's TRANSPOSE_CONV adds less than a stride")
    x = w.tensor(image, perm)
    weights, scales = weights_of(w, filters, (1, 2, 3, 0), 1)
    bias = bias_of(w, w.input(2), x, scales, count)
    same = is_known(*space) and all(
        -(-out // s) == d and before == max((d - 1) * s + k - out, 0) // 2
        for out, s, d, k, before in zip(space, strides, image.type.shape[2:], kernel, pads)
    )
    whole = [out + a + b for out, a, b in zip(space, pads, pads[2:])]
    shape = (n, *(space if same else whole), count)
    options = window_options(strides, same) | dict(activation=0)
    inputs = [w.ints(shape), weights, x, bias]
    if same or not any(pads):
        w.result("TRANSPOSE_CONV", inputs, perm, "TransposeConvOptions", **options)
        return
    y = w.emit("TRANSPOSE_CONV", inputs, shape, x.dtype, "TransposeConvOptions", w.end.scaling, **options)
    begin, size = w.ints((0, *pads[:2], 0)), w.ints((-1, *space, -1))
    w.moved("SLICE", [y, begin, size], perm)


@writes("max_pool", "average_pool")
def pool(w: TFLiteWriting) -> None:
    kernel, strides, pads, dilations = (w.attrs[k] for k in ("kernel", "strides", "pads", "dilations"))
    rank, largest = w.output.rank, w.node.op is words.max_pool
    counts_all = not largest and w.attrs["count_include_pad"]
    if rank > 4 or any(d != 1 for d in dilations):
        raise NoForm("TFLite's pools have two spatial axes and no dilations")
    image = _lifted(w, w.input(0), 4)
    if rank == 3:
        kernel, strides, pads = (1, *kernel), (1, *strides), (0, pads[0], 0, pads[1])
    outs = (1, w.output.shape[2]) if rank == 3 else w.output.shape[2:]
    sizes = image.type.shape[2:]
    if w.attrs["ceil_mode"]:
        pads = _reached(sizes, outs, kernel, strides, pads)
        if counts_all and pads != tuple(w.attrs["pads"]):
            raise NoForm("TFLite's AVERAGE_POOL_2D has no rest of a window that counts padding")
    x = w.tensor(image, channels_last(4)) if w.output.dtype is F32 else w.model.get(image, channels_last(4))
    if x.dtype is not F32 and x.scaling is None:
        raise NoForm(f"TFLite's pools are of f32 and of quantized integers, got {w.output.dtype.value}")
    same = is_same(sizes, outs, kernel, strides, pads, (1, 1)) and not (counts_all and any(pads))
    name = "MAX_POOL_2D" if largest else "AVERAGE_POOL_2D"
    options = window_options(strides, same) | dict(filter_h=kernel[0], filter_w=kernel[1], activation=0)
    inner = (w.output.shape[0], *outs, w.output.shape[1])
    share = None
    if not same and any(pads):
        if not largest and not counts_all:
            share = _share(sizes, outs, kernel, strides, pads)
        x = padded(w, x, pads, -math.inf if largest else 0)
    if share is not None or rank == 3:
        if w.integers and share is not None:
            raise NoForm("TFLite's AVERAGE_POOL_2D of integers has the padding SAME")
        y = w.emit(name, [x], inner, x.dtype, "Pool2DOptions", x.scaling, **{**options, "activation": 0})
        if share is not None:
            y = w.emit("MUL", [y, w.constant(share)], inner, kind="MulOptions")
        if w.end.activation != "NONE":
            y = w.emit(w.end.activation, [y], inner, y.dtype, scaling=y.scaling)
        form = tuple(w.output.shape[a] for a in channels_last(rank))
        w.finish(w.model.reshaped(y, form), channels_last(rank))
        return
    w.moved(name, [x], channels_last(4), "Pool2DOptions", **options)


def _reached(sizes, outs, kernel, strides, pads) -> tuple[int, ...]:
    """Returns pads up to the end of the last window."""
    if not is_known(*sizes, *outs):
        raise NoForm("a pool that rounds sizes up needs known ones; fix the sizes of the inputs with --shapes")
    ends = [(o - 1) * s + k - n - a for n, o, k, s, a in zip(sizes, outs, kernel, strides, pads)]
    return (*pads[:2], *map(max, pads[2:], ends))


def _share(sizes, outs, kernel, strides, pads) -> np.ndarray:
    """Returns the elements of a window by those of them inside of the image: [1, height, width, 1]."""
    if not is_known(*sizes, *outs):
        raise NoForm("its means leave padding out, which needs known sizes; fix those of the inputs with --shapes")
    counts = []
    for n, out, k, s, before in zip(sizes, outs, kernel, strides, pads):
        starts = np.arange(out) * s - before
        counts.append(np.minimum(starts + k, n) - np.maximum(starts, 0))
    inside = counts[0][:, None] * counts[1]
    return (math.prod(kernel) / inside).astype(np.float32)[None, :, :, None]


@writes("resize")
def resize(w: TFLiteWriting) -> None:
    w.attrs["shape"]
    mode, coordinates, nearest = (w.attrs[k] for k in ("mode", "coordinates", "nearest"))
    shape, scales, rank = w.output.shape, w.attrs["scales"], w.output.rank
    if rank != 4 or shape[:2] != w.type(0).shape[:2] or w.attrs["antialias"] or mode == "cubic":
        raise NoForm("TFLite resizes height and width, by nearest neighbors or linearly, without antialiasing")
    w.attrs["cubic_a"]
    w.attrs["exclude_outside"]
    w.attrs["extrapolation"]
    before = w.type(0).shape
    for d, out, scale in zip(before, shape, scales):
        if scale and not (is_known(d, out) and abs(scale * d - out) < 1e-4) and scale != 1:
            raise NoForm("TFLite's scales are those of the sizes")
    half = coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    if coordinates == "pytorch_half_pixel" and (not is_known(*shape) or 1 in shape[2:]):
        raise NoForm("TFLite has no pytorch_half_pixel for sizes of 1")
    corners = coordinates == "align_corners"
    if mode == "nearest":
        half = _nearest(before[2:], shape[2:], coordinates, nearest)
    elif not half and not corners and coordinates != "asymmetric":
        raise NoForm(f"TFLite has no coordinates {coordinates}")
    perm = channels_last(4)
    name = "RESIZE_BILINEAR" if mode == "linear" else "RESIZE_NEAREST_NEIGHBOR"
    kind = "ResizeBilinearOptions" if mode == "linear" else "ResizeNearestNeighborOptions"
    x = w.x(0, perm)
    if x.dtype is not F32 and x.scaling is None:
        raise NoForm(f"TFLite resizes f32, got {w.output.dtype.value}")
    w.moved(name, [x, w.ints(shape[2:])], perm, kind, align_corners=corners, half_pixel=half)


def _nearest(before, after, coordinates: str, nearest: str) -> bool:
    """Returns `half_pixel` of nearest neighbors; raises NoForm if TFLite picks others."""
    if coordinates == "asymmetric" and nearest == "floor":
        return False
    if coordinates == "tf_half_pixel_for_nn" and nearest == "floor":
        return True
    if coordinates == "align_corners" and nearest == "round_prefer_ceil":
        return False
    whole = is_known(*before, *after) and all(b % a == 0 for a, b in zip(before, after))
    if coordinates.endswith("half_pixel") and nearest.startswith("round") and whole:
        return False  # every element is repeated equally often
    raise NoForm(f"TFLite has no neighbors by {coordinates} and {nearest}")
