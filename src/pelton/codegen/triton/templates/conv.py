"""Convolutions and transposed ones on tensor cores, as products over taps and channels."""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np

from pelton.ir.dims import Size, bounds, is_known, minimum
from pelton.ir.graph import Value
from pelton.ir.types import F32, I32
from pelton.codegen.c.templates.images import WindowGeometry, window_geometry
from pelton.codegen.grid import is_constant, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, gpu_template
from pelton.plan.layout import Layout, Layouts, Order, channels_last, dense
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.emit import ALIGNED, kernel, tail
from .integers import FLOAT8, has_room, is_shifted, missing_sums, padding, pads_with_zero, sums_bytes, sums_float8
from .product import TensorCoreTemplate, keep_likely, pixel_grid, tf32_rounding, stream_counts, tiles, workspaces
from pelton.codegen.triton.cost import cycles

MANY = 64  # images: rows that the tensor cores of an H100 take at once
# Limits of programs that find pixels by pointers: elements per step, and sums per thread. Beyond them, Triton 3.6
# spills up to 1,900 bytes per thread for an A100 and an H100 (at them up to 408, in steps of 32); 3.9 none.
DEEPEST, SUMS = 64, 64
# largest factor of padding a tap's channels, for steps within one tap
WASTE = 1.25


def taps_of(size: int, stride: int, pad: int, dilation: int) -> list[list[int]]:
    """Returns a transposed convolution's taps, along an axis, to pixels congruent to 0, 1, … modulo the stride."""
    return [[k for k in range(size) if (at + pad - k * dilation) % stride == 0] for at in range(stride)]


