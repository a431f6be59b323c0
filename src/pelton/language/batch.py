"""Several sequences in one memory, which take a token each in one run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pelton.errors import InputError
from pelton.runtime.state import State

from .runner import DecoderRunner
from .sequence import TokenSequence


class TokenBatch:
    """Sequences of a Decoder side by side; `Decoder.batch` creates it.

    Each is a TokenSequence of its own, which takes its prompt alone: `batch[i].extend(prompt)`. `step` then takes a
    token of several at once. Sequences that end may `rewind(0)` and begin anew while others go on.
    """

    def __init__(self, runner: DecoderRunner, state: State, count: int, capacity: int):
        self.runner, self.state, self.capacity = runner, state, capacity
        self.sequences = tuple(TokenSequence(runner, state.sequence(i), capacity) for i in range(count))

    def __getitem__(self, i: int) -> TokenSequence:
        return self.sequences[i]

    def __len__(self) -> int:
        return len(self.sequences)

    def step(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Appends a token to each sequence named; returns the logits behind it, [vocabulary], by sequence.

        Raises as `TokenSequence.extend`; all sequences are then as before.
        """
        if not tokens:
            raise InputError("a step needs a token of at least one sequence")
        unknown = [i for i in tokens if not 0 <= i < len(self)]
        if unknown:
            raise InputError(f"the batch has {len(self)} sequences, from 0 on; there is no sequence {unknown[0]}")
        ids = dict(zip(tokens, self.runner.check(tokens.values())))
        sequences = {i: self.sequences[i] for i in ids}
        full = [i for i, s in sequences.items() if s.length >= self.capacity]
        if full:
            raise InputError(f"sequence {full[0]} has no room for another token; it has {self.capacity}")
        first, last = min(ids), max(ids) + 1
        alone = {i for i, s in sequences.items() if self.runner.is_long(s.length + 1) != s.long}
        if alone or not self._can_idle(first, last, ids):
            return {i: s.extend([ids[i]]) for i, s in sequences.items()}
        # a sequence between others that takes none writes behind its end, where nothing counts
        each = self.sequences[first:last]
        row = np.array([[ids.get(i, 0)] for i in range(first, last)])
        lengths, long = np.array([s.length + 1 for s in each]), np.array([s.long for s in each])
        try:
            logits = self.runner.run(self._part(first, last), row, lengths, np.array([0]), long)
        except BaseException:
            for s in each:
                self.runner.clear(s.state, s.length)
            raise
        for i, s in sequences.items():
            s.append(ids[i])
        return {i: logits[i - first, -1] for i in ids}

    def _can_idle(self, first: int, last: int, ids: Mapping[int, int]) -> bool:
        """True if the sequences between others may write a token that does not count."""
        idle = [self.sequences[i] for i in range(first, last) if i not in ids]
        return not idle or self.runner.positional and all(s.length < self.capacity for s in idle)

    def _part(self, first: int, last: int) -> State:
        if last - first == len(self):
            return self.state
        arrays = {name: a[first:last] for name, a in self.state.arrays.items()}
        return State(arrays, self.state.outputs, {}, self.state)
