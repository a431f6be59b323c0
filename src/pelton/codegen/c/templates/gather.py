"""Gathers by rows, by elements and by index tuples, from tensors of any element size."""

from __future__ import annotations

from pelton.ir import dims
from pelton.ir.graph import Node, Value
from pelton.ir.types import I32, I64
from pelton.plan.layout import Layouts, Order, Strides
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, list_macro, macro, memory_type, tail
from pelton.codegen.c.fold import element_macros
from pelton.codegen.grid import Grid, ceil_div
from .moves import MoveTemplate, as_bits, expand_axis
from pelton.codegen.sweep import extent, memory_order, task_shape, sweep_grid
from pelton.codegen.template import Kernel, Tactic, Target, template


def gathered_axes(node: Node) -> range:
    """Returns the axes of the input that the indices select from."""
    if node.op.name == "gather_nd":
        return range(node.attrs["batch_dims"], node.attrs["batch_dims"] + node.inputs[1].type.shape[-1])
    return range(node.attrs["axis"], node.attrs["axis"] + 1)


class GatherStrides:
    """Strides of input and indices over the axes of the output, and sizes and strides of the gathered axes."""

    def __init__(self, region: Region, layouts: Layouts):
        node = region.anchor
        x, indices = node.inputs
        xs, ids, shape = layouts[x], layouts[indices], x.type.shape
        rank = indices.type.rank
        self.between = 0  # the stride between the numbers of an index tuple
        if node.op.name == "gather_nd":
            batch, depth = node.attrs["batch_dims"], indices.type.shape[-1]
            self.x: Strides = (*xs[:batch], *[0] * (rank - 1 - batch), *xs[batch + depth :])
            self.indices: Strides = (*ids[:-1], *[0] * (x.type.rank - batch - depth))
            self.between = ids[-1]
        else:
            axis = node.attrs["axis"]
            if node.op.name == "gather":
                self.x = (*xs[:axis], *[0] * rank, *xs[axis + 1 :])
                self.indices = (*[0] * axis, *ids, *[0] * (x.type.rank - axis - 1))
            else:
                self.x = (*xs[:axis], 0, *xs[axis + 1 :])
                self.indices = ids
        axes = gathered_axes(node)
        self.sizes, self.steps = [shape[a] for a in axes], [xs[a] for a in axes]


@template
class Gather(MoveTemplate):
    name = "gather"
    dynamic = True
    anchors = ("gather", "gather_elements", "gather_nd")

    def node_rejection(self, region: Region) -> str | None:
        dtype = region.anchor.inputs[1].type.dtype
        if region.anchor.op.name == "gather_nd" and region.anchor.inputs[1].type.shape[-1] == 0:
            return "empty index tuples"
        if any(dims.bounds(region.anchor.inputs[0].type.shape[a])[0] < 1 for a in gathered_axes(region.anchor)):
            return "there may be no element to gather"
        return None if dtype in (I64, I32) else f"indices in {dtype.value}"

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the input's order, with the axes of the indices in place of the gathered axis."""
        node = region.anchor
        x, rank = node.inputs[0], node.inputs[1].type.rank
        if node.op.name == "gather_nd":
            return tuple(range(value.type.rank))
        order = memory_order(x.type.shape, layouts[x])
        if node.op.name == "gather_elements":
            return order
        return expand_axis(order, node.attrs["axis"], rank)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        p = GatherStrides(region, layouts)
        return sweep_grid(region, layouts, [p.x, p.indices])

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rb, cb = task_shape(extent(grid, grid.r), extent(grid, grid.c), 2, target, 8 * target.lanes)
        yield Tactic(self.name, target.isa, (("RB", rb), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, p, grid = region.anchor, GatherStrides(region, layouts), self.grid(region, layouts)
        x, indices = node.inputs
        rows, cols = extent(grid, grid.r), extent(grid, grid.c)
        xc, ic = grid.step(p.x), grid.step(p.indices)
        moved = as_bits(region, layouts)
        row = Grid(grid.shape, (), grid.r, ())
        block = constants(
            ROWS=rows,
            COLS=cols,
            DEPTH=len(p.sizes),
            IK=p.between,
            PICK=bool(ic) or (xc != 1 and cols != 1),
            XC=xc,
            IC=ic,
        )
        block += macro("X_AT(r)", row.address(p.x)) + macro("I_AT(r)", row.address(p.indices))
        block += list_macro("SIZES", p.sizes) + list_macro("STEPS", p.steps)
        block += f"typedef {memory_type(indices.type.dtype)} index;\n" + element_macros(moved.dtype)
        end = tail(moved.region, moved.layouts, grid, (moved.region.anchor.output,), first=2)
        return kernel(
            "gather.c",
            region,
            tactic,
            block + end.text,
            (x, indices, *moved.operands(end)),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )
