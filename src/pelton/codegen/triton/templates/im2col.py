"""Convolutions whose pixels the GPU's copy units gather by themselves."""

from __future__ import annotations

from pelton.engine.cubin import MAX_STEP, SWIZZLES, TensorMap
from pelton.ir.dims import minimum
from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16
from pelton.codegen.c.templates.images import WindowGeometry, window_geometry
from pelton.codegen.grid import is_constant, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, gpu_template
from pelton.plan.layout import Layout, Layouts
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.toolchain import GLUON
from .conv import SUMS, WASTE, TritonConvolution, PackedFilters, described
from pelton.codegen.triton.emit import kernel, tail
from .product import keep_likely, pixel_grid, stream_counts, tiles, workspaces
from pelton.codegen.triton.cost import BOXES, cycles

KIND = {F16: 6, BF16: 9}  # numbers of element types in maps
ROWS = 64  # that four warps pass to the tensor cores of an H100 at once
MAX_ROW = max(SWIZZLES.values())  # bytes of channels per fetch
# pixels from the edge of an image to the start of windows; from there to a tap
MOST_CORNER, MOST_OFFSET = 1 << 7, 1 << 8


@gpu_template
class TritonIm2col(TritonConvolution):
    """Those with strides and few images, too: each tap of the pixels of a tile is one box of memory. Never a first
    guess, and tried only where all is (`gpu_target`): its barriers are set by hand, where a mistake waits forever, and
    no GPU has run it yet."""

    name = "im2col"
    anchors = ("convolution",)
    dynamic = False
    multiplies_bytes = False

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.inputs[0].type.rank != 4:
            return "not two spatial axes"
        if not is_constant(region, node.inputs[1]):
            return "the filters are not constant"
        s = window_geometry(region)
        if (
            max(s.sh, s.sw) > MAX_STEP
            or max(map(abs, (*lower(s), *upper(s)))) >= MOST_CORNER
            or max((s.kh - 1) * s.dh, (s.kw - 1) * s.dw) >= MOST_OFFSET
        ):
            return "strides, padding or filters are too large for such boxes"
        return super().sizes_rejection(region)

    def preferred_layout(self, region: Region, value: Value, target: Target) -> Layout | None:
        return None  # padding costs nothing here

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, group = window_geometry(region), region.anchor.attrs["group"]
        if target.isa != "sm_90" or target.version("triton") < GLUON or not described(region, layouts, target):
            return
        taps, c, out, estimates = s.kh * s.kw, s.c // group, s.oc // group, []
        for t in tiles(self.name, taps * c, c, 2, target):
            deep = ceil_div(c, t["BK"]) * t["BK"]
            if t["BK"] * 2 > MAX_ROW or t["BM"] < ROWS * t["WARPS"] // 4 or deep > WASTE * c or group > 1 and deep > c:
                continue
            count = group * ceil_div(s.n * s.oh * s.ow, t["BM"]) * ceil_div(out, t["BN"])
            # more spill up to 288 bytes
            shared = (
                stream_counts(count, taps * deep // t["BK"], target)
                if t["BM"] * t["BN"] <= SUMS * 32 * t["WARPS"]
                else ()
            )
            ways = (Tactic(t.template, t.isa, (*t.params, ("STREAM", n))) for n in (0, *shared))
            estimates += keep_likely([(cycles(way, count, taps * deep, 2, True, target) - BOXES, way) for way in ways])
        yield from (t for _, t in sorted(estimates, key=lambda pair: pair[0]))

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["BM"], tactic["BN"], int(tactic["STREAM"] > 0)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s, f = region.anchor, window_geometry(region), PackedFilters(region, layouts, tactic)
        x, _, bias = node.inputs
        end = tail(region, layouts, pixel_grid(node.output.type.shape), (node.output,), first=2, add=bias)
        kind, size, (n, _, h, w) = KIND[x.type.dtype], x.type.dtype.size, layouts[x]
        (bm, bn, bk), strides = (tactic[name] for name in ("BM", "BN", "BK")), (w * size, h * size, n * size)
        swizzle = next(k for k, row in SWIZZLES.items() if row == bk * size)
        maps = (
            TensorMap(
                0, kind, swizzle, (s.c, s.w, s.h, s.n), strides, (bk, bm), (1, s.sw, s.sh, 1), lower(s), upper(s)
            ),
            TensorMap(1, kind, swizzle, (f.step, f.group * f.out), (f.step * size,), (bk, bn), (1, 1)),
        )
        operands: tuple[Value | Packed | KernelWorkspace, ...] = (x, f.operand, *end.operands)
        sizes = dict(SUMS=len(operands), ARRIVED=len(operands) + 1, **f.sizes(), **s.sizes(layouts[x]))
        ways = Tactic(
            tactic.template, tactic.isa, (*tactic.params, ("RING", tactic["STAGES"]), ("HIGH", tactic["WARPS"]))
        )
        count = f.group * ceil_div(s.n * s.oh * s.ow, bm) * ceil_div(f.out, bn)
        if tactic["STREAM"]:
            operands += workspaces(tactic)
            count = minimum(count * (s.kh * s.kw * f.deep // bk), tactic["STREAM"])
        return kernel("im2col.py", region, ways, sizes, end.text, operands, count, layouts, maps=maps)


def lower(s: WindowGeometry) -> tuple[int, int]:
    """Returns the start of the first windows, relative to an image's first column and row."""
    return -s.pl, -s.pt


def upper(s: WindowGeometry) -> tuple[int, int]:
    """Returns the start of the last windows, relative to an image's last column and row."""
    return (s.ow - 1) * s.sw - s.pl - (s.w - 1), (s.oh - 1) * s.sh - s.pt - (s.h - 1)
