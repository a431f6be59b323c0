"""Measures one model file: its inputs, its results in float64, in Pelton and in ONNX Runtime, and times in turns."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pelton

from pelton.backends.cpu import describe

from ..child import ROOT, Child, Failed
from .feeds import Model

TRIES, SECONDS = 160, 240.0  # for finding inputs of one size
LARGEST = 4 << 20  # elements of an input
# seconds for a runtime's threads to fall asleep before the next one's turn
PAUSE = 0.05
# a largest value below it, as of a sigmoid that is nearly 0, ONNX Runtime may miss by far
SMALL = 1e-5
MINIMUM, REPEATS = 0.95, 3  # a ratio below it counts where it is the median of so many
RUN = 120.0  # seconds in which a run has to end
VERSION = 4  # of what is kept; of another one, it is made again


@dataclass(frozen=True)
class Bench:
    """How models are run.

    `seconds`: for each runtime and shape in all, 0 for no times; `patience`: seconds for a build, `exact`: for an
    evaluation in float64; `memory`: GB for each process.
    """

    room: Path
    peers: str
    threads: int
    level: int
    seconds: float
    rounds: int
    patience: float
    exact: float
    memory: int

    def runtime(self, module: str, model: Path, plain: bool = False) -> Child:
        ours = module == "pelton"
        arguments = {
            "module": module,
            "model": str(model),
            "threads": self.threads,
            "memory": self.memory,
            "plain": plain,
            "level": self.level if ours else None,
        }
        return Child(
            "benchmarks.real.runtime",
            "Runtime",
            arguments,
            environment={"PELTON_CACHE_DIR": str(self.room / "cache")},
            python=sys.executable if ours else self.peers,
        )


def digest(model: Path) -> str:
    """Of a file, and of files beside it that may hold its weights."""
    found = hashlib.sha256()
    for file in (model, *sorted(model.parent.glob(model.name + "*data"))):
        found.update(file.read_bytes())
    return found.hexdigest()[:24]


# ---- what a model is fed, and what it means


def examined(model: Path, hints: Mapping[str, Any], bench: Bench, tell: Any) -> dict[str, Any]:
    """Facts of a file and up to two cases, each with its inputs and its results in float64 and in ONNX Runtime.

    Arrays are in files of a folder, and kept once found.
    """
    folder = bench.room / "cases" / digest(model)
    kept = folder / "cases.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        if found.get("version") == VERSION and found.get("hints") == json.loads(json.dumps(hints)):
            return found | {"folder": str(folder)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        about = Model(model)
        facts: dict[str, Any] = {
            "kinds": about.kinds,
            "quantized": about.quantized,
            "bytes": model.stat().st_size,
            "producer": f"{about.proto.producer_name} {about.proto.producer_version}".strip(),
            "opset": max((o.version for o in about.proto.opset_import if o.domain in ("", "ai.onnx")), default=0),
        }
    except Exception as e:  # a file that is no model, in whatever way
        return {"unread": f"{type(e).__name__}: {e}"[:300]}
    facts |= {"version": VERSION, "hints": dict(hints), "folder": str(folder), "cases": []}
    asked = Asked(model, bench)
    try:
        if "failed" in asked.loaded:
            facts["unread"] = asked.loaded["failed"]
        else:
            first = found_sizes(about, about.assignments(), hints, asked, folder / "0.npz")
            facts["cases"] += [first] if first else []
            if first and about.open:
                second = found_sizes(about, about.others(first["sizes"]), hints, asked, folder / "1.npz")
                facts["cases"] += [second] if second else []
        facts["refused"] = asked.refused
    finally:
        asked.child.end()
    for k, case in enumerate(facts["cases"]):
        tell(f"  meaning of {said(case)}")
        case |= meaning(model, folder, k, bench, facts["quantized"])
    kept.write_text(json.dumps(facts, indent=1))
    return facts


def said(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in case["shapes"].items())


class Asked:
    """ONNX Runtime on one model, started again where inputs end it."""

    def __init__(self, model: Path, bench: Bench):
        self.model, self.bench, self.refused = model, bench, ""
        self.loaded = self._start()

    def _start(self) -> dict[str, Any]:
        self.child = self.bench.runtime("onnxruntime", self.model)
        try:
            return self.child.ask("load", self.bench.patience)
        except Failed as e:
            return {"failed": str(e)}

    def takes(self, feeds: Path, keep: Path) -> str:
        """The reason for which it rejects these inputs; empty where it runs."""
        try:
            reply = self.child.ask("run", RUN, feeds=str(feeds), keep=str(keep))
        except Failed as e:
            reply = {"failed": str(e)}
            self.child.end()
            self._start()
        self.refused = reply.get("failed", "")
        return self.refused


def found_sizes(
    about: Model, proposals: Iterator[dict[str, int]], hints: Mapping[str, Any], asked: Asked, feeds: Path
) -> dict[str, Any] | None:
    """The first sizes that ONNX Runtime runs; none where it takes none of them."""
    end, seen = time.monotonic() + SECONDS, set[tuple]()
    for sizes in proposals:
        key = tuple(sorted(sizes.items()))
        if key in seen:
            continue
        if len(seen) >= TRIES or time.monotonic() > end:
            return None
        seen.add(key)
        if max((math.prod(shape) for shape in about.shapes(sizes).values()), default=0) > LARGEST:
            continue
        for limit in (0, 10, 2, 1):  # indices into what the graph computes: below its size
            arrays = about.draw(sizes, hints, limit)
            stored: dict[str, Any] = {n: a.astype(str) if a.dtype.kind == "O" else a for n, a in arrays.items()}
            np.savez(feeds, **stored)
            wrong = asked.takes(feeds, feeds.with_name(f"{feeds.stem}.ort.npz"))
            if not wrong:
                return {"sizes": sizes, "shapes": {n: list(a.shape) for n, a in arrays.items()}}
            if not ("out of" in wrong or "indices" in wrong or "index" in wrong):
                break
    return None


def meaning(model: Path, folder: Path, k: int, bench: Bench, quantized: bool) -> dict[str, Any]:
    """Errors of ONNX Runtime with and without its optimizations, against float64, or itself if that takes too long.

    Of quantized models also the error of an evaluation in the model's own types: a value that is halfway between two
    whole numbers may become either of them, and everything behind it changes."""
    files = {name: folder / f"{k}.{name}.npz" for name in ("ort", "plain", "truth", "rounded")}
    feeds, plain, why = str(folder / f"{k}.npz"), False, ""
    with bench.runtime("onnxruntime", model, plain=True) as child:
        try:
            plain = "failed" not in child.ask("load", bench.patience) and "failed" not in child.ask(
                "run", RUN, feeds=feeds, keep=str(files["plain"])
            )
        except Failed:
            pass  # then there is no such answer
    with Child("benchmarks.real.truth", "Truth", {"memory": bench.memory}) as child:
        try:
            rounded = str(files["rounded"]) if quantized else ""
            asked = child.ask(
                "of", bench.exact, model=str(model), feeds=feeds, keep=str(files["truth"]), rounded=rounded
            )
            why = asked.get("failed", "")
        except Failed as e:
            why = str(e)
    if not why and off(files["ort"], files["truth"]) == math.inf:
        why = "of other shapes"
    judge = "truth"
    if why:
        judge = "plain" if plain else "ort"
    return {
        "judge": judge,
        "why": why,
        "ort_off": off(files["ort"], files[judge]),
        "plain_off": off(files["plain"], files[judge]) if plain else math.nan,
        "rounded_off": off(files["rounded"], files[judge]) if quantized and judge == "truth" else 0.0,
    }


def off(got: Path, want: Path, least: float = 1e-9) -> float:
    """The largest difference over all outputs, each relative to its maximum (or `least`, where that is larger).

    Infinite where shapes, texts, infinities or NaN differ.
    """
    with np.load(got) as a, np.load(want) as b:
        if len(a.files) != len(b.files):
            return math.inf
        return max((difference(a[k], b[k], least) for k in b.files), default=0.0)


def difference(x: np.ndarray, y: np.ndarray, least: float) -> float:
    if x.shape != y.shape:
        return math.inf
    if "U" in (x.dtype.kind, y.dtype.kind):
        return 0.0 if np.array_equal(x.astype(str), y.astype(str)) else math.inf
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(np.isfinite(x), finite) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return math.inf
    x, y = x[finite], y[finite]
    return float(np.abs(x - y).max(initial=0.0) / max(least, np.abs(y).max(initial=0.0)))


# ---- Pelton


def measured(model: Path, facts: Mapping[str, Any], bench: Bench, tell: Any) -> dict[str, Any]:
    """What Pelton does with each case, and the times of both."""
    folder = Path(facts["folder"])
    found: dict[str, Any] = {
        "cases": [],
        "level": bench.level,
        "threads": bench.threads,
        "version": pelton.__version__,
        "timed": bench.seconds > 0,
        "made": made(),
    }
    theirs = bench.runtime("onnxruntime", model)
    ours = bench.runtime("pelton", model)
    try:
        start = time.monotonic()
        wrong = _failed(ours, "load", bench.patience)
        if bench.seconds:
            _failed(theirs, "load", bench.patience)
        for k, case in enumerate(facts["cases"]):
            row: dict[str, Any] = {}
            found["cases"].append(row)
            if wrong:
                row["failed"] = wrong
                continue
            kept = folder / f"{k}.pelton.npz"
            row["failed"] = _failed(ours, "run", bench.patience, feeds=str(folder / f"{k}.npz"), keep=str(kept))
            row["off"] = off(kept, folder / f"{k}.{case['judge']}.npz") if not row["failed"] else math.nan
            plain = folder / f"{k}.plain.npz"
            row["apart"] = off(plain, folder / f"{k}.{case['judge']}.npz", SMALL) if plain.exists() else 0.0
            tell(f"  {said(case)}: {row['failed'] or format(row['off'], '.1e')}")
            if row["failed"] and not ours.alive:
                ours = bench.runtime("pelton", model)
                wrong = _failed(ours, "load", bench.patience)
            elif bench.seconds and not row["failed"]:
                if k:  # the engine was tuned for the first shape
                    row["tunings"] = ours.ask("settle", bench.patience + RUN, seconds=bench.patience)
                row |= repeated(functools.partial(times, ours, theirs, folder / f"{k}.npz", bench))
        found["build_s"] = time.monotonic() - start
        if not wrong and ours.alive:
            found["steps"] = ours.ask("steps", RUN)
        found["onnxruntime"] = theirs.ask("version", RUN)
    except Failed as e:
        found["cases"] += [{"failed": str(e)}] * (len(facts["cases"]) - len(found["cases"]))
    finally:
        ours.end()
        theirs.end()
    return found


def _failed(child: Child, what: str, seconds: float, **given: Any) -> str:
    try:
        return child.ask(what, seconds, **given).get("failed", "")
    except Failed as e:
        return f"the process ended: {e}"


def repeated(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row of times: where Pelton seems slower, the one with the median ratio of three that were taken in a row."""
    rows = [measure()]
    if rows[0].get("ratio", math.inf) >= MINIMUM:
        return rows[0]
    rows += [measure() for _ in range(REPEATS - 1)]
    ranked = sorted((r for r in rows if "ratio" in r), key=lambda r: r["ratio"])
    return ranked[len(ranked) // 2] | {"repeats": [r.get("ratio") for r in rows]}


@functools.cache
def made() -> dict[str, str]:
    """The machine, and the commit of the source tree: rows of one page should have the same."""
    asked = {
        "commit": ["rev-parse", "--short=12", "HEAD"],
        "changes": ["status", "--porcelain", "--untracked-files=no"],
    }
    said = {}
    for name, arguments in asked.items():
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=RUN)
            said[name] = done.stdout.strip() if done.returncode == 0 else ""
        except OSError:
            said[name] = ""
    commit = said["commit"] or "unknown"
    return {"machine": describe()["model"], "commit": f"{commit} with changes" if said["changes"] else commit}


def times(ours: Child, theirs: Child, feeds: Path, bench: Bench) -> dict[str, Any]:
    """Medians in ms over rounds in turns, of four digits, and their ratio (over 1: Pelton is faster)."""
    wrong = _failed(theirs, "run", RUN, feeds=str(feeds))
    if wrong:
        return {"untimed": wrong}
    rounds: dict[str, list[float]] = {"ms": [], "ort_ms": []}
    pair = [("ms", ours), ("ort_ms", theirs)]
    for turn in range(bench.rounds):
        for name, child in pair[::-1] if turn % 2 else pair:
            time.sleep(PAUSE)
            rounds[name].append(
                statistics.median(
                    child.ask("time", bench.seconds / bench.rounds + RUN, seconds=bench.seconds / bench.rounds)
                )
                / 1e6
            )
    medians = {name: float(f"{statistics.median(r):.4g}") for name, r in rounds.items()}  # as the page prints them
    return medians | {"ratio": medians["ort_ms"] / medians["ms"], "rounds": rounds}
