"""Recurrent layers cut in two: the input's products of all time steps as one matrix product, then the steps that wait for each other."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import F32, TensorType
from pelton.ops import get

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_ACTIVATIONS: dict[str, list[tuple[str, ...]]] = {"lstm": [("sigmoid", "tanh", "tanh")], "gru": [("sigmoid", "tanh")], "rnn": [("tanh",), ("relu",)]}


def whole(graph: Graph, node: Node) -> str | None:
    """Why a recurrent layer cannot be cut in two; None where it can."""
    if any(v.type.dtype is not F32 for v in node.inputs):
        return "not f32"
    names = tuple(a.lower() for a in node.attrs["activations"])
    directions = node.inputs[1].type.shape[0]
    if names and names not in [given * directions for given in _ACTIVATIONS[node.op.name]]:
        return f"its activations are {', '.join(node.attrs['activations'])}"
    return None


def split_recurrent(graph: Graph) -> Graph:
    """Every lstm, gru and rnn with the usual activations as transpose, reshape, matmul, add and its steps."""
    if not any(n.op.name in GATES for n in graph.nodes):
        return graph
    draft = _Draft(graph)
    for node in graph.nodes:
        if node.op.name in GATES and whole(graph, node) is None:
            _split(graph, node, draft)
        else:
            draft.nodes.append(node)
    return graph.replace(nodes=tuple(draft.nodes), constants=draft.constants)


def _split(graph: Graph, node: Node, draft: "_Draft") -> None:
    x, w, r, b, *states = node.inputs
    attrs, turned = node.attrs, node.attrs["layout"] == 1
    directions, width, inputs = w.type.shape
    more = {"direction": attrs["direction"], "clip": attrs["clip"]}
    operands: list[Value] = [r]
    if node.op.name == "lstm":
        *states, peepholes = states
        more["input_forget"] = attrs["input_forget"]
    elif node.op.name == "gru":
        more["linear_before_reset"] = attrs["linear_before_reset"]
    else:
        more["activation"] = (attrs["activations"] or ("Tanh",))[0].capitalize()

    rows, steps = x.type.shape[:2]
    flat = draft.emit(node, "reshape", (x,), shape=(rows * steps, inputs))
    if w in graph.constants:
        weights = draft.constant(np.ascontiguousarray(graph.constants[w].reshape(directions * width, inputs).T), "weights")
    else:
        weights = draft.emit(node, "transpose", (draft.emit(node, "reshape", (w,), shape=(directions * width, inputs)),), perm=(1, 0))
    given, later = _biases(graph, node, draft)
    sums = draft.emit(node, "add", (draft.emit(node, "matmul", (flat, weights)), given))
    if node.op.name == "gru":
        operands.append(later)
    gates = draft.emit(node, "reshape", (sums,), shape=(rows, steps, directions * width))
    if turned:
        gates = draft.emit(node, "transpose", (gates,), perm=(1, 0, 2))
        states = [draft.emit(node, "transpose", (s,), perm=(1, 0, 2)) for s in states]
    operands += states
    if node.op.name == "lstm":
        operands.append(peepholes)
    if not turned:
        draft.add(node, f"{node.op.name}_steps", (gates, *operands), more, node.outputs)
        return
    made = draft.add(node, f"{node.op.name}_steps", (gates, *operands), more)
    for inner, outer, perm in zip(made, node.outputs, ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))):
        if graph.uses(outer):
            draft.add(node, "transpose", (inner,), {"perm": perm}, (outer,))


def _biases(graph: Graph, node: Node, draft: "_Draft") -> tuple[Value, Value]:
    """The biases of all gates, and for gru what of them is not added beforehand, because the reset gate multiplies it: that of n."""
    b, count = node.inputs[3], GATES[node.op.name]
    directions, hidden = b.type.shape[0], b.type.shape[1] // (2 * count)
    linear = node.op.name == "gru" and node.attrs["linear_before_reset"]
    shape = (directions, 2, count, hidden)
    if b in graph.constants:
        bias = graph.constants[b].astype(np.float64).reshape(shape)
        given, apart = bias.sum(axis=1), bias[:, 1, -1] if linear else np.zeros((directions, hidden))
        given[:, -1] -= apart
        return draft.constant(given.reshape(-1).astype(np.float32), "bias"), draft.constant(apart.astype(np.float32), "bias")
    own, recurrent = (draft.cut(node, draft.emit(node, "reshape", (b,), shape=shape), 1, i, i + 1) for i in (0, 1))
    later = draft.constant(np.zeros((directions, hidden), np.float32), "bias")
    if linear:
        later = draft.emit(node, "reshape", (draft.cut(node, recurrent, 2, 2, 3),), shape=(directions, hidden))
        both = draft.emit(node, "add", (draft.cut(node, own, 2, 0, 2), draft.cut(node, recurrent, 2, 0, 2)))
        sums = draft.emit(node, "concat", (both, draft.cut(node, own, 2, 2, 3)), axis=2)
    else:
        sums = draft.emit(node, "add", (own, recurrent))
    return draft.emit(node, "reshape", (sums,), shape=(directions * count * hidden,)), later


class _Draft:
    """The nodes and constants of the graph that is being made."""

    def __init__(self, graph: Graph):
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = dict(graph.constants)
        self._names = {v.name for v in (*graph.inputs, *graph.constants)} | {v.name for n in graph.nodes for v in n.outputs}

    def _fresh(self, hint: str) -> str:
        name, k = hint, 1
        while name in self._names:
            k += 1
            name = f"{hint}_{k}"
        self._names.add(name)
        return name

    def constant(self, array: np.ndarray, hint: str) -> Value:
        value = Value(TensorType.of(array), self._fresh(hint))
        self.constants[value] = array
        return value

    def add(self, source: Node, op: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any], outputs: tuple[Value, ...] | None = None) -> tuple[Value, ...]:
        complete = get(op).complete(attrs)
        if outputs is None:
            outputs = tuple(Value(t, self._fresh(op)) for t in get(op).infer_types(tuple(v.type for v in inputs), complete))
        self.nodes.append(Node(get(op), inputs, complete, outputs, source.name))
        return outputs

    def emit(self, source: Node, op: str, inputs: tuple[Value, ...], **attrs: Any) -> Value:
        (only,) = self.add(source, op, inputs, attrs)
        return only

    def cut(self, source: Node, x: Value, axis: int, start: int, end: int) -> Value:
        return self.emit(source, "slice", (x,), starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
