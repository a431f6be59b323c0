"""A graph while it is being rewritten: nodes come and go, and who makes and who reads each value stays known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pelton.ir.builder import Builder
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, topological
from pelton.ops.op import Term


def join_names(names: Iterable[str]) -> str:
    """The one name of what came from several nodes: `conv1+bn1`."""
    return "+".join(dict.fromkeys(part for name in names for part in name.split("+") if part))


class Draft:
    """The editable form of a graph. Values are shared with the graph it came from, so a value that survives keeps its
    identity."""

    def __init__(self, graph: Graph):
        self.source = graph
        self.outputs: list[Value] = list(graph.outputs)
        self.constants = dict(graph.constants)
        self.producer: dict[Value, Node] = {}
        self.users: dict[Value, dict[Node, None]] = {}
        # every node that came in, for whoever walks the draft
        self.added: list[Node] = []
        # position in the source of what the node stands for
        self._place: dict[Node, int] = {}
        self._builder = Builder(
            taken=[v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))]
        )
        self._builder.constants = self.constants
        for place, node in enumerate(remove_dead_nodes(graph).nodes):
            self._add(node, place)
        self.added.clear()

    def __contains__(self, node: Node) -> bool:
        return node in self._place

    def __len__(self) -> int:
        return len(self._place)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes by their place in the source; what was added may stand behind its readers."""
        return tuple(sorted(self._place, key=self._place.__getitem__))

    def place(self, node: Node) -> int:
        """The position in the source of what a node stands for."""
        return self._place[node]

    def uses(self, value: Value) -> int:
        """How many readers a value has, a graph output counting as one."""
        return sum(sum(v is value for v in n.inputs) for n in self.users.get(value, ())) + sum(
            v is value for v in self.outputs
        )

    def fresh(self, hint: str) -> str:
        return self._builder.fresh(hint)

    def constant(self, array: Any, hint: str = "c") -> Value:
        return self._builder.constant(array, hint)

    def graph(self) -> Graph:
        """The finished graph, in an order that follows the source's where there is a choice."""
        return remove_dead_nodes(
            self.source.replace(
                nodes=topological(self.nodes, self.source.inputs), constants=self.constants, outputs=tuple(self.outputs)
            )
        )

    # --- building

    def build(
        self,
        thing: Any,
        *,
        at: Node | None = None,
        name: str = "",
        outputs: tuple[Value, ...] | None = None,
        memo: dict[int, tuple[Value, ...]] | None = None,
    ) -> tuple[Value, ...]:
        """The values of a Value, Term, array or number; a Term that occurs twice is built once.

        `at` is the node whose position in the graph the new ones take; with `outputs` given, the outermost node makes
        those values.
        """
        try:
            return self._builder.build(thing, node_name=name, outputs=outputs, memo=memo)
        finally:
            for node in self._builder.nodes:
                self._add(node, self._place.get(at, len(self._place)) if at else len(self._place))
            self._builder.nodes.clear()

    # --- editing

    def replace(self, node: Node, new: Any, name: str) -> bool:
        """Puts a Term, value, array or a tuple of them (one per output) where a node was; what nobody reads any more
        goes.

        False, with nothing changed, where a graph output would become an alias of an input, a constant or another
        output. Raises ValueError where the types do not agree, Undecided, with nothing changed, where sizes of a run
        say whether they do.
        """
        results = new if isinstance(new, tuple) else (new,)
        if any(old in self.outputs and not self._may_be_output(r) for old, r in zip(node.outputs, results)):
            return False
        held = len(self.added)
        try:
            values = self._built(node, results, name)
        except Undecided:
            for new in self.added[held:]:
                self._forget(new)
            del self.added[held:]
            self.producer.update((v, node) for v in node.outputs)
            raise
        self._forget(node)
        for old, value in zip(node.outputs, values):
            if old is not value:
                self._redirect(old, value)
        self._sweep(node.inputs)
        return True

    def _built(self, node: Node, results: tuple, name: str) -> tuple[Value, ...]:
        """What replaces the outputs of a node, of equal types."""
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
            reason = f"gave {', '.join(map(str, after))} for {', '.join(map(str, before))}"
            raise ValueError(reason) if all(t.known for t in (*before, *after)) else Undecided(reason)
        return values

    def _may_be_output(self, thing: Any) -> bool:
        return isinstance(thing, Term) or (
            isinstance(thing, Value) and thing in self.producer and thing not in self.outputs
        )

    def _redirect(self, old: Value, new: Value) -> None:
        """Every reader of `old` reads `new`; where `old` is a graph output, the maker of `new` makes `old` instead, so
        that it keeps its name."""
        if old in self.outputs and self._may_be_output(new):
            maker = self.producer[new]
            place = self._place[maker]
            self._forget(maker)
            self._add(
                Node(
                    maker.op,
                    maker.inputs,
                    maker.attrs,
                    tuple(old if v is new else v for v in maker.outputs),
                    maker.name,
                ),
                place,
            )
            old, new = new, old
        for user in tuple(self.users.get(old, ())):
            self._exchange(user, tuple(new if v is old else v for v in user.inputs))
        self.outputs = [new if v is old else v for v in self.outputs]
        self._sweep((old,))

    def _exchange(self, node: Node, inputs: tuple[Value, ...]) -> None:
        """The same node on other inputs (of the same types)."""
        place = self._place[node]
        self._forget(node)
        self._add(Node(node.op, inputs, node.attrs, node.outputs, node.name), place)
        self._sweep(node.inputs)

    def _sweep(self, values: Iterable[Value]) -> None:
        pending = list(values)
        while pending:
            maker = self.producer.get(pending.pop())
            if maker is not None and not any(self.users.get(v) or v in self.outputs for v in maker.outputs):
                self._forget(maker)
                pending.extend(maker.inputs)

    def _add(self, node: Node, place: int) -> None:
        self._place[node] = place
        self.producer.update((v, node) for v in node.outputs)
        for v in node.inputs:
            self.users.setdefault(v, {})[node] = None
        self.added.append(node)

    def _forget(self, node: Node) -> None:
        del self._place[node]
        for v in node.outputs:
            if self.producer.get(v) is node:
                del self.producer[v]
        for v in node.inputs:
            self.users[v].pop(node, None)
