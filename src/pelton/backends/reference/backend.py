"""The smallest backend: the reference runs every step; other backends' results are compared with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pelton.engine import sizes
from pelton.engine.plan import EnginePlan, Step
from pelton.engine.shape_plan import ResolvedPlan
from pelton.engine.validate import validate
from pelton.errors import EngineError, InputError

from ..arrays import inputs_to_numpy, check_indices, check_no_overlap, check_out, fit, out_array, refuse_out
from ..device import Backend, Stamped, check_here
from ..plan import Plan

# the value of every unwritten byte: as floats, NaN
UNWRITTEN = 0xFF


@dataclass(frozen=True, eq=False)
class ReferenceLoaded:
    """An engine whose steps are all host steps."""

    plan: Plan
    device: None = None


class ReferenceReady:
    """One array for each buffer, and the host steps in order. See `device.Ready`."""

    call = None

    def __init__(self, plan: Plan, values: Mapping[str, int], resolved: ResolvedPlan):
        self.plan, self.resolved, self.plain = plan, resolved, sizes.at(plan.plain, values)
        if self.plain is not plan.plain:
            validate(self.plain)
        self.steps = plan.host_steps(self.plain, values) if values else plan.host
        self._detached = {**plan.texts, **plan.computed_buffers(resolved)}
        self._arena, self._bound = np.empty(0, np.uint8), list[np.ndarray]()

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._run(inputs, out, lambda done: None)

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        marks: list[int] = []
        results = self._run(inputs, out, lambda done: marks.append(time.monotonic_ns()))
        return results, list(zip(self.plain.steps, marks, marks[1:]))

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        return [(step, end - begin) for step, begin, end in self.trace(inputs)[1]]

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, Any]:
        return self._run(inputs, None, lambda done: see(done, self))

    def _run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, see: Callable[[int], Any]
    ) -> dict[str, Any]:
        """Returns outputs by name; calls `see` before each step and after the last with the number of steps done."""
        ports, given_outputs = self.plan.plain, {} if out is None else out
        check_out(ports.outputs, given_outputs)
        arrays = [fit(p, inputs[p.name]) for p in self.resolved.inputs]
        for port, array in zip(self.resolved.inputs, arrays):
            check_indices(port, array)
        places = [
            out_array(p, given_outputs[p.name]) if p.name in given_outputs else _unwritten(p.numbers, p.numpy_dtype)
            for p in self.resolved.outputs
        ]
        for port, place in zip(self.resolved.outputs, places):
            if not (place.flags.writeable and place.flags.c_contiguous and place.flags.aligned):
                refuse_out(port, place)
        spans = [
            (a.__array_interface__["data"][0], a.__array_interface__["data"][0] + a.nbytes) for a in (*arrays, *places)
        ]
        check_no_overlap(ports.inputs, ports.outputs, spans, given_outputs)
        self._bound, self._arena = [*arrays, *places], _unwritten((self.resolved.arena,), np.dtype(np.uint8))
        try:
            for i, step in self.steps.items():
                see(i)
                step.run(self.memory)
            see(len(self.steps))
            return {p.name: given_outputs.get(p.name, place) for p, place in zip(self.resolved.outputs, places)}
        finally:
            self._bound = []

    def memory(self, buffer: int) -> np.ndarray:
        b = self.plain.buffers[buffer]
        if b.kind in ("input", "output"):
            array = self._bound[b.offset + (len(self.resolved.inputs) if b.kind == "output" else 0)].reshape(-1)
        elif buffer in self._detached:
            array = self._detached[buffer]
        else:
            array = (self._arena if b.kind == "arena" else self.plan.constants)[b.offset : b.offset + b.size]
        return array if array.dtype.hasobject else array.view(np.uint8)


class ReferenceWorkspace:
    """A workspace without memory: each run allocates its own. See `device.Workspace`."""

    threads, stream, machine = 1, None, "the reference"
    import_inputs = staticmethod(inputs_to_numpy)
    fit = staticmethod(fit)

    def __init__(self, loaded: ReferenceLoaded, threads: int | None):
        if threads not in (None, 1):
            raise InputError(
                f"engine {loaded.plan.label!r} runs by the reference, in one thread, got {threads}; leave it out"
            )
        self._plan = loaded.plan

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> ReferenceReady:
        return ReferenceReady(self._plan, values, self._plan.template.resolve(values))

    def synchronize(self) -> None:
        """Does nothing: runs are over when `run` returns."""


def _unwritten(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    if dtype.hasobject:
        return np.full(shape, "", object)
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = UNWRITTEN
    return array


def open_code(plan: Plan) -> ReferenceLoaded:
    """Returns the engine, all of whose steps are host steps; raises EngineError if it has kernels."""
    kernel = next((s for s in plan.plain.steps if not s.host), None)
    if kernel is not None:
        raise EngineError(
            f"engine {plan.label!r} is for the reference, which does not run kernels such as {kernel.symbol!r}; build"
            " it again"
        )
    return ReferenceLoaded(plan)


def load(loaded: ReferenceLoaded, device: Any) -> ReferenceLoaded:
    check_machine(loaded.plan.label, loaded.plan.plain.target)
    return loaded


def check_machine(label: str, target: Mapping[str, Any]) -> None:
    """Raises EngineError if the engine is for another operating system."""
    check_here(label, target, os=sys.platform)


def tune(label: str, engines: Sequence[EnginePlan], *_: Any) -> NoReturn:
    """Raises InputError: the reference has no alternative kernels."""
    raise InputError(
        f"engine {label!r} is for the reference backend, which has no alternative kernels; build it with --target cuda"
    )


BACKEND = Backend(check_machine, open_code, load, ReferenceWorkspace, tune)
