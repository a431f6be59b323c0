"""A region: what one kernel computes. Its body is its meaning, in logical layout; the reference evaluates it to check
any tactic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pelton.ir import dims
from pelton.ir.graph import Graph, Node, Value, with_sizes, symbols
from pelton.ir.text import key


@dataclass(frozen=True, eq=False)
class Region:
    """`anchors` are the structured nodes of the body, in order; none = pointwise alone. What is neither is a slice of a
    result, written to a place of its own.

    Body inputs and outputs are the very values of the graph that the region was cut from.
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
        """Text of the body with canonical names: equal keys need equal code (given equal layouts)."""
        if "key" not in self._cache:
            self._cache["key"] = key(self.body)
        return self._cache["key"]

    @property
    def layers(self) -> tuple[str, ...]:
        """The model's node names that this region came from."""
        return tuple(dict.fromkeys(n.name for n in self.body.nodes if n.name))

    @property
    def tail(self) -> tuple[Node, ...]:
        """The pointwise nodes."""
        return tuple(n for n in self.body.nodes if n.op.scalar is not None)

    @property
    def pieces(self) -> tuple[Node, ...]:
        """The slices."""
        return tuple(n for n in self.body.nodes if n.op.scalar is None and n not in self.anchors)

    def optimum_sizes(self, layouts: Mapping[Value, tuple]) -> dict[str, int]:
        """The values that the region is tuned for in these layouts, whose strides may be of sizes that are none of its
        own: the usual ones, or larger ones where with those there is nothing to compute (n - 1 rows, n usually 1)."""
        found = (*symbols(self.body), *dims.symbols(list(layouts.values())))
        varying = [
            d for n in self.body.nodes for v in (*n.inputs, *n.outputs) for d in v.type.shape if not isinstance(d, int)
        ]
        for times in (1, 2, 4, 16, 64, 256):
            sizes = {s.name: min(s.optimum * times, s.maximum) for s in found}
            if all(dims.at(d, sizes) > 0 for d in varying):
                return sizes
        return {s.name: s.optimum for s in found}

    def sized(self, sizes: Mapping[str, int], to: dict[Value, Value]) -> Region:
        """The region for these values of the symbols; `to` is extended by its values."""
        body, _ = with_sizes(self.body, sizes, to)
        place = {n: i for i, n in enumerate(self.body.nodes)}
        return Region(body, tuple(body.nodes[place[n]] for n in self.anchors))

    def flops(self) -> int:
        return sum(
            n.op.operations(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs), n.attrs)
            for n in self.body.nodes
        )

    def title(self) -> str:
        """A short readable name: `convolution+relu`."""
        return "+".join(n.op.name for n in self.body.nodes)


def cut(graph: Graph, nodes: tuple[Node, ...], anchors: tuple[Node, ...]) -> Region:
    """The region made of these nodes: what they read from outside are its inputs and constants, what is read outside
    its outputs."""
    inside = set(nodes)
    made = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)
    outputs = [
        v
        for n in nodes
        for v in n.outputs
        if v in graph.outputs or any(u not in inside for u in graph.users.get(v, ()))
    ]
    constants = {v: graph.constants[v] for v in read if v in graph.constants}
    return Region(
        Graph(tuple(v for v in read if v not in constants), constants, nodes, tuple(outputs), "region"), anchors
    )
