"""Calibration: one streaming pass of an FP32 engine over the data, which yields the range of every named tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton.compiler.compile import compile_graph
from pelton.errors import Cancelled, InputError, near
from pelton.ir.graph import Graph, Value, remove_dead_nodes
from pelton.ir.imported import Imported, Info
from pelton.options import Options
from pelton.runtime import Engine

from .algorithms import DEFAULT, Algorithm
from .batches import CalibrationBatches, Feed
from .calibrators import IInt8Calibrator
from .histogram import ValueRange
from .sources import find_algorithm, find_table, open_source
from .table import CalibrationTable, scale_of, some_names

log = Logger("pelton.build")


ENOUGH = 100  # samples; fewer cause a warning
# One of so many batches is held out; maximum bytes of all held-out ones.
EVERY, HELD_OUT = 5, 256 << 20
# The first batches, kept for refinement: maximum number and bytes.
FIRST, FIRST_BYTES = 64, 64 << 20
# Receives the first batches; returns the program to calibrate, and further tensors for the table.
Refine = Callable[[list[Feed]], tuple[Graph, Sequence[str]]]


def calibrate(
    graph: Graph,
    data: Any,
    *,
    names: Sequence[str],
    options: Options,
    algorithm: Algorithm = DEFAULT,
    held_out: list[Feed] | None = None,
    refine: Refine | None = None,
) -> CalibrationTable:
    """Calibrates the named tensors of an f32 graph, as it is after the compiler's stage "optimize".

    data: any value for `calibration=` (see `pelton.calibration`). A table is returned unchanged, without a run; other
    data runs once through an engine for this machine's CPU, built here. Memory does not depend on the number of
    batches. names: float tensors: inputs and outputs of nodes. options: uses image, threads, cache_dir, cc and
    progress, which is called with the stage "calibrate", and a total of 0 if it is unknown. algorithm: for data without
    one; calibrators have their own. held_out: gains every fifth batch, up to `HELD_OUT` bytes, which then does not
    count; of fewer than five the first, which counts. It stays empty if the data is a table. refine: called once, with
    some of the counted batches, unless the data is a table; its tensors are in the returned table, not in a
    calibrator's cache.

    Tensors that are 0 or constant in all of the data, or infinite or NaN anywhere, have no scale; the table's `notes`
    give the reasons. Fewer samples than `ENOUGH`, or only equal ones, cause a warning. Raises InputError for names and
    data that do not fit, if no tensor has a scale, and for tables that cannot be read or are of another model;
    Cancelled if progress returns False; Undecided if the graph needs sizes known only at run time.
    """
    values = _find(graph, names)
    if (table := find_table(data)) is not None:
        if missing := table.check([v.name for v in values]):
            log.warning("the calibration table has no scale of %s: they stay unquantized", some_names(missing))
        return table
    algorithm = find_algorithm(data, algorithm)
    batches = CalibrationBatches(open_source(data, graph, options.image), graph)
    first = next(batches)  # report bad data before building an engine
    feeds: Iterator[Feed] = itertools.chain([first], batches)
    if held_out is not None:
        feeds = hold_out(feeds, held_out)
    own = {v.name for v in values}
    if refine is not None:
        kept = _first(feeds)
        graph, more = refine(kept)
        values = _find(graph, [*own, *more])
        feeds = itertools.chain(kept, feeds)
    seen = {v.name: algorithm.observer() for v in values}
    engine = _engine(graph, values, options)
    _observe(engine, feeds, batches, seen, options)
    warn_of_samples(batches)
    table = replace(_table(seen, algorithm), data=in_words(batches))
    log.info("calibrated with %s", table.data)
    if isinstance(data, IInt8Calibrator):
        data.write_calibration_cache(table.of(own).to_bytes())
    return table


def _first(feeds: Iterator[Feed]) -> list[Feed]:
    """Takes the first of the batches from the iterator."""
    batches: list[Feed] = []
    size = 0
    while len(batches) < FIRST and size < FIRST_BYTES and (feed := next(feeds, None)) is not None:
        batches.append({name: a.copy() for name, a in feed.items()})
        size += sum(a.nbytes for a in feed.values())
    return batches


def hold_out(feeds: Iterable[Feed], held_out: list[Feed]) -> Iterator[Feed]:
    """Yields the batches that are not held out; `held_out` gains the others, see `calibrate`."""
    first: Feed = {}
    size = 0
    for number, feed in enumerate(feeds, 1):
        if number == 1:
            first = {name: a.copy() for name, a in feed.items()}
        size += sum(a.nbytes for a in feed.values()) if number % EVERY == 0 else 0
        if number % EVERY == 0 and size <= HELD_OUT:
            held_out.append({name: a.copy() for name, a in feed.items()})
        else:
            yield feed
    if not held_out:
        held_out.append(first)


def _find(graph: Graph, names: Sequence[str]) -> list[Value]:
    """Returns the values of these names, each once; InputError for those that cannot be calibrated."""
    known = {v.name: v for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))}
    constants = {v.name for v in graph.constants}
    for name in names:
        if name not in known:
            why = "is a constant" if name in constants else "is not in the graph"
            raise InputError(f"tensor {name!r} cannot be calibrated: it {why}{near(name, known)}")
        if not known[name].type.dtype.is_float:
            raise InputError(f"tensor {name!r} cannot be calibrated: it is {known[name].type}, not of floats")
    return [known[name] for name in dict.fromkeys(names)]


def _engine(graph: Graph, values: Iterable[Value], options: Options) -> Engine | None:
    """Builds an engine that outputs all values but inputs; None if there are no others."""
    outputs = tuple(v for v in values if v not in graph.inputs)
    if not outputs:
        return None

    def progress(stage: str, done: int, total: int) -> bool | None:
        return options.progress(stage, done, total) if options.progress is not None and stage != "done" else None

    plain = Options(
        level=0,
        threads=options.threads,
        progress=progress,
        cache_dir=options.cache_dir,
        cache_limit=options.cache_limit,
        cc=options.cc,
    )
    wanted = remove_dead_nodes(graph.replace(outputs=outputs, name=f"calibration of {graph.name}"))
    return compile_graph(Imported(wanted, Info()), plain, done="optimize").engine


def _observe(
    engine: Engine | None,
    feeds: Iterable[Feed],
    batches: CalibrationBatches,
    seen: Mapping[str, ValueRange],
    options: Options,
) -> None:
    """Runs the engine on all batches and records each tensor's values. Batches reuse the arrays of earlier ones."""
    context = engine.context(options.threads) if engine is not None else None
    results: dict[str, np.ndarray] = {}
    shapes: list[tuple[int, ...]] = []
    for done, feed in enumerate(feeds):
        if options.progress is not None and options.progress("calibrate", done, batches.total) is False:
            raise Cancelled(f"the build was cancelled while calibrating, behind {done} batches")
        now = [a.shape for a in feed.values()]
        if context is not None:
            results = context.run(feed, results if now == shapes else None)
        shapes = now
        for name, stats in seen.items():
            stats.add(feed[name] if name in feed else results[name])


