"""Where every value lies: forward through the graph as templates demand, views as offsets and strides, copies where
nothing else will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from pelton.ir.dims import Size, Undecided, at, bounds, maximum, minimum, optimum
from pelton.ir.graph import Graph, Node, Value, with_sizes
from pelton.ir.types import STRING, DType, TensorType
from pelton.ops import words

from .fuse import Fused
from .layout import Layout, Layouts, Order, Strides, dense, order_of, reshaped, row_major, same_memory, span
from .region import Region

MOST_ZERO_PADDED = 64 << 20  # bytes of zero-padded values


class LayoutConstraints(Protocol):
    """What placing asks of a kernel template."""

    @property
    def name(self) -> str: ...
    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order: ...
    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool: ...
    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order: ...


@dataclass(frozen=True)
class Placement:
    """A value as a view of a root value's buffer: offset and strides in elements. zero_padded: it is the root, and the
    rest of its buffer stays zero."""

    root: Value
    offset: Size
    strides: Strides
    zero_padded: bool = False


@dataclass(frozen=True, eq=False)
class Task:
    """One thing to run: a region (copies included) or a host node."""

    what: Region | Node
    layouts: Layouts

    @property
    def region(self) -> Region:
        """What a kernel computes; TypeError for a host step."""
        if not isinstance(self.what, Region):
            raise TypeError(f"{self.what} is a host step")
        return self.what

    @property
    def node(self) -> Node:
        """What the host computes; TypeError for a region."""
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
        """The task for these values of the symbols; `to` is extended by its values."""
        if isinstance(self.what, Region):
            what: Region | Node = self.what.sized(sizes, to)
        else:
            (what,) = with_sizes(Graph((), {}, (self.what,), ()), sizes, to)[0].nodes
        return Task(what, self.layouts.sized(sizes, to))


@dataclass
class Placed:
    """Tasks in order, the place of every value, the roots that are buffers, and the copies that were needed with the
    reason."""

    graph: Graph
    tasks: list[Task] = field(default_factory=list)
    places: dict[Value, Placement] = field(default_factory=dict)
    constants: dict[Value, np.ndarray] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)  # per graph output the root value of its buffer
    # made when a shape is met: these numbers, or (None) 0, 1, 2, …
    sizes: dict[Value, tuple[Size, ...] | None] = field(default_factory=dict)
    copies: list[str] = field(default_factory=list)
    by: dict[Region, str] = field(default_factory=dict)  # region → the template whose demands counted

    def sized(self, sizes: Mapping[str, int]) -> tuple[Placed, dict[Value, Value]]:
        """The same for these values of the symbols, and its values by those of this one."""
        to: dict[Value, Value] = {}
        graph, _ = with_sizes(self.graph, sizes, to)
        tasks = [t.sized(sizes, to) for t in self.tasks]
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
                self.copies,
            ),
            to,
        )


# The layout that the only reader of a value prefers to others that fit; None where it prefers none, or there are more.
Preferred = Callable[[Value], Layout | None]


def place(fused: Fused, choose: Callable[[Region], LayoutConstraints], preferred: Preferred = lambda v: None) -> Placed:
    """Places everything. `choose(region)` gives the template whose demands count."""
    placer = Placer(fused.graph, preferred)
    for item in fused.items:
        if isinstance(item, Region):
            chosen = choose(item)
            placer.region(item, chosen)
            placer.done.by[item] = chosen.name
        else:
            placer.node(item)
    placer.outputs()
    return placer.done


class Placer:
    """A graph placed as far as its items were added, in their order."""

    def __init__(self, graph: Graph, preferred: Preferred = lambda v: None):
        self.graph, self.preferred = graph, preferred
        self.done = Placed(graph, constants=dict(graph.constants))
        self.places = self.done.places
        # values whose place inside of a joined buffer is fixed
        self.joined: set[Value] = set()
        self.copied: dict[tuple[Value, Strides], Value] = {}
        # what such copies are called, by all that go on from here
        self.fresh: dict[tuple[Value, Strides], Value] = {}
        for v in (*graph.inputs, *graph.constants):
            self.places[v] = Placement(v, 0, dense(v.type.shape))

    def fork(self) -> Placer:
        """One that may go on differently from here."""
        other = copy(self)
        other.done = replace(
            self.done,
            tasks=[*self.done.tasks],
            places=dict(self.places),
            outputs=[*self.done.outputs],
            sizes=dict(self.done.sizes),
            copies=[*self.done.copies],
        )
        other.places, other.joined, other.copied = other.done.places, set(self.joined), dict(self.copied)
        return other

    def task(self, task: Task) -> None:
        if any(v.type.size for v in task.writes):  # nothing is computed for nothing
            self.done.tasks.append(task)

    # -- the kinds of items

    def node(self, node: Node) -> None:
        if any(v.type.dtype is STRING for v in node.inputs):
            # they lie in Python, where nothing is a view of anything
            self.host(node)
        elif node.op in (words.sizes, words.iota):
            self.places[node.output] = Placement(node.output, 0, dense(node.output.type.shape))
            self.done.sizes[node.output] = node.attrs.get("values")
        elif node.op is words.concat:
            self.concat(node)
        elif node.op.view:
            self.view(node)
        else:
            self.host(node)

    def region(self, region: Region, chosen: LayoutConstraints) -> None:
        layouts = self.layouts(*region.body.inputs, *region.body.constants)
        for v in region.body.outputs:
            layouts = layouts.moved({v: dense(v.type.shape, chosen.output_order(region, v, layouts))})
        swap: dict[Value, Value] = {}
        for v in (*region.body.inputs, *region.body.constants):
            if chosen.fits(region, v, layouts):
                continue
            swap[v] = self.copy(
                v,
                dense(v.type.shape, chosen.copy_order(region, v, layouts)),
                f"{region.title()} wants another layout of %{v.name}",
            )
            layouts = layouts.moved({v: self.places[swap[v]].strides})
        for v in region.body.outputs:
            at = self.slot(v, order_of(v.type.shape, layouts[v]))
            moved = layouts if at is None else layouts.moved({v: at.strides})
            # operands follow the order that the output had before
            if at is not None and all(chosen.fits(region, one, moved) for one in moved):
                layouts = moved
                self.places[v] = at
                self.joined.add(v)
            else:
                preferred = self.preferred(v) if at is None and v not in self.graph.outputs else None
                if preferred is not None and self.has_room(v, preferred):
                    moved = layouts.moved({v: preferred.strides}, preferred.zero_padded)
                    layouts = moved if all(chosen.fits(region, one, moved) for one in moved) else layouts
                self.places[v] = Placement(v, 0, layouts[v], v in layouts.zero_padded)
        if swap:
            region, layouts = _read_instead(region, swap, layouts)
        self.task(Task(region, layouts))

    def layouts(self, *values: Value) -> Layouts:
        """How values lie that are placed."""
        zero_padded = frozenset(v for v in values if self.places[v].zero_padded)
        return Layouts({v: self.places[v].strides for v in values}, zero_padded)

    def has_room(self, v: Value, layout: Layout) -> bool:
        """Whether one more value may lie so: no other takes over the memory of those that are zero-padded."""
        if not layout.zero_padded:
            return True
        held = [(v, layout.strides), *((w, at.strides) for w, at in self.places.items() if at.zero_padded)]
        return sum(span(w.type.shape, strides) * w.type.dtype.size for w, strides in held) <= MOST_ZERO_PADDED

    def host(self, node: Node) -> None:
        for v in node.outputs:
            self.places[v] = Placement(v, 0, dense(v.type.shape))
        self.task(Task(node, self.layouts(*node.inputs, *node.outputs)))

    def view(self, node: Node) -> None:
        x = node.inputs[0]
        at = self.places[x]
        moved = self.through(node, at)
        if moved is None:
            x = self.copy(x, dense(x.type.shape), f"{node.op.name} of %{x.name} is no view of its layout")
            moved = self.through(node, self.places[x])
        if moved is None:
            raise AssertionError(f"{node} is no view of a row-major buffer")
        self.places[node.output] = moved

    def through(self, node: Node, at: Placement) -> Placement | None:
        """A view node's output as a view of where its input lies."""
        shape, out, attrs = node.inputs[0].type.shape, node.output.type.shape, node.attrs
        if node.op is words.transpose:
            return Placement(at.root, at.offset, tuple(at.strides[p] for p in attrs["perm"]))
        if node.op is words.expand:
            lead = len(out) - len(shape)
            return Placement(
                at.root,
                at.offset,
                tuple(0 if i < lead or shape[i - lead] != out[i] else at.strides[i - lead] for i in range(len(out))),
            )
        if node.op is words.slice:
            offset, strides = at.offset, list(at.strides)
            for axis, start, step in zip(attrs["axes"], attrs["starts"], attrs["steps"]):
                offset += _inside(start, shape[axis]) * at.strides[axis]
                strides[axis] = at.strides[axis] * step
            return Placement(at.root, offset if 0 not in out else 0, tuple(strides))
        try:
            view = reshaped(shape, at.strides, out)
        except Undecided:
            # sizes that may be 0, say: it is a view of what lies in order, and of nothing else
            view = None
        return None if view is None else Placement(at.root, at.offset, view)

    # -- joined buffers

    def concat(self, node: Node) -> None:
        if node.output not in self.places:
            self.lay(node, self._join_order(node))
        whole, axis, at = self.places[node.output], node.attrs["axis"], 0
        for v in node.inputs:
            here = Placement(
                whole.root,
                whole.offset + _inside(at, node.output.type.shape[axis]) * whole.strides[axis],
                whole.strides,
            )
            if self.places[v] != here and v.type.size:
                self.copy_into(
                    v, here, f"%{v.name} is joined by {node.name or 'concat'} but cannot be written in place"
                )
            at += v.type.shape[axis]

    def _join_order(self, node: Node) -> Order:
        big = max(node.inputs, key=lambda v: optimum(v.type.size))
        return order_of(big.type.shape, self.places[big].strides) if big in self.places else row_major(big.type.rank)

    def lay(self, node: Node, order: Order) -> None:
        """Gives a concat's output a buffer, inside of another concat's where it is joined again."""
        out = node.output
        at = self.slot(out, order)
        if at is not None:
            self.joined.add(out)
        self.places[out] = at or Placement(out, 0, dense(out.type.shape, order))

    def slot(self, v: Value, order: Order) -> Placement | None:
        """The slice of a joined buffer that a value may be written to straight away, or None."""
        if v in self.joined or v in self.graph.outputs:
            return None
        for user in self.graph.users.get(v, ()):
            if user.op is not words.concat or user.inputs.count(v) != 1:
                continue
            if user.output not in self.places:
                self.lay(user, order)
            whole, axis = self.places[user.output], user.attrs["axis"]
            before = sum(w.type.shape[axis] for w in user.inputs[: user.inputs.index(v)])
            return Placement(
                whole.root,
                whole.offset + _inside(before, user.output.type.shape[axis]) * whole.strides[axis],
                whole.strides,
            )
        return None

    # -- copies

    def copy(self, v: Value, strides: Strides, why: str) -> Value:
        if (v, strides) not in self.copied:
            fresh = self.fresh.setdefault((v, strides), Value(v.type, f"{v.name}.copy{len(self.fresh)}"))
            self.places[fresh] = Placement(fresh, 0, strides)
            self._copy(v, fresh, why)
            self.copied[v, strides] = fresh
        return self.copied[v, strides]

    def copy_into(self, v: Value, at: Placement, why: str) -> None:
        fresh = Value(v.type, f"{v.name}.copy{len(self.done.copies)}")
        self.places[fresh] = at
        self._copy(v, fresh, why)

    def _copy(self, v: Value, fresh: Value, why: str) -> None:
        self.done.copies.append(why)
        node = Node(words.copy, (v,), {}, (fresh,), "")
        if v.type.dtype is STRING:
            self.host(node)
            return
        if 0 in v.type.shape or v.type.dtype in (DType.C64, DType.C128):  # what no kernel moves
            self.task(Task(node, self.layouts(v, fresh)))
            return
        constants = {v: self.done.constants[v]} if v in self.done.constants else {}
        region = Region(Graph(() if constants else (v,), constants, (node,), (fresh,), "copy"), ())
        self.task(Task(region, self.layouts(v, fresh)))

    def outputs(self) -> None:
        taken: set[Value] = set()
        for v in self.graph.outputs:
            at = self.places[v]
            own = at.root not in taken and not any(
                at.root in others for others in (self.done.constants, self.done.sizes, self.graph.inputs)
            )
            if (
                own
                and at.offset == 0
                and at.root.type.size == v.type.size
                and same_memory(v.type.shape, at.strides, dense(v.type.shape))
            ):
                taken.add(at.root)
                self.done.outputs.append(at.root)
                continue
            fresh = Value(TensorType(v.type.dtype, v.type.shape), f"{v.name}.out{len(taken)}")
            self.places[fresh] = Placement(fresh, 0, dense(v.type.shape))
            self._copy(v, fresh, f"output %{v.name} has to be row-major in the caller's memory")
            taken.add(fresh)
            self.done.outputs.append(fresh)


