"""A graph being rewritten, with its nodes and the producer and users of each value up to date."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pelton.ir.builder import Builder
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, topological
from pelton.ir.op import TermOutput, Term


def join_names(names: Iterable[str]) -> str:
    """Joins the names of several nodes: `conv1+bn1`."""
    return "+".join(dict.fromkeys(part for name in names for part in name.split("+") if part))


class Draft:
    """The editable form of a graph; remaining values keep their identity."""

    def __init__(self, graph: Graph):
        self.source = graph
        self.outputs: list[Value] = list(graph.outputs)
        self.constants = dict(graph.constants)
        self.producer: dict[Value, Node] = {}
        self.users: dict[Value, dict[Node, None]] = {}
        # every node added since the caller last cleared this
        self.added: list[Node] = []
        # position in the source of the replaced node
        self._positions: dict[Node, int] = {}
        self._builder = Builder(
            taken=[v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))]
        )
        self._builder.constants = self.constants
        for position, node in enumerate(remove_dead_nodes(graph).nodes):
            self._add(node, position)
        self.added.clear()

    def __contains__(self, node: Node) -> bool:
        return node in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes by their position in the source; added nodes may come after their readers."""
        return tuple(sorted(self._positions, key=self._positions.__getitem__))

    def position(self, node: Node) -> int:
        """Returns the position in the source of the node that this one replaces."""
        return self._positions[node]

    def uses(self, value: Value) -> int:
        """Counts the readers of a value; a graph output counts as one."""
        return sum(sum(v is value for v in n.inputs) for n in self.users.get(value, ())) + sum(
            v is value for v in self.outputs
        )

    def fresh(self, hint: str) -> str:
        return self._builder.fresh(hint)

    def constant(self, array: Any, hint: str = "c") -> Value:
        return self._builder.constant(array, hint)

    def graph(self) -> Graph:
        """Returns the finished graph, in the source's order where there is a choice."""
        return remove_dead_nodes(
            self.source.replace(
                nodes=topological(self.nodes, self.source.inputs), constants=self.constants, outputs=tuple(self.outputs)
            )
        )

    # --- building

    def build(
        self,
        expression: Any,
        *,
        at: Node | None = None,
        name: str = "",
        outputs: tuple[Value, ...] | None = None,
        memo: dict[int, tuple[Value, ...]] | None = None,
    ) -> tuple[Value, ...]:
        """Builds the values of a Value, Term, array or number; a Term that occurs twice is built once.

        `at`: the node whose position in the graph the new ones take. `outputs`: the outputs of the outermost node.
        """
        try:
            return self._builder.build(expression, node_name=name, outputs=outputs, memo=memo)
        finally:
            for node in self._builder.nodes:
                self._add(node, self._positions.get(at, len(self._positions)) if at else len(self._positions))
            self._builder.nodes.clear()

    # --- editing

    def replace(self, node: Node, new: Any, name: str) -> bool:
        """Replaces a node by a Term, value, array or a tuple of them (one per output), and removes dead nodes.

        Returns False, with nothing changed, if a graph output would become an alias of an input, a constant or another
        output. Raises ValueError if the types differ, and Undecided, with nothing changed, if that depends on dynamic
        dimensions.
        """
        results = new if isinstance(new, tuple) else (new,)
        if any(old in self.outputs and not self._may_be_output(r) for old, r in zip(node.outputs, results)):
            return False
        added_before = len(self.added)
        try:
            values = self._build_replacement(node, results, name)
        except Undecided:
            for new in self.added[added_before:]:
                self._remove(new)
            del self.added[added_before:]
            self.producer.update((v, node) for v in node.outputs)
            raise
        self._remove(node)
        for old, value in zip(node.outputs, values):
            if old is not value:
                self._redirect(old, value)
        self._sweep(node.inputs)
        return True

    def _build_replacement(self, node: Node, results: tuple, name: str) -> tuple[Value, ...]:
        """Returns the values that replace the outputs of a node, of equal types."""
        memo: dict[int, tuple[Value, ...]] = {}
        if len(results) == 1:
            values = self.build(results[0], at=node, name=name, outputs=node.outputs, memo=memo)
        else:
            values = tuple(
                self.build(r, at=node, name=name, outputs=node.outputs[i : i + 1], memo=memo)[0]
                for i, r in enumerate(results)
            )
        before, after = tuple(v.type for v in node.outputs), tuple(v.type for v in values)
        if before != after:
            reason = f"returned {', '.join(map(str, after))} for {', '.join(map(str, before))}"
            raise ValueError(reason) if all(t.known for t in (*before, *after)) else Undecided(reason)
        return values

    def _may_be_output(self, new: Any) -> bool:
        if isinstance(new, Value):
            return new in self.producer and new not in self.outputs
        return isinstance(new, (Term, TermOutput))

    def _redirect(self, old: Value, new: Value) -> None:
        """Makes every reader of `old` read `new`.

        If `old` is a graph output, the producer of `new` produces `old` instead, so that the output keeps its name.
        """
        if old in self.outputs and self._may_be_output(new):
            producer = self.producer[new]
            position = self._positions[producer]
            self._remove(producer)
            outputs = tuple(old if v is new else v for v in producer.outputs)
            self._add(Node(producer.op, producer.inputs, producer.attrs, outputs, producer.name), position)
            old, new = new, old
        for user in tuple(self.users.get(old, ())):
            self._replace_inputs(user, tuple(new if v is old else v for v in user.inputs))
        self.outputs = [new if v is old else v for v in self.outputs]
        self._sweep((old,))

    def _replace_inputs(self, node: Node, inputs: tuple[Value, ...]) -> None:
        """Replaces a node by the same one on other inputs (of the same types)."""
        position = self._positions[node]
        self._remove(node)
        self._add(Node(node.op, inputs, node.attrs, node.outputs, node.name), position)
        self._sweep(node.inputs)

    def _sweep(self, values: Iterable[Value]) -> None:
        """Removes the producers of these values that have no reader, and then their unread operands."""
        pending = list(values)
        while pending:
            node = self.producer.get(pending.pop())
            if node is not None and not any(self.users.get(v) or v in self.outputs for v in node.outputs):
                self._remove(node)
                pending.extend(node.inputs)

    def _add(self, node: Node, position: int) -> None:
        self._positions[node] = position
        self.producer.update((v, node) for v in node.outputs)
        for v in node.inputs:
            self.users.setdefault(v, {})[node] = None
        self.added.append(node)

    def _remove(self, node: Node) -> None:
        del self._positions[node]
        for v in node.outputs:
            if self.producer.get(v) is node:
                del self.producer[v]
        for v in node.inputs:
            self.users[v].pop(node, None)
