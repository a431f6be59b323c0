"""Tiled matrix products on tensor cores, and 1×1 convolutions."""

from __future__ import annotations

from typing import cast

from pelton.ir.dims import Size, bounds, is_known, minimum
from pelton.ir.graph import Value
from pelton.ir.types import F32, I32
from pelton.codegen.grid import Grid, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts, broadcast
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.cost import cycles
from pelton.codegen.triton.emit import kernel, tail
from .integers import FLOAT8, has_room, missing_sums, sums_bytes, sums_float8
from .product import (
    MatrixTemplate,
    column_step,
    keep_likely,
    offsets_a,
    offsets_b,
    product,
    stream_counts,
    tf32_rounding,
    tiles,
    turned,
    workspaces,
)


def estimate_tactics(
    m: int, n: int, k: int, batch: int, size: int, boxes: bool, target: Target
) -> list[tuple[float, Tactic]]:
    """Returns tactics for products of factors of `size` bytes with their estimated cycles. boxes: True if the operands
    can be fetched as such."""
    estimates = []
    for t in tiles("gemm", k, k, size, target):
        count = batch * ceil_div(m, t["BM"]) * ceil_div(n, t["BN"])
        for by_tma in (1, 0) if boxes and min(t["BM"], t["BN"]) >= 64 else (0,):
            ways = (
                Tactic(
                    t.template,
                    t.isa,
                    (*t.params, ("DESCRIBED", by_tma), ("PERSISTENT", int(by_tma and not n)), ("STREAM", n)),
                )
                for n in (0, *stream_counts(count, ceil_div(k, t["BK"]), target))
            )
            estimates += keep_likely([(cycles(way, count, k, size, bool(by_tma), target), way) for way in ways])
    return estimates


@gpu_template
class TritonGemm(MatrixTemplate):
    name = "gemm"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        boxes = target.isa == "sm_90" and self.described(region, layouts) is not None
        yield from (
            t
            for _, t in sorted(
                estimate_tactics(m, p.n, p.k, batch, p.a.type.dtype.size, boxes, target), key=lambda pair: pair[0]
            )
            if has_room(p.node, t)
        )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return *super().family(tactic), tactic["DESCRIBED"], int(tactic["STREAM"] > 0)

    def described(self, region: Region, layouts: Layouts) -> dict[str, Size] | None:
        """Returns the fields of both operands' descriptors; None if there can be none: rows must begin at multiples of
        16 bytes, and have adjacent elements."""
        p, grid, batch, _ = product(region, layouts)
        whole = 16 // p.a.type.dtype.size
        # TF32 wants columns of B where it needs them, which are not copied so
        if batch != 1 or p.a.type.dtype is F32:
            return None
        convolves = p.node.op.name == "convolution"
        shape = p.a.type.shape if convolves else (*grid.shape[:-1], p.k)
        a, b = broadcast(p.a.type.shape, layouts[p.a], shape), layouts[p.b]
        runs = Grid(shape, (), grid.r, ()).runs(grid.r, a)
        across, along = (b[0], b[1]) if convolves else (b[-1], b[-2])
        if sums_bytes(p.node) or sums_float8(p.node):
            across, along = column_step(p), 1
        row_a, inner = runs[0][1] if runs else p.k, a[1] if convolves else a[-1]
        turned = along == 1
        row_b = across if turned else along
        steps = is_known(p.k, row_a, row_b) and row_a > 0 and row_b > 0 and row_a % whole == 0 and row_b % whole == 0
        return (
            dict(ROW_A=row_a, ROW_B=row_b, TURNED=turned)
            if len(runs) <= 1 and inner == 1 and 1 in (across, along) and steps
            else None
        )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        (left, ak), (right, bk) = offsets_a(p, grid, layouts), offsets_b(p, grid, layouts)
        integers, matrix, float8 = sums_bytes(p.node), cast("Value | Packed", p.b), sums_float8(p.node)
        if integers or float8:
            matrix, right, bk = turned(region, p)
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        even = is_known(p.k) and p.k % tactic["BK"] == 0
        steps = self.described(region, layouts) if tactic["DESCRIBED"] else None
        # dynamic sizes may have other strides than the usual ones, and leave no steps to share
        instead = {**({"DESCRIBED": 0} if steps is None else {}), **({} if bounds(p.k)[0] > 0 else {"STREAM": 0})}
        tactic = Tactic(tactic.template, tactic.isa, tuple({**dict(tactic.params), **instead}.items()))
        missing = missing_sums(region)
        operands: tuple[Value | Packed | KernelWorkspace, ...] = (p.a, matrix, *end.operands, *missing)
        sizes = dict(
            INTEGERS=integers,
            FLOAT8=float8,
            SHIFTED=bool(missing),
            MISSING=len(operands) - 1,
            BATCH=batch,
            M=m,
            N=p.n,
            K=p.k,
            AK=ak,
            BK_STEP=bk,
            EVEN=even,
            SUMS=len(operands),
            ARRIVED=len(operands) + 1,
            **tf32_rounding(region, tactic, p.a, p.b),
            **(steps or dict(ROW_A=0, ROW_B=0, TURNED=False)),
        )
        count = batch * ceil_div(m, tactic["BM"]) * ceil_div(p.n, tactic["BN"])
        programs = minimum(count, target.threads) if tactic["PERSISTENT"] else count
        if tactic["STREAM"]:
            operands += workspaces(tactic, I32 if integers else F32)
            programs = minimum(count * ceil_div(p.k, tactic["BK"]), tactic["STREAM"])
        text, factors = left + right + end.text, FLOAT8 if float8 else ""
        return kernel("gemm.py", region, tactic, sizes, text, operands, programs, layouts, factors=factors)
