"""What the matrix-like templates share: the grid of a region's output, and whether its pointwise tail and operands can be had."""
from __future__ import annotations

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32
from pelton.ops.words import slice_
from pelton.plan.layout import Strides, broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import Grid, computable, scalar_constant
from .template import Target


def tail_refusal(region: Region, shape: tuple[int, ...], axis: int | None = None) -> str | None:
    """Why the pointwise nodes of a region cannot follow an anchor whose output has this shape, nor its slices; None where they can.

    axis: the one along which kernels can write slices apart (the vector axis of their grid).
    """
    for node in region.pieces:
        if node.op is not slice_ or node.attrs["axes"] != (axis,) or node.attrs["steps"] != (1,) or node.inputs[0].type.shape != shape:
            return f"{node.op.name} is no run of " + ("an axis that is" if axis is None else f"axis {axis},") + " written in pieces"
    for node in region.tail:
        if node.output.type.shape != shape:
            return f"{node.op.name} gives {node.output.type}, the anchor {list(shape)}"
        for v in (*node.inputs, node.output):
            if not computable(v.type.dtype):
                return f"{v.type.dtype.value} is not held by kernels"
    return None


def fits_grid(region: Region, grid: Grid, value: Value, strides: Strides) -> bool:
    """Whether the tail can read (write) a value, if it does: unit or no stride along the grid's vector axis."""
    used = value in region.body.outputs or any(value in n.inputs for n in region.tail)
    if not used or scalar_constant(region, value) is not None:
        return True
    step = grid.step(broadcast(value.type.shape, strides, grid.shape))
    return step in (0, 1)


def all_f32(*values: Value) -> bool:
    return all(v.type.dtype is F32 for v in values)


def constant(region: Region, v: Value) -> bool:
    return v in region.body.constants


def divide(a: Size, b: Size) -> Size:
    """a / b, rounded up."""
    return -(-a // b)


def even(size: int, goal: int, unit: int) -> int:
    """A size near the goal, a multiple of `unit`, of blocks that are all about as large: 49 tiles as 18, 18 and 13, not as 24, 24 and 1."""
    return divide(divide(size, divide(size, goal)), unit) * unit


def even_rows(size: Size, most: int) -> int:
    """Rows of tiles that are all about as large, at most `most`: 16 as 8 and 8, not as 12 and 4."""
    return divide(size, divide(size, most)) if is_known(size) else most


def register_tiles(columns: int, rows: Size, target: Target) -> tuple[tuple[int, int], ...]:
    """(rows, vectors of columns) of the results that a product may hold in registers, the best guess first. Twelve rows of one vector load more than they
    compute: they were 17 % and more behind in all of 166 tasks, and are left for what two and three vectors would pad."""
    vectors = divide(columns, target.lanes)
    if vectors == 1:
        return (12, 1), (6, 1)
    two, three = (6, 2), (4, 3)
    if target.registers >= 32:                                             # 12 × 2 fits as well: within 2 % of 8 × 2 alone
        high = min((8, 7, 6), key=lambda r: divide(rows, r) * r) if is_known(rows) else 8
        two, three = (high, 2), (high, 3)
    return (two, three) if vectors % 2 == 0 or vectors % 3 == 0 else (two, three, (12, 1))
