"""Times the kernels that an engine carries for each of its steps on the GPU that is here, and puts the fastest of those
that agree in place."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pelton.engine import model as plain_engine
from pelton.engine import sizes
from pelton.engine.library import LIBRARIES, aligned, of_version, work
from pelton.engine.model import Slice, Step
from pelton.errors import Cancelled, EngineError

from ..arrays import random_inputs
from ..device import ProgressCallback
from ..plan import Plan
from .agree import Trial, groups
from .bundle import unpack
from .clock import MAX_TURNS, Clock, TimedCandidate, endless
from .device import ALIGN, TRAILING, Device, Function, Launch, Memory, KernelHangs, launches
from .loaded import CudaLoaded, by
from .prepared import CudaPrepared, up
from .workspace import CudaWorkspace

log = logging.getLogger("pelton.build")

ROUNDS = 9  # replays of each kernel
MARGIN = 0.98  # another kernel must take this part of the time of the one in place
COPIES = 4  # of the L2 cache: bytes of copies of a step's constants


@dataclass(frozen=True)
class KernelFindings:
    """What was seen of a step's kernels, by tactic: nanoseconds, and which of them write something else than most
    do."""

    times: Mapping[str, int] = field(default_factory=dict)
    odd: Collection[str] = ()


Known = dict[tuple[Any, ...], KernelFindings]  # kernels with their sizes


def agreed(
    plain: plain_engine.EnginePlan, device: Device, progress: ProgressCallback | None = None
) -> plain_engine.EnginePlan:
    """A plain engine without the kernels of its steps that write something else on this GPU than the others do, which
    is logged. Nothing is timed. EngineError where it does not run there."""
    loaded = CudaLoaded(Plan(plain), unpack(plain.code) if plain.code else {}, device)
    bench = _Bench(loaded, None, rounds=0)
    found = _seen(bench, progress, "check", {})
    return replace(
        plain, steps=tuple(_settled(step, found[i]) if found[i].odd else step for i, step in enumerate(plain.steps))
    )


def tuned(
    engines: Sequence[CudaLoaded], deadline: float | None, progress: ProgressCallback | None
) -> list[plain_engine.EnginePlan]:
    """The engines by the fastest of the kernels that each carries for its steps, at its usual sizes, until the
    deadline; what kernels write is compared, too. Of equal kernels of all engines one is timed."""
    known: Known = {}
    return [_tuned(loaded, deadline, progress, known) for loaded in engines]


def _tuned(
    loaded: CudaLoaded, deadline: float | None, progress: ProgressCallback | None, known: Known
) -> plain_engine.EnginePlan:
    on, plain = loaded.device, loaded.plan.plain
    found = _seen(_Bench(loaded, deadline, ROUNDS), progress, "tune", known)
    steps = tuple(
        _settled(_newest(step, on), found[i]) if found[i] != KernelFindings() else step
        for i, step in enumerate(plain.steps)
    )
    return replace(plain, steps=steps, meta={**plain.meta, "gpu": on.name, "multiprocessors": on.multiprocessors})


def _seen(bench: _Bench, progress: ProgressCallback | None, stage: str, known: Known) -> dict[int, KernelFindings]:
    """What is found of each step's kernels, in one run of the engine; of equal kernels once."""
    device, plain, found = bench.device, bench.loaded.plan.plain, dict[int, KernelFindings]()
    count = len(plain.steps)

    def see(done: int, ready: CudaPrepared) -> None:
        """Before a step runs, all that it reads is there."""
        if done == count:
            return
        if progress is not None and progress(stage, done, count) is False:
            raise Cancelled(f"cancelled in stage {stage!r} at step {done} of {count}")
        step = _newest(ready.plain.steps[done], device)
        kernels = tuple((s.symbol, s.tiles, s.phases, s.dims) for s in (step, *step.alternatives))
        if step.alternatives and step.tiles and kernels not in known and not bench.late():
            known[kernels] = bench.look(step, ready)
        found[done] = known.get(kernels, KernelFindings())

    usual = sizes.optimum_sizes(plain)
    ready = CudaWorkspace(bench.loaded).prepare(usual, lambda: None)
    ready.watch(random_inputs(sizes.ports(plain, usual)), see)
    if progress is not None:
        progress(stage, count, count)
    return found


def _newest(step: Step, device: Device) -> Step:
    """With what the libraries that are here compute, which then counts as timed with them."""
    return of_version(step, device.libraries)


def _settled(step: Step, found: KernelFindings) -> Step:
    """The step by the fastest of its kernels, or the first where none is timed, the others that it carried beside it;
    none that is odd."""
    kernels = [s for s in (step, *step.alternatives) if s.info["tactic"] not in found.odd]
    best = kernels[0]
    for other in kernels[1:]:
        ns, least = found.times.get(other.info["tactic"]), found.times.get(best.info["tactic"])
        if ns is not None and (least is None or ns < least * MARGIN):
            best = other
    return by(
        best,
        step,
        [s for s in kernels if s is not best],
        **({"times_ns": dict(sorted(found.times.items()))} if found.times else {}),
    )


