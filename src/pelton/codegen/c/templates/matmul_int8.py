"""Matrix products of bytes that are both computed, less their zero points, summed in i32."""

from __future__ import annotations

from collections.abc import Iterator

from pelton.ir.graph import Node
from pelton.ir.types import I8
from pelton.plan.layout import Layouts, broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.grid import Grid, ceil_div, is_constant, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Tactic, Target, template

from .conv_int8 import BYTES, sums_rejection
from .gemm import Gemm, rows_of_a


@template
class MatMulInt8(Gemm):
    """u8 or i8 by u8 or i8; each less its zero point is an i16, two of which a lane multiplies and adds at a time.

    Both products of an attention head of 64 channels and 128 tokens take half the time of f32 with its steps that
    dequantize (AVX-512 VNNI), or two thirds of it (AVX2)."""

    name = "matmul_int8"
    anchors = ("matmul",)

    def types_rejection(self, product: Node) -> str | None:
        return sums_rejection(product)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if any(v.type.dtype not in BYTES for v in node.inputs):
            return "not bytes by bytes"
        if min(v.type.rank for v in node.inputs) < 2:
            return "an operand is a vector"
        if is_constant(region, node.inputs[1]):
            return "the right operand is constant: its panels are packed at build time"
        return tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterator[Tactic]:
        p, seen = MatrixProduct(region, layouts), set()
        for mr, nv in _register_tiles(p.n, p.m, target):
            mr, nr = min(mr, p.m), nv * target.lanes
            columns = ceil_div(p.n, nr)
            for rows in (p.m, 96, 48):
                mb = min(ceil_div(rows, mr), ceil_div(p.m, mr)) * mr
                blocks = ceil_div(p.m, mb) * p.batch
                for per in (columns, ceil_div(columns, ceil_div(2 * target.threads, blocks))):
                    choice = (mr, nv, mb, per * nr)
                    if choice not in seen:
                        seen.add(choice)
                        yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB"), choice)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, node = MatrixProduct(region, layouts), region.anchor
        step, start = rows_of_a(p, layouts)
        shape = (*p.grid.shape[:-2], p.k, p.n)
        b = broadcast(p.b.type.shape, layouts[p.b], shape)
        sizes = dict(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=step, BK=b[-2], BN=b[-1])
        types = dict(AZ=node.attrs["a_zero"], BZ=node.attrs["b_zero"])
        types |= dict(A_SIGNED=p.a.type.dtype is I8, B_SIGNED=p.b.type.dtype is I8)
        end = tail(region, layouts, p.grid, (node.output,), first=2, unit=target.lanes)
        block = constants(**sizes, **types) + macro("A_AT(b)", start)
        block += macro("B_AT(b)", Grid(shape, p.grid.b, (), ()).address(b)) + end.text
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(p.n, tactic["NB"])
        row = ceil_div(p.k, 32) * 32 + 32  # elements of a row of A in scratch, as in matmul_int8.c
        scratch = 4 * tactic["NB"] * ceil_div(p.k, 2) + 2 * tactic["MB"] * row
        operands = (p.a, p.b, *end.operands)
        return kernel("matmul_int8.c", region, tactic, block, operands, tiles, scratch=scratch)


def _register_tiles(columns: int, rows: int, target: Target) -> tuple[tuple[int, int], ...]:
    """Returns (rows, vectors of columns) of register tiles, the best guess first."""
    if target.registers < 32:
        return ((6, 2), (4, 2), (4, 3)) if columns > target.lanes else ((12, 1),)
    high = min((12, 11, 10, 8), key=lambda r: ceil_div(rows, r) * r)
    return ((high, 2), (8, 2), (8, 3), (6, 4)) if columns > target.lanes else ((high, 1),)
