"""Plans prepared for one set of sizes: step tables with all addresses resolved, and their runs on callers' arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_void_p
from functools import cached_property
from typing import Any

import numpy as np

from pelton.engine import plan as plain_engine
from pelton.engine import sizes
from pelton.engine.plan import Port, Step
from pelton.engine.validate import validate
from pelton.native import Handle, library
from pelton.record import record
from pelton.system.memory import address

from ..arrays import check_indices, check_no_overlap, check_out, fit, port_checks, out_array, refuse_out
from ..device import Stamped
from ..host import HostStep
from ..plan import Plan, empty_strings
from .ports import bind, callable_of, index_table
from .program import NativeProgram


class CpuReady:
    """The programs and host steps of an engine for one set of sizes. See `device.Ready`.

    prepared: the native plan for these sizes, in the memory of `context`, a native context with the same threads.
    """

    def __init__(self, plan: Plan, values: Mapping[str, int], prepared: Handle, context: Handle, threads: int):
        self.plan, self.values, self.threads, self._prepared, self._context = plan, values, threads, prepared, context
        hosted = plan.host_steps(self.plain, values) if plan.host and values else plan.host
        self.host = {i: step.own() for i, step in hosted.items()}
        self.resolved = self._ports()
        # buffers of Python objects
        written = [(i, b.size) for i, b in enumerate(self.plain.buffers) if b.kind == "strings"] if self.host else []
        self.strings = {**plan.texts, **{i: empty_strings(size) for i, size in written}}
        self.ports = (c_void_p * len(self.resolved.all))()
        # the arrays of the run in progress, inputs then outputs
        self.bound: list[np.ndarray] = []
        self.parts = list(self.split())
        self.natives = [p.native for p in self.parts if isinstance(p, NativeProgram)] if not self.host else None
        self.inputs, self.outputs = map(port_checks, (self.resolved.inputs, self.resolved.outputs))
        self.indices = index_table(self.resolved.inputs)
        self.sizes = [p.nbytes for p in self.resolved.all]
        self._output_names = {p.name for p in self.resolved.outputs}

    def _ports(self) -> ResolvedPorts:
        """Returns the ports with their shapes."""
        ports = (*self.plan.plain.inputs, *self.plan.plain.outputs)
        ends = np.cumsum([0, *(len(p.shape) for p in ports)])
        sizes = np.empty(ends[-1], np.int64)
        library().pelton_prepared_shapes(self._prepared.address, address(sizes))
        shapes = [tuple(sizes[begin:end].tolist()) for begin, end in zip(ends, ends[1:])]
        sized_ports = tuple(p.with_shape(shape) for p, shape in zip(ports, shapes))
        return ResolvedPorts(sized_ports[: len(self.plan.plain.inputs)], sized_ports[len(self.plan.plain.inputs) :])

    @cached_property
    def call(self) -> Callable[[dict], dict[str, np.ndarray] | None] | None:
        """The fast path, if all steps are one native program."""
        if not self.natives or len(self.natives) > 1:
            return None
        asked = [look[1:] for look in self.inputs + self.outputs]
        return callable_of(self.natives[0][1], self.ports, asked, len(self.inputs), self.indices)

    @cached_property
    def plain(self) -> plain_engine.EnginePlan:
        """The engine with all numbers resolved; most runs do not need it."""
        plain = sizes.at(self.plan.plain, self.values)
        if plain is not self.plan.plain:
            validate(plain)
        return plain

    def split(self, apart: bool = False) -> Iterator[NativeProgram | HostStep]:
        """Yields the host steps, and native programs of the steps between them; `apart`: one program for each step."""
        count = self.plan.template.rows.head["steps"]

        def program(begin: int, end: int) -> NativeProgram:
            made = library().pelton_prepared_program(self._prepared.address, begin, end)
            return NativeProgram.adopt(made, end - begin, f"there is no memory for the steps of {self.plan.label!r}")

        begin = 0
        for i in range(count):
            if i in self.host:
                if begin < i:
                    yield program(begin, i)
                yield self.host[i]
                begin = i + 1
            elif apart:
                yield program(i, i + 1)
                begin = i + 1
        if begin < count:
            yield program(begin, count)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        try:
            results = self._bind(inputs, out)
            if self.natives is not None:
                for function, program in self.natives:
                    function(program, self.ports)
            else:
                for part in self.parts:
                    self.run_part(part)
            return results
        finally:
            self.bound.clear()

    def run_at(self, addresses: Sequence[int]) -> bool:
        """Runs on dense arrays at these addresses, inputs first. Returns False at once if there are host steps."""
        if self.natives is None:
            return False
        self.ports[:] = addresses  # type: ignore[call-overload]  # any sequence of integers
        for function, program in self.natives:
            function(program, self.ports)
        return True

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], list[Stamped]]:
        try:
            results = self._bind(inputs, out)
            stamps: list[tuple[int, int]] = []
            for part in self.parts:
                if isinstance(part, NativeProgram):
                    stamps += part.trace(self.ports)
                else:
                    begin = time.monotonic_ns()
                    self.run_part(part)
                    stamps.append((begin, time.monotonic_ns()))
            return results, [(step, *stamp) for step, stamp in zip(self.plain.steps, stamps)]
        finally:
            self.bound.clear()

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        return [(step, end - begin) for step, begin, end in self.trace(inputs)[1]]

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, np.ndarray]:
        try:
            results = self._bind(inputs, None)
            see(0, self)
            for done, part in enumerate(self.split(apart=True), 1):
                self.run_part(part)
                see(done, self)
            return results
        finally:
            self.bound.clear()

    def run_part(self, part: NativeProgram | HostStep) -> None:
        if isinstance(part, NativeProgram):
            part.run(self.ports)
        else:
            part.run(self.memory)

    def memory(self, buffer: int) -> np.ndarray:
        """Returns a buffer's bytes, u8[n], or its strings, during a run."""
        b, plain = self.plain.buffers[buffer], self.plain
        if b.kind in ("input", "output"):
            flat = self.bound[b.offset + (len(plain.inputs) if b.kind == "output" else 0)].reshape(-1)
            return flat if flat.dtype.hasobject else flat.view(np.uint8)
        if buffer in self.strings:
            return self.strings[buffer]
        if b.kind == "constant":
            return self.plan.constants[b.offset : b.offset + b.size]
        start = library().pelton_prepared_buffer(self._prepared.address, buffer)
        return np.asarray(_Memory(self, start, b.size))

    def _bind(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        """Writes the addresses of all arrays into the table of ports, and returns the outputs by name."""
        bound: list[np.ndarray] = []
        # a new list: a fork may have left arrays in the old one
        self.bound = bound
        for port, name, dtype, shape in self.inputs:
            array = inputs[name]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape or dtype.hasobject:
                array = fit(port, array)  # strings are checked one by one
            bound.append(array)
        if out is not None and (not isinstance(out, Mapping) or not out.keys() <= self._output_names):
            check_out(self.plan.plain.outputs, out)
        results = {}
        for port, name, dtype, shape in self.outputs:
            if out is None or name not in out:
                results[name] = array = np.empty(shape, dtype)
            else:
                results[name] = array = out[name]
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    array = out_array(port, array)
            bound.append(array)
        count = len(self.inputs)
        while (unfit := bind(bound, count, self.ports, self.indices)) < len(bound):
            if unfit >= count:
                refuse_out(self.outputs[unfit - count][0], bound[unfit])
            bound[unfit] = fit(self.inputs[unfit][0], bound[unfit])
            check_indices(self.inputs[unfit][0], bound[unfit])
        if out:
            check_no_overlap(
                self.plan.plain.inputs,
                self.plan.plain.outputs,
                [(at or 0, (at or 0) + nbytes) for at, nbytes in zip(self.ports, self.sizes)],
                out,
            )
        return results


class _Memory:
    """Native memory in the form of numpy's interface: `start`, `size` bytes; valid while `owner` is alive."""

    def __init__(self, owner: object, start: int, size: int):
        self._owner = owner
        self.__array_interface__ = {"data": (start, False), "shape": (size,), "typestr": "|u1", "version": 3}


@record(frozen=True)
class ResolvedPorts:
    """Inputs and outputs with the shapes of one set of sizes."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def all(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs
