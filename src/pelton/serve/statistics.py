"""Counts and durations of a served model, as the protocol's extension "statistics" and the metrics report them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import Any

PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
# upper bounds of latency buckets, in seconds
BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Statistics:
    """Statistics of one version of a model since it was loaded. All times are nanoseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(PARTS, 0)
        self.ns = dict.fromkeys(PARTS, 0)
        self.rows = 0
        self.last = 0  # milliseconds since 1970 of the last request
        self.batches: dict[int, list[int]] = {}  # rows of a run → rows of its requests, and these times nanoseconds
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.faults: dict[str, int] = {}

    def succeeded(self, rows: int, total: int, queue: int, read: int, run: int, write: int) -> None:
        """Counts an answered request: its rows and the durations of its parts."""
        counts, times = self.counts, self.ns
        with self._lock:
            for part, ns in (
                ("success", total),
                ("queue", queue),
                ("compute_input", read),
                ("compute_infer", run),
                ("compute_output", write),
            ):
                counts[part] += 1
                times[part] += ns
            self.rows += rows
            self.last = time.time_ns() // 1_000_000
            self.buckets[bisect_left(BUCKETS, total / 1e9)] += 1

    def executed(self, rows: int, ns: int, batch: int | None = None) -> None:
        """Counts a request's part of a run of the engine: its rows, of the `batch` rows that ran together."""
        rows = max(rows, 1)
        with self._lock:
            part = self.batches.setdefault(batch or rows, [0, 0])
            part[0] += rows
            part[1] += rows * ns

    @property
    def executions(self) -> int:
        """The number of runs of the engine. A run with cancelled requests counts as one, too."""
        with self._lock:
            return self._count()

    def _count(self) -> int:
        return sum(runs for _, runs, _ in self._runs())

    def _runs(self) -> list[tuple[int, int, int]]:
        """Returns the rows of runs, in ascending order, with their number and their nanoseconds."""
        return [(batch, -(-rows // batch), ns // batch) for batch, (rows, ns) in sorted(self.batches.items())]

    def failed(self, fault: str, total: int) -> None:
        """Counts a rejected or failed request."""
        with self._lock:
            self.counts["fail"] += 1
            self.ns["fail"] += total
            self.faults[fault] = self.faults.get(fault, 0) + 1

    def cached(self, hit: bool, ns: int) -> None:
        """Counts a look into the response cache."""
        part = "cache_hit" if hit else "cache_miss"
        with self._lock:
            self.counts[part] += 1
            self.ns[part] += ns

    def report(self, name: str, version: str) -> dict[str, Any]:
        """Returns the statistics as the protocol has them."""
        with self._lock:
            return {
                "name": name,
                "version": version,
                "last_inference": self.last,
                "inference_count": self.rows,
                "execution_count": self._count(),
                "inference_stats": {p: {"count": self.counts[p], "ns": self.ns[p]} for p in PARTS},
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": rows,
                        "compute_input": {"count": runs, "ns": 0},
                        "compute_infer": {"count": runs, "ns": ns},
                        "compute_output": {"count": runs, "ns": 0},
                    }
                    for rows, runs, ns in self._runs()
                ],
                "memory_usage": [],
            }
