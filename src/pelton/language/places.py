"""Places of a batch: which sequence a prompt continues, so that no token is computed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .batch import TokenBatch
from .few import FEW
from .sequence import TokenSequence


@dataclass
class SequencePlace:
    """A sequence of a batch.

    exact: its first tokens, so many, whose keys and values are bit for bit those of a prompt. Those that were
    generated one by one differ from them in the last bits: other kernels computed them. target: tokens of a finished
    answer with its prompt, which `settle` computes as a prompt while nothing else runs, so that the next one goes on
    behind them. used: a clock of the last use. digest: of what an encoder has read for it; b"" without one.
    """

    number: int
    sequence: TokenSequence
    exact: int = 0
    target: tuple[int, ...] = ()
    busy: bool = False
    used: int = 0
    digest: bytes = b""

    @property
    def ids(self) -> list[int]:
        return self.sequence.ids

    def rewind(self, length: int) -> None:
        """Goes back to `length` tokens at most; to 0 where the model only goes forward."""
        if length < self.sequence.length:
            self.sequence.rewind(length if self.sequence.runner.positional else 0)
        self.exact = min(self.exact, self.sequence.length)

    def extend(self, ids: Sequence[int]) -> np.ndarray:
        """Appends tokens of a prompt; returns the logits behind the last one."""
        logits = self.sequence.extend(ids)
        if len(ids) > FEW:
            self.exact = self.sequence.length
        return logits

    def settle(self, most: int) -> bool:
        """Computes up to `most` tokens of the target; returns False if there are none to compute."""
        rest = len(self.target) - self.exact
        if rest <= FEW or not self.sequence.runner.positional:
            return False
        self.rewind(self.exact)
        self.extend(self.target[self.exact : self.exact + prompt_part(rest, most)])
        return True


class SequencePlaces:
    """The sequences of a batch, those of finished answers included, which later prompts continue."""

    def __init__(self, batch: TokenBatch):
        self.batch = batch
        self.all = [SequencePlace(i, batch[i]) for i in range(len(batch))]
        self._clock = 0

    def take(self, prompt: Sequence[int], digest: bytes = b"") -> SequencePlace | None:
        """Returns a place whose sequence is the beginning of the prompt, as long as there is one; None if all are busy.

        More than FEW tokens of the prompt remain, of prompts that have more: shorter runs have other kernels.
        digest: of what an encoder reads, on which keys and values then depend, beside tokens. Sequences begin anew, in
        the place for which the encoder has already read it, if there is one.
        """
        free = [p for p in self.all if not p.busy]
        if not free:
            return None
        if digest:
            place = next((p for p in free if p.digest == digest), None) or self._oldest(free)
            place.rewind(0)
            place.busy, place.used, place.target = True, self._tick(), ()
            return place
        source, length = self._longest(prompt)
        if source is None:
            place = self._oldest(free)
        elif not source.busy and 2 * length >= source.sequence.length:
            place = source
        else:  # others may go on with the rest of the source
            others = [p for p in free if p is not source]
            place = self._oldest(others) if others else source
        if place is not source:
            place.rewind(0)
            if source is not None and length:
                copy_beginning(source.sequence, place.sequence, length)
                place.exact = length
        place.rewind(length)
        place.busy, place.used, place.target = True, self._tick(), ()
        return place

    def free(self, place: SequencePlace, target: Sequence[int]) -> None:
        """Returns a place; its sequence stays until another prompt needs the place. target: see `SequencePlace`."""
        place.busy, place.used, place.target = False, self._tick(), () if place.digest else tuple(target)

    def settle(self, most: int) -> bool:
        """Computes up to `most` tokens of what free places lack, the latest one first; returns False if that is all."""
        return any(p.settle(most) for p in sorted(self.all, key=lambda p: -p.used) if not p.busy)

    def adopt(self, tokens: Sequence[int], caches: Mapping[str, np.ndarray]) -> bool:
        """Writes tokens with their caches, as those of a prompt, into a free place; returns False without one."""
        free = [p for p in self.all if not p.busy]
        if not free:
            return False
        place = self._oldest(free)
        place.rewind(0)
        for name, a in caches.items():
            place.sequence.state.arrays[name][:, :, : len(tokens)] = a
        place.sequence.adopt(tokens, place.sequence.runner.is_long(len(tokens)))
        place.exact, place.used, place.target = len(tokens), self._tick(), ()
        return True

    def _longest(self, prompt: Sequence[int]) -> tuple[SequencePlace | None, int]:
        best, length = None, 0
        for place in self.all:
            n = min(common_beginning(place.ids, prompt), place.exact, len(prompt) - FEW - 1)
            long = place.sequence.runner.is_long(len(prompt))
            if n > length and place.sequence.runner.positional and place.sequence.long == long:
                best, length = place, n
        return best, length

    def _oldest(self, free: list[SequencePlace]) -> SequencePlace:
        """Returns an empty place, else that which was used least recently; of equal ones that next to busy ones, as a
        step runs all between the first and the last."""
        busy = [p.number for p in self.all if p.busy] or [0]
        return min(free, key=lambda p: (bool(p.ids), p.used, min(abs(p.number - b) for b in busy)))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def prompt_part(rest: int, most: int) -> int:
    """Returns how many tokens of a prompt run next: never leaves FEW or less, which other kernels would compute."""
    return rest if rest <= most else min(most, rest - FEW - 1)


def common_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns how many first tokens are equal."""
    most = min(len(a), len(b))
    return next((i for i in range(most) if a[i] != b[i]), most)


def copy_beginning(source: TokenSequence, to: TokenSequence, length: int) -> None:
    """Copies the first tokens of a sequence into another, empty one of the same decoder, whose caches lie by
    position."""
    for name, a in source.state.arrays.items():
        to.state.arrays[name][:, :, :length] = a[:, :, :length]
    to.adopt(source.ids[:length], source.long)
