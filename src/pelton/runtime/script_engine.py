"""Engines that are scripts: engines, and between them Python steps that decide what runs next."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.backends.cpu.boxes import non_max_suppression
from pelton.backends import backend
from pelton.engine import script_file
from pelton.engine.constants import DeferredConstants, bytes_of
from pelton.engine.plan import DynamicDimension, Port, Step, numpy_dtype, strings_in
from pelton.engine.script import (
    Action,
    Block,
    Feed,
    HostAction,
    RunAction,
    Script,
    blocks_in,
    free,
    read_by,
    validate_script,
)
from pelton.errors import EngineError, Needs
from pelton.system.memory import aligned

from .context import Context
from .engine import Engine
from .script_context import RUNNERS, Call, PlannedAction, ScriptContext
from .script_steps import between, step_of

log = logging.getLogger("pelton.runtime")
SHOWN = 6  # names of steps in the warning at load
NATIVE: dict[str, Call] = {"non_max_suppression": non_max_suppression}  # instead of the functions of `ops.data`
# functions of the script itself, which no operator of the model waits for
GLUE = ("list", "none", "rows", "refused")


class ScriptEngine(Engine):
    """An engine that is a script over engines; between them, the data decides what runs next. Its interface is that of
    any other engine."""

    def __init__(self, plain: Script):
        validate_script(plain)
        self.script = plain
        self.plain = plain  # type: ignore[assignment]
        constants: Any = plain.constants
        if plain.arrays or not isinstance(constants, DeferredConstants):
            constants = aligned(bytes_of(constants))
        self.engines = [Engine(replace(e, constants=constants)) for e in plain.engines]
        self.arrays = {
            name: (
                strings_in(piece).reshape(c.shape)
                if c.dtype == "string"
                else piece.view(numpy_dtype(c.dtype)).reshape(c.shape)
            )
            for name, c in plain.arrays.items()
            for piece in [constants[c.offset : c.offset + c.size]]
        }
        forms = plain.meta.get("forms") or {}
        self.forms = forms if any(forms.values()) else None
        self.calls: dict[int, Call] = {}
        self.plans: dict[int, list[PlannedAction]] = {}  # the steps of each block
        self.feeds: dict[int, list[tuple[str, Feed]]] = {}  # the sources of each engine's inputs
        ports = {n: p.name for n, p in zip(plain.main.outputs, plain.outputs) if p.shares is not None}
        self.extended = {
            id(a): [(p.name, ports[n]) for p, n in zip(self.engines[a.engine].outputs, a.outputs) if n in ports]
            for a in plain.main.steps
            if isinstance(a, RunAction)
        }
        self.warned = set[int]()  # engines that rejected the sizes of a run, already logged
        self.lent = {id(a) for a in self.arrays.values()}  # results that are one of these are copied
        self._prepare(plain.main)
        actions = between(plain.main)
        self._between = [step_of(a) for a in actions]
        self.hosted = [a for a in actions if isinstance(a, HostAction) and a.call not in (*GLUE, *NATIVE)]
        if self.hosted:
            names = [a.name for a in self.hosted]
            log.warning(
                "engine %r runs %d of its %d steps in numpy, without a kernel: %s",
                self.label,
                len(names),
                len(self.steps),
                ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""),
            )
        self._contexts = deque()

    @property
    def constants(self) -> np.ndarray:
        """The bytes of the constants of all engines, u8[n]; computed on first use."""
        return np.frombuffer(bytes_of(self.script.constants), np.uint8)

    @property
    def device(self) -> Any:
        """The device of the engines, as `Engine.device`."""
        return self.engines[0].device if self.engines else None

    def _prepare(self, block: Block) -> None:
        """Plans the steps of a block and of inner blocks: engines, functions, and names that are dead after each."""
        needed, drops = set(block.outputs), list[tuple[str, ...]]()
        own = {name for a in block.steps for name in a.outputs if name}
        for action in reversed(block.steps):
            reads = set(read_by(action)).union(*map(free, blocks_in(action)))
            drops.append(tuple(sorted((reads | set(action.outputs)) & own - needed)))
            needed |= reads
        self.plans[id(block)] = [
            PlannedAction(RUNNERS[type(a)], a, a.outputs, dead) for a, dead in zip(block.steps, reversed(drops))
        ]
        for action in block.steps:
            if isinstance(action, HostAction) and action.call not in ("list", "none"):
                self.calls[id(action)] = _function(action)
            if isinstance(action, RunAction):
                self.feeds[id(action)] = [(p.name, f) for p, f in zip(self.engines[action.engine].inputs, action.feeds)]
            for inner in blocks_in(action):
                self._prepare(inner)

    @property
    def symbols(self) -> tuple[DynamicDimension, ...]:
        return self.script.symbols

    @property
    def parts(self) -> tuple[Engine, ...]:
        return tuple(self.engines)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all engines, one after the other, then those between them."""
        return (*(s for e in self.engines for s in e.steps), *self._between)

    def start(self, device: int = 0) -> Engine:
        """Starts all engines. Raises EngineError if a step between them needs a missing package."""
        if not self._started:
            backend(self.script.target).check(self.label, self.script.target)
            for action in self.hosted:
                _check(action)
            for engine in self.engines:
                engine.start(device)
            self._started = True
        return self

    def context(self, threads: int | None = None) -> Context:
        self.start()
        return ScriptContext(self, threads)

    def refit(self, weights: Mapping[str, Any]) -> None:
        kind = "has profiles, so it" if self.script.profiles else "is a script over several engines, which"
        raise EngineError(
            f"engine {self.label!r} {kind} cannot be refitted; build one from the model with these weights"
        )

    @property
    def refittable(self) -> dict[str, Port]:
        return {}

    @property
    def refit_refusals(self) -> dict[str, str]:
        return {}

    def save(self, path: str | os.PathLike[str], sign: Any = None) -> None:
        script_file.write(self.script, path, sign)

    def tobytes(self) -> bytes:
        return script_file.to_bytes(self.script)


def _check(action: HostAction) -> None:
    from pelton import reference  # `_function` has imported it

    reference.check_call(action.name, action.call, action.text)


def _function(action: HostAction) -> Call:
    with Needs(f"step {action.name!r} runs on the host and", EngineError):
        from pelton import reference  # only scripts with such steps need its imports

        return reference.function(action.name, action.call, action.text, NATIVE)


def steps_between(engine: Engine) -> list[tuple[Action, Step]]:
    """Returns the steps of a script between its engines, each as an engine's step, too; none for other engines."""
    if not isinstance(engine, ScriptEngine):
        return []
    return [(action, step_of(action)) for action in between(engine.plain.main)]
