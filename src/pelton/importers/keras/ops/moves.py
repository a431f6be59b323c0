"""Operations that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.types import DType, broadcast_shapes
from pelton.network import NetworkTensor

from ..config import flattened
from ..held import HeldTensor, of_one_type, together
from .operation import Operation, reads_operation


def _list(o: Operation, name: str) -> list[HeldTensor]:
    inputs = o.get(name)
    inputs = flattened(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if not inputs or not all(isinstance(x, HeldTensor) for x in inputs):
        raise o.refuse("joins something else than tensors")
    return inputs


@reads_operation("Concatenate", args=("xs",))
def concatenate(o: Operation) -> HeldTensor:
    inputs = of_one_type(o, _list(o, "xs"))
    if any(x.rank != inputs[0].rank for x in inputs):
        raise o.refuse("joins tensors of several numbers of axes")
    axis = o.axis("axis", inputs[0].rank, 0)
    tensors, like = together(inputs)
    return like.like(o.net.concat(tensors, like.axis(axis)))


@reads_operation("Stack", args=("x",))
def stack(o: Operation) -> HeldTensor:
    inputs = of_one_type(o, _list(o, "x"))
    return o.of(o.net.stack([x.tensor() for x in inputs], o.axis("axis", inputs[0].rank + 1, 0)))


@reads_operation("Unstack")
def unstack(o: Operation) -> list[HeldTensor]:
    x = o.held("x")
    o.get("num")
    return [o.of(t) for t in o.net.unstack(x.tensor(), o.axis("axis", x.rank, 0))]


@reads_operation("Split")
def split(o: Operation) -> list[HeldTensor]:
    x, sections = o.held("x"), o.get("indices_or_sections")
    axis = o.axis("axis", x.rank, 0)
    if isinstance(sections, int):
        return [o.of(t) for t in o.net.split(x.tensor(), sections, axis)]
    places: list[Size] = [0, *o.integers("indices_or_sections", low=0), x.shape[axis]]
    for a, b in zip(places, places[1:]):
        o.reading.at_least(b, a, f"splits {x.shape[axis]} elements at {places[1:-1]}")
    sizes = [b - a for a, b in zip(places, places[1:])]
    return [o.of(t) for t in o.net.split(x.tensor(), sizes, axis)]


@reads_operation("Reshape")
def reshape(o: Operation) -> HeldTensor:
    x, shape = o.held("x"), o.integers("newshape", low=-1)
    return o.of(o.net.reshape(x.tensor(), _with_batch(o, x, shape)))


def _with_batch(o: Operation, x: HeldTensor, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Replaces −1 in a shape; a leading −1 may be a dynamic batch."""
    if shape.count(-1) > 1:
        raise o.refuse(f"has several sizes of -1: {list(shape)}")
    if -1 not in shape:
        return shape
    size, others = math.prod(x.shape), math.prod(d for d in shape if d != -1)
    if is_known(size) and (others == 0 or size % others):
        raise o.refuse(f"cannot make {list(shape)} of {list(x.shape)}")
    return tuple(size // others if d == -1 else d for d in shape)


@reads_operation("Transpose")
def transpose(o: Operation) -> HeldTensor:
    x = o.held("x")
    axes = None if o.get("axes") is None else o.axes("axes", x.rank)
    return o.of(o.net.transpose(x.tensor(), axes))


@reads_operation("Swapaxes", "Moveaxis")
def moved(o: Operation) -> HeldTensor:
    x = o.held("x")
    perm = list(range(x.rank))
    if o.type == "Swapaxes":
        a, b = o.axis("axis1", x.rank), o.axis("axis2", x.rank)
        perm[a], perm[b] = perm[b], perm[a]
    else:
        source, target = (o.axes(name, x.rank) for name in ("source", "destination"))
        perm = [a for a in perm if a not in source]
        for to, a in sorted(zip(target, source)):
            perm.insert(to, a)
    return o.of(o.net.transpose(x.tensor(), perm))


@reads_operation("Squeeze")
def squeeze(o: Operation) -> HeldTensor:
    x = o.held("x")
    axes = [a for a, d in enumerate(x.shape) if d == 1] if o.get("axis") is None else o.axes("axis", x.rank)
    if o.get("axis") is None and not is_known(*x.shape[1:]):
        raise o.refuse("removes axes of unknown sizes")
    return o.of(o.net.squeeze(x.tensor(), axes))


@reads_operation("ExpandDims")
def expand_dims(o: Operation) -> HeldTensor:
    x, axes = o.held("x"), o.get("axis")
    count = len(axes) if isinstance(axes, (list, tuple)) else 1
    return o.of(o.net.unsqueeze(x.tensor(), o.axes("axis", x.rank + count)))


@reads_operation("Ravel")
def ravel(o: Operation) -> HeldTensor:
    x = o.tensor("x")
    return o.of(o.net.reshape(x, (math.prod(x.shape),)))


@reads_operation("BroadcastTo")
def broadcast(o: Operation) -> HeldTensor:
    """Broadcasts known sizes only, as files have 1 in place of a batch that Keras does not know."""
    x, shape = o.held("x"), o.integers("shape", low=1)
    if not is_known(*x.shape):
        raise o.refuse("spreads a tensor of unknown sizes")
    return o.of(o.net.expand(x.tensor(), shape))


@reads_operation("Tile")
def tile(o: Operation) -> HeldTensor:
    x, repeats = o.held("x"), o.integers("repeats", low=1)
    t = x.tensor()
    if len(repeats) > x.rank:
        t = o.net.reshape(t, (*[1] * (len(repeats) - x.rank), *x.shape))
    return o.of(o.net.tile(t, (*[1] * (t.rank - len(repeats)), *repeats)))


@reads_operation("Repeat")
def repeat(o: Operation) -> HeldTensor:
    x, (n,) = o.held("x"), o.integers("repeats", low=1)
    if o.get("axis") is None:
        raise o.refuse("has no axis, which is not supported")
    axis = o.axis("axis", x.rank)
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = o.net.expand(o.net.unsqueeze(x.tensor(), axis + 1), (*before, size, n, *after))
    return o.of(o.net.reshape(wide, (*before, size * n, *after)))


@reads_operation("Flip")
def flip(o: Operation) -> HeldTensor:
    x = o.held("x")
    return x.mapped(lambda t: o.net.flip(t, [x.axis(a) for a in o.axes("axis", x.rank)]))


@reads_operation("Roll")
def roll(o: Operation) -> HeldTensor:
    x, (shift,) = o.held("x"), o.integers("shift")
    if o.get("axis") is None:
        raise o.refuse("has no axis, which is not supported")
    return x.mapped(lambda t: o.net.roll(t, shift, x.axis(o.axis("axis", x.rank))))


@reads_operation("Pad")
def pad(o: Operation) -> HeldTensor:
    x, widths = o.held("x"), o.get("pad_width")
    mode = o.get("mode", "constant")
    if mode not in ("constant", "reflect") or not isinstance(widths, (list, tuple)):
        raise o.refuse(f"pads in an unknown way, {mode!r:.30}, by {widths!r:.60}")
    if not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in widths) or len(widths) != x.rank:
        raise o.refuse(f"needs (before, after) for each of {x.rank} axes, got {widths!r:.60}")
    value = np.asarray(o.number("constant_values", 0.0)).astype(x.dtype.numpy)
    return o.of(o.net.pad(x.tensor(), [tuple(p) for p in widths], value, mode=mode))


