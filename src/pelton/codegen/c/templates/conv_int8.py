"""Convolutions and products of bytes, summed in i32: direct, channels-last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import I8, I16, I32, U8, DType
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
FILTERS = (I8, I16)  # i16 for weights of which few are beyond i8
PLACE = 16  # bytes, as in conv_int8.c
# How four products are added, as in dot.h; the last is exact for all operands.
VNNI, PAIRS, WIDE = 0, 1, 2


@template
class DirectInt8(ChannelsLast):
    """u8 or i8 images and i8 filters; biases and what padding holds may be computed."""

    name = "conv_int8"
    dynamic = True
    needs_constant_filters = False  # but see `operands_rejection`

    def types_rejection(self, product: Node) -> str | None:
        return accumulates_rejection(product)

    def operands_rejection(self, region: Region) -> str | None:
        return bytes_rejection(region)

    def sizes_rejection(self, region: Region) -> str | None:
        c, filters = region.anchor.inputs[0].type.shape[1], region.anchor.inputs[1].type.shape[0]
        return "one filter per channel" if c > 1 and region.anchor.attrs["group"] == c == filters else None

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, groups = window_geometry(region), region.anchor.attrs["group"]
        return _tactics(self.name, s.oh * s.ow, s.oc // groups, s.n * groups, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias, *padding = node.inputs
        rows = s.dw == 1 and s.kw > 1 and layouts[x][-1] == w.type.shape[1] and w.type.shape[1] % 4 != 0
        how = dot_method(region, target, rows)
        groups, nr = node.attrs["group"], tactic["NV"] * target.lanes
        c, oc, signed = w.type.shape[1], w.type.shape[0] // groups, x.type.dtype is I8
        unit = None if groups > 1 and oc % target.lanes else target.lanes
        end = pixel_tail(region, layouts, first=2 + len(padding), bias=bias, unit=unit)
        by_taps = region.body.constants[w].reshape(groups, oc, c, -1).transpose(0, 3, 2, 1)
        beyond = places_beyond(by_taps, nr)
        sizes = dict(C=c, OC=oc, GROUPS=groups, PADDED=s.padded, SIGNED=signed, DOT=how, ROWS=rows, BEYOND=beyond)
        block = constants(**sizes, **s.sizes(layouts[x])) + macro("X_AT(b)", code("(b) * {}", layouts[x][0])) + end.text
        block += macro("PAD", "*(const i8 *)a[2].p" if padding else str(node.attrs["pad_value"]))
        tiles = s.n * groups * ceil_div(s.oh * s.ow, tactic["MB"]) * ceil_div(ceil_div(oc, nr) * nr, tactic["NB"])
        packed = packed_bytes(w, by_taps, nr, target, how, signed, beyond, s.kw, rows)
        return kernel("conv_int8.c", region, tactic, block, (x, packed, *padding, *end.operands), tiles)


@template
class GemmInt8(Gemm):
    """u8 or i8 rows by a constant matrix of i8: as a convolution of images of one column."""

    name = "gemm_int8"
    anchors = ("matmul",)

    def types_rejection(self, product: Node) -> str | None:
        return accumulates_rejection(product)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        a, b = node.inputs
        if a.type.dtype not in BYTES or b.type.dtype not in FILTERS:
            return "not bytes by i8"
        if not is_constant(region, b) or b.type.rank != 2 or a.type.rank < 2:
            return "not rows by a constant matrix"
        return tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p = MatrixProduct(region, layouts)
        return _tactics(self.name, p.m, p.n, p.batch, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, nr, how = MatrixProduct(region, layouts), tactic["NV"] * target.lanes, dot_method(region, target)
        shape = (*p.grid.shape[:-1], p.k)
        strides, rows = broadcast(p.a.type.shape, layouts[p.a], shape), Grid(shape, p.grid.b, p.grid.r, ())
        runs = rows.runs(rows.r, strides)
        signed = p.a.type.dtype is I8
        end = tail(region, layouts, p.grid, (p.node.output,), first=2, unit=target.lanes)
        sizes = dict(BATCH=p.batch, H=p.m, W=1, OH=p.m, OW=1, C=p.k, OC=p.n, XN=0, XH=runs[0][1] if runs else 0, XW=0)
        ones, columns = dict(GROUPS=1, KH=1, KW=1, SH=1, SW=1, DH=1, DW=1), region.body.constants[p.b][None, None]
        beyond = places_beyond(columns, nr)
        block = (
            constants(**sizes, **ones, PT=0, PL=0, PADDED=False, SIGNED=signed, DOT=how, ROWS=False, BEYOND=beyond)
            + macro("PAD", "0")
            + macro("X_AT(b)", Grid(shape, p.grid.b, (), ()).address(strides))
            + end.text
        )
        weights = packed_bytes(p.b, columns, nr, target, how, signed, beyond, 1)
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(ceil_div(p.n, nr) * nr, tactic["NB"])
        return kernel("conv_int8.c", region, tactic, block, (p.a, weights, *end.operands), tiles)


def accumulates_rejection(product: Node) -> str | None:
    """The reason why a product does not sum in i32 and give these sums, or None."""
    attrs = product.attrs
    return None if attrs.get("accumulate") is I32 and attrs.get("to") in (None, I32) else "does not sum in i32"


def bytes_rejection(region: Region) -> str | None:
    """The reason why a convolution is none of bytes by constant filters, or None."""
    x, w = region.anchor.inputs[:2]
    if not is_constant(region, w):
        return "the filters are not constant"
    return None if x.type.dtype in BYTES and w.type.dtype in FILTERS else "not bytes by i8"


def _tactics(name: str, rows: int, columns: int, batch: int, target: Target) -> Iterator[Tactic]:
    """Register tiles and blocks of tasks for products of so many rows (pixels) and columns (channels)."""
    seen = set()
    for mr, nv in register_tiles(columns, rows, target):
        nr = nv * target.lanes
        mr = min(mr, rows)
        for mb, per in task_blocks(rows, ceil_div(columns, nr), batch, target.threads, mr):
            choice = (mr, nv, mb, per * nr)
            if choice not in seen:
                seen.add(choice)
                yield Tactic(name, target.isa, tuple(zip(("MR", "NV", "MB", "NB"), choice)))


def packed_bytes(
    w: Value,
    array: np.ndarray,
    nr: int,
    target: Target,
    how: int,
    signed: bool,
    beyond: int = 0,
    kw: int = 1,
    rows: bool = False,
) -> Packed:
    """Weights [group, tap, channel, output] as the kernel reads them; signed: whether what they multiply is i8. beyond:
    how many places beyond i8 a panel has room for; kw: how many taps are in a row; rows: whether a step goes on from
    one tap of a row to the next."""
    groups, taps, channels, outputs = array.shape
    offset = 128 if signed and how != WIDE else 0
    runs = array.reshape(groups, taps // kw, kw * channels, outputs) if rows else array
    end = 4 * nr * (1 + runs.shape[1] * ceil_div(runs.shape[2], 4))
    shape = (groups, ceil_div(outputs, nr), end + beyond * (PLACE + 4 * nr))

    def pack(out: np.ndarray) -> None:
        pack_bytes(np.clip(runs, -128, 127), nr, target.lanes, how, offset, out[..., :end])
        if beyond:
            pack_beyond(array, nr, kw, out[..., end:])

    return Packed((w,), f"bytes_g{groups}_p{nr}_{how}_{offset}_{beyond}_{int(rows)}", shape, pack, DType.U8)


def _excess(array: np.ndarray) -> np.ndarray:
    """By how much weights are beyond what i8 holds."""
    return array.astype(np.int32) - np.clip(array, -128, 127)


def places_beyond(array: np.ndarray, nr: int) -> int:
    """The most places, (tap, channel), at which a panel of `nr` outputs of [group, tap, channel, output] has weights
    beyond i8."""
    if array.dtype == np.int8:
        return 0
    group, tap, channel, output = np.nonzero(_excess(array))
    found = np.unique(np.stack([group, output // nr, tap, channel]), axis=1)[:2]
    return int(np.unique(found, axis=1, return_counts=True)[1].max(initial=0))


def pack_beyond(array: np.ndarray, nr: int, kw: int, out: np.ndarray) -> None:
    """For every panel its places beyond i8: row, column and channel as i32, one unused, and what each output lacks."""
    excess = np.zeros((*array.shape[:3], out.shape[1] * nr), np.int32)
    excess[..., : array.shape[3]] = _excess(array)
    for group, panel in np.ndindex(out.shape[:2]):
        part = excess[group, ..., panel * nr : (panel + 1) * nr]
        for i, (tap, channel) in enumerate(np.argwhere(part.any(-1))):
            entry = np.concatenate([[tap // kw, tap % kw, channel, 0], part[tap, channel]]).astype("<i4")
            out[group, panel, i * (PLACE + 4 * nr) :][: PLACE + 4 * nr] = entry.view(np.uint8)


def dot_method(region: Region, target: Target, rows: bool = False) -> int:
    """How products are added on a target: for sums of pairs in i16, what the filters are decides. rows: as for
    `packed_bytes`."""
    if "vnni" in target.isa:
        return VNNI
    w = np.clip(region.body.constants[region.anchor.inputs[1]], -128, 127)
    if region.anchor.op.name == "matmul":
        w = w.T
    elif rows:  # neighbours are the channels of a tap, and the next tap's
        w = np.moveaxis(w, 1, -1).reshape(w.shape[0], -1, w.shape[-1] * w.shape[1]).transpose(0, 2, 1)
    return PAIRS if pairs_fit(w) else WIDE


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
