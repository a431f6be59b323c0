"""`pelton trace`: writes runs of an engine and their steps as a trace for Perfetto and Chrome."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton import __version__
from pelton.engine.plan import Step

from . import arguments, arrays, build, output, parsers, text, timing

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine
    from pelton.runtime.trace_events import TraceEvents

EXAMPLES = """examples:
  pelton trace resnet50.pelton                                 writes resnet50.trace.json: 3 runs on random inputs
  pelton trace resnet50.pelton -o trace.json --runs 10 --threads 2
  pelton trace bert.pelton --shapes ids=1x384,mask=1x384       an engine with dynamic dimensions, at these sizes
  pelton trace detector.pelton --input x=street.npy            where the data decides what runs, on that data

Open the file at ui.perfetto.dev (it stays on this machine) or chrome://tracing. Each run contains its steps; a step
shows its layers, tactic, shapes, bytes and speed. Traced steps do not overlap, so runs may take longer than in `pelton
bench`."""
STEPS_ON_GPU = "step times are from a second run, without overlap"


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "trace",
        help="write an engine's runs as a trace for Perfetto",
        description="Writes an engine's runs, step by step, as a trace for Perfetto and Chrome.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="trace to write, JSON (default: the engine's name with .trace.json, in the current folder)",
    )
    command.add_argument(
        "--runs",
        type=parsers.int_in_range(1, 10_000, "runs"),
        default=3,
        metavar="N",
        help="number of runs (default 3)",
    )
    arguments.add_warmup(command)
    arguments.add_inputs(command)
    arguments.add_sizes(command)
    arguments.add_threads(command)
    output.add_json(command)
    arguments.add_trust(command)
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    target = args.output or arguments.stem(args.engine) + ".trace.json"
    arrays.check_target(target)
    engine = pelton.load(args.engine, trust=args.trust)
    if args.input:
        feeds = arrays.load_inputs(engine, args.input)
    else:
        feeds = arrays.draw_inputs(engine, arguments.shapes(args))
    context = engine.context(threads=args.threads)
    with arrays.sizes_in_errors(engine, feeds, drawn=not args.input):
        timing.measure(lambda: context.run(feeds), 0, args.warmup, minimum=1)
    events, ns = trace(engine, context, feeds, args.runs)
    arrays.replace(target, [document(events, engine, args.engine, context).encode()])
    steps, median = sum(e["cat"] == "step" for e in events.events), float(np.median(ns))
    output.emit(args, {"file": target, "runs": args.runs, "steps": steps, "median_ms": median / 1e6})
    if not args.quiet:
        print(
            f"{target}: {text.count(args.runs, 'run')} of {text.duration(median)}, {text.count(steps, 'step')} in all;"
            " open it at ui.perfetto.dev or chrome://tracing"
        )


def trace(engine: Engine, context: Context, feeds: Mapping[str, Any], runs: int) -> tuple[TraceEvents, list[int]]:
    """Returns the events of consecutive runs, and the nanoseconds of each run."""
    from pelton.runtime.trace_events import TraceEvents  # needs the runtime, which other commands start without

    events, taken = TraceEvents(), list[int]()
    numbers = {id(part): i for i, part in enumerate(engine.parts)}
    threads = context.machine if build.on_gpu(engine) else text.count(context.threads, "thread")
    events.add_name("process", f"Pelton: {engine.name}")
    events.add_name("thread", f"runs ({threads})")
    shapes = {name: list(np.shape(a)) for name, a in feeds.items()}
    for run in range(runs):
        begin = time.monotonic_ns()
        ran = context.trace_engines(feeds)
        end = time.monotonic_ns()
        taken.append(end - begin)
        events.add(f"run {run}", "run", begin, end, {"inputs": shapes})
        for part, steps in ran:
            if part is not None and len(numbers) > 1 and steps:
                name = f"engine {numbers[id(part)]}"
                events.add(name, "engine", steps[0][1], steps[-1][2], {"engine": part.name})
            for step, first, last in steps:
                category = "step" if part is not None else "script"
                events.add(step.name, category, first, last, dict(describe(step, last - first)))
    return events, taken


def describe(step: Step, ns: int) -> Iterator[tuple[str, Any]]:
    """Yields the facts about a step that took this many nanoseconds."""
    from pelton.runtime.trace_events import facts

    known = facts(step)
    yield "op", step.info.get("op", "")
    yield from known.items()
    for what, tensors in (("inputs", step.inputs), ("outputs", step.outputs)):
        yield what, ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
    yield "tiles", step.tiles or None
    if ns and known["flops"]:
        yield "GFLOP/s", round(known["flops"] / ns, 2)
    if ns and known["bytes"]:
        yield "GB/s", round(known["bytes"] / ns, 2)


def document(events: TraceEvents, engine: Engine, path: str, context: Context) -> str:
    """Formats the file: an object with the events in their order, a line for each, and the traced engine."""
    events.events = list(events.in_order())
    about = {"engine": path, "machine": context.machine, "pelton": __version__}
    about |= {"note": STEPS_ON_GPU} if build.on_gpu(engine) else {"threads": str(context.threads)}
    return f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},\n"traceEvents": [\n{events.lines()}\n]}}\n'
