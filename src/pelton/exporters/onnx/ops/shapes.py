"""Writers of ops that arrange elements: sizes become operands, computed if they include dynamic dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Dim, Size, is_known
from pelton.ir.types import I32, I64

from ..writing import Writing, writes

_FAR = (1 << 63) - 1


@writes("reshape")
def reshape(w: Writing) -> str:
    """Writes 0 for a kept size and -1 for the remaining one, if these suffice; else the sizes are computed."""
    x, target = w.type(0).shape, w.attrs["shape"]
    shape: list[Size] = [0 if isinstance(d, Dim) and i < len(x) and x[i] == d else d for i, d in enumerate(target)]
    open_ = [i for i, d in enumerate(shape) if isinstance(d, Dim)]
    if not is_known(*target) and 0 not in target and len(open_) <= 1:
        for i in open_:
            shape[i] = -1
        return w.emit("Reshape", w.input(0), w.constant([int(d) for d in shape], I64))
    return w.reshape(w.input(0), target)


@writes("expand")
def expand(w: Writing) -> str:
    """Writes 1 for a size that stays the input's."""
    x, target = w.type(0).shape, w.attrs["shape"]
    front = len(target) - len(x)
    return w.emit(
        "Expand", w.input(0), w.ints([1 if i >= front and x[i - front] == d else d for i, d in enumerate(target)])
    )


@writes("tile")
def tile(w: Writing) -> str:
    return w.emit("Tile", w.input(0), w.ints(w.attrs["repeats"]))


@writes("pad")
def pad(w: Writing) -> str:
    value = w.input(1) if w.type(1).shape == () else w.reshape(w.input(1), ())
    mode = w.attrs["mode"]
    return w.emit("Pad", w.input(0), w.ints(w.attrs["pads"]), value, mode=mode if mode != "constant" else None)


@writes("slice")
def slice_(w: Writing) -> str:
    """Writes an end of −1 with a negative step, which is before the first element, as a number far below."""
    a = w.attrs
    if any(dims.bounds(s)[0] < 0 for s in a["starts"]):
        raise w.refuse("Slice from a start that is not known to be inside")
    ends = [-_FAR if s < 0 and is_known(e) and e < 0 else e for e, s in zip(a["ends"], a["steps"])]
    to = w.ints(ends)
    if any(s < 0 and dims.bounds(e)[0] < 0 for e, s in zip(ends, a["steps"]) if not is_known(e)):
        to = w.emit("Where", w.emit("Less", to, w.constant(0, I64)), w.constant(-_FAR, I64), to)
    operands = (w.ints(a["starts"]), to, w.constant(a["axes"], I64), w.constant(a["steps"], I64))
    return w.emit("Slice", w.input(0), *operands)


@writes("trilu")
def trilu(w: Writing) -> str:
    return w.emit("Trilu", w.input(0), w.number(w.attrs["k"]), upper=int(w.attrs["upper"]))


@writes("depth_to_space", "space_to_depth")
def depth_to_space(w: Writing) -> str:
    return w.emit(w.node.op.onnx[0], w.input(0), blocksize=w.attrs["block"], mode=w.attrs.get("mode"))


# --- sizes


@writes("sizes")
def sizes(w: Writing) -> str:
    values, shape = w.attrs["values"], w.attrs["shape"]
    return w.ints(values) if shape == (len(values),) else w.emit("Reshape", w.ints(values), w.constant(shape, I64))


@writes("iota")
def iota(w: Writing) -> str:
    size, dtype = w.attrs["size"], w.attrs["dtype"]
    if is_known(size) and size <= 64:
        return w.constant(np.arange(int(size)), dtype)
    return w.cast(w.emit("Range", w.constant(0, I64), w.number(size), w.constant(1, I64)), dtype)


# --- by indices


def _indices(w: Writing, i: int, kinds: Sequence = (I64, I32)) -> str:
    name = w.input(i)
    return name if w.model.dtype(name) in kinds else w.cast(name, I64)


@writes("gather", "gather_elements")
def gather(w: Writing) -> str:
    return w.emit(w.node.op.onnx[0], w.input(0), _indices(w, 1), **w.attrs)


@writes("gather_nd")
def gather_nd(w: Writing) -> str:
    return w.emit("GatherND", w.input(0), _indices(w, 1, (I64,)), batch_dims=w.attrs["batch_dims"] or None)


@writes("scatter_elements", "scatter_nd")
def scatter(w: Writing) -> str:
    elements = "axis" in w.attrs
    reduction = w.attrs["reduction"]
    return w.emit(
        w.node.op.onnx[0],
        w.input(0),
        _indices(w, 1, (I64, I32) if elements else (I64,)),
        w.input(2),
        axis=w.attrs["axis"] if elements else None,
        reduction=reduction if reduction != "none" else None,
    )


@writes("one_hot")
def one_hot(w: Writing) -> str:
    return w.emit("OneHot", w.input(0), w.number(w.attrs["depth"]), w.input(1), axis=w.attrs["axis"])


@writes("blend")
def blend(w: Writing) -> str:
    """Gathers all taps and adds them by weight; weights of 0 hide non-finite elements."""
    (x, indices, weights), b, axis = (w.type(i) for i in range(3)), w.attrs["batch_dims"], w.attrs["axis"]
    if weights.dtype is not x.dtype and not x.dtype.is_float:
        raise w.refuse("it needs floating point")
    points, middle, rest = indices.rank - b - 1, axis - b, x.rank - axis - 1
    front = w.transpose(w.input(0), (*range(b), axis, *range(b, axis), *range(axis + 1, x.rank)))
    places = w.emit("Unsqueeze", _indices(w, 1, (I64,)), w.constant([-1], I64))
    elements = w.emit("GatherND", w.cast(front, weights.dtype), places, batch_dims=b or None)
    by = w.input(2)
    if middle + rest:
        last = indices.rank
        by = w.emit("Unsqueeze", by, w.constant(range(last, last + middle + rest), I64))
    zero = w.constant(0, weights.dtype)
    part = w.emit("Where", w.emit("Equal", by, zero), zero, w.emit("Mul", by, elements))
    total = w.emit("ReduceSum", part, w.constant([indices.rank - 1], I64), keepdims=0)
    axes = list(range(b + points + middle + rest))
    order = (*axes[:b], *axes[b + points : b + points + middle], *axes[b : b + points], *axes[b + points + middle :])
    return w.cast(w.transpose(total, order), x.dtype)
