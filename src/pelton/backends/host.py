"""Host steps: nodes without a kernel, run by their reference on views of the engine's memory."""

from __future__ import annotations

from copy import copy
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pelton.engine.plan import SIZES, Step, Tensor, numpy_dtype
from pelton.errors import EngineError, Needs


class HostStep:
    """A host step with its function, for these values of symbols; EngineError if its packages are missing."""

    def __init__(self, step: Step, sizes: Mapping[str, int]):
        with Needs(f"step {step.name!r} runs on the host and", EngineError):
            from pelton import reference  # only engines with host steps need its imports

            self._function: Callable[..., Sequence[np.ndarray]] = reference.run_text(step.host, sizes)
        self.step = step

    def own(self) -> HostStep:
        """Returns the step for one context: another one with its own function, if that keeps state between runs."""
        if not hasattr(self._function, "own"):
            return self
        step = copy(self)
        step._function = self._function.own()
        return step

    def run(self, memory: Callable[[int], np.ndarray]) -> None:
        """Runs on the buffers of `memory`, as bytes or strings; raises EngineError for results of other shapes."""
        results = self._function(*(view(t, memory(t.slice.buffer)) for t in self.step.inputs))
        if len(results) != len(self.step.outputs):
            raise EngineError(
                f"host step {self.step.name!r} returned {len(results)} results, expected {len(self.step.outputs)}"
            )
        for t, result in zip(self.step.outputs, results):
            if result.shape != t.shape or result.dtype != numpy_dtype(t.dtype):
                raise EngineError(
                    f"host step {self.step.name!r} returned {result.dtype.name}{list(result.shape)}, expected"
                    f" {t.dtype}{list(t.shape)}"
                )
            view(t, memory(t.slice.buffer))[...] = result


def view(t: Tensor, memory: np.ndarray) -> np.ndarray:
    """Returns a view of a tensor's elements in its buffer."""
    size = SIZES[t.dtype]
    if 0 in t.shape:
        return np.empty(t.shape, numpy_dtype(t.dtype))
    if t.dtype == "string":
        return np.lib.stride_tricks.as_strided(memory[t.slice.offset // size :], t.shape, [s * size for s in t.strides])
    return np.ndarray(t.shape, numpy_dtype(t.dtype), memory, t.slice.offset, tuple(s * size for s in t.strides))
