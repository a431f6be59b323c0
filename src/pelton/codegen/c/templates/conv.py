"""Convolutions, channels-last: direct, Winograd and depthwise; and the first layer's, which reads planes."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import Size, bounds, is_known
from pelton.ir.graph import Value
from pelton.plan.layout import Order, Strides, channels_last, last_of, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, tail
from .gemm import is_product, pack_panels
from pelton.codegen.grid import (
    all_f32,
    is_constant,
    ceil_div,
    balanced,
    balanced_rows,
    fits_grid,
    grid_of,
    register_tiles,
    tail_rejection,
)
from pelton.codegen.template import Kernel, Layouts, Packed, Tactic, Target, Template, template

# a few cores' part at most: the rest of a server's 300 MB belongs to the others
L3 = 32 << 20


class WindowGeometry:
    """The sizes of a convolution or pooling over one or two spatial axes (one axis is a picture of one row)."""

    def __init__(self, x: tuple[Size, ...], y: tuple[Size, ...], kernel, strides, pads, dilations):
        flat = len(x) == 3

        def two(pair: tuple[Size, ...], one: int) -> tuple[Size, Size]:
            return (one, pair[0]) if flat else (pair[0], pair[1])

        self.n, self.c, self.oc = x[0], x[1], y[1]
        self.h, self.w = two(x[2:], 1)
        self.oh, self.ow = two(y[2:], 1)
        self.kh, self.kw = two(kernel, 1)
        self.sh, self.sw = two(strides, 1)
        self.dh, self.dw = two(dilations, 1)
        self.pt, self.pl = two(pads, 0)
        reach_h = (self.oh - 1) * self.sh + (self.kh - 1) * self.dh - self.pt
        reach_w = (self.ow - 1) * self.sw + (self.kw - 1) * self.dw - self.pl
        self.padded = bool(self.pt or self.pl or bounds(reach_h - self.h)[1] >= 0 or bounds(reach_w - self.w)[1] >= 0)

    def sizes(self, strides: Strides) -> dict[str, Size]:
        xn, xh, xw = strides[0], strides[2] if len(strides) == 4 else 0, strides[-1]
        return dict(
            BATCH=self.n,
            H=self.h,
            W=self.w,
            OH=self.oh,
            OW=self.ow,
            KH=self.kh,
            KW=self.kw,
            SH=self.sh,
            SW=self.sw,
            PT=self.pt,
            PL=self.pl,
            DH=self.dh,
            DW=self.dw,
            XN=xn,
            XH=xh,
            XW=xw,
        )


def window_geometry(region: Region) -> WindowGeometry:
    node = region.anchor
    a = node.attrs
    kernel = a["kernel"] if "kernel" in a else node.inputs[1].type.shape[2:]
    return WindowGeometry(
        node.inputs[0].type.shape, node.output.type.shape, kernel, a["strides"], a["pads"], a["dilations"]
    )


class ChannelsLast(Template):
    """What all templates over pictures share: channels-last operands, the pixel grid, a pointwise tail."""

    anchors: tuple[str, ...] = ("convolution",)
    needs_constant_filters = True  # whether filters have to be constants, packed when the engine is built

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.inputs[0].type.rank not in (3, 4):
            return "not one or two spatial axes"
        if not all_f32(*node.inputs, node.output):
            return "not f32"
        if any(not is_constant(region, v) for v in node.inputs[1:]) and self.needs_constant_filters:
            return "the filters are not constant"
        if node.inputs[0] in node.inputs[1:]:
            return "the picture is its own filter"
        if not is_known(*(d for v in node.inputs[1:] for d in v.type.shape)):
            return "the sizes of the filters vary"
        return self.sizes_rejection(region) or tail_rejection(region, node.output.type.shape, 1)

    def sizes_rejection(self, region: Region) -> str | None:
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        if value in region.anchor.inputs[1:] and not any(value in n.inputs for n in region.tail):
            return row_major(value.type.rank)
        return last_of(channels_last(region.anchor.output.type.rank), value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node, strides = region.anchor, layouts[value]
        if value is node.inputs[0] and not self.fits_image(value.type.shape, strides):
            return False
        if value in node.inputs[2:] and value.type.size != 1 and strides != (1,):
            return False
        return fits_grid(region, grid_of(node.output.type.shape, "pixels"), value, strides)

    def fits_image(self, shape: tuple[int, ...], strides: Strides) -> bool:
        """Whether the pictures can be read from where they are."""
        return shape[1] == 1 or strides[1] == 1

    def task_blocks(self, region: Region, pixels: int, panels: int, batch: int, target: Target, mr: int):
        """(pixels per task, panels per task) worth trying. Filters that tasks have to pack themselves are packed for
        many pixels."""
        if is_constant(region, region.anchor.inputs[1]):
            yield from task_blocks(pixels, panels, batch, target.threads, mr)
        else:
            for per in dict.fromkeys((1, ceil_div(panels, 2 * target.threads), panels)):
                tasks = ceil_div(2 * target.threads, batch * ceil_div(panels, per))
                yield ceil_div(ceil_div(pixels, tasks), mr) * mr, per


def filter_strides(packed: bool, group: Size, output: Size, channel: Size, space: Strides) -> dict[str, Size]:
    """How a kernel finds filters that it has to pack: what is between groups, output channels, channels, rows and
    columns."""
    if packed:
        return dict(PACKED=True, WG=0, WO=0, WC=0, WH=0, WW=0)
    return dict(PACKED=False, WG=group, WO=output, WC=channel, WH=space[0] if len(space) == 2 else 0, WW=space[-1])


def task_blocks(pixels: int, panels: int, batch: int, threads: int, mr: int):
    """(pixels per task, panels per task) worth trying, the best guess first: some tasks for each thread, large enough
    to keep operands in cache."""
    tasks = 6 * threads
    for goal in (48, 96, 192, 24, *([ceil_div(pixels, threads)] if threads > 1 else [])):
        mb = min(ceil_div(goal, mr) * mr, ceil_div(pixels, mr) * mr)
        blocks = ceil_div(pixels, mb) * batch
        per = max(1, min(panels, panels * blocks // tasks))
        yield mb, per
        if blocks >= threads:
            yield mb, panels


@template
class Winograd(ChannelsLast):
    name = "winograd"
    dynamic = True
    inexact = True

    def sizes_rejection(self, region: Region) -> str | None:
        a, w = region.anchor.attrs, region.anchor.inputs[1].type.shape
        if w[2:] != (3, 3) or a["strides"] != (1, 1) or a["dilations"] != (1, 1) or a["group"] != 1:
            return "not 3×3 of stride one"
        if w[1] < 8 or w[0] < 8:
            return "too few channels to pay for the transforms"
        return None

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        for f in (4, 6, 2):
            if f == 4 or min(s.oh, s.ow) >= f:
                yield from self._blocks(s, f, target)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["F"],)

    def margin(self, tactic: Tactic) -> float:
        """F(6×6) has four times the error of F(4×4) for, at best, 15 % fewer products: two layers with it made three
        times the error of a whole YOLOv2 out of 0.5 % of its time."""
        return 0.05 if tactic["F"] == 6 else super().margin(tactic)

    def _blocks(self, s: WindowGeometry, f: int, target: Target):
        """Tiles and output channels per task, by a rough model of what a core waits for: products or weights, which the
        first block reads from memory and the others from L3, blocks that leave L2, the pixels that every share of the
        channels transforms again. Of 72 layers the first choice took 13 % longer than the best of all, the better of
        two 4 %, the best of four 2 % (each of F(2×2), F(4×4) and F(6×6); Zen 3, 2 threads)."""
        nr, points, tiles = 2 * target.lanes, (f + 2) ** 2, ceil_div(s.oh, f) * ceil_div(s.ow, f)
        # rows of a register tile; 13 for 6: 256 on 14 × 14 by F(2×2) 0.74 → 0.67 ms
        most, unit = (6, 6) if target.registers < 32 else (13, 1)

        def high(tb: int) -> int:
            return 6 if most == 6 else balanced_rows(tb, most)

        panels = ceil_div(s.oc, nr)
        weights = 4 * points * s.c * panels * nr
        # bytes per cycle and core: L3, memory
        again = 12 if weights <= min(target.l3, L3) // 4 else 4

        def cycles(choice: tuple[int, int]) -> float:
            tb, nb = choice
            blocks, splits = ceil_div(tiles, tb), ceil_div(panels * nr, nb)
            rows = high(tb)
            products = points * blocks * ceil_div(tb, rows) * rows * s.c * panels * nr / (2 * target.lanes)
            reads = weights / 6 + weights * (blocks - 1) / again
            held = 4 * points * tb * (s.c + nb)
            spilled = 0 if held <= target.l2 * 3 // 4 else 2 * held * blocks * splits / 16
            transforms = splits * tiles * points * s.c * 2
            tasks = blocks * splits * s.n
            return (
                (max(products, reads) + spilled + transforms) * ceil_div(tasks, target.threads) * target.threads / tasks
            )

        splits = [n for n in (1, 2, 4, 8, 16) if n <= panels]
        choices = {
            (min(balanced(tiles, tb, unit), tiles), ceil_div(panels, n) * nr)
            for tb in (6, 12, 18, 24, 36, 48, 64)
            for n in splits
        }
        for tb, nb in sorted(choices, key=lambda c: (cycles(c), c)):
            yield Tactic(self.name, target.isa, (("F", f), ("MR", high(tb)), ("NV", 2), ("TB", tb), ("NB", nb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        f, nr, tb = tactic["F"], tactic["NV"] * target.lanes, tactic["TB"]
        end = tail(
            region,
            layouts,
            grid_of(node.output.type.shape, "pixels"),
            (node.output,),
            first=2,
            add=bias,
            unit=target.lanes,
        )
        sizes = s.sizes(layouts[x])
        block = (
            constants(
                C=s.c, OC=s.oc, **{k: sizes[k] for k in ("BATCH", "H", "W", "OH", "OW", "PT", "PL", "XN", "XH", "XW")}
            )
            + end.text
        )
        padded = ceil_div(s.oc, nr) * nr
        width = min(tactic["NB"], padded)
        points, cp = (f + 2) ** 2, ceil_div(s.c, target.lanes) * target.lanes
        row = cp if cp % 256 else cp + target.lanes
        tiles = s.n * ceil_div(ceil_div(s.oh, f) * ceil_div(s.ow, f), tb) * ceil_div(padded, width)
        array = region.body.constants[w]
        packed = Packed(
            (w,), f"winograd{f}x{nr}", (points, padded // nr, s.c, nr), lambda out: transform_filters(array, f, out)
        )
        return kernel(
            "winograd.c",
            region,
            tactic,
            block,
            (x, packed, *end.operands),
            tiles,
            scratch=4 * points * tb * (row + width),
        )


_A, _B = 0.5**0.5, 2**0.5
# G of F(2×2) at 0, ±1, ∞ and F(6×6) at 0, ±1, ±2, ±½, ∞ (Lavin and Gray, "Fast algorithms for convolutional neural
# networks", 2015) and of F(4×4) at
# 0, ±√½, ±√2, ∞, where the error is a third of that at 0, ±1, ±2, ∞ (on points: Alam et al., "Winograd convolution for
# deep neural networks: efficient
# point selection", 2022)
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
            *(
                [1 / n, p / n, p * p / n]
                for p, n in ((1, -4.5), (-1, -4.5), (2, 90), (-2, 90), (0.5, 1.40625), (-0.5, 1.40625))
            ),
            [0, 0, 1],
        ]
    ),
}


def transform_filters(w: np.ndarray, f: int, out: np.ndarray) -> None:
    """[OC, C, 3, 3] to U[point, panel, C, nr], computed in float64 and rounded once; sums written out so that every
    machine gets the same bytes."""
    g, (panels, _, nr) = G[f], out.shape[1:]
    e = len(g)
    # one at a time: what lies between stays in the caches
    for p in range(panels):
        part = w[p * nr : (p + 1) * nr]
        taps = np.ascontiguousarray(part.transpose(2, 3, 1, 0), np.float64)  # [3, 3, C, n]
        for a in range(e):
            rows = g[a, 0] * taps[0] + g[a, 1] * taps[1] + g[a, 2] * taps[2]
            for b in range(e):
                out[a * e + b, p, :, : len(part)] = g[b, 0] * rows[0] + g[b, 1] * rows[1] + g[b, 2] * rows[2]


# sums side by side, from which on a depthwise kernel waits for loads rather than for its own last sum
CHAINS = 6
# multiply-adds that a depthwise kernel may write out for blocks at the edges and between them
UNROLLED = 1536


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

        def waiting(tw: int) -> int:
            """Pixels that a row would have the time for: blocks of few have too few sums under way to keep the
            multipliers busy."""
            return s.ow // tw * max(tw, CHAINS) + (max(s.ow % tw, CHAINS) if s.ow % tw else 0)

        # Two vectors of 8 are a line of the caches, and where channels are many, neighbouring pixels share so few sets
        # that the L1 loses a line before its
        # other half is read: 256 channels of 10 × 20, 5 × 5, one thread, 40 → 33 µs, 96 of 112 × 112 with strides of
        # two 179 → 136.
        for nv, widths in ((2, (4, 5, 6)), (1, sorted((6, 7, 8, 10, 4), key=waiting)))[
            :: 1 if target.lanes < 16 else -1
        ]:
            if nv == 1 or s.c >= nv * target.lanes:
                for tw in dict.fromkeys(min(tw, s.ow) for tw in widths):
                    for rb in (1, 4):
                        if rb == 1 or s.oh > 4 * target.threads:
                            yield Tactic(self.name, target.isa, (("TW", tw), ("NV", nv), ("RB", rb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        end = tail(
            region,
            layouts,
            grid_of(node.output.type.shape, "pixels"),
            (node.output,),
            first=2,
            add=bias,
            unit=target.lanes,
        )
        per_tap = tactic["NV"] * (3 * tactic["TW"] + (s.kw - 1) * s.dw // s.sw)
        edges = isinstance(s.ow, int) and isinstance(s.w, int) and s.kh * s.kw * per_tap <= UNROLLED
        return kernel(
            "depthwise.c",
            region,
            tactic,
            constants(C=s.c, **s.sizes(layouts[x])) + f"#define EDGES {int(edges)}\n" + end.text,
            (x, pack_taps(w, region.body.constants[w], target.lanes), *end.operands),
            s.n * ceil_div(s.oh, tactic["RB"]),
        )


def pack_taps(w: Value, array: np.ndarray, lanes: int) -> Packed:
    """One filter per channel as [tap, channel], whole vectors of them."""
    c = array.shape[0]
    taps, width = array.reshape(c, -1).shape[1], ceil_div(c, lanes) * lanes

    def pack(out: np.ndarray) -> None:
        out[:, :c] = array.reshape(c, -1).T

    return Packed((w,), f"taps{lanes}", (taps, width), pack)


MAX_LOOKUPS = 4096  # that a task with several groups may look up
# Channels of a group that is found its places with others; for more, finding them again is nothing. Against group by
# group, 3 × 3, 2 threads, AVX-512: four
# of 16 channels on 112 × 112 with strides of two 613 → 337 µs, 32 of 4 on 56 × 56 1136 → 571, 9 of 16 on 28 × 28 235 →
# 173, 16 of 32 on 14 × 14 254 → 225.
MAX_GROUP_CHANNELS = 128


@template
class Direct(ChannelsLast):
    name = "conv"
    dynamic = True
    needs_constant_filters = False

    def sizes_rejection(self, region: Region) -> str | None:
        constants = all(is_constant(region, v) for v in region.anchor.inputs[1:])
        return "a product over pixels: gemm" if is_product(region.anchor) and constants else None

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        groups, w = region.anchor.attrs["group"], region.anchor.inputs[1]
        seen = set()
        for mr, nv in register_tiles(s.oc // groups, s.oh * s.ow, target):
            nr = nv * target.lanes
            mr = min(mr, s.oh * s.ow)
            for mb, per in self.task_blocks(
                region, s.oh * s.ow, ceil_div(s.oc // groups, nr), s.n * groups, target, mr
            ):
                choice = (mr, nv, mb, per * nr)
                if choice not in seen:
                    seen.add(choice)
                    together = (
                        s.c // groups <= MAX_GROUP_CHANNELS
                        and s.kh * s.kw * mb <= MAX_LOOKUPS
                        and is_constant(region, w)
                    )
                    # for tasks of all threads
                    enough = ceil_div(groups, ceil_div(6 * target.threads, ceil_div(s.oh * s.ow, mb) * s.n))
                    for gb in dict.fromkeys((enough, groups) if together else (1,)):
                        yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB", "GB"), (*choice, gb))))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        groups, nr = node.attrs["group"], tactic["NV"] * target.lanes
        c, oc, taps = w.type.shape[1], w.type.shape[0] // groups, s.kh * s.kw
        end = tail(
            region,
            layouts,
            grid_of(node.output.type.shape, "pixels"),
            (node.output,),
            first=2,
            add=bias,
            unit=None if groups > 1 and oc % target.lanes else target.lanes,
        )
        array, panels = region.body.constants.get(w), ceil_div(oc, nr)
        between, channel, *space = layouts[w]
        block = (
            constants(
                C=c,
                OC=oc,
                GROUPS=groups,
                PADDED=s.padded,
                **s.sizes(layouts[x]),
                **filter_strides(array is not None, between * oc, between, channel, tuple(space)),
            )
            + end.text
        )
        tiles = (
            s.n
            * ceil_div(groups, tactic["GB"])
            * ceil_div(s.oh * s.ow, tactic["MB"])
            * ceil_div(panels * nr, tactic["NB"])
        )
        if array is None:
            return kernel(
                "conv.c", region, tactic, block, (x, w, *end.operands), tiles, scratch=4 * tactic["NB"] * taps * c
            )

        def pack(out: np.ndarray) -> None:
            pack_panels(array.reshape(groups, oc, c, taps).transpose(0, 3, 2, 1).reshape(groups, taps * c, oc), out)

        return kernel(
            "conv.c",
            region,
            tactic,
            block,
            (x, Packed((w,), f"taps_g{groups}_p{nr}", (groups, panels, taps * c, nr), pack), *end.operands),
            tiles,
            scratch=8 * taps * tactic["MB"] if tactic["GB"] > 1 else 0,
        )


@template
class Planar(ChannelsLast):
    """The first layer: reads a picture of a few planes as it lies, and writes channels last."""

    name = "conv_planar"
    dynamic = True

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.attrs["group"] != 1 or node.inputs[0].type.rank != 4:
            return "not one picture of all its channels"
        if node.inputs[1].type.shape[1] > 4:
            return (
                "more than four planes: rows of every plane are copied by every task, and what kernels of ours write"
                " has its channels last"
            )
        if any(node.inputs[0] in n.inputs for n in region.tail):
            return "what follows reads the picture as well, as vectors of channels"
        return None

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return (
            row_major(value.type.rank)
            if value is region.anchor.inputs[0]
            else super().copy_order(region, value, layouts)
        )

    def fits_image(self, shape: tuple[int, ...], strides: Strides) -> bool:
        return shape[-1] == 1 or strides[-1] == 1

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        for mr, nv in register_tiles(s.oc, s.oh * s.ow, target):
            panels = ceil_div(s.oc, nv * target.lanes)
            for rb in dict.fromkeys(min(rb, s.oh) for rb in (2, 4, 1)):
                per = max(1, min(panels, panels * ceil_div(s.oh, rb) * s.n // (6 * target.threads)))
                yield Tactic(
                    self.name,
                    target.isa,
                    (("MR", min(mr, s.ow)), ("NV", nv), ("RB", rb), ("NB", per * nv * target.lanes)),
                )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        nr, rb, taps = tactic["NV"] * target.lanes, tactic["RB"], s.c * s.kh * s.kw
        end = tail(
            region,
            layouts,
            grid_of(node.output.type.shape, "pixels"),
            (node.output,),
            first=2,
            add=bias,
            unit=target.lanes,
        )
        block = constants(C=s.c, OC=s.oc, XC=layouts[x][1], **s.sizes(layouts[x])) + end.text
        array = region.body.constants[w]
        rows, columns = (rb - 1) * s.sh + (s.kh - 1) * s.dh + 1, (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1
        weights = Packed(
            (w,),
            f"panels{nr}planar",
            (ceil_div(s.oc, nr), taps, nr),
            lambda out: pack_panels(array.reshape(s.oc, taps).T, out),
        )
        tiles = s.n * ceil_div(s.oh, rb) * ceil_div(s.oc, tactic["NB"])
        return kernel(
            "conv_planar.c", region, tactic, block, (x, weights, *end.operands), tiles, scratch=4 * s.c * rows * columns
        )
