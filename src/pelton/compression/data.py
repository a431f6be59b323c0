"""Calibration batches in memory, joined to larger ones where the program takes any number of samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.calibration.batches import CalibrationBatches
from pelton.calibration.collect import hold_out, in_words, warn_of_samples
from pelton.calibration.sources import find_table, open_source
from pelton.errors import InputError
from pelton.ir.graph import Graph, sizes_of, symbols
from pelton.logs import Logger
from pelton.quantize.accuracy_bound import Feed

log = Logger("pelton.build")

MOST_BYTES = 256 << 20  # of calibration batches in memory
JOINED = 16  # batches


@dataclass(frozen=True)
class CalibrationData:
    """Calibration batches, those that are held out, the number of the latter before they were joined, and that of all
    samples in words; empty without data."""

    feeds: Sequence[Feed] = ()
    held_out: Sequence[Feed] = ()
    count: int = 0
    words: str = ""


def read_data(data: Any, graph: Graph) -> CalibrationData:
    """Reads calibration data, every fifth batch as held-out data. InputError for data that does not fit."""
    if data is None:
        return CalibrationData()
    if find_table(data) is not None:
        raise InputError("data is a calibration table, which has no inputs to run; pass the inputs it was made of")
    batches = CalibrationBatches(open_source(data, graph, None), graph)
    held_out: list[dict[str, np.ndarray[Any, Any]]] = []
    feeds: list[Feed] = []
    size = 0
    for feed in hold_out(batches, held_out):
        size += sum(a.nbytes for a in feed.values())
        if size > MOST_BYTES and feeds:
            log.warning("only the first %d batches of the data are used: more do not fit in memory", len(feeds))
            break
        feeds.append({name: a.copy() for name, a in feed.items()})
    warn_of_samples(batches)
    return CalibrationData(joined(feeds, graph), joined(held_out, graph), len(held_out), in_words(batches))


def joined(feeds: Iterable[Feed], graph: Graph) -> list[Feed]:
    """Returns batches joined along their first axes, up to `JOINED` in one, as far as the program takes them and
    samples are independent: where all inputs and outputs have one dynamic dimension as their first axis."""
    firsts = {v.type.shape[:1] for v in (*graph.inputs, *graph.outputs)}
    every = list(feeds)
    if len(firsts) != 1 or () in firsts or isinstance(next(iter(firsts))[0], int):
        return every
    out: list[Feed] = []
    waiting: list[Feed] = []
    for feed in every:
        together = _concatenated([*waiting, feed])
        if together is None or len(waiting) == JOINED or not _fits(graph, together):
            out.append(_concatenated(waiting) or waiting[0])
            waiting = []
        waiting.append(feed)
    if waiting:
        out.append(_concatenated(waiting) or waiting[0])
    return out


def _concatenated(feeds: Sequence[Feed]) -> Feed | None:
    """Returns batches as one; None if there are none, or their other sizes differ."""
    if len({tuple(a.shape[1:] for a in feed.values()) for feed in feeds}) != 1:
        return None
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _fits(graph: Graph, feed: Feed) -> bool:
    """True if the program takes a batch of this size."""
    try:
        sizes = sizes_of(graph, {name: a.shape for name, a in feed.items()})
    except (ValueError, KeyError):
        return False
    return all(s.minimum <= sizes.get(s.name, s.optimum) <= s.maximum for s in symbols(graph))
