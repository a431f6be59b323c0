"""Engines on NVIDIA GPUs: code loaded and weights uploaded once, for all contexts."""
from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pelton.backends.cuda.bundle import unpack
from pelton.backends.cuda.device import TRAILING, Device, Function, Memory
from pelton.backends.cuda.driver import device as gpu
from pelton.backends.cuda.machine import chosen
from pelton.engine import model as plain_engine
from pelton.engine.cubin import Cubin
from pelton.engine.validate import validate
from pelton.engine.model import Step
from pelton.engine.library import LIBRARIES, aligned, spoken, work
from pelton.engine.shape_plan import Sheet
from pelton.errors import EngineError, InputError

from .context import Context
from .engine import Engine
from .machine import check_machine

log = logging.getLogger("pelton.runtime")


class CudaEngine(Engine):
    """An `Engine` whose kernels run on a GPU: at once where one is given, else from `start` or the first context on. Until then it can be looked at and saved
    where there is none."""

    device: Device
    weights: Memory

    def __init__(self, plain: plain_engine.Engine, device: int | Device | None = None):
        validate(plain)
        self.bundle = unpack(plain.code) if plain.code else {}
        self._set_out(plain)
        self._starting = threading.Lock()
        self._warned: set[str] = set()
        if device is not None:
            self.start(device)

    def start(self, device: int | Device = 0) -> CudaEngine:
        """Loads code and weights onto a GPU, unless that has been done: its number, or something that does what one does. EngineError, saying what is missing,
        where there is none or it does not fit."""
        with self._starting:
            if self._started:
                return self
            check_machine(self.called, self.plain.target)
            self.device = gpu(device) if isinstance(device, int) else device
            cubins = chosen(self.called, self.bundle, self.device.arch, self.device.name) if self.bundle else {}
            with self.device:
                given = self._by_libraries()
                self.functions = self._load(cubins, given)    # type: ignore[assignment]
                self.weights = self.device.allocate(self.constants.nbytes, f"engine {self.called!r}, for its weights,")
                if self.constants.nbytes:
                    stream = self.device.stream()
                    self.device.upload(self.weights.address, self.constants.__array_interface__["data"][0], self.constants.nbytes, stream.handle)
                    self.device.synchronize(stream.handle)
            self._started = True
        return self

    def _by_libraries(self) -> dict[int, Function]:
        """The functions of the steps that a library computes. Where it cannot, as it is not here or is another version than the one that was timed, a kernel
        of the engine's own takes its place, which is said once."""
        found, steps, reasons = dict[int, Function](), list(self.steps), dict[str, None]()
        for i, step in enumerate(self.steps):
            if step.symbol in LIBRARIES:
                told = work(step.symbol, step.dims)
                try:
                    found[i] = self.device.by_library(told, aligned(step.args, [kind for kind, _ in told.operands()]))
                except EngineError as e:
                    steps[i] = stands_in(step)
                    reasons[f"they were timed with {step.symbol} {spoken(told.version)}: {e}"] = None
        if reasons:
            log.warning("engine %r: %d of its %d steps run by kernels of its own instead of a library, %s; `pelton tune` times them anew", self.called,
                        sum(a is not b for a, b in zip(steps, self.steps)), len(steps), "; ".join(reasons))
            self.plain = replace(self.plain, steps=tuple(steps))
            self.sheet = Sheet(self.plain)
        return found

    def _load(self, cubins: Mapping[str, Cubin], given: Mapping[int, Function]) -> list[Function | None]:
        """The function of each step; None for those of the CPU."""
        loaded: dict[str, tuple[Function, int]] = {}
        for i, step in enumerate(self.steps):
            if i in given:
                continue
            parameters = len(step.args) + len(step.dims) + TRAILING
            if step.symbol and step.symbol not in loaded:
                if step.symbol not in cubins:
                    raise EngineError(f"the engine's code has no kernel {step.symbol!r} for sm_{self.device.arch}; the engine is damaged, build it again")
                loaded[step.symbol] = self.device.load(cubins[step.symbol], parameters), parameters
            if step.symbol and step.phases != 1 and not cubins[step.symbol].phased:
                raise EngineError(f"step {step.name!r} has {step.phases} phases, its kernel {step.symbol!r} none; the engine is damaged, build it again")
            if step.symbol and any(m.operand >= len(step.args) for m in cubins[step.symbol].maps):
                raise EngineError(f"kernel {step.symbol!r} takes more operands by maps than step {step.name!r} has, {len(step.args)}; "
                                  "the engine is damaged, build it again")
            if step.symbol and loaded[step.symbol][1] != parameters:
                raise EngineError(f"step {step.name!r} gives kernel {step.symbol!r} {parameters} parameters, another step {loaded[step.symbol][1]}; "
                                  "the engine is damaged, build it again")
        return [given[i] if i in given else loaded[s.symbol][0] if s.symbol else None for i, s in enumerate(self.steps)]

    def warn(self, text: str) -> None:
        """Logs a warning, the first time."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("engine %r: %s; `pelton tune` may find something faster", self.called, text)

    def context(self, threads: int | None = None) -> Context:
        """A context of its own memory, for one run at a time; the weights are everybody's. InputError for a number of threads: there are none to choose."""
        if threads is not None:
            raise InputError(f"engine {self.called!r} runs on a GPU, where no number of threads can be chosen, given {threads}; leave it out")
        from .cuda_context import CudaContext  # which imports what this file says
        return CudaContext(self.start())


def stands_in(step: Step) -> Step:
    """A step by the first of its spares that is a kernel of the engine's own."""
    spare = next(s for s in step.spares if s.symbol not in LIBRARIES)
    return by(spare, step, [step, *(s for s in step.spares if s is not spare)])


def by(kernel: Step, step: Step, rest: Sequence[Step], **info: Any) -> Step:
    """A step by one of its kernels, with the rest beside it."""
    spares = tuple(replace(s, info={"tactic": s.info["tactic"]}, outputs=(), spares=()) for s in rest)
    return replace(kernel, name=step.name, info={**step.info, "tactic": kernel.info["tactic"], **info}, outputs=step.outputs, spares=spares)
