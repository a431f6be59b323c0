"""What a program asks of memory: tensors that do not fit are refused by name before anything is planned, and engines
that do not before they are handed out."""

from __future__ import annotations

import os

from pelton.engine import sizes
from pelton.engine.model import EnginePlan
from pelton.errors import BuildError
from pelton.ir.dims import UNBOUNDED, bounds
from pelton.ir.graph import Graph, Value

MOST_AXES = 32  # what numpy and the engine's own check take


def limit(memory: int | None) -> int:
    """Bytes that a run may take: as asked for, else what the machine has."""
    return memory if memory is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_tensors(graph: Graph, memory: int | None) -> None:
    """BuildError for a tensor that could not lie in memory, whatever sizes a run decides; says which node gives it."""
    most = limit(memory)
    made = [(v, f"{n.op.name} (node {n.name!r})" if n.name else n.op.name) for n in graph.nodes for v in n.outputs]
    for value, where in (*((v, f"input {v.name!r}") for v in graph.inputs), *made):
        _check(value, where, most)


def _check(value: Value, where: str, most: int) -> None:
    if value.type.rank > MOST_AXES:
        raise BuildError(
            f"tensors may have at most {MOST_AXES} axes, {where} has {value.type.rank}; drop those of size 1"
        )
    least = bounds(value.type.bytes)[0]
    if least > most:
        raise BuildError(
            f"{where} is {value.type}, {_large(least)}; a run may take {_large(most)} (Options.memory, else what this"
            " machine has): give smaller sizes, or build where there is more memory"
        )
    if (longest := max((bounds(d)[0] for d in value.type.shape), default=0)) > UNBOUNDED:
        raise BuildError(
            f"{where} is {value.type}: an axis may have at most {UNBOUNDED} elements, not {longest}, even where another"
            " has none"
        )


def check_engine(engine: EnginePlan, memory: int | None) -> None:
    """BuildError for an engine that takes more than there may be, at the sizes that it was tuned for."""
    plain = sizes.at(engine, sizes.optimum_sizes(engine))
    scratch = max((s.scratch for s in plain.steps), default=0) * (plain.meta.get("threads") or 1)
    need = plain.arena + scratch + sum(p.nbytes for p in (*plain.inputs, *plain.outputs)) + len(engine.constants)
    if need > limit(memory):
        raise BuildError(
            f"a run of {engine.called!r} takes {_large(need)}: {_large(plain.arena)} of working memory,"
            f" {_large(scratch)} of the threads' own, {_large(len(engine.constants))} of constants, the rest inputs and"
            f" outputs; {_large(limit(memory))} is what it may take (Options.memory, else what this machine has): give"
            " smaller sizes"
        )


def _large(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
