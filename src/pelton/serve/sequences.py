"""Sequences: models with state, whose requests carry the identifier of a sequence that the server keeps state for.

Source: extension "sequence" of the Open Inference Protocol, and `sequence_batching` of Triton's configurations.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import InputError

from .requests import RequestError

if TYPE_CHECKING:
    from pelton.runtime.engine import Engine

IDLE = 60.0  # seconds after which a sequence without requests may be forgotten
MOST = 4096  # sequences of a model at once
CONTROLS = ("START", "READY", "END", "CORRID")  # as ModelSequenceBatching.Control.Kind numbers them


@dataclass
class Sequence:
    """A sequence under way: the values of its states; requests of one sequence run one after the other."""

    states: dict[str, Any]
    used: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False


class Sequences:
    """The sequences of a model. hidden: names of inputs and outputs that clients do not see.

    config: the message ModelSequenceBatching, None for a model whose file declares its states. Raises InputError if it
    names ports that the engine does not have.
    """

    def __init__(self, engine: Engine, config: Any, name: str):
        self.engine, self.name = engine, name
        self.ports = {p.name: p for p in engine.inputs}
        self.states = dict(engine.state_outputs)  # input → output
        self.controls: list[tuple[str, str, Any]] = []  # input, kind, the message Control
        self.idle = IDLE
        if config is not None:
            self.idle = config.max_sequence_idle_microseconds / 1e6 or IDLE
            self.states.update({s.input_name: s.output_name for s in config.state})
            for control_input in config.control_input:
                self.controls += [(control_input.name, CONTROLS[c.kind], c) for c in control_input.control]
        names = {p.name for p in engine.outputs}
        for wanted, known in (
            *((name, self.ports) for name in (*self.states, *(c[0] for c in self.controls))),
            *((output, names) for output in self.states.values()),
        ):
            if wanted not in known:
                raise InputError(
                    f"sequence_batching of model {name!r} names {wanted!r}, which its engine does not have"
                )
        self.hidden = frozenset((*self.states, *self.states.values(), *(c[0] for c in self.controls)))
        self._live: dict[Any, Sequence] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._live)

    def run(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a request of a sequence, of which `parameters` has sequence_id, sequence_start and sequence_end.

        Raises RequestError without an identifier, or for a sequence that has not started.
        """
        id, start, end = (parameters.get(f"sequence_{part}", False) for part in ("id", "start", "end"))
        if not isinstance(id, (int, str)) or not id or isinstance(id, bool):
            raise RequestError(
                f"inference request to model '{self.name}' must specify a non-zero or non-empty correlation ID"
            )
        sequence = self._sequence(id, bool(start))
        with sequence.lock:
            if sequence.ended:
                raise self._not_started(id)
            outputs = self.engine.run(
                {**inputs, **sequence.states, **self._control(inputs, id, bool(start), bool(end))}
            )
            for state, output in self.states.items():
                sequence.states[state] = outputs.pop(output)
            sequence.used = time.monotonic()
            if end:
                sequence.ended = True
                with self._lock:
                    if self._live.get(id) is sequence:
                        del self._live[id]
        return outputs

    def _sequence(self, id: Any, start: bool) -> Sequence:
        now = time.monotonic()
        with self._lock:
            if start:
                if len(self._live) >= MOST and id not in self._live:
                    self._forget(now)
                self._live[id] = Sequence(self._initial(), now)
            elif id not in self._live or now - self._live[id].used > self.idle:
                raise self._not_started(id)
            return self._live[id]

    def _forget(self, now: float) -> None:
        """Drops idle sequences to make room for one. Raises RequestError if there are none."""
        self._live = {id: s for id, s in self._live.items() if now - s.used <= self.idle}
        if len(self._live) >= MOST:
            raise RequestError(f"model '{self.name}' has {MOST} sequences under way", "full", self.idle)

    def _not_started(self, id: Any) -> RequestError:
        return RequestError(
            f"inference request for sequence {id} to model '{self.name}' must specify the START flag on the first"
            " request of the sequence"
        )

    def _initial(self) -> dict[str, Any]:
        states = dict(self.engine.initial_states())
        for name in self.states:
            if name not in states:
                port = self.ports[name]
                shape = [d if isinstance(d, int) else 1 for d in port.shape]
                states[name] = np.full(shape, "" if port.dtype == "string" else 0, port.numpy_dtype)
        return states

    def _control(self, inputs: Mapping[str, Any], id: Any, start: bool, end: bool) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {}
        flags = {"START": start, "READY": True, "END": end}
        rows = next((len(a) for a in inputs.values() if np.ndim(a)), 1)
        for name, kind, control in self.controls:
            port = self.ports[name]
            shape = [d if isinstance(d, int) else rows for d in port.shape]
            if kind == "CORRID":
                value = str(id) if port.dtype == "string" else id
                if isinstance(value, str) and port.dtype != "string":
                    raise RequestError(f"model '{self.name}' takes sequence identifiers that are integers")
            else:
                pair = control.int32_false_true or control.fp32_false_true or control.bool_false_true or (0, 1)
                value = pair[flags[kind]]
            try:
                values[name] = np.full(shape, value, port.numpy_dtype)
            except OverflowError:
                raise RequestError(f"sequence identifier {id} exceeds {port.dtype}") from None
        return values

    def close(self) -> None:
        """Forgets all sequences."""
        with self._lock:
            self._live.clear()
