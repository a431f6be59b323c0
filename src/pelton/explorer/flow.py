"""The edges of an engine's data flow, from writers to readers: by buffers between steps, by names in a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pelton.engine.plan import SIZES, EnginePlan, Slice, Step, Tensor
from pelton.engine.script import Action, Block, IfAction, LoopAction, RunAction, ScanAction, Script, read_by
from pelton.record import record

Ends = frozenset[tuple[str, int]]  # (node, number of its output)


@record(frozen=True)
class Edge:
    """From output `output` of node `start` to node `end`. Nodes: "s4" is a step, "i0" an input, "o1" an output."""

    start: str
    end: str
    output: int


def extent(t: Tensor) -> int:
    """Returns the bytes from the first element of a tensor to the end of its last; sizes are resolved."""
    if 0 in t.shape:
        return 0
    return (1 + sum((n - 1) * abs(s) for n, s in zip(t.shape, t.strides))) * SIZES[t.dtype]


def reads(step: Step) -> list[Slice]:
    """Returns the slices that a step reads, constants and workspace included: a kernel's arguments but its outputs."""
    if step.host:
        return [t.slice for t in step.inputs]
    slices, written = list(step.args), [t.slice for t in step.outputs]
    for s in written:
        if s in slices:
            slices.remove(s)
    return slices


def edges(plan: EnginePlan, first: int = 0) -> list[Edge]:
    """Returns the edges of a plan without symbols, with steps numbered from `first`.

    A step reads what earlier steps wrote to the same buffer at or after its own offset; in a joined buffer, a reader of
    one part may have edges from others.
    """
    wrote: dict[int, list[tuple[str, int, int]]] = {}  # buffer → (node, output, end in bytes)
    result: dict[Edge, None] = {}
    for i, port in enumerate(plan.inputs):
        for b in _of_kind(plan, "input", i):
            wrote[b] = [(f"i{i}", 0, port.nbytes)]
    for k, step in enumerate(plan.steps):
        node = f"s{first + k}"
        for s in reads(step):
            for start, output, end in wrote.get(s.buffer, ()):
                if end > s.offset or not end:
                    result[Edge(start, node, output)] = None
        for output, t in enumerate(step.outputs):
            wrote.setdefault(t.slice.buffer, []).append((node, output, t.slice.offset + extent(t)))
    for i in range(len(plan.outputs)):
        for b in _of_kind(plan, "output", i):
            result |= {Edge(start, f"o{i}", output): None for start, output, _ in wrote.get(b, ())}
    return list(result)


def _of_kind(plan: EnginePlan, kind: str, number: int) -> Iterator[int]:
    return (b for b, buffer in enumerate(plan.buffers) if buffer.kind == kind and buffer.offset == number)


def script_edges(script: Script, parts: Sequence[Sequence[Edge]], between: Mapping[int, str]) -> list[Edge]:
    """Returns the edges of a script. parts: the edges within each of its engines; between: id of an action that runs no
    engine → its node. Values that a loop carries to its next iteration have no edge."""
    result: dict[Edge, None] = {}

    def link(sources: Ends, end: str) -> None:
        result.update({Edge(node, end, output): None for node, output in sorted(sources)})

    def run(action: RunAction, known: Callable[[str], Ends]) -> list[Ends]:
        fed = [known(feed.name) for feed in action.feeds]
        outputs: list[Ends] = [frozenset() for _ in action.outputs]
        for e in parts[action.engine]:
            sources = fed[int(e.start[1:])] if e.start[0] == "i" else frozenset({(e.start, e.output)})
            if e.end[0] == "o":
                outputs[int(e.end[1:])] |= sources
            else:
                link(sources, e.end)
        return outputs

    def nested(action: Action, known: Callable[[str], Ends], names: Mapping[str, Ends], node: str) -> list[Ends]:
        here: Ends = frozenset({(node, 0)})
        if isinstance(action, IfAction):
            then, other = (block(b, names, here) for b in (action.then, action.other))
            return [a | b | here for a, b in zip(then, other)]  # the step decides which of both
        if isinstance(action, LoopAction):
            return block(action.body, names, here)[1:]
        if isinstance(action, ScanAction):
            return block(action.body, names, here)
        return [frozenset({(node, i)}) for i in range(len(action.outputs))]

    def block(b: Block, outer: Mapping[str, Ends], entry: Ends) -> list[Ends]:
        names = {**outer, **dict.fromkeys(b.inputs, entry)} if entry else dict(outer)

        def known(name: str) -> Ends:
            return names.get(name, entry)

        for action in b.steps:
            if isinstance(action, RunAction):
                outputs = run(action, known)
                if script.profiles and action.otherwise is not None:
                    outputs = [a | b for a, b in zip(outputs, block(action.otherwise, names, entry))]
            else:
                node = between[id(action)]
                for name in read_by(action):
                    link(known(name), node)
                outputs = nested(action, known, names, node)
            names |= {name: ends | entry if not ends else ends for name, ends in zip(action.outputs, outputs) if name}
        return [known(name) for name in b.outputs]

    inputs: dict[str, Ends] = {p.name: frozenset({(f"i{i}", 0)}) for i, p in enumerate(script.inputs)}
    for i, ends in enumerate(block(script.main, inputs, frozenset())):
        link(ends, f"o{i}")
    return list(result)


def nbytes(dtype: str, shape: Sequence[Any]) -> int | None:
    """Returns the bytes of an array; None if its shape is unknown."""
    return math.prod(shape) * SIZES[dtype] if all(isinstance(d, int) for d in shape) else None
