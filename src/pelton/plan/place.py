"""Places every value in memory: buffers in the layouts that templates need, views, and copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace

from pelton.ir.dims import Size, Undecided, bounds, maximum, minimum, optimum
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import STRING, DType, TensorType
from pelton.ops import words

from .fuse import Fused
from .layout import Layout, Layouts, Order, Strides, dense, order_of, reshaped, row_major, same_memory, span
from .placed import LayoutConstraints, Placed, Placement, Task
from .region import Region

MAX_ZERO_PADDED = 64 << 20  # bytes of zero-padded values

# The preferred layout of a value's only reader among those that fit; None without one or with more readers.
PreferredLayout = Callable[[Value], Layout | None]


def place(
    fused: Fused, choose: Callable[[Region], LayoutConstraints], preferred: PreferredLayout = lambda v: None
) -> Placed:
    """Places all values. choose: the template of a region whose layouts count; preferred: see `PreferredLayout`."""
    placer = Placer(fused.graph, preferred)
    for item in fused.items:
        if isinstance(item, Region):
            chosen = choose(item)
            placer.place_region(item, chosen)
            placer.result.by[item] = chosen.name
        else:
            placer.place_node(item)
    placer.place_outputs()
    return placer.result


class Placer:
    """Places the items of a graph one after another; `result` holds the placements so far."""

    def __init__(self, graph: Graph, preferred: PreferredLayout = lambda v: None):
        self.graph, self.preferred = graph, preferred
        self.result = Placed(graph, constants=dict(graph.constants))
        self.places = self.result.places
        # values with a fixed placement in a concat's buffer
        self.joined: set[Value] = set()
        self.copied: dict[tuple[Value, Strides], Value] = {}
        # the values of such copies, shared by all forks
        self.fresh: dict[tuple[Value, Strides], Value] = {}
        for v in (*graph.inputs, *graph.constants):
            self.places[v] = Placement(v, 0, dense(v.type.shape))

    def fork(self) -> Placer:
        """Returns an independent placer with the same state."""
        other = copy(self)
        other.result = replace(
            self.result,
            tasks=[*self.result.tasks],
            places=dict(self.places),
            outputs=[*self.result.outputs],
            sizes=dict(self.result.sizes),
            copies=dict(self.result.copies),
        )
        other.places, other.joined, other.copied = other.result.places, set(self.joined), dict(self.copied)
        return other

    def add_task(self, task: Task) -> None:
        if any(v.type.size for v in task.writes):  # a task without elements has nothing to compute
            self.result.tasks.append(task)

    # -- the kinds of items

    def place_node(self, node: Node) -> None:
        if any(v.type.dtype is STRING for v in node.inputs):
            # strings are Python objects, without views
            self.place_host_step(node)
        elif node.op in (words.sizes, words.iota):
            self.places[node.output] = Placement(node.output, 0, dense(node.output.type.shape))
            self.result.sizes[node.output] = node.attrs.get("values")
        elif node.op is words.concat:
            self.place_concat(node)
        elif node.op.view:
            self.place_view(node)
        else:
            self.place_host_step(node)

    def place_region(self, region: Region, chosen: LayoutConstraints) -> None:
        layouts = self.layouts(*region.body.inputs, *region.body.constants)
        orders: dict[Value, Order] = {}  # of outputs, including their axes of size one
        for v in region.body.outputs:
            orders[v] = chosen.output_order(region, v, layouts)
            layouts = layouts.moved({v: dense(v.type.shape, orders[v])})
        swap: dict[Value, Value] = {}
        for v in (*region.body.inputs, *region.body.constants):
            if chosen.fits(region, v, layouts):
                continue
            swap[v] = self.copy_to(
                v,
                dense(v.type.shape, chosen.copy_order(region, v, layouts)),
                f"{region.title()} needs another layout of %{v.name}",
            )
            layouts = layouts.moved({v: self.places[swap[v]].strides})
        for v in region.body.outputs:
            at = self.concat_slot(v, orders[v])
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
        self.add_task(Task(region, layouts))

    def layouts(self, *values: Value) -> Layouts:
        """Returns the layouts of placed values."""
        zero_padded = frozenset(v for v in values if self.places[v].zero_padded)
        return Layouts({v: self.places[v].strides for v in values}, zero_padded)

    def has_room(self, v: Value, layout: Layout) -> bool:
        """Returns True if one more value may have this layout: memory of zero-padded values is never shared."""
        if not layout.zero_padded:
            return True
        held = [(v, layout.strides), *((w, at.strides) for w, at in self.places.items() if at.zero_padded)]
        return sum(span(w.type.shape, strides) * w.type.dtype.size for w, strides in held) <= MAX_ZERO_PADDED

    def place_host_step(self, node: Node) -> None:
        for v in node.outputs:
            self.places[v] = Placement(v, 0, dense(v.type.shape))
        self.add_task(Task(node, self.layouts(*node.inputs, *node.outputs)))

    def place_view(self, node: Node) -> None:
        x = node.inputs[0]
        at = self.places[x]
        moved = self.view_placement(node, at)
        if moved is None:
            x = self.copy_to(x, dense(x.type.shape), f"{node.op.name} of %{x.name} is no view of its layout")
            moved = self.view_placement(node, self.places[x])
        if moved is None:
            raise AssertionError(f"{node} is no view of a row-major buffer")
        self.places[node.output] = moved

    def view_placement(self, node: Node, at: Placement) -> Placement | None:
        """Returns the output of a view node as a view of its input at `at`; None if it needs a copy."""
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
            # for example with sizes that may be 0: only of a contiguous input it is a view
            view = None
        return None if view is None else Placement(at.root, at.offset, view)

    # -- concats

    def place_concat(self, node: Node) -> None:
        if node.output not in self.places:
            self.place_concat_buffer(node, self._join_order(node))
        whole, axis, at = self.places[node.output], node.attrs["axis"], 0
        for v in node.inputs:
            here = Placement(
                whole.root,
                whole.offset + _inside(at, node.output.type.shape[axis]) * whole.strides[axis],
                whole.strides,
            )
            if self.places[v] != here and v.type.size:
                self.copy_into(
                    v, here, f"%{v.name} is an input of {node.name or 'concat'} but cannot be written in place"
                )
            at += v.type.shape[axis]

    def _join_order(self, node: Node) -> Order:
        big = max(node.inputs, key=lambda v: optimum(v.type.size))
        return order_of(big.type.shape, self.places[big].strides) if big in self.places else row_major(big.type.rank)

    def place_concat_buffer(self, node: Node, order: Order) -> None:
        """Places the output of a concat in a buffer, inside that of another concat if it is an input of one."""
        out = node.output
        at = self.concat_slot(out, order)
        if at is not None:
            self.joined.add(out)
        self.places[out] = at or Placement(out, 0, dense(out.type.shape, order))

    def concat_slot(self, v: Value, order: Order) -> Placement | None:
        """Returns the slice of a concat's buffer that a value can be written to directly, or None."""
        if v in self.joined or v in self.graph.outputs:
            return None
        for user in self.graph.users.get(v, ()):
            if user.op is not words.concat or user.inputs.count(v) != 1:
                continue
            if user.output not in self.places:
                self.place_concat_buffer(user, order)
            whole, axis = self.places[user.output], user.attrs["axis"]
            before = sum(w.type.shape[axis] for w in user.inputs[: user.inputs.index(v)])
            return Placement(
                whole.root,
                whole.offset + _inside(before, user.output.type.shape[axis]) * whole.strides[axis],
                whole.strides,
            )
        return None

    # -- copies

    def copy_to(self, v: Value, strides: Strides, reason: str) -> Value:
        if (v, strides) not in self.copied:
            fresh = self.fresh.setdefault((v, strides), Value(v.type, f"{v.name}.copy{len(self.fresh)}"))
            self.places[fresh] = Placement(fresh, 0, strides)
            self._copy(v, fresh, reason)
            self.copied[v, strides] = fresh
        return self.copied[v, strides]

    def copy_into(self, v: Value, at: Placement, reason: str) -> None:
        fresh = Value(v.type, f"{v.name}.copy{len(self.result.copies)}")
        self.places[fresh] = at
        self._copy(v, fresh, reason)

    def _copy(self, v: Value, fresh: Value, reason: str) -> None:
        self.result.copies[fresh] = reason
        node = Node(words.copy, (v,), {}, (fresh,), "")
        if v.type.dtype is STRING:
            self.place_host_step(node)
            return
        if 0 in v.type.shape or v.type.dtype in (DType.C64, DType.C128):  # no kernel moves these
            self.add_task(Task(node, self.layouts(v, fresh)))
            return
        constants = {v: self.result.constants[v]} if v in self.result.constants else {}
        region = Region(Graph(() if constants else (v,), constants, (node,), (fresh,), "copy"), ())
        self.add_task(Task(region, self.layouts(v, fresh)))

    def place_outputs(self) -> None:
        taken: set[Value] = set()
        for v in self.graph.outputs:
            at = self.places[v]
            own = at.root not in taken and not any(
                at.root in others for others in (self.result.constants, self.result.sizes, self.graph.inputs)
            )
            if (
                own
                and at.offset == 0
                and at.root.type.size == v.type.size
                and same_memory(v.type.shape, at.strides, dense(v.type.shape))
            ):
                taken.add(at.root)
                self.result.outputs.append(at.root)
                continue
            fresh = Value(TensorType(v.type.dtype, v.type.shape), f"{v.name}.out{len(taken)}")
            self.places[fresh] = Placement(fresh, 0, dense(v.type.shape))
            self._copy(v, fresh, f"output %{v.name} must be row-major in the caller's memory")
            taken.add(fresh)
            self.result.outputs.append(fresh)


def _inside(start: Size, size: Size) -> Size:
    """Returns the start of a part on an axis. An empty part may start past the end; it is moved to the last element."""
    return start if bounds(size - start)[0] > 0 else minimum(start, maximum(size - 1, 0))


def _read_instead(region: Region, swap: Mapping[Value, Value], layouts: Layouts) -> tuple[Region, Layouts]:
    """Returns the region with copies in place of some inputs; anchors still read their weights as constants."""
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
