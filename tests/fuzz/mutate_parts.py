"""Parts of models to damage, and the damaging values."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_SMALL = (0, 1, -1, 2, 3, 5, 7, -2, 16, 64, 255, 1000, -7)
_LARGE = (1 << 15, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
NUMBERS = (*_SMALL, *_LARGE)
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 17, 64, 1000, -1, -5, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), 1e-45, 3.0)
_MODES = ("NOTSET", "SAME_UPPER", "VALID", "linear", "cubic", "nearest", "add", "none")
_EQUATIONS = ("ij,jk->ik", "...", "ij->", "->")
_ODD = ("a" * 5000, "\0", "ä", "%s%n", "../../x")
_OPTIONS = ("Relu", "LEFT", "wrap", "reflect", "edge")
WORDS = ("", "x", "y", *_MODES, *_EQUATIONS, "bidirectional", "reverse", "floor", *_ODD, *_OPTIONS)
TYPES = tuple(v for v in TensorProto.DataType.values()) + (99, -3)


def graphs_of(m: ModelProto) -> Iterator[GraphProto]:
    """All graphs of a model, those within nodes included."""
    waiting = [m.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(
            g for n in graph.node for a in n.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)
        )


def nodes_of(m: ModelProto) -> list[NodeProto]:
    return [n for g in graphs_of(m) for n in g.node] + [n for f in m.functions for n in f.node]


def names_of(m: ModelProto) -> list[str]:
    return [
        n
        for g in graphs_of(m)
        for n in (*(i.name for i in g.input), *(t.name for t in g.initializer), *(o for n in g.node for o in n.output))
    ] or [""]


def tensors_of(m: ModelProto) -> list[TensorProto]:
    found = [t for g in graphs_of(m) for t in g.initializer]
    return found + [a.t for n in nodes_of(m) for a in n.attribute if a.type == AttributeProto.TENSOR]


def infos_of(m: ModelProto) -> list[onnx.ValueInfoProto]:
    return [v for g in graphs_of(m) for v in (*g.input, *g.output, *g.value_info)]


def change_list(values, choices, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and values:
        del values[rng.randrange(len(values))]
    elif kind == 1:
        values.insert(rng.randrange(len(values) + 1), rng.choice(choices))
    elif values:
        values[rng.randrange(len(values))] = rng.choice(choices)
