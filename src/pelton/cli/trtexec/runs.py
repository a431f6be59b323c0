"""The runs of `pelton trtexec`: their inputs, number and concurrency, and their reports."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.engine.sizes import solve
from pelton.errors import InputError, near

from .. import arrays, timing
from . import reports
from .flags import ENDLESS
from .options import Shapes, Sizes, read_pairs, spread, written
from .reports import Log, Runs, StepTimes

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

DESERIALIZED = 20  # times


def infer(args: argparse.Namespace, log: Log, engine: Engine, sizes: Sizes) -> None:
    """Runs the engine, and writes the reports that the flags request."""
    feeds, streams = inputs(args, log, engine, sizes), args.streams or args.infStreams
    log.info("Starting inference")
    runs, outputs = measure(args, engine, feeds, streams)
    runs.report(log, args.avgRuns, args.percentile, streams)
    results = {name: np.asarray(a) for name, a in arrays.split_lists(outputs).items()}
    if args.dumpOutput:
        log.info("Output Tensors:\n" + "\n".join(reports.output_lines(results)))
    if args.dumpRawBindingsToFile:
        log.info("Dumping I/O Bindings to RAW Files:")
        for kind, of in (("input", feeds), ("output", results)):
            for name, a in of.items():
                path = reports.raw_name(name, kind, a)
                log.info(f"Writing file for {kind} binding {name} to {path}")
                arrays.replace(path, [np.ascontiguousarray(a).tobytes()])
    if args.exportTimes:
        arrays.replace(args.exportTimes, [reports.as_json(runs.times())])
    if args.exportOutput:
        arrays.replace(args.exportOutput, [reports.as_json(reports.outputs_json(results))])
    if args.dumpProfile or args.exportProfile:
        profile = measure_steps(args, engine, feeds, len(runs.spans))
        if args.dumpProfile:
            profile.report(log)
        if args.exportProfile:
            arrays.replace(args.exportProfile, [reports.as_json(profile.json())])


def inputs(args: argparse.Namespace, log: Log, engine: Engine, given: Sizes) -> dict[str, np.ndarray]:
    """Returns the arrays to run on: of files, or random."""
    names = [p.name for p in engine.inputs]
    files = dict(read_pairs("--loadInputs", args.loadInputs, "x:x.bin,y:y.npy"))
    for name in files:
        if name not in names:
            raise InputError(
                f"--loadInputs: no input is called {name!r}{near(name, names)}; there are {', '.join(names)}"
            )
    loaded = {name: arrays.load(path) for name, path in files.items() if path.lower().endswith(".npy")}
    sizes_of_files = fitted(engine, given, loaded)
    sizes = given.run(names) | sizes_of_files
    drawn = arrays.draw_inputs(engine, {name: written(s) for name, s in sizes.items() if s})
    for port in engine.inputs:
        name, shape, is_dynamic = port.name, drawn[port.name].shape, any(isinstance(d, str) for d in port.shape)
        if is_dynamic and name in sizes_of_files:
            log.info(f"No shapes were provided for input: {name}. It is run with those of its file: {written(shape)}")
        elif is_dynamic and name not in sizes:
            log.warning(
                f"Dynamic dimensions required for input: {name}, but no shapes were provided. It is run with:"
                f" {written(shape)}"
            )
        if name in files:
            log.info(f"Using values loaded from {files[name]} for input {name}")
            values = loaded.get(name)
            drawn[name] = read_raw(files[name], drawn[name]) if values is None else values
        else:
            log.info(f"Using random values for input {name}")
        if drawn[name].shape != shape:
            raise InputError(
                f"{files[name]} has {drawn[name].dtype} {written(drawn[name].shape)}, expected {written(shape)} for"
                f" input {name} ({port})"
            )
        log.info(f"Input binding for {name} with dimensions {written(shape)} is created.")
    return drawn


def fitted(engine: Engine, given: Sizes, loaded: Mapping[str, np.ndarray]) -> Shapes:
    """Returns input → its sizes in the engine for the arrays of files, if --shapes leaves it out."""
    ranks = {p.name: len(p.shape) for p in engine.inputs}
    wanted = given.run(list(ranks), {name: a.shape for name, a in loaded.items()})
    of_rank = {name: sizes for name, sizes in wanted.items() if len(sizes) == ranks.get(name)}
    shapes = engine.shapes(solve(engine.plain, engine.shapes() | of_rank))
    return {name: shapes[name] for name in loaded if name not in spread(given.shapes, list(ranks))}


def read_raw(path: str, like: np.ndarray) -> np.ndarray:
    """Reads the array in a file of raw bytes, of the type and shape of another."""
    if like.dtype.hasobject:
        raise InputError(f"{path}: strings have no raw form; use an .npy file")
    try:
        size = os.path.getsize(path)
        if size == like.nbytes:
            return np.fromfile(path, like.dtype).reshape(like.shape)
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror or e}") from None
    raise InputError(f"{path} has {size} bytes, expected {like.nbytes}: raw {like.dtype} {written(like.shape)}")


class TimedEngine:
    """An engine for a queue of runs, which records begin and end of each run, in nanoseconds."""

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
    """Runs in sequence, or `streams` at once; returns the times and the outputs of the last run."""
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
    # runs begin in the order of their start
    spans = np.hstack([np.array(calls), np.array(sorted(watch.spans))])
    ms = (spans - spans[0, 0]) / 1e6
    return Runs(ms[-counted:], len(ms) - counted, args.warmUp), watch.outputs


def measure_steps(args: argparse.Namespace, engine: Engine, feeds: Mapping[str, np.ndarray], runs: int) -> StepTimes:
    """Runs again, step by step. runs: the number of earlier runs, which suffices if the flags set no end."""
    context, times = engine.context(thread_count(args)), list[list[int]]()
    if args.duration == ENDLESS:
        args = argparse.Namespace(**vars(args) | {"duration": 0, "iterations": runs})
    counted = _repeat(args, lambda: times.append([ns for _, ns in context.profile(feeds)]))
    return StepTimes(reports.names(engine), np.array(times[-counted:])[:, reports.apart(engine)] / 1e6)


def _repeat(args: argparse.Namespace, run: Callable[[], object]) -> int:
    """Warms up and runs by the flags; returns the number of counted runs. Ctrl-C ends an endless duration, after a
    counted run."""

    def run_and_rest() -> None:
        run()
        if args.idleTime:
            time.sleep(args.idleTime / 1e3)

    with _stopped_by_interrupt() if args.duration == ENDLESS else nullcontext(Event()) as stopped:
        end = time.perf_counter() + args.warmUp / 1e3
        run_and_rest()
        while time.perf_counter() < end and not stopped.is_set():
            run_and_rest()
        counted, end = 0, time.perf_counter() + args.duration
        while not counted or not stopped.is_set() and (counted < args.iterations or time.perf_counter() < end):
            run_and_rest()
            counted += 1
    return counted


@contextmanager
def _stopped_by_interrupt() -> Iterator[Event]:
    """Context manager: an event that Ctrl-C sets instead of raising KeyboardInterrupt."""
    stopped = Event()
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def thread_count(args: argparse.Namespace) -> int | None:
    return args.threads if type(args.threads) is int else None


def time_loading(args: argparse.Namespace, log: Log, engine: Engine) -> None:
    """Times the loading of an engine until it is ready to run."""
    import pelton

    source = args.loadEngine or engine.tobytes()
    log.info("Begin deserialization engine timing...")
    ms = (
        timing.measure(lambda: pelton.load(source, device=args.device or 0, trust=args.trust), 0, 0, DESERIALIZED) / 1e6
    )
    log.info(
        f"Total deserialization time = {ms.sum():g} milliseconds in {len(ms)} iterations, average time = {ms.mean():g}"
        f" milliseconds, first time = {ms[0]:g} milliseconds."
    )
