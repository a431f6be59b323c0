"""Engines over the rows of tables: any number of rows, cut into batches that the engine accepts."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pelton.engine.plan import Port
from pelton.errors import InputError, near
from pelton.runtime import Context, Engine, load
from pelton.runtime.batching import batch_axis
from pelton.targets import is_gpu

MOST_THREADS = 256


class SharedEngine:
    """The engine of a file and its idle contexts, for all tasks of a process."""

    def __init__(self, path: str, stamp: tuple[int, ...]):
        self.stamp = stamp
        self.engine = load(path)
        self.on_gpu = is_gpu(self.engine.plain.target)
        self.idle: dict[int, deque[Context]] = {}  # threads → contexts

    def run(self, inputs: Mapping[str, Any], threads: int) -> dict[str, Any]:
        """Runs the engine once, in an idle context or a new one."""
        contexts = self.idle.setdefault(threads, deque())
        try:
            context = contexts.pop()
        except IndexError:
            context = self.engine.context(None if self.on_gpu else threads)
        try:
            return context.run(inputs)
        finally:
            contexts.append(context)


_shared: dict[str, SharedEngine] = {}  # absolute path → its engine
_lock = threading.Lock()


def shared_engine(path: str | os.PathLike[str]) -> SharedEngine:
    """Returns the engine of a file. Each process loads it once, and again after the file was replaced.

    Raises EngineError as `pelton.load` does.
    """
    where = absolute(path)
    with _lock:
        try:
            found = os.stat(where)
            stamp: tuple[int, ...] = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            stamp = ()  # `load` has the message
        if where not in _shared or _shared[where].stamp != stamp:
            _shared[where] = SharedEngine(where, stamp)
        return _shared[where]


def absolute(path: Any) -> str:
    """Returns an absolute path. Raises InputError for what is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"path is the path of an engine's file, got {path!r:.50}")
    return os.path.abspath(os.fsdecode(path))


def names_of(value: str | Sequence[str] | None, what: str) -> tuple[str, ...] | None:
    """Returns names given as one text or several. Raises InputError for other values and for names given twice."""
    names = (value,) if isinstance(value, str) else value
    if names is None:
        return None
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{what} is a name or a sequence of names, got {value!r:.100}")
    if len(set(names)) < len(names):
        raise InputError(f"{what} has a name twice: {', '.join(names)}")
    return tuple(names)


