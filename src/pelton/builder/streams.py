"""Chooses the number of streams with the highest throughput, for the queues of an engine."""

from __future__ import annotations

import time
from typing import Any

from pelton.backends.cpu import default_threads
from pelton.compiler.targets import target_kind
from pelton.errors import EngineError, InputError
from pelton.logs import Logger
from pelton.options import Options
from pelton.quantize.accuracy_bound import Feed
from pelton.quantize.race import random_feed
from pelton.runtime.queue import AsyncQueue

log = Logger("pelton.build")

SECONDS = 0.4  # per number of streams
THREADS = 1  # per stream; kernels are tuned for it


def choose_streams(engine: Any, options: Options) -> dict[str, int]:
    """Returns the streams, and the threads of each, with the highest throughput on this machine. Untimed or repeatable
    builds, and engines that reject random inputs, use one stream per CPU."""
    cpus, threads = default_threads(), options.threads or THREADS
    guess = {"streams": max(1, cpus // threads), "threads": threads}
    fixed = options.load_tactics is not None or options.timing_cache is not None
    if not options.level or fixed or not target_kind(options).runs_here(options):
        return guess
    splits = [{"streams": s, "threads": cpus // s} for s in range(1, cpus + 1) if not cpus % s]
    try:
        feed = random_feed(engine)
        rates = [runs_per_second(engine, feed, **split) for split in splits]
    except (EngineError, InputError) as e:
        log.info("streams are not timed, as random inputs do not run: %s", e)
        return guess
    for split, rate in zip(splits, rates):
        log.info("%d streams of %d threads: %.1f runs per second", split["streams"], split["threads"], rate)
    return splits[rates.index(max(rates))]


def runs_per_second(engine: Any, feed: Feed, streams: int, threads: int) -> float:
    """Returns the rate of runs while all streams are busy."""
    with AsyncQueue(engine, streams, threads) as queue:
        for _ in range(2 * streams):
            queue.start_async(feed, share_inputs=True)
        queue.wait_all()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() < begin + SECONDS or count < 2 * streams:
            queue.start_async(feed, share_inputs=True)
            count += 1
        queue.wait_all()
        return count / (time.perf_counter() - begin)
