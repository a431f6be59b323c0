"""How long a build will take, by what builds have taken: on this machine, and until there are some, where Pelton was
measured."""

from __future__ import annotations

import functools
import json
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.options import Options

from .engine_cache import Shelf

if TYPE_CHECKING:
    import onnx

log = logging.getLogger("pelton.session")

KEPT = 32  # builds that are remembered
ASKED = 7  # of which the latest at a level are asked


@dataclass(frozen=True)
class Build:
    """One that is over: at which level, of how many different layers, what a build of so many took by the reference,
    and what it took here."""

    level: int
    layers: int
    reference: float
    seconds: float


@functools.cache
def reference() -> list[tuple[float, float]]:
    """Per level the seconds of a build and those of each different layer, as `benchmarks/builds.py` measured them with
    empty caches."""
    found = json.loads((Path(__file__).parents[2] / "data" / "builds.json").read_text())
    return [(level["build"], level["layer"]) for level in found["levels"]]


def layers(model: onnx.ModelProto) -> int:
    """How many different layers a model has that a build looks at one by one: nodes with constants of their own, equal
    ones once. What a node without constants does joins the one before it, or costs little."""
    from pelton.importers.onnx.names import all_nodes

    sizes = {t.name: (t.data_type, *t.dims) for t in model.graph.initializer}
    for node in all_nodes(model.graph):
        for a in node.attribute if node.op_type == "Constant" and node.output else ():
            if a.HasField("t"):
                sizes[node.output[0]] = (a.t.data_type, *a.t.dims)
    seen = set()
    for graph in (model.graph, *model.functions):
        for node in all_nodes(graph):
            # more than a number or a list of them
            if any(name in sizes and len(sizes[name]) > 2 for name in node.input):
                seen.add(
                    (
                        node.op_type,
                        *sorted(a.SerializeToString() for a in node.attribute),
                        *(sizes.get(name) for name in node.input),
                    )
                )
    return max(len(seen), 1)


def seconds(level: int, count: int, budget: float | None, past: list[Build]) -> tuple[float, int]:
    """What a build of so many different layers will take, and how many of the past ones say so: the latest at this
    level, else at any. They differ from the reference by a factor, the median of which is this machine's."""

    def by_reference(level: int) -> float:
        build, layer = reference()[level]
        return build + layer * count

    asked = ([b for b in past if b.level == level] or past)[-ASKED:]
    factor = statistics.median([b.seconds / b.reference for b in asked]) if asked else 1.0
    whole, guessed = by_reference(level) * factor, by_reference(0) * factor
    return (min(whole, guessed + budget) if budget is not None else whole), len(asked)


@contextmanager
def told(shelf: Shelf, name: str, model: onnx.ModelProto, options: Options) -> Iterator[None]:
    """Says, as a warning, that an engine is being built and for how long, and remembers what the block then took. Of
    GPUs no builds are compared: what they take depends on libraries and caches of others."""
    if not options.on_cpu:
        log.warning("an engine for %s is being built for %s; the next session finds it", options.target, name)
        yield
        return
    past, count = _past(shelf), layers(model)
    expected, asked = seconds(options.level, count, options.budget, past)
    log.warning(
        "an engine is being built for %s, at level %d: about %s, by %s; the next session finds it. With the config"
        " entry pelton.on_miss=fast a first session builds without timing, with =error it does not build",
        name,
        options.level,
        _spoken(expected),
        (
            f"{'the last build' if asked == 1 else f'the last {asked} builds'} on this machine"
            if asked
            else "builds on another machine"
        ),
    )
    begin = time.monotonic()
    yield
    took = time.monotonic() - begin
    log.info("the engine for %s took %.1f s", name, took)
    if options.budget is None:
        build, layer = reference()[options.level]
        shelf.keep_json(
            "builds",
            {"builds": [vars(b) for b in (*past, Build(options.level, count, build + layer * count, took))[-KEPT:]]},
        )


def _past(shelf: Shelf) -> list[Build]:
    """The builds that are remembered; those that cannot be read count as none."""
    try:
        return [
            Build(int(b["level"]), int(b["layers"]), float(b["reference"]), float(b["seconds"]))
            for b in shelf.json("builds")["builds"]
            if float(b["reference"]) > 0
        ]
    except (TypeError, KeyError, ValueError):
        return []


def _spoken(time: float) -> str:
    return (
        "less than a second" if time < 1 else f"{time:.0f} s" if time < 120 else f"{time / 60:.0f} min ({time:.0f} s)"
    )
