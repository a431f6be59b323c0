"""What the runtime asks of a kind of device, and where each kind is.

An engine becomes a run in five steps, each of them a backend's:

    code = backend.open(plan)                      # looks at the engine's code, on any machine
    loaded = backend.load(code, device)            # code and constants on a device, once, for all contexts
    workspace = backend.allocate(loaded, threads)  # the working memory of a context
    ready = workspace.prepare(values, outdated)    # the plan for one set of sizes, every address in place
    ready.run(inputs, out)

A new kind of device is a folder with a file `backend.py`, whose `BACKEND` is a `Backend`, and its line in `FOLDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from pelton.engine.model import EnginePlan, Port, Step
from pelton.engine.shape_plan import ResolvedPlan
from pelton.errors import EngineError

from .plan import Plan

FOLDERS = {"cuda": "cuda", "reference": "reference"}  # arch of a target → folder; all others are CPUs
AGAIN = "build it on, or for, this machine"  # how messages end that say that an engine is for others

# a step, and when it began and ended, in nanoseconds of `time.monotonic_ns`
Stamped = tuple[Step, int, int]
ProgressCallback = Callable[[str, int, int], Any]  # gets a stage, how much of it is done, and of how much


class Ready(Protocol):
    """A plan for one set of sizes. It runs one thing at a time; the context sees to that."""

    @property
    def resolved(self) -> ResolvedPlan: ...
    @property
    def call(self) -> Callable[[dict[str, Any]], dict[str, Any] | None] | None:
        """Runs it on arrays by name that are just what its ports take and gives fresh ones; gives None, and runs
        nothing, where one is not. None itself where the device has no such short way."""

    @property
    def plain(self) -> EnginePlan:
        """The engine with numbers everywhere."""

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name: fresh arrays, or what `out` gives, which is written where it lies. InputError for arrays
        that do not fit their ports."""

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """A run in which no two steps overlap, and when each began and ended."""

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Every step with the nanoseconds that it took, in a run in which no two overlap."""

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, Any]:
        """A run of one step after the other; before each and after the last, `see` is called with the number of steps
        done, and with what has `memory` and `plain`."""

    def memory(self, buffer: int) -> np.ndarray:
        """The bytes of a buffer, or its strings, as they are now in a watched run."""


class Workspace(Protocol):
    """Working memory for one run at a time, which all sets of sizes share."""

    @property
    def threads(self) -> int: ...
    @property
    def stream(self) -> int | None:
        """The number of a stream of its own where runs can be put on streams (see `Streaming`); None where a run is
        over when `run` returns."""

    @property
    def machine(self) -> str:
        """What it runs on, by its marketing name."""

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> Ready:
        """The plan for these values of the symbols. `outdated` is called where what was prepared before is of no use
        any more: the memory has to grow. EngineError where there is not enough."""

    def import_inputs(self, inputs: Any) -> Any:
        """Inputs by name, arrays of other libraries as this device reads them. InputError where one cannot be read."""

    def fit(self, port: Port, given: Any) -> Any:
        """An array as the port needs it; InputError that says what is wrong with it."""

    def synchronize(self) -> None:
        """Waits until all runs are over."""


class Streaming(Workspace, Protocol):
    """A workspace of which runs can be put on streams; what it prepares is `Streamed`."""

    @property
    def stream(self) -> int: ...
    def import_inputs(self, inputs: Any, stream: int | None = None) -> Any: ...


class Streamed(Ready, Protocol):
    """What runs without being waited for."""

    def run_async(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, stream: int | None
    ) -> dict[str, Any]: ...


class Loaded(Protocol):
    """The code and constants of an engine on a device. `plan` may have other kernels for some steps than the one that
    was opened; `device` is whatever the backend calls one."""

    @property
    def plan(self) -> Plan: ...
    @property
    def device(self) -> Any: ...


@dataclass(frozen=True)
class Backend:
    """A kind of device.

    check: EngineError where an engine of this target, which messages call so, is not for this machine, as far as that
    shows without a device. open: what `load` takes; EngineError for code that is not of this backend. load: onto the
    device of that number, or onto one given as an object. allocate: for a number of threads, or the usual one. tune:
    the engines by the fastest of the kernels that they carry, timed on a device until a deadline (of `time.monotonic`);
    InputError where engines of this kind carry none. The name is what messages call the whole.
    """

    check: Callable[[str, Mapping[str, Any]], None]
    open: Callable[[Plan], Any]
    load: Callable[[Any, Any], Loaded]
    allocate: Callable[[Any, int | None], Workspace]
    tune: Callable[[str, Sequence[EnginePlan], Any, float | None, ProgressCallback | None], list[EnginePlan]]


def backend(target: Mapping[str, Any]) -> Backend:
    """The backend for engines of this target."""
    found: Backend = import_module(f"pelton.backends.{FOLDERS.get(target.get('arch', ''), 'cpu')}.backend").BACKEND
    return found


def check_here(called: str, target: Mapping[str, Any], **here: str) -> None:
    """EngineError where a target has other values for these keys than the machine has. `called`: what messages call the
    engine."""
    for key, value in here.items():
        if target.get(key, value) != value:
            raise EngineError(f"engine {called!r} is for {target[key]}, this machine runs {value}; {AGAIN}")
