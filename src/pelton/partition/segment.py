"""Imports as many nodes as possible into one straight-line program, if necessary under assumptions on sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from pelton.engine.script import Feed
from pelton.errors import ModelError
from pelton.ir import dims, sizes
from pelton.ir.dims import Dim, Size, Undecided
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.graph import Graph, Value, with_types_resized
from pelton.ir.imported import ImportedNode
from pelton.ir.size_constraints import Range, SizeConstraint, UndecidedNode, identifier, constrain
from pelton.ir.bindings import BROKEN, Broken, ValueSequence, Binding
from pelton.ir.types import DType, TensorType
from pelton.ir.unread import Known, Reader, Unread, UnreadNode

MAX_SIZE_ELEMENTS = 64  # of an array whose elements become sizes
DEFAULT_OPTIMUM = 100  # of sizes that depend on data
MAX_OPTIMUM_ELEMENTS = 1_000_000  # of an array whose sizes all depend on data, at its optimum
MAX_TRIES = 4  # rounds of assumptions for one node


class Unsettled(Exception):
    """A node needs constraints on sizes of the model's inputs, which concern all segments."""

    def __init__(self, settled: Mapping[str, SizeConstraint]):
        super().__init__()
        self.settled = settled


class Symbols:
    """Creates symbols, unique in a script, for data-dependent sizes."""

    def __init__(self, taken: Iterable[str]):
        self._taken = set(taken)

    def fresh(
        self, hint: str, minimum: int = 0, optimum: int = DEFAULT_OPTIMUM, maximum: int = dims.UNBOUNDED, rank: int = 1
    ) -> Size:
        """Creates a symbol. rank: of the array; the higher, the smaller the optimum: all axes may be dynamic."""
        optimum = min(optimum, round(MAX_OPTIMUM_ELEMENTS ** (1 / rank)))
        name = identifier(hint, self._taken)
        self._taken.add(name)
        return dims.symbol(name, minimum, max(minimum, min(optimum, maximum)), maximum)


