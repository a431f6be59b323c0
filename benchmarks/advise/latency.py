#!/usr/bin/env python3
"""Predicts models from their untimed plans, builds and times them on this CPU, and compares.

    python -m benchmarks.advise.latency PROFILE MODEL_OR_FOLDER … [--int8 MODEL …] [--others PROFILE …] [--rounds 3]
        [--page benchmarks/advise/latency.md]

PROFILE is this machine's (`pelton advise --measure -o PROFILE`); it is fitted on networks of its own, none of which is
judged here. `--int8` are models that also run in INT8, with ranges of random inputs. `--others` are profiles of other
machines, whose efficiencies are tried with this machine's roof; the assumptions for CPUs without a profile are the last
column. Engines are built at the default level and kept in `--engines`; models run in turns, and a latency is the median
of the rounds' medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import pelton
from benchmarks.serve.page import replace_part
from pelton.advise.measure import LEVEL, device_of
from pelton.advise.predict import Prediction, RatedDevice, predict
from pelton.advise.profile import assumed, load_profile
from pelton.advise.work import import_batches, plan_work
from pelton.backends.arrays import random_inputs

BEGIN, END = "<!-- latency: begin -->", "<!-- latency: end -->"
SECONDS = 1.0  # of a model in a round
SAMPLES = 100  # for ranges of INT8
Case = tuple[Path, str]  # a model and a precision


@dataclass(frozen=True)
class JudgedModel:
    """A model's measured latency in seconds, and its predictions: by the machine's profile, then by others'."""

    name: str
    precision: str
    measured: float
    predictions: tuple[Prediction, ...]

    def error(self, i: int = 0) -> float:
        """Returns predicted over measured latency, less 1."""
        return self.predictions[i].seconds / self.measured - 1

    @property
    def inside(self) -> bool:
        """True if the interval holds what was measured."""
        return self.predictions[0].low <= self.measured <= self.predictions[0].high


def engine_of(model: Path, precision: str, folder: Path) -> pelton.Engine:
    """Returns the engine of a model, which is built once."""
    path = folder / f"{model.stem}{'' if precision == 'fp32' else '.' + precision}.pelton"
    if not path.exists():
        print(f"building {path.stem}", flush=True)
        if precision == "int8":
            inputs = pelton.build(model, level=0).inputs
            samples = [random_inputs(inputs, seed) for seed in range(SAMPLES)]
            engine = pelton.build(model, level=LEVEL, precision="int8", calibration=samples)
        else:
            engine = pelton.build(model, level=LEVEL)
        engine.save(path)
    return pelton.load(path)


def time_models(engines: dict[Case, pelton.Engine], rounds: int) -> dict[Case, float]:
    """Returns the median latency of every engine in seconds; a round has a turn of each, as models that barely fit in
    caches take half as long again for seconds while others use the machine."""
    medians: dict[Case, list[float]] = {case: [] for case in engines}
    for i in range(rounds):
        for case, engine in engines.items():
            context, feeds = engine.context(), random_inputs(engine.inputs)
            context.run(feeds)
            runs, end = list[int](), time.perf_counter() + SECONDS
            while len(runs) < 5 or time.perf_counter() < end:
                start = time.perf_counter_ns()
                context.run(feeds)
                runs.append(time.perf_counter_ns() - start)
            medians[case].append(statistics.median(runs) / 1e9)
            print(f"round {i + 1}: {case[0].stem} {case[1]} {medians[case][-1] * 1e3:.3f} ms", flush=True)
    return {case: statistics.median(times) for case, times in medians.items()}


def table(judged: Sequence[JudgedModel], devices: Sequence[RatedDevice]) -> list[str]:
    """Returns the lines of the page's part."""
    own, *others = devices
    machine = own.profile.machine
    names = [f"efficiencies of {d.profile.name}" for d in others]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}; profile of {own.profile.date}.",
        "",
        f"| model | precision | measured, ms | predicted | interval | error | {' | '.join(names)} |",
        f"|---|---|--:|--:|--:|--:|{'--:|' * len(others)}",
    ]
    for row in judged:
        p = row.predictions[0]
        interval = f"{p.low * 1e3:.3g} to {p.high * 1e3:.3g}" + ("" if row.inside else " (missed)")
        cells = [row.name, row.precision.upper(), f"{row.measured * 1e3:.3g}", f"{p.seconds * 1e3:.3g}", interval]
        cells += [f"{row.error(i):+.0%}" for i in range(len(devices))]
        lines.append(f"| {' | '.join(cells)} |")
    for precision in dict.fromkeys(row.precision for row in judged):
        rows = [row for row in judged if row.precision == precision]
        off = np.abs([[row.error(i) for i in range(len(devices))] for row in rows])
        for what, values in (("mean", off.mean(0)), ("worst", off.max(0))):
            cells = [f"**{what} of {len(rows)}**", precision.upper(), "", "", "", *(f"{v:.1%}" for v in values)]
            lines.append(f"| {' | '.join(cells)} |")
    inside = sum(row.inside for row in judged)
    return [
        *lines,
        "",
        f"Intervals hold {inside} of {len(judged)} models ({inside / len(judged):.0%}; 90 % are meant).",
    ]


def by_template(judged: Sequence[JudgedModel]) -> None:
    """Prints what each template was predicted to take of each model."""
    for row in judged:
        p, sums = row.predictions[0], dict[str, float]()
        for s in p.steps:
            sums[s.work.template] = sums.get(s.work.template, 0.0) + s.seconds * 1e3
        parts = ", ".join(f"{t} {ms:.2f}" for t, ms in sorted(sums.items(), key=lambda pair: -pair[1]))
        print(f"{row.name} {row.precision}: {row.measured * 1e3:.2f} ms; {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--int8", type=Path, nargs="+", default=[], help="models that also run in INT8")
    parser.add_argument("--others", type=Path, nargs="+", default=[])
    parser.add_argument("--engines", type=Path, help="keeps engines in this folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    own = device_of(load_profile(args.profile))
    profiles = [*map(load_profile, args.others), assumed("cpu")]
    devices = [own, *(replace(own, profile=p, own=False) for p in profiles)]
    models = [m for path in args.models for m in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    cases = [*((m, "fp32") for m in models), *((m, "int8") for m in args.int8)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.engines or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        times = time_models({case: engine_of(*case, folder) for case in cases}, args.rounds)
    judged = []
    for model, precision in cases:
        (size,) = import_batches(model)
        predictions = tuple(predict(plan_work(size, precision), d) for d in devices)
        judged.append(JudgedModel(model.stem, precision, times[model, precision], predictions))
    by_template(judged)
    lines = table(judged, devices)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    main()
