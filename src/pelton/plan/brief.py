"""Steps too short to parallelize: one thread runs them, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from pelton.engine.times import BYTES, FLOPS
from pelton.ir.dims import Size, is_known

from .lower import ScheduledTask

# Maximum estimated nanoseconds of a wave on one thread. On two Zen 4 cores, sharing a wave costs 0.1 to 0.3 µs: wake
# words of 23 steps take 4.5 µs on one thread, 5.3 µs on two.
BRIEF = 600


def serialized(scheduled: Sequence[ScheduledTask]) -> list[ScheduledTask]:
    """Returns the same tasks, of kernels for CPUs, with each task of a brief wave in its own wave, on one thread."""
    result, wave = list(scheduled), 0
    order = sorted(range(len(result)), key=lambda i: result[i].wave)
    for _, group in groupby(order, lambda i: scheduled[i].wave):
        tasks = list(group)
        alone = sum(_nanoseconds(result[i]) for i in tasks) <= BRIEF
        for i in tasks:
            kernel = result[i].kernel
            result[i] = replace(result[i], wave=wave, kernel=_whole(kernel) if alone else kernel)
            wave += alone
        wave += not alone
    return result


def _whole(kernel: Any) -> Any:
    """Returns a kernel with all tiles in one grain, for one thread."""
    return replace(kernel, grain=max(kernel.tiles, 1))


def _nanoseconds(task: ScheduledTask) -> float:
    """Returns a lower bound on a task's time; infinite if it is unknown or the tiles depend on each other."""
    k, flops, moved = task.kernel, *(cast(Size | None, task.info.get(name)) for name in ("flops", "bytes"))
    if k is None or flops is None or moved is None or not is_known(flops, moved, k.tiles, k.phases) or k.phases != 1:
        return float("inf")
    return max(flops / FLOPS, moved / BYTES)
