"""Times Pelton beside other runtimes, each in its own process, in turns: changes of machine speed hit all."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pelton.engine import file
from pelton.errors import InputError

from . import text
from .peer import PACKAGES, VARIANTS
from .timing import NOISY, Times, noise, of_streams

PEERS = tuple(p for p in PACKAGES if p != "pelton")
# runtimes whose process accepts new inputs, one after the other
RUNNERS = ("onnxruntime", *VARIANTS)
# of the largest output: a runtime with a larger difference computes something else
WRONG = 3e-2
# seconds for a runtime's threads to fall asleep before the next one's turn
PAUSE = 0.05
# Runs `peer.py` by its path, without its folder on the module path: files beside it have names of standard modules.
START = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@dataclass
class Measured:
    """One runtime: the times of its runs by round, or the reason why there are none. `off` is the largest difference
    from Pelton's outputs, relative to their largest value. `split`: its streams, if runs overlap, and the threads of
    each."""

    runtime: str
    version: str = ""
    failure: str = ""
    rounds: list[Times] = field(default_factory=list)
    off: float = 0.0
    split: tuple[int, int] | None = None

    @property
    def costs(self) -> list[float]:
        """Nanoseconds of a run in each round: the median, or with overlapping runs, the round's time per run."""
        if self.split:
            return [1e9 / r.throughput for r in self.rounds]
        return [float(np.median(r.ns)) for r in self.rounds]

    @property
    def median(self) -> float:
        """Nanoseconds: the median of the rounds' costs."""
        return statistics.median(self.costs)

    @property
    def speed(self) -> str:
        """The median for tables: milliseconds, or runs per second if runs overlap."""
        if self.split:
            return f"{1e9 / self.median:.1f}"
        return f"{self.median / 1e6:.{3 if self.median >= 1e6 else 4}f}"

    def lead(self, other: Measured) -> float:
        """Returns its speedup over another: the ratio of their printed medians, which readers can check."""
        ours, theirs = float(self.speed), float(other.speed)
        return ours / theirs if self.split else theirs / ours

    @property
    def spread(self) -> float:
        """The slowest round's cost divided by the fastest round's."""
        return max(self.costs) / min(self.costs)

    @property
    def right(self) -> bool:
        """True if it computed the same as Pelton, within the tolerance between runtimes."""
        return not self.failure and self.off <= WRONG

    def json(self) -> dict[str, Any]:
        if self.failure:
            return {"runtime": self.runtime, "why_not": self.failure}
        times = Times(np.concatenate([r.ns for r in self.rounds]))
        if self.split:
            kind = {"runs_per_second": 1e9 / self.median, "streams": self.split[0], "threads": self.split[1]}
        else:
            kind = {"median_ms": self.median / 1e6}
        return {
            "runtime": self.runtime,
            "version": self.version,
            **kind,
            "spread": self.spread,
            "off": self.off,
            "right": self.right,
            "latency_ms": times.latency(),
        }


class _Process:
    """A process of `peer.py`, which answers each line on stdin with a line of JSON."""

    def __init__(
        self, python: str, runtime: str, path: str, feeds: str, splits: Sequence[Sequence[int]], outputs: Sequence[str]
    ):
        self._said = tempfile.TemporaryFile("w+", errors="replace")
        try:
            self._process = subprocess.Popen(
                [
                    python,
                    "-c",
                    START,
                    str(Path(__file__).with_name("peer.py")),
                    runtime,
                    path,
                    feeds,
                    json.dumps(splits),
                    json.dumps(list(outputs)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
        except OSError as e:
            raise InputError(f"the Python {python!r} does not start: {e.strerror}") from None

    def ask(self, line: str = "") -> dict[str, Any]:
        """Returns the answer to a line, or to the start of the process if the line is empty. Raises RuntimeError with
        its last output line if it ended instead."""
        assert self._process.stdin and self._process.stdout
        try:
            if line:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            status = self._process.wait()
            self._said.seek(0)
            last = [s for s in self._said.read().splitlines() if s.strip()]
            raise RuntimeError(last[-1] if last else f"it ended with status {status}")
        return json.loads(reply)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


def check_installed(names: Sequence[str], python: str | None = None) -> None:
    """Raises InputError for runtimes that a Python (default: this one) lacks, before they are needed."""
    packages = dict.fromkeys(p for n in names for p in PACKAGES[VARIANTS.get(n, n)])
    if not packages:
        return
    code = "import importlib.util, sys; print(*(p for p in sys.argv[1:] if importlib.util.find_spec(p) is None))"
    where = python or sys.executable
    try:
        asked = subprocess.run([where, "-c", code, *packages], capture_output=True, text=True)
    except OSError as e:
        raise InputError(f"the Python {where!r} does not start: {e.strerror}") from None
    if asked.returncode:
        lines = asked.stderr.strip().splitlines()
        raise InputError(f"{where!r} is no Python that works: {lines[-1] if lines else asked.returncode}")
    if missing := asked.stdout.split():
        raise InputError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed for {where}: pip install"
            f" {' '.join(missing)}, or name a Python that has it with --peers-python"
        )


def compare(
    engine: str,
    model: str,
    feeds: Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    threads: int = 1,
    splits: Sequence[Sequence[int]] = (),
    seconds: float,
    rounds: int,
    folder: str,
    python: str | None = None,
) -> list[Measured]:
    """Times an engine file and other runtimes on its model; Pelton is first in the list.

    Runs execute one after the other, each with all `threads`, or overlap, by one of the `splits`: streams, and the
    threads of each. `seconds`: for each runtime in total; `folder`: for temporary files; `python`: runs the others
    (default: this one).
    """
    unknown = [n for n in names if n not in PEERS]
    if unknown:
        raise InputError(f"{unknown[0]!r} cannot be compared with; there are {', '.join(PEERS)}")
    outputs = [p.name for p in file.read(engine).outputs]
    feeds_file = os.path.join(folder, "feeds.npz")
    saved: Any = dict(feeds)
    np.savez(feeds_file, **saved)
    timings = [Measured(name) for name in dict.fromkeys(("pelton", *names))]
    running: dict[str, _Process] = {}
    try:
        for m in timings:
            ours = m.runtime == "pelton"
            running[m.runtime] = _Process(
                sys.executable if ours else python or sys.executable,
                m.runtime,
                engine if ours else model,
                feeds_file,
                splits or [(1, threads)],
                outputs,
            )
            started = _ask(m, running[m.runtime], "")
            if splits and not m.failure:
                m.split = tuple(started["split"])
        for turn in range(rounds):
            for m in timings[turn % len(timings) :] + timings[: turn % len(timings)]:
                if not m.failure:
                    time.sleep(PAUSE)
                    timed = _ask(m, running[m.runtime], f"time {seconds / rounds}")
                    if not m.failure:
                        m.rounds.append(of_streams(timed["spans"], timed["start"], timed["end"] if m.split else None))
        for m in timings:
            _ask(m, running[m.runtime], "save " + os.path.join(folder, m.runtime + ".npz"))
    finally:
        for process in running.values():
            process.end()
    for m in timings:
        if not m.failure and not timings[0].failure:
            m.off = difference(os.path.join(folder, m.runtime + ".npz"), os.path.join(folder, "pelton.npz"))
    return timings


def onnx_file(path: str, model: Any, folder: str) -> str:
    """Returns the file of a model for other runtimes: its own if it is ONNX, else the result of `pelton convert`, in
    this folder. model: in the form for importers."""
    from pelton import exporters, importers

    if importers.registry.format_of(model).name == "ONNX":
        return path
    converted = os.path.join(folder, "model.onnx")
    exporters.to_onnx(importers.load(model).graph, converted)
    return converted


class PeerRunner:
    """Another runtime in a process of its own, as a function of inputs by name. `names`: those of the outputs."""

    def __init__(
        self,
        runtime: str,
        model: str,
        feeds: Mapping[str, np.ndarray],
        names: Sequence[str],
        *,
        threads: int,
        folder: str,
        python: str | None = None,
    ):
        """Starts it on the first inputs; raises InputError if it is not installed there, or cannot run the model."""
        self.runtime, self._names, self._folder = runtime, names, folder
        self._process = _Process(python or sys.executable, runtime, model, self._save(feeds), [(1, threads)], names)
        try:
            answer = self._ask("")
            if "missing" in answer:
                package = PACKAGES[VARIANTS.get(runtime, runtime)][0]
                raise InputError(
                    f"{package} is not installed for {python or sys.executable} ({answer['missing']}): pip install"
                    f" {package}, or name a Python that has it with --peers-python"
                )
        except BaseException:
            self.end()
            raise
        self.version = str(answer.get("version", ""))

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._ask("run " + self._save(inputs))
        saved = os.path.join(self._folder, f"{self.runtime}.outputs.npz")
        self._ask("save " + saved)
        with np.load(saved) as archive:
            arrays = [archive[str(i)] for i in range(len(archive.files))]
        if len(arrays) != len(self._names):
            raise InputError(
                f"{self.runtime} has {len(arrays)} outputs, the engine {len(self._names)}"
                f" ({', '.join(self._names)}); engines built with --outputs cannot be compared"
            )
        return dict(zip(self._names, arrays))

    def end(self) -> None:
        self._process.end()

    def _save(self, inputs: Mapping[str, np.ndarray]) -> str:
        path = os.path.join(self._folder, f"{self.runtime}.feeds.npz")
        saved: Any = dict(inputs)
        np.savez(path, **saved)
        return path

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            return self._process.ask(line)
        except RuntimeError as e:
            raise InputError(f"{self.runtime} does not run the model: {text.shortened(str(e), 300)}") from None


def _ask(m: Measured, process: _Process, line: str) -> dict[str, Any]:
    if m.failure:
        return {}
    try:
        answer = process.ask(line)
    except RuntimeError as e:
        m.failure = text.shortened(f"failed: {e}", 200)
        return {}
    if "missing" in answer:
        m.failure = f"not installed there ({answer['missing']}): pip install {' '.join(PACKAGES[m.runtime])}"
    m.version = answer.get("version", m.version)
    return answer


def difference(theirs: str, ours: str) -> float:
    """Returns the largest difference between outputs in two files, relative to the largest value; infinite if their
    number or sizes differ."""
    with np.load(theirs) as a, np.load(ours) as b:
        pairs = [(a[k].astype(np.float64).ravel(), b[k].astype(np.float64).ravel()) for k in b.files if k in a.files]
        if len(pairs) != len(a.files) or len(a.files) != len(b.files) or any(x.size != y.size for x, y in pairs):
            return float("inf")
    return max((float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in pairs if x.size), default=0.0)


def table(found: Sequence[Measured]) -> str:
    """Formats a row per runtime; the last column is Pelton's speedup over those that compute the same."""
    ours = found[0]
    overlap = any(m.split for m in found)
    speed = ("streams", "runs/s") if overlap else ("median ms",)
    rows: list[tuple[str, ...]] = [("runtime", "version", *speed, "spread", "off by", "Pelton is")]
    for m in found:
        if m.failure:
            rows.append((m.runtime, "", *("–" for _ in speed), "", "", ""))
        else:
            if m is ours or ours.failure:
                faster = ""
            elif m.right:
                faster = f"{ours.lead(m):.2f}× as fast"
            else:
                faster = "does not count: other outputs"
            rows.append(
                (
                    m.runtime,
                    text.shortened(m.version, 16),
                    *((f"{m.split[0]} × {m.split[1]}",) if m.split else ()),
                    m.speed,
                    f"{m.spread:.2f}",
                    "" if m is ours else f"{m.off:.1e}",
                    faster,
                )
            )
    lines = [
        text.table(rows, "ll" + "r" * (len(rows[0]) - 2)),
        *(f"{m.runtime}: {m.failure}" for m in found if m.failure),
    ]
    noisy = [m for m in found if not m.failure and m.spread > NOISY]
    if noisy:
        lines.append(noise(f"the median of {' and '.join(m.runtime for m in noisy)}", max(m.spread for m in noisy)))
    return "\n".join(lines)
