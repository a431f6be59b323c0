"""Traces of a session's runs, in the JSON format that chrome://tracing, Perfetto and ONNX Runtime's profiler share."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.system import files
from pelton.engine.model import Step
from pelton.errors import Error

Traced = tuple[Step, int, int]


class Profile:
    """What happened since it was made, with times in microseconds since then."""

    def __init__(self, prefix: str):
        self.start = time.monotonic_ns()
        now = time.time()
        self._path = (
            f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(now))}_{int(now * 1000) % 1000:03}.json"
        )
        self._events: list[dict[str, Any]] = []

    def add(self, name: str, category: str, begin: int, end: int, **args: Any) -> None:
        """Something that lasted from one time to another, in nanoseconds of `time.monotonic_ns`."""
        self._events.append(
            {
                "cat": category,
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "dur": (end - begin) / 1000,
                "ts": (begin - self.start) / 1000,
                "ph": "X",
                "name": name,
                "args": args,
            }
        )

    def add_run(
        self,
        begin: int,
        end: int,
        steps: Sequence[Traced],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        provider: str,
    ) -> None:
        """A run and its steps."""
        self.add("model_run", "Session", begin, end, inputs=_shapes(inputs), outputs=_shapes(outputs))
        for step, first, last in steps:
            info = step.info
            args = {
                "op_name": info.get("op", ""),
                "tactic": "host" if step.host else info.get("tactic", ""),
                "layers": ", ".join(info.get("layers") or ()),
                "flops": _number(info.get("flops")),
                "bytes": _number(info.get("bytes")),
                "provider": provider,
            }
            self.add(
                f"{step.name}_kernel_time",
                "Node",
                first,
                last,
                **{k: v for k, v in args.items() if v not in ("", None)},
            )

    def write(self) -> str:
        """Writes the file, one event a line, and gives its name; Error where it cannot be written."""
        lines = ",\n".join(json.dumps(e) for e in self._events)
        try:
            files.write(self._path, [f"[\n{lines}\n]\n".encode()])
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


def _number(value: Any) -> int | float | None:
    """A number as JSON has it."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
