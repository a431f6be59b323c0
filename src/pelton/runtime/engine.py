"""The public engine: a plan with its code loaded and its constants in place, run through contexts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.backends.device import Loaded, Stamped, Workspace, backend
from pelton.backends.plan import Plan
from pelton.engine import file, sizes
from pelton.engine import model as plain_engine
from pelton.engine.model import Port, Step, DynamicDimension
from pelton.engine.validate import validate

from .context import Context
from .forms import model_outputs, arrays_of_ports


class Engine:
    """A network built for a kind of machine. One engine serves many threads: every run takes a context of its own.

    It starts when it is loaded, or first run, with EngineError where this is no such machine; until then it can be
    looked at and saved anywhere. Raises EngineError where the plain engine does not hang together.
    """

    _started = False

    def __init__(self, plain: plain_engine.EnginePlan):
        validate(plain)
        self.plain = plain
        self.plan = Plan(plain)
        self._backend = backend(plain.target)
        self._code = self._backend.open(self.plan)
        forms = plain.meta.get("forms") or {}
        # inputs and outputs of the model that are no single port
        self.forms = forms if any(forms.values()) else None
        self._contexts: deque[Context] = deque()  # those that no run is using

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def called(self) -> str:
        """What messages call it: the file that it comes from, else its name."""
        return self.plain.called

    @property
    def constants(self) -> np.ndarray:
        """The bytes of all constants, made now if they were not yet."""
        return self.plan.constants

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.plain.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.plain.outputs

    @property
    def symbols(self) -> tuple[DynamicDimension, ...]:
        """The dynamic dimensions, with their bounds."""
        return self.plain.symbols

    def shapes(self, values: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
        """Input name → shape, for these values of dynamic dimensions; the optimum for those that are left out."""
        return {p.name: p.shape for p in sizes.ports(self.plain, {**sizes.optimum_sizes(self.plain), **(values or {})})}

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines that it consists of: itself, unless it is a script over others."""
        return (self,)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.plain.steps

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.plain.meta

    @property
    def device(self) -> Any:
        """What it was started on, as its backend describes a device; None for the CPU."""
        return self.loaded.device

    def start(self, device: Any = 0) -> Engine:
        """Loads the code, unless that has been done; of engines for GPUs onto the one of that number, or onto something
        that does what a GPU does. EngineError, saying what is missing, where this machine is none that the engine is
        for."""
        if not self._started:
            self.loaded: Loaded = self._backend.load(self._code, device)
            self.plain = self.loaded.plan.plain
            self._started = True
        return self

    def allocate(self, threads: int | None) -> Workspace:
        """The working memory of a context."""
        return self._backend.allocate(self.loaded, threads)

    def context(self, threads: int | None = None) -> Context:
        """A context of its own memory, for one run at a time; the constants are everybody's. `threads`: those the
        engine was built for, no more than there are CPUs, unless said otherwise. InputError for a number of threads of
        an engine that runs on a GPU."""
        return Context(self.start(), threads)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, in fresh arrays or those given as `out`. From any thread. InputError for arrays that do not
        fit.

        What the model has as sequences are lists of arrays, or arrays for their ports ("x[0]", "x[1]", …); an optional
        without a value is None.
        """
        if self.forms:
            return model_outputs(self._run(self._ported(inputs), out), self.forms["outputs"])
        return self._run(inputs, out)

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """As `run`, and all steps that ran, each with when it began and ended, in nanoseconds of `time.monotonic_ns`;
        no two steps overlap."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            results, steps = context.trace(self._ported(inputs), out)
            return model_outputs(results, self.forms["outputs"]) if self.forms else results, steps
        finally:
            self._contexts.append(context)

    def _ported(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was given for the model's inputs as arrays for ports."""
        return arrays_of_ports(inputs, self.forms["inputs"]) if self.forms and isinstance(inputs, Mapping) else inputs

    def _run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            return context.run(inputs, out)
        finally:
            self._contexts.append(context)

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Inputs in order, or by name, as `engine(image=x)`; gives the output, or a tuple where there are several."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            return context(*arrays, **named)
        finally:
            self._contexts.append(context)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the engine file, whole or not at all."""
        file.write(self.plain, path)

    def tobytes(self) -> bytes:
        """The engine file as bytes; equal engines give equal bytes."""
        return file.to_bytes(self.plain)

    @classmethod
    def _again(cls, data: bytes) -> Engine:
        return cls(file.read(data))  # type: ignore[arg-type]

    def __reduce__(self):
        return self._again, (self.tobytes(),)  # where it comes to, it starts when it is first run

    def __repr__(self) -> str:
        def side(ports: tuple[Port, ...]) -> str:
            return ", ".join(f"{p.name}: {p}" for p in ports)

        return f"<pelton.Engine {self.name!r} ({side(self.inputs)}) -> ({side(self.outputs)}), {len(self.steps)} steps>"
