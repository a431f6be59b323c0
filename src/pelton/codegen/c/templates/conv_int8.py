"""Convolutions and products of bytes, summed in i32: direct, channels-last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import I8, I32, U8, DType
from pelton.plan.layout import broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.code import code
from pelton.codegen.grid import Grid, ceil_div, is_constant, register_tiles, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Layouts, Packed, Tactic, Target, template

from .gemm import Gemm
from .images import ChannelsLast, pixel_tail, task_blocks, window_geometry

BYTES = (U8, I8)
# How four products are added, as in dot.h; the last is exact for all operands.
VNNI, PAIRS, WIDE = 0, 1, 2


@template
class DirectInt8(ChannelsLast):
    """u8 or i8 images and i8 filters."""

    name = "conv_int8"
    dynamic = True

    def types_rejection(self, product: Node) -> str | None:
        return _types_rejection(product)

    def operands_rejection(self, region: Region) -> str | None:
        x, w, _ = region.anchor.inputs
        return None if x.type.dtype in BYTES and w.type.dtype is I8 else "not bytes by i8"

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, groups = window_geometry(region), region.anchor.attrs["group"]
        how = dot_method(region, target)
        return _tactics(self.name, s.oh * s.ow, s.oc // groups, s.n * groups, how, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias = node.inputs
        groups, nr, how = node.attrs["group"], tactic["NV"] * target.lanes, tactic["DOT"]
        c, oc, signed = w.type.shape[1], w.type.shape[0] // groups, x.type.dtype is I8
        end = pixel_tail(region, layouts, bias=bias, unit=None if groups > 1 and oc % target.lanes else target.lanes)
        sizes = dict(C=c, OC=oc, GROUPS=groups, PADDED=s.padded, PAD=node.attrs.get("pad_value", 0), SIGNED=signed)
        block = constants(**sizes, **s.sizes(layouts[x])) + macro("X_AT(b)", code("(b) * {}", layouts[x][0])) + end.text
        tiles = s.n * groups * ceil_div(s.oh * s.ow, tactic["MB"]) * ceil_div(ceil_div(oc, nr) * nr, tactic["NB"])
        by_taps = region.body.constants[w].reshape(groups, oc, c, -1).transpose(0, 3, 2, 1)
        packed = packed_bytes(w, by_taps, nr, target, how, signed)
        return kernel("conv_int8.c", region, tactic, block, (x, packed, *end.operands), tiles)


@template
class GemmInt8(Gemm):
    """u8 or i8 rows by a constant matrix of i8: as a convolution of images of one column."""

    name = "gemm_int8"
    anchors = ("matmul",)

    def types_rejection(self, product: Node) -> str | None:
        return _types_rejection(product)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        a, b = node.inputs
        if a.type.dtype not in BYTES or b.type.dtype is not I8:
            return "not bytes by i8"
        if not is_constant(region, b) or b.type.rank != 2 or a.type.rank < 2:
            return "not rows by a constant matrix"
        return tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p = MatrixProduct(region, layouts)
        return _tactics(self.name, p.m, p.n, p.batch, dot_method(region, target), target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, nr, how = MatrixProduct(region, layouts), tactic["NV"] * target.lanes, tactic["DOT"]
        shape = (*p.grid.shape[:-1], p.k)
        strides, rows = broadcast(p.a.type.shape, layouts[p.a], shape), Grid(shape, p.grid.b, p.grid.r, ())
        runs = rows.runs(rows.r, strides)
        signed = p.a.type.dtype is I8
        end = tail(region, layouts, p.grid, (p.node.output,), first=2, unit=target.lanes)
        sizes = dict(BATCH=p.batch, H=p.m, W=1, OH=p.m, OW=1, C=p.k, OC=p.n, XN=0, XH=runs[0][1] if runs else 0, XW=0)
        ones = dict(GROUPS=1, KH=1, KW=1, SH=1, SW=1, DH=1, DW=1)
        block = (
            constants(**sizes, **ones, PT=0, PL=0, PADDED=False, PAD=0, SIGNED=signed)
            + macro("X_AT(b)", Grid(shape, p.grid.b, (), ()).address(strides))
            + end.text
        )
        weights = packed_bytes(p.b, region.body.constants[p.b][None, None], nr, target, how, signed)
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(ceil_div(p.n, nr) * nr, tactic["NB"])
        return kernel("conv_int8.c", region, tactic, block, (p.a, weights, *end.operands), tiles)


def _types_rejection(product: Node) -> str | None:
    attrs = product.attrs
    return None if attrs.get("accumulate") is I32 and attrs.get("to") in (None, I32) else "does not sum in i32"


def _tactics(name: str, rows: int, columns: int, batch: int, how: int, target: Target) -> Iterator[Tactic]:
    """Register tiles and blocks of tasks for products of so many rows (pixels) and columns (channels)."""
    seen = set()
    for mr, nv in register_tiles(columns, rows, target):
        nr = nv * target.lanes
        mr = min(mr, rows)
        for mb, per in task_blocks(rows, ceil_div(columns, nr), batch, target.threads, mr):
            choice = (mr, nv, mb, per * nr, how)
            if choice not in seen:
                seen.add(choice)
                yield Tactic(name, target.isa, tuple(zip(("MR", "NV", "MB", "NB", "DOT"), choice)))


def packed_bytes(w: Value, array: np.ndarray, nr: int, target: Target, how: int, signed: bool) -> Packed:
    """Weights [group, tap, channel, output] as the kernel reads them; signed: whether what they multiply is i8."""
    groups, taps, channels, outputs = array.shape
    offset = 128 if signed and how != WIDE else 0
    shape = (groups, ceil_div(outputs, nr), 4 * nr * (1 + taps * ceil_div(channels, 4)))

    def pack(out: np.ndarray) -> None:
        pack_bytes(array, nr, target.lanes, how, offset, out)

    return Packed((w,), f"bytes_g{groups}_p{nr}_{how}_{offset}", shape, pack, DType.U8)


def dot_method(region: Region, target: Target) -> int:
    """How products are added on a target: for sums of pairs in i16, what the filters are decides."""
    if "vnni" in target.isa:
        return VNNI
    w = region.body.constants[region.anchor.inputs[1]]
    outputs_first = w.T if region.anchor.op.name == "matmul" else w
    return PAIRS if pairs_fit(outputs_first) else WIDE


def pairs_fit(filters: np.ndarray) -> bool:
    """Whether two neighbouring products of a u8 with these filters, [output, channel, taps…], always fit an i16: where
    the positive weights of each pair of channels, and its negative ones, sum to no more than 128.

    255 · 128 < 2¹⁵.
    """
    w = filters.astype(np.int32)
    odd = w.shape[1] % 2
    w = np.pad(w, [(0, 0), (0, odd), *[(0, 0)] * (w.ndim - 2)])  # as kernels pad the channels of a tap
    pairs = w.reshape(w.shape[0], w.shape[1] // 2, 2, -1)
    return all(int(np.maximum(sign * pairs, 0).sum(2).max(initial=0)) <= 128 for sign in (1, -1))


def pack_bytes(w: np.ndarray, nr: int, lanes: int, how: int, offset: int, out: np.ndarray) -> None:
    """[group, tap, channel, output] to panels of `nr` outputs: what their sums begin with as i32, then for each tap and
    each four channels the four weights of every output, in the order that dot.h says. offset: by how much the bytes
    that are multiplied exceed those of the image."""
    groups, taps, channels, outputs = w.shape
    fours = ceil_div(channels, 4)
    whole = np.zeros((groups, taps, 4 * fours, out.shape[1] * nr), np.int8)
    whole[:, :, :channels, :outputs] = w
    # group, panel, tap, four, vector, lane, byte
    split = whole.reshape(groups, taps, fours, 4, out.shape[1], nr // lanes, lanes).transpose(0, 4, 1, 2, 5, 6, 3)
    if how == WIDE:
        split = np.stack([split[..., 0::2], split[..., 1::2]], 5)  # even bytes of all lanes, then the odd ones
    begin = -offset * whole.astype(np.int32).sum((1, 2)).reshape(groups, out.shape[1], nr)
    out[..., : 4 * nr] = begin.astype("<i4").view(np.uint8)
    out[..., 4 * nr :] = np.ascontiguousarray(split).reshape(groups, out.shape[1], -1).view(np.uint8)
