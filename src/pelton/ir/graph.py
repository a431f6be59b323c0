"""Values, nodes and graphs: immutable data; a pass is a function Graph → Graph."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from . import dims
from .op import Op
from .types import TensorType


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a program. Values are compared by identity, not by name."""

    type: TensorType
    name: str

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(frozen=True, eq=False)
class Node:
    """An application of an op. `name`: its node in the model file, for messages."""

    op: Op
    inputs: tuple[Value, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    name: str = ""

    @property
    def output(self) -> Value:
        (only,) = self.outputs
        return only

    def __repr__(self) -> str:
        return f"{self.op.name}({', '.join('%' + v.name for v in self.inputs)}) -> {', '.join(map(repr, self.outputs))}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A program: nodes in executable order, each value defined before its uses."""

    inputs: tuple[Value, ...]
    constants: Mapping[Value, np.ndarray]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    name: str = "main"
    _index: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def producer(self) -> dict[Value, Node]:
        """value → the node that defines it; inputs and constants have none."""
        if "producer" not in self._index:
            self._index["producer"] = {v: n for n in self.nodes for v in n.outputs}
        return self._index["producer"]

    @property
    def users(self) -> dict[Value, list[Node]]:
        """value → the nodes that read it, once per operand."""
        if "users" not in self._index:
            users: dict[Value, list[Node]] = {}
            for n in self.nodes:
                for v in n.inputs:
                    users.setdefault(v, []).append(n)
            self._index["users"] = users
        return self._index["users"]

    def uses(self, value: Value) -> int:
        """Counts the operands and graph outputs that a value is."""
        return len(self.users.get(value, ())) + sum(v is value for v in self.outputs)

    def replace(self, **changes) -> "Graph":
        kept = dict(
            inputs=self.inputs, constants=self.constants, nodes=self.nodes, outputs=self.outputs, name=self.name
        )
        return Graph(**{**kept, **changes})


@dataclass(frozen=True, eq=False)
class Body:
    """A graph as an attribute of a node: a branch, or the body of a loop.

    Its inputs, which the node provides in order, contain everything that it reads. Bodies are equal if their nodes,
    constants and sizes are, whatever the names of their values.
    """

    graph: Graph

    @cached_property
    def digest(self) -> str:
        """A hash, equal for equal bodies."""
        g, place = self.graph, count()
        number: dict[Value, int] = defaultdict(lambda: next(place))
        content: list[Any] = [[(number[v], str(v.type)) for v in g.inputs]]
        for n in g.nodes:
            attrs = sorted((k, repr(a)) for k, a in n.attrs.items())
            content.append(
                (n.op.name, [number[v] for v in n.inputs], [(number[v], str(v.type)) for v in n.outputs], attrs)
            )
        content.append([number[v] for v in g.outputs])
        hasher = hashlib.blake2b(repr(content).encode(), digest_size=16)
        for v, array in sorted(((v, a) for v, a in g.constants.items() if v in number), key=lambda x: number[x[0]]):
            hasher.update(f"{number[v]} {v.type} {array.tolist() if array.dtype.kind in 'OUST' else ''}".encode())
            hasher.update(b"" if array.dtype.kind in "OUST" else np.ascontiguousarray(array).tobytes())
        return hasher.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"body {self.digest}"


def bodies(node: Node) -> tuple[Body, ...]:
    """Returns the graphs nested in a node."""
    return tuple(a for a in node.attrs.values() if isinstance(a, Body))


def make_body(graph: Graph, captured: Sequence[Value] = ()) -> tuple[Body, tuple[Value, ...]]:
    """Returns the body of a graph that captures values, which become its inputs, and these, the node's operands.

    They follow the graph's own inputs: first all in `captured`, so that several bodies take the same operands, then
    further ones in the order of their uses.
    """
    own = {*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)}
    read = dict.fromkeys(
        [
            *captured,
            *(v for n in graph.nodes for v in n.inputs if v not in own),
            *(v for v in graph.outputs if v not in own),
        ]
    )
    inside = {v: Value(v.type, v.name) for v in read}
    body = substitute(graph, inside)
    return Body(body.replace(inputs=(*graph.inputs, *inside.values()))), tuple(read)


def unique(hint: str, taken: Container[str]) -> str:
    """Returns an unused name, as close to the hint as possible."""
    return next(name for k in count(1) if (name := f"{hint}_{k}" if k > 1 else hint) not in taken)


def remove_dead_nodes(graph: Graph) -> Graph:
    """Removes nodes and constants that no output needs. Inputs stay: they are the interface."""
    needed = set(graph.outputs)
    nodes = []
    for n in reversed(graph.nodes):
        if any(v in needed for v in n.outputs):
            nodes.append(n)
            needed.update(n.inputs)
    if len(nodes) == len(graph.nodes) and all(v in needed for v in graph.constants):
        return graph
    return graph.replace(
        nodes=tuple(reversed(nodes)), constants={v: a for v, a in graph.constants.items() if v in needed}
    )