class PackedFilters:
    """A region's filters as a tactic reads them: for each part (phase, then group) and output a row over taps, down and
    right, and `deep` channels; for images stored as planes, over channels and then taps. Zeros pad them.

    For first layers, planes of three colours, 7×7 filters with strides of 2 thus sum over 3·7·8 taps. Space to depth, a
    usual rewrite of them, would give 16 taps of 12 channels, padded to 16: half as many again, and a pass that
    rearranges the image."""

    def __init__(self, region: Region, layouts: Layouts, tactic: Tactic):
        node, s, bk = region.anchor, window_geometry(region), tactic["BK"]
        x, self.w = node.inputs[:2]
        self.s, self.array, self.group = s, region.body.constants.get(self.w), node.attrs["group"]
        self.transposed = node.op.name == "conv_transpose"
        self.out, self.c = s.oc // self.group, s.c // self.group
        self.phases = s.sh * s.sw if self.transposed else 1
        strides, room = layouts[x], ceil_div(self.c, bk) * bk
        self.whole = (
            room == self.c
            or self.array is not None
            and (room <= WASTE * self.c or bool(tactic["PICTURES"] or tactic["FLAT"]))
        )
        self.deep = room if self.whole else self.c
        self.planes = (
            not self.whole and strides[1] != 1 and strides[-1] == 1 and self.array is not None and not self.transposed
        )
        self.before, self.down, self.right = 0, s.kh, s.kw
        if self.transposed:
            self.down, self.right = (max(1, *map(len, taps)) for taps in self.taps)
        elif self.planes and s.dw == 1 and is_known(s.pl):
            # taps without weight make the rows of a window begin and end at multiples of so many elements, which are
            # then loaded as one
            step = math.gcd(
                s.sw, ALIGNED // x.type.dtype.size, *(d if is_known(d) else 1 for d in (s.w, *strides[:-1]))
            )
            self.before = -s.pl % step
            self.right = ceil_div(self.before + s.kw, step) * step
        self.k = self.down * self.right * self.deep
        # rows begin at multiples of 16 bytes
        whole = max(8, ALIGNED // self.w.type.dtype.size)
        self.step = self.k if self.array is None else ceil_div(self.k, whole) * whole

    @cached_property
    def taps(self) -> tuple[list[list[int]], list[list[int]]]:
        s = self.s
        return taps_of(s.kh, s.sh, s.pt, s.dh), taps_of(s.kw, s.sw, s.pl, s.dw)

    @property
    def operand(self) -> Value | Packed:
        if self.array is None:
            return self.w
        about = [self.group, self.before, self.right, self.deep, self.step, int(self.planes)]
        if self.transposed:
            about += [len(self.w.type.shape), *(k for axis in self.taps for phase in axis for k in (*phase, -1))]
        return Packed(
            (self.w,), f"taps{about}", (self.phases * self.group * self.out, self.step), self.fill, self.w.type.dtype
        )

    def fill(self, out: np.ndarray) -> None:
        s, array = self.s, self.array
        assert array is not None
        made = np.zeros((self.phases, self.group * self.out, self.down, self.right, self.deep), array.dtype)
        if self.transposed:
            w = (
                array.reshape(self.group, self.c, self.out, s.kh, s.kw)
                .transpose(0, 2, 3, 4, 1)
                .reshape(-1, s.kh, s.kw, self.c)
            )
            for part, (rows, columns) in zip(made, itertools.product(*self.taps)):
                part[:, : len(rows), : len(columns), : self.c] = w[:, rows][:, :, columns]
        else:
            made[0, :, :, self.before : self.before + s.kw, : self.c] = array.reshape(-1, self.c, s.kh, s.kw).transpose(
                0, 2, 3, 1
            )
        out[:, : self.k] = (made.transpose(0, 1, 4, 2, 3) if self.planes else made).reshape(len(out), self.k)

    def sizes(self) -> dict[str, Size]:
        """Returns the constants that describe them to the kernel."""
        s = self.s
        common = math.gcd(s.sh, s.dh), math.gcd(s.sw, s.dw)
        turn = (
            pow(d // g, -1, step // g) if step != g else 0 for d, step, g in zip((s.dh, s.dw), (s.sh, s.sw), common)
        )
        return dict(
            GROUPS=self.group,
            C=self.c,
            OUT=self.out,
            DEEP=self.deep,
            K_STEP=self.step,
            DOWN=self.down,
            RIGHT=self.right,
            WHOLE=self.whole,
            PLANES=self.planes,
            TRANSPOSED=self.transposed,
            **dict(zip(("COMMON_H", "COMMON_W", "TURN_H", "TURN_W"), (*common, *turn))),
        )


@gpu_template
class TritonConvolution(TensorCoreTemplate):
    """Any stride, dilation, padding and number of groups.

    Where there are many images, the rows of a tile are one pixel of all of them: then each tap is one box of memory,
    which an H100 fetches by itself, zeros outside of the images included, for any stride, padding and dilation, and
    hands to the tensor cores as it is. With fewer images and strides of one, the pixels of an image are rows one
    behind the other, where there are zeros enough between its rows and behind each image: then a tap is the same rows
    further on, and what it meets outside of the image is such a zero. For that, zero-padded images are `preferred`;
    sums are made for the zeros, too (7 % more at 28×28, 31 % at 7×7), and not stored. By the model that pays
    for 256 channels of 52×52 from 8 images on, not for 14×14. Left were boxes of several rows and columns (whose tiles
    do not fit 7, 14 and 28, and which Triton 3.6 and 3.9 take through registers).
    """

    name = "conv"
    anchors: tuple[str, ...] = ("convolution", "conv_transpose")

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, w = node.inputs[:2]
        if x.type.rank not in (3, 4):
            return "not one or two spatial axes"
        if not is_known(*w.type.shape):
            return "the sizes of the filters vary"
        if node.op.name == "conv_transpose":
            return None if is_constant(region, w) else "the filters are not constant"
        each = node.op.name == "convolution" and w.type.shape[1] == 1 and node.attrs["group"] > 1
        return "a product of one channel, for which there are windows" if each and is_constant(region, w) else None

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return (
            channels_last(value.type.rank)
            if value is region.anchor.inputs[1]
            else super().copy_order(region, value, layouts)
        )

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        if (
            value is region.anchor.inputs[1]
            and not is_constant(region, value)
            and layouts[value] != dense(value.type.shape, channels_last(value.type.rank))
        ):
            return False
        return super().fits(region, value, layouts)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        s, node = window_geometry(region), region.anchor
        group, size = node.attrs["group"], node.inputs[0].type.dtype.size
        phases = s.sh * s.sw if node.op.name == "conv_transpose" else 1
        boxes = described(region, layouts, target)
        padded = group == 1 and is_constant(region, node.inputs[1])
        rows = padded_extent(region, layouts) if boxes else None
        yield from (
            t
            for _, t in sorted(
                estimate_tactics(s, s.oc // group, group, phases, size, boxes, rows, padded, target),
                key=lambda pair: pair[0],
            )
            if has_room(node, t)
        )

    def preferred_layout(self, region: Region, value: Value, target: Target) -> Layout | None:
        """Returns a layout with as many zeros behind each row and each image as the filters reach to, if the model
        predicts that it is faster."""
        node, x = region.anchor, region.anchor.inputs[0]
        if (
            value is not x
            or node.op.name != "convolution"
            or x.type.rank != 4
            or not is_known(*x.type.shape)
            or not is_constant(region, node.inputs[1])
        ):
            return None
        s, group = window_geometry(region), node.attrs["group"]
        behind, beside = zero_margin(s)
        wide = s.w + beside
        layout = Layout(((s.h + behind) * wide * s.c, 1, wide * s.c, s.c), zero_padded=True)
        layouts = Layouts({}).moved({x: layout.strides}, layout.zero_padded)
        if (s.sh, s.sw) != (1, 1) or not (behind or beside) or not described(region, layouts, target):
            return None

        def least(rows: tuple[int, int] | None) -> float:
            estimates = estimate_tactics(s, s.oc // group, group, 1, x.type.dtype.size, True, rows, group == 1, target)
            return min((cycles for cycles, _ in estimates), default=math.inf)

        return layout if least(padded_extent(region, layouts)) < least(None) else None

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (*super().family(tactic), tactic["PICTURES"], tactic["FLAT"], int(tactic["STREAM"] > 0))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s, f = region.anchor, window_geometry(region), PackedFilters(region, layouts, tactic)
        x, bias = node.inputs[0], node.inputs[2]
        rows, columns = (ceil_div(s.oh, s.sh), ceil_div(s.ow, s.sw)) if f.transposed else (s.oh, s.ow)
        if tactic["FLAT"]:
            rows, columns = padded_extent(region, layouts)
        end = tail(region, layouts, pixel_grid(node.output.type.shape), (node.output,), first=2, add=bias)
        boxes = bool(tactic["PICTURES"] or tactic["FLAT"]) and described(region, layouts, target)
        missing, (around, pad) = missing_sums(region), padding(node, 2 + len(end.operands))
        operands: tuple[Value | Packed | KernelWorkspace, ...] = (x, f.operand, *end.operands, *around, *missing)
        sizes = dict(
            INTEGERS=sums_bytes(node),
            FLOAT8=sums_float8(node),
            SHIFTED=is_shifted(region),
            MISSING=len(operands) - 1,
            ROWS=rows,
            COLUMNS=columns,
            XC=layouts[x][1],
            DESCRIBED=boxes,
            SUMS=len(operands),
            ARRIVED=len(operands) + 1,
            **pad,
            **f.sizes(),
            **s.sizes(layouts[x]),
            **tf32_rounding(region, tactic, x, node.inputs[1]),
        )
        sizes["PL"] += f.before
        if x.type.rank == 3:
            # there is one row, whose stride may be any but 0
            sizes["XH"] = sizes["XN"]
        high = (
            rows * columns * ceil_div(s.n, tactic["BM"])
            if tactic["PICTURES"]
            else ceil_div(s.n * rows * columns, tactic["BM"])
        )
        count = f.phases * f.group * high * ceil_div(f.out, tactic["BN"])
        if tactic["STREAM"]:
            operands += workspaces(tactic, I32 if sums_bytes(node) else F32)
            count = minimum(count * ceil_div(f.down * f.right * f.deep, tactic["BK"]), tactic["STREAM"])
        factors = FLOAT8 if sums_float8(node) else ""
        return kernel("conv.py", region, tactic, sizes, end.text, operands, count, layouts, factors=factors)


def estimate_tactics(
    s: WindowGeometry,
    out: int,
    group: int,
    phases: int,
    size: int,
    boxes: bool,
    whole: tuple[int, int] | None,
    padded: bool,
    target: Target,
) -> list[tuple[float, Tactic]]:
    """Returns tactics for so many outputs of a group, of factors of `size` bytes, with their estimated cycles.

    boxes: True if images can be loaded as boxes; whole: rows and columns of an image with its zero padding, if taps are
    rows at a constant distance; padded: True if filters have zeros for channels in boxes that do not exist or belong to
    another group.
    """
    taps, c, area, estimates = ceil_div(s.kh * s.kw, phases), s.c // group, ceil_div(s.oh * s.ow, phases), []
    for images, flat in ((1, 0),) * (boxes and s.n >= MANY) + ((0, 1),) * (whole is not None) + ((0, 0),):
        if images:
            rows, times = s.n, phases * group * area
        else:
            rows, times = s.n * (math.prod(whole) if flat else area), phases * group
        for t in tiles("conv", taps * c, c, size, target):
            if (images or flat) and (t["BM"] < MANY or not padded and c % t["BK"]):
                continue
            if not (images or flat) and (t["BK"] > DEEPEST or t["BM"] * t["BN"] > SUMS * 32 * t["WARPS"]):
                continue
            count, deep = times * ceil_div(rows, t["BM"]) * ceil_div(out, t["BN"]), ceil_div(c, t["BK"]) * t["BK"]
            k = taps * deep if images or flat or deep <= WASTE * c else ceil_div(taps * c, t["BK"]) * t["BK"]
            ways = (
                Tactic(t.template, t.isa, (*t.params, ("PICTURES", images), ("FLAT", flat), ("STREAM", n)))
                for n in (0, *stream_counts(count, k // t["BK"], target))
            )
            estimates += keep_likely([(cycles(way, count, k, size, bool(images or flat), target), way) for way in ways])
    return estimates


def zero_margin(s: WindowGeometry) -> tuple[int, int]:
    """Returns the numbers of zeros behind each image and each row that the taps of a convolution without strides meet,
    or that stand for its additional pixels."""
    return (
        max(s.pt, s.oh - s.h, s.oh - s.h + (s.kh - 1) * s.dh - s.pt, 0),
        max(s.pl, s.ow - s.w, s.ow - s.w + (s.kw - 1) * s.dw - s.pl, 0),
    )


def padded_extent(region: Region, layouts: Layouts) -> tuple[int, int] | None:
    """Returns the rows and columns of an image with its zero padding, if that suffices for taps to be the same pixels
    further on; else None."""
    node, s = region.anchor, window_geometry(region)
    x, strides = node.inputs[0], layouts[node.inputs[0]]
    if (
        node.op.name != "convolution"
        or x.type.rank != 4
        or (s.sh, s.sw) != (1, 1)
        or not is_known(*x.type.shape, *strides)
    ):
        return None
    n, _, h, w = strides
    behind, beside = zero_margin(s)
    if min(n, h, w) < 1 or h % w or n % h or (behind or beside) and x not in layouts.zero_padded:
        return None
    return (n // h, h // w) if n // h >= s.h + behind and h // w >= s.w + beside else None


def described(region: Region, layouts: Layouts, target: Target) -> bool:
    """True if the GPU's units that fetch boxes of memory can read the images: the last axis without gaps, the others at
    multiples of 16 bytes, zeros around."""
    x = region.anchor.inputs[0]
    n, c, *space = layouts[x]
    step = ALIGNED // x.type.dtype.size
    return (
        all(int(isa[3:]) >= 90 for isa in target.isa.split(","))
        and x.type.dtype.size in (1, 2)
        and pads_with_zero(region.anchor)
        and c == 1
        and all(d // step * step == d and bounds(d)[0] > 0 for d in (n, *space))
    )
