"""Times the kernels that an engine carries for its steps on the CPU of this machine, and selects the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from pelton.engine import sizes
from pelton.engine.plan import EnginePlan, Step
from pelton.errors import Cancelled

from ..arrays import random_inputs
from ..device import ProgressCallback
from .machine import describe
from .prepared import CpuReady

ROUNDS = 9
MARGIN = 0.98  # another kernel must need at most this part of the first one's time


def tune_engine(
    plain: EnginePlan,
    prepare: Callable[[EnginePlan, Mapping[str, int]], CpuReady],
    deadline: float | None,
    progress: ProgressCallback | None,
) -> EnginePlan:
    """Returns the engine with the fastest kernel of each step, as far as timed until the deadline. prepare: loads an
    engine for sizes by name.

    Each run gives every step one of its kernels, so that caches are as in real runs; the least times count.
    """
    most = max((len(s.kernels) for s in plain.steps), default=0)
    optimum, spent = sizes.optimum_sizes(plain), [dict[str, int]() for _ in plain.steps]
    inputs = random_inputs(sizes.ports(plain, optimum))
    ready = [prepare(replace(plain, steps=_nth_kernels(plain, k)), optimum) for k in range(most)]
    for i in range(ROUNDS * most):
        if deadline is not None and time.monotonic() >= deadline:
            break
        if progress is not None and progress("tune", i, ROUNDS * most) is False:
            raise Cancelled(f"cancelled in stage 'tune' at run {i} of {ROUNDS * most}")
        for (step, ns), times in zip(ready[i % most].profile(inputs), spent, strict=True):
            tactic = str(step.info.get("tactic"))
            times[tactic] = min(ns, times.get(tactic, ns))
    if progress is not None:
        progress("tune", ROUNDS * most, ROUNDS * most)
    steps = tuple(_fastest(step, times) if step.alternatives else step for step, times in zip(plain.steps, spent))
    target = {**plain.target, "cpu": describe()["model"]}
    return replace(plain, steps=steps, target=target, meta={**plain.meta, "threads": ready[0].threads})


def _nth_kernels(plain: EnginePlan, n: int) -> tuple[Step, ...]:
    """Returns the steps by their kernels of this number, or by their last ones."""

    def by(step: Step) -> Step:
        kernel = step.kernels[min(n, len(step.kernels) - 1)]
        return step.with_kernel(kernel, [s for s in step.kernels if s is not kernel]) if step.alternatives else step

    return tuple(map(by, plain.steps))


def _fastest(step: Step, times: dict[str, int]) -> Step:
    best = step
    for other in step.alternatives:
        ns, least = times.get(other.info["tactic"]), times.get(best.info["tactic"])
        if ns is not None and least is not None and ns < least * MARGIN:
            best = other
    return step.with_kernel(best, [s for s in step.kernels if s is not best], times_ns=dict(sorted(times.items())))
