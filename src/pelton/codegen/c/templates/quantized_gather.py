"""Rows of a table of few bits, read from the panels of the product with the same weights."""

from __future__ import annotations

from collections.abc import Iterator

from pelton.ir.graph import Value
from pelton.ir.types import F16, F32, I32, I64, DType
from pelton.plan.layout import Layouts, Order, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.code import code
from pelton.codegen.grid import Grid, ceil_div, fits_grid, is_constant, tail_rejection
from pelton.codegen.sweep import extent, task_shape
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template

from .quantized_linear import VECTORS, Panels


@template
class QuantizedGather(Template):
    name = "quantized_gather"
    anchors = ("quantized_gather",)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        weights, indices, *others = node.inputs
        if node.output.type.dtype is not F32:
            return "not f32"
        if indices.type.dtype not in (I64, I32):
            return f"indices in {indices.type.dtype.value}"
        if not all(is_constant(region, v) for v in (weights, *others)):
            return "the table is not constant"
        if node.attrs["block"] % 16 and node.attrs["block"] < node.attrs["length"]:
            return f"blocks of {node.attrs['block']} elements, no multiple of 16"
        return tail_rejection(region, node.output.type.shape)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return fits_grid(region, _grid(region), value, layouts[value])

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterator[Tactic]:
        grid = _grid(region)
        rows, _ = task_shape(extent(grid, grid.r), extent(grid, grid.c), 2, target, extent(grid, grid.c))
        yield Tactic(self.name, target.isa, (("RB", rows), ("LOSS", int(region.anchor.attrs["round_scales"]))))

    def is_exact(self, tactic: Tactic) -> bool:
        return not tactic["LOSS"]

    def rounded_as(self, tactic: Tactic) -> DType:
        return F16 if tactic["LOSS"] else F32

    def rounding(self, tactic: Tactic) -> str:
        return "scales rounded to f16, as those of the product with the same weights" if tactic["LOSS"] else ""

    def tolerance(self, tactic: Tactic) -> float:
        return super().tolerance(tactic) + (2.0**-11 if tactic["LOSS"] else 0.0)

    def margin(self, tactic: Tactic) -> float:
        return 0.02 if tactic["LOSS"] else 0.0

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, _grid(region)
        panels = Panels(region, VECTORS * target.lanes, self.is_exact(tactic))
        table, indices = node.inputs[:2]
        rows = extent(grid, grid.r)
        kinds = dict(ZEROS=panels.zeros is not None, OFFSETS=panels.offsets is not None)
        block = constants(ROWS=rows, COLS=panels.inner, COUNT=table.type.shape[0], NV=VECTORS, BLOCK=panels.block)
        block += constants(BITS=panels.bits, STEP=panels.step, **kinds)
        block += constants(SCALES=panels.scales_at, NUMBERS=panels.zeros_at, RECORD=panels.record)
        for name, stored in (("scale", memory_type(panels.scale)), ("offset", memory_type(panels.offset))):
            block += code(f"typedef {stored} {name};\n#define LOAD_{name.upper()} ld_{stored}\n")
        block += code(f"typedef {memory_type(indices.type.dtype)} index;\n")
        block += macro("I_AT(r)", Grid(grid.shape, (), grid.r, ()).address((*layouts[indices], 0)))
        end = tail(region, layouts, grid, (node.output,), first=2)
        operands: tuple[Value | Packed, ...] = (indices, panels.packed(), *end.operands)
        return kernel("quantized_gather.c", region, tactic, block + end.text, operands, ceil_div(rows, tactic["RB"]))


def _grid(region: Region) -> Grid:
    shape = region.anchor.output.type.shape
    return Grid(shape, (), tuple(range(len(shape) - 1)), (len(shape) - 1,))
