"""Matrix products whose factors are rounded to bf16: a lane multiplies and adds two at a time in f32.

The rate is twice that of f32 on Zen 4: BERT of 128 tokens takes 0.55 of its time."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import BF16, DType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.halves import ASKED, MAX_LOSS, with_halves
from pelton.codegen.grid import ceil_div
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

from .gemm import rows_of_a
from .gemm_half import GemmHalf


@template
class GemmBf16(GemmHalf):
    """BF16 products, only for builds in bf16 on targets with the instruction (AVX512_BF16)."""

    name = "gemm_bf16"
    fewest = 1

    def node_rejection(self, region: Region) -> str | None:
        if reason := super().node_rejection(region):
            return reason
        node = region.anchor
        if node.op.name == "matmul" and node.inputs[1].type.rank > 2:
            return "a matrix for each batch"
        return None

    def half_type(self, region: Region, target: Target) -> tuple[DType, int] | None:
        if target.half is not BF16 or not target.level.bf16:
            return None
        return (BF16, ASKED) if self.rounding_rejection(region, BF16) is None else None

    def tolerance(self, tactic: Tactic) -> float:
        return super().tolerance(tactic) + MAX_LOSS[BF16]  # rows are rounded, too

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, half, seen = MatrixProduct(region, layouts), self.half_type(region, target), set()
        if half is None:
            return
        high = min((12, 11, 10), key=lambda r: ceil_div(p.m, r) * r) if is_known(p.m) else 12
        for mr, nv in ((high, 2), (min(high, 8), 3), (6, 4)) if p.n > target.lanes else ((high, 1),):
            nr, mr = nv * target.lanes, min(mr, p.m)
            columns = ceil_div(p.n, nr)
            for rows in (96, 48, p.m):
                mb = min(ceil_div(rows, mr), ceil_div(p.m, mr)) * mr
                tasks = ceil_div(6 * target.threads, ceil_div(p.m, mb) * p.batch)
                for shares in (tasks, target.threads):
                    choice = (mr, nv, mb, max(1, ceil_div(columns, shares)) * nr)
                    if choice not in seen:
                        seen.add(choice)
                        params = tuple(zip(("MR", "NV", "MB", "NB"), choice))
                        yield with_halves(Tactic(self.name, target.isa, params), *half)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, nr = MatrixProduct(region, layouts), tactic["NV"] * target.lanes
        array, step, start = region.body.constants[p.b], *rows_of_a(p, layouts)
        end = tail(region, layouts, p.grid, (p.node.output,), first=2, bias=p.bias, unit=target.lanes)
        sizes = constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=step)
        block = sizes + macro("A_AT(b)", start) + macro("B_AT(b)", "0") + end.text
        by_columns = p.node.op.name == "convolution"
        columns = array.reshape(array.shape[:2]).T if by_columns else array
        shape = (ceil_div(p.n, nr), ceil_div(p.k, 2), nr, 2)
        packed = Packed((p.b,), f"pairs{nr}{'t' * by_columns}", shape, lambda out: pack_pairs(columns, out), BF16)
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(p.n, tactic["NB"])
        row = ceil_div(p.k, 32) * 32 + 32  # elements of a rounded row, as in gemm_bf16.c
        operands: tuple[Value | Packed, ...] = (p.a, packed, *end.operands)
        return kernel("gemm_bf16.c", region, tactic, block, operands, tiles, scratch=2 * tactic["MB"] * row)


def pack_pairs(b: np.ndarray, out: np.ndarray) -> None:
    """Packs [K, N] into [panel, pair of rows, column, row of the pair]; leaves elements beyond as they are."""
    width = out.shape[2]
    for i, panel in enumerate(out):
        part = b[:, i * width : (i + 1) * width]
        for odd in (0, 1):
            panel[: len(part[odd::2]), : part.shape[1], odd] = part[odd::2]
