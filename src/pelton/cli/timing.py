"""Times repeated runs, and formats the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (90, 95, 99)
PARTS = 5  # consecutive parts of a measurement, whose medians should agree
NOISY = 1.2  # spread (a ratio of times) from which on the machine's noise dominates a measurement


@dataclass(frozen=True)
class Times:
    """Nanoseconds of runs, in the order of their ends; `batch` items in each. `elapsed`: nanoseconds from the first
    begin to the last end, of overlapping runs; others are sequential."""

    ns: np.ndarray
    batch: int = 1
    elapsed: int | None = None

    @property
    def throughput(self) -> float:
        """Items per second."""
        return self.batch * len(self.ns) / ((self.elapsed or float(self.ns.sum())) / 1e9)

    @property
    def spread(self) -> float:
        """Unsteadiness of the machine: the median of the slowest fifth divided by that of the fastest, or the mean of
        all runs divided by their median, whichever is larger."""
        medians = [float(np.median(part)) for part in np.array_split(self.ns, min(PARTS, len(self.ns)))]
        return max(max(medians) / min(medians), float(self.ns.mean()) / float(np.median(self.ns)))

    def latency(self, percentiles: Sequence[float] = PERCENTILES) -> dict[str, float]:
        """Returns milliseconds: min, mean, median, and percentiles under names such as p90 and p99.9."""
        ms = self.ns / 1e6
        return {
            "min": float(ms.min()),
            "mean": float(ms.mean()),
            "median": float(np.median(ms)),
            **{f"p{q:g}": float(np.percentile(ms, q)) for q in percentiles},
        }

    def lines(self, percentiles: Sequence[float] = PERCENTILES) -> list[str]:
        each = f", {self.throughput:.1f} inputs in batches of {self.batch}" if self.batch > 1 else ""
        latency = self.latency(percentiles)
        unit, factor = ("ms", 1.0) if latency["median"] >= 1 else ("µs", 1e3)
        lines = [
            f"throughput  {self.throughput / self.batch:.1f} runs per second{each}",
            f"latency {unit}  "
            + "  ".join(f"{name} {factor * value:.3f}" for name, value in latency.items())
            + f"  over {len(self.ns)} runs",
        ]
        return lines + ([noise("the time of a run", self.spread)] if self.spread > NOISY else [])


def of_streams(spans: Iterable[tuple[int, int]], start: int, end: int | None) -> Times:
    """Returns the times of overlapping runs, given as nanoseconds of begin and end. Runs that end after `end`, when
    some streams are idle, do not count, unless there are no others."""
    ended = sorted((e, b) for b, e in spans)
    counted = [(e, b) for e, b in ended if end is None or e <= end] or ended[:1]
    return Times(np.array([e - b for e, b in counted]), elapsed=counted[-1][0] - start)


def noise(what: str, spread: float) -> str:
    """Returns the warning about a noisy measurement."""
    return (
        f"unreliable: {what} varied {spread:.2f}× (a busy machine, or a changing clock). Retry on an idle machine, or"
        " with more --seconds"
    )


def measure(
    run: Callable[[], object], seconds: float, warmup: float, minimum: int = 5, iterations: int | None = None
) -> np.ndarray:
    """Returns the nanoseconds of each run during `seconds` (at least `minimum` runs), or of a number of runs, after
    `warmup` seconds of untimed ones."""
    clock = time.perf_counter_ns
    end = clock() + int(warmup * 1e9)
    run()
    while clock() < end:
        run()
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while len(times) < iterations if iterations else len(times) < minimum or clock() < end:
        start = clock()
        run()
        times.append(clock() - start)
    return np.array(times)
