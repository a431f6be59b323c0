"""Determinants, a matrix to a tile."""

from __future__ import annotations

import math

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type
from pelton.codegen.grid import Grid
from pelton.codegen.template import Kernel, Tactic, Target, Template, template


@template
class Det(Template):
    name = "det"
    anchors = ("det",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        return None if region.anchor.inputs[0].type.dtype in (F32, F64) else "not f32 or f64"

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        x, y = region.anchor.inputs[0], region.output
        shape, strides, rank = x.type.shape, layouts[x], y.type.rank
        lead = Grid(y.type.shape, tuple(range(rank)), (), ())
        block = constants(N=shape[-1], ROW=strides[-2], COLUMN=strides[-1])
        block += macro("X_AT(b)", lead.address(strides[:rank])) + macro("Y_AT(b)", lead.address(layouts[y]))
        block += f"typedef {memory_type(x.type.dtype)} element;\n"
        return kernel(
            "det.c", region, tactic, block, (x, y), math.prod(y.type.shape), scratch=8 * shape[-1] * shape[-1]
        )
