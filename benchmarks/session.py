#!/usr/bin/env python3
"""Times the start of a script with Pelton, cold and warm, and with ONNX Runtime: import, session, first run."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton.backends.cpu import default_threads, describe
from pelton.cli import arguments, parsers
from pelton.cli.peers import difference
from pelton.cli.text import count

# What a user writes; the times are handed back when everything is done.
SCRIPT = """
import sys, time
began = float(sys.argv[1])
import json, numpy
import MODULE as ort
imported = time.time()
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[4])
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
made = time.time()
feeds = dict(numpy.load(sys.argv[3]))
loaded = time.time()
outputs = session.run(None, feeds)
first = time.time() - loaded
numpy.savez(sys.argv[5], *outputs)
again = time.perf_counter()
session.run(None, feeds)
print(json.dumps([imported - began, made - imported, first, made - began + first, time.perf_counter() - again]))
"""
COLUMNS = ("import", "session", "first run", "in all", "next run")
KINDS = ("Pelton, cold", "Pelton, warm", "ONNX Runtime")


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", metavar="MODEL_OR_FOLDER")
    ask.add_argument("--peers-python", default=sys.executable)
    ask.add_argument("--runs", type=int, default=9, help="measurements of what is warm, and of ONNX Runtime")
    ask.add_argument("--cold", type=int, default=1, help="builds into an empty cache")
    ask.add_argument("--level", type=int, default=3)
    ask.add_argument("--shapes", action="append", default=[])
    arguments.add_threads(ask)
    a = ask.parse_args()
    shapes = parsers.parse_pairs((pair for given in a.shapes for pair in given.split(",")), "--shapes", "x=1x3x224x224")
    models = [
        m
        for given in a.models
        for m in (sorted(map(str, Path(given).glob("*.onnx"))) if os.path.isdir(given) else [given])
    ]
    if not models or a.runs < 1 or a.cold < 1:
        ask.error("there is no .onnx file to measure" if not models else "--runs and --cold are 1 and more")
    threads = a.threads or default_threads()
    print(
        f"{describe()['model']}, {count(threads, 'thread')}, level {a.level}, Pelton {pelton.__version__}; medians in"
        f" ms since the start of the process.\n\n| model | | {' | '.join(COLUMNS)} | off |\n| --- | --- |"
        f" {' | '.join(['---:'] * len(COLUMNS))} | ---: |",
        flush=True,
    )
    wrong = False
    for model in models:
        with tempfile.TemporaryDirectory(prefix="pelton-session-") as folder:
            times, off = measure(model, shapes, a, threads, Path(folder))
        for kind in KINDS:
            cells = [f"{1e3 * statistics.median(column):.1f}" for column in zip(*times[kind])] or ["–"] * len(COLUMNS)
            print(
                f"| {Path(model).stem} | {kind} | {' | '.join(cells)} | {off[kind] if kind in off else ''} |",
                flush=True,
            )
        wrong |= not times[KINDS[1]]
    return int(wrong)


def measure(
    model: str, shapes: Mapping[str, str], a: argparse.Namespace, threads: int, folder: Path
) -> tuple[dict[str, list[list[float]]], dict[str, str]]:
    """The times of every kind of start, and how far ONNX Runtime's outputs are from Pelton's."""
    feeds = str(folder / "feeds.npz")
    np.savez(feeds, **made_up(model, shapes))  # type: ignore[arg-type]
    times: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    outputs = {kind: str(folder / f"{i}.npz") for i, kind in enumerate(KINDS)}

    # as with installed packages: Python keeps what it made of the modules
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode")
    }

    def start(kind: str, cache: Path) -> None:
        ours = kind != KINDS[2]
        python, module = (sys.executable, "pelton") if ours else (a.peers_python, "onnxruntime")
        own = {"PELTON_CACHE_DIR": str(cache), "PELTON_LEVEL": str(a.level)} if ours else {}
        done = subprocess.run(
            [
                python,
                "-c",
                SCRIPT.replace("MODULE", module),
                str(time.time()),
                model,
                feeds,
                str(threads),
                outputs[kind],
            ],
            env={**environment, **own},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
            raise RuntimeError(said[-1])
        times[kind].append(json.loads(done.stdout.splitlines()[-1]))

    for i in range(a.cold):
        attempt(KINDS[0], start, folder / f"cache{i}", times)
    for i in range(a.runs + 1):
        for kind in KINDS[1:] if i % 2 else KINDS[:0:-1]:
            if i == 0 or times[kind]:
                attempt(kind, start, folder / "cache0", times)
    for kind in KINDS[1:]:
        del times[kind][:1]  # which compiled Python's modules
    off = f"{difference(outputs[KINDS[2]], outputs[KINDS[1]]):.1e}" if times[KINDS[1]] and times[KINDS[2]] else ""
    return times, {KINDS[2]: off}


def attempt(kind: str, start: Any, cache: Path, times: dict[str, list[list[float]]]) -> None:
    try:
        start(kind, cache)
    except RuntimeError as e:
        print(f"{kind}: {e}", file=sys.stderr)
        times[kind].clear()


def made_up(model: str, shapes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a model; unspecified dimensions are 1, but 128 behind the first axis."""
    import onnx
    from onnx.helper import tensor_dtype_to_np_dtype

    proto = onnx.load(model, load_external_data=False)
    stored = {t.name for t in proto.graph.initializer}
    r, found = np.random.default_rng(0), dict[str, np.ndarray]()
    for i in proto.graph.input:
        if i.name not in stored:
            tensor = i.type.tensor_type
            given: Sequence[int] = [d.dim_value or (1, 128)[axis > 0] for axis, d in enumerate(tensor.shape.dim)]
            if i.name in shapes:
                given = [int(d) for d in shapes[i.name].split("x")]
            dtype = tensor_dtype_to_np_dtype(tensor.elem_type)
            found[i.name] = (r.standard_normal(given) if dtype.kind == "f" else r.integers(0, 2, given)).astype(dtype)
    return found


if __name__ == "__main__":
    sys.exit(main())
