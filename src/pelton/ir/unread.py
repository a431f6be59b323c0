"""Protocols of a model with unread nodes, offered by importers where the data decides the control flow.

`pelton.partition` reads such a model part by part, with the facts known by then, and uses only these protocols,
whatever the format. Nodes read and write names.
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
from .imported import Forms, ImportedNode, Info
from .size_constraints import SizeConstraint, UndecidedNode
from .bindings import Broken, Binding
from .types import DType, TensorType


class UnreadNode(Protocol):
    """A node by its names; an absent input or output is "". `reads`: inputs, and names captured by nested graphs."""

    @property
    def name(self) -> str: ...  # "" without one

    @property
    def label(self) -> str: ...  # its name in messages

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
    def control(self) -> Branches | Repeated | Scanned | None: ...  # for nodes that run graphs


class UnreadGraph(Protocol):
    """Nodes in any order, and the names of the inputs and outputs."""

    @property
    def name(self) -> str: ...

    @property
    def nodes(self) -> Sequence[UnreadNode]: ...

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    def constants(self) -> Mapping[str, np.ndarray]: ...  # raises ModelError if one cannot be read


@dataclass(frozen=True)
class Branches:
    """One of two graphs, selected by the first input; they have no inputs and capture their reads."""

    then: UnreadGraph
    other: UnreadGraph


@dataclass(frozen=True)
class Repeated:
    """A loop over a graph, like ONNX's Loop.

    Inputs of the node: the number of iterations and a condition, which may be absent, and the carried values. Inputs of
    the graph: the iteration, the condition and the carried values; outputs: the condition, the carried values, and
    values to stack.
    """

    body: UnreadGraph


@dataclass(frozen=True)
class Scanned:
    """A graph for each slice of the last `scans` inputs, like ONNX's Scan; the other inputs are carried.

    Empty tuples are axes 0 and the forward direction.
    """

    body: UnreadGraph
    scans: int
    axes: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    into: tuple[int, ...] = ()
    reverse: tuple[int, ...] = ()


@dataclass
class Known:
    """Facts about names known before a run.

    types: of arrays; None for values that are no arrays or have an unknown rank. constants: arrays. sizes: arrays of
    objects, each element a size. sequences: the names of the elements of lists. aliases: name → the other name of the
    same value.
    """

    types: dict[str, TensorType | None] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: dict[str, np.ndarray] = field(default_factory=dict)
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Known:
        return Known(dict(self.types), dict(self.constants), dict(self.sizes), dict(self.sequences), dict(self.aliases))

    def forget(self, name: str) -> None:
        """Drops all facts about a name."""
        for facts in (self.types, self.constants, self.sizes, self.sequences, self.aliases):
            facts.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self.types or name in self.constants

    def type(self, name: str) -> TensorType | None:
        return TensorType.of(self.constants[name]) if name in self.constants else self.types[name]


class Reader(Protocol):
    """Reads nodes one by one into a program, and collects their problems.

    known_sizes: symbols whose sizes are known at run time. unanswered: nodes (by `UndecidedNode.where`) with open
    questions about sizes.
    """

    known_sizes: Collection[str]
    unanswered: Collection[str]

    @property
    def builder(self) -> Builder: ...  # of the program

    @property
    def bound(self) -> Mapping[str, Binding | Broken]: ...  # name → value

    @property
    def problems(self) -> list[str]: ...

    @property
    def on_data(self) -> Collection[str]: ...  # the problems that are only a dependency on data

    @property
    def unknown(self) -> Sequence[Value]: ...  # values whose elements nodes require, but which are unknown

    @property
    def undecided(self) -> Sequence[UndecidedNode]: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    @property
    def foreign_steps(self) -> Sequence[str]: ...  # nodes that became steps of another package

    def bind(self, name: str, thing: Binding | Broken) -> None: ...

    # of the last node read, and of nodes in its graphs
    @property
    def imported_nodes(self) -> Sequence[ImportedNode]: ...

    # the values of its outputs; BROKEN, and a problem, if it cannot be read
    def read(self, node: UnreadNode) -> Sequence[Binding | Broken]: ...


@dataclass(frozen=True)
class Interface:
    """The inputs of a model, as values whose sizes are numbers or symbols, and the names of its outputs."""

    inputs: tuple[Value, ...]
    constants: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    open: Mapping[str, str]  # symbols of unspecified sizes → the first such axis
    observed: Collection[str]  # the symbols whose optimum is the size of an actual run
    warnings: Sequence[str]
    assumptions: Sequence[str]  # about unspecified sizes, as sentences
    info: Info
    sequences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # lists → the inputs for their elements
    forms: Forms = field(default_factory=lambda: {"inputs": {}, "outputs": {}})  # like `Imported.forms`


@dataclass(frozen=True)
class HostCall:
    """A node as a host step: the function `call`, prepared from `text`, from the inputs to the outputs."""

    call: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Unread(Protocol):
    """A model with unread nodes. `name`: for messages."""

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> UnreadGraph: ...

    @property
    def opsets(self) -> Mapping[str, int]: ...

    # raises ModelError if it cannot be read
    def interface(self, settled: Mapping[str, SizeConstraint]) -> Interface: ...

    # `wanted`: the names to be read from its program
    def reader(self, wanted: Iterable[str]) -> Reader: ...

    # the declared element type of an output, or of the elements of a sequence
    def dtype(self, name: str) -> DType | None: ...

    # raises ModelError with that reason if no host step can run the node
    def call(self, node: UnreadNode, reason: str) -> HostCall: ...

    def types(self, node: UnreadNode, known: Known, fresh: Callable[[str, int], Size]) -> Sequence[TensorType | None]:
        """Returns the output types of a node that runs as a host step, as far as they are known.

        `fresh` makes a new symbol from a hint and a rank.
        """


def order(
    nodes: Sequence[str],
    reads: Sequence[Collection[str]],
    makes: Sequence[Sequence[str]],
    outputs: Iterable[str],
    known: Callable[[str], bool],
) -> list[int]:
    """Returns the positions of the nodes that the outputs need, in executable order, near the given one.

    nodes: their names in messages. reads, makes: the names that each reads and writes. known: True for inputs and
    constants. Raises ModelError for a cycle or a name that is written twice.
    """
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
    positions = []
    while ready:
        i = heapq.heappop(ready)
        positions.append(i)
        for user in users.get(i, ()):
            waiting[user].discard(i)
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(positions) < len(needed):
        raise ModelError(
            f"the graph has a cycle through node {nodes[_on_cycle(waiting)]!r}; nodes may read outputs of earlier"
            " nodes only"
        )
    return positions


def _on_cycle(waiting: Mapping[int, set[int]]) -> int:
    """Returns a node on a cycle: the first one seen again on a path of nodes that wait for each other."""
    at, seen = min(i for i, before in waiting.items() if before), set()
    while at not in seen:
        seen.add(at)
        at = min(waiting[at])
    return at
