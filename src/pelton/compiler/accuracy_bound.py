"""Judges engines in lower precision by data that was kept aside, beside the FP32 engine of the same program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton import metrics
from pelton.errors import BuildError, InputError
from pelton.runtime import Engine

ROUNDING = 1e-9  # of shares: 1 - 99 / 100 is above 0.01
Feed = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Accuracy:
    """How close an engine is to the FP32 engine.

    drop: what `AccuracyBound` bounds. sqnr: dB, the lowest of all outputs. agreement: the share of samples with the
    same largest score, the lowest of all outputs of scores; None if there are none. metric: the value of the caller's.
    """

    drop: float
    sqnr: float
    agreement: float | None = None
    metric: float | None = None

    def describe(self) -> dict[str, float]:
        """As plain data; infinities are left out."""
        found = {"drop": self.drop, "sqnr_db": self.sqnr, "agreement": self.agreement, "metric": self.metric}
        return {k: round(v, 6) for k, v in found.items() if v is not None and math.isfinite(v)}


class AccuracyBound:
    """A limit of what lower precision may cost.

    The drop is metric(FP32 engine) − metric(engine) where there is a metric, a function of an engine that is larger
    where the engine is better. Otherwise it is the largest of all outputs': 1 − agreement of outputs of scores,
    [samples, classes] floats, and noise power by signal power of the others. Raises BuildError for a metric that raises
    or gives no number.
    """

    def __init__(
        self,
        reference: Engine,
        feeds: Sequence[Feed],
        max_drop: float,
        metric: Callable[[Engine], float] | None = None,
    ):
        self.feeds, self.max_drop, self._metric = feeds, max_drop, metric
        self._want = [_run(reference, feed) for feed in feeds]
        self._reference = None if metric is None else self._score(reference)

    def measure(self, engine: Engine) -> Accuracy:
        """The accuracy of an engine."""
        noise = {name: metrics.Noise() for name in self._want[0]}
        same: dict[str, list[np.ndarray]] = {}
        for want, feed in zip(self._want, self.feeds):
            for name, found in _run(engine, feed).items():
                if want[name].dtype.kind not in "fiub":
                    continue
                noise[name].add(want[name], found)
                if _holds_scores(want[name]):
                    same.setdefault(name, []).append(metrics.matches(want[name], found))
        agreement = {name: float(np.concatenate(matches).mean()) for name, matches in same.items()}
        sqnr = min((n.sqnr for n in noise.values()), default=math.inf)
        lowest = min(agreement.values(), default=None)
        if self._reference is not None:
            score = self._score(engine)
            return Accuracy(self._reference - score, sqnr, lowest, score)
        drops = [1 - share for share in agreement.values()]
        drops += [10 ** (-n.sqnr / 10) for name, n in noise.items() if name not in agreement]
        return Accuracy(max(drops, default=0.0), sqnr, lowest)

    def holds(self, accuracy: Accuracy) -> bool:
        """Whether an accuracy is within the limit."""
        return accuracy.drop <= self.max_drop + ROUNDING

    def noise_of(self, engine: Engine, more: Feed) -> float:
        """The sum over outputs of noise power by signal power, with these inputs more."""
        noise = {name: metrics.Noise() for name in self._want[0]}
        for want, feed in zip(self._want, self.feeds):
            for name, found in _run(engine, {**feed, **more}).items():
                if want[name].dtype.kind == "f":
                    noise[name].add(want[name], found)
        return sum(10 ** (-n.sqnr / 10) for n in noise.values())

    def _score(self, engine: Engine) -> float:
        assert self._metric is not None
        try:
            score = float(self._metric(engine))
        except InputError:
            raise
        except Exception as e:
            raise BuildError(f"metric raised {type(e).__name__}: {e}; it takes an engine and gives a number") from e
        if not math.isfinite(score):
            raise BuildError(f"metric gave {score}; it gives a finite number, larger where the engine is better")
        return score


def _run(engine: Engine, feed: Feed) -> Outputs:
    return {name: np.array(found) for name, found in engine.run(dict(feed)).items()}


def _holds_scores(output: Any) -> bool:
    return output.dtype.kind == "f" and output.ndim == 2 and output.shape[1] > 1
