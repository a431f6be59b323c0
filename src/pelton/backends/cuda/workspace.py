"""The working memory of a context on a GPU, and plans prepared in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pelton.engine.plan import Port
from pelton.errors import InputError

from ..arrays import fit
from .arrays import LEGACY, ForeignArray, import_array
from .device import zeros
from .loaded import CudaLoaded
from .prepared import CudaPrepared, plan_memory
from .ready import CudaReady, ContextState


class CudaWorkspace:
    """Memory on the GPU: an arena, a place for each port, and scratch memory, all of which grow; and zeros. See
    `device.Streaming`."""

    threads = 1

    def __init__(self, loaded: CudaLoaded, threads: int | None = None):
        plan, device = loaded.plan, loaded.device
        if threads is not None:
            raise InputError(
                f"engine {plan.label!r} runs on a GPU, where no number of threads can be chosen, got {threads};"
                " leave it out"
            )
        self._loaded, self._for = loaded, f"engine {plan.label!r}, for a context,"
        with device:
            self.shared = ContextState(device, plan.label)
            self.zeros = zeros(device, plan.template.zeros, self._for, self.stream) if plan.template.zeros else None

    @property
    def machine(self) -> str:
        return self._loaded.device.name

    @property
    def stream(self) -> int:
        return self.shared.stream

    def import_inputs(self, inputs: Any, stream: int | None = None) -> Any:
        """Returns inputs on a GPU as `ForeignArray`, others as numpy arrays.

        They are filled before later work on the stream.
        """
        if not isinstance(inputs, Mapping):
            return inputs
        at = self.stream if stream is None else int(stream) or LEGACY
        return {name: import_array(value, f"input {name!r}", at) for name, value in inputs.items()}

    def fit(self, port: Port, given: Any) -> Any:
        if isinstance(given, ForeignArray):
            raise InputError(f"input {port.name!r} needs {port}, got shape {list(given.shape)}")
        return fit(port, given)

    def prepare(self, values: Mapping[str, int], outdated: Callable[[], None]) -> CudaReady:
        loaded, shared = self._loaded, self.shared
        with loaded.device as device:
            resolved = loaded.plan.template.resolve(values)
            needed = plan_memory(loaded, resolved)
            if shared.memory is None or needed.nbytes > shared.memory.nbytes:
                had, shared.memory = (shared.memory.nbytes if shared.memory else 0), None
                outdated()  # prepared plans point into the old memory
                grown = min(2 * had, device.free_memory() // 2)  # avoids a new allocation at each small growth
                shared.memory = device.allocate(max(needed.nbytes, grown), self._for)
            return CudaReady(
                shared, CudaPrepared(loaded, values, resolved, needed, shared.memory, self.zeros, self.stream)
            )

    def synchronize(self) -> None:
        with self._loaded.device as device:
            device.finish(self.shared.done)
            self.shared.held = None
