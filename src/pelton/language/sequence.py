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
        self._long = False  # true if the caches have positions of long sequences

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
        whole, long = [*self.ids, *new], self.runner.is_long(self.length + len(new))
        first = self.length if long == self._long else 0  # positions of longer sequences are others
        wanted, parts = self.length if all_rows else len(whole) - 1, []
        try:
            for start in range(first, len(whole), CHUNK):
                end = min(start + CHUNK, len(whole))
                rows = np.arange(max(wanted - start, 0), end - start) if end > wanted else np.array([end - start - 1])
                part, lengths = np.array([whole[start:end]]), np.array([end])
                logits = self.runner.run(self.state, part, lengths, rows, np.array([long]))[0]
                if end > wanted:
                    parts.append(logits)
        except BaseException:
            self.runner.clear(self.state, first)
            raise
        self.ids, self._long = whole, long
        return np.concatenate(parts) if all_rows else parts[-1][-1]

    @property
    def long(self) -> bool:
        """True if its positions are those of a long sequence, of a model where that makes a difference."""
        return self._long

    def append(self, id: int) -> None:
        """Notes a token that a run of a batch has added to the caches."""
        self.ids.append(id)

    def adopt(self, ids: Iterable[int], long: bool) -> None:
        """Notes the tokens of which a caller has written the caches. long: see `long`."""
        self.ids, self._long = [*ids], long

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
        copy.ids, copy._long = [*self.ids], self._long
        return copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.length} tokens, room for {self.capacity}>"
