"""Values between the engines of a script: sizes as operands, stacked rows of loops, and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.backends.arrays import out_array, refuse_out
from pelton.engine.plan import Port, numpy_dtype
from pelton.engine.script import Feed
from pelton.errors import EngineError, InputError
from pelton.system.memory import address


class StackedRows:
    """Results of a loop's iterations, stacked at its end. `room`: maximum bytes; EngineError beyond these."""

    def __init__(self, count: int, room: int):
        self._rows: list[list[Any]] = [[] for _ in range(count)]
        self._room = room

    def add(self, values: Sequence[Any]) -> None:
        for row, value in zip(self._rows, values):
            row.append(value)
            self._room -= getattr(value, "nbytes", 0)
        if self._room < 0:
            raise EngineError(
                f"after {len(self._rows[0])} iterations, the stacked values of a loop use more than half of this"
                " machine's memory; use fewer iterations or smaller inputs"
            )

    def stack(self, k: int, axis: int, reversed: bool, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Stacks result k of all iterations along a new `axis`; `dtype` and `shape` are those of one row."""
        rows = self._rows[k][::-1] if reversed else self._rows[k]
        try:
            return np.stack(rows, axis) if rows else np.empty((*shape[:axis], 0, *shape[axis:]), numpy_dtype(dtype))
        except (ValueError, TypeError) as e:
            raise EngineError(f"the iterations of a loop returned values that cannot be stacked: {e}") from None


def size_operand(feed: Feed, value: Any) -> np.ndarray:
    """Returns the size that a feed reads (an axis or an element of `value`), as an empty array of shape [size, 0].

    Raises InputError if `value` has no such axis or element, or if that is no size."""
    if not isinstance(value, np.ndarray) or feed.at >= (value.ndim if feed.source == "axis" else value.size):
        raise InputError(f"{feed.name!r} has no {feed.source} {feed.at}")
    size = value.shape[feed.at] if feed.source == "axis" else int(value.reshape(-1)[feed.at])
    if not 0 <= size < 1 << 46:
        raise InputError(f"{feed.name!r} contains {size}, which is no size")
    return np.empty((size, 0), np.uint8)


def outside(refusal: InputError, feeds: Iterable[tuple[str, Feed]]) -> InputError:
    """Rewrites an engine's error in terms of the script: its sizes are axes or elements of other values."""
    text = str(refusal)
    for name, feed in feeds:
        if feed.source != "array":
            what = "element" if feed.source == "value" else "axis"
            text = text.replace(f"axis 0 of input {name!r}", f"{what} {feed.at} of {feed.name!r}")
    return InputError(text)


def address_range(array: Any) -> tuple[int, int]:
    """Returns the first address of an array and the one past its end; (0, 0) for anything else."""
    return (address(array), address(array) + array.nbytes) if isinstance(array, np.ndarray) else (0, 0)


def copy_value(value: Any) -> Any:
    """Copies an array, or lists and dicts of arrays, deeply."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {k: copy_value(v) for k, v in value.items()}
    return [copy_value(v) for v in value] if isinstance(value, list) else value


def write_output(port: Port, array: Any, out: Any) -> Any:
    """Copies an output into the caller's `out`, and returns that; raises InputError if it does not fit."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"out[{port.name!r}] needs an array, but the output is none")
    port = replace(port, shape=array.shape)
    place = out_array(port, out)
    if not (place.flags.writeable and place.flags.c_contiguous and place.flags.aligned):
        refuse_out(port, place)
    place[...] = array
    return out


def as_output(port: Port, value: Any, shared: bool) -> Any:
    """Returns an output for the caller: of the port's type, in memory that nothing else uses."""
    if not isinstance(value, np.ndarray):
        return copy_value(value)
    if not shared and value.base is None and value.dtype == port.numpy_dtype and value.flags.carray:
        return value  # carray: contiguous, aligned and writable
    try:
        array = np.require(value, port.numpy_dtype, "C").reshape(value.shape)
    except (TypeError, ValueError) as e:
        raise EngineError(
            f"output {port.name!r} must be {port.dtype}, but its operator returned {value.dtype}: {e}"
        ) from None
    return array.copy() if shared or array.base is not None or not array.flags.writeable else array
