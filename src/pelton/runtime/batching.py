"""The schedule of an asynchronous queue: waiting runs by priority, batches of them, deadlines and early refusals."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import DeadlineError, InputError, QueueFullError

from .context import Context, zeros

if TYPE_CHECKING:
    from .async_run import AsyncRun

MOST_ROWS = 1 << 16
FLAT = 0.25  # of a single row's time that a batch may take longer and still not be made smaller
SAFE = 0.95  # of the objective within which an accepted run is expected to be over
MARGIN = 0.8  # of the time for a run that the first batches may take
RECENT = 0.2  # weight of the latest run in averages


@dataclass(frozen=True)
class Batching:
    """Dynamic batching: waiting runs of an `AsyncQueue` are joined along the batch axis, the first axis of every input
    and output, and run as one.

    max_batch: most rows of a run, 1 to 65536. delay: seconds that a batch which is not full waits for more rows.
    slo: seconds from the start of a run to its result. The rows of a batch are then adapted so that it runs within half
        of that: a run that arrives waits for one batch and is part of the next. Its time in the queue does not count,
        since smaller batches would lengthen it. None: batches of up to max_batch.
    preferred: numbers of rows that are sent without waiting for `delay`.
    Raises InputError for other values.
    """

    max_batch: int
    delay: float = 0.0
    slo: float | None = None
    preferred: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.max_batch, bool) or not isinstance(self.max_batch, int):
            raise InputError(f"max_batch is an integer, got {self.max_batch!r}")
        if not 1 <= self.max_batch <= MOST_ROWS:
            raise InputError(f"max_batch is 1 to {MOST_ROWS}, got {self.max_batch}")
        check_seconds(self.delay, "delay", minimum=0.0)
        if self.slo is not None:
            check_seconds(self.slo, "slo")


def check_seconds(value: Any, what: str, minimum: float | None = None) -> None:
    """Raises InputError unless `value` is a number of seconds: above 0, or at least `minimum`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (value <= 0 if minimum is None else value < minimum):
        raise InputError(
            f"{what} is a number of seconds, {'above 0' if minimum is None else '0 or more'}, got {value!r}"
        )


class RunEstimate:
    """Recent seconds of a run: an average and its deviation, as TCP estimates round trips (RFC 6298)."""

    def __init__(self) -> None:
        self.mean: float | None = None
        self.deviation = 0.0

    def add(self, seconds: float) -> None:
        """Adds the time of a run."""
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 10
        else:
            self.deviation += RECENT * (abs(seconds - self.mean) - self.deviation)
            self.mean += RECENT * (seconds - self.mean)

    @property
    def high(self) -> float:
        """A time that few runs exceed; 0 before the first."""
        return 0.0 if self.mean is None else self.mean + 2 * self.deviation