class _Bench:
    """Runs the kernels of a step in the memory of a context, between those before it and itself. Nothing is timed in no
    rounds."""

    def __init__(self, loaded: CudaLoaded, deadline: float | None, rounds: int):
        self.loaded, self.device, self.deadline, self.rounds = loaded, loaded.device, deadline, rounds
        self.clock = Clock(loaded.device) if rounds else None

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def look(self, step: Step, ready: CudaPrepared) -> KernelFindings:
        """Of those that run."""
        kernels = tuple(
            replace(s, name=step.name)
            for s in (step, *step.alternatives)
            if s.symbol not in LIBRARIES or s.symbol in self.device.libraries
        )
        copies = _Copies(self.device, ready, kernels, MAX_TURNS if self.clock else 1)
        ways, held, own = list[TimedCandidate](), list[Memory](), set[str]()
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
            ways.append(
                TimedCandidate(tactic, partial(self._launches, kernel, function, ready, copies, scratch), copies.turns)
            )
            own |= {tactic} if kernel.symbol not in LIBRARIES else set()
        with Trial(self.device, ready, step) as trial:
            odd = self._odd(step, trial, ways, own)
            ways = [way for way in ways if way.name not in odd]
            times = self.clock.race(ways, self.rounds, self.deadline) if self.clock else [None] * len(ways)
        return KernelFindings({way.name: ns for way, ns in zip(ways, times) if ns is not None}, odd)

    def _odd(self, step: Step, trial: Trial, ways: Sequence[TimedCandidate], own: Set[str]) -> set[str]:
        """Those that do not write what most do, or where as many write other things, what the first writes. What
        libraries alone write counts for nothing: the engine has to run without them, too."""
        named: list[str] = []

        def results() -> Iterator[list[np.ndarray]]:
            for way in ways:
                try:
                    result = trial.results(way.launches(0))
                except KernelHangs as e:
                    raise endless(f"{way.name} of step {step.name!r}", e) from None
                except EngineError as e:
                    # fails, too, where the GPU can do nothing any more
                    self.device.synchronize(trial.ready.stream)
                    log.warning("%s of step %r is left out: %s", way.name, step.name, e)
                    continue
                named.append(way.name)
                yield result

        alike = [[named[i] for i in group] for group in groups(results(), [t.dtype for t in step.outputs])]
        right = next((group for group in alike if not own.isdisjoint(group)), alike[0] if alike else [])
        odd = {tactic for group in alike if group is not right for tactic in group}
        if odd:
            log.warning(
                "step %r: %s gives something else on %s than %s and is left out; this is a fault of Pelton or of the"
                " GPU's software: please report it; `pelton compare` says whether the engine is right",
                step.name,
                " and ".join(sorted(odd)),
                self.device.name,
                " and ".join(right),
            )
        return odd

    def _function(self, kernel: Step) -> Function:
        if kernel.symbol in LIBRARIES:
            told = work(kernel.symbol, kernel.dims)
            return self.device.by_library(told, aligned(kernel.args, [kind for kind, _ in told.operands()]))
        return self.device.load(self.loaded.cubins[kernel.symbol], len(kernel.args) + len(kernel.dims) + TRAILING)

    def _launches(
        self, kernel: Step, function: Function, ready: CudaPrepared, copies: _Copies, scratch: int, turn: int
    ) -> Sequence[Launch]:
        words = [copies.start(a, turn) + a.offset for a in kernel.args]
        return launches(
            function, int(kernel.tiles), int(kernel.phases), np.array([*words, *kernel.dims, scratch, 0], np.int64)
        )


class _Copies:
    """The constants that kernels read, as often as it takes to find them cold."""

    def __init__(self, device: Device, ready: CudaPrepared, kernels: Sequence[Step], most: int):
        buffers, self.ready = ready.plain.buffers, ready
        self.at: dict[int, int] = {}  # buffer → where it lies in a copy
        self.each = 0
        for i in sorted({a.buffer for k in kernels for a in k.args if buffers[a.buffer].kind in ("constant", "table")}):
            self.at[i], self.each = self.each, self.each + up(int(buffers[i].size), ALIGN)
        self.turns = max(1, min(most, COPIES * device.l2 // self.each)) if self.each else most
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
        """Where a buffer begins in some turn."""
        if self.memory is None or of.buffer not in self.at:
            return int(self.ready.starts[of.buffer])
        return self.memory.address + turn * self.each + self.at[of.buffer]
