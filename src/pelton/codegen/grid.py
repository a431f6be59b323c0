"""Shared by templates: the grid of a region's output, addresses of elements, and checks of tails and operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, F32, DType
from pelton.ops.words import slice_
from pelton.plan.layout import Strides, broadcast
from pelton.plan.region import Region

from .code import Text, code, join
from .template import Target


@dataclass(frozen=True)
class Grid:
    """The output's index space as three coordinates b, r and c, each a run of logical axes, outermost first."""

    shape: tuple[Size, ...]
    b: tuple[int, ...]
    r: tuple[int, ...]
    c: tuple[int, ...]

    def address(self, strides: Strides, over: str = "/", c: str = "c", r: str = "r") -> Text:
        """Returns the offset in elements of (b, r, c), for strides over the grid's axes.

        over: the operator of integer division. c, r: the expressions for these coordinates.
        """
        runs = (("b", self.b), (r, self.r), (c, self.c))
        terms = [term for name, axes in runs for term in self._terms(name, axes, strides, over)]
        return join(" + ", terms) if terms else "0"

    def varying(self, strides: Strides) -> str:
        """Returns the coordinates that the offset depends on: some of "brc"."""
        runs = (("b", self.b), ("r", self.r), ("c", self.c))
        return "".join(name for name, axes in runs if any(s for _, s in self.runs(axes, strides)))

    def index(self, axis: int, over: str = "/") -> Text:
        """Returns the index along an axis of r or c."""
        axes, name = (self.r, "r") if axis in self.r else (self.c, "c")
        at = axes.index(axis)
        below = math.prod(self.shape[a] for a in axes[at + 1 :])
        part: Text = name if below == 1 else code(f"({name} {over} {{}})", below)
        return part if at == 0 else code("({} % {})", part, self.shape[axis])

    def step(self, strides: Strides) -> Size | None:
        """Returns the stride along c, 0 for a broadcast; None if there is no single one."""
        runs = self.runs(self.c, strides)
        if not runs:
            return 0
        return runs[0][1] if len(runs) == 1 else None

    def runs(self, axes: tuple[int, ...], strides: Strides) -> list[tuple[Size, Size]]:
        """Returns (size, stride) of the axes, outermost first; merges neighbours that are one axis in memory."""
        runs: list[list[Size]] = []
        for a in axes:
            d, s = self.shape[a], strides[a]
            if d == 1:
                continue
            if runs and runs[-1][1] == d * s:
                runs[-1] = [runs[-1][0] * d, s]
            else:
                runs.append([d, s])
        return [(d, s) for d, s in runs]

    def _terms(self, name: str, axes: tuple[int, ...], strides: Strides, over: str) -> list[Text]:
        terms: list[Text] = []
        below: Size = 1
        for k, (d, s) in reversed(list(enumerate(self.runs(axes, strides)))):
            part: Text = name if below == 1 else code(f"({name} {over} {{}})", below)
            if k > 0:
                part = code("({} % {})", part, d)
            if s:
                terms.append(part if s == 1 else code("{} * {}", part, s))
            below *= d
        return terms[::-1]


def grid_of(shape: Sequence[int], kind: str) -> Grid:
    """Returns a usual grid: "pixels" (n | spatial | channel) or "rows" (leading axes | second last | last)."""
    rank = len(shape)
    if kind == "pixels":
        return Grid(tuple(shape), (0,), tuple(range(2, rank)), (1,))
    return Grid(tuple(shape), tuple(range(rank - 2)), (rank - 2,) if rank > 1 else (), (rank - 1,) if rank else ())


def scalar_constant(region: Region, v: Value):
    """Returns the number in a constant of one element, or None."""
    array = region.body.constants.get(v)
    return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None


def is_computable(dtype: DType) -> bool:
    """True if kernels may compute with this element type: a number or a bool."""
    return dtype.is_float or dtype.is_integer or dtype is BOOL


def tail_rejection(region: Region, shape: tuple[int, ...], axis: int | None = None) -> str | None:
    """Returns the reason to reject the pointwise nodes and slices behind an anchor of this output shape, or None.

    axis: the axis along which kernels can store slices separately (the vector axis of their grid), if any.
    """
    for node in region.pieces:
        is_run = node.op is slice_ and (node.attrs["axes"], node.attrs["steps"]) == ((axis,), (1,))
        if not is_run or node.inputs[0].type.shape != shape:
            return f"{node.op.name} is no slice of {'an' if axis is None else 'the'} axis that is stored in slices"
    for node in region.tail:
        if node.output.type.shape != shape:
            return f"{node.op.name} gives {node.output.type}, the anchor {list(shape)}"
        for v in (*node.inputs, node.output):
            if not is_computable(v.type.dtype):
                return f"{v.type.dtype.value} is no type that kernels compute in"
    return None


def fits_grid(region: Region, grid: Grid, value: Value, strides: Strides) -> bool:
    """True if the tail does not use a value, or can: its stride along the grid's vector axis is 1 or 0."""
    used = value in region.body.outputs or any(value in n.inputs for n in region.tail)
    if not used or scalar_constant(region, value) is not None:
        return True
    step = grid.step(broadcast(value.type.shape, strides, grid.shape))
    return step in (0, 1)


def all_f32(*values: Value) -> bool:
    """True if all values are f32."""
    return all(v.type.dtype is F32 for v in values)


def is_constant(region: Region, v: Value) -> bool:
    """True if the value is a constant of the region."""
    return v in region.body.constants


def ceil_div(a: Size, b: Size) -> Size:
    """Returns a / b, rounded up."""
    return -(-a // b)


def balanced(size: int, goal: int, unit: int) -> int:
    """Returns a multiple of `unit` near the goal that cuts `size` evenly: 49 tiles as 18, 18, 13, not as 24, 24, 1."""
    return ceil_div(ceil_div(size, ceil_div(size, goal)), unit) * unit


def balanced_rows(size: Size, limit: int) -> int:
    """Returns at most `limit` rows for similar tiles: 16 rows as 8 and 8, not as 12 and 4."""
    return ceil_div(size, ceil_div(size, limit)) if is_known(size) else limit


def register_tiles(columns: int, rows: Size, target: Target) -> tuple[tuple[int, int], ...]:
    """Returns (rows, vectors of columns) of register tiles for a product, the best guess first.

    Twelve rows of one vector load more than they compute: they took at least 17 % longer in all of 166 tasks. Only
    widths that two and three vectors would pad use them.
    """
    vectors = ceil_div(columns, target.lanes)
    if target.level.dot == "words":
        return tiles_in_few_registers(vectors, rows, target)
    if target.level.by_lane:
        return tiles_by_lane(vectors, rows)
    if vectors == 1:
        return (12, 1), (6, 1)
    two, three = (6, 2), (4, 3)
    if target.registers >= 32:  # 12 × 2 fits as well, and is within 2 % of 8 × 2
        height = min((8, 7, 6), key=lambda r: ceil_div(rows, r) * r) if is_known(rows) else 8
        two, three = (height, 2), (height, 3)
    return (two, three) if vectors % 2 == 0 or vectors % 3 == 0 else (two, three, (12, 1))


def tiles_in_few_registers(vectors: int, rows: Size, target: Target) -> tuple[tuple[int, int], ...]:
    """Returns the register tile of f32 where a vector is a pair of registers, of which there are few."""
    if target.registers < 16:
        return ((1, 1),)
    return ((4, 2),) if vectors > 1 else ((4, 1),)


# Of a product whose sizes are not known: all tiles divide the rows.
TYPICAL_ROWS, TYPICAL_STEPS = 336, 128


def tiles_by_lane(vectors: int, rows: Size) -> tuple[tuple[int, int], ...]:
    """Returns the two best register tiles where multiply-adds take a lane as a factor.

    The accumulators, a vector of each row and one of columns are in registers: 8 × 3 spills. 4 × 4 takes 3 % more
    instructions than 6 × 4 in ResNet-20, although more of its tiles are within a row.
    """
    tiles = ((6, 4), (7, 3), (8, 2), (12, 1), (6, 1))
    return tuple(sorted(tiles, key=lambda tile: instructions_by_lane(vectors, rows, tile, TYPICAL_STEPS))[:2])


def instructions_by_lane(vectors: int, rows: Size, tile: tuple[int, int], steps: Size) -> float:
    """Returns about how many instructions a product takes where multiply-adds take a lane as a factor.

    Four steps of r × v take 4rv multiply-adds, a load for each row, one for every two vectors of columns, and three for
    the loop: 6 × 4 was counted as 115, 7 × 3 as 100, 8 × 2 as 81. Around them, a tile zeroes, changes and stores rv
    sums.
    """
    height, width = tile
    whole, left = divmod(rows if is_known(rows) else TYPICAL_ROWS, height)

    def instructions(r: int) -> float:
        return (4 * r * width + r + 2 * width + 3) * steps / 4 + 6 * r * width + 40

    return ceil_div(vectors, width) * (whole * instructions(height) + (left > 0) * instructions(left))
