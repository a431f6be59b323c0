"""Memory limits: BuildError for tensors that cannot fit, before planning, and for engines that do not, after it."""

from __future__ import annotations

import os

from pelton.engine import sizes
from pelton.engine.plan import EnginePlan
from pelton.errors import BuildError
from pelton.ir.dims import UNBOUNDED, bounds
from pelton.ir.graph import Graph, Value

MAX_RANK = 32  # of numpy, and of the engine's validation


def limit(memory: int | None) -> int:
    """Returns the maximum bytes of a run: the given number, or the memory of this machine."""
    return memory if memory is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_tensors(graph: Graph, memory: int | None) -> None:
    """Raises BuildError, naming the node, for a tensor that cannot fit in memory even at its minimum sizes."""
    max_bytes = limit(memory)
    results = [(v, f"{n.op.name} (node {n.name!r})" if n.name else n.op.name) for n in graph.nodes for v in n.outputs]
    for value, where in (*((v, f"input {v.name!r}") for v in graph.inputs), *results):
        _check(value, where, max_bytes)


def _check(value: Value, where: str, max_bytes: int) -> None:
    if value.type.rank > MAX_RANK:
        raise BuildError(
            f"tensors may have at most {MAX_RANK} axes, {where} has {value.type.rank}; drop those of size 1"
        )
    minimum = bounds(value.type.bytes)[0]
    if minimum > max_bytes:
        raise BuildError(
            f"{where} is {value.type}, {_format_bytes(minimum)}; a run may use {_format_bytes(max_bytes)}"
            " (Options.memory, or this machine's memory): use smaller sizes, or a larger machine"
        )
    if (longest := max((bounds(d)[0] for d in value.type.shape), default=0)) > UNBOUNDED:
        raise BuildError(
            f"{where} is {value.type}: an axis may have at most {UNBOUNDED} elements, not {longest}, even if another"
            " axis is empty"
        )


def check_engine(engine: EnginePlan, memory: int | None) -> None:
    """Raises BuildError for an engine that exceeds the limit at its optimum sizes."""
    plain = sizes.at(engine, sizes.optimum_sizes(engine))
    scratch = max((s.scratch for s in plain.steps), default=0) * (plain.meta.get("threads") or 1)
    need = plain.arena + scratch + sum(p.nbytes for p in (*plain.inputs, *plain.outputs)) + len(engine.constants)
    if need > limit(memory):
        raise BuildError(
            f"a run of {engine.label!r} needs {_format_bytes(need)}: {_format_bytes(plain.arena)} of workspace,"
            f" {_format_bytes(scratch)} of threads' scratch memory, {_format_bytes(len(engine.constants))} of"
            f" constants, the rest inputs and outputs; it may use {_format_bytes(limit(memory))} (Options.memory,"
            " or this machine's memory): use smaller sizes"
        )


def _format_bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
