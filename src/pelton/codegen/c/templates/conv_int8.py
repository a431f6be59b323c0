"""Convolutions and products of bytes, summed in i32: direct, channels-last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.types import I8, I16, I32, U8, U16
from pelton.plan.layout import broadcast
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.code import Text, code
from pelton.codegen.grid import Grid, ceil_div, is_constant, is_known, register_tiles, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Layouts, Packed, Tactic, Target, template

from .gemm import Gemm
from .images import ChannelsLast, pixel_tail, task_blocks, window_geometry

BYTES = (U8, I8)
FILTERS = (I8, I16)  # i16 for weights of which few are beyond i8
PLACE = 16  # bytes, as in conv_int8.c
# How four products are added, as in dot.h; WIDE is exact for all operands.
AT_ONCE, PAIRS, WIDE, SORTED, WORDS = 0, 1, 2, 3, 4
# Least share of steps by pairs for sorting. WIDE is faster for single pixels: it reads copies of them.
SORTED_FROM, SORTED_FROM_SINGLE = 0.125, 0.45


class FilterForm(Protocol):
    """Constant filters as a kernel reads them."""

    def constants(self) -> Text:
        """Emits the constants of the kernel that describe them."""

    def scratch(self, tactic: Tactic) -> int:
        """Returns the bytes of scratch that reading them takes."""

    def packed(self, *sources: Value) -> tuple[Packed, ...]:
        """Returns the operands after the image."""


class BytesProduct:
    """What products of bytes may do in several ways: the kernel file, its register tiles and its filters."""

    file = "conv_int8.c"

    def register_tiles(self, region: Region, columns: int, rows: Size, target: Target) -> Iterable[tuple[int, int]]:
        """Returns (rows, vectors of columns) of register tiles, the best guess first."""
        if target.level.dot == "words":  # four sums, and the factors of eight products, are all that registers hold
            return ((1, 2),) if rows == 1 and columns > target.lanes else ((2, 1),)
        return register_tiles(columns, rows, target)

    def filters(self, array: np.ndarray, nr: int, target: Target, signed: bool, **more: Any) -> FilterForm:
        """Returns the filters as the kernel reads them; arguments as those of Filters."""
        return Filters(array, nr, target, signed, **more)


@template
class DirectInt8(BytesProduct, ChannelsLast):
    """Convolutions of u8 or i8 images and i8 filters; biases and padding values may be computed."""

    name = "conv_int8"
    each_once = True
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
        rows, columns = s.oh * s.ow, s.oc // groups
        tiles = self.register_tiles(region, columns, rows, target)
        return _tactics(self.name, tiles, rows, columns, s.n * groups, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, w, bias, *padding = node.inputs
        rows = s.dw == 1 and s.kw > 1 and layouts[x][-1] == w.type.shape[1] and w.type.shape[1] % 4 != 0
        groups, nr = node.attrs["group"], tactic["NV"] * target.lanes
        oc, signed = w.type.shape[0] // groups, x.type.dtype is I8
        unit = None if groups > 1 and oc % target.lanes else target.lanes
        by_taps = region.body.constants[w].reshape(groups, oc, w.type.shape[1], -1).transpose(0, 3, 2, 1)
        begin = region.body.constants.get(bias)
        single = s.kh * s.kw == 1 and not s.padded
        filters = self.filters(by_taps, nr, target, signed, kw=s.kw, rows=rows, bias=begin, single=single)
        operands: tuple[Value | Packed, ...] = (x, *filters.packed(w, *([] if begin is None else [bias])), *padding)
        end = pixel_tail(region, layouts, first=len(operands), bias=bias if begin is None else None, unit=unit)
        sizes = dict(C=w.type.shape[1], OC=oc, GROUPS=groups, PADDED=s.padded)
        block = constants(**sizes, **s.sizes(layouts[x])) + filters.constants()
        block += macro("X_AT(b)", code("(b) * {}", layouts[x][0])) + end.text
        block += macro("PAD", f"*(const i8 *)a[{len(operands) - 1}].p" if padding else str(node.attrs["pad_value"]))
        tiles = s.n * groups * ceil_div(s.oh * s.ow, tactic["MB"]) * ceil_div(ceil_div(oc, nr) * nr, tactic["NB"])
        scratch = filters.scratch(tactic)
        return kernel(self.file, region, tactic, block, (*operands, *end.operands), tiles, scratch=scratch)


@template
class GemmInt8(BytesProduct, Gemm):
    """Products of u8 or i8 rows by a constant i8 matrix, as convolutions of images of one column."""

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
        tiles = self.register_tiles(region, p.n, p.m, target)
        return _tactics(self.name, tiles, p.m, p.n, p.batch, target)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, nr = MatrixProduct(region, layouts), tactic["NV"] * target.lanes
        shape = (*p.grid.shape[:-1], p.k)
        strides, rows = broadcast(p.a.type.shape, layouts[p.a], shape), Grid(shape, p.grid.b, p.grid.r, ())
        runs = rows.runs(rows.r, strides)
        filters = self.filters(region.body.constants[p.b][None, None], nr, target, p.a.type.dtype is I8, single=True)
        operands: tuple[Value | Packed, ...] = (p.a, *filters.packed(p.b))
        end = tail(region, layouts, p.grid, (p.node.output,), first=len(operands), unit=target.lanes)
        sizes = dict(BATCH=p.batch, H=p.m, W=1, OH=p.m, OW=1, C=p.k, OC=p.n, XN=0, XH=runs[0][1] if runs else 0, XW=0)
        ones = dict(GROUPS=1, KH=1, KW=1, SH=1, SW=1, DH=1, DW=1, PT=0, PL=0, PADDED=False)
        block = (
            constants(**sizes, **ones)
            + filters.constants()
            + macro("PAD", "0")
            + macro("X_AT(b)", Grid(shape, p.grid.b, (), ()).address(strides))
            + end.text
        )
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(ceil_div(p.n, nr) * nr, tactic["NB"])
        scratch = filters.scratch(tactic)
        return kernel(self.file, region, tactic, block, (*operands, *end.operands), tiles, scratch=scratch)


def accumulates_rejection(product: Node) -> str | None:
    """Returns the reason why a product does not return i32 sums of its operands' values, or None."""
    if product.attrs.get("a_zero") or product.attrs.get("b_zero"):
        return "subtracts zero points"
    return sums_rejection(product)


