"""Rotary embedding as one pass over rows that reads and writes heads with any strides."""

from __future__ import annotations

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.plan.layout import Layouts, Order, broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.fold import element_macros
from pelton.codegen.grid import Grid, ceil_div
from pelton.codegen.sweep import Sweep, extent, memory_order, task_shape
from pelton.codegen.template import Kernel, Tactic, Target, template


@template
class Rotary(Sweep):
    name = "rotary"
    anchors = ("rotary",)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        x, cos, _ = region.anchor.inputs
        return None if is_known(x.type.shape[-1], cos.type.shape[-1]) else "the length of a row is dynamic"

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the input's axis order: where a transpose split heads for free, another one joins them for free."""
        x = region.anchor.inputs[0]
        last = x.type.rank - 1
        return (*(a for a in memory_order(x.type.shape, layouts[x]) if a != last), last)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        """Returns a grid whose columns are the last axis; r is the innermost of the others, b the rest."""
        shape = region.output.type.shape
        last = len(shape) - 1
        lead = [a for a in memory_order(shape, layouts[region.output]) if a != last]
        inner = next((a for a in reversed(lead) if shape[a] != 1), None)
        return Grid(shape, tuple(a for a in lead if a != inner), () if inner is None else (inner,), (last,))

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        if value in region.anchor.inputs and value.type.shape[-1] > 1 and layouts[value][-1] != 1:
            return False
        return super().fits_columns(region, grid, value, layouts)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rows = extent(grid, (*grid.b, *grid.r))
        yield Tactic(self.name, target.isa, (("RB", task_shape(rows, 1, 2 * extent(grid, grid.c), target, 1)[0]),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, cos, _ = node.inputs
        rows = extent(grid, (*grid.b, *grid.r))
        block = constants(
            ROWS=rows,
            INNER=extent(grid, grid.r),
            D=extent(grid, grid.c),
            PAIRS=cos.type.shape[-1],
            INTERLEAVED=node.attrs["interleaved"],
        )
        row = Grid(grid.shape, grid.b, grid.r, ())
        for name, v in zip(("X", "COS", "SIN"), node.inputs):
            strides = broadcast(v.type.shape, layouts[v], (*grid.shape[:-1], v.type.shape[-1]))
            block += macro(f"{name}_AT(b, r)", row.address(strides))
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel(
            "rotary.c",
            region,
            tactic,
            block + element_macros(x.type.dtype) + end.text,
            (*node.inputs, *end.operands),
            ceil_div(rows, tactic["RB"]),
        )
