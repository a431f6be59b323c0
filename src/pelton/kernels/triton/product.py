"""Matrix products on tensor cores: matmul, 1×1 convolutions, and all other convolutions as products over taps and channels."""
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32
from pelton.kernels.conv import window
from pelton.kernels.emit import Grid
from pelton.kernels.gemm import is_product
from pelton.kernels.grid import constant, divide, tail_refusal
from pelton.kernels.product import Product
from pelton.kernels.template import Kernel, Layouts, Packed, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Order, broadcast, channels_last, last_of, row_major
from pelton.plan.region import Region

from .emit import kernel, place, tail, unreadable
from .pointwise import power_of_two

TILES = ((128, 256, 8, 3), (256, 128, 8, 3), (128, 128, 8, 3), (128, 128, 4, 3), (128, 64, 8, 3), (128, 64, 4, 4), (64, 128, 4, 4), (64, 64, 4, 4),
         (64, 32, 4, 5), (32, 64, 4, 5), (32, 32, 4, 5), (16, 64, 4, 5), (16, 32, 4, 5))                 # rows, columns, warps, stages


def tiles(name: str, m: int, n: int, k: int, batch: int, whole: int, f32: bool, target: Target) -> Iterable[Tactic]:
    """Tactics by the time that a simple model gives them: waves of tiles over the multiprocessors, a tile's time its products and what it loads.

    Sums that a thread holds are half as many where an A100 has to hold them: with twice as many its kernels spilled 112 to 424 bytes per thread.
    whole: steps that divide it are preferred. f32: exactly rounded products (three of TF32 each, or by the units for f32) instead of half ones.
    """
    def cost(tile: tuple[int, int, int, int]) -> float:
        bm, bn, *_ = tile
        return divide(batch * divide(m, bm) * divide(n, bn), target.threads) * (bm * bn + 24 * (bm + bn))
    most = (32 if f32 else 64) * (2 if target.isa == "sm_90" else 1)
    ways = [(bk, precision) for precision in ((1, 0) if f32 else (0,)) for bk in ((32, 16) if f32 else (64, 32, 128))]
    ways = [w for w in ways if w[0] <= power_of_two(k, 16)] or [(16, ways[0][1])]
    ways.sort(key=lambda w: whole % w[0] != 0)
    for bk, precision in ways:
        for bm, bn, warps, stages in sorted(TILES, key=cost):
            if (bm + bn) * bk * (4 if f32 else 2) * stages > 160 << 10 or bm * bn > 32 * warps * most:
                continue                                                   # past shared memory, or registers
            yield Tactic(name, target.isa, (("BM", bm), ("BN", bn), ("BK", bk), ("TALL", 8), ("WARPS", warps), ("STAGES", stages), ("PRECISION", precision)))