@reads_operation("GetItem", args=("x", "key"))
def get_item(o: Operation) -> HeldTensor:
    key = o.get("key")
    key = tuple(key) if isinstance(key, (list, tuple)) else (key,)
    indices = [slice(None) if isinstance(k, slice) and k == slice(None) else k for k in key]
    return o.of(picked(o, o.held("x"), indices))


def picked(o: Operation, x: HeldTensor, key: list[Any]) -> Any:
    """Computes x[key] for numbers, slices of numbers, new axes and an ellipsis."""
    for k in key:
        parts = [k.start, k.stop, k.step] if isinstance(k, slice) else [k]
        if any(not (p is None or p is Ellipsis or type(p) is int) for p in parts):
            raise o.refuse(f"indexes with {k!r:.60}, which is not supported")
    at = key.index(Ellipsis) if Ellipsis in key else len(key)
    count = sum(k is not None and k is not Ellipsis for k in key)
    if count > x.rank or sum(k is Ellipsis for k in key) > 1:
        raise o.refuse(f"picks elements of {x.rank} axes by {len(key)} parts")
    wide = [*key[:at], *[slice(None)] * (x.rank - count), *key[at + 1 :]]
    return o.net.index(x.tensor(), tuple(wide))


@reads_operation("Slice", args=("inputs", "start_indices"))
def sliced(o: Operation) -> HeldTensor:
    """Slices a known shape from a start that may be computed; a slice that sticks out is moved inside."""
    x, shape = o.tensor("inputs"), o.integers("shape", low=0)
    for axis, at in enumerate(_places(o, x, shape)):
        x = o.net.gather(x, at, axis=axis)
    return o.of(x)


