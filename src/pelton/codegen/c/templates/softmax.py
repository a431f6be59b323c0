"""Softmax and log-softmax along any axis."""

from __future__ import annotations

from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.fold import element_macros, register_type
from pelton.codegen.grid import Grid, ceil_div
from .order import along_or_across
from pelton.codegen.sweep import Sweep, extent, task_shape
from pelton.codegen.template import Kernel, Tactic, Target, template

COST = 4  # cost of an exponential, in elements read


@template
class Softmax(Sweep):
    name = "softmax"
    dynamic = True
    anchors = ("softmax", "log_softmax")

    def node_rejection(self, region: Region) -> str | None:
        dtype = region.anchor.inputs[0].type.dtype
        return None if dtype.is_float else f"not in {dtype.value}"

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        return along_or_across(region, layouts, region.anchor.attrs["axis"])

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        batch, n, cols = (extent(grid, axes) for axes in (grid.b, grid.r, grid.c))
        rb, _ = task_shape(batch, 1, cols * COST, target, 1)
        for nv in [nv for nv in (2, 4, 1) if nv == 1 or nv * target.lanes <= cols][: 2 if grid.r else 1]:
            _, cb = task_shape(1, cols, batch * n * COST, target, nv * target.lanes)
            yield Tactic(self.name, target.isa, (("RB", rb), ("NV", nv), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, axis = node.inputs[0], node.attrs["axis"]
        batch, n, cols = extent(grid, grid.b), x.type.shape[axis], extent(grid, grid.c)
        across = dict(COLS=cols, XN=layouts[x][axis]) if grid.r else {}
        block = constants(BATCH=batch, N=n, **across, LOG=node.op.name == "log_softmax") + macro(
            "X_AT(b)", Grid(grid.shape, grid.b, (), ()).address(layouts[x])
        )
        block += element_macros(x.type.dtype)
        kind = register_type(x.type.dtype)
        block += f"#define REAL(name) {kind.value}_##name\n#define WHOLE(name) h##name##_{kind.value}\n"
        end = tail(region, layouts, grid, (node.output,), first=1)
        if grid.r:
            file, tiles = "softmax_across.c", batch * ceil_div(cols, tactic["CB"])
            scratch = kind.size * n * tactic["NV"] * target.lanes
        else:
            file, tiles = "softmax.c", ceil_div(batch, tactic["RB"])
            scratch = kind.size * ceil_div(n, target.lanes) * target.lanes
        return kernel(file, region, tactic, block + end.text, (x, *end.operands), tiles, scratch=scratch)
