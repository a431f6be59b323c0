"""Times Pelton and other runtimes on ONNX files, in turns, each in its own process, and writes a Markdown table.

    python benchmarks/cpu/run.py MODEL_OR_FOLDER … [--vs onnxruntime,openvino,mnn,ncnn] [--peers-python PYTHON]
    [--threads N] [--level N] [--strict]
                                 [--shapes x=1x3x224x224] [--seconds S] [--rounds N] [--hint throughput]
                                 [--output TABLE.md]

The models of a folder have a table of their own, models that are named one by one share one. `make bench` makes the
tables of README.md and docs/performance.md: it writes the networks by benchmarks/models.py, and gives the other
runtimes a venv of their own, as they want versions of protobuf that `onnx` does not (pip install onnxruntime openvino
MNN ncnn pnnx; its Python is --peers-python). MNN and ncnn convert models first, which is not timed, into a folder that
is removed again.

Every model is built with an empty cache. Times are medians over rounds of the rounds' medians, and ratios those of the
times as printed. `off` is the largest
difference of Pelton's outputs from those of the first runtime in the order of --vs that works, relative to the largest
of them; runtimes that are off from Pelton by more than 3e-2 are marked and do not count as the best. A model that
Pelton cannot build, or gets wrong, makes the exit status 1.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pelton
from pelton.backends.cpu import default_threads, describe
from pelton.cli import arguments, arrays, parsers, peers, throughput
from pelton.cli.text import count

TOLERANCE = 2e-3  # of the largest output: what Winograd may cost


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", metavar="MODEL_OR_FOLDER")
    ask.add_argument("--vs", default=",".join(peers.PEERS))
    ask.add_argument("--peers-python", default=sys.executable)
    ask.add_argument("--seconds", type=parsers.seconds, default=10.0, help="per runtime and model")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument(
        "--hint",
        choices=("latency", "throughput"),
        default="latency",
        help="throughput: several runs at once, by the number of streams that each runtime does most with",
    )
    ask.add_argument("--output", type=Path, help="also write the table here")
    arguments.add_threads(ask)
    ask.add_argument("--level", type=int, default=3)
    ask.add_argument("--strict", action="store_true")
    ask.add_argument("--shapes", action="append", default=[])
    a = ask.parse_args()
    threads = a.threads or (default_threads() if a.hint == "latency" else 1)
    shapes = parsers.parse_pairs((pair for given in a.shapes for pair in given.split(",")), "--shapes", "x=1x3x224x224")
    if unknown := [n for n in a.vs.split(",") if n not in peers.PEERS]:
        ask.error(f"--vs must be {', '.join(peers.PEERS)}, got {unknown[0]!r}")
    if not groups(a.models):
        ask.error(f"there is no .onnx file in {' '.join(a.models)}")
    tables, failed = [], False
    for models in groups(a.models):
        rows = []
        for model in models:
            rows.append(measure(model, a, threads, shapes))
            print(rows[-1].line(), flush=True)
        tables.append(table(rows, a, threads))
        failed |= not all(r.right for r in rows)
    text = "\n\n".join(tables)
    print("\n" + text)
    if a.output:
        a.output.write_text(text + "\n")
    return int(failed)


def groups(given: Sequence[str]) -> list[list[str]]:
    """The models of each table: those that are named, and those of each folder."""
    named = [m for m in given if not os.path.isdir(m)]
    folders = [sorted(map(str, Path(f).glob("*.onnx"))) for f in given if os.path.isdir(f)]
    return [models for models in (named, *folders) if models]


@dataclass
class Row:
    """A model: the cells of its line, the ratio to the best other runtime, and whether Pelton's outputs were right."""

    cells: list[str]
    lead: float = math.nan
    right: bool = False

    def line(self) -> str:
        return f"| {' | '.join(self.cells)} |"


