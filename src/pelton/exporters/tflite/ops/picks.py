"""Writers of ops that pick elements by indices."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64

from ..forms import identity
from ..tensors import NoForm, TFLiteTensor
from ..writing import TFLiteWriting, writes
from .shapes import moving


def indices_of(w: TFLiteWriting, v: Value, size: int) -> TFLiteTensor:
    """Returns indices as i32, from 0 on: negative ones count from the end."""
    if not is_known(size) or not 0 < size < 1 << 31:
        raise NoForm("it picks from an axis of dynamic size; fix the sizes of the inputs with --shapes")
    if (array := w.model.known(v)) is not None:
        return w.constant(np.where(array < 0, array + size, array), I32)
    x = w.model.get(v)
    if x.dtype not in (I32, I64):
        raise NoForm(f"TFLite's indices are i32 and i64, got {x.dtype.value}")
    return w.emit("FLOOR_MOD", [w.model.cast(x, I32), w.constant(size, I32)], x.shape, I32)


@writes("gather")
def gather(w: TFLiteWriting) -> None:
    """Writes indices of one axis in any form of the operand, others in its own order."""
    axis, at = w.attrs["axis"], w.type(1).rank
    perm = w.native(0) if at == 1 else identity(w.type(0).rank)
    indices = indices_of(w, w.input(1), w.type(0).shape[axis])
    x = moving(w, w.input(0), perm)
    form = perm if at == 1 else identity(w.output.rank)
    w.moved("GATHER", [x, indices], form, "GatherOptions", axis=perm.index(axis), batch_dims=0)


@writes("gather_nd")
def gather_nd(w: TFLiteWriting) -> None:
    if w.attrs["batch_dims"]:
        raise NoForm("TFLite's GATHER_ND has no batches")
    depth, shape = w.type(1).shape[-1], w.type(0).shape
    array = w.known(1)
    sizes = np.array([d if isinstance(d, int) else 0 for d in shape[:depth]], np.int64)
    if not is_known(*shape[:depth]):
        raise NoForm("it picks from axes of dynamic size; fix the sizes of the inputs with --shapes")
    if array is not None:
        indices = w.constant(np.where(array < 0, array + sizes, array), I32)
    else:
        x = w.model.cast(w.model.get(w.input(1)), I32)
        indices = w.emit("FLOOR_MOD", [x, w.constant(sizes, I32)], x.shape, I32)
    w.moved("GATHER_ND", [moving(w, w.input(0), identity(len(shape))), indices], identity(w.output.rank))


@writes("gather_elements")
def gather_elements(w: TFLiteWriting) -> None:
    """Writes the whole index of each element: those of the other axes are constants."""
    axis, shape = w.attrs["axis"], w.output.shape
    if not is_known(*shape, *w.type(0).shape):
        raise NoForm("it needs known sizes; fix those of the inputs with --shapes")
    column = (*shape, 1)
    own = w.model.reshaped(indices_of(w, w.input(1), w.type(0).shape[axis]), column)
    grid = np.indices(shape, np.int32)
    parts = [own if a == axis else w.constant(grid[a].reshape(column), I32) for a in range(len(shape))]
    index = w.emit("CONCATENATION", parts, (*shape, len(shape)), I32, "ConcatenationOptions", axis=len(shape))
    w.moved("GATHER_ND", [moving(w, w.input(0), identity(len(shape))), index], identity(len(shape)))
