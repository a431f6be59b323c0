"""The interface between the runtime and a kind of device.

An engine becomes a run in five steps, each of them a backend's:

    code = backend.open(plan)                      # reads the engine's code, on any machine
    loaded = backend.load(code, device)            # code and constants on a device, once, for all contexts
    workspace = backend.allocate(loaded, threads)  # the working memory of a context
    ready = workspace.prepare(values, outdated)    # the plan for one set of sizes, every address in place
    ready.run(inputs, out)

A new kind of device is a folder with a file `backend.py`, whose `BACKEND` is a `Backend`, and its line in
`backends.FOLDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pelton.engine.plan import EnginePlan, Port, Step
from pelton.errors import EngineError

from .plan import Plan

AGAIN = "build it on, or for, this machine"  # the end of messages about engines for other machines

# a step, and when it began and ended, in nanoseconds of `time.monotonic_ns`
Stamped = tuple[Step, int, int]
ProgressCallback = Callable[[str, int, int], Any]  # receives a stage, the work done, and the total


class Resolved(Protocol):
    """The ports of an engine for one set of sizes."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    @property
    def outputs(self) -> tuple[Port, ...]: ...


class Ready(Protocol):
    """A plan prepared for one set of sizes. Its context serializes its runs."""

    @property
    def resolved(self) -> Resolved: ...
    @property
    def call(self) -> Callable[[dict[str, Any]], dict[str, Any] | None] | None:
        """A fast path, or None: runs on arrays by name that fit their ports exactly and returns new arrays; returns
        None without a run if one does not fit."""

    @property
    def plain(self) -> EnginePlan:
        """The engine with all numbers resolved."""

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns outputs by name: new arrays, or those of `out`, written in place. Raises InputError for arrays that
        do not fit their ports."""

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """Runs without overlap of steps; returns outputs by name, and the begin and end of each step."""

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Returns each step with its nanoseconds, in a run without overlap of steps."""

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, Any]:
        """Runs one step after the other; `see` is called before each and after the last, with the number of finished
        steps and an object that has `memory` and `plain`."""

    def memory(self, buffer: int) -> np.ndarray:
        """Returns the bytes of a buffer, u8[n], or its strings, at this point of a watched run."""


class Workspace(Protocol):
    """Working memory for one run at a time, shared by all sets of sizes."""

    @property
    def threads(self) -> int: ...
    @property
    def stream(self) -> int | None:
        """The number of its own stream if runs can be enqueued (see `Streaming`), else None."""

    @property
    def machine(self) -> str:
        """The marketing name of the device."""

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> Ready:
        """Prepares the plan for these values of the symbols. Calls `outdated` if earlier plans became invalid, because
        the memory has grown. Raises EngineError if there is not enough memory."""

    def import_inputs(self, inputs: Any) -> Any:
        """Returns inputs by name, arrays of other libraries in this device's form; raises InputError without one."""

    def fit(self, port: Port, given: Any) -> Any:
        """Returns an array of the port's type, shape and layout; raises InputError if a copy does not suffice."""

    def synchronize(self) -> None:
        """Waits until all runs are over."""


class Streaming(Workspace, Protocol):
    """A workspace whose runs can be enqueued on streams; the plans it prepares are `Streamed`."""

    @property
    def stream(self) -> int: ...
    def import_inputs(self, inputs: Any, stream: int | None = None) -> Any: ...


class Streamed(Ready, Protocol):
    """A prepared plan with asynchronous runs."""

    def run_async(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, stream: int | None
    ) -> dict[str, Any]: ...


class Loaded(Protocol):
    """The code and constants of an engine on a device. `plan` may have other kernels for some steps than the opened
    plan; `device` is the backend's own object for a device."""

    @property
    def plan(self) -> Plan: ...
    @property
    def device(self) -> Any: ...


@dataclass(frozen=True)
class Backend:
    """A kind of device.

    check: receives the name for messages and a target; raises EngineError if engines for it do not run on this machine,
    as far as known without a device. open: returns the input of `load`; raises EngineError for code of another backend.
    load: onto the device of this number, or onto one given as an object. allocate: for a number of threads, or the
    default. tune: receives the name for messages and returns the engines with the fastest of their alternative kernels,
    timed on a device until a deadline (of `time.monotonic`); InputError if engines of this kind have none. devices:
    returns how many devices this process may use, numbered from 0; 0 where `load` ignores the number.
    """

    check: Callable[[str, Mapping[str, Any]], None]
    open: Callable[[Plan], Any]
    load: Callable[[Any, Any], Loaded]
    allocate: Callable[[Any, int | None], Workspace]
    tune: Callable[[str, Sequence[EnginePlan], Any, float | None, ProgressCallback | None], list[EnginePlan]]
    devices: Callable[[], int] = int


def check_here(label: str, target: Mapping[str, Any], **here: str) -> None:
    """Raises EngineError if a target differs from this machine in these keys. `label`: the name for messages."""
    for key, value in here.items():
        if target.get(key, value) != value:
            raise EngineError(f"engine {label!r} is for {target[key]}, this machine runs {value}; {AGAIN}")
