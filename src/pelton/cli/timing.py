"""Times repeated runs, and formats what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PERCENTILES = (90, 95, 99)
PARTS = 5  # consecutive parts of a measurement, whose medians should agree
NOISY = 1.2  # spread (a ratio of times) from which on a measurement says more about the machine than about the run


@dataclass(frozen=True)
class Times:
    """Nanoseconds of runs, one after another; `batch` items in each."""

    ns: np.ndarray
    batch: int = 1

    @property
    def throughput(self) -> float:
        """Items per second."""
        return self.batch * len(self.ns) / (float(self.ns.sum()) / 1e9)

    @property
    def spread(self) -> float:
        """How unsteady the machine was: the median of the slowest fifth over that of the fastest, or the mean over the
        median of all runs, whichever is larger."""
        medians = [float(np.median(part)) for part in np.array_split(self.ns, min(PARTS, len(self.ns)))]
        return max(max(medians) / min(medians), float(self.ns.mean()) / float(np.median(self.ns)))

    def latency(self) -> dict[str, float]:
        """Milliseconds: min, mean, median, p90, p95, p99."""
        ms = self.ns / 1e6
        return {
            "min": float(ms.min()),
            "mean": float(ms.mean()),
            "median": float(np.median(ms)),
            **{f"p{q}": float(np.percentile(ms, q)) for q in PERCENTILES},
        }

    def lines(self) -> list[str]:
        each = f", {self.throughput:.1f} inputs in batches of {self.batch}" if self.batch > 1 else ""
        lines = [
            f"throughput  {self.throughput / self.batch:.1f} runs per second{each}",
            "latency ms  "
            + "  ".join(f"{name} {value:.3f}" for name, value in self.latency().items())
            + f"  over {len(self.ns)} runs",
        ]
        return lines + ([noise("the time of a run", self.spread)] if self.spread > NOISY else [])


def noise(what: str, spread: float) -> str:
    """The warning about a noisy measurement."""
    return (
        f"too noisy to mean much: {what} varied by a factor of {spread:.2f} (others use the machine, or its clock"
        " changes); wait for quiet, or give more --seconds"
    )


def measure(run: Callable[[], object], seconds: float, warmup: float, minimum: int = 5) -> np.ndarray:
    """Nanoseconds of each run during `seconds` (at least `minimum` runs), after `warmup` seconds of untimed runs."""
    clock = time.perf_counter_ns
    end = clock() + int(warmup * 1e9)
    run()
    while clock() < end:
        run()
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while len(times) < minimum or clock() < end:
        start = clock()
        run()
        times.append(clock() - start)
    return np.array(times)
