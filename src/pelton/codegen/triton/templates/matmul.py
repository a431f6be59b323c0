"""Matrix products without tensor cores: of f64 and of integers."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import BF16, BOOL, F16, F32
from pelton.codegen.grid import Grid, ceil_div, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, broadcast
from pelton.plan.region import Region

from pelton.codegen.triton.emit import computable, register_type, kernel, emit_offset, tail, nodes_rejection


@gpu_template
class TritonMatMul(Template):
    name = "matmul"
    anchors = ("matmul",)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        dtype = node.output.type.dtype
        if dtype in (F32, F16, BF16, BOOL) or not computable(dtype):
            return f"{dtype.value}, for which there are faster products, or none"
        if min(v.type.rank for v in node.inputs) < 2:
            return "an operand is a vector"
        return tail_rejection(region, node.output.type.shape) or nodes_rejection(region.tail)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        for bm, bn, bk, warps in ((16, 16, 16, 4), (32, 32, 8, 8), (32, 16, 16, 8)):
            yield Tactic(self.name, target.isa, (("BM", bm), ("BN", bn), ("BK", bk), ("WARPS", warps)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p = MatrixProduct(region, layouts)
        grid = p.grid
        a_shape, b_shape = (*grid.shape[:-1], p.k), (*grid.shape[:-2], p.k, p.n)
        a, b = broadcast(p.a.type.shape, layouts[p.a], a_shape), broadcast(p.b.type.shape, layouts[p.b], b_shape)
        block = emit_offset("a_at", Grid(a_shape, grid.b, grid.r, ()), a) + emit_offset(
            "b_at", Grid(b_shape, grid.b, (), grid.c), b
        )
        block = f"KIND = tl.constexpr({register_type(p.node.output.type.dtype)})\n\n\n" + block
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        return kernel(
            "matmul.py",
            region,
            tactic,
            dict(M=p.m, N=p.n, K=p.k, AK=a[-1], BK_STEP=b[-2]),
            block + end.text,
            (p.a, p.b, *end.operands),
            p.batch * ceil_div(p.m, tactic["BM"]) * ceil_div(p.n, tactic["BN"]),
            layouts,
        )
