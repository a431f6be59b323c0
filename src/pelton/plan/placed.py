"""A program whose values are placed in memory: the tasks to run, and the interface of templates for placing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pelton.ir.dims import Size, at
from pelton.ir.graph import Graph, Node, Value, with_sizes

from .layout import Layouts, Order, Strides
from .region import Region


class LayoutConstraints(Protocol):
    """The interface of a kernel template for placing."""

    @property
    def name(self) -> str: ...
    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order: ...
    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool: ...
    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order: ...


@dataclass(frozen=True)
class Placement:
    """A view of the buffer of `root`, in elements. zero_padded: it is the root, and the rest of its buffer stays 0."""

    root: Value
    offset: Size
    strides: Strides
    zero_padded: bool = False


@dataclass(frozen=True, eq=False)
class Task:
    """A region (copies included), which a kernel computes, or a node that runs as a host step."""

    what: Region | Node
    layouts: Layouts

    @property
    def region(self) -> Region:
        """The region; TypeError for a host step."""
        if not isinstance(self.what, Region):
            raise TypeError(f"{self.what} is a host step")
        return self.what

    @property
    def node(self) -> Node:
        """The node of a host step; TypeError for a region."""
        if not isinstance(self.what, Node):
            raise TypeError(f"{self.what} is a region")
        return self.what

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.what.body.inputs if isinstance(self.what, Region) else self.what.inputs

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.what.body.outputs if isinstance(self.what, Region) else self.what.outputs

    def sized(self, sizes: Mapping[str, int], to: dict[Value, Value]) -> Task:
        """Returns the task for these values of the symbols; adds its values to `to`."""
        if isinstance(self.what, Region):
            what: Region | Node = self.what.sized(sizes, to)
        else:
            (what,) = with_sizes(Graph((), {}, (self.what,), ()), sizes, to)[0].nodes
        return Task(what, self.layouts.sized(sizes, to))


@dataclass
class Placed:
    """Tasks in the order of execution, and the placement of every value.

    `outputs`: per output of the graph, the root of its buffer. `sizes`: values that the runtime fills when it first
    meets a shape: with these numbers, or with 0, 1, 2, … (None). `copies`: the result of each copy and its reason.
    `by`: the template that decided the layouts of a region.
    """

    graph: Graph
    tasks: list[Task] = field(default_factory=list)
    places: dict[Value, Placement] = field(default_factory=dict)
    constants: dict[Value, np.ndarray] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    sizes: dict[Value, tuple[Size, ...] | None] = field(default_factory=dict)
    copies: dict[Value, str] = field(default_factory=dict)
    by: dict[Region, str] = field(default_factory=dict)

    def sized(self, sizes: Mapping[str, int]) -> tuple[Placed, dict[Value, Value]]:
        """Returns the same for these values of the symbols, and a map from these values to the new ones."""
        to: dict[Value, Value] = {}
        graph, _ = with_sizes(self.graph, sizes, to)
        tasks = [t.sized(sizes, to) for t in self.tasks]
        with_sizes(Graph((), {}, (), tuple(self.outputs)), sizes, to)  # empty buffers, which no task writes
        places = {
            to[v]: Placement(to[p.root], at(p.offset, sizes), tuple(at(s, sizes) for s in p.strides), p.zero_padded)
            for v, p in self.places.items()
            if v in to
        }
        return (
            Placed(
                graph,
                tasks,
                places,
                {to[v]: a for v, a in self.constants.items() if v in to},
                [to[v] for v in self.outputs],
                {to[v]: None if n is None else tuple(at(d, sizes) for d in n) for v, n in self.sizes.items()},
                {to[v]: reason for v, reason in self.copies.items()},
            ),
            to,
        )
