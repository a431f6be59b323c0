"""A served model: one version's engine with its queue, statistics, and the shape of its answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from pelton.errors import EngineError, Error, InputError
from pelton.runtime.batching import Batching
from pelton.runtime.engine import Engine
from pelton.runtime.queue import AsyncQueue, AsyncRun

from . import datatypes
from . import settings as configuration
from .options import ServeOptions
from .replicas import Replicas
from .requests import InferRequest, OutputRequest, RequestError, shown
from .sequences import Sequences
from .settings import ModelSettings
from .statistics import Statistics
from .warmup import RunTimes, measure, mixes_rows

log = logging.getLogger("pelton.serve")

INLINE = 300e-6  # seconds of a run, at most, to run in the thread that reads requests
Outputs = dict[str, np.ndarray]


class ServedModel:
    """One version of a model, ready to answer. replicas: its engines by device, if its configuration says where they
    run; `engine` is one of them.

    Raises InputError if the configuration contradicts the engine, EngineError if the engine does not run here.
    """

    reason = ""  # why the model cannot run at present
    kind = "model"

    def __init__(
        self,
        name: str,
        version: str,
        engine: Engine,
        settings: ModelSettings,
        options: ServeOptions,
        replicas: Replicas | None = None,
    ):
        self.replicas: Replicas = replicas or {}
        engine = next((one for one, _ in self.replicas.values()), engine)
        self.name, self.version, self.engine, self.settings = name, version, engine, settings
        if engine.forms:
            raise EngineError(f"model {name!r} takes sequences or optionals, which the protocols cannot express")
        self.statistics = Statistics()
        self.closed = False
        self.sequences = Sequences(engine, settings.sequences, name) if _has_state(engine, settings) else None
        if self.sequences is not None and options.workers > 1:
            raise InputError(f"model {name!r} keeps state between requests, which needs one process: --workers 1")
        if self.sequences is not None and len(self.replicas) > 1:
            raise InputError(f"model {name!r} keeps state between requests, which needs one device in instance_group")
        hidden = self.sequences.hidden if self.sequences is not None else frozenset()
        self.inputs = {p.name: p for p in engine.inputs if p.name not in hidden}
        self.outputs = {p.name: p for p in engine.outputs if p.name not in hidden}
        self._bf16 = {p.name for p in engine.inputs if p.dtype == "bf16"}
        self._types = {p.name: p.numpy_dtype for p in engine.inputs}
        self.axis = batch_axis(engine, self.inputs, self.outputs)
        self.config = configuration.complete(
            settings, name, list(self.inputs.values()), list(self.outputs.values()), self._most()
        )
        self.batched = self.axis is not None
        self.measured = measure(engine, self.axis if self.sequences is None else None, self.config, options)
        self.queue: AsyncQueue | None = None
        batching = self._independent(self._batching(options, self.measured))
        short = batching is None and self.measured.seconds <= INLINE
        self.inline = short and self.sequences is None and len(self.replicas) < 2
        if not self.inline and self.sequences is None:
            self.queue = self._open_queue(batching, options)
        log.info("%s", self.describe(batching))

    def _most(self) -> int:
        """Returns the largest batch that the configuration can name, 0 without a batch axis."""
        if self.axis is None:
            return 0
        maximum = next(s.maximum for s in self.engine.symbols if s.name == self.axis)
        return min(maximum, (1 << 31) - 1)

    def _batching(self, options: ServeOptions, measured: RunTimes) -> Batching | None:
        """Returns the batching that the configuration, the options or the measurement asks for."""
        written, asked = self.settings.batching, self.settings.parameters.get("batching", options.batch)
        slo = self._slo(options)
        if self.axis is None or self.sequences is not None:
            return None
        largest = min(self.settings.config.max_batch_size or self._most(), self._most())
        if written is not None:
            preferred = tuple(written.preferred_batch_size)
            delay = written.max_queue_delay_microseconds / 1e6
            if not self.settings.config.max_batch_size:  # as large as pays
                largest = min(largest, max((*preferred, measured.best)))
            return Batching(largest, delay, slo, preferred)
        if asked == "auto":
            return Batching(measured.batch, 0.0, slo) if measured.batch > 1 else None
        if asked == "off":
            return None
        return Batching(min(int(asked), largest), 0.0, slo)

    def _independent(self, batching: Batching | None) -> Batching | None:
        """Returns the batching unless rows of a batch change each other's answers. Raises InputError if the
        configuration asks for such batches."""
        if batching is None or self.axis is None:
            return None
        symbol = next(s for s in self.engine.symbols if s.name == self.axis)
        mixed = None if symbol.minimum > 1 else mixes_rows(self.engine, self.axis, min(batching.max_batch, 4))
        if mixed is None:
            return batching
        text = f"rows of a batch change each other's output {mixed!r} of model {self.name!r}"
        if self.settings.batching is not None:
            raise InputError(f"{text}: remove dynamic_batching from its configuration")
        log.warning("%s: it is not batched", text)
        return None

    def _slo(self, options: ServeOptions) -> float | None:
        text = self.settings.parameters.get("slo_ms")
        return options.slo if text is None else float(text) / 1e3

    def _open_queue(self, batching: Batching | None, options: ServeOptions) -> AsyncQueue:
        placed = [one for one, count in self.replicas.values() for _ in range(count)]
        jobs = 1 if placed else options.jobs  # of each
        threads = int(self.settings.parameters["threads"]) if "threads" in self.settings.parameters else options.threads
        policy = self.settings.batching.default_queue_policy if self.settings.batching is not None else None
        bound = policy.max_queue_size if policy is not None and policy.max_queue_size else options.bound
        return AsyncQueue(placed or self.engine, jobs, threads, batching=batching, bound=bound, slo=self._slo(options))

    @property
    def where(self) -> str:
        """The devices of several replicas, for people; "" for one on the first device."""
        devices = ", ".join(map(str, self.replicas))
        return f" on device{'s' * (len(self.replicas) > 1)} {devices}" if devices not in ("", "0") else ""

    def describe(self, batching: Batching | None) -> str:
        """Returns a line about how the model runs, for the log."""
        how = "in line" if self.inline else "by sequence"
        if self.queue is not None:
            how = f"{self.queue.jobs} jobs{self.where}"
        text = f"model {self.name!r} version {self.version}: {how}, {self.measured.seconds * 1e6:.0f} µs a run"
        if self.measured.tried:
            best = max(self.measured.tried.values())
            ratio = best / self.measured.tried[1]
            text += f"; batches of {self.measured.best} run {ratio:.1f} times as many rows a second as single ones"
        if batching is not None:
            text += f"; batches of up to {batching.max_batch} rows"
        return text

    # requests

    def arrays(self, request: InferRequest) -> dict[str, Any]:
        """Returns the inputs of a request as the engine takes them. Raises RequestError for names and types that do
        not fit; shapes are checked by the run."""
        inputs = request.inputs
        if inputs.keys() != self.inputs.keys():
            self._refuse_names(inputs)
        for name, array in inputs.items():
            if array.dtype != self._types[name]:
                if name not in self._bf16 or array.dtype != np.uint16:
                    raise RequestError(
                        f"input {name!r} of model {self.name!r} has datatype"
                        f" {datatypes.NAMES[self.inputs[name].dtype]}, got {datatypes.datatype_of(array)}"
                    )
                inputs[name] = array.view(self._types[name])
        return inputs

    def _refuse_names(self, inputs: Mapping[str, Any]) -> None:
        unknown = [name for name in inputs if name not in self.inputs]
        missing = [name for name in self.inputs if name not in inputs]
        problem = f"has no input {unknown[0]!r}" if unknown else f"needs input {missing[0]!r}"
        raise RequestError(
            f"model {self.name!r} {problem}: expected {len(self.inputs)} inputs, {', '.join(map(repr, self.inputs))}"
        )

    def begin(self, request: InferRequest, arrived: int) -> AsyncRun | Outputs:
        """Starts a request: returns its outputs if the run is so short that it was done at once, else the run.

        Raises RequestError for inputs that do not fit, and if the queue is full.
        """
        inputs, parameters = self.arrays(request), request.parameters
        try:
            if self.sequences is not None:
                return self.sequences.run(inputs, parameters)
            if self.queue is None:
                start = time.monotonic_ns()
                outputs = self.engine.run(inputs)
                self.statistics.executed(self.rows(inputs), time.monotonic_ns() - start)
                return cast(Outputs, outputs)
            priority, timeout = self._order(parameters)
            return self.queue.run_async(inputs, share_inputs=True, priority=priority, timeout=timeout)
        except Error as e:
            if self.closed:
                raise RequestError(f"model {self.name!r} was unloaded", "closed") from None
            raise fault_of(e) from None

    def _order(self, parameters: Mapping[str, Any]) -> tuple[int, float | None]:
        """Returns the priority of a request, and the seconds within which it is to begin: its own, or those of the
        configuration, which may forbid own ones."""
        priority = _number(parameters.get("priority", 0), "priority")
        timeout = _number(parameters.get("timeout", 0), "timeout")  # microseconds
        written = self.settings.batching
        if written is not None:
            policy = written.default_queue_policy
            if written.priority_levels:
                priority = min(priority or written.default_priority_level, written.priority_levels)
            if policy.default_timeout_microseconds and not (timeout and policy.allow_timeout_override):
                timeout = policy.default_timeout_microseconds
        return priority, timeout / 1e6 if timeout else None

    @property
    def blocking(self) -> bool:
        """True if `begin` takes longer than a thread that serves others should wait."""
        return self.sequences is not None and self.measured.seconds > INLINE

    def rows(self, inputs: Mapping[str, Any]) -> int:
        """Returns the number of rows of a request: the size of its batch axis, 1 without one."""
        if self.axis is None:
            return 1
        return next((len(a) for a in inputs.values() if np.ndim(a)), 1)

    def answers(
        self, request: InferRequest, outputs: Outputs, write: Callable[[tuple[str, int, int], Any], None]
    ) -> list[tuple[OutputRequest, np.ndarray]]:
        """Returns the requested outputs: classified, or written to shared memory by `write`, as the request says."""
        asked = request.outputs
        if asked is None:
            asked = [OutputRequest(name, request.binary) for name in self.outputs]
        answers = []
        for output in asked:
            if output.name not in self.outputs:
                raise RequestError(
                    f"unexpected inference output '{output.name}' for model '{self.name}': it has"
                    f" {', '.join(map(repr, self.outputs))}"
                )
            array = outputs[output.name]
            if output.classes:
                labels = self.settings.labels.get(output.name, ())
                array = datatypes.classified(array, output.classes, labels, self.batched)
            if output.region is not None:
                write(output.region, datatypes.to_raw(array))
            answers.append((output, array))
        return answers

    # what clients see of a model

    def metadata(self) -> dict[str, Any]:
        """Returns the protocol's metadata: names, datatypes and shapes, -1 for dynamic sizes."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": self.config.platform,
            "inputs": [_described(p) for p in self.inputs.values()],
            "outputs": [_described(p) for p in self.outputs.values()],
        }

    def waiting(self) -> int:
        """Returns the number of rows, or runs, in the queue."""
        return self.queue.waiting if self.queue is not None else 0

    def close(self) -> None:
        """Waits for the runs under way, and gives contexts and engine back."""
        self.closed = True
        if self.queue is not None:
            self.queue.close()
        if self.sequences is not None:
            self.sequences.close()


