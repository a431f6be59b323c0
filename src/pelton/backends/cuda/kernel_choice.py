"""Times the kernels of each step of an engine on the GPU of this machine, and selects the fastest of those that
agree."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton.engine import plan as plain_engine
from pelton.engine import sizes
from pelton.engine.library import LIBRARIES, aligned, of_version, work
from pelton.engine.plan import Slice, Step
from pelton.errors import Cancelled, EngineError

from ..arrays import random_inputs
from ..device import ProgressCallback
from ..plan import Plan
from .agree import Trial, groups
from .bundle import unpack
from .clock import MAX_TURNS, Clock, TimedCandidate, hang_error
from .device import ALIGN, TRAILING, Device, Function, Launch, Memory, KernelHangs, launches
from .loaded import CudaLoaded
from .prepared import CudaPrepared, up
from .workspace import CudaWorkspace

log = Logger("pelton.build")

ROUNDS = 9  # replays of each kernel
MARGIN = 0.98  # another kernel must need at most this part of the current one's time
COPIES = 4  # bytes of copies of a step's constants, in multiples of the L2 cache


@dataclass(frozen=True)
class KernelFindings:
    """Findings about a step's kernels, by tactic: nanoseconds, and those with deviating results."""

    times: Mapping[str, int] = field(default_factory=dict)
    odd: Collection[str] = ()


Known = dict[tuple[Any, ...], KernelFindings]  # kernels with their sizes


def drop_wrong_kernels(
    plain: plain_engine.EnginePlan, device: Device, progress: ProgressCallback | None = None
) -> plain_engine.EnginePlan:
    """Returns a plain engine without the kernels whose results on this GPU deviate from the others of their step; logs
    them. Nothing is timed. Raises EngineError if the engine does not run there."""
    loaded = CudaLoaded(Plan(plain), unpack(plain.code) if plain.code else {}, device)
    bench = _Bench(loaded, None, rounds=0)
    by_step = _examine(bench, progress, "check", {})
    return replace(
        plain,
        steps=tuple(_choose_kernel(step, by_step[i]) if by_step[i].odd else step for i, step in enumerate(plain.steps)),
    )


def tune_engines(
    engines: Sequence[CudaLoaded], deadline: float | None, progress: ProgressCallback | None
) -> list[plain_engine.EnginePlan]:
    """Returns the engines with the fastest kernel for each step at optimum sizes, as far as timed until the deadline.

    Results of kernels are compared, too. Kernels shared by several steps or engines are timed once.
    """
    known: Known = {}
    return [_tune_engine(loaded, deadline, progress, known) for loaded in engines]


def _tune_engine(
    loaded: CudaLoaded, deadline: float | None, progress: ProgressCallback | None, known: Known
) -> plain_engine.EnginePlan:
    on, plain = loaded.device, loaded.plan.plain
    by_step = _examine(_Bench(loaded, deadline, ROUNDS), progress, "tune", known)
    steps = tuple(
        _choose_kernel(_of_installed_library(step, on), by_step[i]) if by_step[i] != KernelFindings() else step
        for i, step in enumerate(plain.steps)
    )
    return replace(plain, steps=steps, meta={**plain.meta, "gpu": on.name, "multiprocessors": on.multiprocessors})


def _examine(bench: _Bench, progress: ProgressCallback | None, stage: str, known: Known) -> dict[int, KernelFindings]:
    """Returns the findings of each step's kernels, in one run of the engine; equal kernels are examined once."""
    device, plain, by_step = bench.device, bench.loaded.plan.plain, dict[int, KernelFindings]()
    count = len(plain.steps)

    def see(done: int, ready: CudaPrepared) -> None:
        """Examines a step before it runs: all its operands are in place."""
        if done == count:
            return
        if progress is not None and progress(stage, done, count) is False:
            raise Cancelled(f"cancelled in stage {stage!r} at step {done} of {count}")
        step = _of_installed_library(ready.plain.steps[done], device)
        kernels = tuple((s.symbol, s.tiles, s.phases, s.dims) for s in step.kernels)
        if step.alternatives and step.tiles and kernels not in known and not bench.late():
            known[kernels] = bench.look(step, ready)
        by_step[done] = known.get(kernels, KernelFindings())

    optimum = sizes.optimum_sizes(plain)
    ready = CudaWorkspace(bench.loaded).prepare(optimum, lambda: None)
    ready.watch(random_inputs(sizes.ports(plain, optimum)), see)
    if progress is not None:
        progress(stage, count, count)
    return by_step


def _of_installed_library(step: Step, device: Device) -> Step:
    """Returns the step with its library calls for the installed versions."""
    return of_version(step, device.libraries)


def _choose_kernel(step: Step, found: KernelFindings) -> Step:
    """Returns the step with the fastest of its kernels, or the first if none is timed, the others as alternatives,
    without the odd ones."""
    kernels = [s for s in step.kernels if s.info["tactic"] not in found.odd]
    best = kernels[0]
    for other in kernels[1:]:
        ns, best_ns = found.times.get(other.info["tactic"]), found.times.get(best.info["tactic"])
        if ns is not None and (best_ns is None or ns < best_ns * MARGIN):
            best = other
    return step.with_kernel(
        best,
        [s for s in kernels if s is not best],
        **({"times_ns": dict(sorted(found.times.items()))} if found.times else {}),
    )


