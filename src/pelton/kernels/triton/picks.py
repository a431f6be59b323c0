"""Gathers: rows, elements and index tuples."""
from __future__ import annotations

import math

from pelton.ir.graph import Value
from pelton.kernels import gather
from pelton.kernels.emit import Grid
from pelton.kernels.gather import Picks
from pelton.kernels.grid import divide, tail_refusal
from pelton.kernels.sweep import lying
from pelton.kernels.template import Kernel, Layouts, Tactic, Target, gpu_template
from pelton.plan.region import Region

from .emit import computable, in_registers, kernel, place, spelled, tail, unreadable
from .pointwise import power_of_two


@gpu_template
class Gather(gather.Gather):
    def refuses_node(self, region: Region) -> str | None:
        node = region.anchor
        if not computable(node.output.type.dtype):
            return f"{node.output.type.dtype.value} is not held by kernels"
        return super().refuses_node(region) or tail_refusal(region, node.output.type.shape) or unreadable(region.tail)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        y = region.anchor.output
        order = lying(y.type.shape, layouts[region.output])
        return Grid(y.type.shape, (), order[:-1], order[-1:])

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rows, cols = (math.prod(grid.shape[a] for a in axes) for axes in (grid.r, grid.c))
        for size, warps in ((1024, 4), (512, 4), (2048, 8)):
            cb = power_of_two(cols, 1, size)
            yield Tactic(self.name, target.isa, (("RB", power_of_two(rows, 1, size // cb)), ("CB", cb), ("WARPS", warps)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, p, grid = region.anchor, Picks(region, layouts), self.grid(region, layouts)
        x, indices = node.inputs
        rows, cols = (math.prod(grid.shape[a] for a in axes) for axes in (grid.r, grid.c))
        terms = [f"pick(i + {k} * {spelled(p.between)}, inside, {spelled(size)}, {spelled(step)})" for k, (size, step) in enumerate(zip(p.sizes, p.steps))]
        block = place("x_at", grid, p.x) + place("i_at", grid, p.indices)
        block += f"@triton.jit\ndef picked(i, inside, a):\n    return {' + '.join(terms)}\n\n\n"
        block += f"@triton.jit\ndef held(x):\n    return {in_registers('x', x.type.dtype)}\n\n\n"
        end = tail(region, layouts, grid, (node.output,), first=2)
        return kernel("gather.py", region, tactic, dict(ROWS=rows, COLS=cols), block + end.text, (x, indices, *end.operands),
                      divide(rows, tactic["RB"]) * divide(cols, tactic["CB"]), layouts)