def sums_rejection(product: Node) -> str | None:
    """Returns the reason why a product does not return i32 sums, or None."""
    attrs = product.attrs
    return None if attrs.get("accumulate") is I32 and attrs.get("to") in (None, I32) else "does not sum in i32"


def bytes_rejection(region: Region) -> str | None:
    """Returns the reason why a convolution does not multiply bytes by constant filters, or None."""
    x, w = region.anchor.inputs[:2]
    if not is_constant(region, w):
        return "the filters are not constant"
    return None if x.type.dtype in BYTES and w.type.dtype in FILTERS else "not bytes by i8"


def _tactics(
    name: str, tiles: Iterable[tuple[int, int]], rows: int, columns: int, batch: int, target: Target
) -> Iterator[Tactic]:
    """Yields register tiles and blocks of tasks for products of so many rows (pixels) and columns (channels)."""
    seen = set()
    for mr, nv in tiles:
        nr = nv * target.lanes
        mr = min(mr, rows)
        panels = ceil_div(columns, nr)
        if target.level.dot == "words":  # a tile's windows are copied: as few as possible at once
            yield Tactic(name, target.isa, (("MR", mr), ("NV", nv), ("MB", mr), ("NB", panels * nr)))
            continue
        blocks = task_blocks(rows, panels, batch, target.threads, mr)
        for mb, per in _balanced(blocks, rows, panels, batch, target.threads) if is_known(rows) else blocks:
            choice = (mr, nv, mb, per * nr)
            if choice not in seen:
                seen.add(choice)
                yield Tactic(name, target.isa, tuple(zip(("MR", "NV", "MB", "NB"), choice)))


def _balanced(
    blocks: Iterable[tuple[int, int]], rows: int, panels: int, batch: int, threads: int
) -> list[tuple[int, int]]:
    """Orders (rows, panels) per task; blocks that leave threads idle a fifth of the time or more come last."""

    def idles(block: tuple[int, int]) -> bool:
        tasks = ceil_div(rows, block[0]) * ceil_div(panels, block[1]) * batch
        return 5 * ceil_div(tasks, threads) * threads > 6 * tasks

    return sorted(blocks, key=idles)


