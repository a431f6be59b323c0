"""A model before its nodes are read: what an importer offers where the data decides what runs, so that parts of it are
read with what is known by then.

Names stand for what nodes make and read. `pelton.partition` asks for no more than this, whatever the format.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pelton.errors import ModelError

from .builder import Builder
from .dims import Size
from .graph import Value
from .imported import Info
from .size_constraints import SizeConstraint, UndecidedNode
from .bindings import Broken, Binding
from .types import DType, TensorType


class UnreadNode(Protocol):
    """A node by its names. `reads` has those that nested graphs take from around it as well; absent inputs and outputs
    are ""."""

    @property
    def name(self) -> str: ...  # "" where it has none

    @property
    def called(self) -> str: ...  # what messages call it

    @property
    def title(self) -> str: ...  # its operator with its domain: "onnx::NonZero"

    @property
    def domain(self) -> str: ...

    @property
    def operator(self) -> str: ...

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def reads(self) -> Collection[str]: ...

    @property
    def control(self) -> Branches | Repeated | Scanned | None: ...  # what it is, if it runs graphs


class UnreadGraph(Protocol):
    """Nodes in any order, and the names of what goes in and comes out."""

    @property
    def name(self) -> str: ...

    @property
    def nodes(self) -> Sequence[UnreadNode]: ...

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    def constants(self) -> Mapping[str, np.ndarray]: ...  # ModelError where one cannot be read


@dataclass(frozen=True)
class Branches:
    """One of two graphs, by the first input. They read what they need from around them."""

    then: UnreadGraph
    other: UnreadGraph


@dataclass(frozen=True)
class Repeated:
    """A graph again and again: inputs are the number of iterations and a condition, both of which may be absent, and
    what is carried. The graph takes the iteration, the condition and what is carried; it gives the condition, what is
    carried, and what is stacked."""

    body: UnreadGraph


@dataclass(frozen=True)
class Scanned:
    """A graph for each slice of the last `scans` inputs; it takes and gives the other ones as well. Empty tuples stand
    for axes 0 and forward."""

    body: UnreadGraph
    scans: int
    axes: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    into: tuple[int, ...] = ()
    reverse: tuple[int, ...] = ()


@dataclass
class Known:
    """What is known of names before a run: the types of arrays, None for what has no rank or is no array; constants;
    and arrays of which each element is a size, as objects."""

    types: dict[str, TensorType | None] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: dict[str, np.ndarray] = field(default_factory=dict)

    def copy(self) -> Known:
        return Known(dict(self.types), dict(self.constants), dict(self.sizes))

    def __contains__(self, name: str) -> bool:
        return name in self.types or name in self.constants

    def type(self, name: str) -> TensorType | None:
        return TensorType.of(self.constants[name]) if name in self.constants else self.types[name]


class Reader(Protocol):
    """Reads nodes into one program, one after the other, and notes what was wrong with them. `known_sizes` are
    the symbols whose sizes in a run are known, `unanswered` the nodes (by `UndecidedNode.where`) whose questions about
    sizes remained open."""

    known_sizes: Collection[str]
    unanswered: Collection[str]

    @property
    def builder(self) -> Builder: ...  # what is written

    @property
    def bound(self) -> Mapping[str, Binding | Broken]: ...  # what names stand for

    @property
    def problems(self) -> list[str]: ...

    @property
    # those of the problems that are no more than that something depends on the data
    def on_data(self) -> Collection[str]: ...

    @property
    def unknown(self) -> Sequence[Value]: ...  # values whose elements nodes needed, and which are not known

    @property
    def undecided(self) -> Sequence[UndecidedNode]: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    @property
    def foreign_steps(self) -> Sequence[str]: ...  # nodes that became steps of another package

    def bind(self, name: str, thing: Binding | Broken) -> None: ...

    # what its outputs stand for; BROKEN, with the problem noted, where it cannot be read
    def read(self, node: UnreadNode) -> Sequence[Binding | Broken]: ...


@dataclass(frozen=True)
class Interface:
    """What goes into a model, as values whose sizes are numbers or symbols, and the names of what comes out."""

    inputs: tuple[Value, ...]
    constants: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    open: Mapping[str, str]  # symbols of unspecified sizes → the first such axis
    observed: Collection[str]  # those of them whose optimum is the size that a run has
    warnings: Sequence[str]
    assumptions: Sequence[str]  # about unspecified sizes, as sentences
    info: Info


@dataclass(frozen=True)
class HostCall:
    """How a node runs by itself, as a function of arrays: what the host calls, prepared from a text, on which names,
    and the names of what it gives."""

    call: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Unread(Protocol):
    """A model that nobody has read yet. `name` is what messages call it."""

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> UnreadGraph: ...

    @property
    def opsets(self) -> Mapping[str, int]: ...

    # ModelError where it cannot be read
    def interface(self, settled: Mapping[str, SizeConstraint]) -> Interface: ...

    # `wanted`: the names that somebody reads
    def reader(self, wanted: Iterable[str]) -> Reader: ...

    # of an output, or of its elements, as the model declares it
    def dtype(self, name: str) -> DType | None: ...

    # ModelError, for that reason, where nothing can run the node
    def call(self, node: UnreadNode, reason: str) -> HostCall: ...

    def types(self, node: UnreadNode, known: Known, fresh: Callable[[str, int], Size]) -> Sequence[TensorType | None]:
        """The types of its outputs where it runs by itself, as far as they can be told. `fresh` makes a size of its
        own, of a hint and the rank."""


def order(
    nodes: Sequence[str],
    reads: Sequence[Collection[str]],
    makes: Sequence[Sequence[str]],
    outputs: Iterable[str],
    known: Callable[[str], bool],
) -> list[int]:
    """The positions of the nodes (given by what messages call them) that the outputs need, in the order given as far as
    that can be executed; ModelError for a cycle or a name made twice."""
    maker: dict[str, int] = {}
    for i, made in enumerate(makes):
        for name in made:
            if name and (name in maker or known(name)):
                other = f"node {nodes[maker[name]]!r}" if name in maker else "an input or constant"
                raise ModelError(
                    f"{name!r} is made twice: by {other} and by node {nodes[i]!r}; every name needs one origin"
                )
            if name:
                maker[name] = i
    needed: set[int] = set()
    open_names = list(outputs)
    while open_names:
        made_by = maker.get(open_names.pop())
        if made_by is not None and made_by not in needed:
            needed.add(made_by)
            open_names.extend(reads[made_by])
    waiting = {i: {maker[name] for name in reads[i] if name in maker} for i in needed}
    users: dict[int, list[int]] = {}
    for i, before in waiting.items():
        for j in before:
            users.setdefault(j, []).append(i)
    ready = [i for i, before in waiting.items() if not before]
    heapq.heapify(ready)
    found = []
    while ready:
        i = heapq.heappop(ready)
        found.append(i)
        for user in users.get(i, ()):
            waiting[user].discard(i)
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(found) < len(needed):
        raise ModelError(
            f"the graph has a cycle through node {nodes[_on_cycle(waiting)]!r}; every node has to read what earlier"
            " ones make"
        )
    return found


def _on_cycle(waiting: Mapping[int, set[int]]) -> int:
    """A node of a cycle: following what is waited for, the first one seen again."""
    at, seen = min(i for i, before in waiting.items() if before), set()
    while at not in seen:
        seen.add(at)
        at = min(waiting[at])
    return at
