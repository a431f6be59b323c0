"""Calibration: one streaming pass of an FP32 engine over the data, which gives the range of every named tensor."""

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


ENOUGH = 100  # samples, with fewer of which there is a warning
# Of batches, one that is kept aside, and the bytes of all of these at most.
EVERY, HELD_OUT = 5, 256 << 20
# The first batches, which are kept to refine what is calibrated: how many, and their bytes, at most.
FIRST, FIRST_BYTES = 64, 64 << 20
# Gets the first batches, and gives the program to calibrate, with further tensors that belong in the table.
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
    """The table of the named tensors of a graph in f32, as it is behind the compiler's stage "optimize".

    data: what `calibration=` takes (see `pelton.calibration`). A table is returned as it is, without a run; other data
    runs once through an engine that is built here for the CPU of this machine. Memory does not depend on the number of
    batches. names: tensors of floats: inputs and what nodes write. options: image, threads, cache_dir, cc and progress
    are used; progress is called with the stage "calibrate", and a total of 0 where it is unknown. algorithm: unless the
    data is a calibrator, which has its own. held_out: gets every fifth batch, up to `HELD_OUT` bytes, which does not
    count then; of fewer than five the first, which does. It stays empty where the data is a table. refine: is called
    once, with some of the batches that count, unless the data is a table; tensors that it names are in the table
    returned, not in what a calibrator caches.

    Tensors that are 0 or constant in all of the data, or infinite or NaN anywhere, have no scale; the table's `notes`
    say so. Fewer samples than `ENOUGH`, or none but equal ones, are a warning. Raises InputError for names and data
    that do not fit, where no tensor has a scale, and for tables that cannot be read or are of another model; Cancelled
    if progress returns False; Undecided if the graph needs sizes that only a run knows.
    """
    values = _find(graph, names)
    if (table := find_table(data)) is not None:
        if missing := table.check([v.name for v in values]):
            log.warning("the calibration table has no scale of %s: they stay unquantized", some_names(missing))
        return table
    algorithm = find_algorithm(data, algorithm)
    batches = CalibrationBatches(open_source(data, graph, options.image), graph)
    first = next(batches)  # what is wrong with the data is said before something is built
    feeds: Iterator[Feed] = itertools.chain([first], batches)
    if held_out is not None:
        feeds = _hold_out(feeds, held_out)
    own = {v.name for v in values}
    if refine is not None:
        kept = _first(feeds)
        graph, more = refine(kept)
        values = _find(graph, [*own, *more])
        feeds = itertools.chain(kept, feeds)
    seen = {v.name: algorithm.observer() for v in values}
    engine = _engine(graph, values, options)
    _observe(engine, feeds, batches, seen, options)
    _warn_of_samples(batches)
    table = replace(_table(seen, algorithm), data=_in_words(batches))
    log.info("calibrated with %s", table.data)
    if isinstance(data, IInt8Calibrator):
        data.write_calibration_cache(table.of(own).to_bytes())
    return table


def _first(feeds: Iterator[Feed]) -> list[Feed]:
    """The first of the batches, which are taken from the iterator."""
    found: list[Feed] = []
    size = 0
    while len(found) < FIRST and size < FIRST_BYTES and (feed := next(feeds, None)) is not None:
        found.append({name: a.copy() for name, a in feed.items()})
        size += sum(a.nbytes for a in feed.values())
    return found


def _hold_out(feeds: Iterable[Feed], held_out: list[Feed]) -> Iterator[Feed]:
    """The batches but those that are kept aside, see `calibrate`."""
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
    """The values of these names, each once; InputError for those that cannot be calibrated."""
    known = {v.name: v for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))}
    constants = {v.name for v in graph.constants}
    for name in names:
        if name not in known:
            why = "is a constant, whose range its values give" if name in constants else "is not in the graph"
            raise InputError(f"tensor {name!r} cannot be calibrated: it {why}{near(name, known)}")
        if not known[name].type.dtype.is_float:
            raise InputError(f"tensor {name!r} cannot be calibrated: it is {known[name].type}, not of floats")
    return [known[name] for name in dict.fromkeys(names)]


def _engine(graph: Graph, values: Iterable[Value], options: Options) -> Engine | None:
    """An engine that gives all values but inputs; None if there are no others."""
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
    """Runs the engine on all batches and counts what each tensor is. The arrays of one batch are used for the next."""
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
        for name, found in seen.items():
            found.add(feed[name] if name in feed else results[name])


def _in_words(batches: CalibrationBatches) -> str:
    """How many samples there were."""
    return f"{batches.samples} {batches.source.unit}{'s' * (batches.samples != 1)}"


def _warn_of_samples(batches: CalibrationBatches) -> None:
    """Warns of samples by which ranges and accuracy cannot be told."""
    if batches.samples > 1 and batches.alike:
        given = f"has {_in_words(batches)} that are all the same"
    elif batches.samples < ENOUGH:
        given = f"has {_in_words(batches)}"
    else:
        return
    log.warning(
        "the calibration data %s, which says little of ranges and accuracy; give some hundred like those of real runs",
        given,
    )


def _table(seen: Mapping[str, ValueRange], algorithm: Algorithm) -> CalibrationTable:
    """The scales of tensors that were seen, and notes on those without; InputError if none has one."""
    scales, notes, lows = {}, {}, {}
    for name, found in seen.items():
        if found.nonfinite:
            notes[name] = "it has infinite values or NaN on calibration data"
        elif not found.amax:
            notes[name] = "it is 0 on all calibration data"
        elif found.low == found.high:
            notes[name] = f"it is {found.low:g} on all calibration data"
        elif (scale := scale_of(algorithm.amax(found))) is None:
            notes[name] = f"its range on calibration data, up to {found.amax:g}, has no scale that is a normal float32"
        else:
            scales[name], lows[name] = scale, found.low
    if not scales and notes:
        name = next(iter(notes))
        raise InputError(
            f"calibration found no range: none of {len(notes)} tensors can be quantized, such as {name!r}:"
            f" {notes[name]}; calibrate with inputs like those of real runs"
        )
    return CalibrationTable(scales, algorithm.title, notes=notes, lows=lows)
