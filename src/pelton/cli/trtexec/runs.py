"""The runs of `pelton trtexec`: on which inputs, how many and how many at once, and what is said of them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import InputError, near

from .. import arrays, timing
from . import reports
from .options import Sizes, read_pairs, written
from .reports import Log, Runs, StepTimes

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

DESERIALIZED = 20  # times


def infer(args: argparse.Namespace, log: Log, engine: Engine, sizes: Sizes) -> None:
    """Runs the engine, and reports and writes what the flags ask for."""
    feeds, streams = inputs(args, log, engine, sizes), args.streams or args.infStreams
    log.info("Starting inference")
    runs, outputs = measure(args, engine, feeds, streams)
    runs.report(log, args.avgRuns, args.percentile, streams)
    found = {name: np.asarray(a) for name, a in arrays.split_lists(outputs).items()}
    if args.dumpOutput:
        log.info("Output Tensors:\n" + "\n".join(reports.output_lines(found)))
    if args.dumpRawBindingsToFile:
        log.info("Dumping I/O Bindings to RAW Files:")
        for kind, of in (("input", feeds), ("output", found)):
            for name, a in of.items():
                path = reports.raw_name(name, kind, a)
                log.info(f"Writing file for {kind} binding {name} to {path}")
                arrays.replace(path, [np.ascontiguousarray(a).tobytes()])
    if args.exportTimes:
        arrays.replace(args.exportTimes, [reports.as_json(runs.times())])
    if args.exportOutput:
        arrays.replace(args.exportOutput, [reports.as_json(reports.outputs_json(found))])
    if args.dumpProfile or args.exportProfile:
        profile = measure_steps(args, engine, feeds)
        if args.dumpProfile:
            profile.report(log)
        if args.exportProfile:
            arrays.replace(args.exportProfile, [reports.as_json(profile.json())])


def inputs(args: argparse.Namespace, log: Log, engine: Engine, given: Sizes) -> dict[str, np.ndarray]:
    """The arrays to run on: of files, or random."""
    names = [p.name for p in engine.inputs]
    sizes = given.run(names)
    drawn = arrays.draw_inputs(engine, {name: written(s) for name, s in sizes.items() if s})
    files = dict(read_pairs("--loadInputs", args.loadInputs, "x:x.bin,y:y.npy"))
    for name in files:
        if name not in names:
            raise InputError(
                f"--loadInputs: no input is called {name!r}{near(name, names)}; there are {', '.join(names)}"
            )
    for port in engine.inputs:
        shape = drawn[port.name].shape
        if port.name not in sizes and any(isinstance(size, str) for size in port.shape):
            log.warning(
                f"Dynamic dimensions required for input: {port.name}, but no shapes were provided. It is run with:"
                f" {written(shape)}"
            )
        if port.name in files:
            log.info(f"Using values loaded from {files[port.name]} for input {port.name}")
            drawn[port.name] = read_values(files[port.name], drawn[port.name])
        else:
            log.info(f"Using random values for input {port.name}")
        log.info(f"Input binding for {port.name} with dimensions {written(shape)} is created.")
    return drawn


def read_values(path: str, like: np.ndarray) -> np.ndarray:
    """The array in an .npy file, or in one of raw bytes, of the type and shape of another."""
    if path.lower().endswith(".npy"):
        return arrays.load(path)
    if like.dtype.hasobject:
        raise InputError(f"{path}: strings have no raw form; give an .npy file")
    try:
        size = os.path.getsize(path)
        if size == like.nbytes:
            return np.fromfile(path, like.dtype).reshape(like.shape)
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror or e}") from None
    raise InputError(f"{path} has {size} bytes, expected {like.nbytes}: raw {like.dtype} {written(like.shape)}")


class TimedEngine:
    """An engine, as a queue of runs sees it, that notes when each run began and ended, in nanoseconds."""

    def __init__(self, engine: Engine):
        self.engine, self.plain = engine, engine.plain
        self.spans: list[tuple[int, int]] = []
        self.outputs: dict[str, Any] = {}  # of the latest run

    def context(self, threads: int | None = None) -> Context:
        return self.engine.context(threads)

    def run_in(self, context: Context, inputs: Mapping[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter_ns()
        self.outputs = context.run(inputs)
        self.spans.append((begin, time.perf_counter_ns()))
        return self.outputs


def measure(
    args: argparse.Namespace, engine: Engine, feeds: Mapping[str, np.ndarray], streams: int
) -> tuple[Runs, dict[str, Any]]:
    """Runs one after the other, or `streams` at once; and the outputs of the last run."""
    watch, threads = TimedEngine(engine), thread_count(args)
    if streams == 1:
        context = engine.context(threads)
        counted = _repeat(args, lambda: watch.run_in(context, feeds))
        calls = watch.spans
    else:
        from pelton.runtime.queue import AsyncQueue

        calls = []

        def start() -> None:
            begin = time.perf_counter_ns()
            queue.start_async(feeds, share_inputs=True)
            calls.append((begin, time.perf_counter_ns()))

        with AsyncQueue(watch, streams, threads) as queue:
            counted = _repeat(args, start)
    # runs begin in the order in which they were started
    spans = np.hstack([np.array(calls), np.array(sorted(watch.spans))])
    ms = (spans - spans[0, 0]) / 1e6
    return Runs(ms[-counted:], len(ms) - counted, args.warmUp), watch.outputs


def measure_steps(args: argparse.Namespace, engine: Engine, feeds: Mapping[str, np.ndarray]) -> StepTimes:
    """Runs again, step by step."""
    context, found = engine.context(thread_count(args)), list[list[int]]()
    counted = _repeat(args, lambda: found.append([ns for _, ns in context.profile(feeds)]))
    steps = reports.apart(engine)
    return StepTimes([engine.steps[i].name for i in steps], np.array(found[-counted:])[:, steps] / 1e6)


def _repeat(args: argparse.Namespace, run: Callable[[], object]) -> int:
    """Warms up and runs as the flags say; the number of runs that count."""

    def run_and_rest() -> None:
        run()
        if args.idleTime:
            time.sleep(args.idleTime / 1e3)

    return len(timing.measure(run_and_rest, args.duration, args.warmUp / 1e3, max(args.iterations, 1)))


def thread_count(args: argparse.Namespace) -> int | None:
    return args.threads if type(args.threads) is int else None


def time_loading(args: argparse.Namespace, log: Log, engine: Engine) -> None:
    """How long it takes until an engine is ready to run."""
    import pelton

    source = args.loadEngine or engine.tobytes()
    log.info("Begin deserialization engine timing...")
    ms = timing.measure(lambda: pelton.load(source, device=args.device or 0), 0, 0, DESERIALIZED) / 1e6
    log.info(
        f"Total deserialization time = {ms.sum():g} milliseconds in {len(ms)} iterations, average time = {ms.mean():g}"
        f" milliseconds, first time = {ms[0]:g} milliseconds."
    )
