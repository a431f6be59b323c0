"""The CPU backend: machine code loaded into the process, constants used in place, an arena for each context."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pelton.engine.model import EnginePlan
from pelton.errors import InputError
from pelton.system.memory import address, allocate
from pelton.system.share import cores, default_threads

from ..arrays import inputs_to_numpy, fit
from ..device import Backend
from ..plan import Plan
from .check import check_machine, check_memory
from .code import load_code
from .machine import describe
from .prepared import CpuReady
from .program import MAX_THREADS, check_threads

PAGE = 4096


@dataclass(frozen=True, eq=False)
class CpuLoaded:
    """The plan of an engine and the address of each step's kernel, i64[steps], 0 for host steps. The code is unloaded
    when this object is collected."""

    plan: Plan
    functions: np.ndarray
    device: None = None


class CpuWorkspace:
    """An arena and the scratch memory of all threads in one allocation, which grows. See `device.Workspace`."""

    stream = None
    import_inputs = staticmethod(inputs_to_numpy)
    fit = staticmethod(fit)

    def __init__(self, loaded: CpuLoaded, threads: int | None):
        plan = loaded.plan
        plan.populate()
        self.threads = (
            min(default_threads(), plan.plain.meta.get("threads") or MAX_THREADS)
            if threads is None
            else check_threads(threads)
        )
        self._loaded, self.arena, self._cores = loaded, allocate(0), cores()

    @property
    def machine(self) -> str:
        return describe()["model"]

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> CpuReady:
        plan = self._loaded.plan
        resolved = plan.template.resolve(values)
        scratch = -(-resolved.max_scratch // PAGE) * PAGE
        made = int(resolved.bytes[plan.computed].sum()) + sum(p.nbytes for p in resolved.outputs)
        check_memory(plan.label, resolved.arena + made, scratch, self.threads)
        arena = -(-resolved.arena // PAGE) * PAGE
        need = arena + scratch * self.threads  # one allocation for both, for all shapes
        if need > self.arena.nbytes:
            outdated()  # prepared plans point into the old memory
            # doubled, so that slowly growing shapes do not reallocate at each
            self.arena = allocate(max(need, 2 * self.arena.nbytes))
        return CpuReady(
            plan,
            self._loaded.functions,
            values,
            resolved,
            self.arena,
            address(self.arena) + arena,
            self.threads,
            self._cores,
        )

    def synchronize(self) -> None:
        """Does nothing: runs are over when `run` returns."""


def open_code(plan: Plan) -> Plan:
    """The plan itself: machine code is checked when it is loaded."""
    return plan


def load(plan: Plan, device: Any) -> CpuLoaded:
    """Loads the code into memory; the device is ignored. Raises EngineError if the engine does not run on this CPU.

    Threads that call this at the same time each load the code, which is harmless.
    """
    plain = plan.plain
    check_machine(plan.label, plain.target)
    rows, code = plan.template.rows, load_code(plain.code) if plain.code else None
    places, which = np.unique(rows.rows["steps"]["symbol"][: rows.head["steps"]], return_inverse=True)
    symbols = list(map(rows.text, places.tolist()))
    found = [code.symbol(symbol) if code is not None and symbol else 0 for symbol in symbols]
    loaded = CpuLoaded(plan, np.array(found, np.int64)[which])
    if code is not None:
        weakref.finalize(loaded, code.close).atexit = False  # at exit a thread may still be running it
    return loaded


def tune(label: str, engines: Sequence[EnginePlan], *_: Any) -> NoReturn:
    """Raises InputError: engines for CPUs are tuned when they are built."""
    raise InputError(
        f"engine {label!r} is for CPUs, where kernels are timed while it is built; build it with a higher level, or"
        " with --target cuda"
    )


BACKEND = Backend(check_machine, open_code, load, CpuWorkspace, tune)
