"""Costs of the layout choices of a graph: measured times, or copied bytes if nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pelton.ir.dims import at
from pelton.codegen.template import Target
from pelton.ops.words import copy
from pelton.plan.placed import Task
from pelton.plan.region import Region
from pelton.plan.layout_search import NEVER

from .candidates import candidates
from .search import Found, Timing, best_of
from .tasks import digest


def copied(task: Task) -> float:
    """Returns the bytes that a task copies because of layouts; 0 for computing tasks."""
    if not isinstance(task.what, Region) or task.region.anchors or [n.op for n in task.region.body.nodes] != [copy]:
        return 0.0
    return float(at(task.region.output.type.bytes, task.region.optimum_sizes(task.layouts)))


def costs(
    tasks: Sequence[Task], timing: Timing | None, target: Target, strict: bool, max_tactics: int
) -> tuple[Callable[[Task], float], str]:
    """Returns (task → cost, the unit: "ns" or "bytes"). A task costs the ns of its fastest kernel if the clock can time
    all of them."""
    named = {t: digest(t) for t in tasks if isinstance(t.what, Region)}
    first = {d: t for t, d in reversed(named.items())}
    pools: Mapping[str, Found] = {
        d: candidates(t.region, t.layouts, target, strict, max_tactics) for d, t in first.items()
    }
    times: dict[str, float] = {}
    if timing is not None:
        timing.tune(first, pools, alone=True)
        best = {d: best_of(f, timing.cache.get(d)) for d, f in pools.items() if f}
        times = {d: known[tactic.name] for d, (_, tactic, known) in best.items() if known}
    timed = timing is not None and all(d in times for d, f in pools.items() if f)

    def cost(task: Task) -> float:
        if task in named and not pools[named[task]]:
            return NEVER
        return times.get(named.get(task, ""), 0.0) if timed else copied(task)

    return cost, "ns" if timed else "bytes"
