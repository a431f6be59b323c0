"""Winograd convolutions with transformed filters in half precision: many channels on few pixels wait for these."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, DType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.halves import ASKED, HalfWeights, rejection, with_halves
from pelton.codegen.template import Target, template

from .images import window_geometry
from .winograd import Winograd

MAX_PIXELS = 400  # with more, a block of filters is read often enough
# Tiles of the output. Relative to outputs (root mean squares, 64 channels), direct convolution is off by 2e-4 with
# filters in f16 and by 2e-3 in bf16, F(2×2) by 3e-4 and 2.5e-3, F(4×4) by 9e-4 and 7e-3, F(6×6) by 4e-3 and 3e-2.
TILES = {F16: (2, 4), BF16: (2,)}
SCALES = (2.25, 1 / 36)  # how much larger and smaller than filters their transforms may be


@template
class WinogradHalf(HalfWeights, Winograd):
    """Transformed filters are not exact in halves, even if the filters are, so only builds in half precision use
    them."""

    name = "winograd_half"

    def half_operand(self, region: Region) -> tuple[Value, int]:
        return region.anchor.inputs[1], 0

    def half_type(self, region: Region, target: Target) -> tuple[DType, int] | None:
        if target.half is F32 or self.rounding_rejection(region, target.half) is not None:
            return None
        return target.half, ASKED

    def rounding_rejection(self, region: Region, dtype: DType) -> str | None:
        weights, axis = self.half_operand(region)
        reasons = (rejection(region.body.constants[weights], axis, dtype, scale) for scale in SCALES)
        return next((reason for reason in reasons if reason is not None), None)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, half = window_geometry(region), self.half_type(region, target)
        if half is not None and s.oh * s.ow <= MAX_PIXELS:
            for tactic in super().tactics(region, layouts, target):
                if tactic["F"] in TILES[target.half]:
                    yield with_halves(tactic, *half)
