"""Reductions over any axes in any layout: sums, means, products and extremes."""

from __future__ import annotations

import math

from pelton.ir.types import BOOL, F64, I32, I64
from pelton.plan.layout import Layouts, Order, Strides
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.fold import reduction_macros
from pelton.codegen.code import Text
from pelton.codegen.grid import Grid, ceil_div, fits_grid
from pelton.codegen.sweep import Sweep, extent, memory_order, task_shape, sweep_grid
from pelton.codegen.template import Kernel, Tactic, Target, template

KINDS = {"reduce_sum": "sum", "reduce_mean": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min"}


class ReducedAxes:
    """The axes of a reduction: those that the output keeps, and the strides of the reduced ones."""

    def __init__(self, region: Region, layouts: Layouts, axes: tuple[int, ...]):
        node = region.anchor
        self.x = node.inputs[0]
        shape, strides = self.x.type.shape, layouts[self.x]
        out = node.outputs[0].type.rank
        kept = [a for a in range(len(shape)) if a not in axes]
        # kept axis → output axis
        self.place = {a: a for a in kept} if out == len(shape) else {a: i for i, a in enumerate(kept)}
        self.kept: Strides = tuple(next((strides[a] for a, i in self.place.items() if i == o), 0) for o in range(out))
        order = [a for a in memory_order(shape, strides) if a in axes]
        # outermost first
        self.runs = Grid(shape, (), tuple(order), ()).runs(tuple(order), strides) or [(1, 1)]

    @property
    def outer(self) -> int:
        """The number of runs of reduced elements."""
        return math.prod(d for d, _ in self.runs[:-1])

    def outer_at(self) -> Text:
        """Emits C for the offset of run r."""
        sizes = tuple(d for d, _ in self.runs[:-1])
        return Grid(sizes, (), tuple(range(len(sizes))), ()).address(tuple(s for _, s in self.runs[:-1]))


class ReductionTemplate(Sweep):
    """Base of reductions over rows and columns of the output; the input's axis of unit stride is kept or reduced."""

    def axes(self, region: Region) -> tuple[int, ...]:
        return region.anchor.attrs["axes"]

    def output_order(self, region: Region, value, layouts: Layouts) -> Order:
        """Returns the kept axes in the input's order; reduced ones, which have size one, outermost."""
        x = region.anchor.inputs[0]
        r = ReducedAxes(region, layouts, self.axes(region))
        kept = [r.place[a] for a in memory_order(x.type.shape, layouts[x]) if a in r.place]
        return (*(a for a in range(value.type.rank) if a not in kept), *kept)

    def copy_order(self, region: Region, value, layouts: Layouts) -> Order:
        x = region.anchor.inputs[0]
        if value is not x:
            return super().copy_order(region, value, layouts)
        return memory_order(x.type.shape, layouts[x])

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        return sweep_grid(region, layouts, [ReducedAxes(region, layouts, self.axes(region)).kept])

    def fits_columns(self, region: Region, grid: Grid, value, layouts: Layouts) -> bool:
        if value is region.anchor.inputs[0] and self.runs_along(region, grid, layouts) is None:
            return False
        return fits_grid(region, grid, value, layouts[value])

    def runs_along(self, region: Region, grid: Grid, layouts: Layouts) -> bool | None:
        """True if vectors run along reduced axes, False if along columns, None if neither has unit stride."""
        r = ReducedAxes(region, layouts, self.axes(region))
        if grid.step(r.kept) == 1:
            return False
        return True if r.runs[-1][1] == 1 or math.prod(d for d, _ in r.runs) == 1 else None

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        r = ReducedAxes(region, layouts, self.axes(region))
        rows, cols, cost = extent(grid, grid.r), extent(grid, grid.c), math.prod(d for d, _ in r.runs)
        along = self.runs_along(region, grid, layouts)
        widths = [1] if along else [nv for nv in (8, 4, 2, 1) if nv == 1 or nv * target.lanes <= cols]
        for nv in widths[:2]:
            rb, cb = task_shape(rows, cols, cost, target, nv * target.lanes)
            yield Tactic(self.name, target.isa, (("NV", nv), ("RB", rb), ("CB", cb)))

    def sizes(self, region: Region, layouts: Layouts) -> tuple[Text, int, int]:
        """Returns the region block up to the types and the tail, and the counts of rows and columns."""
        grid = self.grid(region, layouts)
        r = ReducedAxes(region, layouts, self.axes(region))
        rows, cols = extent(grid, grid.r), extent(grid, grid.c)
        n, step = r.runs[-1]
        text = constants(
            ROWS=rows,
            COLS=cols,
            OUTER=r.outer,
            N=n,
            XN=step,
            XC=grid.step(r.kept) or 0,
            COUNT=r.outer * n,
            ALONG=bool(self.runs_along(region, grid, layouts)),
        )
        text += macro("X_AT(r)", Grid(grid.shape, (), grid.r, ()).address(r.kept)) + macro("OUTER_AT(r)", r.outer_at())
        return text, rows, cols


@template
class Reduce(ReductionTemplate):
    name = "reduce"
    dynamic = True
    anchors = (*KINDS, "byte_sum")

    def node_rejection(self, region: Region) -> str | None:
        name, dtype = region.anchor.op.name, region.anchor.inputs[0].type.dtype
        if dtype is BOOL and name not in ("reduce_max", "reduce_min"):
            return f"{name} of bool"
        if name == "reduce_mean" and dtype.is_integer and dtype not in (I64, I32):
            return f"a mean of {dtype.value}, whose sum does not fit"
        return None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, dtype = node.inputs[0], node.inputs[0].type.dtype
        mean = node.op.name == "reduce_mean"
        block, rows, cols = self.sizes(region, layouts)
        within = I64 if mean and dtype.is_integer else None
        if node.op.name == "byte_sum":
            within = I32
        block += reduction_macros(KINDS.get(node.op.name, "sum"), dtype, within)
        result = "v"
        if mean and dtype.is_float:
            result = f"((v) / {'COUNT' if dtype is F64 else '(float)COUNT'})"
        elif mean:
            result = f"cast_i64_{dtype.value}(i64_div(v, bc_i64(COUNT)))"
        end = tail(region, layouts, self.grid(region, layouts), (node.output,), first=1)
        return kernel(
            "reduce.c",
            region,
            tactic,
            block + f"#define RESULT(v) {result}\n" + end.text,
            (x, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )
