"""Builds graphs node by node: infers types, makes names unique, folds constants and size arithmetic."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from . import dims, sizes
from .dims import Undecided
from .expansion import expand_op
from .folding import compute, exempt_from_folding, folds_everything, is_worth_folding
from .graph import Graph, Node, Value, remove_dead_nodes, unique
from .op import Op, TermOutput, Term, get
from .types import BOOL, I64, DType, TensorType

SMALL = 1 << 20  # elements: limit of folded constants that are larger than their operands
FEW = 1 << 12  # elements: limit of folded size arithmetic
ALIKE = 64  # elements: limit of shared equal constants
_RAISED = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, MemoryError)


class Builder:
    """Builds a graph node by node.

    folds: fold constants and size arithmetic, and leave names unchanged until `finish` makes them unique, for
    importers; otherwise every node is written, and names are final. taken: names already in use.
    """

    def __init__(self, name: str = "main", *, folds: bool = False, taken: Iterable[str] = ()):
        self.name, self.folds = name, folds
        self.inputs: list[Value] = []
        self.constants: dict[Value, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.makers: dict[Value, Node] = {}  # value → its producer
        # value → its name in the finished graph, if not its own
        self.names: dict[Value, str] = {}
        # value → array of objects, for integers and floats that are sizes or computed from sizes
        self.sizes: dict[Value, np.ndarray] = {}
        # value → the question that prevented folding it into sizes
        self.questions: dict[Value, Undecided] = {}
        self._names = set(taken)
        self._alike: dict[tuple, Value] = {}
        # constants that may stay in few bits → the nodes folded into them
        self.stored: dict[Value, Node] = {}

    # --- names, inputs, constants

    def fresh(self, hint: str) -> str:
        """Returns an unused name, as close to the hint as possible."""
        if self.folds:
            return hint
        name = unique(hint or "t", self._names)
        self._names.add(name)
        return name

    def input(self, type: TensorType, name: str) -> Value:
        value = Value(type, self.fresh(name))
        self.inputs.append(value)
        return value

    def constant(self, array: Any, name: str = "c") -> Value:
        """Adds a constant."""
        array = np.asarray(array)
        array = array.astype(object) if array.dtype.kind in "UST" else array
        value = Value(TensorType.of(array), self.fresh(name))
        self.constants[value] = array
        return value

    def shared_constant(self, array: np.ndarray, name: str = "constant") -> Value:
        """Adds a constant, shared with equal ones if it is small."""
        if array.size > ALIKE or array.dtype.kind in "OUST":
            return self.constant(array, name)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._alike:
            self._alike[key] = self.constant(array, name)
        return self._alike[key]

    # --- nodes

    def emit(
        self,
        op: Op,
        inputs: Iterable[Value],
        attrs: Mapping[str, Any] | None = None,
        *,
        names: Iterable[str] = (),
        node_name: str = "",
        random: bool = False,
    ) -> tuple[Value, ...]:
        """Writes a node; returns its outputs.

        With `folds`, a node of constants becomes constants, unless it is `random`, and one of sizes becomes sizes.
        Raises errors of the op's `infer`, and ValueError if a node of constants cannot be computed.
        """
        inputs, attrs = tuple(inputs), op.complete(attrs or {})
        types = op.infer_types(tuple(v.type for v in inputs), attrs)
        hints = [hint or op.name for hint, _ in zip(chain(names, repeat("")), types)]
        if not self.folds:
            return self.write(
                Node(op, inputs, attrs, tuple(Value(t, self.fresh(h)) for t, h in zip(types, hints)), node_name)
            )
        node = Node(op, inputs, attrs, tuple(Value(t, h) for t, h in zip(types, hints)), node_name)
        depends = bool(dims.symbols((*attrs.values(), *(t.shape for t in types))))
        if not depends and not random and self._folds(node):
            try:
                outputs = compute(node, tuple(self.constants[v] for v in inputs))
            except _RAISED as e:
                raise ValueError(f"{op.name} of constants failed: {e}") from None
            held = tuple(self.constant(a, v.name) for a, v in zip(outputs, node.outputs))
            if op.dequantizes or op.moves and not self.stored.keys().isdisjoint(inputs):
                self.stored.update((v, Node(op, inputs, attrs, held, node_name)) for v in held)
            return held
        folded, question = None, None
        try:
            folded = None if depends else self._fold_sizes(node)
        except Undecided as e:
            question = e
        if folded is not None and (types[0].dtype.is_integer or sizes.is_known(folded)):
            return (self.from_sizes(folded, types[0].dtype, hints[0].removesuffix(f".{op.name}")),)
        self.write(node)
        if question is not None:
            self.questions[node.outputs[0]] = question
        if folded is not None:
            self.sizes[node.outputs[0]] = folded  # floats of sizes are sizes again when they are rounded
        return node.outputs

    def write(self, node: Node) -> tuple[Value, ...]:
        """Appends a node unchanged."""
        self.nodes.append(node)
        self.makers.update((v, node) for v in node.outputs)
        return node.outputs

    def _folds(self, node: Node) -> bool:
        """True if a node is folded: its inputs are constants, and its outputs not much larger than these."""
        inputs, made = [v.type for v in node.inputs], [v.type for v in node.outputs]
        limit = max((SMALL, *(t.size for t in inputs if t.known)))
        if not all(v in self.constants for v in node.inputs):
            return False
        if folds_everything():
            return True
        if not is_worth_folding(node.op, inputs, made, node.attrs):
            return False
        if node.op.stepwise:  # folded if each of its steps is
            made = [v.type for step in expand_op(node.op, node.inputs, node.attrs).nodes for v in step.outputs]
        return all(t.size <= limit for t in made)

    def build(
        self,
        thing: Any,
        *,
        node_name: str = "",
        outputs: tuple[Value, ...] | None = None,
        memo: dict[int, tuple[Value, ...]] | None = None,
    ) -> tuple[Value, ...]:
        """Writes an expression of Values, Terms, arrays and numbers, as returned by expansions and rules.

        A Term that occurs twice is built once. outputs: the values to define by the outermost node, if of its types.
        """
        memo = {} if memo is None else memo
        if isinstance(thing, Value):
            return (thing,)
        if isinstance(thing, TermOutput):
            return (self.build(thing.term, node_name=node_name, memo=memo)[thing.index],)
        if not isinstance(thing, Term):
            return (self.constant(thing),)
        if id(thing) not in memo:
            inputs = self._operands(thing, node_name, memo)
            attrs = thing.op.complete(thing.attrs)
            types = thing.op.infer_types(tuple(v.type for v in inputs), attrs)
            if outputs is None or tuple(v.type for v in outputs) != types:
                outputs = tuple(Value(t, self.fresh(thing.op.name)) for t in types)
            memo[id(thing)] = self.write(Node(thing.op, inputs, attrs, outputs, node_name))
        return memo[id(thing)]

    def _operands(self, term: Term, node_name: str, memo: dict[int, tuple[Value, ...]]) -> tuple[Value, ...]:
        """Returns the operands of a term; numbers and float64 arrays are rounded once, to their neighbors' type."""
        known = [None if _is_untyped(a) else self.build(a, node_name=node_name, memo=memo)[0] for a in term.args]
        dtype = next((v.type.dtype for v in known if v is not None and v.type.dtype is not BOOL), None)
        operands = []
        for value, arg in zip(known, term.args):
            if value is None:
                array = np.asarray(arg)
                if dtype is not None and (dtype.is_float or array.dtype.kind != "f"):
                    with np.errstate(over="ignore"):
                        array = array.astype(dtype.numpy)
                value = self.constant(array)
            operands.append(value)
        return tuple(operands)

    # --- sizes

    def elements(self, value: Value) -> np.ndarray | None:
        """Returns the array of a constant, or of sizes as objects; None for other values."""
        return self.constants.get(value, self.sizes.get(value))

    def ancestors(self, value: Value, last: Container[Value]) -> Iterator[tuple[Value, Node | None]]:
        """Yields a value and all its sources, up to `last`, each with its node (None if it has none here).

        Constants and sizes are left out.
        """
        seen, waiting = {value}, [value]
        while waiting:
            v = waiting.pop()
            if v in last:
                yield v, None
            elif self.elements(v) is None:
                yield v, self.makers.get(v)
                new = [i for i in self.makers[v].inputs if i not in seen] if v in self.makers else []
                seen.update(new)
                waiting += new

    def from_sizes(self, found: np.ndarray, dtype: DType, name: str = "") -> Value:
        """Converts sizes to integers: a constant if all of them are numbers."""
        if sizes.is_known(found):
            return self.shared_constant(found.astype(dtype.numpy))
        value = Value(TensorType(dtype, found.shape), self.fresh(f"{name}.sizes"))
        self.sizes[value] = found
        return value

    def _fold_sizes(self, node: Node) -> np.ndarray | None:
        """Returns the result of an op on sizes, None for other ops; raises Undecided if it depends on symbols."""
        held = [a for v in node.inputs if (a := self.elements(v)) is not None and a.size <= FEW]
        if len(held) < len(node.inputs) or not any(v in self.sizes for v in node.inputs):
            return None
        return sizes.fold(node.op, held, node.attrs, node.outputs[0].type.dtype)

    def size_nodes(self) -> list[Node]:
        """Returns the nodes that compute the sizes that the program reads as data."""
        made, written = [], {v for n in self.nodes for v in n.outputs}
        for v, array in self.sizes.items():
            if v not in written and v.type.dtype.is_integer:
                whole = v if v.type.dtype is I64 else Value(v.type.with_dtype(I64), v.name)
                name = self.names.get(v, "")
                made.append(Node(get("sizes"), (), {"values": tuple(array.flat), "shape": array.shape}, (whole,), name))
                if whole is not v:
                    attrs = get("cast").complete({"to": v.type.dtype})
                    made.append(Node(get("cast"), (whole,), attrs, (v,), name))
        return made

    # --- the graph

    def graph(self, outputs: Iterable[Value]) -> Graph:
        """Returns the graph of all written nodes."""
        return Graph(tuple(self.inputs), dict(self.constants), tuple(self.nodes), tuple(outputs), self.name)

    def _unfolded_nodes(self) -> list[Node]:
        """Returns the nodes that unpack constants of few bits for heavy ops: folded, these would be large."""
        stay = exempt_from_folding((*self.stored.values(), *self.nodes))
        return [n for n in self.stored.values() if n in stay]

    def finish(self, inputs: Sequence[Value], results: Mapping[str, Value]) -> Graph:
        """Returns the graph that the results need; results and inputs keep their names, others get unique ones.

        results: output name → value.
        """
        to: dict[Value, Value] = {v: v for v in inputs}
        constants, copies, outputs = dict(self.constants), [], []
        for name, value in results.items():
            renamed = Value(value.type, name)
            if value in constants:
                constants[renamed] = constants[value]
                to[renamed] = renamed
            elif value not in to:
                to[value] = renamed
            elif to[value].name != name:
                # copy an input that is also an output, or a value with two names
                copies.append(Node(get("copy"), (value,), {}, (renamed,), name))
                to[renamed] = renamed
            outputs.append(renamed if renamed in to else value)
        stored = self._unfolded_nodes()
        for node in stored:
            del constants[node.output]
        graph = remove_dead_nodes(
            Graph(tuple(inputs), constants, (*stored, *self.size_nodes(), *self.nodes, *copies), tuple(outputs))
        )
        taken = {v.name: 1 for v in to.values()}

        def rename(value: Value) -> Value:
            if value not in to:
                hint = name = self.names.get(value, value.name)
                while name in taken:
                    taken[hint] = taken.get(hint, 1) + 1
                    name = f"{hint}_{taken[hint]}"
                taken[name] = 1
                to[value] = Value(value.type, name)
            return to[value]

        kept = {rename(v): a for v, a in graph.constants.items()}
        nodes = tuple(
            Node(n.op, tuple(map(rename, n.inputs)), n.attrs, tuple(map(rename, n.outputs)), n.name)
            for n in graph.nodes
        )
        return Graph(graph.inputs, kept, nodes, tuple(map(rename, graph.outputs)), self.name)


def _is_untyped(thing: Any) -> bool:
    """True for a number or a float64 array of a rule, which takes the element type of its neighbors."""
    if isinstance(thing, (Value, Term, TermOutput)):
        return False
    return not isinstance(thing, np.ndarray) or thing.dtype == np.float64
