"""Engines with profiles: one network tuned for several sizes, over one copy of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pelton.backends.device import Ready, Stamped
from pelton.engine import sizes
from pelton.engine.plan import Port, Step
from pelton.engine.script import Script
from pelton.errors import InputError

from .context import Context
from .engine import Engine
from .script_engine import ScriptEngine


def engine_of_script(plain: Script) -> Engine:
    """Returns the engine of a script: one with profiles, or one whose data decides what runs next."""
    return ProfiledEngine(plain) if plain.profiles else ScriptEngine(plain)


class ProfiledEngine(ScriptEngine):
    """An engine with profiles. A run uses the first profile that accepts the shapes of its inputs.

    deciding: axes of inputs, by name and number, on which profiles differ.
    """

    def __init__(self, plain: Script):
        super().__init__(plain)
        self.deciding = tuple(
            (port.name, axis)
            for i, port in enumerate(plain.inputs)
            for axis in range(len(port.shape))
            if len({_bounds(e.plain, e.plain.inputs[i], axis) for e in self.engines}) > 1
        )

    def context(self, threads: int | None = None) -> Context:
        self.start()
        return ProfiledContext(self, threads)

    def choose(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Returns the number of the first profile that accepts inputs of these shapes; raises InputError if none
        does."""
        for i, engine in enumerate(self.engines):
            if sizes.accepts(engine.plain, shapes):
                return i
        reasons = [
            f"{name}: {reason}"
            for name, engine in zip(self.script.profiles, self.engines)
            if (reason := sizes.misfit(engine.plain, shapes))
        ]
        raise InputError(
            f"no profile of engine {self.label!r} accepts these inputs; {'; '.join(reasons)}; build the engine for"
            " other ranges with profiles="
        )


def _bounds(plain: sizes.Sized, port: Port, axis: int) -> tuple[Any, ...]:
    """Returns the size of an axis, with the bounds of the symbol that it is a multiple of."""
    name, _ = sizes.multiple_of(plain, port.shape[axis])
    return (port.shape[axis], *(s for s in plain.symbols if s.name == name))


class ProfiledContext(Context):
    """Contexts of all profiles of an engine. Interface and errors of `Context`, and InputError for shapes that no
    profile accepts."""

    def __init__(self, engine: ProfiledEngine, threads: int | None = None):
        self.engine = engine
        self.contexts = [e.context(threads) for e in engine.engines]
        self.threads = max(c.threads for c in self.contexts)
        self._chosen: dict[tuple[int, ...], Context] = {}  # sizes of the deciding axes → the context of their profile

    @property
    def machine(self) -> str:
        return self.contexts[0].machine

    @property
    def stream(self) -> int | None:
        """The stream of the first profile; each has one of its own."""
        return self.contexts[0].stream

    def _at(self, shapes: Mapping[str, Any] | Any) -> Context:
        """Returns the context for inputs of these shapes, by name. Others get one that refuses them with the reason."""
        try:
            key = tuple(shapes[name][axis] for name, axis in self.engine.deciding)
            if (known := self._chosen.get(key)) is not None:
                return known
            described = {p.name: tuple(shapes[p.name]) for p in self.engine.inputs}
        except (KeyError, IndexError, TypeError):
            return self.contexts[0]
        if any(len(described[p.name]) != len(p.shape) for p in self.engine.inputs):
            return self.contexts[0]
        return self._chosen.setdefault(key, self.contexts[self.engine.choose(described)])

    def _context_for(self, inputs: Any) -> Context:
        """Returns the context for these inputs."""
        return self._at({name: np.shape(a) for name, a in inputs.items()} if isinstance(inputs, Mapping) else None)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._context_for(inputs).run(inputs, out)

    def run_at(self, shapes: tuple[tuple[int, ...], ...], addresses: Sequence[int]) -> bool:
        return self._at({p.name: shape for p, shape in zip(self.engine.inputs, shapes)}).run_at(shapes, addresses)

    def run_async(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        return self._context_for(inputs).run_async(inputs, out, stream)

    def synchronize(self) -> None:
        for context in self.contexts:
            context.synchronize()

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self._at(shapes).prepare(shapes)

    def output_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        return self._at(shapes).output_shapes(shapes)

    def warmup(self) -> None:
        """Runs each profile once on zeros of its optimum shapes."""
        for context in self.contexts:
            context.warmup()

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        return self._context_for(inputs).profile(inputs)

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        return self._context_for(inputs).trace(inputs, out)

    def trace_engines(self, inputs: Mapping[str, Any]) -> list[tuple[Any, Sequence[Stamped]]]:
        return self._context_for(inputs).trace_engines(inputs)

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Ready], None]) -> dict[str, Any]:
        return self._context_for(inputs).watch(inputs, see)
