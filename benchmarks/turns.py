#!/usr/bin/env python3
"""Times two checkouts of Pelton on the same models, in turns, each installed into its own venv.

    python benchmarks/turns.py OLD-CHECKOUT NEW-CHECKOUT MODEL_OR_FOLDER … [--rounds N] [--seconds S] [--builds N]
                               [--threads N] [--level N] [--shapes x=1x3x224x224] [--venvs FOLDER] [--output TABLE.md]

Imports nothing from Pelton: installs both folders (with uncommitted changes), builds every model with both, each with
an empty cache, and alternates processes of both, which load the engine, warm up and time it. Uses public interfaces
only (`pelton build`, `pelton.load`, `Engine.inputs` and its ports, `Engine.context`, `Context.run`), so old and new may
differ in everything else. With `--builds` above 1, models are built several times, and rounds alternate between the
engines, as tuning has noise of its own.

`old / new` is the median over rounds of the ratio of a round's medians (above 1 if the new one is faster), followed by
its quartiles; a ratio with 1 between its quartiles is noise. `spread` is the slowest round by the fastest. Builds,
imports, loads (with a context, file in memory) and the memory of the process are medians, the old one first. `off` is
the largest difference between the outputs, relative to the largest output. The status is 1 if something failed, never
because of a time.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What either checkout runs: one engine, timed in a process of its own. Imports are those of its venv.
TIMED = """
import json, resource, sys, time
import numpy as np
path, threads, seconds, saved = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
begin = time.perf_counter_ns()
import pelton
imported = time.perf_counter_ns() - begin
pelton.load(path).context(threads=threads)  # once before: libraries are loaded, the file is in memory
begin = time.perf_counter_ns()
engine = pelton.load(path)
context = engine.context(threads=threads)
loaded, r, feeds = time.perf_counter_ns() - begin, np.random.default_rng(0), {}
for port in engine.inputs:
    if not all(isinstance(d, int) for d in port.shape):
        sys.exit(f"input {port.name!r} has dynamic dimensions {tuple(map(str, port.shape))}: give sizes with --shapes")
    dtype = port.numpy_dtype
    drawn = r.standard_normal(port.shape) if dtype.kind == "f" else r.integers(0, 2, port.shape)
    feeds[port.name] = drawn.astype(dtype)
clock = time.perf_counter_ns
end = clock() + int(0.3e9 * min(seconds, 1))
while True:
    outputs = context.run(feeds)
    if clock() > end:
        break
times, end = [], clock() + int(1e9 * seconds)
while clock() < end or len(times) < 5:
    begin = clock()
    context.run(feeds)
    times.append(clock() - begin)
np.savez(saved, **{str(i): a for i, a in enumerate(outputs.values())})
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"times": times, "import": imported, "load": loaded, "memory": memory}))
"""


class Failed(Exception):
    """A command that ended with another status than 0; says the last thing that it said."""


@dataclass(frozen=True)
class Checkout:
    """A folder with Pelton's sources, and the Python of the venv in which they are installed."""

    name: str
    source: Path
    venv: Path

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    def install(self) -> None:
        if not (self.venv / "bin" / "python").exists():
            run([sys.executable, "-m", "venv", str(self.venv)])
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, f"{self.source}[build]"])
        # the version says nothing about the sources
        run([*pip, "--force-reinstall", "--no-deps", str(self.source)])

    def build(self, model: Path, engine: Path, a: argparse.Namespace) -> float:
        """The seconds of a build with an empty cache."""
        begin = time.monotonic()
        shapes = [x for s in a.shapes for x in ("--shapes", s)]
        with tempfile.TemporaryDirectory(prefix="pelton-turns-cache-") as cache:
            run(
                [
                    str(self.venv / "bin" / "pelton"),
                    "build",
                    str(model),
                    "-o",
                    str(engine),
                    "--level",
                    str(a.level),
                    "--threads",
                    str(a.threads),
                    *shapes,
                ],
                {"PELTON_CACHE_DIR": cache, "XDG_CACHE_HOME": cache, "HOME": cache},
            )
        return time.monotonic() - begin

    def time(self, engine: Path, a: argparse.Namespace, saved: Path) -> dict[str, float]:
        """Of one round: the median `run`, the `import`, and `load` (with a context), in ns; `memory`, the largest that
        the process had, in bytes."""
        said = run([self.python, "-c", TIMED, str(engine), str(a.threads), str(a.seconds), str(saved)])
        found = json.loads(said.splitlines()[-1])
        return {"run": statistics.median(found.pop("times")), **found}


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **(environment or {})},
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Failed(
            f"{Path(command[0]).name} {command[1]} {command[2] if len(command) > 2 else ''}".strip()[:80]
            + f" ended with status {done.returncode}: {said[-1] if said else 'it says nothing'}"
        )
    return done.stdout


