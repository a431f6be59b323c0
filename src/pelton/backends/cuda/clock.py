"""Times kernels on a GPU: replays graphs of many launches, candidates in turns, with constants cold and all else
warm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.logs import Logger
from pelton.errors import EngineError

from .device import Device, Launch, Memory, KernelHangs

log = Logger("pelton.build")

SPAN_NS = 200_000  # of a replay: much longer than the launch of one
FIRST_TURNS, MAX_TURNS = 8, 50  # turns in a graph: the first, which determines the number; the maximum
PATIENCE = 60.0  # seconds for a replay; most need less than a thousandth
# after this many rounds, candidates this many times slower than the best drop out
DROPS = {1: 2.0, 3: 1.25}


@dataclass(frozen=True)
class TimedCandidate:
    """A candidate to time; `name` is for messages.

    `launches(turn)` returns the launches of one turn, in order. Each of the `turns` may read other copies of the same
    constants.
    """

    name: str
    launches: Callable[[int], Sequence[Launch]]
    turns: int = MAX_TURNS


def hang_error(name: str, e: KernelHangs) -> KernelHangs:
    """Returns the error for a kernel that does not end."""
    return KernelHangs(
        f"{name}: {e}. This is a fault of Pelton or of the GPU's software: please report it, and build the engine at a"
        " lower level"
    )


class Clock:
    """Times candidates on a GPU, on a stream of its own.

    Between two replays, the L2 cache is flushed by writing twice its size.
    """

    def __init__(self, device: Device):
        self.device = device
        with device:
            self.stream = device.stream()
            self._begin, self._end = device.event(timed=True), device.event(timed=True)
            self._swept: Memory = device.allocate(4 * device.l2, "timing kernels")

    def race(
        self, candidates: Sequence[TimedCandidate], rounds: int, deadline: float | None = None
    ) -> list[int | None]:
        """Returns the nanoseconds of one turn of each: the median of several replays; slow ones drop out after the
        first rounds. None for a kernel that does not launch, with the reason in the log. Raises EngineError if nothing
        runs any more, KernelHangs if a kernel does not end."""
        with self.device:
            graphs = {
                i: graph for i, candidate in enumerate(candidates) if (graph := self._graph(candidate)) is not None
            }
            times: dict[int, list[float]] = {i: [] for i in graphs}
            alive = list(graphs)
            for turn in range(1, rounds + 1):
                for i in alive:
                    ready, turns = graphs[i]
                    times[i].append(self._replayed(ready) / turns)
                if turn in DROPS:
                    limit = DROPS[turn] * min((statistics.median(times[i]) for i in alive), default=0.0)
                    alive = [i for i in alive if statistics.median(times[i]) <= limit]
                if deadline is not None and time.monotonic() > deadline:
                    break
        return [round(statistics.median(times[i])) if times.get(i) else None for i in range(len(candidates))]

    def _graph(self, candidate: TimedCandidate) -> tuple[Any, int] | None:
        """Returns (graph, turns in it) with enough turns to make it long enough; None if it does not run."""
        try:
            turns = min(candidate.turns, FIRST_TURNS)
            ready = self._turns(candidate, turns)
            self._replayed(ready)  # loads code and activations into caches
            wanted = max(1, min(candidate.turns, MAX_TURNS, round(turns * SPAN_NS / max(self._replayed(ready), 1.0))))
            return (ready, turns) if wanted == turns else (self._turns(candidate, wanted), wanted)
        except KernelHangs as e:
            raise hang_error(candidate.name, e) from None
        except EngineError as e:
            try:
                self.device.synchronize(self.stream.handle)
            except EngineError as lost:  # the GPU is lost
                raise EngineError(f"{candidate.name}: {lost}") from None
            log.warning("%s is not timed: %s", candidate.name, e)
            return None

    def _turns(self, candidate: TimedCandidate, turns: int) -> Any:
        """Returns a graph of turns, each launch after the one before it. Single launches would be timed with their
        overhead."""
        graph = self.device.graph()
        before: list[Any] = []
        for turn in range(turns):
            for launch in candidate.launches(turn):
                before = [self.device.add(graph, launch, before)]
        return self.device.instantiate(graph, self.stream.handle)

    def _replayed(self, ready: Any) -> float:
        """Returns the nanoseconds of a replay, after a copy that flushes the L2 cache and outlasts its launch."""
        half = self._swept.nbytes // 2
        self.device.copy(self._swept.address, self._swept.address + half, half, self.stream.handle)
        self.device.record(self._begin, self.stream.handle)
        self.device.replay(ready, self.stream.handle)
        self.device.record(self._end, self.stream.handle)
        self.device.finish(self._end, PATIENCE)
        return self.device.elapsed(self._begin, self._end)
