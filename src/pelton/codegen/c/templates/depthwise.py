"""Depthwise convolutions, channels-last: one filter per channel."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .images import ChannelsLast, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

CHAINS = 6  # independent sums; with fewer, a kernel waits for its own last sum rather than for loads
MAX_UNROLLED = 1536  # multiply-adds that a kernel may unroll for blocks at the edges and between them


@template
class Depthwise(ChannelsLast):
    name = "depthwise"
    dynamic = True

    def sizes_rejection(self, region: Region) -> str | None:
        w = region.anchor.inputs[1].type.shape
        if not region.anchor.attrs["group"] == w[0] == region.anchor.inputs[0].type.shape[1]:
            return "not one filter per channel"
        return None

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["NV"],)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)

        def cost(tw: int) -> int:
            """Returns the time for a row, in pixels: small blocks have too few sums in flight for the multipliers."""
            return s.ow // tw * max(tw, CHAINS) + (max(s.ow % tw, CHAINS) if s.ow % tw else 0)

        # Two vectors of 8 are a cache line. With many channels, neighbouring pixels share so few sets that the L1 loses
        # a line before its other half is read: 256 channels of 10 × 20, 5 × 5, one thread, 40 → 33 µs; 96 of 112 × 112
        # with strides of two 179 → 136.
        widths = [(2, (4, 5, 6)), (1, sorted((6, 7, 8, 10, 4), key=cost))]
        for nv, block_widths in widths if target.lanes < 16 else reversed(widths):
            if nv == 1 or s.c >= nv * target.lanes:
                for tw in dict.fromkeys(min(tw, s.ow) for tw in block_widths):
                    for rb in (1, 4):
                        if rb == 1 or s.oh > 4 * target.threads:
                            yield Tactic(self.name, target.isa, (("TW", tw), ("NV", nv), ("RB", rb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        end = pixel_tail(region, layouts, bias=bias, unit=target.lanes)
        per_tap = tactic["NV"] * (3 * tactic["TW"] + (s.kw - 1) * s.dw // s.sw)
        edges = isinstance(s.ow, int) and isinstance(s.w, int) and s.kh * s.kw * per_tap <= MAX_UNROLLED
        return kernel(
            "depthwise.c",
            region,
            tactic,
            constants(C=s.c, **s.sizes(layouts[x])) + f"#define EDGES {int(edges)}\n" + end.text,
            (x, pack_taps(w, region.body.constants[w], target.lanes), *end.operands),
            s.n * ceil_div(s.oh, tactic["RB"]),
        )


def pack_taps(w: Value, array: np.ndarray, lanes: int) -> Packed:
    """Packs one filter per channel as [tap, channel], padded to whole vectors."""
    c = array.shape[0]
    taps, width = array.reshape(c, -1).shape[1], ceil_div(c, lanes) * lanes

    def pack(out: np.ndarray) -> None:
        out[:, :c] = array.reshape(c, -1).T

    return Packed((w,), f"taps{lanes}", (taps, width), pack)
