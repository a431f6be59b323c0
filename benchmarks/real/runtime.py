"""A session of either runtime in its own process: both have the same interface, so one program drives both.

It needs numpy and that runtime alone. Faults of a runtime are answers; the parent detects the end of the process.
"""

from __future__ import annotations

import gc
import importlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

RETUNE = 0.5  # seconds of runs after which a session of Pelton tunes for their sizes; unless told, it takes longer
SETTLED = 6  # times that, until a session has begun to


class Runtime:
    """A model in `pelton` or `onnxruntime`.

    `level` is Pelton's; `plain` is ONNX Runtime without its optimizations; `memory` in GB, of addresses.
    """

    def __init__(
        self, module: str, model: str, threads: int, memory: int, level: int | None = None, plain: bool = False
    ):
        resource.setrlimit(resource.RLIMIT_AS, (memory << 30, memory << 30))
        self._module, self._model = importlib.import_module(module), model
        self._options = self._module.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.log_severity_level = 3
        if level is not None:
            self._options.add_session_config_entry("pelton.level", str(level))
            self._options.add_session_config_entry("pelton.retune", str(RETUNE))
        if plain:
            self._options.graph_optimization_level = self._module.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session: Any = None
        self._feeds: dict[str, np.ndarray] = {}
        self._outputs: list[Any] = []

    def version(self) -> str:
        return self._module.__version__

    def load(self) -> dict[str, Any]:
        """The session; in it, what the model says of itself."""

        def work() -> None:
            self._session = self._module.InferenceSession(
                self._model, self._options, providers=["CPUExecutionProvider"]
            )

        return self._tried(work)

    def run(self, feeds: str, keep: str = "") -> dict[str, Any]:
        """The outputs for arrays in a file, into another."""
        with np.load(feeds) as found:
            self._feeds = {name: a.astype(object) if a.dtype.kind == "U" else a for name, a in found.items()}

        def work() -> None:
            self._outputs = self._session.run(None, self._feeds)

        reply = self._tried(work)
        if keep and "failed" not in reply:
            np.savez(keep, **{f"{k}": a for k, a in enumerate(leaves(self._outputs))})  # type: ignore[arg-type]
        return reply

    def settle(self, seconds: float) -> list[dict[str, Any]]:
        """Runs on the arrays that were fed last until Pelton has tuned for them, if it does, as any program may wait
        for it; what became of all its tunings."""
        end = time.perf_counter() + SETTLED * RETUNE
        while time.perf_counter() < end and not self._session.background_tuning():
            self.time(RETUNE / 5)
        return self._session.background_tuning(seconds)

    def time(self, seconds: float) -> list[int]:
        """Nanoseconds of runs on the arrays that were fed last."""
        for _ in range(2):
            self._session.run(None, self._feeds)
        times: list[int] = []
        end = time.perf_counter_ns() + int(seconds * 1e9)
        while time.perf_counter_ns() < end or len(times) < 5:
            start = time.perf_counter_ns()
            self._session.run(None, self._feeds)
            times.append(time.perf_counter_ns() - start)
        return times

    def steps(self) -> dict[str, int]:
        """Of all engines that the session has: how many there are, their steps, and which of these are the host's."""
        from pelton.runtime import Engine

        engines = [thing for thing in gc.get_objects() if isinstance(thing, Engine)]
        parts = {id(part) for engine in engines for part in engine.parts if part is not engine}
        whole = [engine for engine in engines if id(engine) not in parts]
        steps = [step for engine in whole for step in engine.steps]
        return {
            "engines": len(whole),
            "steps": len(steps),
            "hosted": sum(bool(step.host) for step in steps),
            "scripts": sum(e not in e.parts for e in whole),
        }

    def _tried(self, work: Any) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            work()
        except Exception as e:  # whatever a runtime raises is what it did with the model
            return {"failed": f"{type(e).__name__}: {e}"[:2000]}
        return {"seconds": time.perf_counter() - start}


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays that outputs are made of: sequences and maps one after the other; texts as such."""
    if isinstance(value, dict):
        yield from leaves(np.array(list(value.keys())))
        yield from leaves(np.array(list(value.values())))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        array = np.asarray(value)
        yield array.astype(str) if array.dtype.kind == "O" else array
