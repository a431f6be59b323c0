"""Class probabilities from those of pairs of classes, a row to a tile."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64
from pelton.ops.labels import ROUNDS
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, memory_type
from pelton.codegen.template import Kernel, Tactic, Target, Template, template


@template
class Coupled(Template):
    name = "coupled"
    anchors = ("coupled",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        return None if region.output.type.dtype in (F32, F64) else "not f32 or f64"

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        x, y = region.anchor.inputs[0], region.output
        rows, classes = y.type.shape
        (xr, xp), (yr, yc) = layouts[x], layouts[y]
        block = (
            constants(CLASSES=classes, ROUNDS=max(ROUNDS, classes), XR=xr, XP=xp, YR=yr, YC=yc)
            + f"typedef {memory_type(x.type.dtype)} element;\n"
        )
        return kernel("coupled.c", region, tactic, block, (x, y), rows, scratch=8 * classes * (classes + 2))