def fault_of(error: BaseException) -> RequestError:
    """Translates an exception of a run to a rejected request."""
    from pelton.errors import DeadlineError, QueueFullError

    if isinstance(error, RequestError):
        return error
    if isinstance(error, QueueFullError):
        return RequestError(str(error), "full", error.retry_after)
    if isinstance(error, DeadlineError):
        return RequestError(str(error), "late")
    if isinstance(error, InputError):
        return RequestError(str(error))
    log.error("a run failed: %s", error, exc_info=not isinstance(error, Error))
    return RequestError(
        str(error) if isinstance(error, Error) else "the run failed; the server's log says why", "internal"
    )


def batch_axis(engine: Engine, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> str | None:
    """Returns the symbol that is the first size of all inputs and outputs; None if there is no such."""
    firsts = {p.shape[0] if p.shape else None for p in (*inputs.values(), *outputs.values())}
    first = firsts.pop() if len(firsts) == 1 else None
    return first if isinstance(first, str) and any(s.name == first for s in engine.symbols) else None


def _has_state(engine: Engine, settings: ModelSettings) -> bool:
    return settings.sequences is not None or bool(engine.state_outputs)


def _described(port: Any) -> dict[str, Any]:
    shape = [d if isinstance(d, int) else -1 for d in port.shape]
    return {"name": port.name, "datatype": datatypes.NAMES[port.dtype], "shape": shape}


def _number(value: Any, what: str) -> int:
    """Returns a parameter of a request that is an integer, which HTTP may send as text."""
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise RequestError(f"parameter {what} is an integer of 0 or more, got {shown(value)}")
    return value
