"""Gathers: rows, elements and index tuples."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import DType
from pelton.codegen.c.templates import gather
from pelton.codegen.c.templates.gather import GatherStrides
from pelton.codegen.code import Text, code, join
from pelton.codegen.grid import Grid, ceil_div, tail_rejection
from pelton.codegen.sweep import extent, memory_order
from pelton.codegen.template import Kernel, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.triton.emit import (
    computable,
    function,
    in_registers,
    kernel,
    movable,
    emit_offset,
    tail,
    nodes_rejection,
)
from .pointwise import power_of_two


class ElementTemplate(Template):
    """Base of templates whose programs compute a block of output elements, each from any place. Operands may have any
    strides."""

    def rejection(self, region: Region) -> str | None:
        if reason := super().rejection(region):
            return reason
        holds = movable if self.moves(region) and not region.tail else computable
        for v in (*region.anchor.inputs, *region.anchor.outputs):
            if not holds(v.type.dtype):
                return f"kernels do not support {v.type.dtype.value}"
        return tail_rejection(region, region.anchor.output.type.shape) or nodes_rejection(region.tail)

    def moves(self, region: Region) -> bool:
        """True if the elements only move."""
        return True

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        """Returns a grid whose columns run along the innermost axis in memory."""
        y = region.anchor.output
        order = memory_order(y.type.shape, layouts[region.output])
        return Grid(y.type.shape, (), order[:-1], order[-1:])

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        rows, cols = grid_extents(self.grid(region, layouts))
        for size, warps in ((1024, 4), (512, 4), (2048, 8)):
            cb = power_of_two(cols, 1, size)
            yield Tactic(
                self.name, target.isa, (("RB", power_of_two(rows, 1, size // cb)), ("CB", cb), ("WARPS", warps))
            )


def grid_extents(grid: Grid) -> tuple[Size, Size]:
    """Returns the numbers of a grid's rows and columns."""
    return extent(grid, grid.r), extent(grid, grid.c)


def emit_held(dtype: DType) -> Text:
    """Emits a device function that converts a loaded value to its type in registers."""
    return function("held", "x", code("return {}", in_registers("x", dtype)))


@gpu_template
class TritonGather(ElementTemplate, gather.Gather):
    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, p, grid = region.anchor, GatherStrides(region, layouts), self.grid(region, layouts)
        x, indices = node.inputs
        rows, cols = grid_extents(grid)
        terms = [
            code(f"pick(i + {k} * {{}}, inside, {{}}, {{}})", p.between, size, step)
            for k, (size, step) in enumerate(zip(p.sizes, p.steps))
        ]
        block = emit_offset("x_at", grid, p.x) + emit_offset("i_at", grid, p.indices)
        block += function("picked", "i, inside, a", code("return {}", join(" + ", terms))) + emit_held(x.type.dtype)
        end = tail(region, layouts, grid, (node.output,), first=2)
        return kernel(
            "gather.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols),
            block + end.text,
            (x, indices, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )
