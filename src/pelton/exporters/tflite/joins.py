"""Concatenations of integers: one scale for the operands and the result, and those whose parts are too far apart.

LiteRT concatenates integers of one scale. An operand of another scale would be rounded twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from pelton.ir.graph import Graph, Node, Value
from pelton.ops import words

from .fusion import MOVES
from .tensors import Scaling

COARSER = 1.41  # up to which a value takes a larger step: rounding it twice has the error of one of 1.41 steps
FAR = 16  # parts of 1/16 of the largest one would have 4 bits


def shared_scalings(
    graph: Graph, scalings: Mapping[Value, Scaling], keeping: Container[object], fixed: Container[Value]
) -> dict[Value, Scaling]:
    """Returns the scalings by which operands of concatenations need not be rescaled, of the values that choose them.

    keeping: ops whose output has the scaling of the input. fixed: values that cannot have another one.
    """
    pinned = dict[Value, Scaling]()
    for node in reversed(graph.nodes):
        y = node.outputs[0]
        if node.op is not words.concat or y not in scalings:
            continue
        paths = [_path(graph, v, scalings, keeping) for v in node.inputs if v in scalings]
        held = [scalings[path[-1]] if path[-1] in fixed else pinned.get(path[-1]) for path in paths]
        if y not in pinned:
            for scaling, _ in Counter(s for s in held if s is not None).most_common():
                if _covers(scaling, scalings[y]) and scaling.scale[0] <= COARSER * scalings[y].scale[0]:
                    pinned[y] = scaling
                    break
        scaling = pinned.get(y, scalings[y])
        for path, before in zip(paths, held):
            fine = all(_readers(graph, v) == 1 or scaling.scale[0] <= COARSER * scalings[v].scale[0] for v in path)
            if before is None and fine:
                pinned[path[-1]] = scaling
    return pinned


def far_joins(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> set[Node]:
    """Returns concatenations for the outputs of the model whose parts differ too much in size to share a scale.

    With the moves behind them, they stay floats: boxes in pixels beside probabilities would leave these a few steps.
    """
    found = set[Node]()
    for node in graph.nodes:
        tops = [max(map(abs, ranges[v.name])) for v in node.inputs if v.name in ranges]
        tops = [t for t in tops if t > 0]
        if node.op is words.concat and tops and max(tops) > FAR * min(tops):
            found.update(_to_outputs(graph, node) or ())
    return found


def _to_outputs(graph: Graph, node: Node) -> set[Node] | None:
    """Returns a node and the moves through which its result becomes outputs; None if anything else reads it."""
    found, waiting = {node}, [node]
    while waiting:
        for user in graph.users.get(waiting.pop().outputs[0], []):
            if user.op not in MOVES:
                return None
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found


def _path(graph: Graph, v: Value, scalings: Container[Value], keeping: Container[object]) -> list[Value]:
    """Returns a value and those that it has its scaling from; the last one chooses it."""
    path = [v]
    while (producer := graph.producer.get(path[-1])) is not None and producer.op in keeping:
        if producer.inputs[0] not in scalings:
            break
        path.append(producer.inputs[0])
    return path


def _readers(graph: Graph, v: Value) -> int:
    return len(graph.users.get(v, [])) + (v in graph.outputs)


def _covers(one: Scaling, other: Scaling) -> bool:
    """True if all numbers of a scaling are in the range of another one, but for half a step of that."""
    low, high = ((end - one.zero) * one.scale[0] for end in (-128.5, 127.5))
    return low <= (-128 - other.zero) * other.scale[0] and (127 - other.zero) * other.scale[0] <= high
