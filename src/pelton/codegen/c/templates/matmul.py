"""Matrix products that `gemm` rejects: of f64, of integers, whose sums wrap, and with a constant on the left."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import F32
from pelton.plan.layout import Layouts, broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.fold import element_macros, is_native
from pelton.codegen.product import MatrixProduct
from pelton.codegen.grid import Grid, is_constant, ceil_div, fits_grid, tail_rejection
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

MR = 4  # rows whose sums stay in registers, even if each of two vectors takes two


@template
class MatMul(Template):
    name = "matmul"
    anchors = ("matmul",)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        dtype = node.output.type.dtype
        if not is_native(dtype) or dtype is F32 and not is_constant(region, node.inputs[0]):
            return f"{dtype.value}, for which there are faster products"
        if min(v.type.rank for v in node.inputs) < 2:
            return "an operand is a vector"
        return tail_rejection(region, node.output.type.shape)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        p, shape, strides = MatrixProduct(region), value.type.shape, layouts[value]
        if value is p.b and shape[-1] != 1 and strides[-1] != 1:
            return False
        return fits_grid(region, p.grid, value, strides)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p = MatrixProduct(region, layouts)
        nv = 2 if p.n > target.lanes else 1
        nb = min(ceil_div(p.n, target.lanes) * target.lanes, 8 * target.lanes)
        tasks = p.batch * ceil_div(p.n, nb)
        mb = 32 if p.m * tasks >= 32 * 4 * target.threads else MR
        yield Tactic(self.name, target.isa, (("MR", MR), ("NV", nv), ("MB", mb), ("NB", nb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p = MatrixProduct(region, layouts)
        grid, dtype = p.grid, p.node.output.type.dtype
        a_shape, b_shape = (*grid.shape[:-1], p.k), (*grid.shape[:-2], p.k, p.n)
        a = broadcast(p.a.type.shape, layouts[p.a], a_shape)
        b = broadcast(p.b.type.shape, layouts[p.b], b_shape)
        rows = Grid(a_shape, grid.b, grid.r, ())
        runs = rows.runs(rows.r, a)
        added = "vec_fma(x, y, acc)" if dtype.is_float else "((acc) + (x) * (y))"
        block = constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=runs[0][1] if runs else 0, AK=a[-1], BK=b[-2])
        block += macro("A_AT(b)", Grid(a_shape, grid.b, (), ()).address(a))
        block += macro("B_AT(b)", Grid(b_shape, grid.b, (), ()).address(b))
        block += element_macros(dtype) + f"#define ONE(p) bc_{dtype.value}(*(p))\n#define ADDED(acc, x, y) {added}\n"
        end = tail(region, layouts, grid, (p.node.output,), first=2)
        return kernel(
            "matmul.c",
            region,
            tactic,
            block + end.text,
            (p.a, p.b, *end.operands),
            p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(p.n, tactic["NB"]),
        )
