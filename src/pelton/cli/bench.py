"""`pelton bench`: speed of an engine, time of its layers, and speed of other runtimes beside it."""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import pelton
from pelton.errors import InputError, near
from pelton.options import HINTS
from pelton.system import heads

from . import arguments, arrays, baseline, build, flags, layers, output, parsers, peers, roofline, runs, text
from . import throughput, timing

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton bench resnet50.pelton                                  throughput and latency on random inputs
  pelton bench resnet50.pelton --hint throughput                several runs at once: the most inputs a second
  pelton bench bert.pelton --shapes ids=1x384,mask=1x384        an engine with dynamic dimensions, at these sizes
  pelton bench resnet50.pelton --batches 1,4,16                 the same for batches, of an engine that takes them
  pelton bench resnet50.onnx --layers                           builds; then the time of every step, and its bound
  pelton bench resnet50.pelton --plot roofline.svg              the same as a plot
  pelton bench resnet50.onnx --vs onnxruntime,openvino          others in turns with Pelton, each in its own process
  pelton bench resnet50.onnx --vs onnxruntime,openvino,mnn,ncnn --peers-python ~/peers/bin/python
  pelton bench old.pelton --json > old.json; pelton bench new.pelton --baseline old.json

Times include passing inputs and returning outputs in new arrays. The exit status is 1 if a runtime of --vs could not be
timed or --max-slowdown is exceeded, 2 if nothing could be timed."""
ROUNDS = 5


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "bench",
        help="time a model or an engine, and other runtimes",
        description="Times an engine, or a model, which is built first.",
        epilog=EXAMPLES,
    )
    command.add_argument(
        "model", help="an engine file, or a model to build with the options below, without saving the engine"
    )
    arguments.add_inputs(command)
    command.add_argument(
        "--hint",
        choices=HINTS,
        help="latency (default): consecutive runs on all threads; throughput: parallel runs, in the fastest number of"
        " streams. Models are built for the same hint",
    )
    command.add_argument(
        "--streams",
        type=parsers.int_in_range(1, 256, "streams"),
        metavar="N",
        help="number of parallel runs, each on --threads, or its share of the CPUs (implies --hint throughput)",
    )
    command.add_argument(
        "--seconds", type=parsers.seconds, default=3.0, metavar="S", help="seconds to measure (default 3)"
    )
    arguments.add_warmup(command)
    command.add_argument(
        "--iterations",
        type=parsers.int_in_range(1, 1 << 30, "runs"),
        metavar="N",
        help="number of runs to measure, instead of --seconds",
    )
    command.add_argument(
        "--percentiles",
        type=percentiles,
        default=timing.PERCENTILES,
        metavar="P,…",
        help=f"latency percentiles to report (default {','.join(map(str, timing.PERCENTILES))})",
    )
    command.add_argument(
        "--batches",
        type=batches,
        default=(),
        metavar="N,…",
        help="batch sizes to measure, for engines with a dynamic batch",
    )
    command.add_argument(
        "--layers",
        action="store_true",
        help="the time of each step, its bound (compute or memory), and the percentage of that bound",
    )
    command.add_argument("--plot", metavar="FILE.svg", help="plot the steps on the machine's roofline")
    add_rivals(command)
    output.add_json(command)
    arguments.add_threads(command)
    arguments.add_trust(command)
    arguments.add_build(command)
    return command


def add_rivals(command: argparse.ArgumentParser) -> None:
    """Adds the options of what an engine is compared with: other runtimes, and earlier results."""
    command.add_argument(
        "--vs", metavar="RUNTIMES", help=f"also time these runtimes, separated by commas: {', '.join(peers.PEERS)}"
    )
    command.add_argument("--peers-python", metavar="PYTHON", help="a Python with these runtimes (default: this one)")
    command.add_argument(
        "--baseline",
        metavar="FILE.json",
        help="an earlier --json to compare with: the speed-up, and whether it exceeds the noise",
    )
    command.add_argument(
        "--max-slowdown",
        type=slowdown,
        metavar="FACTOR",
        help="with --baseline: exit with status 1 if slower by more than this factor and the noise",
    )


def percentiles(given: str) -> tuple[float, ...]:
    """Parses numbers from 0 to 100, separated by commas."""
    try:
        numbers = tuple(float(part) for part in given.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 <= p <= 100 for p in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers from 0 to 100, separated by commas, got {given!r}")
    return numbers


def slowdown(given: str) -> float:
    """Parses a factor from 1 on."""
    try:
        factor = float(given)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a factor from 1 on, such as 1.1, got {given!r}")
    return factor


def batches(given: str) -> tuple[int, ...]:
    """Parses batch sizes, separated by commas."""
    return tuple(map(parsers.int_in_range(1, 1 << 30, "batch sizes separated by commas"), given.split(",")))


def main(args: argparse.Namespace) -> int:
    names = check(args)
    old = baseline.read(args.baseline, args.hint) if args.baseline else None
    engine, built = load_or_build(args, names)
    check_engine(args, engine, built, names)
    say: runs.Say = (lambda _: None) if args.json else print
    result: dict[str, Any] = {
        "model": args.model,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hint": args.hint,
    }
    timings: list[peers.Measured] = []
    if args.batches:
        runs.sweep(args, engine, result, say)
    else:
        if args.input:
            feeds = arrays.load_inputs(engine, args.input)
        else:
            feeds = arrays.draw_inputs(engine, {} if built else arguments.shapes(args))
        with arrays.sizes_in_errors(engine, feeds, drawn=not args.input):
            split = time_runs(args, engine, feeds, result, say)
        if args.layers or args.plot:
            time_layers(args, engine, feeds, split, result, say)
        if names:
            timings = time_peers(args, engine, feeds, names, split, result, say)
        if old is not None:
            result["baseline"] = baseline.compare(args.baseline, old, result)
            say("\n" + baseline.line(result["baseline"]))
    if args.json:
        output.emit(args, result)
    slower = args.max_slowdown is not None and baseline.is_slower(result["baseline"], args.max_slowdown)
    return 1 if slower or any(m.failure for m in timings) else 0


def check(args: argparse.Namespace) -> list[str]:
    """Returns the runtimes to compare with. Raises InputError for incompatible options."""
    names = [n for n in (args.vs or "").split(",") if n]
    unknown = [n for n in names if n not in peers.PEERS]
    if unknown or (args.vs is not None and not names):
        raise InputError(
            f"--vs must be {', '.join(peers.PEERS)}, separated by commas, got {args.vs!r}"
            + (near(unknown[0], peers.PEERS) if unknown else "")
        )
    if args.peers_python and not names:
        raise InputError("--peers-python is an option of --vs; add --vs onnxruntime")
    if args.streams and args.hint == "latency":
        raise InputError("--streams means parallel runs, --hint latency consecutive ones; use only one of them")
    args.hint = args.hint or ("throughput" if args.streams else "latency")
    alone = [("--input", args.input), ("--layers", args.layers), ("--plot", args.plot), ("--vs", names)]
    alone.append(("--baseline", args.baseline))
    if args.batches and (conflicts := [flag for flag, value in alone if value]):
        raise InputError(f"--batches measures several sizes, {conflicts[0]} needs one; use only one of them")
    if args.max_slowdown is not None and not args.baseline:
        raise InputError("--max-slowdown needs --baseline, an earlier measurement")
    if args.plot:
        if not args.plot.lower().endswith(".svg"):
            raise InputError(f"--plot writes SVG: name a file that ends in .svg, not {args.plot!r}")
        arrays.check_target(args.plot)
        layers.check_roof()
    return names


def check_engine(args: argparse.Namespace, engine: Engine, built: bool, names: list[str]) -> None:
    """Raises InputError for options that do not suit this engine."""
    if build.on_gpu(engine) and (names or args.plot):
        raise InputError(
            f"{'--vs' if names else '--plot'} is for engines of CPUs, {args.model} runs on a GPU; "
            "benchmarks/gpu in the source tree compares there"
        )
    if names and not built:
        raise InputError("--vs needs the ONNX model, which an engine does not contain: pelton bench model.onnx --vs …")


def time_runs(
    args: argparse.Namespace, engine: Engine, feeds: dict[str, np.ndarray], result: dict[str, Any], say: runs.Say
) -> throughput.Split:
    """Times runs on one set of inputs, and returns the split of the CPUs."""
    split, tried = runs.choose_split(args, engine, feeds)
    times = runs.timed(args, engine, feeds, split)
    context = engine.context(split.threads)
    result |= {
        "machine": context.machine,
        "streams": split.streams,
        "threads": context.threads,
        "runs": len(times.ns),
        "inputs": {p.name: str(p) for p in engine.inputs},
        "shapes": {name: a.shape for name, a in feeds.items()},
        "batch": times.batch,
        "throughput": times.throughput,
        "spread": times.spread,
        "noisy": times.spread > timing.NOISY,
        "latency_ms": times.latency(args.percentiles),
    }
    if tried:
        result["tried"] = [t.json() for t in tried]
    used = throughput.Split(split.streams, None if build.on_gpu(engine) else context.threads)
    how = str(used) if args.hint == "throughput" else text.count(context.threads, "thread")
    on = context.machine if build.on_gpu(engine) else how
    say(f"{args.model}: {build.ports(engine.inputs)} → {build.ports(engine.outputs)}, {on}")
    if engine.symbols:
        say(f"measured at {arrays.sizes_in_words(feeds)} (--shapes sets other sizes)")
    say("\n".join(times.lines(args.percentiles)))
    if tried:
        say("tried: " + ", ".join(f"{t.split} {t.rate:.1f}" for t in tried) + " runs per second")
    return used


def time_layers(
    args: argparse.Namespace,
    engine: Engine,
    feeds: dict[str, np.ndarray],
    split: throughput.Split,
    result: dict[str, Any],
    say: runs.Say,
) -> None:
    """Times every step, and draws the roofline."""
    gpu, context = build.on_gpu(engine), engine.context(split.threads)
    steps, around, roof = layers.measure_beside_roof(engine, context, feeds)
    # steps were launched one by one on a busy GPU; their sum is not the time of a run as one graph
    if gpu:
        around = 1e6 * result["latency_ms"]["median"] - sum(s["ns"] for s in steps)
    for s in steps:
        s["bound"], least = roof.bound(s["flops"], s["bytes"]) if roof else ("", 0.0)
        s["reached"] = least / max(s["ns"], 1)
    result |= {"layers": steps, "in_kernels_ns": sum(s["ns"] for s in steps), "around_ns": around}
    result |= {"peak_gflops": roof and roof.gflops, "peak_gbytes": roof and roof.gbytes}
    if args.layers:
        say("\n" + layers.table(steps, roof, around, gpu))
    if args.plot:
        if roof is None:
            raise InputError(f"--plot: {layers.NO_PEAK}")
        title = f"{os.path.basename(args.model)}: {text.duration(1e6 * result['latency_ms']['median'])} a run"
        on = f"{result['machine']}, {text.count(context.threads, 'thread')}"
        arrays.replace(args.plot, [roofline.picture(roof, steps, title, on).encode()])
        say(f"\n{args.plot}: the roofline with {text.count(len(steps), 'step')}")


def time_peers(
    args: argparse.Namespace,
    engine: Engine,
    feeds: dict[str, np.ndarray],
    names: list[str],
    split: throughput.Split,
    result: dict[str, Any],
    say: runs.Say,
) -> list[peers.Measured]:
    """Times other runtimes in turns with this one."""
    chosen = throughput.splits(args.streams, args.threads) if args.hint == "throughput" else []
    with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
        path = os.path.join(folder, "engine.pelton")
        engine.save(path)
        timings = peers.compare(
            path,
            peers.onnx_file(args.model, arguments.model_files(args), folder),
            feeds,
            names,
            threads=split.threads or 1,
            splits=[(s.streams, s.threads or 1) for s in chosen],
            seconds=args.seconds,
            rounds=ROUNDS,
            folder=folder,
            python=args.peers_python,
        )
    result["vs"] = [m.json() for m in timings]
    say("\n" + peers.table(timings))
    return timings


def load_or_build(args: argparse.Namespace, names: Sequence[str]) -> tuple[Engine, bool]:
    """Loads the engine in a file, or builds one from the model in it: (engine, True if built). Raises InputError before
    a build if a runtime of `names` is not installed."""
    try:
        with open(args.model, "rb") as f:
            is_engine = f.read(len(heads.ENGINE)) == heads.ENGINE
    except OSError:  # a folder, or nothing; importers report it better
        is_engine = False
    options = arguments.build_options(args)
    if is_engine or args.model.endswith(".pelton"):
        steers = [flags.flag(name) for name in options if name not in ("shapes", "threads")]
        if steers:
            raise InputError(
                f"{steers[0]} is a build option, but {args.model} is already an engine; leave it out, or pass the model"
            )
        return pelton.load(args.model, trust=args.trust), False
    if args.trust:
        raise InputError(f"--trust is for signed engines, but {args.model} is a model; leave it out")
    peers.check_installed(names, args.peers_python)
    if args.hint == "throughput" and not (args.target or "").startswith("cuda"):
        options["threads"] = throughput.splits(args.streams, args.threads)[-1].threads
    return build.build_engine(args.model, options, quiet=args.quiet, runs="bench"), True