class Schedule:
    """The waiting runs of a queue. Its condition guards everything in it.

    jobs: threads that take runs. bound: most waiting rows, None for any. slo: seconds from the start of a run to its
    result, None without.
    """

    def __init__(self, jobs: int, batching: Batching | None, bound: int | None, slo: float | None):
        self.jobs, self.batching, self.bound, self.slo = jobs, batching, bound, slo
        self.changed = threading.Condition()
        self.closed = False
        self.rows = self.idle = 0  # waiting rows, waiting threads
        self.estimate = RunEstimate()
        self.counts = dict.fromkeys(("runs", "executions", "rows", "refused", "expired", "cancelled"), 0)
        self.histogram: dict[int, int] = {}  # rows of an execution → executions
        self.limit = float(batching.max_batch if batching is not None else 1)
        self.floor = 1.0  # rows below which a batch is hardly faster
        self.over: list[tuple[AsyncRun, DeadlineError | None]] = []  # expired or cancelled, for a thread to finish
        self._number = 0
        self._order: list[tuple[int, int, AsyncRun]] = []  # heap: priority, number; taken runs stay until they are met
        self._alike: dict[Hashable, dict[int, deque[AsyncRun]]] = {}  # what can be joined → priority → runs

    # arrival

    def add(self, run: AsyncRun) -> None:
        """Adds a run. Raises QueueFullError at the bound, and if it could not be over in time; the caller holds the
        condition."""
        rows = run.rows
        if self.bound is not None and self.rows + rows > self.bound and self.rows:
            raise self._refusal(f"the queue is full: {self.rows} rows wait, {self.bound} may")
        self._refuse_late(run)
        self._number += 1
        heapq.heappush(self._order, (run.priority, self._number, run))
        if run.key is not None:
            self._alike.setdefault(run.key, {}).setdefault(run.priority, deque()).append(run)
        self.rows += rows
        self.counts["runs"] += 1
        self.changed.notify()

    def _refuse_late(self, run: AsyncRun) -> None:
        """Raises QueueFullError if a run would be late behind the rows that wait already."""
        if run.timeout is None and self.slo is None:
            return
        per_wave = self.jobs * max(1.0, self.limit)
        # the runs under way end within one more, then those ahead, and those that start with this one
        ahead = math.ceil((self.rows + run.rows) / per_wave) - 1
        mean, high = self.estimate.mean or 0.0, self.estimate.high
        wait = ahead * mean + (0.0 if self.idle else mean)
        if run.timeout is not None and wait > run.timeout:
            raise self._refusal(f"a run would wait {wait * 1e3:.0f} ms, longer than its timeout")
        if self.slo is not None and wait and wait + high > SAFE * self.slo:
            raise self._refusal(f"a run would take {(wait + high) * 1e3:.0f} ms, longer than {self.slo * 1e3:.0f} ms")

    def expect(self, seconds: Mapping[int, float]) -> None:
        """Starts from measured times of runs, by rows: the largest batch that keeps the objective, and its time."""
        rows = sorted(seconds)
        first, last = rows[0], rows[-1]
        slope = (seconds[last] - seconds[first]) / (last - first) if last > first else 0.0
        if self.batching is not None and self.batching.slo is not None and slope > 0:
            fits = first + (MARGIN * self.batching.slo / 2 - seconds[first]) / slope
            self.floor = min(float(self.batching.max_batch), max(1.0, first + FLAT * seconds[first] / slope))
            self.limit = max(self.floor, min(float(self.batching.max_batch), fits))
        self.estimate.add(seconds[first] + max(0.0, slope) * (self.limit - first))

    def _refusal(self, text: str) -> QueueFullError:
        self.counts["refused"] += 1
        return QueueFullError(f"{text}; try again later", max(0.001, self.estimate.high))

    # departure

    def take(self) -> list[AsyncRun] | None:
        """Waits for runs and takes those of one execution; None once the queue is closed and empty. Cancelled runs are
        dropped on the way, expired ones put to `over`: the list is then empty if there is nothing else."""
        with self.changed:
            while True:
                first = self._first()
                if first is not None:
                    batch = self._joined(first)
                    if batch is not None:
                        return batch
                elif self.over:
                    return []
                elif self.closed:
                    return None
                else:
                    self.idle += 1
                    self.changed.wait()
                    self.idle -= 1

    def _first(self) -> AsyncRun | None:
        """Returns the run that is next, without taking it."""
        while self._order:
            run = self._order[0][2]
            if run.taken or not self._alive(run):
                heapq.heappop(self._order)
            else:
                return run
        return None

    def _alive(self, run: AsyncRun) -> bool:
        """Returns False for a cancelled run, and for an expired one, which fails."""
        if run.cancelled():
            return False
        now = time.monotonic_ns()
        late = run.timeout is not None and now > run.queued_ns + run.timeout * 1e9
        if self.slo is not None and not late:
            mean = self.estimate.mean or 0.0
            late = now + mean * 1e9 > run.queued_ns + self.slo * 1e9
        if not late:
            return True
        self._claim(run)
        self.counts["expired"] += 1
        waited = (now - run.queued_ns) / 1e6
        error = DeadlineError(f"the run waited {waited:.0f} ms in the queue and can no longer be over in time")
        self.over.append((run, error))
        return False

    def _joined(self, first: AsyncRun) -> list[AsyncRun] | None:
        """Takes a run and those that are joined to it; None if it is to wait for more rows."""
        if first.key is None or self.batching is None:
            self._claim(first)
            return [first]
        limit = max(1, int(self.limit))
        levels = self._alike.get(first.key, {})
        if self.batching.delay and self._waits(first, levels, limit):
            return None
        # what waits is divided among the threads that have nothing to do
        limit = min(limit, max(first.rows, -(-self.rows // (1 + self.idle))))
        batch, rows = [first], first.rows
        self._claim(first)
        for priority in sorted(levels):
            runs = levels[priority]
            while runs and rows < limit:
                run = runs[0]
                if run.taken or not self._alive(run):
                    runs.popleft()
                elif rows + run.rows > limit:
                    break
                else:
                    self._claim(runs.popleft())
                    batch.append(run)
                    rows += run.rows
        for priority in [p for p, runs in levels.items() if not any(not r.taken for r in runs)]:
            del levels[priority]
        if not levels:
            self._alike.pop(first.key, None)
        return batch

    def _waits(self, first: AsyncRun, levels: Mapping[int, deque[AsyncRun]], limit: int) -> bool:
        """Waits once for more rows if a batch is not full and its first run not old. Returns True after a wait."""
        assert self.batching is not None
        rows = sum(r.rows for runs in levels.values() for r in runs if not r.taken)
        left = first.queued_ns / 1e9 + self.batching.delay - time.monotonic()
        if self.closed or left <= 0 or rows >= limit or rows in self.batching.preferred:
            return False
        self.changed.wait(left)
        return True

    def _claim(self, run: AsyncRun) -> None:
        run.taken = True
        self.rows -= run.rows

    def cancel(self, run: AsyncRun) -> None:
        """Frees the place of a cancelled run."""
        with self.changed:
            if not run.taken:
                self._claim(run)
                self.counts["cancelled"] += 1
            self.over.append((run, None))
            self.changed.notify()

    # results

    def executed(self, rows: int, seconds: float) -> None:
        """Learns from an execution: counts it, and adapts the rows of batches to the objective."""
        with self.changed:
            self.counts["executions"] += 1
            self.counts["rows"] += rows
            self.histogram[rows] = self.histogram.get(rows, 0) + 1
            self.estimate.add(seconds)
            if self.batching is None or self.batching.slo is None:
                return
            assert self.estimate.mean is not None
            if self.estimate.high > self.batching.slo / 2:
                self.limit = max(self.floor, min(self.limit, max(rows, self.floor)) * 0.9)
                self.estimate.mean *= 0.9  # the next, smaller batch is expected to be faster
            elif rows + 1 > self.limit:
                self.limit = min(float(self.batching.max_batch), self.limit + 1)

    def close(self) -> None:
        """Lets the threads end once nothing waits."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def batch_axis(engine: Any) -> str:
    """Returns the dynamic dimension that counts the rows of a batch: the first of all inputs and outputs.

    Raises InputError, with the reason, for an engine without one.
    """
    if getattr(engine, "forms", None):
        raise InputError("batching needs arrays; this engine takes or returns sequences or optionals")
    if engine.state_outputs:
        raise InputError("batching needs independent runs; this engine keeps state between runs")
    firsts = {p.name: p.shape[0] if p.shape else None for p in (*engine.inputs, *engine.outputs)}
    names = set(firsts.values())
    axis = next(iter(names)) if len(names) == 1 else None
    if isinstance(axis, str) and any(s.name == axis for s in engine.symbols):
        return axis
    sides = ", ".join(f"{name}: {first if first is not None else 'none'}" for name, first in firsts.items())
    raise InputError(
        f"batching needs one dynamic dimension that is the first of all inputs and outputs; here these are {sides}."
        " Build the engine with shapes such as x=1..8..32x3x224x224"
    )


class Joint:
    """Joins the inputs of runs and splits their outputs; one for each job, whose buffers it reuses."""

    def __init__(self, engine: Any, most: int):
        self.types = {p.name: p.numpy_dtype for p in engine.inputs}
        self.most = most
        self._key: Hashable = None
        self._buffers: dict[str, np.ndarray] = {}

    def join(self, batch: list[AsyncRun]) -> dict[str, Any]:
        """Returns the inputs of all runs, one below the other, in buffers that the next batch overwrites."""
        if batch[0].key != self._key:
            first = batch[0].inputs
            self._buffers = {n: np.empty((self.most, *first[n].shape[1:]), t) for n, t in self.types.items()}
            self._key = batch[0].key
        at = 0
        for run in batch:
            for name, buffer in self._buffers.items():
                buffer[at : at + run.rows] = run.inputs[name]
            at += run.rows
        return {name: buffer[:at] for name, buffer in self._buffers.items()}

    @staticmethod
    def split(batch: list[AsyncRun], outputs: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Returns the rows of each run, as views of the batch's outputs."""
        results, at = [], 0
        for run in batch:
            results.append({name: array[at : at + run.rows] for name, array in outputs.items()})
            at += run.rows
        return results


def likeness(inputs: Any, types: Mapping[str, np.dtype], most: int) -> tuple[Hashable, int]:
    """Returns what runs must have in common to be joined, and the rows of this one.

    (None, 1) for a run that is executed alone: its arrays are not numpy's, do not fit, or have too many rows.
    """
    if type(inputs) is not dict or inputs.keys() != types.keys():
        return None, 1
    rows, rest = None, []
    for name, dtype in types.items():
        array = inputs[name]
        if type(array) is not np.ndarray or array.dtype != dtype or not array.ndim:
            return None, 1
        if rows is None:
            rows = array.shape[0]
        if array.shape[0] != rows or not 0 < rows <= most:
            return None, 1
        rest.append(array.shape[1:])
    return (tuple(rest), rows) if rows is not None else (None, 1)


def limited(engine: Any, batching: Batching | None) -> Batching | None:
    """Returns the batching with batches that the engine accepts. Raises InputError if it accepts none."""
    if batching is None:
        return None
    if not isinstance(batching, Batching):
        raise InputError(f"batching is a pelton.Batching, got {batching!r}")
    axis = batch_axis(engine)
    most = next(s.maximum for s in engine.symbols if s.name == axis)
    return replace(batching, max_batch=min(batching.max_batch, most))


def measured(engine: Any, context: Context, batching: Batching | None) -> dict[int, float]:
    """Times runs on zeros, by their rows: of one row and of the largest batch; without batching, of the optimum."""
    sizes: dict[int, dict[str, int]] = {1: {}}
    if batching is not None:
        axis = batch_axis(engine)
        least = next(s.minimum for s in engine.symbols if s.name == axis)
        sizes = {rows: {axis: rows} for rows in sorted({least, batching.max_batch})}
    seconds = {}
    for rows, values in sizes.items():
        inputs = zeros(engine.ports(values))
        times = []
        for _ in range(4):  # the first lays out memory
            start = time.perf_counter()
            context.run(inputs)
            times.append(time.perf_counter() - start)
        seconds[rows] = sorted(times[1:])[1]
    return seconds
