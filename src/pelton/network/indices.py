"""Checks constant indices of layers: kernels do not check them."""

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
    """Raises ValueError for a constant index outside of a layer's first operand."""
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
            text = f"{op.name}: indices from {low} to {high} must fit an axis of {size}"
            raise Undecided(text, room, ">=", (room,))


def _with_sizes(
    op: Op, indices: np.ndarray, shape: Sequence[Size], attrs: Mapping[str, Any]
) -> Iterator[tuple[np.ndarray, Size]]:
    """Yields indices along the operator's axis, or tuples of them, with the sizes of the axes; none if the operator
    itself rejects these."""
    if "axis" in op.attrs:
        axis = attrs.get("axis", op.attrs["axis"])
        if isinstance(axis, int) and 0 <= axis < len(shape):
            yield indices, shape[axis]
    elif indices.ndim:
        within = shape[attrs.get("batch_dims", 0) :]
        yield from ((indices[..., k], size) for k, size in zip(range(indices.shape[-1]), within))
