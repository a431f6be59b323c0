"""A sequence of tokens with the caches of their keys and values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.errors import InputError
from pelton.runtime.state import State

from .runner import DecoderRunner

CHUNK = 512  # tokens of a prompt that a run takes at once


class TokenSequence:
    """A sequence of tokens of a Decoder; `Decoder.state` creates it. ids: its tokens. capacity: the most of them."""

    def __init__(self, runner: DecoderRunner, state: State, capacity: int):
        self.runner, self.state, self.capacity = runner, state, capacity
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def extend(self, ids: Iterable[int], *, all_rows: bool = False) -> np.ndarray:
        """Appends tokens; returns the logits behind the last one, [vocabulary], or behind each, [tokens, vocabulary].

        Raises InputError without tokens, for ids that are none, and beyond the capacity, and ModelError for logits
        that are NaN; the sequence is then as before.
        """
        new = self.runner.check(ids)
        if self.length + len(new) > self.capacity:
            raise InputError(
                f"the sequence has {self.length} tokens and room for {self.capacity}, {len(new)} more do not fit;"
                " shorten the text, or open the model with a larger context="
            )
        before, parts = self.length, []
        try:
            for start in range(0, len(new), CHUNK):
                part = new[start : start + CHUNK]
                rows = np.arange(len(part)) if all_rows else np.array([len(part) - 1])
                lengths = np.array([self.length + len(part)])
                logits = self.runner.run(self.state, np.array([part]), lengths, rows)[0]
                self.ids += part
                if all_rows:
                    parts.append(logits)
        except BaseException:
            del self.ids[before:]
            self.runner.clear(self.state, before)
            raise
        return np.concatenate(parts) if all_rows else logits[-1]

    def rewind(self, length: int) -> None:
        """Goes back to the first `length` tokens. Raises InputError if there are fewer, or the model has a state that
        only goes forward."""
        if not 0 <= length <= self.length:
            raise InputError(f"the sequence has {self.length} tokens; it cannot go back to {length}")
        if length and length < self.length and not self.runner.positional:
            raise InputError("this model has a state that only goes forward; begin a new sequence, or fork one earlier")
        if not length and not self.runner.positional:
            self.state.reset()
        del self.ids[length:]

    def fork(self) -> TokenSequence:
        """Returns a copy, which runs on from here on its own."""
        copy = TokenSequence(self.runner, self.runner.copied(self.state, self.length, self.capacity), self.capacity)
        copy.ids = [*self.ids]
        return copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.length} tokens, room for {self.capacity}>"
