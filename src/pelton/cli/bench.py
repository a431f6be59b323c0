"""`pelton bench`: how fast an engine is, where its time goes, and how fast other runtimes are beside it."""
from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import BuildError, InputError

from . import arguments, arrays, build, peers, text, timing

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

EXAMPLES = """examples:
  pelton bench resnet50.pelton                                  throughput and latency on made-up inputs
  pelton bench bert.pelton --shapes ids=1x384,mask=1x384        an engine that leaves sizes open, at this one
  pelton bench resnet50.onnx --layers                           builds first; then the time of every step
  pelton bench resnet50.onnx --vs onnxruntime,openvino          the others in turns with Pelton, each in its own process
  pelton bench resnet50.onnx --vs onnxruntime --peers-python ~/peers/bin/python

Inside the clock is what a caller pays: inputs handed over, the run, outputs in fresh arrays."""
ROUNDS = 5
PROFILES = 20                                     # runs with time stamps, at most


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("bench", help="time a model or engine, alone or beside other runtimes",
                                  description="Times a model (built first) or an engine.", epilog=EXAMPLES)
    command.add_argument("model", help="an engine file, or an ONNX file, which is built with the options below and not kept")
    command.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help="what to run on, as for `pelton run` (made up, if not given)")
    command.add_argument("--seconds", type=arguments.seconds, default=3.0, metavar="S", help="how long to measure (default 3)")
    command.add_argument("--warmup", type=arguments.seconds, default=0.5, metavar="S", help="how long to run before (default 0.5)")
    command.add_argument("--layers", action="store_true", help="the time of every step, its tactic, and how close it comes to the machine's peak")
    command.add_argument("--vs", metavar="RUNTIMES", help=f"time these as well, separated by commas: {', '.join(peers.PEERS)}")
    command.add_argument("--peers-python", metavar="PYTHON", help="the Python that has them installed (this one, if not given)")
    command.add_argument("--json", action="store_true", help="everything as JSON")
    arguments.add_threads(command)
    arguments.add_build(command)
    return command


def main(args: argparse.Namespace) -> None:
    names = [n for n in (args.vs or "").split(",") if n]
    unknown = [n for n in names if n not in peers.PEERS]
    if unknown or (args.vs is not None and not names):
        raise InputError(f"--vs takes {', '.join(peers.PEERS)}, separated by commas, got {args.vs!r}")
    engine, built = opened(args)
    if names and not built:
        raise InputError("--vs gives the other runtimes the ONNX model that the engine was made from: pelton bench model.onnx --vs …")
    feeds = arrays.given(engine, args.input) if args.input else arrays.made_up(engine, {} if built else arguments.shapes(args))
    context = engine.context(threads=args.threads)
    first = feeds[engine.inputs[0].name].shape if engine.inputs else ()
    batch = first[0] if first else 1
    times = timing.Times(timing.measure(lambda: context.run(feeds), args.seconds, args.warmup), max(batch, 1))
    result: dict[str, Any] = {"model": args.model, "machine": engine.plain.target.get("cpu", ""), "threads": context.threads, "runs": len(times.ns),
                              "inputs": {p.name: str(p) for p in engine.inputs}, "shapes": {name: a.shape for name, a in feeds.items()},
                              "throughput": times.throughput, "latency_ms": times.latency()}
    if not args.json:
        print(f"{args.model}: {build.ports(engine.inputs)} → {build.ports(engine.outputs)}, {text.count(context.threads, 'thread')}")
        if engine.symbols:
            print("run for " + ", ".join(f"{name} {'x'.join(map(str, a.shape))}" for name, a in feeds.items()) + " (--shapes takes others)")
        print("\n".join(times.lines()))
    if args.layers:
        result["layers"], result["peak_gflops"] = layers(context, feeds), peak(engine, context.threads)
        if not args.json:
            print("\n" + layer_table(result["layers"], result["peak_gflops"]))
    if names:
        with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
            path = os.path.join(folder, "engine.pelton")
            engine.save(path)
            found = peers.compare(path, args.model, feeds, names, threads=context.threads, seconds=args.seconds, rounds=ROUNDS, folder=folder,
                                  python=args.peers_python)
        result["vs"] = [m.json() for m in found]
        if not args.json:
            print("\n" + peers.table(found))
    if args.json:
        print(json.dumps(result, indent=1))


def opened(args: argparse.Namespace) -> tuple[Engine, bool]:
    """The engine in a file, or one built from the model in it: (engine, whether it was built)."""
    import pelton
    from pelton.engine.file import MAGIC

    try:
        with open(args.model, "rb") as f:
            is_engine = f.read(len(MAGIC)) == MAGIC
    except OSError as e:
        raise InputError(f"{args.model} cannot be read: {e.strerror}") from None
    if is_engine or args.model.endswith(".pelton"):
        return pelton.load(args.model), False
    return build.made(args.model, arguments.build_options(args), quiet=args.quiet or args.json), True


def layers(context: Context, feeds: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Every step with the median of its times."""
    runs = [context.profile(feeds)]
    budget = sum(ns for _, ns in runs[0])
    runs += [context.profile(feeds) for _ in range(min(PROFILES, max(3, int(2e9 / max(budget, 1)))))]
    steps = [step for step, _ in runs[0]]
    medians = [statistics.median(run[i][1] for run in runs[1:]) for i in range(len(steps))]
    total = sum(medians) or 1
    out = []
    for step, ns in zip(steps, medians):
        info = step.info
        tactic = "host" if step.host else info.get("tactic", "")
        out.append({"name": step.name, "op": info.get("op", ""), "tactic": tactic, "layers": list(info.get("layers") or ()), "ns": ns, "share": ns / total,
                    "gflops": info.get("flops", 0) / max(ns, 1), "gbytes": info.get("bytes", 0) / max(ns, 1)})
    return out


def peak(engine: Engine, threads: int) -> float | None:
    """The machine's GFLOP/s, measured; None where there is no compiler to measure it with."""
    try:
        from pelton.tune.peak import peak as measured

        return measured(engine.plain.target["isa"], threads)
    except (ModuleNotFoundError, BuildError):
        return None


def layer_table(found: list[dict[str, Any]], most: float | None) -> str:
    """Steps in the order they run, and their sum. % of peak counts the operations of the direct computation, so Winograd may pass 100."""
    rows: list[tuple[str, ...]] = [("step", "time", "share", "GFLOP/s", "% of peak", "GB/s", "tactic", "what")]
    for i, s in enumerate(found):
        rows.append((f"{i}", text.duration(s["ns"]), f"{100 * s['share']:.1f} %", f"{s['gflops']:.1f}" if s["gflops"] else "",
                     f"{100 * s['gflops'] / most:.0f}" if most and s["gflops"] else "", f"{s['gbytes']:.1f}" if s["gbytes"] else "",
                     text.shortened(s["tactic"].partition("@")[0], 48), text.shortened(s["name"] or s["op"], 60)))
    total = sum(s["ns"] for s in found)
    flops = sum(s["gflops"] * s["ns"] for s in found)
    rows.append(("sum", text.duration(total), "100 %", f"{flops / max(total, 1):.1f}", f"{100 * flops / max(total, 1) / most:.0f}" if most else "", "", "", ""))
    if most is None:
        rows = [r[:4] + r[5:] for r in rows]
    note = (f"\npeak: {most:.0f} GFLOP/s, measured. Operations are those of the direct computation: Winograd needs fewer and may pass 100 %." if most else
            '\nwithout a compiler the peak cannot be measured: pip install "pelton[build]"')
    return text.table(rows, "rrrrrrll" if most else "rrrrrll") + note
