"""Measurements while a model loads: the time of a run, and whether batching pays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.backends.arrays import random_inputs

if TYPE_CHECKING:
    from pelton.runtime.engine import Engine

    from .options import ServeOptions

PAYS = 1.3  # least ratio of a row's time alone to its time in a batch at which batching is worth its wait
HOP = 60e-6  # seconds to another thread and back, which every request of a batch takes
SIZES = (1, 4, 16, 32, 64)
SECONDS = 0.5  # of measuring, at most, for each size
LONG = 0.25  # seconds of a run from which on larger batches are not measured


@dataclass(frozen=True)
class RunTimes:
    """seconds: median of a run at one row, or at the optimum. tried: rows of a batch → rows a second. batch: most rows
    that pay, 1 if batching does not."""

    seconds: float
    tried: Mapping[int, float] = field(default_factory=dict)
    batch: int = 1

    @property
    def best(self) -> int:
        """The rows with the most rows a second."""
        return max(self.tried, key=lambda rows: self.tried[rows]) if self.tried else 1


def measure(engine: Engine, axis: str | None, config: Any, options: ServeOptions) -> RunTimes:
    """Warms an engine up, and times runs of batches of growing size on random inputs; twice, to keep the faster time.

    axis: the dimension that counts rows; None to time one shape alone.
    """
    if axis is None:
        return RunTimes(_seconds(engine, _inputs(engine, {}), options.threads))
    symbol = next(s for s in engine.symbols if s.name == axis)
    most = min(config.max_batch_size or symbol.maximum, symbol.maximum)
    sizes = [n for n in SIZES if symbol.minimum <= n <= most] or [symbol.minimum]
    seconds: dict[int, float] = {}
    for rows in sizes:
        seconds[rows] = _seconds(engine, _inputs(engine, {axis: rows}), options.threads)
        if seconds[rows] > LONG:
            break
    rates = {rows: rows / s for rows, s in seconds.items()}
    first = sizes[0]
    if first != 1 or len(rates) == 1:
        return RunTimes(seconds[first], {})
    # the smallest batch within a tenth of the best: larger ones only wait longer
    best = max(rates.values())
    batch = min(rows for rows, rate in rates.items() if rate >= 0.9 * best)
    return RunTimes(seconds[1], rates, batch if seconds[1] >= PAYS * (1 / best + HOP) else 1)


def mixes_rows(engine: Engine, axis: str, rows: int) -> str | None:
    """Compares a batch with its rows run one by one, on random inputs; returns the output that differs by more than a
    thousandth of its largest value, None if there is none. Such a network (a softmax over the first axis, say) must not
    be batched: requests would change each other's answers."""
    inputs = _inputs(engine, {axis: rows})
    together = engine.run(inputs)
    alone = [engine.run({name: array[row : row + 1] for name, array in inputs.items()}) for row in range(rows)]
    for name, array in together.items():
        single = np.concatenate([one[name] for one in alone])
        if array.dtype.kind in "fV":
            wide, other = array.astype(np.float64), single.astype(np.float64)
            scale = np.nanmax(np.abs(other), initial=0.0)
            same = np.allclose(wide, other, rtol=0, atol=1e-3 * scale, equal_nan=True)
        else:
            same = array.shape == single.shape and bool((array == single).all())
        if not same:
            return name
    return None


def _inputs(engine: Engine, sizes: Mapping[str, int]) -> dict[str, Any]:
    return random_inputs(engine.ports(sizes))


def _seconds(engine: Engine, inputs: Mapping[str, Any], threads: int | None) -> float:
    """Returns the median time of a run after one to warm up."""
    context = engine.context(threads)
    context.run(inputs)
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() < end):
        start = time.perf_counter()
        context.run(inputs)
        times.append(time.perf_counter() - start)
        if times[-1] > SECONDS:
            break
    return float(np.median(times))