class Filters:
    """Constant filters [group, tap, channel, output] of bytes, as conv_int8.c reads them: panels of `nr` outputs.

    signed: True if they multiply i8; kw: taps in a row; rows: True if a step continues from one tap of a row to the
    next; bias: an addend of each output, if known; single: True if each sum is of one pixel inside of the image. `dot`,
    the way to add products, follows from the target or, for sums of pairs in i16, from the weights: it is chosen again
    wherever code is made.
    """

    def __init__(
        self,
        array: np.ndarray,
        nr: int,
        target: Target,
        signed: bool,
        kw: int = 1,
        rows: bool = False,
        bias: np.ndarray | None = None,
        single: bool = False,
    ):
        self.array, self.nr, self.lanes, self.kw, self.rows, self.bias = array, nr, target.lanes, kw, rows, bias
        self.runs = array.reshape(len(array), array.shape[1] // kw, -1, array.shape[3]) if rows else array
        self.runs = np.clip(self.runs, -128, 127)
        self.beyond = places_beyond(array, nr)
        self.fits = steps_by_pairs(self.runs, nr, target.level.factor) if target.level.dot == "pairs" else None
        if self.fits is None:
            self.dot = AT_ONCE if target.level.dot == "fours" else WORDS
        else:
            self.dot = dot_method(self.fits, self.runs.shape[2], single)
        self.copied = single and self.dot == WIDE
        self.signed, self.offset = signed, added_to_bytes(self.dot, signed, target)

    def constants(self) -> Text:
        how = dict(SIGNED=self.signed, FLIPPED=self.offset != 0, DOT=self.dot, ROWS=self.rows, BEYOND=self.beyond)
        return constants(**how, COPIED=self.copied) + macro("ORDER", "2" if self.dot == SORTED else "0")

    def scratch(self, tactic: Tactic) -> int:
        """Returns the bytes for copies of a task's pixels, and of a panel, as i16; by words, of a task's windows."""
        if self.dot == WORDS:
            return tactic["MB"] * self.runs.shape[1] * ceil_div(self.runs.shape[2], 4) * 8
        return (tactic["MB"] + self.nr) * ceil_div(self.array.shape[2], 4) * 8 if self.copied else 0

    def packed(self, *sources: Value) -> tuple[Packed, ...]:
        """Returns the operands after the image: the weights, and the order of their steps if sorted."""
        groups, taps, channels, outputs = self.runs.shape
        panels, end = ceil_div(outputs, self.nr), 4 * self.nr * (1 + taps * ceil_div(channels, 4))
        pairs = self.fits[..., : channels // 4] if self.fits is not None and self.dot == SORTED else None

        def pack(out: np.ndarray) -> None:
            pack_bytes(self.runs, self.nr, self.lanes, self.dot, self.offset, out[..., :end], pairs)
            if self.bias is not None:
                begin = np.zeros((groups, panels * self.nr), np.int32)
                begin[:, :outputs] = self.bias.reshape(groups, outputs)
                first = out[..., : 4 * self.nr].view("<i4")
                first += begin.reshape(groups, panels, self.nr)
            if self.beyond:
                pack_beyond(self.array, self.nr, self.kw, out[..., end:])

        form = f"bytes_g{groups}_p{self.nr}_{self.dot}_{self.offset}_{self.beyond}_{int(self.rows)}"
        shape = (groups, panels, end + self.beyond * (PLACE + 4 * self.nr))
        weights = Packed(sources, form, shape, pack, U8)
        if pairs is None:
            return (weights,)
        lists = np.concatenate([pairs.sum(-1, keepdims=True), step_order(pairs)], -1).astype(np.uint16)
        order = Packed(
            sources[:1], f"order_{form}", lists.shape, lambda out: np.copyto(out, lists), U16, has_indices=True
        )
        return weights, order


def _excess(array: np.ndarray) -> np.ndarray:
    """Returns by how much weights exceed the range of i8."""
    return array.astype(np.int32) - np.clip(array, -128, 127)


def places_beyond(array: np.ndarray, nr: int) -> int:
    """Returns the most places, (tap, channel), at which a panel of `nr` outputs of [group, tap, channel, output] has
    weights beyond i8."""
    if array.dtype == np.int8:
        return 0
    group, tap, channel, output = np.nonzero(_excess(array))
    panels = np.unique(np.stack([group, output // nr, tap, channel]), axis=1)[:2]
    return int(np.unique(panels, axis=1, return_counts=True)[1].max(initial=0))


def pack_beyond(array: np.ndarray, nr: int, kw: int, out: np.ndarray) -> None:
    """Packs each panel's places beyond i8: row, column and channel as i32, one unused, and each output's excess."""
    excess = np.zeros((*array.shape[:3], out.shape[1] * nr), np.int32)
    excess[..., : array.shape[3]] = _excess(array)
    for group, panel in np.ndindex(out.shape[:2]):
        part = excess[group, ..., panel * nr : (panel + 1) * nr]
        for i, (tap, channel) in enumerate(np.argwhere(part.any(-1))):
            entry = np.concatenate([[tap // kw, tap % kw, channel, 0], part[tap, channel]]).astype("<i4")
            out[group, panel, i * (PLACE + 4 * nr) :][: PLACE + 4 * nr] = entry.view(np.uint8)


def dot_method(fits: np.ndarray, channels: int, single: bool) -> int:
    """Chooses how to add products two at a time. `fits`: True at steps, of so many channels, that allow pairs; single:
    as in Filters."""
    if fits.all():
        return PAIRS
    whole = fits[..., : channels // 4]
    least = SORTED_FROM_SINGLE if single else SORTED_FROM
    return SORTED if 0 < whole.shape[-1] < 1 << 16 and whole.mean() >= least else WIDE


def added_to_bytes(dot: int, signed: bool, target: Target) -> int:
    """Returns what is added to the bytes of an image before a sum by `dot` multiplies them: 128 or -128 if it takes
    bytes of the other sign, else 0."""
    if dot in (WIDE, WORDS) or signed == (target.level.factor == "i8"):
        return 0
    return 128 if signed else -128


def steps_by_pairs(w: np.ndarray, nr: int, factor: str = "u8") -> np.ndarray:
    """True, in [group, panel, run, step], where two neighbouring products of u8 or i8 and [group, run, channel, output]
    always fit an i16 for all outputs of a panel. A step is four channels.

    Products of u8 fit if the positive weights of each pair of channels, and its negative ones, sum to at most 128:
    255 · 128 < 2¹⁵. Those of i8 fit unless both weights are -128.
    """
    groups, runs, channels, outputs = w.shape
    panels, fours = ceil_div(outputs, nr), ceil_div(channels, 4)
    whole = np.zeros((groups, runs, 4 * fours, panels * nr), np.int16)
    whole[:, :, :channels, :outputs] = w
    pairs = whole.reshape(groups, runs, fours, 2, 2, panels, nr)
    if factor == "i8":
        fit = pairs.sum(4).min((3, 5)) > -256
    else:
        fit = np.maximum(np.maximum(pairs, 0).sum(4), np.maximum(-pairs, 0).sum(4)).max((3, 5)) <= 128
    return fit.transpose(0, 3, 1, 2)


def pairs_fit(filters: np.ndarray, factor: str = "u8") -> bool:
    """True if neighbouring products always fit an i16, for all filters [output, channel, taps…]."""
    return bool(steps_by_pairs(filters.reshape(*filters.shape[:2], -1).T[None], len(filters), factor).all())


def step_order(pairs: np.ndarray) -> np.ndarray:
    """Returns the order of steps, those by pairs first: [group, panel, run, step]."""
    return np.argsort(~pairs, axis=-1, kind="stable")


def pack_bytes(
    w: np.ndarray, nr: int, lanes: int, how: int, offset: int, out: np.ndarray, pairs: np.ndarray | None = None
) -> None:
    """Packs [group, run, channel, output] into panels of `nr` outputs: the starts of their sums as i32, then for each
    run and each four channels the four weights of every output, in the order of dot.h. offset: the excess of the
    multiplied bytes over those of the image; pairs: True at sorted steps by pairs. A last step of less than four
    channels is then WIDE."""
    groups, taps, channels, outputs = w.shape
    fours = ceil_div(channels, 4)
    whole = np.zeros((groups, taps, 4 * fours, out.shape[1] * nr), np.int8)
    whole[:, :, :channels, :outputs] = w
    # group, panel, tap, four, vector, lane, byte
    split = whole.reshape(groups, taps, fours, 4, out.shape[1], nr // lanes, lanes).transpose(0, 4, 1, 2, 5, 6, 3)
    plain = split.reshape(*split.shape[:4], -1)
    steps = plain
    if how in (WIDE, SORTED):  # even bytes of all lanes, then the odd ones
        steps = np.stack([split[..., 0::2], split[..., 1::2]], 5).reshape(plain.shape)
    if pairs is not None:
        n = pairs.shape[-1]
        mixed = np.where(pairs[..., None], plain[..., :n, :], steps[..., :n, :])
        steps = np.concatenate([np.take_along_axis(mixed, step_order(pairs)[..., None], 3), steps[..., n:, :]], 3)
    begin = -offset * whole.astype(np.int32).sum((1, 2)).reshape(groups, out.shape[1], nr)
    out[..., : 4 * nr] = begin.astype("<i4").view(np.uint8)
    out[..., 4 * nr :] = np.ascontiguousarray(steps).reshape(groups, out.shape[1], -1).view(np.uint8)
