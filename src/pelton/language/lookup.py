"""Speculation by lookup: the tokens that followed the same ones earlier in a text (Saxena, "Prompt lookup", 2023)."""

from __future__ import annotations

from collections.abc import Sequence

GRAMS = (4, 2)  # tokens that have to be the same; the longer one first
TRIALS = 32  # steps without a draft, after which one is tried again
SHARE = 1 / 8  # of the latest time or count in a running mean


class TokenLookup:
    """The tokens of one answer and its prompt, and where each group of them was last."""

    def __init__(self, ids: Sequence[int]):
        self._ids: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # behind these tokens, the place of what followed
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Appends a token."""
        for n in GRAMS:
            if len(self._ids) >= n:
                self._last[tuple(self._ids[-n:])] = len(self._ids)
        self._ids.append(token)

    def __len__(self) -> int:
        return len(self._ids)

    def draft(self, most: int) -> list[int]:
        """Returns tokens that may follow, at most so many; [] if the latest ones are new."""
        for n in GRAMS:
            at = self._last.get(tuple(self._ids[-n:]))
            if at is not None:
                return self._ids[at : at + max(most, 0)]
        return []


class Speed:
    """Decides whether drafts pay: tokens a second with them and without, as running means of this machine."""

    def __init__(self) -> None:
        self._single, self._draft, self._gain = 0.0, 0.0, 2.0  # seconds, seconds, tokens of a run with a draft
        self._since = 0

    def pays(self) -> bool:
        """True if a draft is expected to win, or its worth is to be measured again."""
        self._since += 1
        return self._since > TRIALS or not self._single or self._gain * self._single > self._draft

    def single(self, seconds: float) -> None:
        """Records a run of one token."""
        self._single = _mean(self._single, seconds)

    def drafted(self, seconds: float, tokens: int) -> None:
        """Records a run with a draft, which made so many tokens."""
        self._since = 0
        self._draft, self._gain = _mean(self._draft, seconds), _mean(self._gain, tokens)


def _mean(before: float, value: float) -> float:
    return value if not before else before + SHARE * (value - before)
