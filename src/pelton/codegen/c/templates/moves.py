"""Moves of elements (padding, repetition, triangles, nearest neighbours), and the base of all moving templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pelton.ir.dims import Size, is_known, maximum
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, STRING, DType
from pelton.ops.resize import axis_taps
from pelton.plan.layout import Layouts, Order, Strides
from pelton.plan.region import Region

from pelton.codegen.c.emit import MAX_TABLE_ENTRIES, compute_type, constants, kernel, tail
from pelton.codegen.c.fold import element_macros
from pelton.codegen.code import Text, code, join
from pelton.codegen.grid import Grid, is_computable, ceil_div, fits_grid
from pelton.codegen.sweep import Sweep, extent, memory_order, task_shape, sweep_grid
from pelton.codegen.tail import Tail
from pelton.codegen.template import Kernel, Tactic, Target, template


@dataclass(frozen=True)
class MovedRegion:
    """A region with an element type that kernels load and store."""

    region: Region
    layouts: Layouts
    dtype: DType
    originals: dict[Value, Value]  # values of `region` → those of the original region

    def operands(self, end: Tail) -> tuple[Value, ...]:
        """Returns the operands of its tail, as values of the original region."""
        return tuple(self.originals.get(v, v) for v in end.operands)


def as_bits(region: Region, layouts: Layouts) -> MovedRegion:
    """Returns the region with elements that only move as unsigned integers of their size."""
    node = region.anchor
    dtype = node.output.type.dtype
    if region.tail or (is_computable(dtype) and compute_type(dtype) == dtype.value and dtype is not BOOL):
        return MovedRegion(region, layouts, dtype, {})
    bits = DType(f"u{8 * dtype.size}")
    y = Value(node.output.type.with_dtype(bits), node.output.name)
    anchor = Node(node.op, node.inputs, node.attrs, (y,), node.name)
    moved = Region(region.body.replace(nodes=(anchor,), outputs=(y,)), (anchor,))
    return MovedRegion(moved, layouts.moved({y: layouts[node.output]}), bits, {y: node.output})


def expand_axis(order: Order, axis: int, count: int) -> Order:
    """Returns an order of axes with `count` axes in place of one."""
    out: list[int] = []
    for a in order:
        if a == axis:
            out += range(axis, axis + count)
        else:
            out.append(a if a < axis else a + count - 1)
    return tuple(out)


class MoveTemplate(Sweep):
    """Base of templates that move elements: of any type unless a tail computes on them, with any strides."""

    def is_supported(self, region: Region, value: Value) -> bool:
        dtype = value.type.dtype
        return is_computable(dtype) if region.tail else dtype is not STRING and dtype.size <= 8

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        return fits_grid(region, grid, value, layouts[value])


@dataclass(frozen=True)
class AxisMap:
    """The places on the input's axis of the elements along an output axis."""

    source: Callable[[Text], Text] | None  # C of an output index to that of the input's; None: they are equal
    first: Size = 0  # elements of the input that are skipped at the start
    has_gaps: bool = False  # True if some indices have no element
    table: tuple[int, ...] = ()  # input indices, if `source` looks them up

    @property
    def is_steady(self) -> bool:
        """True if neighbours come from neighbours, except at the ends of runs."""
        return not self.table


PAD_FUNCTIONS = {"constant": "within", "reflect": "mirrored", "edge": "clamped", "wrap": "wrapped"}


def index_code(form: str, *sizes: Size) -> Callable[[Text], Text]:
    """Returns the function that replaces each `{}` of C by an index, and then these sizes."""
    return lambda index: code(form, index, *sizes)


def axis_maps(node: Node) -> list[AxisMap]:
    """Returns the maps of all axes; those of a triangle (trilu) do not show which elements it omits."""
    x, a, name = node.inputs[0].type, node.attrs, node.op.name
    if name == "tile":
        return [AxisMap(None if r == 1 else index_code("wrapped({}, {})", d)) for d, r in zip(x.shape, a["repeats"])]
    if name == "pad":
        out = []
        for d, before, after in zip(x.shape, a["pads"][: x.rank], a["pads"][x.rank :]):
            first, moved = maximum(0, -before), maximum(0, before, after) != 0
            n = d - first - maximum(0, -after)
            index = index_code(PAD_FUNCTIONS[a["mode"]] + "({} - {}, {})", maximum(0, before), n) if moved else None
            out.append(AxisMap(index, first, moved and a["mode"] == "constant"))
        return out
    if name == "resize":
        out = []
        for axis, (size, new, scale) in enumerate(zip(x.shape, a["shape"], a["scales"])):
            if size == new and scale == 1:
                out.append(AxisMap(None))
                continue
            ((places, _),) = axis_taps(
                size,
                new,
                scale,
                mode="nearest",
                coordinates=a["coordinates"],
                nearest=a["nearest"],
                cubic_a=0.0,
                exclude_outside=False,
            )
            out.append(AxisMap(index_code(f"table{axis}[{{}}]"), table=tuple(map(int, places))))
        return out
    return [AxisMap(None)] * x.rank


@template
class Move(MoveTemplate):
    name = "move"
    dynamic = True
    anchors = ("pad", "tile", "trilu", "resize", "bit_cast")

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.op.name == "resize":
            if node.attrs["mode"] != "nearest":
                return "not the nearest neighbour"
            if node.attrs["roi"]:
                return "a part of the input"
            x, y = node.inputs[0].type.shape, node.output.type.shape
            if not all(
                is_known(old, new) or (old == new and scale == 1) for old, new, scale in zip(x, y, node.attrs["scales"])
            ):
                return "the size of a resized axis is dynamic"
            resized = [
                n for d, n, scale in zip(x, y, node.attrs["scales"]) if is_known(d, n) and (d != n or scale != 1)
            ]
            if sum(resized) > MAX_TABLE_ENTRIES:
                return f"its tables of indices have more than {MAX_TABLE_ENTRIES} entries"
        return None

    def mapped_axes(self, region: Region) -> tuple[int, ...]:
        """Returns the axes along which input and output have different indices."""
        node = region.anchor
        if node.op.name == "trilu":
            rank = node.inputs[0].type.rank
            return rank - 2, rank - 1
        return tuple(a for a, m in enumerate(axis_maps(node)) if m.source)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        """Returns a grid whose columns are axes with equal indices, or else the innermost axis."""
        mapped = self.mapped_axes(region)
        grid = sweep_grid(region, layouts, [layouts[region.anchor.inputs[0]]], without=mapped)
        if extent(grid, grid.c) != 1:
            return grid
        order = memory_order(grid.shape, layouts[region.output])
        inner = next((a for a in reversed(order) if grid.shape[a] != 1), order[-1] if order else None)
        return grid if inner is None else Grid(grid.shape, (), tuple(a for a in order if a != inner), (inner,))

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rb, cb = task_shape(extent(grid, grid.r), extent(grid, grid.c), 2, target, 8 * target.lanes)
        yield Tactic(self.name, target.isa, (("RB", rb), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x = node.inputs[0]
        rows, cols, axes = extent(grid, grid.r), extent(grid, grid.c), axis_maps(node)
        filled = node.op.name == "pad" and any(m.has_gaps for m in axes)
        moved = as_bits(region, layouts)
        strides = layouts[x]
        inner = next((axes[a] for a in grid.c if axes[a].source), None)
        step = grid.step(strides)
        block = constants(
            ROWS=rows,
            COLS=cols,
            XC=step,
            STEADY=(inner is None or inner.is_steady) and (step == 1 or cols == 1),
            FILLED=filled,
        )
        block += "".join(
            f"static const int table{a}[] = {{{', '.join(map(str, m.table))}}};\n"
            for a, m in enumerate(axes)
            if m.table
        )
        block += self._row(node, grid, axes, strides)
        column = inner.source("(o)") if inner else "((o) >= l.lo && (o) < l.hi ? (o) : -1)"
        block += code("#define COLUMN(l, o) {}\n", column) + element_macros(moved.dtype)
        operands = (x, node.inputs[1]) if filled else (x,)
        end = tail(moved.region, moved.layouts, grid, (moved.region.anchor.output,), first=len(operands))
        return kernel(
            "move.c",
            region,
            tactic,
            block + end.text,
            (*operands, *moved.operands(end)),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )

    def _row(self, node: Node, grid: Grid, axes: list[AxisMap], strides: Strides) -> Text:
        """Emits C for the row of the input that belongs to row r of the output."""
        kept = Grid(grid.shape, (), grid.r, ()).address(tuple(0 if m.source else s for m, s in zip(axes, strides)))
        start = sum(m.first * s for m, s in zip(axes, strides))
        lines: list[Text] = [code("idx at = {} + {};", kept, start) if start != 0 else code("idx at = {};", kept)]
        lo: Text = "0"
        hi: Text = "COLS"
        for a in grid.r:
            if axes[a].source:
                lines.append(code(f"const idx i{a} = {{}};", axes[a].source(grid.index(a))))
                if axes[a].has_gaps:
                    lines.append(f"if (i{a} < 0) return (line){{ NOWHERE, 0, 0 }};")
                lines.append(code(f"at += i{a} * {{}};", strides[a]))
        if node.op.name == "trilu":
            i, j = len(grid.shape) - 2, len(grid.shape) - 1
            k, upper = node.attrs["k"], node.attrs["upper"]
            if j in grid.c and upper:
                lo = code("{} + {}", grid.index(i), k)
            elif j in grid.c:
                hi = code("{} + {}", grid.index(i), k + 1)
            elif i in grid.c and upper:
                hi = code("{} - {}", grid.index(j), k - 1)
            elif i in grid.c:
                lo = code("{} - {}", grid.index(j), k)
            else:
                outside = code("{} < {} + {}" if upper else "{} > {} + {}", grid.index(j), grid.index(i), k)
                lines.append(code("if ({}) return (line){ NOWHERE, 0, 0 };", outside))
        lines.append(code("return (line){ at, {}, {} };", lo, hi))
        return code("AI line row(const args *a, idx r) {\n    {}\n}\n", join("\n    ", lines))
