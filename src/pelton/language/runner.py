"""Runs of a decoder's engine over the states of its sequences."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.runtime import Context, Engine
from pelton.runtime.state import State
from pelton.system.forks import survives_fork

from .description import DecoderPorts, Description


class DecoderRunner:
    """An engine with one context, which runs of all sequences share, one at a time, from any thread.

    positional: true if a sequence has no state but caches by position.
    """

    def __init__(self, engine: Engine, ports: DecoderPorts, description: Description, threads: int | None):
        self.engine, self.ports, self.threads = engine, ports, threads
        self.vocabulary, self.long_from = description.vocabulary, description.long_from
        self.sources = {*ports.crosses, *([ports.source_lengths] if ports.source_lengths else [])}
        self._context: Context | None = None
        self._unlock()
        survives_fork(self)
        shares = {p.name: p.shares for p in engine.outputs}
        outputs = self.empty(1, 1).outputs
        scales = {f"{name}.scale" for name in ports.caches}
        self.positional = all(shares[name] == of and of in {*ports.caches, *scales} for of, name in outputs.items())

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def empty(self, count: int, capacity: int) -> State:
        """Creates the state of `count` sequences with room for `capacity` tokens each."""
        sizes = {self.ports.batch: count, self.ports.capacity: capacity}
        state = self.engine.state(None, **{name: size for name, size in sizes.items() if name})
        for port in self.engine.inputs:
            if port.name in self.ports.crosses:
                state.arrays[port.name] = np.zeros((count, *map(int, port.shape[1:])), np.float32)
        if self.ports.source_lengths is not None:  # a sequence that rests attends to a row, too
            state.arrays[self.ports.source_lengths] = np.ones(count, np.int64)
        return state

    def caches(self, state: State) -> dict[str, np.ndarray]:
        """Returns the arrays that runs extend, by name: all but those that an encoder wrote."""
        return {name: a for name, a in state.arrays.items() if name not in self.sources}

    def check(self, ids: Iterable[int]) -> list[int]:
        """Returns ids as a list. Raises InputError if there are none, and for numbers that are no ids."""
        new = [int(i) for i in ids]
        if not new:
            raise InputError("a sequence is extended by one token or more, got none")
        wrong = next((i for i in new if not 0 <= i < self.vocabulary), None)
        if wrong is not None:
            raise InputError(f"tokens of this model are 0 to {self.vocabulary - 1}, got {wrong}")
        return new

    def is_long(self, length: int) -> bool:
        """True if a sequence of so many tokens has the positions of long ones."""
        return 0 < self.long_from < length

    def run(self, state: State, ids: np.ndarray, lengths: np.ndarray, rows: np.ndarray, long: np.ndarray) -> np.ndarray:
        """Runs tokens behind those of a state; returns logits, f32 [batch, rows, vocabulary].

        ids: [batch, tokens]. lengths: of each sequence, with these tokens. rows: those whose logits it returns, by
        number. long: for each sequence, true if it has the positions of long ones.

        Raises ModelError for logits that are NaN.
        """
        ports, count = self.ports, ids.shape[1]
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        inputs = {ports.ids: ids.astype(np.int64), ports.mask: mask}
        if ports.positions is not None:
            inputs[ports.positions] = (lengths[:, None] - count + np.arange(count)).astype(np.int64)
        if ports.rows is not None:
            inputs[ports.rows] = rows.astype(np.int64)
        elif len(rows) > 1:
            parts = ((ids[:, i : i + 1], lengths - count + i + 1) for i in range(count))
            all_rows = [self.run(state, *part, rows[:1], long) for part in parts]
            return np.concatenate(all_rows, axis=1)[:, rows]
        if ports.source_rows is not None and ports.source_lengths is not None:
            inputs[ports.source_rows] = np.arange(state.arrays[ports.source_lengths].max())
        if ports.long is not None:
            inputs[ports.long] = long[:, None].astype(np.int64)
        with self._lock:
            if self._context is None:
                self._context = self.engine.context(self.threads)
            logits = state.run(self._context, inputs)[ports.logits].astype(np.float32)
        if np.isnan(logits).any():
            raise ModelError(
                f"the model computed logits that are NaN at token {int(lengths.max())}; its file is damaged"
            )
        return logits

    def copied(self, state: State, length: int, capacity: int) -> State:
        """Copies the state of one sequence; of caches by position, only the first `length` tokens."""
        copy = self.empty(1, capacity)
        for name, a in state.arrays.items():
            if self.positional and name not in self.sources:
                copy.arrays[name][:, :, :length] = a[:, :, :length]
            else:
                copy.arrays[name][...] = a
        return copy

    def clear(self, state: State, length: int) -> None:
        """Sets what a state has behind its first `length` tokens to 0."""
        if self.positional:
            for a in self.caches(state).values():
                a[:, :, length:] = 0
