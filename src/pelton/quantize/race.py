"""Compares the times of whole engines: by a race, or by a model of their steps if they cannot run here."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np

from pelton.runtime import Engine

from .accuracy_bound import Feed

ROUNDS, SECONDS = 5, 0.2  # of a race; of each engine in a round


def microseconds(step: Any) -> float:
    """Returns the microseconds of a step: timed, else modeled, else NaN."""
    times = (step.info.get("times_ns") or {}).values()
    return min(times) / 1e3 if times else step.info.get("estimate_us") or math.nan


def compare_times(engine: Engine, other: Engine, feed: Feed, runs_here: bool) -> tuple[float, str]:
    """Returns the ratio of an engine's time to another's, and a description of the method: a race, or for engines that
    cannot run here the model of their steps, else 0."""
    if runs_here:
        return race(engine, other, feed), ""
    sums = [sum(microseconds(step) for step in e.steps if not step.host) for e in (engine, other)]
    return (0.0, "") if math.isnan(sums[0] + sums[1]) else (sums[0] / sums[1], ", by a model")


def race(engine: Engine, other: Engine, feed: Feed) -> float:
    """Returns the median, over alternating rounds, of the ratio of the engines' median times; without a feed, on random
    inputs."""
    feed = feed or random_feed(engine)
    contexts = [engine.context(), other.context()]
    ratios = []
    for _ in range(ROUNDS):
        first, second = (_median_time(context, feed) for context in contexts)
        ratios.append(first / second)
    return statistics.median(ratios)


def _median_time(context: Any, feed: Feed) -> float:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        context.run(dict(feed))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def random_feed(engine: Engine) -> dict[str, np.ndarray]:
    r, shapes = np.random.default_rng(0), engine.shapes()
    return {p.name: np.asarray(r.standard_normal(shapes[p.name]), p.numpy_dtype) for p in engine.inputs}
