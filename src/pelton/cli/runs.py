"""Times runs by the options of `pelton bench`: in sequence or in streams, for one batch size or several."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import InputError

from . import arrays, build, text, throughput, timing

if TYPE_CHECKING:
    from pelton.runtime import Engine

Say = Callable[[str], None]  # prints a line, or does not


def timed(
    args: argparse.Namespace, engine: Engine, feeds: dict[str, np.ndarray], split: throughput.Split
) -> timing.Times:
    """Returns the times of runs on these inputs, by the options."""
    if args.hint == "throughput":
        times = throughput.measure(engine, feeds, split, args.seconds, args.warmup, args.iterations)
    else:
        context = engine.context(split.threads)
        ns = timing.measure(lambda: context.run(feeds), args.seconds, args.warmup, iterations=args.iterations)
        times = timing.Times(ns)
    return dataclasses.replace(times, batch=batch(engine, feeds))


def choose_split(
    args: argparse.Namespace, engine: Engine, feeds: dict[str, np.ndarray]
) -> tuple[throughput.Split, list[throughput.Tried]]:
    """Returns the split of the CPUs, and the other trials."""
    if args.hint == "latency":
        return throughput.Split(1, args.threads), []
    return throughput.best_split(engine, feeds, throughput.splits(args.streams, args.threads, build.on_gpu(engine)))


def sweep(args: argparse.Namespace, engine: Engine, result: dict[str, Any], say: Say) -> None:
    """Times runs of each batch size."""
    symbol = batch_symbol(engine)
    if symbol is None:
        shapes = build.ports(engine.inputs)
        raise InputError(
            f"--batches needs an engine with a dynamic batch, {args.model} has {shapes}; build the model with"
            " --shapes NAME=1..8..32x…"
        )
    rows = [("batch", "streams", "threads", "inputs/s", "median", "per input")]
    result["batches"] = []
    for size in args.batches:
        specs = {name: "x".join(map(str, shape)) for name, shape in engine.shapes({symbol: size}).items()}
        feeds = arrays.draw_inputs(engine, specs)
        split, _ = choose_split(args, engine, feeds)
        times = timed(args, engine, feeds, split)
        context = engine.context(split.threads)
        result |= {"machine": context.machine}
        result["batches"].append(
            {
                "batch": size,
                "streams": split.streams,
                "threads": context.threads,
                "runs": len(times.ns),
                "throughput": times.throughput,
                "spread": times.spread,
                "noisy": times.spread > timing.NOISY,
                "latency_ms": times.latency(args.percentiles),
            }
        )
        median = 1e6 * times.latency()["median"]
        rows.append(
            (
                f"{size}",
                f"{split.streams}",
                f"{context.threads}",
                f"{times.throughput:.1f}",
                text.duration(median),
                text.duration(1e9 / times.throughput),
            )
        )
    say(f"{args.model}: {build.ports(engine.inputs)} → {build.ports(engine.outputs)}, {result['machine']}")
    say(text.table(rows, "rrrrrr"))
    if any(b["noisy"] for b in result["batches"]):
        say(timing.noise("the time of a run", max(b["spread"] for b in result["batches"])))


def batch_symbol(engine: Engine) -> str | None:
    """Returns the dynamic dimension that is the model's batch: the first of all inputs and outputs, named N or with
    "batch" in its name; None if there is none."""
    first, *others = {p.shape[0] if p.shape else None for p in (*engine.inputs, *engine.outputs)} or {None}
    if isinstance(first, str) and not others and engine.inputs and (first.lower() == "n" or "batch" in first.lower()):
        return first
    return None


def batch(engine: Engine, feeds: Mapping[str, np.ndarray]) -> int:
    """Returns the batch size of a run; 1 if the model names none."""
    return max(feeds[engine.inputs[0].name].shape[0], 1) if batch_symbol(engine) else 1
