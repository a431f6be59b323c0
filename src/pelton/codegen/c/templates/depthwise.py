"""Depthwise convolutions, channels-last: one filter per channel."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .images import ChannelsLast, WindowGeometry, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

CHAINS = 6  # independent sums; with fewer, a kernel waits for its own last sum rather than for loads
MAX_UNROLLED = 1536  # multiply-adds that a kernel may unroll for blocks at the edges and between them


# Pixels and vectors of a block, where instructions decide. 384 channels on 14 × 14, in thousands of instructions:
# 14 × 1 348, 7 × 2 373, 10 × 1 378, 6 × 2 396, 4 × 2 420.
BLOCKS = (*((tw, 1) for tw in (14, 10, 8, 7, 6, 4)), *((tw, 2) for tw in (7, 6, 4)))


def blocks_by_instructions(s: WindowGeometry) -> list[tuple[int, int]]:
    """Returns BLOCKS, those that take the fewest instructions first.

    A block multiplies and adds, loads columns that its pixels share and its filters, and stores with some work for each
    sum; those that are too large to unroll come last.
    """

    def instructions(block: tuple[int, int]) -> tuple[bool, float]:
        def of(tw: int) -> int:
            columns = (tw - 1) * s.sw + s.kw
            return block[1] * (tw * (s.kh * s.kw + 5) + s.kh * (columns + s.kw)) + 16

        whole, left = divmod(s.ow, block[0])
        count = (whole * of(block[0]) + (of(left) if left else 0)) / block[1]
        return not is_unrolled(s, *block), count

    return sorted(BLOCKS, key=instructions)


def is_unrolled(s: WindowGeometry, tw: int, nv: int) -> bool:
    """True if blocks of known sizes may be unrolled for both edges of a row and between them."""
    return s.kh * s.kw * nv * (3 * tw + (s.kw - 1) * s.dw // s.sw) <= MAX_UNROLLED


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
        if target.level.by_lane:
            widths = [(nv, (tw,)) for tw, nv in blocks_by_instructions(s)]
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
        edges = isinstance(s.ow, int) and isinstance(s.w, int) and is_unrolled(s, tactic["TW"], tactic["NV"])
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