class Products(Template):
    """What they share: element types, and that any operand may lie anywhere."""

    dynamic = True

    def refuses_node(self, region: Region) -> str | None:
        node = region.anchor
        kinds = {v.type.dtype for v in (*node.inputs, node.output)}
        if len(kinds) != 1 or not kinds <= {F32, F16, BF16}:
            return "not in one of f32, f16 and bf16"
        conv = node.op.name == "convolution"
        if conv and node.inputs[0] in node.inputs[1:]:
            return "the picture is its own filter"
        return self.refuses_sizes(region) or tail_refusal(region, node.output.type.shape, 1 if conv else node.output.type.rank - 1) or unreadable(region.tail)

    def refuses_sizes(self, region: Region) -> str | None:
        return None

    def order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        return channels_last(rank) if region.anchor.op.name == "convolution" else row_major(rank)

    def wanted(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        if region.anchor.op.name != "convolution" or value in region.anchor.inputs[1:] and not any(value in n.inputs for n in region.tail):
            return row_major(rank)
        return last_of(channels_last(region.anchor.output.type.rank), rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node, shape, strides = region.anchor, value.type.shape, layouts[value]
        if node.op.name == "convolution":
            if value in node.inputs[2:] and value.type.size != 1 and strides != (1,):
                return False
            return value is not node.inputs[0] or strides[1] == 1 or is_known(shape[1]) and shape[1] < 8      # few channels gain nothing by lying together
        return value not in node.inputs or 1 in [s for s, d in zip(strides[-2:], shape[-2:]) if d != 1] or shape[-2:] == (1, 1)

    def form(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["BM"], tactic["BN"]

    def exact(self, tactic: Tactic) -> bool:
        return tactic["PRECISION"] == 0                                    # 1: three products of TF32 instead of one of f32


def pixels(shape: tuple[int, ...]) -> Grid:
    """All pixels of all pictures × channels."""
    return Grid(tuple(shape), (), (0, *range(2, len(shape))), (1,))


@gpu_template
class Gemm(Products):
    name = "gemm"
    anchors = ("matmul", "convolution")

    def refuses_sizes(self, region: Region) -> str | None:
        node = region.anchor
        if node.op.name == "convolution":
            return None if is_product(node) else "not a 1×1 convolution of stride one without padding and groups"
        return "an operand is a vector" if min(v.type.rank for v in node.inputs) < 2 else None

    def _sizes(self, region: Region, layouts: Layouts) -> tuple[Product, Grid, int, int]:
        """(product, the output's grid, batch, m)"""
        p = Product(region, layouts)
        if p.node.op.name != "convolution":
            return p, p.grid, p.batch, p.m
        return p, pixels(p.node.output.type.shape), 1, p.batch * p.m

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = self._sizes(region, layouts)
        yield from tiles(self.name, m, p.n, p.k, batch, p.k, p.a.type.dtype is F32, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = self._sizes(region, layouts)
        if p.node.op.name == "convolution":
            a, b = layouts[p.a], layouts[p.b]
            ak, bk = a[1], b[1]
            block = place("a_at", Grid(p.a.type.shape, (), grid.r, ()), a) + place("b_at", Grid(p.b.type.shape, (), (), (0,)), b)
        else:
            a_shape, b_shape = (*grid.shape[:-1], p.k), (*grid.shape[:-2], p.k, p.n)
            a, b = broadcast(p.a.type.shape, layouts[p.a], a_shape), broadcast(p.b.type.shape, layouts[p.b], b_shape)
            ak, bk = a[-1], b[-2]
            block = place("a_at", Grid(a_shape, grid.b, grid.r, ()), a) + place("b_at", Grid(b_shape, grid.b, (), grid.c), b)
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        even = is_known(p.k) and p.k % tactic["BK"] == 0
        return kernel("gemm.py", region, tactic, dict(M=m, N=p.n, K=p.k, AK=ak, BK_STEP=bk, EVEN=even), block + end.text, (p.a, p.b, *end.operands),
                      batch * divide(m, tactic["BM"]) * divide(p.n, tactic["BN"]), layouts)


def taps_first(w: np.ndarray, out: np.ndarray) -> None:
    """Filters [O, C, space…] as [O, taps · C], channels fastest; what is past them stays as it is."""
    flat = np.moveaxis(w, 1, -1).reshape(w.shape[0], -1)
    out[:, :flat.shape[1]] = flat


@gpu_template
class Convolution(Products):
    """Any stride, dilation, padding and number of groups."""

    name = "conv"
    anchors = ("convolution",)

    def refuses_sizes(self, region: Region) -> str | None:
        x, w, _ = region.anchor.inputs
        if x.type.rank not in (3, 4):
            return "not one or two spatial axes"
        if w.type.shape[1] == 1 and region.anchor.attrs["group"] > 1:
            return "a product of one channel, for which there are windows"
        return None if constant(region, w) else "the filters are not constant"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, (o, c, *kernel_size) = window(region), region.anchor.inputs[1].type.shape
        group = region.anchor.attrs["group"]
        yield from tiles(self.name, s.n * s.oh * s.ow, o // group, c * math.prod(kernel_size), group, c, region.anchor.output.type.dtype is F32, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window(region)
        x, w, bias = node.inputs
        o, c = w.type.shape[:2]
        group, k = node.attrs["group"], c * s.kh * s.kw
        step = divide(k, 8) * 8                                            # rows begin at multiples of 16 bytes
        array = region.body.constants[w]
        weights = Packed((w,), f"taps{step}", (o, step), lambda out: taps_first(array, out), w.type.dtype)
        end = tail(region, layouts, pixels(node.output.type.shape), (node.output,), first=2, add=bias)
        sizes = dict(GROUPS=group, C=c, OUT=o // group, K_STEP=step, XC=layouts[x][1], WHOLE=c % tactic["BK"] == 0, **s.sizes(layouts[x]))
        count = group * divide(s.n * s.oh * s.ow, tactic["BM"]) * divide(o // group, tactic["BN"])
        return kernel("conv.py", region, tactic, sizes, end.text, (x, weights, *end.operands), count, layouts)
