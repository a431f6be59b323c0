"""How long runs take: a loop with a clock, and what is said of its times."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PERCENTILES = (90, 95, 99)


@dataclass(frozen=True)
class Times:
    """Nanoseconds of runs, one after another; `batch` items in each."""

    ns: np.ndarray
    batch: int = 1

    @property
    def throughput(self) -> float:
        """Items per second."""
        return self.batch * len(self.ns) / (float(self.ns.sum()) / 1e9)

    def latency(self) -> dict[str, float]:
        """Milliseconds: min, mean, median, p90, p95, p99."""
        ms = self.ns / 1e6
        return {"min": float(ms.min()), "mean": float(ms.mean()), "median": float(np.median(ms)),
                **{f"p{q}": float(np.percentile(ms, q)) for q in PERCENTILES}}

    def lines(self) -> list[str]:
        return [f"throughput  {self.throughput:.1f} per second" + (f" (batches of {self.batch})" if self.batch > 1 else ""),
                "latency ms  " + "  ".join(f"{name} {value:.3f}" for name, value in self.latency().items()) + f"  over {len(self.ns)} runs"]


def measure(run: Callable[[], object], seconds: float, warmup: float, least: int = 5) -> np.ndarray:
    """Nanoseconds of each run during `seconds` (at least `least` runs), after `warmup` seconds of runs that do not count."""
    clock = time.perf_counter_ns
    end = clock() + int(warmup * 1e9)
    run()
    while clock() < end:
        run()
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while len(times) < least or clock() < end:
        start = clock()
        run()
        times.append(clock() - start)
    return np.array(times)
