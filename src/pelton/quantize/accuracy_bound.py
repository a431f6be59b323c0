"""Compares engines in lower precision with the FP32 engine of the same program, on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pelton import metrics
from pelton.errors import BuildError, InputError
from pelton.ir.graph import Graph, Value
from pelton.ir.types import F32
from pelton.logs import Logger
from pelton.ops.words import add, cast, convolution, div, log_softmax, matmul, mul, reshape, sigmoid, softmax, sub

log = Logger("pelton.build")

ROUNDING = 1e-9  # of shares: 1 - 99 / 100 is above 0.01
KEPT = 64 << 20  # bytes of cached outputs of the FP32 engine; it computes others again
Feed = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


class Runnable(Protocol):
    """An engine, or what runs as one."""

    def run(self, inputs: Any, /) -> Any: ...


@dataclass(frozen=True)
class Accuracy:
    """Closeness of an engine to the FP32 engine.

    drop: the value that `AccuracyBound` limits. sqnr: dB, the lowest of all outputs. noise: noise power by signal
    power, summed over float outputs. agreement: the share of samples with the same largest score, the lowest of all
    score outputs; None without any. metric, metric_fp32: the caller's metric of this and of the FP32 engine.
    """

    drop: float
    sqnr: float
    noise: float
    agreement: float | None = None
    metric: float | None = None
    metric_fp32: float | None = None

    def describe(self) -> dict[str, float]:
        """Returns the values as plain data, without infinities."""
        values = {"drop": self.drop, "sqnr_db": self.sqnr, "agreement": self.agreement}
        values |= {"metric": self.metric, "metric_fp32": self.metric_fp32}
        return {k: round(v, 6) for k, v in values.items() if v is not None and math.isfinite(v)}


def outputs_of_scores(graph: Graph, sequences: bool = False) -> set[str]:
    """Returns the names of outputs f32[samples, classes] that classify: probabilities, or results of a layer of
    constant weights. Outputs that end in a normalization or a pool (embeddings) do not. sequences: also those of
    products with scores for each position, f32[samples, positions, classes]."""

    def classifies(v: Value) -> bool:
        rank = v.type.rank
        while v in graph.producer:
            node = graph.producer[v]
            if node.op in (softmax, log_softmax, sigmoid):
                return True
            if node.op is matmul or node.op is convolution and rank == 2:
                return node.inputs[1] in graph.constants
            varying = [x for x in node.inputs if x not in graph.constants]
            if node.op not in (add, sub, mul, div, reshape, cast) or len(varying) != 1:
                return False
            (v,) = varying
        return False

    ranks = (2, 3) if sequences else (2,)
    return {v.name for v in graph.outputs if v.type.dtype is F32 and _of_classes(v.type.shape, ranks) and classifies(v)}


def _of_classes(shape: Sequence[object], ranks: Container[int]) -> bool:
    return len(shape) in ranks and shape[-1] != 1


class AccuracyBound:
    """A limit on the accuracy lost to lower precision.

    The drop is metric(FP32 engine) − metric(engine) if there is a metric, a function of an engine with larger values
    for better engines. Otherwise it is the largest over all outputs: 1 − agreement for those in `scores`, noise power
    divided by signal power for the others. Memory does not depend on the number of feeds. Raises BuildError for a
    metric that raises or returns no number.
    """

    def __init__(
        self,
        reference: Runnable,
        feeds: Sequence[Feed],
        max_drop: float,
        metric: Callable[[Any], float] | None = None,
        scores: Container[str] = (),
    ):
        self.feeds, self.max_drop, self.scores, self._metric = feeds, max_drop, scores, metric
        self._engine = reference
        self.kept: list[Outputs] = []  # of the first feeds
        self._floats: set[str] = set()
        size = 0
        for feed in feeds:
            outputs = _run(reference, feed)
            self._floats.update(name for name, a in outputs.items() if a.dtype.kind == "f")
            size += sum(a.nbytes for a in outputs.values())
            if size > KEPT:
                break
            self.kept.append(outputs)
        self._reference = None if metric is None else self._score(reference)

    def measure(self, engine: Runnable) -> Accuracy:
        """Measures the accuracy of an engine."""
        noise: dict[str, metrics.Noise] = {}
        same: dict[str, tuple[int, int]] = {}  # (answers, equal answers)
        for want, feed in self._wanted():
            for name, array in _run(engine, feed).items():
                noise.setdefault(name, metrics.Noise()).add(want[name], array)
                if name in self.scores:
                    matches = metrics.matches(want[name], array)
                    total, equal = same.get(name, (0, 0))
                    same[name] = total + matches.size, equal + int(matches.sum())
        agreement = {name: equal / total for name, (total, equal) in same.items() if total}
        sqnr = min((n.sqnr for n in noise.values()), default=math.inf)
        lowest = min(agreement.values(), default=None)
        together = sum(n.ratio for name, n in noise.items() if name in self._floats)
        if self._reference is not None:
            score = self._score(engine)
            return Accuracy(self._reference - score, sqnr, together, lowest, score, self._reference)
        drops = [1 - share for share in agreement.values()]
        drops += [n.ratio for name, n in noise.items() if name not in agreement]
        return Accuracy(max(drops, default=0.0), sqnr, together, lowest)

    def holds(self, accuracy: Accuracy) -> bool:
        """True if an accuracy is within the limit."""
        return accuracy.drop <= self.max_drop + ROUNDING

    def warn_of_chance(self, constant: Iterable[Runnable]) -> None:
        """Warns if engines with a constant answer are within the limit: such a metric measures nothing. A metric that
        cannot rate them causes no warning."""
        if self._reference is None:
            return
        for engine in constant:
            try:
                score = self._score(engine)
            except BuildError as e:
                log.info("the metric was not checked with constant answers: %s", e)
                return
            if score >= self._reference - self.max_drop - ROUNDING:
                log.warning(
                    "metric rates the FP32 engine %g and a constant answer %g, within max_drop %g: it cannot"
                    " measure the accuracy of INT8; check its labels, and its preprocessing",
                    self._reference,
                    score,
                    self.max_drop,
                )
                return

    def _wanted(self) -> Iterator[tuple[Outputs, Feed]]:
        """Yields the FP32 engine's outputs for each feed."""
        for i, feed in enumerate(self.feeds):
            yield (self.kept[i] if i < len(self.kept) else _run(self._engine, feed)), feed

    def _score(self, engine: Runnable) -> float:
        assert self._metric is not None
        try:
            score = float(self._metric(engine))
        except InputError:
            raise
        except Exception as e:
            raise BuildError(
                f"metric raised {type(e).__name__}: {e}; it must be a function from an engine to a number"
            ) from e
        if not math.isfinite(score):
            raise BuildError(f"metric returned {score}; it must return a finite number, larger for better engines")
        return score


def _run(engine: Runnable, feed: Feed) -> Outputs:
    """Copies the numeric outputs."""
    return {name: np.array(array) for name, array in engine.run(dict(feed)).items() if array.dtype.kind in "fiub"}
