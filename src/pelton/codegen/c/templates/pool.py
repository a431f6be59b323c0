"""Max and average pooling, channels-last."""

from __future__ import annotations

from pelton.ir.types import F32
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .images import ChannelsLast, WindowGeometry, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.c.fold import reduction_macros
from pelton.codegen.grid import is_computable, ceil_div, tail_rejection
from pelton.codegen.template import Kernel, Tactic, Target, template

# image columns in registers; beside maxima, two registers hold sums that detect NaNs
MAX_COLUMNS = {"max_pool": 11, "average_pool": 13}


def windows_at_once(s: WindowGeometry, widest: int) -> list[tuple[int, int]]:
    """Returns (windows, vectors of channels) to compute together, the best guess first.

    0 windows: one by one, with as many channels as there are registers.
    """

    def columns(n: int) -> int:
        return (n - 1) * s.sw + (s.kw - 1) * s.dw + 1 if n else 0

    def cost(choice: tuple[int, int]) -> float:
        n, nv = choice
        # a vector is half a cache line
        return (s.ow // n * columns(n) + columns(s.ow % n)) * (1 if nv == 2 else 1.5)

    alone = [(0, nv) for nv in (8, 4) if s.c >= 8 * nv] or [(0, 1)]
    if s.ow == 1:
        return alone
    fitting = [
        (n, nv)
        for n in range(1, min(s.ow, 8) + 1)
        for nv in (2, 1)
        if columns(n) * nv <= widest and (nv == 1 or s.c >= 16)
    ]
    return sorted(fitting, key=cost)[:4] or alone


@template
class Pool(ChannelsLast):
    name = "pool"
    anchors = ("max_pool", "average_pool")
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        x = region.anchor.inputs[0].type
        if x.rank not in (3, 4):
            return "not one or two spatial axes"
        if not is_computable(x.dtype):
            return f"{x.dtype.value} is no type that kernels compute in"
        return tail_rejection(region, region.anchor.output.type.shape, 1)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        cb = ceil_div(s.c, target.lanes) * target.lanes
        while cb > 4 * target.lanes and s.n * s.oh * ceil_div(s.c, cb) < 4 * target.threads:
            cb = ceil_div(ceil_div(cb, 2), target.lanes) * target.lanes
        rows = max(1, min(4, s.n * s.oh // (8 * target.threads)))
        for tw, nv in windows_at_once(s, MAX_COLUMNS[region.anchor.op.name]):
            yield Tactic(self.name, target.isa, (("TW", tw), ("NV", nv), ("RB", rows), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, mean, attrs = node.inputs[0], node.op.name == "average_pool", node.attrs
        spatial = x.type.rank - 2
        pads = (0, *attrs["pads"][:1], 0, *attrs["pads"][1:]) if spatial == 1 else attrs["pads"]
        counted = pads if attrs.get("count_include_pad") else (0, 0, 0, 0)
        end = pixel_tail(region, layouts, first=1, unit=target.lanes)
        block = constants(
            C=s.c,
            **s.sizes(layouts[x]),
            FIRST_ROW=-counted[0],
            FIRST_COLUMN=-counted[1],
            END_ROW=s.h + counted[2],
            END_COLUMN=s.w + counted[3],
        )
        block += f"#define MEANS {int(mean)}\n#define QUICK {int(not mean and x.type.dtype is F32)}\n"
        block += reduction_macros("sum" if mean else "max", x.type.dtype) + end.text
        return kernel(
            "pool.c",
            region,
            tactic,
            block,
            (x, *end.operands),
            s.n * ceil_div(s.oh, tactic["RB"]) * ceil_div(s.c, tactic["CB"]),
        )
