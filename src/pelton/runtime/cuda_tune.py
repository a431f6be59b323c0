"""Times the kernels that an engine carries for each of its steps on the GPU that is here, and puts the fastest in place."""
from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pelton.backends.cuda.clock import MOST_TURNS, Clock, Way
from pelton.backends.cuda.device import ALIGN, TRAILING, Device, Function, Launch, Memory
from pelton.backends.cuda.machine import chosen
from pelton.engine import engine as plain_engine
from pelton.engine.engine import Slice, Step
from pelton.engine.library import LIBRARIES, aligned, of_version, work
from pelton.engine.script import Script
from pelton.errors import Cancelled, EngineError, InputError

from .arrays import drawn
from .cuda import CudaEngine
from .cuda_prepared import CudaPrepared, up
from .engine import Engine, load
from .script import ScriptEngine

log = logging.getLogger("pelton.build")

Known = dict[tuple[Any, ...], dict[str, int]]  # kernels with their sizes → tactic → nanoseconds

ROUNDS = 9                                     # replays of each kernel
MARGIN = 0.98                                  # another kernel must take this part of the time of the one in place
COPIES = 4                                     # of the L2 cache: bytes of copies of a step's constants


def tune(engine: Engine | str | os.PathLike[str], device: int | Device = 0, *, budget: float | None = None,
         progress: Callable[[str, int, int], Any] | None = None) -> Engine:
    """The engine with the fastest of the kernels that it carries for each step, timed at its usual sizes on a GPU. The model and a compiler are not needed.

    engine: one for GPUs, or its file. device: the number of the GPU. budget: seconds; steps past that stay as they are. Raises EngineError where there is no
    such GPU or the engine has no code for it, InputError for engines of CPUs. The engine given is left as it was.
    """
    engine = engine if isinstance(engine, Engine) else load(engine, device=None)
    deadline = None if budget is None else time.monotonic() + budget
    plain: Any = engine.plain
    parts = [CudaEngine(part.plain, device) for part in engine.parts if isinstance(part, CudaEngine)]
    if not parts:
        raise InputError(f"engine {engine.name!r} is for CPUs, where kernels are timed while it is built; build it with a higher level, or with --target cuda")
    known: Known = {}
    if isinstance(plain, Script):
        # the constants of all are the script's, and so they stay
        tuned = iter([_tuned(part, deadline, progress, known) for part in parts])
        return ScriptEngine(replace(plain, engines=tuple(replace(next(tuned), constants=e.constants) for e in plain.engines)))
    return Engine(_tuned(parts[0], deadline, progress, known))


def _tuned(engine: CudaEngine, deadline: float | None, progress: Callable[[str, int, int], Any] | None,
           known: Known) -> plain_engine.Engine:
    on, plain = engine.device, engine.plain
    bench, found = _Bench(engine, deadline), dict[int, dict[str, int]]()

    def newest(step: Step) -> Step:
        """With what the libraries that are here compute, which then counts as timed with them."""
        return of_version(step, on.libraries)

    def see(done: int, ready: CudaPrepared) -> None:
        """Before a step runs, all that it reads is there."""
        if done == len(plain.steps):
            return
        if progress is not None and progress("tune", done, len(plain.steps)) is False:
            raise Cancelled(f"timing was cancelled at step {done} of {len(plain.steps)}")
        step = newest(ready.plain.steps[done])
        kernels = tuple((s.symbol, s.tiles, s.dims) for s in (step, *step.spares))
        if step.spares and step.tiles and kernels not in known and (deadline is None or time.monotonic() < deadline):
            known[kernels] = bench.times(step, ready)
        found[done] = known.get(kernels, {})
    context = engine.context()
    shapes = engine.shapes()
    context.watch(drawn([replace(p, shape=shapes[p.name]) for p in engine.inputs]), see)       # type: ignore[arg-type]
    if progress is not None:
        progress("tune", len(plain.steps), len(plain.steps))
    steps = tuple(_fastest(newest(step) if found[i] else step, found[i]) for i, step in enumerate(plain.steps))
    return replace(plain, steps=steps, meta={**plain.meta, "gpu": on.name, "multiprocessors": on.multiprocessors})


