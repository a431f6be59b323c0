"""Winograd convolutions of bytes, channels-last and exact: F(4×4) of 3×3 filters of stride one."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Node
from pelton.ir.types import I8, I16
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .conv_int8 import accumulates_rejection, bytes_rejection
from .images import ChannelsLast, pixel_tail, window_geometry
from .winograd import threes_rejection, tile_blocks
from pelton.codegen.c.emit import constants, kernel, macro
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

# Rows of filters' transform at the points 0, ±1, ±2, ∞, as integers: G of Lavin and Gray, "Fast algorithms for
# convolutional neural networks", 2015, times 24, but for ∞, by which the output's transform multiplies by two. Two of
# them enlarge weights by 144 at most.
G = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 12]], np.int16)
EXACT = 2**25  # upper bound of a sum: 1 / 9 mod 2³² gives 64 times it, as i32


@template
class WinogradInt8(ChannelsLast):
    """u8 or i8 images and i8 filters; biases and what padding holds may be computed.

    Needs eight bytes per weight. With 64 to 512 channels it takes a third of the direct form's time with AVX2, two
    thirds with VNNI."""

    name = "winograd_int8"
    dynamic = True
    needs_constant_filters = False  # but see `operands_rejection`

    def types_rejection(self, product: Node) -> str | None:
        return accumulates_rejection(product)

    def operands_rejection(self, region: Region) -> str | None:
        if (reason := bytes_rejection(region)) is not None:
            return reason
        return None if region.anchor.inputs[1].type.dtype is I8 else "filters beyond i8"

    def sizes_rejection(self, region: Region) -> str | None:
        return threes_rejection(region)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, speed = window_geometry(region), 2 if target.level.dot == "fours" else 1.5
        vectors = min(2, ceil_div(s.oc, target.lanes))
        for tb, nb, rows in tile_blocks(s, 4, target, vectors * target.lanes, 2, speed):
            yield Tactic(self.name, target.isa, (("MR", rows), ("NV", vectors), ("TB", tb), ("NB", nb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias, *padding = node.inputs
        nr, tb, signed, filters = (
            tactic["NV"] * target.lanes,
            tactic["TB"],
            x.type.dtype is I8,
            region.body.constants[w],
        )
        end = pixel_tail(region, layouts, first=2 + len(padding), bias=bias, unit=target.lanes)
        sizes = s.sizes(layouts[x])
        used = ("BATCH", "H", "W", "OH", "OW", "PT", "PL", "XN", "XH", "XW")
        parts = parts_of(filters, signed)
        block = constants(C=s.c, OC=s.oc, SIGNED=signed, PARTS=parts, **{k: sizes[k] for k in used}) + end.text
        block += macro("PAD", "*(const i8 *)a[2].p" if padding else str(node.attrs["pad_value"]))
        panels, pairs, wide = ceil_div(s.oc, nr), ceil_div(s.c, 2), 2 * target.lanes
        width = min(tactic["NB"], panels * nr)
        cp = ceil_div(s.c, wide) * wide
        row = cp if cp % 128 else cp + wide
        tiles = s.n * ceil_div(ceil_div(s.oh, 4) * ceil_div(s.ow, 4), tb) * ceil_div(panels * nr, width)
        shape = (36, panels, pairs, nr, 2)
        packed = Packed((w,), f"winograd_bytes{nr}", shape, lambda out: transform_filters(filters, out), I16)
        return kernel(
            "winograd_int8.c",
            region,
            tactic,
            block,
            (x, packed, *padding, *end.operands),
            tiles,
            scratch=36 * tb * (4 * parts * width + 2 * row),
        )


def parts_of(filters: np.ndarray, signed: bool) -> int:
    """Returns the number of parts of the channels, of equally many pairs, to sum separately so that every sum is exact,
    for any bytes. signed: True if these are i8."""
    pairs = ceil_div(filters.shape[1], 2)
    w = filters.astype(np.int32)
    w = np.pad(w, [(0, 0), (0, filters.shape[1] % 2), (0, 0), (0, 0)]).reshape(len(w), pairs, -1)
    up, down = np.maximum(w, 0).sum(2), np.maximum(-w, 0).sum(2)
    high, low = (127 * up + 128 * down, 128 * up + 127 * down) if signed else (255 * up, 255 * down)
    for parts in range(1, pairs + 1):
        starts = np.arange(0, pairs, ceil_div(pairs, parts))
        if max(np.add.reduceat(side, starts, 1, np.int64).max() for side in (high, low)) < EXACT:
            return parts
    raise AssertionError("18 products of an i8 and an i16 fit")


def transform_filters(w: np.ndarray, out: np.ndarray) -> None:
    """Transforms filters [OC, C, 3, 3] to U[point, panel, pair of channels, output, channel]."""
    panels, pairs, nr = out.shape[1:4]
    for p in range(panels):  # one at a time: intermediate results stay in the caches
        part = w[p * nr : (p + 1) * nr]
        taps = np.zeros((3, 3, 2 * pairs, nr), np.int16)
        taps[:, :, : w.shape[1], : len(part)] = part.transpose(2, 3, 1, 0)
        for a, row in enumerate(G):
            rows = row[0] * taps[0] + row[1] * taps[1] + row[2] * taps[2]
            for b, column in enumerate(G):
                u = column[0] * rows[0] + column[1] * rows[1] + column[2] * rows[2]
                out[6 * a + b, p] = u.reshape(pairs, 2, nr).transpose(0, 2, 1)
