"""Ops on the order of elements along an axis: cumulative sums and products, the k largest."""

from __future__ import annotations

import math

from pelton.ir.dims import bounds, is_known
from pelton.ir.graph import Value
from pelton.ir.types import BOOL
from pelton.codegen.grid import Grid, ceil_div, tail_rejection
from pelton.codegen.sweep import memory_order
from pelton.codegen.template import Kernel, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, Order, dense
from pelton.plan.region import Region

from pelton.codegen.triton.emit import computable, register_type, kernel, emit_offset, tail, nodes_rejection
from .pointwise import power_of_two

MAX_SORTED = 1024  # elements sorted at once


class AxisTemplate(Template):
    """Rows along one axis, in memory order; results in the input's order."""

    dynamic = True

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        x = region.anchor.inputs[0]
        return memory_order(x.type.shape, layouts[x])

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def grid(self, region: Region, layouts: Layouts, of: Value) -> Grid:
        x, axis = region.anchor.inputs[0], region.anchor.attrs["axis"]
        return Grid(of.type.shape, (), tuple(a for a in memory_order(x.type.shape, layouts[x]) if a != axis), (axis,))

    def sizes(self, region: Region, layouts: Layouts) -> tuple[int, int]:
        grid = self.grid(region, layouts, region.anchor.inputs[0])
        return math.prod(grid.shape[a] for a in grid.r), grid.shape[grid.c[0]]


@gpu_template
class TritonScan(AxisTemplate):
    name = "scan"
    anchors = ("cumsum", "cumprod")

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if not computable(node.output.type.dtype) or node.output.type.dtype is BOOL:
            return f"{node.op.name} of {node.output.type.dtype.value}"
        return tail_rejection(region, node.output.type.shape) or nodes_rejection(region.tail)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        rows, cols = self.sizes(region, layouts)
        for size, warps in ((1024, 4), (2048, 8), (512, 4)):
            cb = power_of_two(cols, 1, size)
            yield Tactic(
                self.name, target.isa, (("RB", power_of_two(rows, 1, size // cb)), ("CB", cb), ("WARPS", warps))
            )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, (rows, cols) = region.anchor, self.sizes(region, layouts)
        x, grid = node.inputs[0], self.grid(region, layouts, node.inputs[0])
        block = (
            f"PRODUCTS, EXCLUSIVE = tl.constexpr({node.op.name == 'cumprod'}),"
            f" tl.constexpr({node.attrs['exclusive']})\nREVERSE, KIND = tl.constexpr({node.attrs['reverse']}),"
            f" tl.constexpr({register_type(x.type.dtype)})\n\n\n"
        )
        end = tail(region, layouts, grid, (node.output,), first=1)
        return kernel(
            "scan.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols),
            block + emit_offset("x_at", grid, layouts[x]) + end.text,
            (x, *end.operands),
            ceil_div(rows, tactic["RB"]),
            layouts,
        )


@gpu_template
class TritonTopK(AxisTemplate):
    name = "top_k"
    anchors = ("top_k",)
    without_tail = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, k = node.inputs[0].type, node.attrs["k"]
        if not computable(x.dtype) or x.dtype is BOOL or x.dtype.size > 4:
            return f"top_k of {x.dtype.value}"
        if not is_known(k) or k > MAX_SORTED:
            return f"more than the {MAX_SORTED} largest"
        return "too long a row" if bounds(x.shape[node.attrs["axis"]])[1] >= 1 << 31 else None

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        rows, cols = self.sizes(region, layouts)
        held = power_of_two(region.anchor.attrs["k"], 2)
        for size, warps in ((512, 4), (1024, 4), (2048, 8)):
            cb = power_of_two(cols, held, max(held, size))
            yield Tactic(
                self.name,
                target.isa,
                (("RB", power_of_two(rows, 1, max(1, 256 // cb))), ("CB", cb), ("HELD", held), ("WARPS", warps)),
            )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, (rows, cols) = region.anchor, self.sizes(region, layouts)
        x = node.inputs[0]
        grid = self.grid(region, layouts, node.outputs[0])
        lies = {v: layouts[v] if v in layouts else dense(v.type.shape) for v in node.outputs}
        block = (
            f"COUNT, SMALLEST = tl.constexpr({node.attrs['k']}), tl.constexpr({not node.attrs['largest']})\n"
            f"KIND = tl.constexpr({register_type(x.type.dtype)})\n\n\n"
            + emit_offset("x_at", self.grid(region, layouts, x), layouts[x])
        )
        end = tail(region, layouts.moved(lies), grid, node.outputs, first=1)
        return kernel(
            "top_k.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols),
            block + end.text,
            (x, *end.operands),
            ceil_div(rows, tactic["RB"]),
            layouts,
        )
