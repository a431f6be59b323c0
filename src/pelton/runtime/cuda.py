"""Engines on NVIDIA GPUs: code loaded and weights uploaded once, for all contexts."""
from __future__ import annotations

from pelton.backends.cuda.bundle import unpack
from pelton.backends.cuda.device import TRAILING, Device, Function
from pelton.backends.cuda.driver import device as gpu
from pelton.backends.cuda.machine import chosen
from pelton.engine import engine as plain_engine
from pelton.engine.check import check
from pelton.errors import EngineError

from .context import Context
from .engine import Engine
from .machine import check_machine


class CudaEngine(Engine):
    """An `Engine` whose kernels run on a GPU: `device` is its number, or something that does what a GPU does (`backends.cuda.device.Device`)."""

    def __init__(self, plain: plain_engine.Engine, device: int | Device = 0):
        check(plain)
        if isinstance(device, int):
            check_machine(plain.name, plain.target)
            device = gpu(device)
        self.device: Device = device
        cubins = chosen(plain.name, unpack(plain.code), device.arch, device.name) if plain.code else {}
        self._set_out(plain)
        with device:
            loaded: dict[str, tuple[Function, int]] = {}
            for step in plain.steps:
                parameters = len(step.args) + len(step.dims) + TRAILING
                if step.symbol and step.symbol not in loaded:
                    if step.symbol not in cubins:
                        raise EngineError(f"the engine's code has no kernel {step.symbol!r} for sm_{device.arch}; the engine is damaged, build it again")
                    loaded[step.symbol] = device.load(cubins[step.symbol], parameters), parameters
                if step.symbol and loaded[step.symbol][1] != parameters:
                    raise EngineError(f"step {step.name!r} gives kernel {step.symbol!r} {parameters} parameters, another step {loaded[step.symbol][1]}; "
                                      "the engine is damaged, build it again")
            self.functions = [loaded[s.symbol][0] if s.symbol else None for s in plain.steps]      # type: ignore[assignment]
            self.weights = device.allocate(self.constants.nbytes, f"engine {plain.name!r}, for its weights,")
            if self.constants.nbytes:
                stream = device.stream()
                device.upload(self.weights.address, self.constants.__array_interface__["data"][0], self.constants.nbytes, stream.handle)
                device.synchronize(stream.handle)
        self._start()

    def context(self, threads: int | None = None) -> Context:
        """A context of its own memory, for one run at a time; the weights are everybody's. The number of threads plays no part."""
        from .cuda_context import CudaContext  # which imports what this file says
        return CudaContext(self)
