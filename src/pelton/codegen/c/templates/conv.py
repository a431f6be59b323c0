"""Direct convolutions that write channels last, and the first layer's, which reads planes."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.plan.layout import Layouts, Order, Strides, row_major
from pelton.plan.region import Region

from .gemm import is_product, pack_panels
from .images import ChannelsLast, filter_strides, pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.grid import ceil_div, is_constant, register_tiles
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

MAX_LOOKUPS = 4096  # offsets of taps that a task of several groups may keep
# Channels of groups that share their taps' offsets; with more, computing them again costs nothing. Against group by
# group, 3 × 3, 2 threads, AVX-512: four of 16 channels on 112 × 112 with strides of two 613 → 337 µs, 32 of 4 on
# 56 × 56 1136 → 571, 9 of 16 on 28 × 28 235 → 173, 16 of 32 on 14 × 14 254 → 225.
MAX_GROUP_CHANNELS = 128


@template
class Direct(ChannelsLast):
    name = "conv"
    each_once = True
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
        narrow = s.c // groups <= MAX_GROUP_CHANNELS and is_constant(region, w)
        seen = set()
        for mr, nv in register_tiles(s.oc // groups, s.oh * s.ow, target):
            nr = nv * target.lanes
            mr = min(mr, s.oh * s.ow)
            panels = ceil_div(s.oc // groups, nr)
            for mb, per in self.task_blocks(region, s.oh * s.ow, panels, s.n * groups, target, mr):
                choice = (mr, nv, mb, per * nr)
                if choice not in seen:
                    seen.add(choice)
                    blocks = ceil_div(s.oh * s.ow, mb) * s.n
                    enough = ceil_div(groups, ceil_div(6 * target.threads, blocks))  # tasks for all threads
                    shared = narrow and s.kh * s.kw * mb <= MAX_LOOKUPS
                    for gb in dict.fromkeys((enough, groups) if shared else (1,)):
                        yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB", "GB"), (*choice, gb))))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        groups, nr = node.attrs["group"], tactic["NV"] * target.lanes
        c, oc, taps = w.type.shape[1], w.type.shape[0] // groups, s.kh * s.kw
        end = pixel_tail(region, layouts, bias=bias, unit=None if groups > 1 and oc % target.lanes else target.lanes)
        array, panels = region.body.constants.get(w), ceil_div(oc, nr)
        between, channel, *space = layouts[w]
        filters = filter_strides(array is not None, between * oc, between, channel, tuple(space))
        block = constants(C=c, OC=oc, GROUPS=groups, PADDED=s.padded, **s.sizes(layouts[x]), **filters) + end.text
        blocks = ceil_div(s.oh * s.ow, tactic["MB"]) * ceil_div(panels * nr, tactic["NB"])
        tiles = s.n * ceil_div(groups, tactic["GB"]) * blocks
        if array is None:
            scratch = 4 * tactic["NB"] * taps * c
            return kernel("conv.c", region, tactic, block, (x, w, *end.operands), tiles, scratch=scratch)

        def pack(out: np.ndarray) -> None:
            pack_panels(array.reshape(groups, oc, c, taps).transpose(0, 3, 2, 1).reshape(groups, taps * c, oc), out)

        packed = Packed((w,), f"taps_g{groups}_p{nr}", (groups, panels, taps * c, nr), pack)
        scratch = 8 * taps * tactic["MB"] if tactic["GB"] > 1 else 0
        return kernel("conv.c", region, tactic, block, (x, packed, *end.operands), tiles, scratch=scratch)


@template
class Planar(ChannelsLast):
    """The first layer: reads images of a few planes, row-major, and writes channels last."""

    name = "conv_planar"
    dynamic = True

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.attrs["group"] != 1 or node.inputs[0].type.rank != 4:
            return "not one image of all its channels"
        if node.inputs[1].type.shape[1] > 4:
            return "more than four planes: every task would copy rows of each, and kernels write channels last"
        if any(node.inputs[0] in n.inputs for n in region.tail):
            return "the tail reads the image as well, as vectors of channels"
        return None

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        if value is region.anchor.inputs[0]:
            return row_major(value.type.rank)
        return super().copy_order(region, value, layouts)

    def fits_image(self, shape: tuple[int, ...], strides: Strides) -> bool:
        return shape[-1] == 1 or strides[-1] == 1

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        for mr, nv in register_tiles(s.oc, s.oh * s.ow, target):
            nr = nv * target.lanes
            panels = ceil_div(s.oc, nr)
            for rb in dict.fromkeys(min(rb, s.oh) for rb in (2, 4, 1)):
                per = max(1, min(panels, panels * ceil_div(s.oh, rb) * s.n // (6 * target.threads)))
                params = (("MR", min(mr, s.ow)), ("NV", nv), ("RB", rb), ("NB", per * nr))
                yield Tactic(self.name, target.isa, params)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        nr, rb, taps = tactic["NV"] * target.lanes, tactic["RB"], s.c * s.kh * s.kw
        end = pixel_tail(region, layouts, bias=bias, unit=target.lanes)
        block = constants(C=s.c, OC=s.oc, XC=layouts[x][1], **s.sizes(layouts[x])) + end.text
        array = region.body.constants[w]
        rows, columns = (rb - 1) * s.sh + (s.kh - 1) * s.dh + 1, (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1
        shape = (ceil_div(s.oc, nr), taps, nr)
        weights = Packed((w,), f"panels{nr}planar", shape, lambda out: pack_panels(array.reshape(s.oc, taps).T, out))
        tiles = s.n * ceil_div(s.oh, rb) * ceil_div(s.oc, tactic["NB"])
        scratch = 4 * s.c * rows * columns + (16 if target.level.by_lane else 0)
        return kernel("conv_planar.c", region, tactic, block, (x, weights, *end.operands), tiles, scratch=scratch)
