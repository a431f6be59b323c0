"""Steps that are over before another thread has heard of them: one thread runs them, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from pelton.engine.times import BYTES, FLOPS
from pelton.ir.dims import Size, is_known

from .lower import ScheduledTask

# Nanoseconds of a wave, by the estimate below, up to which threads do not share it. On two Zen 4 cores a wave that is
# shared costs 0.1 to 0.3 µs: wake words of 23 steps take 4.5 µs by one thread, 5.3 µs by two.
BRIEF = 600


def serialized(scheduled: Sequence[ScheduledTask]) -> list[ScheduledTask]:
    """The same tasks, of kernels for CPUs; those of a brief wave in waves of their own, each by one thread."""
    found, wave = list(scheduled), 0
    order = sorted(range(len(found)), key=lambda i: found[i].wave)
    for _, group in groupby(order, lambda i: scheduled[i].wave):
        tasks = list(group)
        alone = sum(_nanoseconds(found[i]) for i in tasks) <= BRIEF
        for i in tasks:
            kernel = found[i].kernel
            found[i] = replace(found[i], wave=wave, kernel=_whole(kernel) if alone else kernel)
            wave += alone
        wave += not alone
    return found


def _whole(kernel: Any) -> Any:
    """A kernel whose tiles one thread takes all at once."""
    return replace(kernel, grain=max(kernel.tiles, 1))


def _nanoseconds(task: ScheduledTask) -> float:
    """What a task takes at least; no end to it where that is not known, or where its tiles are not independent."""
    k, flops, moved = task.kernel, *(cast(Size | None, task.info.get(name)) for name in ("flops", "bytes"))
    if k is None or flops is None or moved is None or not is_known(flops, moved, k.tiles, k.phases) or k.phases != 1:
        return float("inf")
    return max(flops / FLOPS, moved / BYTES)
