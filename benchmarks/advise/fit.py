"""The fit of efficiencies and costs on published points that are not held out: seven parameters for all GPUs.

Convolutions, products and attention reach one share of the peak each, in all precisions; convolutions and products
reach one share of the bandwidth, other steps another; a step and a run have a cost. No share exceeds the whole. More is
not justified by so few devices: there is no parameter of a device, an architecture or a precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pelton.advise.catalog import Catalog
from pelton.advise.predict import predict_step
from pelton.advise.profile import OTHERS, DeviceProfile, LaunchCosts, TemplateFit, assumed
from pelton.advise.work import ModelWork, scaled
from pelton.version import VERSION

from .points import Point, PointResult, evaluate, mean_error, rated

FAMILIES = {
    "convolution": ("conv", "conv_int8"),
    "product": ("gemm", "gemm_int8", "few", "matmul", "matmul_int8"),
    "attention": ("attention",),
}
STARTS = {
    **{"convolution": 0.5, "product": 0.5, "attention": 0.5},  # of the peak
    **{"weighted": 0.7, "others": 0.7},  # of the bandwidth: steps of the first two families, and others
    **{"step_us": 3.0, "run_us": 10.0},
}
SHARES = 5  # of STARTS: at most 1
STEPS = 0.4, 0.005  # of the search, in logarithms: first and last
LEAST_SPREAD = 0.01  # of templates: the spread of runs has all of the residuals
SQUARES = 0.3  # weight of squared residuals beside their magnitudes


@dataclass(frozen=True)
class PointArrays:
    """The steps of a point on its device, as arrays: seconds at the whole peak and at the whole bandwidth, launches,
    family (number in FAMILIES, 3 for others). seconds: published, of a run."""

    compute: np.ndarray
    memory: np.ndarray
    launches: np.ndarray
    family: np.ndarray
    seconds: float

    def predicted(self, values: np.ndarray) -> float:
        """Returns the seconds that parameters, in the order of STARTS, predict."""
        compute = np.append(values[:3], values[1])[self.family]
        bandwidth = np.where(self.family < 2, values[3], values[4])
        steps = np.maximum(self.compute / compute, self.memory / bandwidth) + self.launches * values[5] * 1e-6
        return float(steps.sum() + values[6] * 1e-6)


def profile_of(values: Sequence[float], name: str = "") -> DeviceProfile:
    """Returns the profile of parameters, in the order of STARTS."""
    p = dict(zip(STARTS, map(float, values)))
    templates = {OTHERS: TemplateFit(OTHERS, p["product"], p["others"], LEAST_SPREAD)}
    for family, names in FAMILIES.items():
        bandwidth = p["others"] if family == "attention" else p["weighted"]
        templates |= {t: TemplateFit(t, p[family], bandwidth, LEAST_SPREAD) for t in names}
    costs = LaunchCosts(p["run_us"], p["step_us"], p["step_us"], assumed("gpu").costs.host_us)
    return replace(assumed("gpu"), name=name, fitted=True, costs=costs, templates=templates)


def arrays(point: Point, work: ModelWork, catalog: Catalog) -> PointArrays:
    """Returns the steps of a point at an efficiency of one."""
    ideal = profile_of([1.0] * len(STARTS))
    device, work = rated(point.device, catalog, ideal), scaled(work, point.batch)
    steps = [predict_step(s, device, work.memory) for s in work.steps]
    numbers = {name: i for i, names in enumerate(FAMILIES.values()) for name in names}
    return PointArrays(
        np.array([s.compute for s in steps]),
        np.array([s.memory for s in steps]),
        np.array([s.start * 1e6 for s in steps]),
        np.array([numbers.get(s.work.template, 3) for s in steps]),
        point.batch / point.throughput,
    )


def descend(loss: Callable[[np.ndarray], float], start: np.ndarray) -> np.ndarray:
    """Returns a minimum by steps along one or two axes at a time, which halve where none is better: the same every
    time. Two axes follow valleys in which one parameter makes up for another."""
    unit = np.eye(len(start))
    pairs = [unit[i] + sign * unit[k] for i in range(len(start)) for k in range(i) for sign in (1, -1)]
    best, least, step = start, loss(start), STEPS[0]
    while step > STEPS[1]:
        moved = False
        for direction in (*unit, *pairs):
            for trial in (best + step * direction, best - step * direction):
                if (value := loss(trial)) < least - 1e-7:
                    best, least, moved = trial, value, True
                    break
        step = step if moved else step / 2
    return best


def fit_values(points: Sequence[Point], works: Mapping[tuple[Any, ...], ModelWork], catalog: Catalog) -> np.ndarray:
    """Returns the parameters that fit points best: by the logarithm of predicted over published time."""
    prepared = [arrays(p, works[p.shape], catalog) for p in points]

    def loss(logarithms: np.ndarray) -> float:
        values = np.exp(logarithms)
        if (values[:SHARES] > 1).any():  # more than the roof
            return math.inf
        residuals = np.array([math.log(a.predicted(values) / a.seconds) for a in prepared])
        return float(np.abs(residuals).mean() + SQUARES * (residuals**2).mean())

    return np.exp(descend(loss, np.log(np.array([*STARTS.values()]))))


def deviation(results: Sequence[PointResult]) -> float:
    """Returns the root mean square of the logarithm of predicted over published throughput."""
    return math.sqrt(sum(math.log(1 + r.error) ** 2 for r in results) / len(results))


def fit_profile(points: Sequence[Point], works: Mapping[tuple[Any, ...], ModelWork], catalog: Catalog) -> DeviceProfile:
    """Returns the profile that is fitted on the points that are not held out; its spreads are those of both halves."""
    fitted, held = ([p for p in points if p.held_out == which] for which in (False, True))
    profile = profile_of(fit_values(fitted, works, catalog), "NVIDIA GPUs, by published figures")
    results, others = evaluate(fitted, works, profile, catalog), evaluate(held, works, profile, catalog)
    devices = [len({p.device for p in half}) for half in (fitted, held)]
    spread = deviation(results)
    return replace(
        profile,
        note=(
            f"fitted on {len(fitted)} published figures of {devices[0]} NVIDIA GPUs (MLPerf and TensorRT: ResNet-50 "
            "and BERT in FP16 and INT8); "
            f"mean error {mean_error(others):.0%} on {len(held)} figures of {devices[1]} others"
        ),
        run_spread=spread,
        transfer_spread=math.sqrt(max(deviation(others) ** 2 - spread**2, LEAST_SPREAD**2)),
        vendor="NVIDIA",
        architectures=tuple(sorted({catalog.device(p.device).architecture for p in points})),
        date=max(p.date for p in points),
        pelton=VERSION,
    )
