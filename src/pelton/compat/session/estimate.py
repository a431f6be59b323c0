"""Estimates the time of a build from past builds on this machine, else from those of a reference machine."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.logs import Logger
from pelton.options import Options

from .engine_cache import EngineCache
from .model import count_layers, weights_bytes

if TYPE_CHECKING:
    import onnx

log = Logger("pelton.session")

MAX_REMEMBERED = 32  # builds
PER_BYTE = 7e-9  # seconds to read, pack, hash and write a byte of weights, at any level: 15.5 s for 2.1 GB
MAX_SAMPLES = 7  # builds, the latest at a level, in an estimate


@dataclass(frozen=True)
class Build:
    """A finished build: its level and number of different layers, its estimate in seconds from the reference machine,
    and its seconds here."""

    level: int
    layers: int
    reference: float
    seconds: float


@functools.cache
def reference() -> list[tuple[float, float]]:
    """Returns, per level, the seconds of a build and of each different layer, measured with empty caches by
    `benchmarks/builds.py`."""
    data = json.loads((Path(__file__).parents[2] / "data" / "builds.json").read_text())
    return [(level["build"], level["layer"]) for level in data["levels"]]


def by_reference(level: int, count: int, weights: int) -> float:
    """Returns the seconds of a build of `count` different layers, and `weights` bytes, on the reference machine."""
    build, layer = reference()[level]
    return build + layer * count + weights * PER_BYTE


def seconds(level: int, count: int, budget: float | None, past: list[Build], weights: int = 0) -> tuple[float, int]:
    """Estimates the seconds of a build of `count` different layers and `weights` bytes; also counts the past builds
    used: the latest at this level, else at any. The reference is scaled by the median of their ratios."""

    samples = ([b for b in past if b.level == level] or past)[-MAX_SAMPLES:]
    factor = statistics.median([b.seconds / b.reference for b in samples]) if samples else 1.0
    timed, untimed = (by_reference(of, count, weights) * factor for of in (level, 0))
    return (min(timed, untimed + budget) if budget is not None else timed), len(samples)


@contextmanager
def announce(cache: EngineCache, name: str, model: onnx.ModelProto, options: Options) -> Iterator[None]:
    """Warns of a build's estimated time, and records its real time. GPU builds are not estimated: their time depends on
    libraries and caches of others."""
    later = "the next session will find it" if cache.keeps else "it is not kept for the next session"
    if not options.on_cpu:
        log.warning("building an engine for %s of %s; %s", options.target, name, later)
        yield
        return
    past, count, weights = _past(cache), count_layers(model), weights_bytes(model)
    expected, samples = seconds(options.level, count, options.budget, past, weights)
    basis = f"the last {samples} builds on this machine" if samples > 1 else "the last build on this machine"
    log.warning(
        "building an engine for %s at level %d, estimated time %s, from %s; %s. With the config entry"
        " pelton.on_miss=fast, a first session builds without timing; with =error, it does not build",
        name,
        options.level,
        _format_seconds(expected),
        basis if samples else "builds on another machine",
        later,
    )
    begin = time.monotonic()
    yield
    elapsed = time.monotonic() - begin
    log.info("built the engine for %s in %.1f s", name, elapsed)
    if options.budget is None:
        known = by_reference(options.level, count, weights)
        builds = (*past, Build(options.level, count, known, elapsed))
        cache.put_json("builds", {"builds": [vars(b) for b in builds[-MAX_REMEMBERED:]]})


def _past(cache: EngineCache) -> list[Build]:
    """Returns the recorded builds; none if they cannot be read."""
    try:
        return [
            Build(int(b["level"]), int(b["layers"]), float(b["reference"]), float(b["seconds"]))
            for b in cache.json("builds")["builds"]
            if float(b["reference"]) > 0
        ]
    except (TypeError, KeyError, ValueError):
        return []


def _format_seconds(time: float) -> str:
    if time < 1:
        return "less than a second"
    return f"about {time:.0f} s" if time < 120 else f"about {time / 60:.0f} min ({time:.0f} s)"
