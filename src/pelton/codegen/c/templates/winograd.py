"""Winograd convolutions, channels-last: F(2×2), F(4×4) and F(6×6) of 3×3 filters of stride one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .images import ChannelsLast, WindowGeometry, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.c.halves import weight_text
from pelton.codegen.grid import balanced, balanced_rows, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

MAX_L3 = 32 << 20  # available to a few cores; others use the rest of a server's 300 MB


@template
class Winograd(ChannelsLast):
    name = "winograd"
    dynamic = True
    inexact = True

    def sizes_rejection(self, region: Region) -> str | None:
        return threes_rejection(region)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        for f in (4, 6, 2):
            if f == 4 or min(s.oh, s.ow) >= f:
                yield from self._blocks(s, f, target)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["F"],)

    def margin(self, tactic: Tactic) -> float:
        """Returns a higher margin for F(6×6): four times the error of F(4×4) for at most 15 % fewer products.

        In YOLOv2, two layers with it tripled the error of the network and saved 0.5 % of its time.
        """
        return 0.05 if tactic["F"] == 6 else super().margin(tactic)

    def _blocks(self, s: WindowGeometry, f: int, target: Target):
        for tb, nb, rows in tile_blocks(s, f, target, 2 * target.lanes):
            yield Tactic(self.name, target.isa, (("F", f), ("MR", rows), ("NV", 2), ("TB", tb), ("NB", nb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        f, nr, tb = tactic["F"], tactic["NV"] * target.lanes, tactic["TB"]
        end = pixel_tail(region, layouts, bias=bias, unit=target.lanes)
        sizes = s.sizes(layouts[x])
        used = ("BATCH", "H", "W", "OH", "OW", "PT", "PL", "XN", "XH", "XW")
        block = constants(C=s.c, OC=s.oc, **{k: sizes[k] for k in used}) + weight_text(tactic, self.stored(tactic))
        block += end.text
        padded = ceil_div(s.oc, nr) * nr
        width = min(tactic["NB"], padded)
        points, cp = (f + 2) ** 2, ceil_div(s.c, target.lanes) * target.lanes
        row = cp if cp % 256 else cp + target.lanes
        tiles = s.n * ceil_div(ceil_div(s.oh, f) * ceil_div(s.ow, f), tb) * ceil_div(padded, width)
        array = region.body.constants[w]
        shape = (points, padded // nr, s.c, nr)
        stored = self.stored(tactic)
        form = f"winograd{f}x{nr}{stored.value}"
        packed = Packed((w,), form, shape, lambda out: transform_filters(array, f, out), stored)
        return kernel(
            "winograd.c",
            region,
            tactic,
            block,
            (x, packed, *end.operands),
            tiles,
            scratch=4 * points * tb * (row + width),
        )


def threes_rejection(region: Region) -> str | None:
    """Returns the reason why Winograd's algorithm cannot compute a convolution, or not in less time, or None."""
    a, w = region.anchor.attrs, region.anchor.inputs[1].type.shape
    if w[2:] != (3, 3) or a["strides"] != (1, 1) or a["dilations"] != (1, 1) or a["group"] != 1:
        return "not 3×3 of stride one"
    if w[1] < 8 or w[0] < 8:
        return "too few channels to pay for the transforms"
    return None


