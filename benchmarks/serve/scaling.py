#!/usr/bin/env python3
"""Simulates N replicas behind a balancer, and writes a table of latencies.

    python -m benchmarks.serve.scaling [--page docs/scaling.md]

A discrete-event simulation with a fixed seed: requests arrive as a Poisson process at a share of what all replicas can
do, each is sent to a replica at random, or to the one with the shorter queue of two at random [Mitzenmacher 2001], and
is answered by it in the order of arrival, one at a time. The service time is one that was measured, with the spread
that was measured. A replica that starts takes the measured time to load an engine before its first answer.
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pelton.system import files

from .page import replace_part

BEGIN, END = "<!-- scaling: begin -->", "<!-- scaling: end -->"
MEASURED = Path(__file__).with_name("measured.json")
REPLICAS = (1, 10, 100, 1000)
LOADS = (0.5, 0.8, 0.95)
REQUESTS = 60_000  # at least; and so many for each replica:
EACH = 200
COLD_LOAD = 0.5
WARMUP = 0.2  # share of the requests that are not counted
SEED = 20


@dataclass(frozen=True)
class Service:
    """What was measured of one replica, in seconds: runs, and the start of a process until its first answer."""

    runs: tuple[float, ...]
    cold: float


def measured(path: Path = MEASURED) -> Service:
    """Reads what `--measure` wrote."""
    found = json.loads(path.read_text())
    return Service(tuple(found["runs_s"]), found["cold_start_s"])


def requests_for(replicas: int) -> int:
    """Returns the number of requests of a simulation."""
    return max(REQUESTS, EACH * replicas)


def simulate(
    service: Service, replicas: int, load: float, choices: int, seed: int = SEED, starting: float = 0.0
) -> np.ndarray:
    """Returns the latencies of requests in seconds, in the order of arrival.

    load: arrivals × mean service time / replicas. choices: replicas that the balancer compares for a request.
    starting: share of the replicas that are cold at time 0.
    """
    rng = np.random.default_rng(seed)
    requests = requests_for(replicas)
    times = rng.choice(np.asarray(service.runs), requests)
    mean = float(np.mean(service.runs))
    arrivals = np.cumsum(rng.exponential(mean / (load * replicas), requests))
    chosen = rng.integers(0, replicas, (requests, choices))
    free = np.zeros(replicas)  # when each replica has answered what it has
    free[: round(starting * replicas)] = service.cold
    waiting = np.zeros(replicas, np.int64)
    over: list[tuple[float, int]] = []  # heap: end of a request, its replica
    latencies = np.empty(requests)
    for i, (now, took) in enumerate(zip(arrivals.tolist(), times.tolist())):
        while over and over[0][0] <= now:
            waiting[heapq.heappop(over)[1]] -= 1
        options = chosen[i]
        replica = int(options[np.argmin(waiting[options])])
        end = max(now, free[replica]) + took
        free[replica] = end
        waiting[replica] += 1
        heapq.heappush(over, (end, replica))
        latencies[i] = end - now
    return latencies


def table(service: Service) -> list[str]:
    """Returns the lines of the table: latencies by replicas, load and balancer."""
    mean = float(np.mean(service.runs))
    lines = [
        f"Service time on one thread {mean * 1e3:.2f} ms (mean of {len(service.runs)} measured runs), first answer of a"
        f" new process after {service.cold:.2f} s; {REQUESTS:,} requests or more per row, seed {SEED}.",
        "",
        "| replicas | load | requests a second | random: p50, p99 ms | two choices: p50, p99 ms |",
        "|--:|--:|--:|--:|--:|",
    ]
    for replicas in REPLICAS:
        for load in LOADS:
            cells = []
            for choices in (1, 2):
                counted = simulate(service, replicas, load, choices)
                counted = counted[int(WARMUP * len(counted)) :]
                p50, p99 = np.percentile(counted, [50, 99]) * 1e3
                cells.append(f"{p50:.1f}, {p99:.1f}")
            rate = load * replicas / mean
            lines.append(f"| {replicas} | {load:.2f} | {rate:,.0f} | {cells[0]} | {cells[1]} |")
    return lines + ["", *cold_starts(service)]


def cold_starts(service: Service) -> list[str]:
    """Returns the lines of the table of latencies while replicas start."""
    lines = [
        "| of 100 replicas, cold at the start | p99 ms of the first second, random | two choices |",
        "|--:|--:|--:|",
    ]
    for share in (0.0, 0.1, 0.5):
        cells = []
        for choices in (1, 2):
            latencies = simulate(service, 100, COLD_LOAD, choices, starting=share)
            first = latencies[: round(COLD_LOAD * 100 / float(np.mean(service.runs)))]
            cells.append(f"{np.percentile(first, 99) * 1e3:.1f}")
        lines.append(f"| {share:.0%} | {cells[0]} | {cells[1]} |")
    return lines


def measure(path: Path, runs: int = 400) -> None:
    """Times ResNet-20 on one thread, one image a run, and the start of a process that loads it; writes both."""
    import subprocess
    import sys
    import tempfile
    import time

    import pelton
    from pelton.backends.arrays import random_inputs

    model = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engine.pelton"
        pelton.build(model, {"image": "1..8..32x3x32x32"}, level=1, threads=1).save(file)
        context = pelton.load(file).context(1)
        inputs = random_inputs(context.engine.ports({s.name: 1 for s in context.engine.symbols}))
        seconds = []
        for _ in range(runs + 10):
            start = time.thread_time()  # of this thread, which runs it: neighbours on the machine do not count
            context.run(inputs)
            seconds.append(time.thread_time() - start)
        code = f"import pelton; pelton.load({str(file)!r}).context(1).warmup()"
        starts = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            starts.append(time.perf_counter() - start)
    kept = [round(s, 6) for s in seconds[10:]]
    files.write(
        path, [json.dumps({"runs_s": kept, "cold_start_s": round(float(np.median(starts)), 4)}).encode() + b"\n"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="write the table between the marks of this page")
    parser.add_argument("--measure", action="store_true", help=f"measure service times first; writes {MEASURED.name}")
    args = parser.parse_args()
    if args.measure:
        measure(MEASURED)
    lines = table(measured())
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, ["", *lines, ""])


if __name__ == "__main__":
    main()
