"""Measures this machine into a profile: its roof, and the share of it that each kernel template reaches.

Networks are built and timed layer by layer. Their untimed plans have the same layers, so a template's figures are those
of what tuning makes of layers for which it is the first guess.
"""

from __future__ import annotations

import datetime
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.backends import cpu
from pelton.backends.arrays import random_inputs
from pelton.builder.build import build
from pelton.runtime import Engine
from pelton.system.share import default_threads
from pelton.tuning.peak import peak
from pelton.tuning.roof import bytes_peak, cache_bandwidths
from pelton.version import VERSION

from .networks import IN_INT8, NETWORKS, network
from .predict import RatedDevice, predict, predict_step
from .profile import OTHERS, BandwidthLevel, DeviceProfile, FittedNetwork, LaunchCosts, TemplateFit, assumed, either_of
from .work import ModelWork, StepWork, import_batches, plan_work

LEVEL = 3  # of builds: the default, whose engines predictions are for
RUNS, SECONDS, TURNS = 10, 0.4, 3  # least number and time of runs of a network in each of its turns
SAMPLES = 100  # for ranges of INT8
SHORT = 0.2e-6  # seconds: a step whose work takes less measures its start
LONG = 3.0  # a step must take this multiple of its start to measure an efficiency
LEAST_SPREAD = 0.05  # of a template: few layers agree by chance
NORMAL = 1.4826  # median of absolute deviations → standard deviation of a normal distribution
RANGE = 0.01, 20.0  # of efficiencies


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network with its work, the seconds of each of its steps that could be matched with one of the engine's, and the
    median seconds of a whole run."""

    name: str
    work: ModelWork
    times: Mapping[int, float]
    latency: float


@dataclass(frozen=True)
class BuiltNetwork:
    """A network of the fit with its work and its engine."""

    name: str
    work: ModelWork
    engine: Engine


def measure_machine(
    names: Iterable[str] = tuple(NETWORKS), tell: Callable[[str], None] | None = None, level: int = LEVEL
) -> DeviceProfile:
    """Measures this machine's CPU (minutes). names: of NETWORKS; tell: called with what is measured next. BuildError
    without a compiler."""
    tell = tell or (lambda name: None)
    tell("the roof")
    roof = measure_roof(level)
    built = []
    for name in names:
        for precision in ("fp32", "int8") if name in IN_INT8 else ("fp32",):
            tell(name if precision == "fp32" else f"{name}, {precision.upper()}")
            built.append(build_network(name, level, precision))
    tell("all of them in turns, and the roof again")
    networks = time_networks(built)
    return fit(higher(roof, measure_roof(level)), networks)


def measure_roof(level: int) -> DeviceProfile:
    """Returns a profile with this machine's roof, and assumptions for the rest."""
    known, threads = cpu.describe(), default_threads()
    isa = known["isa"]
    gflops, memory = peak(isa, threads)
    levels = [
        BandwidthLevel(name, gbs, size * (1 if name == "l3" else threads))
        for name, (size, gbs) in cache_bandwidths(isa, threads).items()
    ]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return replace(
        assumed("cpu"),
        name=f"{known['model']}, {threads} threads",
        fitted=True,
        note=f"fitted on {known['model']} with {threads} threads",
        peaks={"fp32": gflops / 1e3, "int8": bytes_peak(isa, threads) / 1e3},
        levels=(*levels, BandwidthLevel("memory", memory)),
        machine={"cpu": known["model"], "isa": isa, "threads": threads, "memory_gb": round(total, 1), "level": level},
        date=datetime.date.today().isoformat(),
        pelton=VERSION,
    )


def higher(a: DeviceProfile, b: DeviceProfile) -> DeviceProfile:
    """Returns a profile with the higher figures of two measurements of a roof: others may have used the machine."""
    peaks = {name: max(a.peaks[name], b.peaks[name]) for name in a.peaks}
    levels = tuple(max(pair, key=lambda level: level.gbs) for pair in zip(a.levels, b.levels))
    return replace(a, peaks=peaks, levels=levels)


def build_network(name: str, level: int, precision: str = "fp32") -> BuiltNetwork:
    """Builds one of NETWORKS, and plans its work. precision: fp32, or int8 with ranges of random inputs."""
    net = network(name)
    (size,) = import_batches(net)
    if precision == "fp32":
        return BuiltNetwork(name, plan_work(size), build(net, level=level))
    rng = np.random.default_rng(0)
    shapes = {v.name: tuple(map(int, v.type.shape)) for v in size.imported.graph.inputs}
    samples = [{k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()} for _ in range(SAMPLES)]
    engine = build(net, level=level, precision="int8", calibration=samples)
    return BuiltNetwork(f"{name}, INT8", plan_work(size, "int8"), engine)


def time_networks(built: Sequence[BuiltNetwork]) -> list[MeasuredNetwork]:
    """Times networks in turns, as a machine may be slower for some seconds; medians of TURNS turns."""
    timed = [[time_steps(b.engine) for b in built] for _ in range(TURNS)]
    networks = []
    for b, turns in zip(built, zip(*timed)):
        layers = [of for of, _ in turns[0][0]]
        seconds = np.median([[time for _, time in steps] for steps, _ in turns], axis=0)
        latency = statistics.median(run for _, run in turns)
        networks.append(MeasuredNetwork(b.name, b.work, match(b.work.steps, list(zip(layers, seconds))), latency))
    return networks


def time_steps(engine: Engine) -> tuple[list[tuple[tuple[str, ...], float]], float]:
    """Returns (layers, median seconds) of each step of an engine, and the median seconds of a run."""
    context = engine.context()
    feeds = random_inputs(engine.inputs)
    context.run(feeds)
    profiles, runs = [], list[int]()
    end = time.perf_counter() + SECONDS
    while len(runs) < RUNS or time.perf_counter() < end:
        profiles.append(context.profile(feeds))
        start = time.perf_counter_ns()
        context.run(feeds)
        runs.append(time.perf_counter_ns() - start)
    steps = []
    for i, (step, _) in enumerate(profiles[0]):
        layers = tuple(step.info.get("layers") or ())
        steps.append((layers, statistics.median(p[i][1] for p in profiles) / 1e9))
    return steps, statistics.median(runs) / 1e9


def match(plan: Sequence[StepWork], timed: Sequence[tuple[tuple[str, ...], float]]) -> dict[int, float]:
    """Returns number of a step of the plan → seconds of the engine's steps with the same layers (none: a copy), in
    order if there are as many, together if the plan has one. Steps whose layers were joined otherwise by tuning are
    left out."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    seconds: dict[tuple[str, ...], list[float]] = {}
    for i, step in enumerate(plan):
        numbers.setdefault(step.layers, []).append(i)
    for layers, time_of in timed:
        seconds.setdefault(layers, []).append(float(time_of))
    found: dict[int, float] = {}
    for layers, steps in numbers.items():
        times = seconds.get(layers, [])
        if len(steps) == len(times):
            found |= zip(steps, times)
        elif len(steps) == 1 and times and layers:
            found[steps[0]] = sum(times)
    return found


def fit(roof: DeviceProfile, networks: Sequence[MeasuredNetwork]) -> DeviceProfile:
    """Fits costs and efficiencies by medians, which single layers do not move.

    The time of a start is the median of steps with next to no work; an efficiency, the median of the share of the roof
    that layers reach after their start. Spreads are of the layers' residuals, and of the networks' latency.
    """
    ideal = replace(roof, templates={OTHERS: TemplateFit(OTHERS, 1.0, 1.0, 1.0)})
    costs = _costs(ideal, networks)
    ideal = replace(ideal, costs=costs)
    shares: dict[str, list[tuple[str, float]]] = {}
    for n in networks:
        for i, seconds in n.times.items():
            p = predict_step(n.work.steps[i], device_of(ideal), n.work.memory)
            roofline = max(p.compute, p.memory)
            if seconds > LONG * p.start and roofline > 0:
                side = "compute" if p.compute >= p.memory else "bandwidth"
                shares.setdefault(either_of(p.work.template, p.work.rival), []).append(
                    (side, roofline / (seconds - p.start))
                )
    templates = {t: _template(t, pairs) for t, pairs in sorted(shares.items())}
    everything = [pair for pairs in shares.values() for pair in pairs]
    if everything:
        templates[OTHERS] = replace(_template(OTHERS, everything), layers=0)
    else:
        templates[OTHERS] = roof.templates[OTHERS]
    fitted = replace(roof, costs=costs, templates=templates)
    fitted = replace(fitted, costs=replace(costs, run_us=_run_us(fitted, networks)))
    rows = tuple(
        FittedNetwork(n.name, n.latency * 1e3, predict(n.work, device_of(fitted)).seconds * 1e3) for n in networks
    )
    residuals = [math.log(r.measured_ms / r.predicted_ms) for r in rows]
    spread = max(deviation(residuals, 0.0), LEAST_SPREAD) if len(rows) > 1 else roof.run_spread
    return replace(fitted, networks=rows, run_spread=spread, transfer_spread=assumed("cpu").run_spread)


def device_of(profile: DeviceProfile) -> RatedDevice:
    """Returns the machine that a profile is measured on."""
    memory = profile.machine.get("memory_gb")
    return RatedDevice(
        profile.name, "cpu", dict(profile.peaks), profile.levels, memory, None, None, profile, "measured", True
    )


def deviation(values: Sequence[float], middle: float) -> float:
    """Returns a robust standard deviation around a value."""
    return NORMAL * statistics.median(abs(v - middle) for v in values)


def _costs(ideal: DeviceProfile, networks: Sequence[MeasuredNetwork]) -> LaunchCosts:
    """Returns the costs of starts: medians of steps with next to no work, where there are any."""
    starts: dict[bool, list[float]] = {True: [], False: []}
    for n in networks:
        for i, seconds in n.times.items():
            step = n.work.steps[i]
            p = predict_step(step, device_of(ideal), n.work.memory)
            if max(p.compute, p.memory) < SHORT and step.template != "host":
                starts[step.launches > 0].append(seconds * 1e6 / max(step.launches, 1))
    costs = ideal.costs
    shared, alone = (statistics.median(starts[k]) if starts[k] else None for k in (True, False))
    return replace(costs, step_us=shared or costs.step_us, brief_us=alone or costs.brief_us)


def _run_us(fitted: DeviceProfile, networks: Sequence[MeasuredNetwork]) -> float:
    """Returns the microseconds of a run outside of its steps, from networks whose steps were all matched."""
    around = [
        n.latency - sum(n.times.values())
        for n in networks
        if len(n.times) == len(n.work.steps) and any(s.launches for s in n.work.steps)
    ]
    least = 0.1
    return max(statistics.median(around) * 1e6, least) if around else fitted.costs.run_us


def _template(name: str, shares: Sequence[tuple[str, float]]) -> TemplateFit:
    """Returns the figures of a template; a side without layers has those of the other."""
    sides = {
        side: float(np.clip(statistics.median(r for s, r in shares if s == side), *RANGE))
        for side in {s for s, _ in shares}
    }
    compute = sides.get("compute", sides.get("bandwidth", 0.0))
    bandwidth = sides.get("bandwidth", compute)
    residuals = [math.log(r / sides[s]) for s, r in shares]
    spread = max(deviation(residuals, 0.0), LEAST_SPREAD)
    return TemplateFit(name, compute, bandwidth, spread, len(shares))