def measure(model: str, a: argparse.Namespace, threads: int, shapes: dict[str, str]) -> Row:
    """One row of the table."""
    names, stem = a.vs.split(","), Path(model).stem
    with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
        start = time.monotonic()
        try:
            engine = pelton.build(
                model,
                level=a.level,
                strict=a.strict,
                threads=threads,
                shapes=fitting(shapes, model),
                cache_dir=os.path.join(folder, "cache"),
            )
        except pelton.Error as e:
            return Row([stem, f"not built: {e}", *[""] * (len(names) + 3)])
        built = time.monotonic() - start
        splits = throughput.splits(None, a.threads) if a.hint == "throughput" else []
        path = os.path.join(folder, "engine.pelton")
        engine.save(path)
        found = peers.compare(
            path,
            model,
            arrays.draw_inputs(engine),
            names,
            threads=threads,
            splits=[(s.streams, s.threads or 1) for s in splits],
            seconds=a.seconds,
            rounds=a.rounds,
            folder=folder,
            python=a.peers_python,
        )
    ours, others = found[0], [m for m in found[1:] if not m.failure]
    for m in found:
        if m.failure:
            print(f"{stem}: {m.runtime} {m.failure}", file=sys.stderr)
    if ours.failure:
        return Row([stem, ours.failure, *[""] * (len(names) + 3)])
    best = min((m for m in others if m.right), key=lambda m: m.median, default=None)
    lead = round(ours.lead(best), 2) if best else math.nan  # as printed: the mean of all follows from the column, too
    off = others[0].off if others else 0.0
    return Row(
        [
            stem,
            cell(ours),
            *map(cell, found[1:]),
            f"{lead:.2f}" if best else "–",
            f"{off:.1e}",
            f"{built:.0f}",
        ],
        lead,
        off <= TOLERANCE,
    )


def cell(m: peers.Measured) -> str:
    """A runtime's median in milliseconds, or its runs per second by how many streams."""
    if m.failure:
        return "–"
    split = f" ({m.split[0]} × {m.split[1]})" if m.split else ""
    return m.speed + split + ("" if m.right else f" (off {m.off:.0e})")


def fitting(shapes: dict[str, str], model: str) -> dict[str, str] | None:
    """Those of the shapes that a model has inputs for, so that one command can name all."""
    import onnx

    inputs = {i.name for i in onnx.load(model, load_external_data=False).graph.input}
    return {name: s for name, s in shapes.items() if name in inputs} or None


def table(rows: Sequence[Row], a: argparse.Namespace, threads: int) -> str:
    """What was measured where and when, a line for every model, and what they have in common."""
    unit, lead = ("ms", "best other / Pelton") if a.hint == "latency" else ("runs/s", "Pelton / best other")
    cpus = count(threads, "thread") if a.hint == "latency" else count(a.threads or default_threads(), "CPU")
    heading = [
        "model",
        f"Pelton {unit}",
        *(f"{name} {unit}" for name in a.vs.split(",")),
        lead,
        "off",
        "build s",
    ]
    lines = [
        (
            f"{describe()['model']}, {cpus}, FP32, level {a.level}{', strict' if a.strict else ''},"
            f" Pelton {pelton.__version__}, {datetime.date.today().isoformat()}; "
            + ("medians in ms." if a.hint == "latency" else "runs per second (streams × threads of each).")
        ),
        "",
        Row(heading).line(),
        "|" + "|".join([" --- ", *[" ---: "] * (len(heading) - 1)]) + "|",
        *(row.line() for row in rows),
    ]
    led = sorted((row for row in rows if not math.isnan(row.lead)), key=lambda row: row.lead)
    if led:
        least = " and ".join(f"{row.cells[0]} ({row.lead:.2f})" for row in led[:2])
        lines += [
            "",
            (
                f"Geometric mean of {lead}:"
                f" {math.exp(statistics.mean(math.log(row.lead) for row in led)):.2f}; the least lead: {least}."
            ),
        ]
    if any("(off" in c for row in rows for c in row.cells):
        lines.append(
            f"Runtimes whose outputs are off by more than {peers.WRONG:g} of the largest one do not count as the best"
            " other."
        )
    if len(led) < len(rows):
        lines.append(f"Without a ratio: {', '.join(row.cells[0] for row in rows if math.isnan(row.lead))}.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
