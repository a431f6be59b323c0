"""An engine's working memory and step tables: what one run at a time needs."""
from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.backends.cpu import MAX_THREADS, Program, allocate, cores, default_threads, describe
from pelton.backends.cpu.memory import address
from pelton.backends.cpu.ports import bind
from pelton.backends.cpu.program import check_threads
from pelton.engine import sizes
from pelton.engine.model import Step
from pelton.system.forks import survives_fork
from pelton.errors import InputError

from .arrays import all_hosted, by_name, check_apart, check_names, check_out, check_shape, fit, out_array, refuse_mapping, refuse_out
from .machine import check_memory
from .prepared import Prepared

if TYPE_CHECKING:
    from .engine import Engine

Traced = tuple[Step, int, int]                                   # a step, and when it began and ended
REMEMBERED = 32                                                  # shapes that a context keeps ready
PAGE = 4096
ENTERED = ("this context is in the middle of a run of the same thread, which called it again (in a step of Python, a finalizer or a signal handler); "
           "take another context, or engine.run, which takes a free one")


class Context:
    """Runs an engine in memory of its own. Runs of one context wait for each other; contexts run side by side.

    Where the engine leaves sizes open, memory and steps are laid out when a shape is first met, and kept for the shapes met last.
    """

    _fit = staticmethod(fit)                                     # an array as a port needs it, or what is wrong with it

    def __init__(self, engine: Engine, threads: int | None = None):
        plain = engine.plain
        self.engine = engine
        engine.populate()
        self.threads = min(default_threads(), plain.meta.get("threads") or MAX_THREADS) if threads is None else check_threads(threads)
        self.remembered = REMEMBERED
        self._arena = allocate(0)
        self._cores = cores()
        self._names, self._output_names = ({p.name for p in ports} for ports in (plain.inputs, plain.outputs))
        self._known: OrderedDict[tuple, Prepared] = OrderedDict()
        self._only = None if plain.symbols else self._prepare({})
        self._latest = self._only                                # most often the shapes are those of the run before
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        """No run is in progress: those of other threads end with a fork, as far as the child is concerned."""
        self._lock, self._busy = threading.RLock(), False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no other thread is at work here. InputError where this very thread is, as it would wait for ever."""
        with self._lock:
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    @property
    def machine(self) -> str:
        """What it runs on, by its marketing name."""
        return describe()["model"]

    def _prepare(self, values: Mapping[str, int]) -> Prepared:
        """The engine for these values of its symbols."""
        engine = self.engine
        filled = engine.sheet.fill(values)
        scratch = -(-filled.most_scratch // PAGE) * PAGE
        made = int(filled.bytes[engine.made].sum()) + sum(p.nbytes for p in filled.outputs)
        check_memory(engine.called, filled.arena + made, scratch, self.threads)
        arena = -(-filled.arena // PAGE) * PAGE
        need = arena + scratch * self.threads                    # one memory for both, whatever the shape
        if need > self._arena.nbytes:
            self._forget()                                       # they point into the old one
            self._arena = allocate(max(need, 2 * self._arena.nbytes))       # what grows step by step should not come here at each
        return Prepared(engine, values, filled, self._arena, address(self._arena) + arena, self.threads, self._cores)

    def _forget(self) -> None:
        """Nothing is ready any more."""
        self._known.clear()
        self._latest = None

    def _for(self, inputs: Mapping[str, Any]) -> Prepared:
        """What is ready for the shapes of these inputs, or is made so now."""
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            refuse_mapping(self.engine.inputs, inputs)
        if inputs.keys() != self._names:
            check_names("input", self.engine.inputs, inputs, all_of_them=True)
        if self._only is not None:
            return self._only
        shapes = {p.name: np.shape(inputs[p.name]) for p in self.engine.inputs}
        key = tuple(shapes.values())
        if key in self._known:
            found = self._known[key]
            self._known.move_to_end(key)
        else:
            for port in self.engine.inputs:
                if len(shapes[port.name]) != len(port.shape):
                    self._fit(port, inputs[port.name])                 # says what is wrong
            found = self._prepare(sizes.solve(self.engine.plain, shapes))
            for port in found.filled.inputs:
                if port.shape != shapes[port.name]:
                    self._fit(port, inputs[port.name])
            if len(self._known) >= self.remembered:
                self._known.popitem(last=False)
            self._known[key] = found
        self._latest = found
        return found

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Outputs by name, in fresh arrays, or in those that `out` gives for some or all of them.

        Arrays are numpy's, or another library's: what has `__dlpack__` is read and written where it lies, inputs may have `__array__` instead.
        With contiguous inputs and all outputs given, no memory is taken for arrays. Strided, unaligned and byte-swapped inputs are copied; whatever
        else does not fit, other types included, is an InputError.
        """
        with self._lock:                                         # as `_alone` does it, in half the time
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                ready = self._latest
                if out is None and ready is not None and ready.call is not None and type(inputs) is dict:
                    results = ready.call(inputs)
                    if results is not None:
                        return results
                ready = self._for(inputs := all_hosted(inputs))
                try:
                    results = self._bind(ready, inputs, out)
                    ready.run()
                    return results
                finally:
                    ready.bound.clear()
            finally:
                self._busy = False

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Inputs in order, or by name; gives the output, or a tuple where there are several."""
        results = tuple(self.run(by_name(self.engine.inputs, arrays, named)).values())
        return results[0] if len(results) == 1 else results

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Lays out memory and steps for inputs of these shapes, unless that has been done: the next run on such inputs finds all of it ready."""
        check_names("input", self.engine.inputs, shapes, all_of_them=True)
        with self._alone():
            empty = {}
            for port in self.engine.inputs:
                try:
                    empty[port.name] = np.broadcast_to(np.zeros((), port.numpy_dtype), shapes[port.name])
                except (TypeError, ValueError) as e:
                    raise InputError(f"input {port.name!r} can have no shape {shapes[port.name]!r}: {e}") from None
            for port in self._for(empty).filled.inputs:
                check_shape(port, empty[port.name].shape, f"input {port.name!r} needs {port}")

    def warmup(self) -> None:
        """Runs once on zeros of the usual shapes: memory is touched, threads are started, so that the next run takes what runs take."""
        shapes = self.engine.shapes()
        self.run({p.name: np.full(shapes[p.name], "" if p.dtype == "string" else 0, p.numpy_dtype) for p in self.engine.inputs})

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Every step with the nanoseconds it took, in a run in which no two steps overlap."""
        return [(step, end - begin) for step, begin, end in self.trace(inputs)[1]]

    def trace(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> tuple[dict[str, np.ndarray], list[Traced]]:
        """Outputs by name, as `run` gives them, and every step with when it began and ended, in nanoseconds of `time.monotonic_ns`; no two steps overlap."""
        with self._alone():
            ready = self._for(inputs := all_hosted(inputs))
            try:
                results = self._bind(ready, inputs, out)
                stamps: list[tuple[int, int]] = []
                for part in ready.parts:
                    if isinstance(part, Program):
                        stamps += part.trace(ready.ports)
                    else:
                        begin = time.monotonic_ns()
                        ready.run_part(part)
                        stamps.append((begin, time.monotonic_ns()))
                return results, [(step, *stamp) for step, stamp in zip(ready.plain.steps, stamps)]
            finally:
                ready.bound.clear()

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Prepared], None]) -> dict[str, np.ndarray]:
        """Outputs by name, from a run of one step after the other. Before each and after the last, `see` is called with the number of steps done and what
        knows the memory as it then is: a later step may overwrite it."""
        with self._alone():
            ready = self._for(inputs := all_hosted(inputs))
            try:
                results = self._bind(ready, inputs, None)
                see(0, ready)
                for done, part in enumerate(ready.cut(apart=True), 1):
                    ready.run_part(part)
                    see(done, ready)
                return results
            finally:
                ready.bound.clear()

    def _bind(self, ready: Prepared, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        """Puts the addresses of all arrays into the table of ports, and gives the outputs."""
        bound = ready.bound = []                                 # a new one: a fork may have ended a run that left arrays in the old one
        for port, name, dtype, shape in ready.inputs:
            array = inputs[name]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape or dtype.hasobject:
                array = fit(port, array)                         # strings are looked at one by one
            bound.append(array)
        if out is not None and (not isinstance(out, Mapping) or not out.keys() <= self._output_names):
            check_out(self.engine.outputs, out)
        results = {}
        for port, name, dtype, shape in ready.outputs:
            if out is None or name not in out:
                results[name] = array = np.empty(shape, dtype)
            else:
                results[name] = array = out[name]
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    array = out_array(port, array)
            bound.append(array)
        count = len(ready.inputs)
        while (unfit := bind(bound, count, ready.ports)) < len(bound):
            if unfit >= count:
                refuse_out(ready.outputs[unfit - count][0], bound[unfit])
            bound[unfit] = fit(ready.inputs[unfit][0], bound[unfit])
        if out:
            check_apart(self.engine.inputs, self.engine.outputs, [(at or 0, (at or 0) + nbytes) for at, nbytes in zip(ready.ports, ready.sizes)], out)
        return results
