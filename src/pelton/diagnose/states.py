"""The state of a program between runs: pairs of inputs and outputs, and why a run copies a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.compiler.in_place import IN_PLACE
from pelton.engine.pairs import state_pairs
from pelton.engine.plan import Port
from pelton.ir.graph import Value
from pelton.plan.placed import Placed
from pelton.plan.region import Region


@dataclass(frozen=True)
class KeptValue:
    """An input and the output with its next value. copied: why a run writes all of it; "" if it extends the input in
    place."""

    input: str
    output: str
    type: str
    copied: str


def kept_values(placed: Placed, states: Mapping[str, Sequence[Any]]) -> list[KeptValue]:
    """Returns the state of a program; `states` has the outputs that its model declares by the names of inputs."""
    graph = placed.graph
    ins, outs = ({v.name: v for v in values} for values in (graph.inputs, graph.outputs))
    declared = {name: output for name, (output, _) in states.items() if name in ins and output in outs}
    pairs = state_pairs([_port(v) for v in graph.inputs], [_port(v) for v in graph.outputs], declared)
    roots = {v.name: root for v, root in zip(graph.outputs, placed.outputs)}
    makers = {v: n.op.name for n in graph.nodes for v in n.outputs}
    return [
        KeptValue(i, o, str(ins[i].type), _why_copied(placed, ins[i], roots[o], makers.get(outs[o], "no step")))
        for i, o in pairs.items()
    ]


def _port(v: Value) -> Port:
    return Port(v.name, v.type.dtype.value, tuple(d if isinstance(d, int) else str(d) for d in v.type.shape))


def _why_copied(placed: Placed, before: Value, after: Value, maker: str) -> str:
    """Returns the reason for `KeptValue.copied`. after: the buffer of the output; maker: the op that computes it."""
    task = next((t for t in placed.tasks if after in t.writes), None)
    if task is None:
        return "no step computes the output"
    title = task.what.title() if isinstance(task.what, Region) else task.what.op.name
    anchor = task.what.anchor if isinstance(task.what, Region) else None
    if anchor is None or title not in IN_PLACE:
        return f"the output is a result of {maker}, which writes all of it"
    operand, _, result = IN_PLACE[title]
    if anchor.inputs[operand] is not before or anchor.outputs[result] is not after:
        return f"{title} extends another value: a copy, or the result of another step"
    readers = [t for t in placed.tasks if before in t.reads and t is not task]
    if readers:
        other = readers[0].what
        name = other.title() if isinstance(other, Region) else other.op.name
        return f"{name} reads the input as well"
    return ""