def _inside(start: Size, size: Size) -> Size:
    """Where something begins on an axis. What has no elements in some run may be told to begin behind the end: there it
    begins at the last one."""
    return start if bounds(size - start)[0] > 0 else minimum(start, maximum(size - 1, 0))


def _read_instead(region: Region, swap: Mapping[Value, Value], layouts: Layouts) -> tuple[Region, Layouts]:
    """The region reading copies in place of some of its inputs. Weights stay the constants that they are, also where
    something else in it reads them."""
    body = region.body
    reads = [v for n in body.nodes for v in n.inputs]
    weights = {
        v: dense(v.type.shape)
        for v in swap
        if v in body.constants and reads.count(v) > 1 and any(v in a.inputs[1:] for a in region.anchors)
    }

    def at(v: Value) -> Value:
        return swap.get(v, v)

    def of(n: Node) -> tuple[Value, ...]:
        return tuple(v if k and v in weights and n in region.anchors else at(v) for k, v in enumerate(n.inputs))

    again = {n: Node(n.op, of(n), n.attrs, n.outputs, n.name) for n in body.nodes}
    inputs = tuple(dict.fromkeys([at(v) for v in body.inputs] + [swap[v] for v in body.constants if v in swap]))
    constants = {v: a for v, a in body.constants.items() if v not in swap or v in weights}
    new = body.replace(inputs=inputs, constants=constants, nodes=tuple(again.values()))
    lies = Layouts({at(v): s for v, s in layouts.items()}, layouts.zero_padded)  # copies are not
    return Region(new, tuple(again[a] for a in region.anchors)), lies.moved(weights)
