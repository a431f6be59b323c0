#!/usr/bin/env python3
"""Measures dynamic batching and overload of `pelton.AsyncQueue`, in process, and writes a table.

    python -m benchmarks.serve.batching [--rounds 3] [--seconds 3] [--page benchmarks/serve/results.md]

Batching: an MLP with 50 MB of weights, 64 clients that each wait for their answer before they ask again; without
batches, and with several kinds of them, in turns. Overload: an engine of some 20 ms a run, asked for ten times as many
runs a second as it is able to make; accepted runs are answered within the objective, others are rejected at once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

import pelton
from pelton.backends.arrays import random_inputs

from . import requests
from .page import replace_part

CLIENTS = 64
OVERLOAD = 10
BEGIN, END = "<!-- batching: begin -->", "<!-- batching: end -->"


def mlp() -> pelton.Engine:
    """Builds an MLP of 12.6 million weights for 1 to 64 rows."""
    rng = np.random.default_rng(0)
    network = pelton.Network("mlp")
    y = x = network.input("x", "f32[batch=1..32..64, 1024]")
    for shape in ((3072, 1024), (3072, 3072)):
        y = network.relu(network.linear(y, rng.standard_normal(shape).astype(np.float32) / 50))
    network.output(network.linear(y, rng.standard_normal((10, 3072)).astype(np.float32)), "y")
    assert x is not y
    return pelton.build(network, level=3, threads=1)


def slow(seconds: float) -> pelton.Engine:
    """Builds a chain of convolutions, as many as take the time of a run on one thread."""

    def chain(layers: int) -> pelton.Engine:
        rng = np.random.default_rng(0)
        network = pelton.Network("slow")
        y = network.input("x", "f32[1, 128, 28, 28]")
        for _ in range(layers):
            y = network.relu(
                network.convolution(y, rng.standard_normal((128, 128, 3, 3)).astype(np.float32) / 34, padding=1)
            )
        network.output(network.global_average_pool(y), "y")
        return pelton.build(network, level=0, threads=1)

    few = 8
    engine = chain(few)
    context, inputs = engine.context(1), random_inputs(engine.ports())
    times = []
    for _ in range(20):
        start = time.perf_counter()
        context.run(inputs)
        times.append(time.perf_counter() - start)
    return chain(max(1, round(few * seconds / float(np.median(times)))))


def closed(queue: pelton.AsyncQueue, inputs: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Keeps a run under way for each of the inputs; returns runs a second and latencies in milliseconds. A client that
    is rejected asks again after 5 ms."""
    latencies: list[float] = []
    rejected: SimpleQueue[dict[str, Any]] = SimpleQueue()
    refused = 0
    begin = time.perf_counter()

    def ask(own: dict[str, Any]) -> None:
        start = time.perf_counter()
        if start - begin > seconds:
            return
        try:
            run = queue.run_async(own, share_inputs=True)
        except pelton.QueueFullError:
            rejected.put(own)
        else:
            run.add_done_callback(lambda run: answered(run, own, start))

    def answered(run: pelton.AsyncRun, own: dict[str, Any], start: float) -> None:
        if run.exception() is None:
            latencies.append(time.perf_counter() - start)
            ask(own)
        else:
            rejected.put(own)

    for own in inputs:
        ask(own)
    while time.perf_counter() - begin < seconds:
        time.sleep(0.005)
        for _ in range(rejected.qsize()):
            refused += 1
            ask(rejected.get())
    elapsed = time.perf_counter() - begin
    return {**summary(latencies, elapsed), "refused": refused / elapsed}


def flooded(queue: pelton.AsyncQueue, inputs: dict[str, Any], rate: float, seconds: float) -> dict[str, float]:
    """Starts `rate` runs a second, whether or not they are answered."""
    latencies: list[float] = []
    refused = late = 0

    def over(run: pelton.AsyncRun, start: float) -> None:
        nonlocal late
        if run.exception() is None:
            latencies.append(time.perf_counter() - start)
        else:
            late += 1

    begin, started = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begin) < seconds:
        while started < elapsed * rate:
            started += 1
            start = time.perf_counter()
            try:
                run = queue.run_async(inputs, share_inputs=True)
            except pelton.QueueFullError:
                refused += 1
                continue
            run.add_done_callback(lambda run, start=start: over(run, start))  # type: ignore[misc]
        time.sleep(0.001)
    elapsed = time.perf_counter() - begin
    while queue.waiting:
        time.sleep(0.01)
    return {**summary(latencies, elapsed), "refused": refused / elapsed, "late": late / elapsed}


def summary(latencies: list[float], elapsed: float) -> dict[str, float]:
    """Returns runs a second, and the median and 99th percentile of their latencies in milliseconds."""
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3 if latencies else (float("nan"),) * 2
    return {"runs": len(latencies) / elapsed, "p50": float(p50), "p99": float(p99)}