def check_threads(threads: Any, name: str = "threads") -> None:
    """Raises InputError unless `threads` is a number of threads, or of jobs by that name."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"{name} is an integer from 1 to {MOST_THREADS}, got {threads!r}")


def row_limits(engine: Engine) -> tuple[int, int]:
    """Returns the fewest and the most rows of a run: the bounds of the dynamic batch, or the fixed batch twice.

    Raises InputError for an engine whose inputs and outputs have no batch in common as their first dimension.
    """
    firsts = {p.shape[0] if p.shape else None for p in (*engine.inputs, *engine.outputs)}
    (first,) = firsts if len(firsts) == 1 else (None,)
    if type(first) is int and not engine.forms and not engine.state_outputs:
        return first, first
    axis = batch_axis(engine)
    symbol = next(s for s in engine.symbols if s.name == axis)
    return symbol.minimum, symbol.maximum


class RowRunner:
    """Runs the engine of a file on any number of rows.

    outputs: names of outputs to return; default: all. threads: 1 to 256 per run.
    columns: input → the column that it is read from; default: the column of its name.
    Raises InputError for names that the engine does not have, EngineError as `pelton.load` does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        outputs: str | Sequence[str] | None = None,
        threads: int = 1,
        columns: Mapping[str, str] | None = None,
    ):
        check_threads(threads)
        self.threads = threads
        self.shared = shared_engine(path)
        engine = self.shared.engine
        self.label = engine.label
        self.least, self.most = row_limits(engine)
        known = tuple(p.name for p in engine.outputs)
        wanted = names_of(outputs, "outputs")
        self.outputs = known if wanted is None else wanted
        self._check_names(self.outputs, known, "output")
        self._ports = {p.name: p for p in engine.outputs}
        self.columns = {p.name: p.name for p in engine.inputs}
        if columns is not None:
            if not isinstance(columns, Mapping) or not all(isinstance(c, str) for c in columns.values()):
                raise InputError(f"columns is a mapping from inputs to names of columns, got {columns!r:.100}")
            self._check_names(tuple(columns), tuple(self.columns), "input")
            self.columns.update(columns)

    def _check_names(self, names: Sequence[str], known: Sequence[str], what: str) -> None:
        for name in names:
            if name not in known:
                raise InputError(
                    f"engine {self.label!r} has no {what} {name!r}{near(str(name), known)}; it has {', '.join(known)}"
                )

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the engine."""
        return self.shared.engine.inputs

    def arrays(self, table: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], int]:
        """Returns the inputs of these columns, of the types and shapes of their ports, and the number of rows.

        table: column → array [rows, …], or an array of objects with one array per row; rows may be flat. Numbers are
        converted if that keeps their kind, as from f64 to f32.
        Raises InputError, with the column's name, for missing columns and wrong types, sizes and numbers of rows.
        """
        missing = [c for c in self.columns.values() if c not in table]
        if missing:
            raise InputError(
                f"engine {self.label!r} needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}; the table has"
                f" {', '.join(map(str, table)) or 'none'}"
            )
        arrays = {p.name: _as_port(p, table[self.columns[p.name]], self.columns[p.name]) for p in self.inputs}
        rows = {self.columns[name]: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            counts = ", ".join(f"{column} {n}" for column, n in rows.items())
            raise InputError(f"columns have one number of rows; these differ: {counts}")
        return arrays, next(iter(rows.values()), 0)

    def run(self, table: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of all rows, by name, each [rows, …]. Parameters and errors as for `arrays`."""
        arrays, rows = self.arrays(table)
        if not rows:
            return {name: self._no_rows(name) for name in self.outputs}
        if self.least <= rows <= self.most:
            results = self.shared.run(arrays, self.threads)
            return {name: results[name] for name in self.outputs}
        made: dict[str, np.ndarray] = {}
        for start, n, results in self._parts(arrays, rows):
            for name in self.outputs:
                part = results[name]
                if name not in made:
                    made[name] = np.empty((rows, *part.shape[1:]), part.dtype)
                if part.shape[1:] != made[name].shape[1:]:
                    raise InputError(f"output {name!r} has another shape in each batch; send rows of one shape")
                made[name][start : start + n] = part[:n]
        return made

    def _parts(self, arrays: Mapping[str, np.ndarray], rows: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yields the first row, the number of rows and the outputs of each batch."""
        for start in range(0, rows, self.most):
            batch = {name: array[start : start + self.most] for name, array in arrays.items()}
            n = min(self.most, rows - start)
            if n < self.least:
                # the last row again: a valid input of any model, unlike zeros
                batch = {k: np.concatenate([a, np.repeat(a[-1:], self.least - n, axis=0)]) for k, a in batch.items()}
            yield start, n, self.shared.run(batch, self.threads)

    def _no_rows(self, name: str) -> np.ndarray:
        port = self._ports[name]
        return np.empty((0, *(n if type(n) is int else 0 for n in port.shape[1:])), port.numpy_dtype)


def kept_columns(table: Mapping[str, Any], keep: Sequence[str], runner: RowRunner) -> dict[str, Any]:
    """Returns the columns to keep beside the outputs. Raises InputError for missing ones and names of outputs."""
    for name in keep:
        if name not in table:
            raise InputError(f"the table has no column {name!r} to keep; it has {', '.join(map(str, table)) or 'none'}")
        if name in runner.outputs:
            raise InputError(f"column {name!r} cannot be kept beside the output of that name; rename it")
    return {name: table[name] for name in keep}


def _as_port(port: Port, column: Any, name: str) -> np.ndarray:
    """Returns a column as an input of this port."""
    array = _stacked(column, name, port)
    if array.ndim == 0:
        raise InputError(f"column {name!r} has one entry per row, got a single value")
    trailing = port.shape[1:]
    fixed = [n for n in trailing if type(n) is int]
    if array.shape[1:] != trailing:
        if len(fixed) == len(trailing):
            size = int(np.prod(fixed, dtype=np.int64))
            own = int(np.prod(array.shape[1:], dtype=np.int64))
            # a shape of as many dimensions is not taken for another one
            if own != size or array.ndim not in (1, 2):
                raise InputError(
                    f"column {name!r} has rows of {_shown(array.shape[1:])}; input {port.name!r} takes rows of"
                    f" {_shown(trailing)}, or {size} numbers"
                )
            array = array.reshape(len(array), *fixed)
        elif array.ndim != len(port.shape):
            raise InputError(
                f"column {name!r} has rows of {_shown(array.shape[1:])}; input {port.name!r} takes rows of"
                f" {_shown(trailing)}, whose dynamic sizes flat rows do not tell"
            )
    return np.ascontiguousarray(_converted(array, port, name))


def _shown(shape: Sequence[Any]) -> str:
    return f"shape [{', '.join(map(str, shape))}]" if shape else "one number"


def _stacked(column: Any, name: str, port: Port) -> np.ndarray:
    """Returns a column as one array; columns of objects have one array per row."""
    try:
        array = np.asarray(column)
        if array.dtype != object or port.numpy_dtype.hasobject:
            return array
        return np.stack([np.asarray(row) for row in array]) if len(array) else np.empty(0, port.numpy_dtype)
    except (ValueError, TypeError):
        raise InputError(f"column {name!r} has rows of different sizes; an engine takes rows of one shape") from None


def _converted(array: np.ndarray, port: Port, name: str) -> np.ndarray:
    """Returns an array in the element type of a port, if that keeps the kind of its numbers."""
    to = port.numpy_dtype
    if array.dtype == to or not array.size:
        return array.astype(to, copy=False)
    if not np.can_cast(array.dtype, to, "same_kind"):
        raise InputError(f"column {name!r} is {array.dtype}; input {port.name!r} takes {port.dtype}")
    if to.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if low < np.iinfo(to).min or high > np.iinfo(to).max:
            raise InputError(f"column {name!r} has numbers from {low} to {high}; input {port.name!r} is {port.dtype}")
    return array.astype(to)
