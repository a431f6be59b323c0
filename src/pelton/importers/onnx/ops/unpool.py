"""The reader of MaxUnpool, which puts the maxima of windows back to their origins."""

from __future__ import annotations

import math

from pelton.ir.dims import Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I64

from .conv import Window, window
from pelton.importers.onnx.node import Reading, Binding, reads

Shape = tuple[Size, ...]


@reads("MaxUnpool")
def max_unpool(n: Reading) -> Binding:
    """Scatters the elements into zeros of `output_shape`, by default of the shape that strides and kernel imply."""
    x, indices = n.input(0), n.cast(n.input(1), I64)
    w = window(n, x)
    spatial = len(w.kernel)
    implied = (
        *x.type.shape[:2],
        *(
            (size - 1) * s - w.pads[i] - w.pads[spatial + i] + k
            for i, (size, s, k) in enumerate(zip(x.type.shape[2:], w.strides, w.kernel))
        ),
    )
    shape = n.some_integers(2, "output_shape") or implied
    if (
        len(shape) != len(implied)
        or indices.type.rank != x.type.rank
        or not all(map(equal, (*indices.type.shape, *shape[:2]), (*x.type.shape, *x.type.shape[:2])))
    ):
        raise n.refuse(
            f"MaxUnpool needs an index for each element of {x.type}, and an output_shape of as many batches and"
            f" channels, got {indices.type} and {list(shape)}"
        )
    if shape != implied:
        indices = _indices_within(n, indices, w, shape, implied)
    flat = n.emit(
        "scatter_elements",
        n.filled(0, (math.prod(shape),), x.type.dtype),
        n.reshape(indices, (x.type.size,)),
        n.reshape(x, (x.type.size,)),
        axis=0,
    )
    return n.reshape(flat, shape)


def _indices_within(n: Reading, indices: Value, w: Window, shape: Shape, implied: Shape) -> Value:
    """Returns indices into the elements of `shape`, as MaxPool, ONNX Runtime and PyTorch count them.

    The onnx package's text counts in the implied shape and pads the picture at its ends. Indices mean that only if all
    of them then lie in their windows, and would not do so in the other picture.
    """
    places, here = _places(n, indices, w, shape)
    old_places, there = _places(n, indices, w, implied)
    moved = n.constant(0, I64)
    for place, step in zip(old_places, _steps(shape)):
        moved = n.emit("add", moved, n.emit("mul", place, n.sizes(step)))
    return n.emit("where", n.emit("logical_and", there, n.emit("logical_not", here)), moved, indices)


def _steps(shape: Shape) -> list[Size]:
    """Returns the index difference of one step along each axis."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _places(n: Reading, indices: Value, w: Window, shape: Shape) -> tuple[list[Value], Value]:
    """Returns the position of each index along the axes of `shape`, and true if all lie within their windows."""
    rank, places, inside = indices.type.rank, [], n.constant(True, BOOL)
    for axis, (size, step) in enumerate(zip(shape, _steps(shape))):
        k, s, begin = (1, 1, 0) if axis < 2 else (w.kernel[axis - 2], w.strides[axis - 2], w.pads[axis - 2])
        place = n.emit("div", indices, n.sizes(step))
        place = place if axis == 0 else n.emit("mod", place, n.sizes(size))
        first = n.emit("mul", n.count(indices.type.shape[axis]), n.constant(s, I64))
        first = n.emit(
            "sub", n.reshape(first, (indices.type.shape[axis], *[1] * (rank - 1 - axis))), n.constant(begin, I64)
        )
        behind = n.emit("sub", place, first)
        for word, bound in (("greater_equal", 0), ("less", k)):
            inside = n.emit("logical_and", inside, n.emit(word, behind, n.constant(bound, I64)))
        places.append(place)
    return places, n.emit("reduce_min", inside, axes=tuple(range(rank)), keepdims=False)
