"""Splits arrays of data into samples, each one set of inputs for a run, and validates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pelton.engine.plan import Port
from pelton.errors import InputError, near

Sample = dict[str, np.ndarray]


def split(
    ports: Sequence[Port],
    arrays: Mapping[str, np.ndarray],
    optimum: Mapping[str, tuple[int, ...]],
    source: str = "data",
) -> list[Sample]:
    """Returns the samples in arrays by name of input, in order.

    An array has a further axis of samples in front of the input's shape, or joins samples along the input's own first
    axis, which is split by its size, or by its optimum if it is dynamic. An array of one sample serves every run.
    `source` names the data in messages. Raises InputError for unknown and missing names, other types and shapes, arrays
    without elements, elements that are infinite or NaN, and numbers of samples that differ.
    """
    takes = "it takes " + (", ".join(f"{p.name}: {p}" for p in ports) or "no inputs")
    names = [p.name for p in ports]
    for name in arrays:
        if name not in names:
            raise InputError(f"{source} has an array {name!r}, but no such input exists{near(name, names)}; {takes}")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(f"{source} has no array {missing[0]!r}; {takes}")
    stacks = {p.name: _stack(p, np.asarray(arrays[p.name]), optimum[p.name], source) for p in ports}
    counts = {name: len(a) for name, a in stacks.items() if len(a) != 1}
    if len(set(counts.values())) > 1:
        raise InputError(
            f"{source} has different numbers of samples: " + ", ".join(f"{name} {n}" for name, n in counts.items())
        )
    count = max(counts.values(), default=1)
    return [{name: a[i if len(a) > 1 else 0] for name, a in stacks.items()} for i in range(count)]


def _stack(port: Port, array: np.ndarray, optimum: tuple[int, ...], source: str) -> np.ndarray:
    """Checks an array and adds a leading axis of samples."""
    what = f"{source}: input {port.name!r} needs {port}"
    if array.dtype != port.numpy_dtype and (port.dtype != "string" or array.dtype.kind not in "OUT"):
        raise InputError(
            f"{what} (numpy {port.numpy_dtype.name}), got {array.dtype.name}; convert it with"
            f" .astype(np.{port.numpy_dtype.name})"
        )
    if not array.size:
        raise InputError(f"{what}, got no elements: shape {list(array.shape)}")
    if array.dtype.kind in "fcV" and not np.isfinite(array).all():
        at = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InputError(f"{what}, got {array[tuple(at)]} at {at}; leave out samples that are not finite")
    rank = len(port.shape)
    if array.ndim == rank + 1 and _matches(array.shape[1:], port.shape):
        return array
    if array.ndim == rank and _matches(array.shape, port.shape) and (rank == 0 or isinstance(port.shape[0], int)):
        return array[None]
    if array.ndim == rank and rank and _matches(array.shape[1:], port.shape[1:]):
        rows = min(optimum[0], len(array)) if isinstance(port.shape[0], str) else port.shape[0]
        if rows and not len(array) % rows:
            return array.reshape(len(array) // rows, rows, *array.shape[1:])
        raise InputError(f"{what}, got {len(array)} along axis 0, not a multiple of {rows}")
    raise InputError(
        f"{what}, got shape {list(array.shape)}; pass samples along axis 0: [samples,"
        f" {', '.join(map(str, port.shape))}]"
    )


def _matches(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    return len(shape) == len(wanted) and all(isinstance(w, str) or w == n for n, w in zip(shape, wanted))
