"""Matrix products of few rows with a computed matrix: vectors, and queries of one step."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.plan.layout import Layouts, Order, broadcast, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.grid import Grid, all_f32, is_constant, ceil_div, fits_grid, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

_MAX_ROWS = 4  # rows; with more, packing the matrix for register tiles pays


@template
class FewRows(Template):
    name = "few"
    anchors = ("matmul",)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if not all_f32(*node.inputs, node.output):
            return "not f32"
        if min(v.type.rank for v in node.inputs) < 2:
            return "an operand is a vector"
        if is_constant(region, node.inputs[1]):
            return "the right operand is constant: its panels are packed at build time"
        rows = MatrixProduct(region).m
        if not is_known(rows) or rows > _MAX_ROWS:
            return f"more than {_MAX_ROWS} rows"
        return tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        p, shape, strides = MatrixProduct(region), value.type.shape, layouts[value]
        if value is p.a and shape[-1] != 1 and strides[-1] != 1:
            return False
        if value is p.b and 1 not in [s for s, d in zip(strides[-2:], shape[-2:]) if d != 1] and shape[-2:] != (1, 1):
            return False
        return fits_grid(region, p.grid, value, strides)

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        p = MatrixProduct(region, layouts)
        if not is_known(p.m) or p.m > _MAX_ROWS:  # in these layouts
            return
        share = ceil_div(ceil_div(p.n * p.batch, 2 * target.threads), 64) * 64
        for limit in (1024, 256):
            yield Tactic(self.name, target.isa, (("NB", min(limit, max(64, share))),))
            if share <= 256:
                return

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p = MatrixProduct(region, layouts)
        grid = p.grid
        a_shape, b_shape = (*grid.shape[:-1], p.k), (*grid.shape[:-2], p.k, p.n)
        a, b = broadcast(p.a.type.shape, layouts[p.a], a_shape), broadcast(p.b.type.shape, layouts[p.b], b_shape)
        rows = Grid(a_shape, grid.b, grid.r, ())
        runs = rows.runs(rows.r, a)
        bk, bn = (1 if d == 1 else s for d, s in zip(b_shape[-2:], b[-2:]))
        if p.n == 1 and bk == 1:
            bn = 0  # the only column has unit stride
        block = constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=runs[0][1] if runs else 0, BK=bk, BN=bn)
        block += macro("A_AT(b)", Grid(a_shape, grid.b, (), ()).address(a))
        block += macro("B_AT(b)", Grid(b_shape, grid.b, (), ()).address(b))
        end = tail(region, layouts, grid, (p.node.output,), first=2, unit=target.lanes)
        return kernel(
            "few.c",
            region,
            tactic,
            block + end.text,
            (p.a, p.b, *end.operands),
            p.batch * ceil_div(p.n, tactic["NB"]),
            scratch=8 * p.m * tactic["NB"],
        )
