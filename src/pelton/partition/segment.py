"""Reads as many nodes as go into one straight program, from names that are arrays by then: which can be, and what has
to be assumed of sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from pelton.engine.program import Feed
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

MAX_SIZE_ELEMENTS = 64  # elements of an array that may be taken as sizes
DEFAULT_OPTIMUM = 100  # what programs are tuned for where the data decides a size
MAX_OPTIMUM_ELEMENTS = 1_000_000  # that an array usually has at most where it decides all of them
MAX_TRIES = 4  # assumptions made for the sake of one node


class Unsettled(Exception):
    """What a node wants to know of sizes of the whole model, which have to be settled for all of it."""

    def __init__(self, settled: Mapping[str, SizeConstraint]):
        super().__init__()
        self.settled = settled


class Symbols:
    """Names for the sizes that only the data decides, each once in a script."""

    def __init__(self, taken: Iterable[str]):
        self._taken = set(taken)

    def fresh(
        self, hint: str, minimum: int = 0, optimum: int = DEFAULT_OPTIMUM, maximum: int = dims.UNBOUNDED, rank: int = 1
    ) -> Size:
        """rank: how many axes the array has, of which all may be as open: the more, the shorter they usually are."""
        optimum = min(optimum, round(MAX_OPTIMUM_ELEMENTS ** (1 / rank)))
        name = identifier(hint, self._taken)
        self._taken.add(name)
        return dims.symbol(name, minimum, max(minimum, min(optimum, maximum)), maximum)


class Segment:
    """The nodes of one program. `taken` can be read; `hard` cannot, though all that they read is there; others have to
    wait for these."""

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
        # open sizes for which it is known what a run has; nodes that do not get to know more of them
        self._observed, self._unanswered = observed, unanswered
        self.settled: dict[str, SizeConstraint] = {}  # what is assumed of sizes of this segment
        self.assumed = False
        self._tries: dict[int, int] = {}
        self.reasons: dict[int, str] = {}  # id of a node → why it could not be read
        while not self._try_to_read():
            pass

    # --- reading

    def _try_to_read(self) -> bool:
        """Reads what can be; False where it has to be done again, with more assumed or more taken as sizes."""
        self.reader = reader = self.model.reader(
            frozenset().union(*(node.reads for node in self.nodes), *(node.outputs for node in self.nodes))
        )
        self._bind(reader)
        reader.known_sizes, reader.unanswered = self._observed_sizes(), self._unanswered
        self.taken: list[UnreadNode] = []
        self.unreadable: list[UnreadNode] = []
        self.waiting: list[UnreadNode] = []
        self.imported_nodes: list[ImportedNode] = []
        broken = {name for name, t in self.known.types.items() if t is None}
        for i, node in enumerate(self.nodes):
            bindings: Sequence[Binding | Broken] = (BROKEN,)
            made = len(reader.builder.nodes)
            if broken.isdisjoint(node.reads):
                problems, asked, undecided = len(reader.problems), len(reader.unknown), len(reader.undecided)
                bindings = reader.read(node)
                if any(t is BROKEN for t in bindings):
                    new_problems = reader.problems[problems:]
                    if not (all(text in reader.on_data for text in new_problems) or self.settled):
                        raise ModelError(new_problems[0])
                    if self._tries.get(i, 0) < MAX_TRIES and self._assume_more(
                        reader.unknown[asked:], reader.undecided[undecided:]
                    ):
                        self._tries[i] = self._tries.get(i, 0) + 1
                        return False
                    self.reasons[id(node)] = new_problems[0] if new_problems else ""
                    del reader.problems[problems:]
                elif any(isinstance(t, ValueSequence) and None in t.values for t in bindings):
                    bindings = (BROKEN,)  # parts whose sizes depend on the data
            if any(t is BROKEN for t in bindings):
                broken.update(node.outputs)
                (self.unreadable if all(name in self.known for name in node.reads) else self.waiting).append(node)
                continue
            self.taken.append(node)
            self.imported_nodes.append(
                ImportedNode(node.called, node.domain, node.operator, (), reader.builder.nodes[made:])
            )
            for name, binding in zip(node.outputs, bindings):
                if name:
                    reader.bind(name, binding)
        return True

    def _bind(self, reader: Reader) -> None:
        """Binds what the nodes read from before: constants, sizes, and inputs with sizes of this segment's own."""
        names = [
            name
            for name in dict.fromkeys(name for node in self.nodes for name in sorted(node.reads))
            if name in self.known
        ]
        self.inputs: dict[Value, str] = {}
        self.origin: dict[str, Feed] = {}  # symbol → where a run finds it
        # symbols of the model, or texts of other sizes outside → the size in here
        self._inside: dict[str, Size] = {}
        self._outside: dict[str, Size] = {}  # symbol in here → the size outside
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
            and len(found := dims.symbols(d)) == 1
            and (s := next(iter(found)))
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
                        f"{feed.name} has an axis of {d}, at least {low} elements; an axis may have at most {high}"
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

    def _name(self, hint: str) -> str:
        name = identifier(f"{hint}_in", {*self._outside, *self._inside})
        return name

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
        """A size, or the text of one, by what is known in here; None where that does not do."""
        try:
            return parse_size(str(d), self._inside)
        except ValueError:
            return None

    def _size_inside(self, d: Size) -> Size:
        """A size as this segment has it."""
        found = d if not isinstance(d, Dim) else self._inside.get(str(d), self._evaluate(d))
        assert found is not None  # _bind has defined every one
        return found

    def size_outside(self, d: Size) -> Size | None:
        """A size of this segment as it is known outside; None where what is assumed has a part in it."""
        if not isinstance(d, Dim):
            one = any(
                isinstance(s.size, int) or isinstance(s.size, Range) and s.size.minimum == s.size.maximum
                for s in self.settled.values()
            )
            return None if one else d  # a size may have become this number
        if self.settled:
            return None
        try:
            return parse_size(str(d), self._outside)
        except ValueError:  # it only holds with what is assumed
            return None

    def _assume_more(self, asked: Sequence[Value], undecided: Sequence) -> bool:
        """Whether more can be taken as sizes, or assumed of them, for the sake of what a node wanted to know."""
        for value in asked:
            names = self._deciding_inputs(value)
            if names:
                for name in names:
                    t = self.known.types[name]
                    assert t is not None
                    # as often a place as a size
                    fresh = [
                        self.symbols.fresh(f"{name}_{i}" if t.shape else name, optimum=1) for i in range(int(t.size))
                    ]
                    self.known.sizes[name] = np.array(fresh, object).reshape(t.shape)
                return True
        asks = [
            self._question_outside(s) for s in undecided if s.question is not None and s.where not in self._unanswered
        ]
        local = dict.fromkeys(name for name in self._outside if name not in self.unspecified)
        everywhere = bool(asks) and all(
            x.name in self.unspecified for s in asks if s.question for x in dims.symbols(s.question.difference)
        )
        found: dict[str, SizeConstraint] = {}
        if asks:
            found = constrain(asks, dict.fromkeys(self.unspecified) if everywhere else local, self._observed)
        if asks and not everywhere and all(s.given_up for s in found.values()):
            found = constrain(asks, dict.fromkeys(self._outside), self._observed)
        found = {
            k: s for k, s in found.items() if not s.given_up and (everywhere or s.step == 1) and k not in self.settled
        }
        if everywhere and found:
            raise Unsettled(found)
        self.settled.update(found)
        return bool(found)

    def _question_outside(self, undecided: UndecidedNode) -> UndecidedNode:
        """The question as one of sizes of the model, where a run's are known: what follows is then known for all of
        it."""
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
        """The sizes in here that follow from those of a run that is known."""
        return {name for name, d in self._outside.items() if {x.name for x in dims.symbols(d)} <= set(self._observed)}

    def _deciding_inputs(self, value: Value) -> list[str]:
        """The inputs, few integers each, that alone decide a value by arithmetic of sizes; nothing where there is more
        to it."""
        found = dict[str, None]()
        for v, maker in self.reader.builder.ancestors(value, self.inputs):
            if v in self.inputs:
                outside = self.known.types[self.inputs[v]]  # of which nothing is assumed
                if (
                    not v.type.dtype.is_integer
                    or outside is None
                    or not outside.known
                    or v.type.size > MAX_SIZE_ELEMENTS
                ):
                    return []
                found[self.inputs[v]] = None
            elif maker is None or not sizes.can_fold(maker.op):
                return []
        return list(found)

    # --- the result

    @cached_property
    def made_of_data_sizes(self) -> set[str]:
        """What is made of numbers of the data that are taken for sizes, which none is that is less than 0."""
        found = {feed.name for feed in self.origin.values() if feed.source == "value"}
        for node in self.taken:
            if not found.isdisjoint(node.reads):
                found.update(node.outputs)
        return found

    def results(self, wanted: Collection[str]) -> dict[str, Binding | Broken]:
        """What the wanted names stand for that its nodes make, in the order in which they make them."""
        made = [name for node in self.taken for name in node.outputs if name and name in wanted]
        for name in made:
            if name not in self.reader.bound:
                raise ModelError(f"{name!r} is an output that its operator does not have ({self.model.name})")
        return {name: self.reader.bound[name] for name in made}

    def pruned(self, graph: Graph) -> tuple[Graph, tuple[Feed, ...]]:
        """The program with the inputs that it needs, and what a run feeds it. Sizes that come from elsewhere are inputs
        without elements, and so are those of which something was assumed, if only that they are sizes: the engine takes
        no others. It is made for sizes from 1 on; `assumed` says whether a run may have others."""
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
