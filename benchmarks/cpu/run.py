"""Times Pelton beside other runtimes on ONNX files, in turns and each in a process of its own, and writes a table in Markdown.

    python benchmarks/cpu/run.py model.onnx … [--vs onnxruntime,openvino] [--peers-python PYTHON] [--threads N] [--level N] [--strict]
                                 [--shapes x=1x3x224x224] [--seconds S] [--rounds N] [--output TABLE.md]

The other runtimes want versions of protobuf that `onnx` does not: give them a venv of their own and name its Python with --peers-python.
Every model is built with an empty cache. Times are medians over rounds of the rounds' medians; `off` is the largest difference of the
outputs, relative to the largest of them. A model that Pelton cannot build, or gets wrong, makes the exit status 1.
"""
from __future__ import annotations

import argparse
import datetime
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pelton
from pelton.backends.cpu import default_threads, describe
from pelton.cli import arguments, arrays, peers

TOLERANCE = 2e-3                                  # of the largest output: what Winograd may cost


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+")
    ask.add_argument("--vs", default="onnxruntime,openvino")
    ask.add_argument("--peers-python", default=sys.executable)
    ask.add_argument("--seconds", type=arguments.seconds, default=10.0, help="per runtime and model")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--output", type=Path, help="also write the table here")
    arguments.add_threads(ask)
    ask.add_argument("--level", type=int, default=3)
    ask.add_argument("--strict", action="store_true")
    ask.add_argument("--shapes", action="append", default=[])
    a = ask.parse_args()
    threads = a.threads or default_threads()
    shapes = arguments.named((pair for given in a.shapes for pair in given.split(",")), "--shapes", "x=1x3x224x224")
    rows, wrong = [], False
    for model in a.models:
        row, good = measure(model, a, threads, shapes)
        rows.append(row)
        wrong |= not good
        print(" | ".join(row), flush=True)
    text = table(rows, a, threads)
    print("\n" + text)
    if a.output:
        a.output.write_text(text + "\n")
    return int(wrong)


def measure(model: str, a: argparse.Namespace, threads: int, shapes: dict[str, str]) -> tuple[list[str], bool]:
    """One row of the table, and whether Pelton's outputs were right."""
    names, stem = a.vs.split(","), Path(model).stem
    with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
        start = time.monotonic()
        try:
            engine = pelton.build(model, level=a.level, strict=a.strict, threads=threads, shapes=fitting(shapes, model),
                                  cache_dir=os.path.join(folder, "cache"))
        except pelton.Error as e:
            return [stem, f"not built: {e}", *[""] * (len(names) + 3)], False
        built = time.monotonic() - start
        path = os.path.join(folder, "engine.pelton")
        engine.save(path)
        found = peers.compare(path, model, arrays.made_up(engine), names, threads=threads, seconds=a.seconds, rounds=a.rounds, folder=folder,
                              python=a.peers_python)
    ours, others = found[0], [m for m in found[1:] if not m.why_not]
    for m in found:
        if m.why_not:
            print(f"{stem}: {m.runtime} {m.why_not}", file=sys.stderr)
    if ours.why_not:
        return [stem, ours.why_not, *[""] * (len(names) + 3)], False
    best = min(others, key=lambda m: m.median, default=None)
    ratio = statistics.median(statistics.median(b) / statistics.median(o) for b, o in zip(best.rounds, ours.rounds)) if best else math.nan
    off = max((m.off for m in others), default=0.0)
    return [stem, f"{ours.median / 1e6:.2f}", *(f"{m.median / 1e6:.2f}" if not m.why_not else "–" for m in found[1:]),
            f"{ratio:.2f}" if best else "–", f"{off:.1e}", f"{built:.0f}"], off <= TOLERANCE


def fitting(shapes: dict[str, str], model: str) -> dict[str, str] | None:
    """Those of the shapes that a model has inputs for, so that one command can name all."""
    import onnx

    inputs = {i.name for i in onnx.load(model, load_external_data=False).graph.input}
    return {name: s for name, s in shapes.items() if name in inputs} or None


def table(rows: list[list[str]], a: argparse.Namespace, threads: int) -> str:
    heading = ["model", "Pelton ms", *(f"{name} ms" for name in a.vs.split(",")), "best other / Pelton", "off", "build s"]
    ratios = [float(r[-3]) for r in rows if r[-3] not in ("", "–")]
    lines = [f"{describe()['model']}, {threads} threads, level {a.level}{', strict' if a.strict else ''}, Pelton {pelton.__version__}, "
             f"{datetime.date.today().isoformat()}. Medians in ms; over 1 in `best other / Pelton`: Pelton is faster.", "",
             "| " + " | ".join(heading) + " |", "|" + "|".join([" --- ", *[" ---: "] * (len(heading) - 1)]) + "|",
             *("| " + " | ".join(row) + " |" for row in rows)]
    if ratios:
        lines += ["", f"Geometric mean of the ratios: {math.exp(statistics.mean(map(math.log, ratios))):.2f}, the least {min(ratios):.2f}."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
