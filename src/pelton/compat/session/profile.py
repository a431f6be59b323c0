"""Traces of a session's runs, in the JSON format that chrome://tracing, Perfetto and ONNX Runtime's profiler share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.backends.device import Stamped
from pelton.errors import Error
from pelton.runtime.trace_events import TraceEvents, facts
from pelton.system import files


class Profile(TraceEvents):
    """Events of a session, under the names of ONNX Runtime's profiler."""

    def __init__(self, prefix: str):
        super().__init__()
        now = time.time()
        self._path = (
            f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(now))}_{int(now * 1000) % 1000:03}.json"
        )

    def add_run(
        self,
        begin: int,
        end: int,
        steps: Sequence[Stamped],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        provider: str,
    ) -> None:
        """Adds a run and its steps."""
        self.add("model_run", "Session", begin, end, {"inputs": _shapes(inputs), "outputs": _shapes(outputs)})
        for step, first, last in steps:
            args = {"op_name": step.info.get("op", ""), **facts(step), "provider": provider}
            self.add(f"{step.name}_kernel_time", "Node", first, last, args)

    def write(self) -> str:
        """Writes the file, one event a line, and returns its name; raises Error if it cannot be written."""
        try:
            files.write(self._path, [f"[\n{self.lines()}\n]\n".encode()])
        except OSError as e:
            raise Error(
                f"the trace {self._path} cannot be written: {e.strerror or e}; SessionOptions.profile_file_prefix names"
                " another place"
            ) from None
        return self._path


def _shapes(arrays: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{a.dtype}{[*a.shape]}" if isinstance(a, np.ndarray) else type(a).__name__ for name, a in arrays.items()
    }
