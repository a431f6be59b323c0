"""Pointwise regions, and copies between any layouts."""

from __future__ import annotations

import math

from pelton.ir.graph import Value
from pelton.codegen.c.templates import pointwise
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.triton.emit import computable, kernel, tail, nodes_rejection


def power_of_two(n: int, least: int = 1, most: int = 1 << 20) -> int:
    """Returns the next power of two, within bounds that are ones."""
    return max(least, min(most, 1 << max(0, n - 1).bit_length()))


@gpu_template
class TritonPointwise(pointwise.Pointwise):
    dynamic = True

    def rejection(self, region: Region) -> str | None:
        if any(v.type.size == 1 and not computable(v.type.dtype) for v in region.body.constants):
            return "a number in the code of a type that kernels do not hold"
        return super().rejection(region) or nodes_rejection(region.body.nodes)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid, flat = pointwise.flatten(region, layouts)
        rows, cols = math.prod(grid.shape[:-1]), max(1, grid.shape[-1])
        turned = any(s[-1] not in (0, 1) for s in flat.values())  # some operand is read down its columns
        for size, warps in ((1024, 4), (2048, 4), (512, 4), (4096, 8)):
            cb = power_of_two(cols, 1, 64 if turned else size)
            yield Tactic(
                self.name, target.isa, (("RB", power_of_two(rows, 1, size // cb)), ("CB", cb), ("WARPS", warps))
            )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        grid, flat = pointwise.flatten(region, layouts)
        end = tail(region, flat, grid, (), first=0, flat=True)
        rows, cols = math.prod(grid.shape[:-1]), grid.shape[-1]
        return kernel(
            "pointwise.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols),
            end.text,
            end.operands,
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )
