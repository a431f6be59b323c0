"""Constant indices of layers, which have to be there: kernels do not look whether they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Size, Undecided
from pelton.ir.graph import Value
from pelton.ir.op import Op


def check_indices(
    op: Op, values: Sequence[Value], attrs: Mapping[str, Any], constants: Mapping[Value, np.ndarray]
) -> None:
    """ValueError where a layer has a constant index that its first operand does not have."""
    if not op.indexed or len(values) < 2 or values[1] not in constants:
        return
    for indices, size in _with_sizes(op, np.asarray(constants[values[1]]), values[0].type.shape, attrs):
        if not indices.size or indices.dtype.kind not in "iu":
            continue
        low, high = int(indices.min()), int(indices.max())
        room = size - max(high + 1, -low)
        at_least, at_most = dims.bounds(room)
        if at_most < 0:
            raise ValueError(f"{op.name}: needs indices that an axis of {size} has, got {low} to {high}")
        if at_least < 0:
            text = f"{op.name}: indices from {low} to {high} have to fit an axis of {size}"
            raise Undecided(text, room, ">=", (room,))


def _with_sizes(
    op: Op, indices: np.ndarray, shape: Sequence[Size], attrs: Mapping[str, Any]
) -> Iterator[tuple[np.ndarray, Size]]:
    """Indices along the axis that an operator names, or tuples of them, and the sizes of the axes; none where the
    operator itself refuses these."""
    if "axis" in op.attrs:
        axis = attrs.get("axis", op.attrs["axis"])
        if isinstance(axis, int) and 0 <= axis < len(shape):
            yield indices, shape[axis]
    elif indices.ndim:
        within = shape[attrs.get("batch_dims", 0) :]
        yield from ((indices[..., k], size) for k, size in zip(range(indices.shape[-1]), within))
