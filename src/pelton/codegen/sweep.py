"""Shared by templates that sweep over their output row by row, in the memory order of their input's axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pelton.ir.graph import Value
from pelton.plan.layout import Order, Strides, broadcast, far, last_of, order_of
from pelton.plan.region import Region

from .grid import Grid, is_computable, ceil_div, fits_grid, tail_rejection
from .tail import operands
from .template import Layouts, Target, Template

TASK_ELEMENTS = 16 << 10  # elements read per task: enough to hide the cost of claiming one, few enough to balance


def memory_order(shape: Sequence[int], strides: Strides) -> Order:
    """Returns the axes by stride, outermost first: negative strides by magnitude, broadcast axes outermost."""
    return order_of(shape, tuple(1 << 62 if s == 0 else abs(far(s)) for s in strides))


def sweep_grid(region: Region, layouts: Layouts, others: Iterable[Strides] = (), without: Sequence[int] = ()) -> Grid:
    """Returns the output's rows × columns; columns are the innermost axes with one stride in every operand.

    others: strides, over the output's axes, of operands besides the tail's. without: axes that may not be columns.
    """
    shape = region.output.type.shape
    strides = [*(broadcast(v.type.shape, layouts[v], shape) for v in operands(region)), *others]
    order = memory_order(shape, layouts[region.output])
    columns: tuple[int, ...] = ()
    for a in reversed(order):
        more = (a, *columns)
        if a in without or any(Grid(shape, (), (), more).step(s) is None for s in strides):
            break
        columns = more
    return Grid(shape, (), order[: len(order) - len(columns)], columns)


def extent(grid: Grid, axes: Sequence[int]) -> int:
    """Returns the size of a coordinate made of these axes."""
    return math.prod(grid.shape[a] for a in axes)


def task_shape(rows: int, columns: int, cost: int, target: Target, step: int) -> tuple[int, int]:
    """Returns (rows, columns) per task, where each element of the output reads `cost` elements.

    Columns are a multiple of `step` even where there are fewer: a kernel for dynamic sizes may meet more.
    """
    goal = max(1, min(TASK_ELEMENTS, ceil_div(rows * columns * cost, 4 * target.threads)) // cost)
    if columns <= max(goal, step):
        return max(1, min(rows, goal // columns)), ceil_div(columns, step) * step
    return 1, ceil_div(goal, step) * step


class Sweep(Template):
    """Base of these templates: the output and the tail's operands have the first input's order of axes."""

    def rejection(self, region: Region) -> str | None:
        if reason := super().rejection(region):
            return reason
        node = region.anchor
        for v in (*node.inputs, *node.outputs):
            if not self.is_supported(region, v):
                return f"{v.type.dtype.value} is no type that kernels load and store"
        return tail_rejection(region, node.outputs[0].type.shape)

    def is_supported(self, region: Region, value: Value) -> bool:
        """True if elements of the value's type can be loaded and stored."""
        return is_computable(value.type.dtype)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        x = region.anchor.inputs[0]
        return memory_order(x.type.shape, layouts[x])

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return last_of(memory_order(region.output.type.shape, layouts[region.output]), value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        grid = self.grid(region, layouts)
        is_output = value in region.body.outputs  # the columns, and thus all operands, depend on it
        affected = (*region.anchor.inputs, *operands(region)) if is_output else (value,)
        return all(self.fits_columns(region, grid, v, layouts) for v in affected)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        """Returns the rows and columns of the output."""
        return sweep_grid(region, layouts, [layouts[region.anchor.inputs[0]]])

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        """True if an operand can be read or written along the columns."""
        if value is region.anchor.inputs[0] and grid.step(layouts[value]) != 1 and extent(grid, grid.c) != 1:
            return False
        return fits_grid(region, grid, value, layouts[value])
