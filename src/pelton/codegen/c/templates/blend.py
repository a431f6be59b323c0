"""Blends: weighted sums of elements gathered along an axis, from tensors in any layout."""

from __future__ import annotations

from pelton.ir import dims
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64
from pelton.plan.layout import Layouts, Order, Strides
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.c.fold import element_macros, register_type
from pelton.codegen.code import join
from pelton.codegen.grid import Grid, is_computable, ceil_div
from .moves import MoveTemplate, expand_axis
from pelton.codegen.sweep import extent, memory_order, task_shape, sweep_grid
from pelton.codegen.template import Kernel, Tactic, Target, template


@template
class Blend(MoveTemplate):
    name = "blend"
    dynamic = True
    anchors = ("blend",)

    def is_supported(self, region: Region, value: Value) -> bool:
        return is_computable(value.type.dtype)

    def node_rejection(self, region: Region) -> str | None:
        x, indices, _ = region.anchor.inputs
        if dims.bounds(x.type.shape[region.anchor.attrs["axis"]])[0] < 1:
            return "there may be no element to gather"
        return None if indices.type.dtype in (I64, I32) else f"indices in {indices.type.dtype.value}"

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the input's order, with the axes of the indices in place of the gathered axis."""
        x = region.anchor.inputs[0]
        order = memory_order(x.type.shape, layouts[x])
        return expand_axis(order, region.anchor.attrs["axis"], value.type.rank - x.type.rank + 1)

    def operand_strides(self, region: Region, layouts: Layouts) -> tuple[Strides, Strides, Strides]:
        """Returns the strides of input, indices and weights over the axes of the output."""
        node = region.anchor
        x, *tables = node.inputs
        axis, batch = node.attrs["axis"], node.attrs["batch_dims"]
        rank = tables[0].type.rank - batch - 1
        strides = [
            (*layouts[v][:batch], *[0] * (axis - batch), *layouts[v][batch:-1], *[0] * (x.type.rank - axis - 1))
            for v in tables
        ]
        return (*layouts[x][:axis], *[0] * rank, *layouts[x][axis + 1 :]), strides[0], strides[1]

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        return sweep_grid(region, layouts, self.operand_strides(region, layouts))

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid, taps = self.grid(region, layouts), region.anchor.inputs[1].type.shape[-1]
        rb, cb = task_shape(extent(grid, grid.r), extent(grid, grid.c), max(1, taps), target, 4 * target.lanes)
        yield Tactic(self.name, target.isa, (("RB", rb), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, indices, weights = node.inputs
        axis, walked = node.attrs["axis"], self.operand_strides(region, layouts)
        rows, cols = extent(grid, grid.r), extent(grid, grid.c)
        xc, ic, wc = map(grid.step, walked)
        lane = register_type(x.type.dtype).value
        row = Grid(grid.shape, (), grid.r, ())
        block = constants(
            ROWS=rows,
            COLS=cols,
            TAPS=indices.type.shape[-1],
            SIZE=x.type.shape[axis],
            STEP=layouts[x][axis],
            IK=layouts[indices][-1],
            WK=layouts[weights][-1],
            PICK=cols != 1 and not (xc == 1 and ic == 0 and wc == 0),
            XC=xc,
            IC=ic,
            WC=wc,
        )
        block += join("", [macro(f"{name}_AT(r)", row.address(strides)) for name, strides in zip("XIW", walked)])
        block += f"#define ZERO(w) {lane}_eq(w, (vec)0)\n#define WEIGHTS(p, stride, n) ldg_{lane}(p, stride, n)\n"
        block += f"typedef {memory_type(indices.type.dtype)} index;\n" + element_macros(x.type.dtype)
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel(
            "blend.c",
            region,
            tactic,
            block + end.text,
            (x, indices, weights, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )
