"""Engines on NVIDIA GPUs: code loaded and weights uploaded once, for all contexts."""

from __future__ import annotations

from collections.abc import Mapping

from pelton.logs import Logger
from pelton.engine.cubin import Cubin
from pelton.engine.library import LIBRARIES, aligned, spoken, work
from pelton.engine.plan import Step
from pelton.errors import EngineError

from ..plan import Plan
from .device import TRAILING, Device, Function
from .machine import chosen

log = Logger("pelton.runtime")


class CudaLoaded:
    """The code and weights of an engine on a GPU.

    `cubins` are those for this GPU, by symbol; `functions` has each step's, None for host steps. Raises EngineError if
    the GPU cannot run the engine or has too little memory.
    """

    def __init__(self, plan: Plan, bundle: Mapping[int, Mapping[str, Cubin]], device: Device):
        self.plan, self.device, self._warned = plan, device, set[str]()
        self.cubins = chosen(plan.label, bundle, device.arch, device.name) if bundle else {}
        with device:
            library_functions = self._by_libraries()
            self.functions = self._load(library_functions)
            self.weights = device.allocate(plan.constants.nbytes, f"engine {plan.label!r}, for its weights,")
            if plan.constants.nbytes:
                stream = device.stream()
                device.upload(
                    self.weights.address,
                    plan.constants.__array_interface__["data"][0],
                    plan.constants.nbytes,
                    stream.handle,
                )
                device.synchronize(stream.handle)

    def _by_libraries(self) -> dict[int, Function]:
        """Returns the functions of the steps that a library computes.

        If the library is missing, or its version is not the one that was timed, one of the engine's own kernels
        replaces it, with one log entry.
        """
        functions, steps, reasons = dict[int, Function](), list(self.plan.plain.steps), dict[str, None]()
        for i, step in enumerate(self.plan.plain.steps):
            if step.symbol in LIBRARIES:
                descriptor = work(step.symbol, step.dims)
                try:
                    functions[i] = self.device.by_library(
                        descriptor, aligned(step.args, [kind for kind, _ in descriptor.operands()])
                    )
                except EngineError as e:
                    steps[i] = without_library(step)
                    reasons[f"they were timed with {step.symbol} {spoken(descriptor.version)}: {e}"] = None
        if reasons:
            log.warning(
                "engine %r: %d of %d steps use the engine's own kernels instead of a library, %s; `pelton tune`"
                " times them again",
                self.plan.label,
                sum(a is not b for a, b in zip(steps, self.plan.plain.steps)),
                len(steps),
                "; ".join(reasons),
            )
            self.plan = self.plan.with_steps(steps)
        return functions

    def _load(self, given: Mapping[int, Function]) -> list[Function | None]:
        """Returns the function of each step; None for host steps."""
        loaded: dict[str, tuple[Function, int]] = {}
        for i, step in enumerate(self.plan.plain.steps):
            if i in given:
                continue
            parameters = len(step.args) + len(step.dims) + TRAILING
            if step.symbol and step.symbol not in loaded:
                if step.symbol not in self.cubins:
                    raise EngineError(
                        f"the engine's code has no kernel {step.symbol!r} for sm_{self.device.arch}; the engine is"
                        " damaged, build it again"
                    )
                loaded[step.symbol] = self.device.load(self.cubins[step.symbol], parameters), parameters
            if step.symbol and step.phases != 1 and not self.cubins[step.symbol].phased:
                raise EngineError(
                    f"step {step.name!r} has {step.phases} phases, its kernel {step.symbol!r} none; the engine is"
                    " damaged, build it again"
                )
            if step.symbol and any(m.operand >= len(step.args) for m in self.cubins[step.symbol].maps):
                raise EngineError(
                    f"the engine is damaged: kernel {step.symbol!r} has more operands by maps than step"
                    f" {step.name!r}, {len(step.args)}; build it again"
                )
            if step.symbol and loaded[step.symbol][1] != parameters:
                raise EngineError(
                    f"the engine is damaged: step {step.name!r} passes {step.symbol!r} {parameters} parameters,"
                    f" another step {loaded[step.symbol][1]}; build it again"
                )
        own = {symbol: kernel for symbol, (kernel, _) in loaded.items()}
        return [given.get(i, own.get(s.symbol)) for i, s in enumerate(self.plan.plain.steps)]

    def warn(self, text: str) -> None:
        """Logs a warning, the first time."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("engine %r: %s; `pelton tune` may find something faster", self.plan.label, text)


def without_library(step: Step) -> Step:
    """Returns the step with the first alternative that is one of the engine's own kernels."""
    own = next(s for s in step.alternatives if s.symbol not in LIBRARIES)
    return step.with_kernel(own, [s for s in step.kernels if s is not own])
