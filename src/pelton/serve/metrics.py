"""Metrics of a server for Prometheus, collected from the models' statistics when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from pelton.errors import InputError

from . import text_metrics
from .statistics import BUCKETS

if TYPE_CHECKING:
    from .server import Server

LABELS = ("model", "version")
DURATIONS = {
    "queue": "waiting in the queue",
    "compute_input": "reading inputs",
    "compute_infer": "running the engine",
    "compute_output": "writing outputs",
}


class ModelCollector:
    """Collects the statistics of all loaded models."""

    def __init__(self, server: Server):
        self.server = server

    def collect(self) -> Iterator[Any]:
        """Yields the families of metrics, as prometheus_client asks for."""
        requests = CounterMetricFamily("pelton_requests", "Requests by outcome", labels=(*LABELS, "outcome"))
        rows = CounterMetricFamily("pelton_rows", "Rows of answered requests", labels=LABELS)
        runs = CounterMetricFamily("pelton_runs", "Runs of engines", labels=LABELS)
        seconds = CounterMetricFamily(
            "pelton_seconds", "Seconds of answered requests by part", labels=(*LABELS, "part")
        )
        waiting = GaugeMetricFamily("pelton_waiting", "Rows or runs in the queue", labels=LABELS)
        latency = HistogramMetricFamily(
            "pelton_latency_seconds", "Seconds from a request's arrival to its answer", labels=LABELS
        )
        cache = CounterMetricFamily("pelton_cache", "Looks into the response cache", labels=(*LABELS, "outcome"))
        for (name, version), model in sorted(self.server.table.items()):
            if not version:
                continue
            labels, statistics = (name, version), model.statistics
            requests.add_metric((*labels, "success"), statistics.counts["success"])
            for fault, count in list(statistics.faults.items()):
                requests.add_metric((*labels, fault), count)
            rows.add_metric(labels, statistics.rows)
            runs.add_metric(labels, statistics.executions)
            for part in DURATIONS:
                seconds.add_metric((*labels, part), statistics.ns[part] / 1e9)
            waiting.add_metric(labels, model.waiting())
            latency.add_metric(labels, *_histogram(statistics.buckets, statistics.ns["success"] / 1e9))
            for outcome in ("hit", "miss"):
                cache.add_metric((*labels, outcome), statistics.counts[f"cache_{outcome}"])
        yield from (requests, rows, runs, seconds, waiting, latency, cache)
        yield from text_metrics.families(self.server.table)
        ready = GaugeMetricFamily("pelton_ready", "1 if the server is ready")
        ready.add_metric((), int(self.server.ready()))
        yield ready


def _histogram(buckets: list[int], total: float) -> tuple[list[tuple[str, float]], float]:
    cumulative, rows = 0, []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), buckets):
        cumulative += count
        rows.append((bound, float(cumulative)))
    return rows, total


def registry(server: Server) -> CollectorRegistry:
    """Returns the metrics of a server and of its process."""
    collected = CollectorRegistry()
    collected.register(ModelCollector(server))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=collected)
    return collected


def start(server: Server) -> tuple[int, Callable[[], None]]:
    """Serves the metrics on a port of their own; returns it, and a function that ends it. Raises InputError for a port
    in use."""
    options = server.options
    try:
        http, thread = start_http_server(options.metrics_port, options.host, registry(server))
    except OSError as e:
        raise InputError(
            f"port {options.metrics_port} of {options.host} cannot be opened: {e}; choose another"
        ) from None

    def stop() -> None:
        http.shutdown()
        http.server_close()
        thread.join()

    return http.server_port, stop
