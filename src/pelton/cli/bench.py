"""`pelton bench`: how fast an engine is, where its time goes, and how fast other runtimes are beside it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import textwrap
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import BuildError, InputError, near

from . import arguments, arrays, build, peers, roofline, text, timing

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

EXAMPLES = """examples:
  pelton bench resnet50.pelton                                  throughput and latency on random inputs
  pelton bench bert.pelton --shapes ids=1x384,mask=1x384        an engine with dynamic dimensions, at these sizes
  pelton bench resnet50.onnx --layers                           builds; then the time of every step, and its bound
  pelton bench resnet50.pelton --plot roofline.svg              the same as a plot
  pelton bench resnet50.onnx --vs onnxruntime,openvino          others in turns with Pelton, each in its own process
  pelton bench resnet50.onnx --vs onnxruntime,openvino,mnn,ncnn --peers-python ~/peers/bin/python

The time of a run is what a caller pays: passing inputs, the run, outputs in fresh arrays. The exit status is 1 if a
runtime of --vs could not be timed, 2 if nothing could."""
ROUNDS = 5
RULE = """A step is bound by memory if its bytes (weights and activations, each once) take longer at that rate than its
operations do at theirs, by compute if it is the other way round, by neither (–) if both take less than a microsecond.
% of it: the bound as a share of the step's time. Operations are counted for the direct algorithm (Winograd needs
fewer), and caches are faster than memory: both percentages may pass 100."""
PROFILES = 100  # runs with time stamps, at most


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "bench",
        help="time a model or engine, alone or beside other runtimes",
        description="Times a model (built first) or an engine.",
        epilog=EXAMPLES,
    )
    command.add_argument(
        "model", help="an engine file, or a model, which is built with the options below and not saved"
    )
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="what to run on, as for `pelton run` (default: random)",
    )
    command.add_argument(
        "--seconds", type=arguments.seconds, default=3.0, metavar="S", help="how long to measure (default 3)"
    )
    command.add_argument(
        "--warmup", type=arguments.seconds, default=0.5, metavar="S", help="how long to run before that (default 0.5)"
    )
    command.add_argument(
        "--layers", action="store_true", help="the time of every step, what bounds it, and how close it comes to that"
    )
    command.add_argument("--plot", metavar="FILE.svg", help="draw the machine's roofline with the steps on it")
    command.add_argument(
        "--vs", metavar="RUNTIMES", help=f"time these as well, separated by commas: {', '.join(peers.PEERS)}"
    )
    command.add_argument(
        "--peers-python", metavar="PYTHON", help="the Python that has them installed (default: this one)"
    )
    command.add_argument("--json", action="store_true", help="everything as JSON")
    arguments.add_threads(command)
    arguments.add_trust(command)
    arguments.add_build(command)
    return command


def main(args: argparse.Namespace) -> int:
    names = [n for n in (args.vs or "").split(",") if n]
    unknown = [n for n in names if n not in peers.PEERS]
    if unknown or (args.vs is not None and not names):
        raise InputError(
            f"--vs takes {', '.join(peers.PEERS)}, separated by commas, got {args.vs!r}"
            + (near(unknown[0], peers.PEERS) if unknown else "")
        )
    if args.plot:
        if not args.plot.lower().endswith(".svg"):
            raise InputError(f"--plot writes SVG: name a file that ends in .svg, not {args.plot!r}")
        arrays.check_target(args.plot)
    engine, built = load_or_build(args)
    gpu = build.on_gpu(engine)
    if gpu and (names or args.plot):
        raise InputError(
            f"{'--vs' if names else '--plot'} is for engines of CPUs, {args.model} runs on a GPU; "
            "benchmarks/gpu in the source tree compares there"
        )
    if names and not built:
        raise InputError(
            "--vs gives the other runtimes the ONNX model, which an engine does not contain: pelton bench model.onnx"
            " --vs …"
        )
    if args.input:
        feeds = arrays.load_inputs(engine, args.input)
    else:
        feeds = arrays.draw_inputs(engine, {} if built else arguments.shapes(args))
    context = engine.context(threads=args.threads)
    before = measure_roof(engine, context.threads) if (args.layers or args.plot) and not gpu else None
    if args.plot and before is None:
        raise InputError('--plot needs a compiler to measure the machine with: pip install "pelton[build]"')
    times = timing.Times(timing.measure(lambda: context.run(feeds), args.seconds, args.warmup), batch(engine, feeds))
    found: list[peers.Measured] = []
    result: dict[str, Any] = {
        "model": args.model,
        "machine": context.machine,
        "threads": context.threads,
        "runs": len(times.ns),
        "inputs": {p.name: str(p) for p in engine.inputs},
        "shapes": {name: a.shape for name, a in feeds.items()},
        "batch": times.batch,
        "throughput": times.throughput,
        "spread": times.spread,
        "noisy": times.spread > timing.NOISY,
        "latency_ms": times.latency(),
    }
    if not args.json:
        print(
            f"{args.model}: {build.ports(engine.inputs)} → {build.ports(engine.outputs)}, "
            + (context.machine if gpu else text.count(context.threads, "thread"))
        )
        if engine.symbols:
            print(
                "run for "
                + ", ".join(f"{name} {'x'.join(map(str, a.shape))}" for name, a in feeds.items())
                + " (--shapes takes others)"
            )
        print("\n".join(times.lines()))
    if args.layers or args.plot:
        steps, around = layers(context, feeds)
        # steps were launched one by one while the GPU was busy, which says nothing about a run as one graph
        if gpu:
            around = 1e6 * times.latency()["median"] - sum(s["ns"] for s in steps)
        # other users of the machine come and go, so the better of two measurements counts
        roof = before and before.best(measure_roof(engine, context.threads) or before)
        for s in steps:
            s["bound"], least = roof.bound(s["flops"], s["bytes"]) if roof else ("", 0.0)
            s["reached"] = least / max(s["ns"], 1)
        result |= {"layers": steps, "in_kernels_ns": sum(s["ns"] for s in steps), "around_ns": around}
        result |= {"peak_gflops": roof and roof.gflops, "peak_gbytes": roof and roof.gbytes}
        if args.layers and not args.json:
            print("\n" + layer_table(steps, roof, around, gpu))
        if args.plot and roof is not None:
            title = f"{os.path.basename(args.model)}: {text.duration(1e6 * times.latency()['median'])} a run"
            arrays.replace(
                args.plot,
                [
                    roofline.picture(
                        roof, steps, title, f"{result['machine']}, {text.count(context.threads, 'thread')}"
                    ).encode()
                ],
            )
            if not args.json:
                print(f"\n{args.plot}: the roofline with {text.count(len(steps), 'step')}")
    if names:
        with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
            path = os.path.join(folder, "engine.pelton")
            engine.save(path)
            found = peers.compare(
                path,
                args.model,
                feeds,
                names,
                threads=context.threads,
                seconds=args.seconds,
                rounds=ROUNDS,
                folder=folder,
                python=args.peers_python,
            )
        result["vs"] = [m.json() for m in found]
        if not args.json:
            print("\n" + peers.table(found))
    if args.json:
        print(json.dumps(result, indent=1))
    return 1 if any(m.failure for m in found) else 0


def load_or_build(args: argparse.Namespace) -> tuple[Engine, bool]:
    """The engine in a file, or one built from the model in it: (engine, whether it was built)."""
    import pelton
    from pelton.engine.container import MAGIC

    try:
        with open(args.model, "rb") as f:
            is_engine = f.read(len(MAGIC)) == MAGIC
    except OSError:  # a folder, or nothing, which importers have words for
        is_engine = False
    options = arguments.build_options(args)
    if is_engine or args.model.endswith(".pelton"):
        steers = [arguments.flag(name) for name in options if name not in ("shapes", "threads")]
        if steers:
            raise InputError(
                f"{steers[0]} says how an engine is built, and {args.model} is one already; leave it out, or give the"
                " model"
            )
        return pelton.load(args.model, trust=args.trust), False
    if args.trust:
        raise InputError(f"--trust is for engines, which may be signed, and {args.model} is a model; leave it out")
    return build.build_engine(args.model, options, quiet=args.quiet or args.json, runs="bench"), True


def batch(engine: Engine, feeds: Mapping[str, np.ndarray]) -> int:
    """The batch size of a run, if the model names one: all inputs and outputs begin with the same dynamic dimension,
    named N or with "batch" in its name. Otherwise 1."""
    first, *others = {p.shape[0] if p.shape else None for p in (*engine.inputs, *engine.outputs)} or {None}
    named = isinstance(first, str) and not others and (first.lower() == "n" or "batch" in first.lower())
    return max(feeds[engine.inputs[0].name].shape[0], 1) if named and engine.inputs else 1


def layers(context: Context, feeds: dict[str, np.ndarray]) -> tuple[list[dict[str, Any]], float]:
    """Every step with the median of its times, and the nanoseconds of a run outside of steps. Both come from the same
    runs, because runs of large networks differ by more. Reading time stamps, a few microseconds, is included."""
    runs = [context.profile(feeds)]
    around: list[int] = []
    budget = sum(ns for _, ns in runs[0])
    for _ in range(min(PROFILES, max(3, int(2e9 / max(budget, 1))))):
        start = time.perf_counter_ns()
        runs.append(context.profile(feeds))
        around.append(time.perf_counter_ns() - start - sum(ns for _, ns in runs[-1]))
    medians = [statistics.median(run[i][1] for run in runs[1:]) for i in range(len(runs[0]))]
    total = sum(medians) or 1
    out = []
    for (step, _), ns in zip(runs[0], medians):
        info = step.info
        flops, nbytes = info.get("flops", 0), info.get("bytes", 0)
        out.append(
            {
                "name": step.name,
                "op": info.get("op", ""),
                "tactic": "host" if step.host else info.get("tactic", ""),
                "layers": list(info.get("layers") or ()),
                "ns": ns,
                "share": ns / total,
                "flops": flops,
                "bytes": nbytes,
                "gflops": flops / max(ns, 1),
                "gbytes": nbytes / max(ns, 1),
            }
        )
    return out, statistics.median(around)


def measure_roof(engine: Engine, threads: int) -> roofline.Roof | None:
    """The peak of the machine; None if there is no compiler to measure it with."""
    try:
        from pelton.tune.peak import peak

        return roofline.Roof(*peak(engine.plain.target["isa"], threads))
    except (ModuleNotFoundError, BuildError):
        return None


def layer_table(found: list[dict[str, Any]], roof: roofline.Roof | None, around: float, gpu: bool = False) -> str:
    """Steps in execution order, their sum, and the time of a run outside of them."""
    columns = [
        ("step", "r"),
        ("time", "r"),
        ("share", "r"),
        ("GFLOP/s", "r"),
        ("% of peak", "r"),
        ("GB/s", "r"),
        ("bound by", "l"),
        ("% of it", "r"),
        ("tactic", "l"),
        ("what", "l"),
    ]
    rows = [tuple(name for name, _ in columns)]
    for i, s in enumerate(found):
        rows.append(
            (
                f"{i}",
                text.duration(s["ns"]),
                f"{100 * s['share']:.1f} %",
                f"{s['gflops']:.1f}" if s["gflops"] else "",
                f"{100 * s['gflops'] / roof.gflops:.0f}" if roof and s["gflops"] else "",
                f"{s['gbytes']:.1f}" if s["gbytes"] else "",
                s["bound"] or "–",
                f"{100 * s['reached']:.0f}" if s["bound"] else "",
                text.shortened(s["tactic"].partition("@")[0], 40),
                text.shortened(s["name"] or s["op"], 44),
            )
        )
    total = sum(s["ns"] for s in found)
    speed = sum(s["flops"] for s in found) / max(total, 1)
    rows.append(
        (
            "sum",
            text.duration(total),
            "100 %",
            f"{speed:.1f}",
            f"{100 * speed / roof.gflops:.0f}" if roof else "",
            "",
            "",
            f"{100 * sum(s['reached'] * s['ns'] for s in found) / max(total, 1):.0f}",
            "",
            "",
        )
    )
    kept = [i for i, (name, _) in enumerate(columns) if roof or name not in ("% of peak", "bound by", "% of it")]
    lines = [
        text.table([[row[i] for i in kept] for row in rows], "".join(columns[i][1] for i in kept)),
        f"in kernels {text.duration(total)}, "
        + (
            f"one after the other; a run, as one graph, with its copies: {text.duration(total + around)}"
            if gpu
            else f"around them {text.duration(around)}: the call, its arrays, waking threads"
        ),
    ]
    if gpu:
        return "\n".join(lines)
    if roof is None:
        lines.append('without a compiler the peak cannot be measured: pip install "pelton[build]"')
    else:
        lines += textwrap.wrap(
            f"Measured: {roof.gflops:.0f} GFLOP/s in the CPU time of the threads, {roof.gbytes:.1f} GB/s. {RULE}", 150
        )
    return "\n".join(lines)