class Segment:
    """The nodes of one program.

    `taken` are in the program; `unreadable` cannot be, although all their inputs are known; `waiting` depend on those.
    """

    def __init__(
        self,
        model: Unread,
        known: Known,
        nodes: Sequence[UnreadNode],
        symbols: Symbols,
        unspecified: Mapping[str, str],
        observed: Collection[str],
        unanswered: Collection[str],
    ):
        self.model, self.known, self.nodes, self.symbols, self.unspecified = model, known, nodes, symbols, unspecified
        # unspecified sizes with a given optimum; nodes whose questions about sizes stay undecided
        self._observed, self._unanswered = observed, unanswered
        self.settled: dict[str, SizeConstraint] = {}  # assumptions on sizes of this segment
        self.assumed = False
        self._tries: dict[int, int] = {}
        # position of a node → the arrays that it uses as sizes, and the sizes that it makes assumptions about
        self._assumed_for: dict[int, tuple[set[str], set[str]]] = {}
        self._given_up: set[int] = set()  # positions of nodes that remain unreadable under any assumption
        self.reasons: dict[int, str] = {}  # id of a node → the reason why it could not be imported
        while not self._try_to_read():
            pass

    # --- reading

    def _try_to_read(self) -> bool:
        """Imports all nodes that it can; returns False if more assumptions require another try."""
        self.reader = reader = self.model.reader(
            frozenset().union(*(node.reads for node in self.nodes), *(node.outputs for node in self.nodes))
        )
        self._bind(reader)
        reader.known_sizes, reader.unanswered = self._observed_sizes(), self._unanswered
        self.taken: list[UnreadNode] = []
        self.unreadable: list[UnreadNode] = []
        self.waiting: list[UnreadNode] = []
        self.imported_nodes: list[ImportedNode] = []
        broken = {name for name, t in self.known.types.items() if t is None and name not in self.known.sequences}
        for i, node in enumerate(self.nodes):
            bindings: Sequence[Binding | Broken] = (BROKEN,)
            if broken.isdisjoint(node.reads) and i not in self._given_up:
                problems, asked, undecided = len(reader.problems), len(reader.unknown), len(reader.undecided)
                bindings = reader.read(node)
                if any(t is BROKEN for t in bindings):
                    new_problems = reader.problems[problems:]
                    if not (
                        all(text in reader.on_data for text in new_problems)
                        or self.settled
                        or self._reads_data_sizes(node)  # other values than the rejected ones may arrive
                    ):
                        raise ModelError(new_problems[0])
                    if self._tries.get(i, 0) < MAX_TRIES and self._assume_more(
                        i, reader.unknown[asked:], reader.undecided[undecided:]
                    ):
                        self._tries[i] = self._tries.get(i, 0) + 1
                        return False
                    self.reasons[id(node)] = new_problems[0] if new_problems else ""
                    if self._take_back(i):
                        return False
                    del reader.problems[problems:]
                elif any(isinstance(t, ValueSequence) and None in t.values for t in bindings):
                    bindings = (BROKEN,)  # elements whose sizes depend on data
            if any(t is BROKEN for t in bindings):
                broken.update(node.outputs)
                (self.unreadable if all(name in self.known for name in node.reads) else self.waiting).append(node)
                continue
            self.taken.append(node)
            self.imported_nodes += reader.imported_nodes
            for name, binding in zip(node.outputs, bindings):
                if name:
                    reader.bind(name, binding)
        return True

    def _bind(self, reader: Reader) -> None:
        """Binds the operands of the nodes: constants, arrays of sizes, and inputs with symbols of this segment."""
        read = [name for node in self.nodes for name in sorted(node.reads) if name in self.known]
        parts = [part for name in read for part in self.known.sequences.get(name, ())]
        names = [name for name in dict.fromkeys([*read, *parts]) if name not in self.known.sequences]
        self.inputs: dict[Value, str] = {}
        self.origin: dict[str, Feed] = {}  # symbol → the source of its value at run time
        # symbol of the model, or text of another size outside → size inside the segment
        self._inside: dict[str, Size] = {}
        self._outside: dict[str, Size] = {}  # symbol inside → size outside
        places = [
            (d, Feed(name, "axis", i))
            for name in names
            if (t := self.known.types.get(name))
            for i, d in enumerate(t.shape)
        ]
        places += [
            (d, Feed(name, "value", i))
            for name in names
            if name in self.known.sizes
            for i, d in enumerate(self.known.sizes[name].flat)
        ]
        lone = [
            (s, d, feed)
            for d, feed in places
            if isinstance(d, Dim)
            and len(symbols := dims.symbols(d)) == 1
            and (s := next(iter(symbols)))
            and d == dims.symbol(s.name, s.minimum, s.optimum, s.maximum)
        ]
        for s, size, feed in sorted(
            lone, key=lambda x: isinstance(self.settled[x[0].name].size, str) if x[0].name in self.settled else False
        ):
            if s.name not in self._inside:
                self._define(s.name, s.name, Range(s.minimum, s.optimum, s.maximum), size, feed)
        for d, feed in places:
            if isinstance(d, Dim) and str(d) not in self._inside and self._evaluate(d) is None:
                low, high = dims.bounds(d)
                name = next((n for n, outside in self._outside.items() if outside == d), None) or self._name(
                    f"{feed.name}_{feed.at}"
                )
                low, high = max(low, 0), min(high, dims.UNBOUNDED)
                if low > high:
                    raise ModelError(
                        f"{feed.name} has an axis of {d}, at least {low} elements; at most {high} are supported"
                        f" ({self.model.name})"
                    )
                self._define(str(d), name, Range(low, min(max(low, dims.optimum(d)), high), high), d, feed)
        for name in names:
            if name in self.known.constants:
                value = reader.builder.constant(self.known.constants[name], name)
            elif (t := self.known.types[name]) is None:
                continue
            elif name in self.known.sizes:
                objects = np.array([self._size_inside(d) for d in self.known.sizes[name].flat], object).reshape(
                    self.known.sizes[name].shape
                )
                value = reader.builder.from_sizes(objects, t.dtype, name)
            else:
                value = Value(TensorType(t.dtype, tuple(map(self._size_inside, t.shape))), name)
                self.inputs[value] = name
            reader.bind(name, value)
        for name in read:
            if name in self.known.sequences:
                items = (reader.bound[part] for part in self.known.sequences[name])
                reader.bind(name, ValueSequence(tuple(v for v in items if isinstance(v, Value))))

    def _name(self, hint: str) -> str:
        return identifier(f"{hint}_in", {*self._outside, *self._inside})

    def _define(self, key: str, name: str, bounds: Range, outside: Size, feed: Feed) -> None:
        size = self.settled[name].size if name in self.settled else bounds
        self._outside[name], self.origin[name] = outside, feed
        inside: Size | None
        if isinstance(size, str):
            inside = self._evaluate(size)
        elif isinstance(size, Range):
            inside = dims.symbol(name, *size)
        else:
            inside = size
        self._inside[key] = self._inside[name] = dims.symbol(name, *bounds) if inside is None else inside

    def _evaluate(self, d: Size | str) -> Size | None:
        """Translates a size, or the text of one, to symbols of this segment; None if it has others."""
        try:
            return parse_size(str(d), self._inside)
        except ValueError:
            return None

    def _size_inside(self, d: Size) -> Size:
        """Translates a size of the model to symbols of this segment."""
        size = d if not isinstance(d, Dim) else self._inside.get(str(d), self._evaluate(d))
        assert size is not None  # _bind has defined every one
        return size

    def size_outside(self, d: Size) -> Size | None:
        """Translates a size of this segment to symbols of the model; None if it depends on assumptions."""
        if not isinstance(d, Dim):
            assumed_number = any(
                isinstance(s.size, int) or isinstance(s.size, Range) and s.size.minimum == s.size.maximum
                for s in self.settled.values()
            )
            return None if assumed_number else d  # it may come from a size assumed to be a number
        if self.settled:
            return None
        try:
            return parse_size(str(d), self._outside)
        except ValueError:  # it depends on assumptions
            return None

    def _assume_more(self, node: int, asked: Sequence[Value], undecided: Sequence) -> bool:
        """Uses more arrays as sizes, or assumes more about sizes, to resolve the node at a position; returns True if
        any."""
        arrays, assumed = self._assumed_for.setdefault(node, (set(), set()))
        for value in asked:
            names = self._deciding_inputs(value)
            if names:
                for name in names:
                    t = self.known.types[name]
                    assert t is not None
                    # optimum 1: the element is as often an index as a size
                    fresh = [
                        self.symbols.fresh(f"{name}_{i}" if t.shape else name, optimum=1) for i in range(int(t.size))
                    ]
                    self.known.sizes[name] = np.array(fresh, object).reshape(t.shape)
                    arrays.add(name)
                return True
        asks = [
            self._question_outside(s) for s in undecided if s.question is not None and s.where not in self._unanswered
        ]
        local = dict.fromkeys(name for name in self._outside if name not in self.unspecified)
        everywhere = bool(asks) and all(
            x.name in self.unspecified for s in asks if s.question for x in dims.symbols(s.question.difference)
        )
        answers: dict[str, SizeConstraint] = {}
        if asks:
            answers = constrain(asks, dict.fromkeys(self.unspecified) if everywhere else local, self._observed)
        if asks and not everywhere and all(s.given_up for s in answers.values()):
            answers = constrain(asks, dict.fromkeys(self._outside), self._observed)
        answers = {
            k: s for k, s in answers.items() if not s.given_up and (everywhere or s.step == 1) and k not in self.settled
        }
        if everywhere and answers:
            raise Unsettled(answers)
        self.settled.update(answers)
        assumed.update(answers)
        return bool(answers)

    def _take_back(self, node: int) -> bool:
        """Drops the vain assumptions for the node at a position; returns True if there were any."""
        arrays, assumed = self._assumed_for.pop(node, (set(), set()))
        for name in arrays:
            del self.known.sizes[name]
        for name in assumed:
            del self.settled[name]
        self._given_up.add(node)
        return bool(arrays or assumed)

    def _question_outside(self, undecided: UndecidedNode) -> UndecidedNode:
        """Translates a question to sizes of the model with a given optimum: its answer then holds everywhere."""
        q = undecided.question
        try:
            difference = 0 if q is None else parse_size(str(q.difference), self._outside)
        except ValueError:
            return undecided
        names = {x.name for x in dims.symbols(difference)}
        return (
            replace(undecided, question=Undecided(str(q), difference, q.relation))
            if q and names and names <= set(self._observed)
            else undecided
        )

    def _observed_sizes(self) -> set[str]:
        """Returns the symbols inside that depend only on sizes with a given optimum."""
        return {name for name, d in self._outside.items() if {x.name for x in dims.symbols(d)} <= set(self._observed)}

    def _deciding_inputs(self, value: Value) -> list[str]:
        """Returns the small integer inputs that alone determine a value, by foldable arithmetic; empty if none."""
        names = dict[str, None]()
        for v, maker in self.reader.builder.ancestors(value, self.inputs):
            if v in self.inputs:
                outside = self.known.types[self.inputs[v]]  # without assumptions
                if (
                    not v.type.dtype.is_integer
                    or outside is None
                    or not outside.known
                    or v.type.size > MAX_SIZE_ELEMENTS
                ):
                    return []
                names[self.inputs[v]] = None
            elif maker is None or not sizes.can_fold(maker.op):
                return []
        return list(names)

    def _reads_data_sizes(self, node: UnreadNode) -> bool:
        """Returns True if a node reads numbers computed from elements of arrays used as sizes."""
        values = {name for name, feed in self.origin.items() if feed.source == "value"}
        made = (self.reader.bound[name] for name in node.reads if name in self.reader.bound)
        numbers = [self.reader.builder.sizes.get(v, np.empty(0)) for v in made if isinstance(v, Value)]
        return any(s.name in values for s in dims.symbols([tuple(a.flat) for a in numbers]))

    # --- the result

    @cached_property
    def made_of_data_sizes(self) -> set[str]:
        """Names that depend on elements of arrays used as sizes, which are assumed not to be negative."""
        names = {feed.name for feed in self.origin.values() if feed.source == "value"}
        for node in self.taken:
            if not names.isdisjoint(node.reads):
                names.update(node.outputs)
        return names

    def results(self, wanted: Collection[str]) -> dict[str, Binding | Broken]:
        """Returns the bindings of those wanted names that the nodes produce, in order."""
        made = [name for node in self.taken for name in node.outputs if name and name in wanted]
        for name in made:
            if name not in self.reader.bound:
                raise ModelError(f"the operator that must produce {name!r} has no such output ({self.model.name})")
        return {name: self.reader.bound[name] for name in made}

    def pruned(self, graph: Graph) -> tuple[Graph, tuple[Feed, ...]]:
        """Reduces the graph to the inputs that it needs; returns it with the feed of each input.

        Sizes without an input become inputs without elements; so do sizes under assumptions, and the engine rejects
        others. The graph is for sizes from 1 on; `assumed` is True if a run may have others.
        """
        read = {v for n in graph.nodes for v in n.inputs}.union(graph.outputs)
        inputs = [v for v in graph.inputs if v in read]
        feeds = [Feed(self.inputs[v]) for v in inputs]
        needed = dims.symbols(
            [
                *(v.type.shape for v in inputs),
                *(x for n in graph.nodes for v in n.outputs for x in v.type.shape),
                *(tuple(n.attrs.values()) for n in graph.nodes),
            ]
        )
        whole = {
            s.name
            for v in inputs
            for d in v.type.shape
            for s in dims.symbols(d)
            if d == dims.symbol(s.name, s.minimum, s.optimum, s.maximum)
        }
        taken = {v.name for n in graph.nodes for v in n.outputs}.union(v.name for v in inputs)
        for s in needed:
            if s.name not in whole:
                name = f"{s.name}.size"
                while name in taken:
                    name += "_"
                taken.add(name)
                inputs.append(
                    Value(TensorType(DType.U8, (dims.symbol(s.name, s.minimum, s.optimum, s.maximum), 0)), name)
                )
                feeds.append(self.origin[s.name])
        assumed = self.settled.keys() & self.origin.keys()
        if not self.made_of_data_sizes.isdisjoint(v.name for v in graph.outputs):
            assumed |= {name for name, feed in self.origin.items() if feed.source == "value"}
        for name in sorted(assumed - {s.name for s in dims.symbols([v.type.shape for v in inputs])}):
            inputs.append(Value(TensorType(DType.U8, (self._inside[name], 0)), f"{name}.assumed"))
            feeds.append(self.origin[name])
        used = dims.symbols([v.type.shape for v in inputs])
        self.assumed = bool(self.settled) or not all(s.minimum for s in used)
        made = {s.name: dims.symbol(s.name, max(s.minimum, 1), max(s.optimum, 1), max(s.maximum, 1)) for s in used}
        return with_types_resized(graph.replace(inputs=tuple(inputs)), lambda d: parse_size(str(d), made))[0], tuple(
            feeds
        )
