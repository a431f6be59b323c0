"""What templates share that go over their output row by row, in the order of axes in which their input lies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pelton.ir.graph import Value
from pelton.plan.layout import Order, Strides, broadcast, far, last_of, order_of
from pelton.plan.region import Region

from .grid import Grid, is_computable, ceil_div, fits_grid, tail_rejection
from .tail import operands
from .template import Layouts, Target, Template

# elements read per task: large enough to hide claiming it, small enough to share out
TASK_ELEMENTS = 16 << 10


def memory_order(shape: Sequence[int], strides: Strides) -> Order:
    """The axes as they lie in memory, outermost first: backward axes by their distance, repeated ones outermost."""
    return order_of(shape, tuple(1 << 62 if s == 0 else abs(far(s)) for s in strides))


def sweep_grid(region: Region, layouts: Layouts, others: Iterable[Strides] = (), without: Sequence[int] = ()) -> Grid:
    """The output's index space as rows × columns: columns run along the innermost axes in memory, as many as every
    operand passes in equal steps.

    others: strides over the output's axes of what is read besides the tail's operands. without: axes that are no
    columns.
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
    """How many places a coordinate has."""
    return math.prod(grid.shape[a] for a in axes)


def task_shape(rows: int, columns: int, cost: int, target: Target, step: int) -> tuple[int, int]:
    """(rows, columns) per task; `cost` elements are read for each of output. Columns come in multiples of `step`,
    however few there are: a kernel for sizes that a run decides may meet more of them."""
    goal = max(1, min(TASK_ELEMENTS, ceil_div(rows * columns * cost, 4 * target.threads)) // cost)
    if columns <= max(goal, step):
        return max(1, min(rows, goal // columns)), ceil_div(columns, step) * step
    return 1, ceil_div(goal, step) * step


class Sweep(Template):
    """Base of these templates. The output lies in the order of the first input; operands of the tail follow it."""

    def rejection(self, region: Region) -> str | None:
        if reason := super().rejection(region):
            return reason
        node = region.anchor
        for v in (*node.inputs, *node.outputs):
            if not self.is_supported(region, v):
                return f"{v.type.dtype.value} is not held by kernels"
        return tail_rejection(region, node.outputs[0].type.shape)

    def is_supported(self, region: Region, value: Value) -> bool:
        """Whether elements of the type can be loaded and stored."""
        return is_computable(value.type.dtype)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        x = region.anchor.inputs[0]
        return memory_order(x.type.shape, layouts[x])

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return last_of(memory_order(region.output.type.shape, layouts[region.output]), value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        grid = self.grid(region, layouts)
        changes = value in region.body.outputs  # the columns, perhaps
        ask = (*region.anchor.inputs, *operands(region)) if changes else (value,)
        return all(self.fits_columns(region, grid, v, layouts) for v in ask)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        """Rows and columns of the output."""
        return sweep_grid(region, layouts, [layouts[region.anchor.inputs[0]]])

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        """Whether one operand can be read or written along the columns."""
        if value is region.anchor.inputs[0] and grid.step(layouts[value]) != 1 and extent(grid, grid.c) != 1:
            return False
        return fits_grid(region, grid, value, layouts[value])
