"""Background tuning for sessions whose runs keep coming at sizes far from those of their engine.

Sizes of which every axis is between the same powers of two form a range. When runs in a range other than the engine's
have taken enough time, a child process of low priority builds an engine tuned for the sizes of the last of them, and
races it against the present one. The session keeps it for this range if it is faster. No run waits for any of this.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pelton.engine.constants import length
from pelton.errors import Error, InputError
from pelton.logs import Logger
from pelton.options import Options
from pelton.runtime import Engine, load
from pelton.system.forks import survives_fork
from pelton.system.temporary import temporary_folder

from .allowance import Allowance
from .changes import Changes
from .pool import Shapes, format_shapes

log = Logger("pelton.session")

MAX_TUNINGS = 4  # of a session
MAX_RANGES = 256  # ranges with counted run times, and shapes with a known range
LONGEST = 900.0  # seconds until a child is stopped
MEMORY = 4  # a child may use this multiple of its constants' size, within the bytes for engines

Range = tuple[tuple[int, ...], ...]
Run = Callable[[Engine, Mapping[str, Any], Mapping[str, Any] | None], dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """A child's task: the model with the session's changes, the options of its engines, the sizes to tune for, and the
    engine's key in the cache."""

    model: Path | bytes
    sizes: Mapping[str, int]
    changes: Changes
    options: Options
    shapes: Shapes
    key: str


@dataclass(frozen=True)
class Tuning:
    """The result of a tuning: "running", "kept", "no faster", or the error; `gain` is the speedup; begin and end are
    nanoseconds of `time.monotonic_ns`."""

    shapes: Shapes
    outcome: str
    gain: float | None
    begin: int
    end: int


class Tuner:
    """The background-tuned engines of a session, by range of sizes.

    after: seconds of runs in a range before it is tuned. request: creates the request to a child for some shapes.
    """

    def __init__(self, after: float, max_bytes: int, request: Callable[[Shapes], Request]):
        self._after, self._max_bytes, self._request = after, max_bytes, request
        self._ended: list[Tuning] = []
        self._engines: dict[Range, Engine] = {}
        self._spent: dict[Range, float] = {}
        # names and shapes → the engine tuned for them, if any: small models run in microseconds
        self._routes: dict[tuple[Any, ...], Engine | None] = {}
        self._settled: set[Range] = set()  # ranges that are tuned, or need no tuning
        self._allowance = Allowance()
        self._child = Child()
        self._unlock()
        survives_fork(self)
        weakref.finalize(self, Child.stop, self._child)

    def _unlock(self) -> None:
        """Resets the state: after a fork, the child has no tuning in progress."""
        self._lock, self._idle = threading.Lock(), threading.Event()
        self._idle.set()
        self._running: Tuning | None = None

    def run(self, run: Run, engine: Engine, fed: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """Runs the engine for the sizes of these arrays, `engine` if there is no other."""
        try:
            key = (*fed, *[a.shape for a in fed.values()])
        except AttributeError:
            key = (*fed, *map(np.shape, fed.values()))
        if key not in self._routes:
            place = range_of(fed)
            if place not in self._engines and place not in self._settled:
                begin = time.perf_counter()
                outputs = run(engine, fed, out)
                self._count(place, engine, fed, time.perf_counter() - begin)
                return outputs
            if len(self._routes) >= MAX_RANGES:
                self._routes.clear()
            self._routes[key] = self._engines.get(place)
        tuned = self._routes.get(key)
        if tuned is not None:
            try:
                return run(tuned, fed, out)
            except InputError:
                pass  # it may accept fewer sizes than `engine`, so `engine` decides
        return run(engine, fed, out)

    def tunings(self, wait: float = 0.0) -> list[Tuning]:
        """Returns all tunings, after the one in progress has ended or that many seconds have passed."""
        self._idle.wait(wait)
        running = self._running
        return [*self._ended, *([] if running is None else [running])]

    def _count(self, place: Range, engine: Engine, fed: Mapping[str, Any], seconds: float) -> None:
        spent = self._spent.get(place)
        if spent is None:
            if place == range_of_shapes(engine.shapes()) or engine.parts != (engine,):
                self._settled.add(place)
                return
            if len(self._spent) >= MAX_RANGES:
                self._spent.clear()
            spent = 0.0
        self._spent[place] = spent = spent + seconds
        if spent >= self._after:
            self._begin(place, engine, {name: np.shape(a) for name, a in fed.items()})

    def _begin(self, place: Range, engine: Engine, shapes: Shapes) -> None:
        with self._lock:
            if place in self._settled or not self._idle.is_set() or self._allowance.is_spent:
                return
            if len(self._settled) > MAX_RANGES:
                self._settled.clear()
            self._settled.add(place)
            why = ""
            if len(self._ended) >= MAX_TUNINGS:
                why = f"a session tunes {MAX_TUNINGS} times in the background"
            elif MEMORY * length(engine.plain.constants) > self._max_bytes:
                why = "its constants are too large for a second process"
            if why:
                log.info("%s: runs of %s stay as they are", why, format_shapes(shapes))
                return
            self._idle.clear()
            now = time.monotonic_ns()
            self._running = Tuning(shapes, "running", None, now, now)
        log.info(
            "tuning for %s in the background: runs of such sizes have taken %.1f s", format_shapes(shapes), self._after
        )
        args = weakref.ref(self), self._child, self._request(shapes), engine, place, self._idle
        threading.Thread(target=_tune, args=args, name="pelton-tuning", daemon=True).start()

    def keep(self, place: Range, engine: Engine | None, tuning: Tuning) -> None:
        self._allowance.spend((tuning.end - tuning.begin) / 1e9)
        if engine is not None:
            self._engines[place] = engine
            self._routes.clear()
        self._ended.append(tuning)
        self._running = None
        gain = "" if tuning.gain is None else f", {tuning.gain:.2f} times as fast"
        log.info("the engine tuned for %s: %s%s", format_shapes(tuning.shapes), tuning.outcome, gain)


class Child:
    """The child process that tunes, owned by the process that started it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = self._stopped = 0

    def ask(self, request: Request, folder: str) -> int:
        """Runs a child, which writes to the folder, and returns its exit status."""
        home = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.tuning_child", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "PELTON_PROGRESS": "0"},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        try:
            if self._stopped:
                self.stop()
            # stdin stays open: a child reads its end once the parent is gone
            self._process.stdin.write(pickle.dumps(request))
            self._process.stdin.flush()
            return self._process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.stop()
            self._process.wait()
            self._process.stdin.close()

    def stop(self) -> None:
        """Ends the process and its children, if this process started it."""
        self._stopped, process = 1, self._process
        if process is not None and process.poll() is None and self._owner == os.getpid():
            os.killpg(process.pid, signal.SIGKILL)


def _tune(
    tuner: weakref.ref[Tuner], child: Child, request: Request, engine: Engine, place: Range, idle: threading.Event
) -> None:
    """Runs a tuning in a thread, without a reference to the session, which may be freed meanwhile."""
    begin, winner, gain = time.monotonic_ns(), None, None
    try:
        with temporary_folder() as folder:
            engine.save(Path(folder) / "present.pelton")
            status = child.ask(request, folder)
            verdict = Path(folder) / "verdict.json"
            outcome = f"stopped (status {status})"
            if status == 0 and verdict.exists():
                outcome, gain = json.loads(verdict.read_text())
                winner = load(Path(folder) / "tuned.pelton").start() if outcome == "kept" else None
    except (OSError, Error, ValueError) as e:
        outcome = f"failed: {e}"
    holder = tuner()
    if holder is not None:
        holder.keep(place, winner, Tuning(dict(request.shapes), outcome, gain, begin, time.monotonic_ns()))
    idle.set()


def can_start() -> bool:
    """True if this process knows its Python executable: false if Python is embedded."""
    return Path(sys.executable or "").name.startswith(("python", "pypy"))


def range_of(fed: Mapping[str, Any]) -> Range:
    """Returns the powers of two between which the sizes of arrays are."""
    return tuple([tuple([d.bit_length() for d in np.shape(fed[name])]) for name in sorted(fed)])


def range_of_shapes(shapes: Shapes) -> Range:
    return tuple(tuple(d.bit_length() for d in shapes[name]) for name in sorted(shapes))


def described(tuning: Tuning) -> dict[str, Any]:
    """Describes a tuning to users."""
    fields = asdict(tuning)
    begin, end = fields.pop("begin"), fields.pop("end")
    return {**fields, "seconds": (end - begin) / 1e9}
