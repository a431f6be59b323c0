"""The CPU backend: engines and contexts of the native library; host steps run between its programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_bool, create_string_buffer
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.engine.plan import EnginePlan
from pelton.engine.shape_plan import refuse_sizes
from pelton.errors import EngineError, InputError
from pelton.native import REASON, Handle, library
from pelton.system import share
from pelton.system.memory import address
from pelton.system.share import cores

from ..arrays import inputs_to_numpy, fit
from ..device import Backend, ProgressCallback
from ..plan import Plan
from .check import check_machine
from .machine import describe
from .prepared import CpuReady
from .program import MAX_THREADS, check_threads


@dataclass(frozen=True, eq=False)
class CpuLoaded:
    """The plan of an engine, and the native engine with its code in memory, which uses the constants in place."""

    plan: Plan
    engine: Handle
    constants: np.ndarray
    device: None = None


class CpuWorkspace:
    """A native context, whose memory grows. See `device.Workspace`."""

    stream: int | None = None
    import_inputs = staticmethod(inputs_to_numpy)
    fit = staticmethod(fit)

    def __init__(self, loaded: CpuLoaded, threads: int | None):
        plan = loaded.plan
        available = cores()
        tuned = plan.plain.meta.get("threads") or MAX_THREADS
        self.threads = min(max(1, math.ceil(available)), tuned) if threads is None else check_threads(threads)
        self._loaded, milli = loaded, int(min(available, MAX_THREADS) * 1000)
        made = library().pelton_context_of(loaded.engine.address, self.threads, milli, share.memory())
        if not made:
            raise EngineError(f"there is no memory for a context of engine {plan.label!r}")
        self._context = Handle(made, "context")

    @property
    def machine(self) -> str:
        return describe()["model"]

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> CpuReady:
        plan, moved = self._loaded.plan, c_bool()
        symbols = np.array([values[s.name] for s in plan.plain.symbols], np.int64)
        why = create_string_buffer(REASON)
        made = library().pelton_prepare(self._context.address, address(symbols), byref(moved), why)
        if moved:
            outdated()  # prepared plans point into the old memory
        plan.populate()  # after all memory is mapped, for which its thread would keep this one waiting
        if made:
            return CpuReady(plan, values, Handle(made, "prepared"), self._context, self.threads)
        text = why.value.decode(errors="replace")
        if text.startswith("it needs "):
            raise EngineError(f"engine {plan.label!r} {text.removeprefix('it ')}")
        refuse_sizes(plan.plain, values, text)

    def synchronize(self) -> None:
        """Does nothing: runs are over when `run` returns."""


def open_code(plan: Plan) -> Plan:
    """Returns the plan itself: machine code is checked when it is loaded."""
    return plan


def load(plan: Plan, device: Any) -> CpuLoaded:
    """Loads the code into memory; the device is ignored. Raises EngineError if the engine does not run on this CPU.

    Threads that call this at the same time each load the code, which is harmless.
    """
    plain, why = plan.plain, create_string_buffer(REASON)
    check_machine(plan.label, plain.target)
    code, constants = bytes(plain.code), plan.constants
    made = library().pelton_engine_of(plan.template.rows.handle, code, len(code), address(constants), why)
    if not made:
        raise EngineError(f"engine {plan.label!r} cannot be loaded: {why.value.decode(errors='replace')}")
    return CpuLoaded(plan, Handle(made, "engine"), constants)


def tune(
    label: str, engines: Sequence[EnginePlan], device: Any, deadline: float | None, progress: ProgressCallback | None
) -> list[EnginePlan]:
    """Returns the engines with the fastest kernel of each step, in whole runs at the optimum sizes; the device is
    ignored. Raises InputError if no step has a choice, as where kernels were timed while the engine was built."""
    if not any(s.alternatives for plain in engines for s in plain.steps):
        raise InputError(
            f"the kernels of engine {label!r} were timed while it was built, and it carries no others; build it for"
            " another machine than the building one, with level 3 or higher, to time them here"
        )
    from .kernel_choice import tune_engine  # imported only for tuning

    return [tune_engine(plain, _prepared, deadline, progress) for plain in engines]


def _prepared(plain: EnginePlan, values: Mapping[str, int]) -> CpuReady:
    return CpuWorkspace(load(Plan(plain), None), None).prepare(values, lambda: None)


BACKEND = Backend(check_machine, open_code, load, CpuWorkspace, tune)
