"""Non-maximum suppression to a fixed number of boxes, one picture to a tile; operands may have any strides."""

from __future__ import annotations

import numpy as np

from pelton.codegen.c.emit import constants, kernel, macro, number
from pelton.codegen.grid import Grid
from pelton.codegen.template import Kernel, Tactic, Target, Template, template
from pelton.ir.dims import bounds
from pelton.ir.graph import Value
from pelton.ir.types import F32
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

MAX_KEEP = 1 << 16  # boxes; they are sorted by insertion


@template
class MulticlassNms(Template):
    name = "nms"
    anchors = ("multiclass_nms",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        boxes, scores = region.anchor.inputs
        if boxes.type.dtype is not F32:
            return f"boxes in {boxes.type.dtype.value}"
        if max(bounds(scores.type.shape[2])[1], bounds(scores.type.shape[1])[1]) >= 1 << 31:
            return "more boxes or classes than i32 counts"
        return "more boxes to keep than insertion sorts" if region.anchor.attrs["keep"] > MAX_KEEP else None

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, a = region.anchor, region.anchor.attrs
        (boxes, scores), y = node.inputs, region.output
        batch, classes, n = scores.type.shape
        block = constants(
            N=n,
            CLASSES=classes,
            KEEP=a["keep"],
            MOST=a["top_k"] or n,
            BN=layouts[boxes][1],
            BC=layouts[boxes][2],
            SC=layouts[scores][1],
            SN=layouts[scores][2],
            YK=layouts[y][1],
            YC=layouts[y][2],
            BACKGROUND=a["background"],
            PER_CLASS=a["per_class"],
        )
        for name, value in (("BOXES_AT", boxes), ("SCORES_AT", scores), ("Y_AT", y)):
            block += macro(f"{name}(b)", Grid((batch,), (0,), (), ()).address(layouts[value][:1]))
        block += f"#define SCORE {number(_below(a['score']), F32)}\n#define OVERLAP {number(a['overlap'], F32)}\n"
        scratch = (12 + 20) * a["keep"] + (8 + 4) * n
        return kernel("nms.c", region, tactic, block, (boxes, scores, y), batch, scratch=scratch)


def _below(x: float) -> float:
    """Returns the largest f32 not above x: an f32 exceeds both or neither."""
    rounded = np.float32(x)
    return float(rounded if float(rounded) <= x else np.nextafter(rounded, np.float32(-np.inf)))