def in_turns(modes: dict[str, Callable[[], dict[str, float]]], rounds: int) -> dict[str, dict[str, float]]:
    """Measures all modes, round after round; returns medians."""
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, measure in modes.items():
            results[mode].append(measure())
            print(mode, {k: round(v, 1) for k, v in results[mode][-1].items()}, flush=True)
    return {m: {k: float(np.median([r[k] for r in rows])) for k in rows[0]} for m, rows in results.items()}


def batching(rounds: int, seconds: float) -> list[str]:
    """Measures batching; returns the lines of a table."""
    engine, rng = mlp(), np.random.default_rng(1)
    inputs = [{"x": rng.standard_normal((1, 1024)).astype(np.float32)} for _ in range(CLIENTS)]
    kinds = {
        "no batches": None,
        "batches of up to 64": pelton.Batching(64),
        "objective 20 ms": pelton.Batching(64, slo=0.020),
        "objective 5 ms": pelton.Batching(64, slo=0.005),
    }

    def measure(kind: pelton.Batching | None) -> dict[str, float]:
        with contextlib.closing(pelton.AsyncQueue(engine, 2, 1, batching=kind)) as queue:
            return closed(queue, inputs, seconds)

    modes = {name: (lambda kind=kind: measure(kind)) for name, kind in kinds.items()}
    results = in_turns(modes, rounds)  # type: ignore[arg-type]
    base = results["no batches"]["runs"]
    return table("batching", "none", {name: (r, r["runs"] / base) for name, r in results.items()})


def over_http(rounds: int, seconds: float) -> list[str]:
    """Measures batching behind `pelton serve`, with 64 connections of wrk; returns the lines of a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models" / "mlp" / "1").mkdir(parents=True)
        mlp().save(folder / "models" / "mlp" / "1" / "model.pelton")
        x = np.random.default_rng(0).standard_normal((1, 1024)).astype(np.float32)
        script = requests.wrk_script(folder, "x", x)
        ports = ["--http-port", "8070", "--no-grpc", "--no-metrics"]
        url = "http://127.0.0.1:8070"

        def measure(*words: str) -> dict[str, float]:
            command = [sys.executable, "-m", "pelton", "serve", str(folder / "models"), *ports, *words]
            with requests.served(command, f"{url}/v2/health/ready", cpus="0,1"):
                r = requests.wrk(script, int(seconds), f"{url}/v2/models/mlp/infer", CLIENTS, cpus="0,1")
            return {"runs": r["rate"], "p50": r["p50"] / 1e3}

        kinds = {
            "no batches": ("--batch", "off", "--jobs", "2", "--threads", "1"),
            "batches of up to 64": ("--batch", "64", "--jobs", "2", "--threads", "1"),
        }
        modes = {name: (lambda words=words: measure(*words)) for name, words in kinds.items()}
        results = in_turns(modes, rounds)  # type: ignore[arg-type]
    base = results["no batches"]["runs"]
    lines = ["| batching, over HTTP | answers a second | against none | p50 ms |", "|---|--:|--:|--:|"]
    for name, r in results.items():
        lines.append(f"| {name} | {r['runs']:.0f} | {r['runs'] / base:.2f} | {r['p50']:.1f} |")
    return lines


def overload(rounds: int, seconds: float) -> list[str]:
    """Measures an engine of 20 ms under ten times its load; returns the lines of a table."""
    engine, slo = slow(0.020), 0.2
    inputs = random_inputs(engine.ports())

    def best() -> dict[str, float]:
        with contextlib.closing(pelton.AsyncQueue(engine, 2, 1)) as queue:
            return closed(queue, [inputs] * 8, seconds)

    rate = best()["runs"]

    def flood() -> dict[str, float]:
        with contextlib.closing(pelton.AsyncQueue(engine, 2, 1, slo=slo)) as queue:
            return flooded(queue, inputs, OVERLOAD * rate, seconds)

    results = in_turns({"8 clients": best, f"{OVERLOAD} times the load, objective {slo * 1e3:.0f} ms": flood}, rounds)
    base = results["8 clients"]["runs"]
    return table("load", "the best", {name: (r, r["runs"] / base) for name, r in results.items()})


def table(what: str, base: str, rows: dict[str, tuple[dict[str, float], float]]) -> list[str]:
    """Returns the lines of a table: answers a second, their ratio to a base, latencies, refusals."""
    lines = [f"| {what} | answers a second | against {base} | p50 ms | p99 ms | refused a second |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, (r, ratio) in rows.items():
        lines.append(
            f"| {name} | {r['runs']:.0f} | {ratio:.2f} | {r['p50']:.1f} | {r['p99']:.1f} | {r['refused']:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    lines = batching(args.rounds, args.seconds)
    lines += ["", *over_http(args.rounds, args.seconds), "", *overload(args.rounds, args.seconds)]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    main()