class _Bench:
    """Runs the kernels of a step in the memory of a context, just before the step itself runs; with 0 rounds, times
    nothing."""

    def __init__(self, loaded: CudaLoaded, deadline: float | None, rounds: int):
        self.loaded, self.device, self.deadline, self.rounds = loaded, loaded.device, deadline, rounds
        self.clock = Clock(loaded.device) if rounds else None

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def look(self, step: Step, ready: CudaPrepared) -> KernelFindings:
        """Returns the findings of those of the step's kernels that run here."""
        kernels = tuple(
            replace(s, name=step.name)
            for s in step.kernels
            if s.symbol not in LIBRARIES or s.symbol in self.device.libraries
        )
        copies = _Copies(self.device, ready, kernels, MAX_TURNS if self.clock else 1)
        candidates, held, own = list[TimedCandidate](), list[Memory](), set[str]()
        for kernel in kernels:
            tactic = kernel.info["tactic"]
            try:
                function = self._function(kernel)
            except (EngineError, KeyError) as e:
                log.warning(
                    "%s of step %r is left out: %s",
                    tactic,
                    step.name,
                    e if isinstance(e, EngineError) else "the engine has no such kernel",
                )
                continue
            scratch, cubin = 0, function.cubin
            if cubin.scratch:
                held.append(self.device.allocate(cubin.scratch * cubin.clusters * int(kernel.tiles), "timing kernels"))
                scratch = held[-1].address
            candidates.append(
                TimedCandidate(tactic, partial(self._launches, kernel, function, ready, copies, scratch), copies.turns)
            )
            own |= {tactic} if kernel.symbol not in LIBRARIES else set()
        with Trial(self.device, ready, step) as trial:
            odd = self._odd(step, trial, candidates, own)
            candidates = [candidate for candidate in candidates if candidate.name not in odd]
            times = self.clock.race(candidates, self.rounds, self.deadline) if self.clock else [None] * len(candidates)
        return KernelFindings({candidate.name: ns for candidate, ns in zip(candidates, times) if ns is not None}, odd)

    def _odd(self, step: Step, trial: Trial, candidates: Sequence[TimedCandidate], own: Set[str]) -> set[str]:
        """Returns the tactics whose results differ from the majority's (of equally large groups, the first one's).

        A result of libraries alone does not count: the engine must run without them, too.
        """
        named: list[str] = []

        def results() -> Iterator[list[np.ndarray]]:
            for candidate in candidates:
                try:
                    result = trial.results(candidate.launches(0))
                except KernelHangs as e:
                    raise hang_error(f"{candidate.name} of step {step.name!r}", e) from None
                except EngineError as e:
                    # raises, too, if the GPU is lost
                    self.device.synchronize(trial.ready.stream)
                    log.warning("%s of step %r is left out: %s", candidate.name, step.name, e)
                    continue
                named.append(candidate.name)
                yield result

        alike = [[named[i] for i in group] for group in groups(results(), [t.dtype for t in step.outputs])]
        right = next((group for group in alike if not own.isdisjoint(group)), alike[0] if alike else [])
        odd = {tactic for group in alike if group is not right for tactic in group}
        if odd:
            log.warning(
                "step %r: %s is not used, as its results differ on %s from those of %s; this is a bug of Pelton"
                " or of the GPU's software: please report it; check the engine with `pelton compare`",
                step.name,
                " and ".join(sorted(odd)),
                self.device.name,
                " and ".join(right),
            )
        return odd

    def _function(self, kernel: Step) -> Function:
        if kernel.symbol in LIBRARIES:
            descriptor = work(kernel.symbol, kernel.dims)
            return self.device.by_library(descriptor, aligned(kernel.args, [kind for kind, _ in descriptor.operands()]))
        return self.device.load(self.loaded.cubins[kernel.symbol], len(kernel.args) + len(kernel.dims) + TRAILING)

    def _launches(
        self, kernel: Step, function: Function, ready: CudaPrepared, copies: _Copies, scratch: int, turn: int
    ) -> Sequence[Launch]:
        words = [copies.start(a, turn) + a.offset for a in kernel.args]
        return launches(
            function, int(kernel.tiles), int(kernel.phases), np.array([*words, *kernel.dims, scratch, 0], np.int64)
        )


class _Copies:
    """Copies of the constants that kernels read, enough of them to defeat the cache."""

    def __init__(self, device: Device, ready: CudaPrepared, kernels: Sequence[Step], max_turns: int):
        buffers, self.ready = ready.plain.buffers, ready
        self.at: dict[int, int] = {}  # buffer → its offset in a copy
        self.each = 0
        for i in sorted({a.buffer for k in kernels for a in k.args if buffers[a.buffer].kind in ("constant", "table")}):
            self.at[i], self.each = self.each, self.each + up(int(buffers[i].size), ALIGN)
        self.turns = max(1, min(max_turns, COPIES * device.l2 // self.each)) if self.each else max_turns
        self.memory = (
            device.allocate(self.each * self.turns, "timing kernels") if self.each and self.turns > 1 else None
        )
        if self.memory is not None:
            for turn in range(self.turns):
                for i, at in self.at.items():
                    device.copy(
                        self.memory.address + turn * self.each + at,
                        int(ready.starts[i]),
                        int(buffers[i].size),
                        ready.stream,
                    )

    def start(self, of: Slice, turn: int) -> int:
        """Returns the address of a buffer in a turn."""
        if self.memory is None or of.buffer not in self.at:
            return int(self.ready.starts[of.buffer])
        return self.memory.address + turn * self.each + self.at[of.buffer]