def substitute(graph: Graph, to: Mapping[Value, Value]) -> Graph:
    """Replaces uses of each key by uses of its value in `to`, transitively."""

    def end(v: Value) -> Value:
        while v in to:
            v = to[v]
        return v

    nodes = tuple(
        n if not any(v in to for v in n.inputs) else Node(n.op, tuple(map(end, n.inputs)), n.attrs, n.outputs, n.name)
        for n in graph.nodes
    )
    return graph.replace(nodes=nodes, outputs=tuple(map(end, graph.outputs)))


def symbols(graph: Graph) -> tuple[dims.Symbol, ...]:
    """Returns the symbols of dynamic dimensions, in order of inputs and outputs."""
    return tuple(dims.symbols([v.type.shape for v in (*graph.inputs, *graph.outputs)]))


def optimum_sizes(graph: Graph) -> dict[str, int]:
    """Maps each symbol to the size that the program is tuned for."""
    return {s.name: s.optimum for s in symbols(graph)}


def with_sizes(
    graph: Graph, sizes: Mapping[str, int], to: dict[Value, Value] | None = None
) -> tuple[Graph, dict[Value, Value]]:
    """Replaces symbols by sizes; returns the program and a mapping from the graph's values to the new ones.

    to: values already mapped; gains the new ones.
    """
    return with_types_resized(graph, lambda d: dims.at(d, sizes), to)


def with_types_resized(
    graph: Graph, size: Callable[[dims.Size], dims.Size], to: dict[Value, Value] | None = None
) -> tuple[Graph, dict[Value, Value]]:
    """Replaces each symbolic size by `size` of it; returns the program and a mapping of values, like `with_sizes`."""
    to = {} if to is None else to

    def at(v: Value) -> Value:
        if v not in to:
            to[v] = v if v.type.known else Value(TensorType(v.type.dtype, dims.map_dims(v.type.shape, size)), v.name)
        return to[v]

    def attribute(a: Any) -> Any:
        return Body(with_types_resized(a.graph, size)[0]) if isinstance(a, Body) else dims.map_dims(a, size)

    nodes = tuple(
        Node(
            n.op,
            tuple(map(at, n.inputs)),
            {k: attribute(a) for k, a in n.attrs.items()},
            tuple(map(at, n.outputs)),
            n.name,
        )
        for n in graph.nodes
    )
    made = graph.replace(
        inputs=tuple(map(at, graph.inputs)),
        constants={at(v): a for v, a in graph.constants.items()},
        nodes=nodes,
        outputs=tuple(map(at, graph.outputs)),
    )
    return made, to


def sizes_of(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Maps each symbol to its size for inputs of these shapes; raises ValueError if a shape does not fit."""
    sizes: dict[str, int] = {}
    for v in graph.inputs:
        shape = shapes[v.name]
        if len(shape) != v.type.rank:
            raise ValueError(f"input %{v.name} must be {v.type}, got the shape {list(shape)}")
        for d, size in zip(v.type.shape, shape):
            lone = next(iter(dims.symbols(d)), None)
            if lone is None:
                continue
            times = dims.exact(d, dims.symbol(lone.name, lone.minimum, lone.optimum, lone.maximum))
            if isinstance(times, int) and times > 0:
                sizes.setdefault(lone.name, size // times)
    for v in graph.inputs:
        if tuple(dims.at(d, sizes) for d in v.type.shape) != tuple(shapes[v.name]):
            raise ValueError(f"input %{v.name} must be {v.type}, got the shape {list(shapes[v.name])}")
    return sizes


def topological(nodes: Iterable[Node], inputs: Iterable[Value]) -> tuple[Node, ...]:
    """Returns the nodes in a stable executable order; raises ValueError with a node's name if there is a cycle."""
    nodes = list(nodes)
    producer = {v: n for n in nodes for v in n.outputs}
    state: dict[int, int] = {}
    order: list[Node] = []
    for root in nodes:
        stack = [(root, iter(root.inputs))]
        if state.get(id(root)):
            continue
        state[id(root)] = 1
        while stack:
            node, rest = stack[-1]
            for v in rest:
                made_by = producer.get(v)
                if made_by is None:
                    continue
                if state.get(id(made_by)) == 1:
                    raise ValueError(f"the graph has a cycle through node {made_by.name or made_by.op.name!r}")
                if not state.get(id(made_by)):
                    state[id(made_by)] = 1
                    stack.append((made_by, iter(made_by.inputs)))
                    break
            else:
                state[id(node)] = 2
                order.append(node)
                stack.pop()
    return tuple(order)