@reads_operation("SliceUpdate", args=("inputs", "start_indices", "updates"))
def slice_update(o: Operation) -> HeldTensor:
    """Writes another tensor into x from a start that may be computed; one that sticks out is moved inside."""
    x, updates = o.tensor("inputs"), o.tensor("updates")
    places = _places(o, x, updates.shape)
    rank, shape = x.rank, updates.shape
    apart = [o.net.reshape(at, (*[1] * a, d, *[1] * (rank - a))) for a, (d, at) in enumerate(zip(shape, places))]
    where = o.net.concat([o.net.expand(at, (*shape, 1)) for at in apart], axis=rank)
    return o.of(o.net.scatter_nd(x, where, updates))


def _places(o: Operation, x: NetworkTensor, shape: Sequence[Size]) -> list[NetworkTensor]:
    """Returns the indices of a part of x along each axis."""
    if len(shape) != x.rank or not x.rank:
        raise o.refuse(f"needs a size for each of {x.rank} axes, got {list(shape)}")
    start = o.get("start_indices")
    start = [o.held("start_indices").tensor()] if isinstance(start, HeldTensor) else flattened(start)
    begins = [o.net.cast(t if isinstance(t, NetworkTensor) else _index(o, t), to="i64") for t in start]
    whole = begins[0] if len(begins) == 1 else o.net.concat([o.net.reshape(t, (1,)) for t in begins], axis=0)
    if whole.shape not in ((x.rank,), ()) or whole.rank == 0 and x.rank > 1:
        raise o.refuse(f"needs a start for each of {x.rank} axes, got {list(whole.shape)}")
    places = []
    for axis, (d, n) in enumerate(zip(x.shape, shape)):
        room = o.net.reshape(o.net.sizes(values=(d - n,), shape=(1,)), ())
        at = o.net.reshape(whole, (-1,))[axis]
        at = o.net.minimum(o.net.maximum(at, np.int64(0)), room)
        places.append(o.net.add(o.net.iota(n), at))
    return places


def _index(o: Operation, given: Any) -> NetworkTensor:
    """Returns a tensor from a number, or a tensor, of a list of starts."""
    return given.tensor() if isinstance(given, HeldTensor) else o.net.tensor_of(o.array(given, "start_indices"))


@reads_operation("Take", args=("x", "indices"))
def take(o: Operation) -> HeldTensor:
    x, indices = o.held("x"), o.get("indices")
    if o.get("axis") is None:
        raise o.refuse("has no axis, which is not supported")
    axis = o.axis("axis", x.rank)
    if isinstance(indices, HeldTensor):
        t = indices.tensor()
        return o.of(o.net.gather(x.tensor(), t if t.dtype.is_integer else o.net.cast(t, to="i32"), axis))
    array = o.array(indices, "indices")
    if array.dtype.kind not in "iu":
        raise o.refuse("picks elements by something else than whole numbers")
    return o.of(o.net.gather(x.tensor(), array.astype(np.int64), axis))


@reads_operation("TakeAlongAxis", args=("x", "indices"))
def take_along_axis(o: Operation) -> HeldTensor:
    x, indices = o.held("x"), o.held("indices")
    if o.get("axis") is None or indices.rank != x.rank:
        raise o.refuse("picks elements along an axis that is not known")
    axis = o.axis("axis", x.rank)
    off = list(broadcast_shapes(*(tuple(1 if a == axis else d for a, d in enumerate(t.shape)) for t in (x, indices))))
    wide = (o.net.expand(t.tensor(), (*off[:axis], t.shape[axis], *off[axis + 1 :])) for t in (x, indices))
    return o.of(o.net.gather_elements(*wide, axis=axis))


@reads_operation("OneHot")
def one_hot(o: Operation) -> HeldTensor:
    x, (depth,) = o.held("x"), o.integers("num_classes", low=1)
    o.expect(sparse=False)
    to = o.dtype("dtype") or DType.F32
    axis = o.axis("axis", x.rank + 1, -1)
    # negative numbers match nothing; Network.one_hot would count them from the end
    places = np.arange(depth, dtype=np.int32).reshape(-1, *[1] * (x.rank - axis))
    indices = o.net.unsqueeze(o.net.cast(x.tensor(), to="i32"), axis)
    return o.of(o.net.cast(o.net.equal(indices, places), to=to))


@reads_operation("Tril", "Triu")
def triangle(o: Operation) -> HeldTensor:
    (k,) = o.integers("k") if o.get("k") is not None else (0,)
    return o.of(o.net.trilu(o.tensor("x"), k=k, upper=o.type == "Triu"))
