"""Regions of images pooled to one size."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.codegen.c.templates import roi
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.triton.emit import kernel, tail, nodes_rejection
from .pointwise import power_of_two
from .product import pixel_grid


@gpu_template
class TritonRois(roi.RoiPool):
    def node_rejection(self, region: Region) -> str | None:
        return super().node_rejection(region) or nodes_rejection(region.tail)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        cb = power_of_two(region.anchor.output.type.shape[1], 1, 256)
        for warps in (4, 2, 1):
            yield Tactic(self.name, target.isa, (("CB", cb), ("WARPS", warps)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, attrs = region.anchor, region.anchor.attrs
        x, rois, batch = node.inputs
        n, c, h, w = x.type.shape
        xn, xc, xh, xw = layouts[x]
        touched = node.op.name == "max_roi_pool"
        half = not touched and attrs["half_pixel"]
        block = (
            f"SAMPLES, SCALE = tl.constexpr({0 if touched else attrs['samples']}),"
            f" tl.constexpr({float(attrs['scale'])!r})\nOFFSET = tl.constexpr({0.5 * half})\nLEAST, TOUCHED ="
            f" tl.constexpr({-1e300 if half else 1.0}), tl.constexpr({touched})\nLARGEST ="
            f" tl.constexpr({touched or attrs['mode'] == 'max'})\n\n\n"
        )
        sizes = dict(
            C=c,
            H=h,
            W=w,
            N=n,
            PH=attrs["height"],
            PW=attrs["width"],
            XN=xn,
            XH=xh,
            XW=xw,
            XC=xc,
            RN=layouts[rois][0],
            RC=layouts[rois][1],
            BN=layouts[batch][0],
        )
        end = tail(region, layouts, pixel_grid(node.output.type.shape), (node.output,), first=3)
        bins = batch.type.shape[0] * attrs["height"] * attrs["width"]
        return kernel(
            "roi.py",
            region,
            tactic,
            sizes,
            block + end.text,
            (x, rois, batch, *end.operands),
            bins * ceil_div(c, tactic["CB"]),
            layouts,
        )
