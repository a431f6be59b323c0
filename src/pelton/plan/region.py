"""A region: the nodes that one kernel computes. Tactics are checked against its body, in logical layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pelton.ir import dims
from pelton.ir.graph import Graph, Node, Value, with_sizes, symbols
from pelton.ir.text import key


@dataclass(frozen=True, eq=False)
class Region:
    """`anchors` are the structured nodes of the body, in order; all other nodes are pointwise or slices.

    Body inputs and outputs are the very values of the original graph. A slice is a part of a result with an output of
    its own.
    """

    body: Graph
    anchors: tuple[Node, ...]
    _cache: dict = field(default_factory=dict, init=False, repr=False)

    @property
    def anchor(self) -> Node | None:
        return self.anchors[0] if self.anchors else None

    @property
    def output(self) -> Value:
        return self.body.outputs[0]

    @property
    def key(self) -> str:
        """Text of the body with canonical names: equal keys and equal layouts mean equal code."""
        if "key" not in self._cache:
            self._cache["key"] = key(self.body)
        return self._cache["key"]

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the model's nodes in this region; merged ones (joined by "+") are split."""
        return tuple(dict.fromkeys(part for n in self.body.nodes for part in n.name.split("+") if part))

    @property
    def tail(self) -> tuple[Node, ...]:
        """The pointwise nodes."""
        return tuple(n for n in self.body.nodes if n.op.scalar is not None)

    @property
    def pieces(self) -> tuple[Node, ...]:
        """The slices."""
        return tuple(n for n in self.body.nodes if n.op.scalar is None and n not in self.anchors)

    def optimum_sizes(self, layouts: Mapping[Value, tuple]) -> dict[str, int]:
        """Returns the dynamic sizes that the region is tuned for, including those of strides in these layouts.

        They are the optima, or larger ones if there is nothing to compute at these (n - 1 rows at an optimum of 1).
        """
        variables = (*symbols(self.body), *dims.symbols(list(layouts.values())))
        shapes = [v.type.shape for n in self.body.nodes for v in (*n.inputs, *n.outputs)]
        dynamic = [d for shape in shapes for d in shape if not isinstance(d, int)]
        for times in (1, 2, 4, 16, 64, 256):
            sizes = {s.name: min(s.optimum * times, s.maximum) for s in variables}
            if all(dims.at(d, sizes) > 0 for d in dynamic):
                return sizes
        return {s.name: s.optimum for s in variables}

    def sized(self, sizes: Mapping[str, int], to: dict[Value, Value]) -> Region:
        """Returns the region at these values of the symbols; adds its values to `to`."""
        body, _ = with_sizes(self.body, sizes, to)
        index = {n: i for i, n in enumerate(self.body.nodes)}
        return Region(body, tuple(body.nodes[index[n]] for n in self.anchors))

    def flops(self) -> int:
        return sum(
            n.op.operations(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs), n.attrs)
            for n in self.body.nodes
        )

    def title(self) -> str:
        """Returns a short readable name: `convolution+relu`."""
        return "+".join(n.op.name for n in self.body.nodes)


def cut(graph: Graph, nodes: tuple[Node, ...], anchors: tuple[Node, ...]) -> Region:
    """Cuts the region of these nodes: its inputs and constants are read from outside, its outputs are read outside."""
    inside = set(nodes)
    computed = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v not in computed)
    outputs = [
        v
        for n in nodes
        for v in n.outputs
        if v in graph.outputs or any(u not in inside for u in graph.users.get(v, ()))
    ]
    constants = {v: graph.constants[v] for v in read if v in graph.constants}
    inputs = tuple(v for v in read if v not in constants)
    return Region(Graph(inputs, constants, nodes, tuple(outputs), "region"), anchors)
