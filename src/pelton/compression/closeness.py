"""Distances of the compressed model's scores from the original ones: KL divergence and perplexity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.errors import InputError
from pelton.ir.graph import Graph
from pelton.ops.words import sigmoid, softmax
from pelton.quantize.accuracy_bound import Feed, Outputs, Runnable, outputs_of_scores

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Closeness:
    """kl: KL divergence of the compressed model's distribution from the original one in nats, the mean over samples and
    positions, the largest of all score outputs. perplexity, perplexity_fp32: of the next tokens of the input. None
    where the model has no such output."""

    kl: float | None = None
    perplexity: float | None = None
    perplexity_fp32: float | None = None

    def describe(self) -> dict[str, float]:
        values = {"kl": self.kl, "perplexity": self.perplexity, "perplexity_fp32": self.perplexity_fp32}
        return {name: round(v, 8) for name, v in values.items() if v is not None}


def log_shares(scores: Array, probabilities: bool = False) -> Array:
    """Returns the logarithms of the probabilities that scores mean, along the last axis, in float64."""
    wide = np.asarray(scores, np.float64)
    if probabilities:
        wide = np.log(np.maximum(wide, np.finfo(np.float32).tiny))
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def kl_divergence(reference: Array, other: Array) -> Array:
    """Returns Σ p · (log p − log q) along the last axis, of logarithms of probabilities p and q."""
    return (np.exp(reference) * (reference - other)).sum(-1)


def token_output(graph: Graph) -> tuple[str, str]:
    """Returns the names of the input of tokens [rows, positions] and the output of scores [rows, positions, tokens].

    Raises InputError for models without exactly one of each."""
    tokens = [v.name for v in graph.inputs if v.type.dtype.is_integer and v.type.rank == 2]
    scores = [v.name for v in graph.outputs if v.name in outputs_of_scores(graph, sequences=True) and v.type.rank == 3]
    named = [name for name in tokens if name == "input_ids"] or tokens
    if len(named) != 1 or len(scores) != 1:
        raise InputError(
            "perplexity needs an input of tokens [rows, positions] and an output of scores [rows, positions, tokens];"
            f" the model has {len(named)} such inputs and {len(scores)} such outputs"
        )
    return named[0], scores[0]


def measure(
    graph: Graph, original: Runnable, compressed: Runnable, feeds: Sequence[Feed], perplexity: bool
) -> Closeness:
    """Measures how close a compressed model is to the original one on held-out data."""
    outputs = [v for v in graph.outputs if v.name in outputs_of_scores(graph, sequences=True)]
    ops = {v.name: graph.producer[v].op for v in outputs}
    names = [name for name, op in ops.items() if op is not sigmoid]
    source, target = token_output(graph) if perplexity else ("", "")
    sums: dict[str, list[float]] = {name: [] for name in names}
    lost: tuple[list[float], list[float]] = [], []
    for feed, (before, after) in zip(feeds, _pairs(original, compressed, feeds)):
        for name in names:
            p, q = (log_shares(of[name], ops[name] is softmax) for of in (before, after))
            sums[name].append(float(kl_divergence(p, q).mean()))
            if name == target:
                for log, shares in zip(lost, (p, q)):
                    log.append(_surprise(feed[source], shares))
    kl = max((float(np.mean(values)) for values in sums.values()), default=None)
    if not perplexity:
        return Closeness(kl)
    own, other = (float(np.exp(np.mean(values))) for values in lost)
    return Closeness(kl, other, own)


def _pairs(original: Runnable, compressed: Runnable, feeds: Sequence[Feed]) -> Iterator[tuple[Outputs, Outputs]]:
    for feed in feeds:
        before = {name: np.array(a) for name, a in original.run(dict(feed)).items()}
        yield before, compressed.run(dict(feed))


def _surprise(tokens: Array, shares: Array) -> float:
    """Returns the mean of −log p of each next token; InputError if tokens are no numbers of scores."""
    if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= shares.shape[-1] or tokens.shape[1] < 2:
        raise InputError(
            f"perplexity needs rows of at least 2 tokens from 0 to {shares.shape[-1] - 1}, got tokens from"
            f" {tokens.min(initial=0)} to {tokens.max(initial=0)} in rows of {tokens.shape[1]}"
        )
    return float(-np.take_along_axis(shares[:, :-1], tokens[:, 1:, None].astype(np.int64), -1).mean())