def in_words(batches: CalibrationBatches) -> str:
    """Returns the number of samples in words."""
    return f"{batches.samples} {batches.source.unit}{'s' * (batches.samples != 1)}"


def warn_of_samples(batches: CalibrationBatches) -> None:
    """Warns if the samples are too few or too alike to measure ranges and accuracy."""
    if batches.samples > 1 and batches.alike:
        problem = f"has {in_words(batches)} that are all the same"
    elif batches.samples < ENOUGH:
        problem = f"has {in_words(batches)}"
    else:
        return
    log.warning(
        "the calibration data %s: too few for reliable ranges and accuracy; use some hundred typical inputs", problem
    )


def _table(seen: Mapping[str, ValueRange], algorithm: Algorithm) -> CalibrationTable:
    """Returns the scales of recorded tensors, and notes on those without; InputError if none has one."""
    scales, notes, lows = {}, {}, {}
    for name, stats in seen.items():
        if stats.nonfinite:
            notes[name] = "it has infinite values or NaN on calibration data"
        elif not stats.amax:
            notes[name] = "it is 0 on all calibration data"
        elif stats.low == stats.high:
            notes[name] = f"it is {stats.low:g} on all calibration data"
        elif (scale := scale_of(algorithm.amax(stats))) is None:
            notes[name] = f"its range on calibration data, up to {stats.amax:g}, has no scale that is a normal float32"
        else:
            scales[name], lows[name] = scale, stats.low
    if not scales and notes:
        name = next(iter(notes))
        raise InputError(
            f"calibration found no range: none of {len(notes)} tensors can be quantized, such as {name!r}:"
            f" {notes[name]}; calibrate with inputs like those of real runs"
        )
    return CalibrationTable(scales, algorithm.title, notes=notes, lows=lows)
