"""State between runs: caches that runs extend in place, and values that each run hands to the next."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.engine.pairs import state_pairs
from pelton.engine.plan import Port
from pelton.engine.sizes import bounded, evaluate, misfit, solve
from pelton.errors import InputError
from pelton.system import files
from pelton.system.memory import zeros_by_page

if TYPE_CHECKING:
    from .context import Context

NAMES = "names"  # of a file's arrays


class State:
    """The state of one sequence, or of a batch of them; `Engine.state` creates it. `arrays`: its arrays, by the inputs
    that they are passed to.

        state = decoder.state(past_sequence_length=2048)
        logits = state.run(context, {"input_ids": tokens, "attention_mask": mask})["logits"]

    It belongs to no context: contexts of several engines with the same state may use it, one at a time. How much of a
    cache is valid is up to the model's inputs: pass smaller positions to go back, or to shorten one sequence of a
    batch.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        outputs: Mapping[str, str],
        first: Mapping[str, np.ndarray],
        whole: State | None = None,
        growing: Mapping[str, tuple[int, int]] | None = None,
    ):
        self.arrays, self.outputs = arrays, dict(outputs)  # outputs: input → the output with its next value
        self._growing = dict(growing or {})  # the axes along which runs extend arrays, with the initial sizes
        self._first = dict(first)  # initial values, where they are not 0
        self._whole = whole  # the batch whose memory it uses

    def run(self, context: Context, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs the engine of a context with this state; returns the other outputs by name.

        inputs, out: as for `Context.run`, without those of the state. Raises as `Context.run` does, and InputError for
        an engine with another state.
        """
        ports = {p.name: p for p in context.engine.outputs}
        unknown = [name for name in self.outputs.values() if name not in ports]
        if unknown:
            raise InputError(f"engine {context.engine.label!r} has no output {unknown[0]!r}, which the state needs")
        given = {**inputs, **self.arrays}
        held = {name: self.arrays[of] for of, name in self.outputs.items() if ports[name].shares == of}
        try:
            results = context.run(given, {**(out or {}), **held} or None)
        except InputError:
            _check_room(context.engine, given, {of: ports[name] for of, name in self.outputs.items() if name in held})
            raise
        for of, name in self.outputs.items():
            self._replace(of, results.pop(name))
        return results

    def _replace(self, name: str, after: np.ndarray) -> None:
        """Sets an array to its value after a run, which is in its memory already if the engine writes in place."""
        before = self.arrays[name]
        if self._whole is None or after is before:
            self.arrays[name] = after
        elif after.shape == before.shape:
            before[...] = after
        else:
            raise InputError(
                f"{name!r} of a sequence of a batch has shape {list(before.shape)}, a run made it {list(after.shape)};"
                " create a batch whose caches have room for it"
            )

    def sequence(self, i: int) -> State:
        """Returns the state of one sequence of a batch, in the batch's memory: whatever its runs write, the next run of
        the batch reads. Sequences lie along the first axis of every array.

        Raises InputError if there is no sequence i, or the arrays have first axes of different sizes.
        """
        counts = {len(a) for a in self.arrays.values()}
        if len(counts) != 1:
            raise InputError(f"the arrays of this state have first axes of sizes {sorted(counts)}: they are no batch")
        (count,) = counts
        if not 0 <= i < count:
            raise InputError(f"the state has {count} sequences, from 0 on; there is no sequence {i}")
        return State({n: a[i : i + 1] for n, a in self.arrays.items()}, self.outputs, self._first, self)

    def fork(self) -> State:
        """Returns a copy, which runs on from here on its own."""
        arrays = {name: a.copy() for name, a in self.arrays.items()}
        return State(arrays, self.outputs, self._first, growing=self._growing)

    def reset(self) -> None:
        """Sets the initial values again, and the initial lengths of caches that grow."""
        for name, (axis, length) in self._growing.items():
            a = self.arrays[name]
            self.arrays[name] = np.empty((*a.shape[:axis], length, *a.shape[axis + 1 :]), a.dtype)
        for name, a in self.arrays.items():
            a[...] = self._first.get(name, 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the arrays to a file, in numpy's npz format, atomically. Raises OSError."""

        content: dict[str, Any] = {str(i): a for i, a in enumerate(self.arrays.values())}
        content[NAMES] = np.array([*self.arrays])

        def put(handle: int) -> None:
            with os.fdopen(os.dup(handle), "wb") as f:
                np.savez(f, **content)

        files.make(path, put)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads arrays that `save` wrote into this state, which has the same shapes, but for the lengths of caches that
        grow. Raises InputError for other files, and for other names, types and shapes; the state is then unchanged."""
        try:
            with np.load(path, allow_pickle=False) as f:
                arrays = {str(name): f[str(i)] for i, name in enumerate(f[NAMES])}
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
            raise InputError(f"{os.fspath(path)!r} holds no state: {e}") from None
        about = {name: self._about(name, a) for name, a in arrays.items()}
        own = {name: self._about(name, a) for name, a in self.arrays.items()}
        if about != own:
            name = next(name for name in (*own, *about) if own.get(name) != about.get(name))
            raise InputError(
                f"{os.fspath(path)!r} holds another state: {name!r} is {_shown(about.get(name))} there,"
                f" {_shown(own.get(name))} here"
            )
        for name in self._growing:
            self.arrays[name] = arrays.pop(name)
        for name, a in arrays.items():
            self.arrays[name][...] = a

    def _about(self, name: str, a: np.ndarray) -> tuple[np.dtype, tuple[int | str, ...]]:
        """Returns the type of an array, and its shape, with a word for the size of a growing axis."""
        shape: list[int | str] = list(a.shape)
        if name in self._growing and self._growing[name][0] < len(shape):
            shape[self._growing[name][0]] = "length"
        return a.dtype, tuple(shape)

    def __repr__(self) -> str:
        pairs = (f"{name} {list(a.shape)} ← {self.outputs[name]}" for name, a in self.arrays.items())
        return f"<pelton.State of {', '.join(pairs)}>"


def _check_room(engine: Any, inputs: Mapping[str, Any], ports: Mapping[str, Port]) -> None:
    """Raises InputError if the next value of a cache, which a run extends in place, would be longer than the cache.
    ports: the output of each such input."""
    shapes = {name: np.shape(a) for name, a in inputs.items()}
    if misfit(engine.plain, shapes) or shapes.keys() != {p.name for p in engine.inputs}:
        return  # the run says so
    sizes = solve(engine.plain, shapes)
    own = {p.name: p.shape for p in engine.inputs}
    for name, port in ports.items():
        for axis, have in enumerate(shapes[name]):
            if (need := _size(engine.plain, port, axis, sizes)) > have:
                raise InputError(
                    f"{name!r} of this state has room for {have} along axis {axis}, and this run needs {need}: create"
                    f" the state with {own[name][axis]}={need} or more"
                )


def _shown(about: tuple[np.dtype, tuple[int | str, ...]] | None) -> str:
    return "absent" if about is None else f"{about[0].name}[{', '.join(map(str, about[1]))}]"


def state_of(engine: Any, values: Mapping[str, int], pairs: Mapping[str, str] | None = None) -> State:
    """Creates the state of an Engine for these sizes; see `Engine.state`."""
    known = {s.name: s for s in engine.symbols}
    for name, size in values.items():
        if name not in known:
            has = ", ".join(known) or "none"
            raise InputError(f"engine {engine.label!r} has no dynamic dimension {name!r}; it has {has}")
        if isinstance(size, bool) or not isinstance(size, int):
            raise InputError(f"the size {name} is an integer, got {size!r}")
    outputs = state_pairs(engine.inputs, engine.outputs, engine.state_outputs, pairs)
    if not outputs:
        raise InputError(
            f"engine {engine.label!r} keeps no state between runs that names show; if it does, pass its inputs with the"
            ' outputs of their next values, as in pairs={"h": "h_out"}'
        )
    first = engine.initial_states()
    axes = growing_axes(engine, outputs)
    values = {**_empty(engine, axes, values), **values}
    ports = {p.name: p for p in engine.ports(bounded(engine.plain, values))}
    arrays = {name: zeros_by_page(ports[name].numbers, np.dtype(ports[name].numpy_dtype)) for name in outputs}
    growing = {name: (axis, arrays[name].shape[axis]) for name, axis in axes.items()}
    begin = {name: a.reshape(-1)[0] for name, a in first.items() if a.size}
    for name, value in begin.items():
        arrays[name][...] = value
    return State(arrays, outputs, begin, growing=growing)


def growing_axes(engine: Any, outputs: Mapping[str, str]) -> dict[str, int]:
    """Returns input → the axis along which its next value is longer, whatever its length is: `Concat` of a cache and
    new rows. Axes of sizes that only a run decides count, but for the first, which is that of a batch."""
    plain, axes = engine.plain, dict[str, int]()
    ports = {p.name: p for p in engine.inputs}, {p.name: p for p in engine.outputs}
    optima = {s.name: s.optimum for s in engine.symbols}
    for before, after in outputs.items():
        if ports[1][after].shares is None:
            for axis, size in enumerate(ports[0][before].shape):
                symbol = next((s for s in engine.symbols if s.name == size), None)
                if symbol is None:
                    continue
                later = _size(plain, ports[1][after], axis, {**optima, size: symbol.maximum})
                if later > symbol.maximum or later < 0 < axis:
                    axes[before] = axis
    return axes


def _size(plain: Any, port: Port, axis: int, sizes: Mapping[str, int]) -> int:
    """Returns a size of a port; −1 if only a run decides it."""
    size = port.shape[axis]
    if isinstance(size, str):
        return evaluate(plain.sizes[size], sizes) if size in plain.sizes else sizes.get(size, -1)
    return size


def _empty(engine: Any, axes: Mapping[str, int], values: Mapping[str, int]) -> dict[str, int]:
    """Returns 0 for the lengths of caches that grow. Raises InputError for an engine that needs more, unless `values`
    has the length."""
    ports = {p.name: p for p in engine.inputs}
    names = {str(ports[name].shape[axis]): name for name, axis in axes.items()}
    for s in engine.symbols:
        if s.name in names and s.name not in values and s.minimum > 0:
            raise InputError(
                f"axis {axes[names[s.name]]} of {names[s.name]!r} may grow from run to run, and engine {engine.label!r}"
                f" accepts no empty one ({s.name} is {s.range()}): build it with"
                f" shapes={{{s.name!r}: ...}} from 0 on, as in 0..{s.optimum}..{s.maximum}, or pass {s.name}= to begin"
                " with zeros"
            )
    return dict.fromkeys(names, 0)
