"""From logits to a token: penalties, temperature, top k, top p, min p, and a draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.errors import InputError, ModelError

FIRST = 256  # tokens that are sorted for top p; more if their sum does not reach it
ROWS = 32  # of a table of logits, whose columns have one candidate each at first
BLOCK = 256  # weights whose sum is looked at first

MOST_BIAS = 1e6  # that a logit gets added
COLDEST = 1e-5  # lower temperatures choose the largest logit, as 0 does: float32 cannot divide by them


@dataclass(frozen=True)
class Sampling:
    """How to choose a token from logits, in this order.

    0. logit_bias: pairs of a token and a number that its logit gets added.
    1. repetition_penalty: logits of tokens that the prompt or the answer has are divided by it where positive, and
       multiplied where negative (Keskar et al., "CTRL", 2019). 1: off.
    2. presence_penalty, frequency_penalty: subtracted from logits of tokens that the answer has; the second, as often
       as it has them. −2 to 2, 0: off.
    3. temperature: divides the logits; 0 (below 1e-5) chooses the largest, and the rest of this list is left out.
    4. top_k: the most likely tokens, so many; 0: all.
    5. top_p: of these, the most likely ones whose probabilities sum to so much (Holtzman et al., 2020). 1: all.
    6. min_p: of these, those at least so likely as the most likely one times this (Nguyen et al., 2024). 0: all.
    7. A draw among them. seed: of the draws; the same answer whatever else runs. None: another one each time.

    temperature_last: 3 comes behind 6, as in llama.cpp. Otherwise it is the order of transformers.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    temperature_last: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 1e-3, 1e3),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InputError(f"{name} is a number from {low:g} to {high:g}, got {value!r}")
        for name, value in (("top_k", self.top_k), ("seed", 0 if self.seed is None else self.seed)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
                raise InputError(f"{name} is an integer from 0 on, got {value!r}")
        if not isinstance(self.logit_bias, tuple) or not all(map(_is_bias, self.logit_bias)):
            raise InputError(
                f"logit_bias is a tuple of pairs of a token and a number from {-MOST_BIAS:g} to {MOST_BIAS:g}, as in"
                f" ((42, -100.0),), got {self.logit_bias!r:.100}"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)


def _is_bias(pair: Any) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2 or any(isinstance(v, bool) for v in pair):
        return False
    token, value = pair
    return isinstance(token, int) and isinstance(value, (int, float)) and abs(value) <= MOST_BIAS


class Sampler:
    """Chooses the tokens of one answer. prompt: its tokens."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int):
        self.sampling = sampling
        self._rng = np.random.Generator(np.random.Philox(sampling.seed))
        self._counts = np.zeros(vocabulary if sampling.penalized else 0, np.float32)  # of tokens of the answer
        self._seen = np.zeros(len(self._counts), bool)
        self._bias = _bias(sampling.logit_bias, vocabulary)
        if sampling.penalized:
            self._seen[list(prompt)] = True

    def add(self, token: int) -> None:
        """Records a token of the answer, for the penalties."""
        if len(self._counts):
            self._counts[token] += 1
            self._seen[token] = True

    def choose(self, logits: np.ndarray, allowed: np.ndarray | None = None) -> int:
        """Returns a token. logits: f32 [vocabulary]. allowed: bool [vocabulary], the tokens that a grammar allows.

        Raises ModelError if the largest logit is not finite, as with NaN.
        """
        x = logits if self._bias is None else logits + self._bias
        x = self._penalized(x) if len(self._counts) else x
        if allowed is not None:
            x = np.where(allowed, x, np.float32(-np.inf))
        top = int(x.argmax())
        if not math.isfinite(x[top]):
            raise ModelError(f"the model computed logits without a largest number ({x[top]}); its file is damaged")
        return top if self.sampling.greedy else self._drawn(x)

    def _penalized(self, logits: np.ndarray) -> np.ndarray:
        s, x = self.sampling, logits.copy()
        if s.repetition_penalty != 1:
            seen = np.flatnonzero(self._seen)
            before = x[seen]
            x[seen] = np.where(before > 0, before / s.repetition_penalty, before * s.repetition_penalty)
        if s.presence_penalty or s.frequency_penalty:
            used = np.flatnonzero(self._counts)
            x[used] -= s.presence_penalty + s.frequency_penalty * self._counts[used]
        return x

    def _drawn(self, x: np.ndarray) -> int:
        s = self.sampling
        if not s.temperature_last:
            x = x / np.float32(s.temperature)
        ids: np.ndarray | None = None
        if 0 < s.top_k < len(x):
            ids = largest(x, s.top_k)
            x = x[ids]
        if s.top_p < 1:
            best = nucleus(x, s.top_p)
            x, ids = x[best], best if ids is None else ids[best]
        if s.min_p > 0:
            best = np.flatnonzero(x >= x.max() + math.log(s.min_p))
            x, ids = x[best], best if ids is None else ids[best]
        if s.temperature_last:
            x = x / np.float32(s.temperature)
        i = draw(np.exp(x - x.max()), self._rng.random())
        return i if ids is None else int(ids[i])


def _bias(pairs: Sequence[tuple[int, float]], vocabulary: int) -> np.ndarray | None:
    """Returns what logits get added, f32 [vocabulary]; None for nothing. Raises InputError for other tokens."""
    if not pairs:
        return None
    out = np.zeros(vocabulary, np.float32)
    for token, value in pairs:
        if not 0 <= token < vocabulary:
            raise InputError(f"logit_bias is for tokens 0 to {vocabulary - 1}, got {token}: {value}")
        out[token] = value
    return out


def draw(weights: np.ndarray, u: float) -> int:
    """Returns the index where the sums of weights reach the part u of all of them."""
    if len(weights) <= BLOCK:
        within = weights.cumsum(dtype=np.float64)
        return int(within.searchsorted(min(u * within[-1], np.nextafter(within[-1], 0)), side="right"))
    whole = len(weights) // BLOCK * BLOCK
    blocks = weights[:whole].reshape(-1, BLOCK).sum(1, dtype=np.float64)
    sums = np.append(blocks, weights[whole:].sum(dtype=np.float64)).cumsum()
    target = min(u * sums[-1], np.nextafter(sums[-1], 0))
    block = min(int(np.searchsorted(sums, target, side="right")), len(sums) - 1)
    part = weights[block * BLOCK : (block + 1) * BLOCK]
    within = part.cumsum(dtype=np.float64)
    i = int(np.searchsorted(within, target - (sums[block - 1] if block else 0.0), side="right"))
    return block * BLOCK + min(i, int(np.flatnonzero(part)[-1]))


def largest(x: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the largest numbers, in falling order; of equal ones the first."""
    columns = len(x) // ROWS
    if count < columns // 2:
        # as many columns have a number as large as the count-th largest of their maxima; rows are vectors of numpy's
        table, rest = x[: ROWS * columns].reshape(ROWS, columns), x[ROWS * columns :]
        tops = table.max(0)
        least = np.partition(tops, columns - count)[columns - count]
        some = np.flatnonzero(tops >= least)
        row, column = np.nonzero(table[:, some] >= least)
        candidates = np.append(row * columns + some[column], ROWS * columns + np.flatnonzero(rest >= least))
    elif count < len(x):
        candidates = np.flatnonzero(x >= np.partition(x, len(x) - count)[len(x) - count])
    else:
        candidates = np.arange(len(x))
    return candidates[np.lexsort((candidates, -x[candidates]))[:count]]


def nucleus(x: np.ndarray, p: float) -> np.ndarray:
    """Returns the indices of the largest logits, falling, whose probabilities reach a sum of p; one at least."""
    e = np.exp(x - x.max())
    total = e.sum(dtype=np.float64)
    best = largest(x, FIRST)
    sums = e[best].cumsum(dtype=np.float64)
    if sums[-1] < p * total:
        # all that are less likely than this sum to less than the rest, 1 − p
        least = (1 - p) * total / len(x)
        best = np.flatnonzero(e >= min(least, e[best[-1]]))
        best = best[np.lexsort((best, -x[best]))]
        sums = e[best].cumsum(dtype=np.float64)
    return best[: int(np.searchsorted(sums, p * total, side="left")) + 1]


def log_probabilities(logits: np.ndarray, tokens: Iterable[int], most: int) -> tuple[list[float], list[int]]:
    """Returns log probabilities of these tokens under the logits as the model made them, and the `most` likely tokens,
    in falling order."""
    top = logits.max()
    total = float(top) + math.log(np.exp(logits - top).sum(dtype=np.float64))
    best = [int(t) for t in largest(logits, most)] if most else []
    return [float(logits[t]) - total for t in (*tokens, *best)], best
