"""Metrics of language models for Prometheus: tokens, times to the first and between others, answers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from .text_model import TextModel
from .text_statistics import FIRST_BUCKETS, NEXT_BUCKETS

LABELS = ("model", "version")


def families(table: Mapping[tuple[str, str], Any]) -> Iterator[Any]:
    """Yields the families of metrics of all language models in a table of loaded models; none without one."""
    models = [(key, m) for key, m in sorted(table.items()) if key[1] and isinstance(m, TextModel)]
    if not models:
        return
    tokens = CounterMetricFamily(
        "pelton_tokens",
        "Tokens of prompts, of these in caches, of answers, and of speculation (drafted, accepted)",
        labels=(*LABELS, "kind"),
    )
    answers = CounterMetricFamily("pelton_answers", "Answers by the reason of their end", labels=(*LABELS, "reason"))
    running = GaugeMetricFamily("pelton_running", "Answers that run", labels=LABELS)
    first = HistogramMetricFamily(
        "pelton_first_token_seconds", "Seconds from a request to its first token", labels=LABELS
    )
    following = HistogramMetricFamily(
        "pelton_token_seconds", "Mean seconds of an answer's following tokens", labels=LABELS
    )
    for labels, model in models:
        statistics = model.statistics
        for name, count in statistics.tokens.items():
            tokens.add_metric((*labels, name), count)
        for reason, count in list(statistics.answers.items()):
            answers.add_metric((*labels, reason), count)
        running.add_metric(labels, model.running())
        first.add_metric(labels, _cumulative(FIRST_BUCKETS, statistics.first), statistics.first_sum)
        following.add_metric(labels, _cumulative(NEXT_BUCKETS, statistics.following), statistics.following_sum)
    yield from (tokens, answers, running, first, following)


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    total, rows = 0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts):
        total += count
        rows.append((bound, float(total)))
    return rows
