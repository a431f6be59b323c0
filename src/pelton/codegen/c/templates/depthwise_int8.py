"""Depthwise convolutions of bytes, summed in i32, channels-last: one filter per channel."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import I8, DType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .conv_int8 import AT_ONCE, PAIRS, WIDE, WORDS, accumulates_rejection, bytes_rejection, added_to_bytes, pairs_fit
from .depthwise import MAX_UNROLLED, Depthwise
from .images import pixel_tail, window_geometry
from pelton.codegen.c.emit import constants, kernel, macro
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template


@template
class DepthwiseInt8(Depthwise):
    """Depthwise convolutions of u8 or i8 images and i8 filters; biases and padding values may be computed."""

    name = "depthwise_int8"
    needs_constant_filters = False  # but see `operands_rejection`

    def types_rejection(self, product: Node) -> str | None:
        return accumulates_rejection(product)

    def operands_rejection(self, region: Region) -> str | None:
        return bytes_rejection(region)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s = window_geometry(region)
        if target.level.dot == "words":
            nv = 2 if s.c > target.lanes else 1
            yield Tactic(self.name, target.isa, (("TW", 1), ("NV", nv), ("RB", 1)))
            return
        # Four vectors are zipped together: 384 channels of 14 × 14, one thread, by one, two and four vectors 13.2, 13.1
        # and 12.7 µs with VNNI, 31.8, 31.4 and 29.0 with AVX2. Eight pixels are within 1 % of seven.
        vectors = s.c // target.lanes
        for nv in [nv for nv in (4, 2) if nv <= vectors] or [1]:
            for tw in dict.fromkeys(min(tw, s.ow) for tw in (7, 4)):
                for rb in (1, 4):
                    if rb == 1 or s.oh > 4 * target.threads:
                        yield Tactic(self.name, target.isa, (("TW", tw), ("NV", nv), ("RB", rb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        (x, w, bias, *padding), filters = node.inputs, region.body.constants[node.inputs[1]]
        how, signed = _dot_method(filters, target), x.type.dtype is I8
        begin = region.body.constants.get(bias)
        added = bias if begin is None else None
        end = pixel_tail(region, layouts, first=2 + len(padding), bias=added, unit=target.lanes)
        per_column = tactic["NV"] * ceil_div(s.kh, 4) * (s.kw + 3)
        columns = 3 * ((tactic["TW"] - 1) * s.sw + (s.kw - 1) * s.dw + 1)
        edges = isinstance(s.ow, int) and isinstance(s.w, int) and columns * per_column <= MAX_UNROLLED
        edges = edges and how != WORDS
        offset = added_to_bytes(how, signed, target)
        sizes = dict(C=s.c, PADDED=s.padded, SIGNED=signed, FLIPPED=offset != 0, DOT=how)
        block = constants(**sizes, **s.sizes(layouts[x])) + f"#define EDGES {int(edges)}\n" + end.text
        block += macro("PAD", "*(const i8 *)a[2].p" if padding else str(node.attrs["pad_value"]))
        sources = (w,) if begin is None else (w, bias)
        packed = _packed(sources, filters, begin, target.lanes, how, offset)
        return kernel(
            "depthwise_int8.c",
            region,
            tactic,
            block,
            (x, packed, *padding, *end.operands),
            s.n * ceil_div(s.oh, tactic["RB"]),
            scratch=s.w * layouts[x][-1] + s.c if s.padded else 0,
        )


def _dot_method(filters: np.ndarray, target: Target) -> int:
    """Chooses how to multiply and add four rows of a column; i16 filters are always widened."""
    if filters.dtype != np.int8 and target.level.dot != "words":
        return WIDE
    if target.level.dot != "pairs":
        return AT_ONCE if target.level.dot == "fours" else WORDS
    # rows act as channels here
    return PAIRS if pairs_fit(_columns(filters), target.level.factor) else WIDE


def _columns(filters: np.ndarray) -> np.ndarray:
    """Returns filters as [channel, row, column]."""
    return filters.reshape(filters.shape[0], -1 if filters.ndim == 4 else 1, filters.shape[-1])


def _packed(
    sources: tuple[Value, ...], filters: np.ndarray, bias: np.ndarray | None, lanes: int, how: int, offset: int
) -> Packed:
    """Packs, for every vector of channels, the starts of its sums, then for every four rows and each column the four
    weights of each channel: i8, or for WIDE i16, even rows of all channels, then odd ones; for WORDS all taps of each
    channel as i16, row by row. offset: the excess of the multiplied bytes over those of the image."""
    columns = _columns(filters)
    channels, kh, kw = columns.shape
    vectors = ceil_div(channels, lanes)
    kind = np.dtype("<i2" if how in (WIDE, WORDS) else "i1")
    fours = ceil_div(kh, 4)
    taps = kh * kw if how == WORDS else 4 * fours * kw

    def pack(out: np.ndarray) -> None:
        whole = np.zeros((vectors * lanes, 4 * fours, kw), kind)
        whole[:channels, :kh] = columns
        begin = -offset * whole.sum((1, 2), dtype=np.int32)
        if bias is not None:
            begin[:channels] += bias  # wraps, as sums do
        out[:, : 4 * lanes] = begin.astype("<i4").reshape(vectors, lanes).view(np.uint8)
        if how == WORDS:
            by_tap = whole[:, :kh].reshape(vectors, lanes, -1).transpose(0, 2, 1)
            out[:, 4 * lanes :] = np.ascontiguousarray(by_tap).reshape(vectors, -1).view(np.uint8)
            return
        # vector, four, column, lane, row
        split = whole.reshape(vectors, lanes, fours, 4, kw).transpose(0, 2, 4, 1, 3)
        if how == WIDE:
            split = np.stack([split[..., 0::2], split[..., 1::2]], 3)
        out[:, 4 * lanes :] = np.ascontiguousarray(split).reshape(vectors, -1).view(np.uint8)

    shape = (vectors, lanes * (4 + taps * kind.itemsize))
    return Packed(sources, f"depthwise_bytes{lanes}_{how}_{offset}", shape, pack, DType.U8)
