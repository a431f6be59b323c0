"""Pointwise regions, and copies between layouts."""

from __future__ import annotations

import math

from pelton.ir.graph import Value
from pelton.ops.words import copy
from pelton.plan.layout import Layouts, Order, broadcast, collapse, is_dense, last_of, order_of, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.grid import Grid, is_computable, ceil_div, scalar_constant
from pelton.codegen.tail import operands
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

TILE = 16 << 10  # elements per task: enough to hide the cost of claiming one, few enough to balance


def flatten(region: Region, layouts: Layouts) -> tuple[Grid, Layouts]:
    """Returns the region's index space as rows × columns, and strides over it; merges axes where all operands allow."""
    shape = region.output.type.shape
    order = order_of(shape, layouts[region.output])
    values = operands(region)
    full = [broadcast(v.type.shape, layouts[v], shape) for v in values]
    sizes, steps = collapse([shape[a] for a in order], [[s[a] for a in order] for s in full])
    sizes = sizes or [1]
    grid = Grid(tuple(sizes), (), tuple(range(len(sizes) - 1)), (len(sizes) - 1,))
    return grid, Layouts({v: tuple(s) or (0,) for v, s in zip(values, steps)})


@template
class Transpose(Template):
    """Copies that change the axis of unit stride; Pointwise, declared later, takes all other copies."""

    name = "transpose"
    dynamic = True

    def rejection(self, region: Region) -> str | None:
        if len(region.body.nodes) != 1 or region.body.nodes[0].op is not copy:
            return "not a copy"
        if not is_computable(region.output.type.dtype) or not region.body.inputs or 0 in region.output.type.shape:
            return "empty, without an input, or of a type that kernels do not compute with"
        return None

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        # with dynamic sizes, this may hold for the optimum alone
        return self._axes(region, layouts) is not None

    def _axes(self, region: Region, layouts: Layouts) -> tuple[list[int], list[int], list[int]] | None:
        (x,), y = region.body.inputs, region.output
        if x.type.shape != y.type.shape:
            return None
        order = order_of(y.type.shape, layouts[y])
        sizes, (xs, ys) = collapse([y.type.shape[a] for a in order], [[layouts[v][a] for a in order] for v in (x, y)])
        return (sizes, xs, ys) if len(sizes) >= 2 and ys[-1] == 1 and 1 in xs[:-1] and xs[-1] != 1 else None

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        if self._axes(region, layouts) is not None:
            for jb in (64, 512):
                yield Tactic(self.name, target.isa, (("JB", jb),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        sizes, xs, ys = self._axes(region, layouts)
        i, j = xs.index(1), len(sizes) - 1
        rest = [a for a in range(len(sizes)) if a not in (i, j)]
        outer = Grid(tuple(sizes), tuple(rest), (), ())
        count, dtype = math.prod(sizes[a] for a in rest), region.output.type.dtype
        block = (
            constants(OUTER=count, I=sizes[i], J=sizes[j], XI=1, XJ=xs[j], YI=ys[i], YJ=1)
            + f"typedef {memory_type(dtype)} element;\n"
            + macro("X_AT(b)", outer.address(tuple(xs)))
            + macro("Y_AT(b)", outer.address(tuple(ys)))
            + ("#define TRANSPOSE transpose_f32\n" if dtype.size == 4 else "")
        )
        return kernel(
            "transpose.c",
            region,
            tactic,
            block,
            (region.body.inputs[0], region.output),
            count * ceil_div(sizes[j], tactic["JB"]),
        )


@template
class Pointwise(Template):
    name = "pointwise"
    each_once = True
    dynamic = True

    def rejection(self, region: Region) -> str | None:
        if region.anchors:
            return "not only pointwise"
        shape = region.output.type.shape
        if 0 in shape:
            return "nothing to compute"
        for node in region.body.nodes:
            if node.op.scalar is None:
                return f"{node.op.name} is not pointwise"
            if node.output.type.shape != shape:
                return "outputs of different shapes"
            for v in (*node.inputs, node.output):
                if not is_computable(v.type.dtype):
                    return f"{v.type.dtype.value} is no type that kernels compute in"
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        shape = value.type.shape
        full = [
            v for v in operands(region) if v.type.shape == shape and v in layouts and v not in region.body.constants
        ]
        for v in full:
            if is_dense(shape, layouts[v]):
                return order_of(shape, layouts[v])
        return order_of(shape, layouts[full[0]]) if full else row_major(len(shape))

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return last_of(order_of(region.output.type.shape, layouts[region.output]), value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        if region.body.nodes[0].op is copy or scalar_constant(region, value) is not None:
            return True
        grid, flat = flatten(region, layouts)
        return grid.step(flat[value]) in (0, 1)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid, _ = flatten(region, layouts)
        cols = max(grid.shape[-1], 1)  # 0 at the usual sizes may be more at others
        rows = math.prod(grid.shape[:-1])
        goal = max(256, min(TILE, ceil_div(rows * cols, 4 * target.threads)))
        cb = max(1, ceil_div(cols, target.lanes)) * target.lanes if cols <= goal else ceil_div(goal, 64) * 64
        yield Tactic(self.name, target.isa, (("RB", max(1, min(rows, goal // max(1, cols)))), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        grid, flat = flatten(region, layouts)
        end = tail(region, flat, grid, (), first=0, flat=True)
        rows, cols = math.prod(grid.shape[:-1]), grid.shape[-1]
        return kernel(
            "pointwise.c",
            region,
            tactic,
            constants(ROWS=rows, COLS=cols) + end.text,
            end.operands,
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )
