"""Concurrent runs in several streams, as in servers: inputs per second, and the best split of the CPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pelton.backends.cpu import default_threads

from . import text, timing

if TYPE_CHECKING:
    from pelton.runtime import Engine
    from pelton.runtime.queue import AsyncQueue, AsyncRun

TRIAL = 0.5  # seconds of a trial of each split
ON_GPU = (1, 2, 4)  # tried numbers of streams


class Split(NamedTuple):
    """Concurrent streams, and the threads of each; none on a GPU."""

    streams: int
    threads: int | None

    def __str__(self) -> str:
        of = f" of {text.count(self.threads, 'thread')}" if self.threads else ""
        return text.count(self.streams, "stream") + of


@dataclass(frozen=True)
class Tried:
    """A split and its runs per second in a short trial."""

    split: Split
    rate: float

    def json(self) -> dict[str, Any]:
        return {**self.split._asdict(), "runs_per_second": self.rate}


def splits(streams: int | None, threads: int | None, gpu: bool = False) -> list[Split]:
    """Returns the splits to try: the given one, in whole or in part, or all that use every CPU once."""
    if gpu:
        return [Split(s, None) for s in ((streams,) if streams else ON_GPU)]
    cpus = default_threads()
    if streams or threads:
        return [Split(streams or max(1, cpus // (threads or 1)), threads or max(1, cpus // (streams or 1)))]
    return [Split(s, cpus // s) for s in range(1, cpus + 1) if cpus % s == 0]


def best_split(
    engine: Engine, feeds: Mapping[str, np.ndarray], candidates: Sequence[Split], seconds: float = TRIAL
) -> tuple[Split, list[Tried]]:
    """Returns the split with the highest throughput, and the trials: none if there is no choice."""
    if len(candidates) == 1:
        return candidates[0], []
    tried = [Tried(s, measure(engine, feeds, s, seconds, seconds / 4).throughput) for s in candidates]
    return max(tried, key=lambda t: t.rate).split, tried


def measure(
    engine: Engine,
    feeds: Mapping[str, np.ndarray],
    split: Split,
    seconds: float,
    warmup: float,
    iterations: int | None = None,
) -> timing.Times:
    """Times runs while all streams are busy: for `seconds`, or `iterations` runs in total, after `warmup` seconds.

    A run begins when it is submitted to a free stream, and ends when its outputs exist.
    """
    from pelton.runtime.queue import AsyncQueue

    with AsyncQueue(engine, split.streams, split.threads) as queue:
        _keep_busy(queue, feeds, warmup, None)
        return _keep_busy(queue, feeds, seconds, iterations)


def _keep_busy(
    queue: AsyncQueue, feeds: Mapping[str, np.ndarray], seconds: float, iterations: int | None
) -> timing.Times:
    clock, spans = time.perf_counter_ns, list[tuple[int, int]]()
    start = clock()
    end = start + int(seconds * 1e9)
    begun = len(queue) if iterations is None else min(len(queue), iterations)
    tickets = iter(range(begun, iterations or 0))  # of runs still to begin

    def again(run: AsyncRun, began: int) -> None:
        """Starts a stream's next run on its own thread, which then waits for no other thread."""
        run.result()
        now = clock()
        spans.append((began, now))
        if now < end if iterations is None else next(tickets, None) is not None:
            queue.run_async(feeds, clock(), share_inputs=True)

    queue.set_callback(again)
    for _ in range(begun):
        queue.run_async(feeds, clock(), share_inputs=True)
    queue.wait_all()
    return timing.of_streams(spans, start, None if iterations else end)