def tile_blocks(
    s: WindowGeometry, f: int, target: Target, nr: int, size: int = 4, speed: float = 1
) -> Iterator[tuple[int, int, int]]:
    """Yields tiles and output channels per task, and rows of a register tile of `nr` channels, by a rough model of a
    core's waits. size: bytes of an operand's element; speed: rate of products relative to f32.

    The model counts products or weights, which the first block reads from memory and the others from L3; blocks that do
    not fit L2; and pixels that every share of the channels transforms again. Of 72 layers the first choice took 13 %
    longer than the best of all, the better of two 4 %, the best of four 2 % (each of F(2×2), F(4×4) and F(6×6); Zen 3,
    2 threads).
    """
    points, tiles = (f + 2) ** 2, ceil_div(s.oh, f) * ceil_div(s.ow, f)
    wide = target.registers >= 32
    unit = 1 if wide else 6

    def tile_rows(tb: int) -> int:
        """Returns the rows of a register tile; 13 for 6: 256 channels on 14 × 14 by F(2×2) 0.74 → 0.67 ms."""
        return balanced_rows(tb, 13) if wide else 6

    panels = ceil_div(s.oc, nr)
    weights = size * points * s.c * panels * nr
    # bytes per cycle and core when weights are read again, from L3 or from memory
    bandwidth = 12 if weights <= min(target.l3, MAX_L3) // 4 else 4

    def cycles(choice: tuple[int, int]) -> float:
        tb, nb = choice
        blocks, splits = ceil_div(tiles, tb), ceil_div(panels * nr, nb)
        rows = tile_rows(tb)
        products = points * blocks * ceil_div(tb, rows) * rows * s.c * panels * nr / (2 * target.lanes * speed)
        reads = weights / 6 + weights * (blocks - 1) / bandwidth
        held = points * tb * (size * s.c + 4 * nb)
        spilled = 0 if held <= target.l2 * 3 // 4 else 2 * held * blocks * splits / 16
        transforms = splits * tiles * points * s.c * size / 2
        tasks = blocks * splits * s.n
        rounds = ceil_div(tasks, target.threads)
        return (max(products, reads) + spilled + transforms) * rounds * target.threads / tasks

    splits = [n for n in (1, 2, 4, 8, 16) if n <= panels]
    blocks = [min(balanced(tiles, tb, unit), tiles) for tb in (6, 12, 18, 24, 36, 48, 64)]
    choices = {(tb, ceil_div(panels, n) * nr) for tb in blocks for n in splits}
    for tb, nb in sorted(choices, key=lambda c: (cycles(c), c)):
        yield tb, nb, tile_rows(tb)


def _row(point: float, scale: float) -> list[float]:
    """Returns the row of G for a point of interpolation."""
    return [1 / scale, point / scale, point * point / scale]


_A, _B = 0.5**0.5, 2**0.5
# The transforms of filters, by the size of the output's tile: F(2×2) at the points 0, ±1, ∞ and F(6×6) at 0, ±1, ±2,
# ±½, ∞ (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015), F(4×4) at 0, ±√½, ±√2, ∞, where the
# error is a third of that at 0, ±1, ±2, ∞ (on points: Alam et al., "Winograd convolution for deep neural networks:
# efficient point selection", 2022).
G = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array(
        [
            [1, 0, 0],
            [-1 / 1.5, -_A / 1.5, -0.5 / 1.5],
            [-1 / 1.5, _A / 1.5, -0.5 / 1.5],
            [1 / 6, _B / 6, 2 / 6],
            [1 / 6, -_B / 6, 2 / 6],
            [0, 0, 1],
        ]
    ),
    6: np.array(
        [
            [1, 0, 0],
            *[_row(p, n) for p, n in ((1, -4.5), (-1, -4.5), (2, 90), (-2, 90), (0.5, 1.40625), (-0.5, 1.40625))],
            [0, 0, 1],
        ]
    ),
}


def transform_filters(w: np.ndarray, f: int, out: np.ndarray) -> None:
    """Transforms filters [OC, C, 3, 3] to U[point, panel, C, nr], in float64, rounded once.

    Sums are written out, so that every machine computes the same bytes.
    """
    g, (panels, _, nr) = G[f], out.shape[1:]
    e = len(g)
    for p in range(panels):  # one at a time: intermediate results stay in the caches
        part = w[p * nr : (p + 1) * nr]
        taps = np.ascontiguousarray(part.transpose(2, 3, 1, 0), np.float64)  # [3, 3, C, n]
        for a in range(e):
            rows = g[a, 0] * taps[0] + g[a, 1] * taps[1] + g[a, 2] * taps[2]
            for b in range(e):
                out[a * e + b, p, :, : len(part)] = g[b, 0] * rows[0] + g[b, 1] * rows[1] + g[b, 2] * rows[2]
