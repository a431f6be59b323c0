"""An engine's working memory and step table: what one run at a time needs."""
from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.backends.cpu import MAX_THREADS, Program, allocate, default_threads
from pelton.backends.cpu.memory import address
from pelton.backends.cpu.program import Row, check_threads
from pelton.engine.engine import SIZES, Step
from pelton.errors import InputError

from .arrays import check_names, check_out, fit, refuse_mapping, refuse_out, refuse_shared
from .host import HostStep
from .machine import check_memory

if TYPE_CHECKING:
    from .engine import Engine


_alive: weakref.WeakSet[Context] = weakref.WeakSet()


def _after_fork() -> None:
    """Runs of other threads ended with the fork, as far as this process is concerned."""
    for context in _alive:
        context._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Context:
    """Runs an engine in memory of its own. Runs of one context wait for each other; contexts run side by side."""

    def __init__(self, engine: Engine, threads: int | None = None):
        plain = engine.plain
        self.engine = engine
        self.threads = min(default_threads(), plain.meta.get("threads") or MAX_THREADS) if threads is None else check_threads(threads)
        strings = {i: b.size for i, b in enumerate(plain.buffers) if b.kind == "strings"}
        check_memory(plain.name, plain.arena + sum(strings.values()), max((s.scratch for s in plain.steps), default=0), self.threads)
        self._arena = allocate(plain.arena)
        self._strings = {i: np.full(size // SIZES["string"], "", object) for i, size in strings.items()}
        self._ports = (ctypes.c_void_p * (len(plain.inputs) + len(plain.outputs)))()
        self._bound: list[np.ndarray] = []                       # the arrays of the run in progress, inputs then outputs
        self._parts = self._cut()
        self._natives = [p.native for p in self._parts if isinstance(p, Program)] if not engine.host else None
        self._inputs, self._outputs = ([(p, p.name, p.numpy_dtype, p.shape, p.numpy_dtype.alignment) for p in ports] for ports in (plain.inputs, plain.outputs))
        self._names, self._output_names = ({p.name for p in ports} for ports in (plain.inputs, plain.outputs))
        self._sizes = [p.nbytes for p in plain.inputs + plain.outputs]
        self._lock = threading.Lock()
        _alive.add(self)

    def _cut(self) -> list[Program | HostStep]:
        """The steps as native programs, each as long as no host step comes between."""
        plain = self.engine.plain
        parts: list[Program | HostStep] = []
        rows: list[Row] = []
        patches: list[tuple[int, int, int, int]] = []
        bases = {"arena": address(self._arena), "constant": address(self.engine.constants), "table": address(self.engine.constants)}
        first_port = {"input": 0, "output": len(plain.inputs)}

        def finish() -> None:
            if rows:
                parts.append(Program(rows, self.threads, patches))
                rows.clear()
                patches.clear()

        for i, step in enumerate(plain.steps):
            if step.host:
                finish()
                parts.append(self.engine.host[i])
                continue
            words: list[int] = []
            for s in step.args:
                b = plain.buffers[s.buffer]
                if b.kind in first_port:
                    patches.append((len(rows), len(words), first_port[b.kind] + b.offset, s.offset))
                    words.append(0)
                else:
                    words.append(bases[b.kind] + b.offset + s.offset)
            rows.append((self.engine.symbols[step.symbol], [*words, *step.dims], len(words), step.tiles, step.grain, step.wave, step.scratch))
        finish()
        return parts

    def run(self, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Outputs by name, in fresh arrays, or in those that `out` gives for some or all of them.

        With contiguous inputs and all outputs given, nothing is allocated. Strided, unaligned and byte-swapped inputs are copied; whatever
        else does not fit, other types included, is an InputError.
        """
        with self._lock:
            try:
                results = self._bind(inputs, out)
                if self._natives is not None:
                    for function, program in self._natives:
                        function(program, self._ports)
                else:
                    for part in self._parts:
                        self._run_part(part)
                return results
            finally:
                self._bound.clear()

    def __call__(self, *arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Inputs in order; gives the output, or a tuple where there are several."""
        ports = self.engine.inputs
        if len(arrays) != len(ports):
            raise InputError(f"the engine takes {len(ports)} arrays ({', '.join(f'{p.name}: {p}' for p in ports)}), given {len(arrays)}")
        results = tuple(self.run(dict(zip((p.name for p in ports), arrays))).values())
        return results[0] if len(results) == 1 else results

    def warmup(self) -> None:
        """Runs once on zeros: memory is touched, threads are started, so that the next run takes what runs take."""
        self.run({p.name: np.full(p.shape, "" if p.dtype == "string" else 0, p.numpy_dtype) for p in self.engine.inputs})

    def profile(self, inputs: Mapping[str, np.ndarray]) -> list[tuple[Step, int]]:
        """Every step with the nanoseconds it took, in a run in which no two steps overlap."""
        with self._lock:
            try:
                self._bind(inputs, None)
                times: list[int] = []
                for part in self._parts:
                    if isinstance(part, Program):
                        times += part.profile(self._ports)
                    else:
                        begin = time.perf_counter_ns()
                        self._run_part(part)
                        times.append(time.perf_counter_ns() - begin)
                return list(zip(self.engine.steps, times))
            finally:
                self._bound.clear()

    def _run_part(self, part: Program | HostStep) -> None:
        if isinstance(part, Program):
            part.run(self._ports)
        else:
            part.run(self._memory)

    def _memory(self, buffer: int) -> np.ndarray:
        """A buffer's bytes, or strings, during a run."""
        b, plain = self.engine.plain.buffers[buffer], self.engine.plain
        if b.kind in ("input", "output"):
            flat = self._bound[b.offset + (len(plain.inputs) if b.kind == "output" else 0)].reshape(-1)
            return flat if flat.dtype.hasobject else flat.view(np.uint8)
        if b.kind in ("strings", "text"):
            return self._strings[buffer] if b.kind == "strings" else self.engine.texts[buffer]
        return (self._arena if b.kind == "arena" else self.engine.constants)[b.offset:b.offset + b.size]

    def _bind(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        """Puts the addresses of all arrays into the table of ports, and gives the outputs. The common case is one pass without a call per check."""
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            refuse_mapping(self.engine.inputs, inputs)
        if inputs.keys() != self._names:
            check_names("input", self.engine.inputs, inputs, all_of_them=True)
        self._bound = bound = []
        places = []
        for port, name, dtype, shape, alignment in self._inputs:
            array = inputs[name]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape or dtype.hasobject:
                array = fit(port, array)                         # strings are looked at one by one
            interface = array.__array_interface__                # in one look: the address, and no strides if contiguous
            place = interface["data"][0]
            if place % alignment or interface["strides"] is not None:
                array = fit(port, array)
                place = address(array)
            bound.append(array)
            places.append(place)
        if out is not None and (not isinstance(out, Mapping) or not out.keys() <= self._output_names):
            check_out(self.engine.outputs, out)
        results, own = {}, []
        for port, name, dtype, shape, alignment in self._outputs:
            if out is None or name not in out:
                array = np.empty(shape, dtype)
                place = array.__array_interface__["data"][0]
            else:
                array = out[name]
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    refuse_out(port, array)
                interface = array.__array_interface__
                place, read_only = interface["data"]
                if read_only or place % alignment or interface["strides"] is not None:
                    refuse_out(port, array)
                own.append(len(places))
            results[name] = array
            bound.append(array)
            places.append(place)
        sizes = self._sizes
        for one in own:                                          # its memory may be that of no input and of no other output
            start, end = places[one], places[one] + sizes[one]
            for other, place in enumerate(places):
                if place < end and start < place + sizes[other] and other != one and start < end:
                    refuse_shared(self.engine.inputs, self.engine.outputs, one, other)
        self._ports[:] = places
        return results
