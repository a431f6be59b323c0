"""Regions of feature maps pooled to one size, channels-last: of interpolated points, or of the largest elements."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, I32, I64
from pelton.plan.layout import Layouts, Order, channels_last, row_major
from pelton.plan.region import Region

from .images import pixel_tail
from pelton.codegen.c.emit import constants, kernel, memory_type
from pelton.codegen.c.fold import element_macros
from pelton.codegen.grid import fits_grid, grid_of, tail_rejection
from pelton.codegen.template import Kernel, Tactic, Target, Template, template


@template
class RoiPool(Template):
    name = "roi"
    anchors = ("roi_align", "max_roi_pool")
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, _, batch = (v.type for v in node.inputs)
        if x.dtype not in (F32, F16, BF16) or node.inputs[1].type.dtype is not F32:
            return f"not in {x.dtype.value} with rois in {node.inputs[1].type.dtype.value}"
        if batch.dtype not in (I32, I64):
            return f"indices in {batch.dtype.value}"
        return tail_rejection(region, node.output.type.shape, 1)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank) if value is region.anchor.inputs[0] else row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node, strides = region.anchor, layouts[value]
        if value is node.inputs[0] and value.type.shape[1] != 1 and strides[1] != 1:
            return False
        return fits_grid(region, grid_of(node.output.type.shape, "pixels"), value, strides)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        for nv in (4, 2, 1):
            if nv == 1 or nv * target.lanes <= region.anchor.output.type.shape[1]:
                yield Tactic(self.name, target.isa, (("NV", nv),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, rois, batch = node.inputs
        a, touched = node.attrs, node.op.name == "max_roi_pool"
        half = not touched and a["half_pixel"]
        n, c, h, w = x.type.shape
        xn, _, xh, xw = layouts[x]
        block = constants(
            C=c,
            H=h,
            W=w,
            N=n,
            PH=a["height"],
            PW=a["width"],
            SAMPLES=0 if touched else a["samples"],
            XN=xn,
            XH=xh,
            XW=xw,
            RN=layouts[rois][0],
            RC=layouts[rois][1],
            BN=layouts[batch][0],
        )
        block += (
            f"#define SCALE {float(a['scale'])!r}\n#define OFFSET {0.5 * half}\n#define LEAST"
            f" {'(-1e300)' if half else '1.0'}\n"
        )
        block += (
            f"#define TOUCHED {int(touched)}\n#define LARGEST {int(touched or a['mode'] == 'max')}\ntypedef"
            f" {memory_type(batch.type.dtype)} index;\n"
        )
        block += "#define MAXIMUM(a, b) f32_maximum(a, b)\n" + element_macros(x.type.dtype)
        end = pixel_tail(region, layouts, first=3, unit=target.lanes)
        return kernel(
            "roi.c",
            region,
            tactic,
            block + end.text,
            (x, rois, batch, *end.operands),
            batch.type.shape[0] * a["height"],
        )
