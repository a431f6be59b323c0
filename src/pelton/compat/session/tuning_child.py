"""Child process of `tuning`: builds an engine for the sizes of a request, and races it against the present one."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pelton.backends.arrays import random_inputs
from pelton.engine import sizes
from pelton.runtime import Engine, load
from pelton.system.cache import open_cache

from . import model as models
from .engine_cache import EngineCache
from .tuning import Request

NICENESS = 10
CPU_SECONDS = 1200  # of the child, and of each compiler that it starts
WORTH = 1.03  # least speedup to keep an engine
ROUNDS, SECONDS = 7, 0.1  # of a race, for each engine


def main() -> int:
    """Reads a request from stdin; writes a verdict to the folder of the command line."""
    folder = Path(sys.argv[1])
    request: Request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS if most < 0 else min(CPU_SECONDS, most), most))
    tuned = _built(request)
    verdict: tuple[str, float | None] = "it does not take these sizes", None
    if sizes.accepts(tuned.plain, request.shapes):
        gain = race(load(folder / "present.pelton"), tuned, request.shapes)
        verdict = ("kept" if gain >= WORTH else "no faster"), gain
    if verdict[0] == "kept":
        tuned.save(folder / "tuned.pelton")
    (folder / "verdict.json").write_text(json.dumps(verdict))
    return 0


def _built(request: Request) -> Engine:
    """Builds the engine, or loads it from the cache if another process has built it."""
    cache = EngineCache(open_cache(request.options))
    with cache.lock(request.key):
        engine = cache.engine(request.key)
        if engine is None:
            source = models.load_model(request.model, request.sizes, request.changes)
            engine = models.build_engine(source, request.options, request.shapes, False)
            cache.put(request.key, engine)
    return engine


def race(present: Engine, tuned: Engine, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Measures the speedup of the tuned engine: the median of rounds in turns."""
    fed = random_inputs([replace(p, shape=tuple(shapes[p.name])) for p in present.inputs])
    ratios = []
    for turn in range(ROUNDS):
        pair = [present, tuned] if turn % 2 else [tuned, present]
        seconds = {id(engine): _median(engine, fed) for engine in pair}
        ratios.append(seconds[id(present)] / seconds[id(tuned)])
    return statistics.median(ratios)


def _median(engine: Engine, fed: Mapping[str, np.ndarray]) -> float:
    engine.run(fed)
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        engine.run(fed)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _end_with_parent() -> None:
    """Ends this process when its stdin ends, which the parent keeps open."""
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 1):
            pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
