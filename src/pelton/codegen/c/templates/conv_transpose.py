"""Transposed convolutions, channels-last: by gathering, one phase of the strides after another, and depthwise."""

from __future__ import annotations

import numpy as np

from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .depthwise import pack_taps
from .images import ChannelsLast, filter_strides, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from .gemm import pack_panels
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template


@template
class DepthwiseTranspose(ChannelsLast):
    name = "depthwise_transpose"
    dynamic = True
    anchors = ("conv_transpose",)

    def sizes_rejection(self, region: Region) -> str | None:
        x, w = (v.type.shape for v in region.anchor.inputs[:2])
        return None if region.anchor.attrs["group"] == x[1] and w[1] == 1 else "not one filter per channel"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        rows = max(1, min(4, s.n * s.oh // (8 * target.threads)))
        for nv in [nv for nv in (4, 2, 1) if nv == 1 or nv * target.lanes <= s.c][:2]:
            yield Tactic(self.name, target.isa, (("NV", nv), ("RB", rows)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        end = pixel_tail(region, layouts, bias=bias, unit=target.lanes)
        return kernel(
            "depthwise_transpose.c",
            region,
            tactic,
            constants(C=s.c, **s.sizes(layouts[x])) + end.text,
            (x, pack_taps(w, region.body.constants[w], target.lanes), *end.operands),
            s.n * ceil_div(s.oh, tactic["RB"]),
        )


@template
class ConvTranspose(ChannelsLast):
    name = "conv_transpose"
    dynamic = True
    needs_constant_filters = False
    anchors = ("conv_transpose",)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, groups = window_geometry(region), region.anchor.attrs["group"]
        pixels, seen = ceil_div(s.oh, s.sh) * ceil_div(s.ow, s.sw), set()
        for mr, nv in ((6, 2), (4, 3), (12, 1)) if s.oc // groups > 8 else ((12, 1), (6, 1)):
            nr = nv * target.lanes
            mr = min(mr, pixels)
            for mb, per in self.task_blocks(
                region, pixels, ceil_div(s.oc // groups, nr), s.n * groups * s.sh * s.sw, target, mr
            ):
                choice = (mr, nv, mb, per * nr)
                if choice not in seen:
                    seen.add(choice)
                    yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB"), choice)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        groups, nr = node.attrs["group"], tactic["NV"] * target.lanes
        c, oc, taps = w.type.shape[0] // groups, w.type.shape[1], s.kh * s.kw
        end = pixel_tail(region, layouts, bias=bias, unit=None if groups > 1 and oc % target.lanes else target.lanes)
        array, panels = region.body.constants.get(w), ceil_div(oc, nr)
        channel, between, *space = layouts[w]
        block = (
            constants(
                C=c,
                OC=oc,
                GROUPS=groups,
                **s.sizes(layouts[x]),
                **filter_strides(array is not None, channel * c, between, channel, tuple(space)),
            )
            + end.text
        )
        tiles = (
            s.n
            * groups
            * s.sh
            * s.sw
            * ceil_div(ceil_div(s.oh, s.sh) * ceil_div(s.ow, s.sw), tactic["MB"])
            * ceil_div(panels * nr, tactic["NB"])
        )
        if array is None:
            return kernel(
                "conv_transpose.c",
                region,
                tactic,
                block,
                (x, w, *end.operands),
                tiles,
                scratch=4 * tactic["NB"] * taps * c,
            )

        def pack(out: np.ndarray) -> None:
            pack_panels(array.reshape(groups, c, oc, taps).transpose(0, 3, 1, 2).reshape(groups, taps * c, oc), out)

        return kernel(
            "conv_transpose.c",
            region,
            tactic,
            block,
            (x, Packed((w,), f"gathered_g{groups}_p{nr}", (groups, panels, taps * c, nr), pack), *end.operands),
            tiles,
        )
