"""Recurrent layers written out step by step, for targets where a launch for each step is faster than one program that takes all of them."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pelton.ir.graph import Builder, Graph, Node, Value, live
from pelton.ops import get

from .decompose import decompose

LAYERS = ("lstm", "gru", "rnn")
STEPS = ("lstm_steps", "gru_steps", "rnn_steps")


def unroll(graph: Graph, one_by_one: Callable[[Node], bool]) -> Graph:
    """The graph with recurrent layers as the product of all time steps and the recurrence, and with each recurrence for which `one_by_one` says so as nodes
    for one time step and one direction each: directions are chains of their own. States are kept in the element type of the layer in between.
    """
    graph = decompose(graph, lambda _, node: node.op.name not in LAYERS)
    if not any(node.op.name in STEPS and one_by_one(node) for node in graph.nodes):
        return graph
    b = Builder(graph.name)
    to = {v: b.input(v.type, v.name) for v in graph.inputs} | {v: b.constant(a, v.name) for v, a in graph.constants.items()}
    for node in graph.nodes:
        inputs = [to[v] for v in node.inputs]
        if node.op.name in STEPS and one_by_one(node):
            made = _Steps(b, node).written(*inputs)
        else:
            made = b.emit(node.op, inputs, node.attrs, names=[v.name for v in node.outputs], node_name=node.name)
        to.update(zip(node.outputs, made))
    return live(b.graph([to[v] for v in graph.outputs]))


class _Steps:
    """The nodes of one recurrence."""

    def __init__(self, b: Builder, node: Node):
        self.b, self.node, self.attrs = b, node, {**node.attrs, "direction": "forward"}
        self.time, self.directions, self.batch, self.hidden = node.outputs[0].type.shape
        self.at = ""                                                       # step and direction, so that no name has to be looked for among thousands

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> tuple[Value, ...]:
        names = [f"{self.node.outputs[0].name}{self.at}.{op}{i or ''}" for i in range(len(self.node.outputs))]
        return self.b.emit(get(op), inputs, attrs, names=names, node_name=self.node.name)

    def one(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return self.emit(op, *inputs, **attrs)[0]

    def shaped(self, x: Value, *shape: int) -> Value:
        return x if x.type.shape == shape else self.one("reshape", x, shape=shape)

    def joined(self, parts: list[Value], axis: int) -> Value:
        return parts[0] if len(parts) == 1 else self.one("concat", *parts, axis=axis)

    def part(self, x: Value, ranges: Mapping[int, tuple[int, int]]) -> Value:
        """A slice by axis → (start, end); of a constant, a constant."""
        ranges = {axis: at for axis, at in sorted(ranges.items()) if at != (0, x.type.shape[axis])}
        if not ranges:
            return x
        if x in self.b.constants:
            array = self.b.constants[x][tuple(slice(*ranges.get(axis, (None,))) for axis in range(x.type.rank))]
            return self.b.constant(np.ascontiguousarray(array), x.name)
        starts, ends = zip(*ranges.values())
        return self.one("slice", x, starts=starts, ends=ends, axes=tuple(ranges), steps=(1,) * len(ranges))

    def written(self, gates: Value, *operands: Value) -> tuple[Value, ...]:
        """The values that stand for the node's outputs."""
        width = gates.type.shape[2] // self.directions
        each = [[self.part(v, {0: (d, d + 1)}) for v in operands] for d in range(self.directions)]
        step = {"lstm_steps": self.lstm, "gru_steps": self.gru, "rnn_steps": self.rnn}[self.node.op.name]
        found: dict[tuple[int, int], Value] = {}
        for s in range(self.time):
            for d in range(self.directions):
                self.at = f".{s}.{d}"
                t = self.time - 1 - s if d == 1 or self.node.attrs["direction"] == "reverse" else s
                given = self.part(gates, {0: (t, t + 1), 2: (d * width, (d + 1) * width)})
                found[t, d] = step(given, each[d])
        self.at = ""
        y = self.joined([self.joined([found[t, d] for d in range(self.directions)], 1) for t in range(self.time)], 0)
        at = {"lstm_steps": (1, 2), "gru_steps": (2,), "rnn_steps": (1,)}[self.node.op.name]
        return y, *(self.joined([of[i] for of in each], 0) for i in at)

    def state(self, y: Value) -> Value:
        return self.shaped(y, 1, self.batch, self.hidden)

    def lstm(self, given: Value, of: list[Value]) -> Value:
        """What a step gives; the states among the operands of the direction become the next ones."""
        y, _, of[2] = self.emit("lstm_steps", given, *of, **self.attrs)
        of[1] = self.state(y)
        return y

    def rnn(self, given: Value, of: list[Value]) -> Value:
        y, _ = self.emit("rnn_steps", given, *of, **self.attrs)
        of[1] = self.state(y)
        return y

    def gru(self, given: Value, of: list[Value]) -> Value:
        """Where the reset comes before the product, n waits for r of all units, and its weights: two products one after the other."""
        if self.attrs["linear_before_reset"]:
            y, _ = self.emit("gru_steps", given, *of, **self.attrs)
        else:
            (r, b, h), n, clip = of, self.hidden, self.attrs["clip"]
            old, sums = self.shaped(h, self.batch, n), self.shaped(given, self.batch, 3 * n)

            def gate(state: Value, start: int, end: int, *more: Value) -> Value:
                weights = self.one("transpose", self.shaped(self.part(r, {1: (start, end)}), end - start, n), perm=(1, 0))
                x = self.one("matmul", state, weights)
                for term in (self.part(sums, {1: (start, end)}), *more):
                    x = self.one("add", x, term)
                return self.one("clip", x, *(self.b.constant(np.array(v, x.type.dtype.numpy)) for v in (-clip, clip))) if clip else x
            first = self.one("sigmoid", gate(old, 0, 2 * n))
            z, reset = self.part(first, {1: (0, n)}), self.part(first, {1: (n, 2 * n)})
            fresh = self.one("tanh", gate(self.one("mul", reset, old), 2 * n, 3 * n, self.shaped(b, 1, n)))
            y = self.shaped(self.one("add", self.one("mul", z, self.one("sub", old, fresh)), fresh), 1, 1, self.batch, n)
        of[2] = self.state(y)
        return y
