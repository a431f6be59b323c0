"""Plans prepared for one set of sizes: step tables with all addresses resolved, and their runs on callers' arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pelton.engine import model as plain_engine
from pelton.engine import sizes
from pelton.engine.model import Step
from pelton.engine.shape_plan import ResolvedPlan
from pelton.engine.validate import validate
from pelton.system.memory import address

from ..arrays import check_indices, check_no_overlap, check_out, fit, port_checks, out_array, refuse_out
from ..device import Stamped
from ..host import HostStep
from ..plan import Plan
from .ports import bind, callable_of, index_table
from .program import NativeProgram


class CpuReady:
    """The programs and host steps of an engine for one set of sizes. See `device.Ready`.

    arena, scratch: working memory, and the address of scratch pages for all threads, which the caller keeps alive.
    functions: the address of each step's kernel. available: CPUs that this process may use.
    """

    def __init__(
        self,
        plan: Plan,
        functions: np.ndarray,
        values: Mapping[str, int],
        resolved: ResolvedPlan,
        arena: np.ndarray,
        scratch: int,
        threads: int,
        available: float,
    ):
        self.plan, self.functions, self.values, self.resolved, self.arena = plan, functions, values, resolved, arena
        self.scratch, self.threads, self.available = scratch, threads, available
        hosted = plan.host_steps(self.plain, values) if plan.host and values else plan.host
        self.host = {i: step.own() for i, step in hosted.items()}
        # buffers outside of the arena, the constants and the ports
        self.detached = {**plan.texts, **plan.tables, **plan.computed_buffers(resolved)}
        self.ports = (ctypes.c_void_p * (len(resolved.inputs) + len(resolved.outputs)))()
        # the arrays of the run in progress, inputs then outputs
        self.bound: list[np.ndarray] = []
        self.parts = list(self.split())
        self.natives = [p.native for p in self.parts if isinstance(p, NativeProgram)] if not self.host else None
        self.inputs, self.outputs = map(port_checks, (resolved.inputs, resolved.outputs))
        asked = [look[1:] for look in self.inputs + self.outputs]
        self.indices = index_table(resolved.inputs)
        # the fast path, if all steps are one native program
        self.call = (
            callable_of(self.natives[0][1], self.ports, asked, len(self.inputs), self.indices)
            if self.natives and len(self.natives) == 1
            else None
        )
        self.sizes = [p.nbytes for p in resolved.inputs + resolved.outputs]
        self._output_names = {p.name for p in resolved.outputs}

    @cached_property
    def plain(self) -> plain_engine.EnginePlan:
        """The engine with all numbers resolved; most runs do not need it."""
        plain = sizes.at(self.plan.plain, self.values)
        if plain is not self.plan.plain:
            validate(plain)
        return plain

    def split(self, apart: bool = False) -> Iterator[NativeProgram | HostStep]:
        """The host steps, and native programs of the steps between them; `apart`: one program for each step."""
        resolved, template = self.resolved, self.plan.template
        starts = resolved.starts + np.where(
            template.in_arena, address(self.arena), np.where(template.constant, address(self.plan.constants), 0)
        )
        for i, array in self.detached.items():
            if not array.dtype.hasobject:
                starts[i] = address(array)
        words = resolved.words.copy()
        patches = np.stack([template.ported, template.ports, words[template.ported]], axis=1)
        words[template.pointers] += starts[template.operands]
        table = np.stack(
            [
                self.functions,
                template.first[:-1],
                resolved.tiles,
                template.grain,
                template.wave,
                resolved.scratch,
                resolved.phases,
            ],
            axis=1,
        )

        def program(begin: int, end: int) -> NativeProgram:
            first, last = template.first[begin], template.first[end]
            own = patches[(template.ported >= first) & (template.ported < last)]
            return NativeProgram.of(
                table[begin:end] - (0, first, 0, 0, 0, 0, 0),
                words[first:last],
                own - (first, 0, 0),
                self.threads,
                self.available,
                self.scratch,
            )

        begin = 0
        for i in range(len(table)):
            if i in self.host:
                if begin < i:
                    yield program(begin, i)
                yield self.host[i]
                begin = i + 1
            elif apart:
                yield program(i, i + 1)
                begin = i + 1
        if begin < len(table):
            yield program(begin, len(table))

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
        """Runs on dense arrays at these addresses, inputs and then outputs; False, without a run, with host steps."""
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
        """A buffer's bytes, u8[n], or its strings, during a run."""
        b, plain = self.plain.buffers[buffer], self.plain
        if b.kind in ("input", "output"):
            flat = self.bound[b.offset + (len(plain.inputs) if b.kind == "output" else 0)].reshape(-1)
            return flat if flat.dtype.hasobject else flat.view(np.uint8)
        if buffer in self.detached:
            array = self.detached[buffer]
            return array if array.dtype.hasobject else array.view(np.uint8)
        return (self.arena if b.kind == "arena" else self.plan.constants)[b.offset : b.offset + b.size]

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
