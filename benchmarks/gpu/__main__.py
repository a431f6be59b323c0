"""Checks everything on this GPU, measures it, times Pelton, torch and JAX, and writes the results into one file.

    python -m benchmarks.gpu [--only PART …] [--again] [--output FOLDER] [--room FOLDER] [--seconds N] [--level N]
                             [--seed N] [--jobs N] [--peers KIND …] [--warm]

Runs from the root of a source tree, with the packages triton, cuda-bindings, onnx, onnxruntime, numpy, ml_dtypes,
torch, jax and pytest (the checks of templates use its cases). Results are merged into FOLDER/GPU.json part by part,
with a page of tables (benchmarks/results/h200.md). Finished parts are not repeated without --again; failed ones run
last. --only selects parts, in their order, or `checks` and `models` for several of them. --jobs checks run in parallel,
as they mostly use the CPU; then figures are measured one by one. --room stores models, engines, compiled kernels and
all output of processes. The exit status is 1 if a check or a part failed.
"""

from __future__ import annotations

import argparse
import datetime
import math
import secrets
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pelton.backends.cuda.binding import binding
from pelton.backends.cuda.machine import describe
from pelton.errors import EngineError

from . import results
from ..child import ROOT, Failed
from .parts import CHECKS, GROUPS, KINDS, MOST_SECONDS, PARTS, Run

# with less left no part begins, and none that times a model: some runtimes would not get ready
LEAST_SECONDS, FOR_MODEL = 30, 240
PACKAGES = ("torch", "jax", "triton", "cuda-bindings", "onnx", "onnxruntime", "numpy")


def main() -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument(
        "--only", action="append", default=[], metavar="PART", help=f"{', '.join(GROUPS)}, or of {', '.join(PARTS)}"
    )
    ask.add_argument("--again", action="store_true")
    ask.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    ask.add_argument("--room", type=Path, default=ROOT / "build" / "benchmarks-gpu")
    ask.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="after which nothing runs any more; the same command goes on with what is left",
    )
    ask.add_argument("--level", type=int, default=3, help="of the builds that are timed")
    ask.add_argument("--seed", type=int, help="of the inputs, which are others every time unless it is given")
    ask.add_argument("--jobs", type=int, default=4, help="checks that run side by side")
    ask.add_argument("--peers", nargs="*", choices=list(KINDS), help="which others are timed, instead of all")
    ask.add_argument(
        "--warm", action="store_true", help="builds that are timed take kernels that were compiled before from --room"
    )
    a = ask.parse_args()
    wanted = [p for given in a.only or PARTS for p in GROUPS.get(given, (given,))]
    if unknown := [p for p in wanted if p not in PARTS]:
        ask.error(f"there is no part {unknown[0]!r}; there are {', '.join((*GROUPS, *PARTS))}")
    try:
        gpu = describe()
    except EngineError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    found = results.read(a.output, gpu["model"])
    found["machine"] = versions(gpu)
    run = Run(
        a.room.absolute(),
        secrets.randbits(31) if a.seed is None else a.seed,
        lambda said: print(said, flush=True),
        level=a.level,
        peers=None if a.peers is None else tuple(a.peers),
        warm=a.warm,
    )
    end = time.monotonic() + a.seconds
    turns = {name: 0 if a.again else turn(found["parts"].get(name)) for name in wanted}
    for name, part in performed_all(
        sorted((n for n, t in turns.items() if t is not None), key=lambda n: turns[n] or 0), run, end, a.jobs
    ):
        found["parts"][name] = part
        results.write(found, a.output)
    _, page = results.write(found, a.output)
    print("\n" + page.read_text())
    return int(bool(results.wrong(found, dict.fromkeys(wanted))))


def turn(before: Mapping[str, Any] | None) -> int | None:
    """When a part has its turn: what was never run comes first, then what failed, then what was wrong. None where
    nothing is left to do."""
    if before is None:
        return 0
    if "error" in before:
        return 1
    return 2 if before.get("wrong") else None


def performed_all(names: Sequence[str], run: Run, end: float, jobs: int) -> Iterator[tuple[str, dict]]:
    """Parts by name as they are done, those for which there is time: checks side by side, then figures one by one."""

    def begin(name: str) -> dict | None:
        if time.monotonic() + (FOR_MODEL if name in GROUPS["models"] else LEAST_SECONDS) > end:
            print(f"--- no time is left for {name}", flush=True)
            return None
        return performed(name, run, end)

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(begin, name): name for name in names if name in CHECKS}
        for done in as_completed(running):
            if (part := done.result()) is not None:
                yield running[done], part
    for name in names:
        if name not in CHECKS and (part := begin(name)) is not None:
            yield name, part


def performed(name: str, run: Run, end: float = math.inf) -> dict:
    """A part, with when it ran and how long; where it fails, or is not done at the end, with what it had found until
    then, and why."""
    print(f"--- {name}", flush=True)
    begun, part = time.monotonic(), {"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")}
    run = replace(run, part=name, end=min(begun + MOST_SECONDS, end))
    run.room.mkdir(parents=True, exist_ok=True)
    try:
        PARTS[name](run, part)
    except Exception as e:  # whatever it is, other parts go on
        part["error"] = str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
        print(f"{name} failed: {'' if isinstance(e, Failed) else traceback.format_exc()}{e}", flush=True)
    return {**part, "took_s": round(time.monotonic() - begun, 1)}


def versions(gpu: dict) -> dict[str, str]:
    """What the figures depend on."""
    _, driver = binding().cuDriverGetVersion()
    found = {
        "driver knows CUDA": f"{driver // 1000}.{driver % 1000 // 10}",
        "architecture": gpu["isa"],
        "Python": sys.version.split()[0],
    }
    kernel = Path("/proc/driver/nvidia/version")
    if kernel.exists():
        found["driver"] = next((w for w in kernel.read_text().split() if w[0].isdigit() and w.count(".") >= 1), "?")
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