def _fastest(step: Step, times: Mapping[str, int]) -> Step:
    """The step by the kernel that takes the least time, those that it carried beside it."""
    best = step
    for other in (step, *step.spares) if times else ():
        ns, least = times.get(other.info["tactic"]), times.get(best.info["tactic"])
        if ns is not None and (least is None or ns < least * MARGIN):
            best = other
    rest = [replace(s, info={"tactic": s.info["tactic"]}, outputs=(), spares=()) for s in (step, *step.spares) if s is not best]
    return replace(best, info={**step.info, "tactic": best.info["tactic"], "times_ns": dict(sorted(times.items()))} if times else step.info,
                   outputs=step.outputs, spares=tuple(rest))


class _Bench:
    """Runs the kernels of a step in the memory of a context, between those before it and itself."""

    def __init__(self, engine: CudaEngine, deadline: float | None):
        self.engine, self.device, self.deadline, self.clock = engine, engine.device, deadline, Clock(engine.device)
        self.cubins = chosen(engine.name, engine.bundle, self.device.arch, self.device.name)

    def times(self, step: Step, ready: CudaPrepared) -> dict[str, int]:
        """Tactic → nanoseconds, of those that run."""
        self.device.synchronize(ready.stream)                    # the clock's stream does not wait for the context's
        kernels = tuple(replace(s, name=step.name) for s in (step, *step.spares) if s.symbol not in LIBRARIES or s.symbol in self.device.libraries)
        copies = _Copies(self.device, ready, kernels, self.clock.stream.handle)
        ways, held = list[Way](), list[Memory]()
        for kernel in kernels:
            tactic = kernel.info["tactic"]
            try:
                function = self._function(kernel)
            except (EngineError, KeyError) as e:
                log.warning("%s of step %r is not timed: %s", tactic, step.name, e if isinstance(e, EngineError) else "the engine has no such kernel")
                continue
            scratch, cubin = 0, function.cubin
            if cubin.scratch:
                held.append(self.device.allocate(cubin.scratch * cubin.clusters * int(kernel.tiles), "timing kernels"))
                scratch = held[-1].address
            ways.append(Way(tactic, partial(self._launches, kernel, function, ready, copies, scratch), copies.turns))
        found = self.clock.race(ways, ROUNDS, self.deadline)
        return {way.name: ns for way, ns in zip(ways, found) if ns is not None}

    def _function(self, kernel: Step) -> Function:
        if kernel.symbol in LIBRARIES:
            told = work(kernel.symbol, kernel.dims)
            return self.device.by_library(told, aligned(kernel.args, [kind for kind, _ in told.operands()]))
        return self.device.load(self.cubins[kernel.symbol], len(kernel.args) + len(kernel.dims) + TRAILING)

    def _launches(self, kernel: Step, function: Function, ready: CudaPrepared, copies: _Copies, scratch: int, turn: int) -> list[Launch]:
        words = [copies.start(a, turn) + a.offset for a in kernel.args]
        return [Launch(function, int(kernel.tiles), np.array([*words, *kernel.dims, scratch, 0], np.int64))]


class _Copies:
    """The constants that kernels read, as often as it takes to find them cold."""

    def __init__(self, device: Device, ready: CudaPrepared, kernels: Sequence[Step], stream: int):
        buffers, self.ready = ready.plain.buffers, ready
        self.at: dict[int, int] = {}           # buffer → where it lies in a copy
        self.each = 0
        for i in sorted({a.buffer for k in kernels for a in k.args if buffers[a.buffer].kind in ("constant", "table")}):
            self.at[i], self.each = self.each, self.each + up(int(buffers[i].size), ALIGN)
        self.turns = max(1, min(MOST_TURNS, COPIES * device.l2 // self.each)) if self.each else MOST_TURNS
        self.memory = device.allocate(self.each * self.turns, "timing kernels") if self.each and self.turns > 1 else None
        if self.memory is not None:
            for turn in range(self.turns):
                for i, at in self.at.items():
                    device.copy(self.memory.address + turn * self.each + at, int(ready.starts[i]), int(buffers[i].size), stream)

    def start(self, of: Slice, turn: int) -> int:
        """Where a buffer begins in some turn."""
        if self.memory is None or of.buffer not in self.at:
            return int(self.ready.starts[of.buffer])
        return self.memory.address + turn * self.each + self.at[of.buffer]