@dataclass(frozen=True)
class Row:
    """What both took on one model, round by round (see `Checkout.time`), with the seconds of builds, and how far their
    outputs are apart."""

    model: str
    old: Mapping[str, Sequence[float]]
    new: Mapping[str, Sequence[float]]
    off: float

    @property
    def ratios(self) -> list[float]:
        return [o / n for o, n in zip(self.old["run"], self.new["run"])]

    def cells(self) -> list[str]:
        low, middle, high = statistics.quantiles(self.ratios, n=4) if len(self.ratios) > 1 else self.ratios * 3
        runs = [self.old["run"], self.new["run"]]

        def both(kind: str, unit: float) -> str:
            return ", ".join(f"{statistics.median(side[kind]) / unit:.3g}" for side in (self.old, self.new))

        return [
            self.model,
            *(f"{statistics.median(t) / 1e6:.3f} ({max(t) / min(t):.2f})" for t in runs),
            f"{statistics.median(self.ratios):.3f}",
            f"{low:.3f}–{high:.3f}",
            f"{self.off:.1e}",
            both("build", 1),
            both("import", 1e6),
            both("load", 1e6),
            both("memory", 1e6),
        ]


def measure(model: Path, old: Checkout, new: Checkout, a: argparse.Namespace) -> Row:
    """Builds in turns, then rounds in turns, who is first changing from round to round."""
    with tempfile.TemporaryDirectory(prefix="pelton-turns-") as folder:
        home = Path(folder)
        taken: dict[str, dict[str, list[float]]] = {"old": defaultdict(list), "new": defaultdict(list)}
        for k in range(a.builds):
            for c in (old, new) if k % 2 == 0 else (new, old):
                taken[c.name]["build"].append(c.build(model, home / f"{c.name}{k}.pelton", a))
        for i in range(a.rounds):
            for c in (old, new) if i % 2 == 0 else (new, old):
                round = c.time(home / f"{c.name}{i % a.builds}.pelton", a, home / f"{c.name}.npz")
                for kind, value in round.items():
                    taken[c.name][kind].append(value)
        return Row(model.stem, taken["old"], taken["new"], apart(home / "old.npz", home / "new.npz"))


def apart(old: Path, new: Path) -> float:
    """The largest difference between outputs in two files, relative to each maximum; infinite where shapes differ."""
    import numpy as np

    with np.load(old) as a, np.load(new) as b:
        if len(a.files) != len(b.files) or any(a[k].shape != b[k].shape for k in a.files):
            return math.inf
        pairs = [(a[k].astype(np.float64), b[k].astype(np.float64)) for k in a.files]
    return max((float(np.abs(x - y).max() / max(np.abs(x).max(), 1e-30)) for x, y in pairs if x.size), default=0.0)


def table(rows: Sequence[Row], a: argparse.Namespace) -> str:
    heading = ["model", "old ms (spread)", "new ms (spread)", "old / new", "quartiles", "off"]
    heading += ["build s (old, new)", "import ms", "load ms", "memory MB"]
    lines = [
        (
            f"{cpu()}, {a.threads} threads, level {a.level}, {datetime.date.today().isoformat()}; {a.rounds} rounds of"
            f" {a.seconds:g} s in turns, {a.builds} build{'s' if a.builds > 1 else ''} each."
        ),
        "",
        *(f"| {' | '.join(cells)} |" for cells in (heading, ["---", *["---:"] * 9], *(r.cells() for r in rows))),
    ]
    if rows:
        lines += [
            "",
            (
                "Geometric mean of old / new:"
                f" {math.exp(statistics.mean(math.log(statistics.median(r.ratios)) for r in rows)):.3f}."
            ),
        ]
    return "\n".join(lines)


def cpu() -> str:
    with open("/proc/cpuinfo") as f:
        return next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), "CPU")


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("old", type=Path, metavar="OLD-CHECKOUT")
    ask.add_argument("new", type=Path, metavar="NEW-CHECKOUT")
    ask.add_argument("models", nargs="+", type=Path, metavar="MODEL_OR_FOLDER")
    ask.add_argument("--rounds", type=int, default=9)
    ask.add_argument("--seconds", type=float, default=2.0, help="of each round")
    ask.add_argument("--builds", type=int, default=1, help="engines of each model and checkout")
    ask.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ask.add_argument("--level", type=int, default=3)
    ask.add_argument("--shapes", action="append", default=[])
    ask.add_argument("--venvs", type=Path, default=Path("build/turns"), help="where both are installed")
    ask.add_argument("--output", type=Path, help="also write the table here")
    a = ask.parse_args()
    if min(a.rounds, a.builds, a.threads) < 1 or a.seconds <= 0:
        ask.error("--rounds, --builds and --threads are 1 and more, --seconds are above 0")
    for folder in (a.old, a.new):
        if not (folder / "pyproject.toml").exists():
            ask.error(f"{folder} is no checkout of Pelton: it has no pyproject.toml")
    models = [m.resolve() for given in a.models for m in (sorted(given.glob("*.onnx")) if given.is_dir() else [given])]
    if missing := [str(m) for m in models if not m.exists()] or ([] if models else [*map(str, a.models)]):
        ask.error(f"there is no model {missing[0]}")
    checkouts = []
    for name, source in (("old", a.old.resolve()), ("new", a.new.resolve())):
        checkouts.append(
            Checkout(
                name, source, (a.venvs / f"{name}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}").resolve()
            )
        )
        checkouts[-1].install()
    rows, failed = [], False
    for model in models:
        try:
            rows.append(measure(model, *checkouts, a))
            print(f"| {' | '.join(rows[-1].cells())} |", flush=True)
        except Failed as e:
            failed = True
            print(f"{model.name}: {e}", file=sys.stderr, flush=True)
    print("\n" + table(rows, a))
    if a.output:
        a.output.write_text(table(rows, a) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
