"""Sliding windows over each channel by itself: pooling and depthwise convolution, channels-last."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, BOOL, F16, F32, F64, I8, I16
from pelton.codegen.c.templates.conv_int8 import accumulates_rejection
from pelton.codegen.c.templates.images import window_geometry
from pelton.codegen.grid import is_constant, ceil_div, tail_rejection
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, Order, channels_last, last_of
from pelton.plan.region import Region

from pelton.codegen.triton.emit import computable, register_type, kernel, emit_offset, tail, nodes_rejection
from .integers import bytes_rejection, padding, sums_bytes
from .pointwise import power_of_two
from .product import pixel_grid

# overhead of a program, in moved elements
SMALL = 4096
# places of a window to load at once; with 25, kernels spilled 232 bytes per thread
AT_ONCE = 9


def float_literal(x: float) -> str:
    """Returns a constant that may be infinite."""
    return repr(x) if math.isfinite(x) else f'float("{x}")'


def emit_join(expression: str) -> str:
    """Emits the device function `join`, which combines two elements into one."""
    return f"@triton.jit\ndef join(x, y):\n    return {expression}\n\n\n"


def channel_filters(w: np.ndarray, out: np.ndarray) -> None:
    """Packs filters [O, 1, space…] as [taps, O]."""
    out[:] = w.reshape(w.shape[0], -1).T


class ChannelsLastTemplate(Template):
    """Base of templates that read and write channels last, and support dynamic dimensions."""

    dynamic = True

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return last_of(channels_last(region.anchor.output.type.rank), value.type.rank)


@gpu_template
class TritonWindow(ChannelsLastTemplate):
    name = "window"
    anchors = ("max_pool", "average_pool", "convolution")

    def types_rejection(self, product: Node) -> str | None:
        return accumulates_rejection(product) if sums_bytes(product) else super().types_rejection(product)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x = node.inputs[0].type
        if x.rank not in (3, 4):
            return "not one or two spatial axes"
        if node.op.name == "convolution":
            w = node.inputs[1]
            if w.type.shape[1] != 1 or not is_constant(region, w):
                return "not one constant filter for each channel"
            if node.inputs[0] in node.inputs[1:]:
                return "the image is its own filter"
        if sums_bytes(node):
            if (reason := bytes_rejection(region, (I8, I16))) is not None:
                return reason
        elif node.op.name != "max_pool" and x.dtype not in (F64, F32, F16, BF16) or not computable(x.dtype):
            return f"{node.op.name} of {x.dtype.value}"
        return tail_rejection(region, node.output.type.shape, 1) or nodes_rejection(region.tail)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node = region.anchor
        if value in node.inputs[2:] and value.type.size != 1 and layouts[value] != (1,):
            return False
        return value is not node.inputs[0] or value.type.shape[1] == 1 or layouts[value][1] == 1

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        """Orders tactics by traffic of the L2 cache: patches of pixels read everything under their windows. Threads
        hold sixteen bytes of half floats each."""
        s, estimates = window_geometry(region), []
        for size, warps in ((1024, 4), (512, 2), (2048, 8)):
            bn = power_of_two(s.oc, 1, 64)
            many = min(size // bn, power_of_two(s.oh * s.ow))
            for wide in (many >> k for k in range(many.bit_length())):
                high = many // wide
                each = ceil_div(s.n * ceil_div(s.oh, high) * ceil_div(s.ow, wide) * ceil_div(s.oc, bn), target.threads)
                under = ((high - 1) * s.sh + (s.kh - 1) * s.dh + 1) * ((wide - 1) * s.sw + (s.kw - 1) * s.dw + 1)
                params = (("HIGH", high), ("WIDE", wide), ("BN", bn), ("WARPS", max(1, min(warps, many * bn // 256))))
                estimates.append((each * (under * bn + many * bn + SMALL), params))
        yield from (Tactic(self.name, target.isa, params) for _, params in sorted(estimates, key=lambda pair: pair[0]))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, s = region.anchor, window_geometry(region)
        x, attrs, kind = node.inputs[0], node.attrs, node.op.name
        spatial, weights = x.type.rank - 2, tuple[Packed, ...]()
        if kind == "convolution":
            w, bias = node.inputs[1:3]
            array = region.body.constants[w]
            weights = (
                Packed((w,), "channels", (s.kh * s.kw, s.oc), lambda out: channel_filters(array, out), w.type.dtype),
            )
            counted: tuple[int, ...] = (0, 0, 0, 0)
        else:
            bias = None
            pads = (0, *attrs["pads"][:1], 0, *attrs["pads"][1:]) if spatial == 1 else attrs["pads"]
            counted = pads if attrs.get("count_include_pad") else (0, 0, 0, 0)
        neutral, sums = float_literal(x.type.dtype.lowest) if kind == "max_pool" else "0", node.output.type.dtype
        block = f"NEUTRAL = tl.constexpr({neutral})\n"
        block += f"KIND = tl.constexpr({'tl.uint8' if sums is BOOL else register_type(sums)})\n\n\n"
        block += emit_join("maximum(x, y)" if kind == "max_pool" else "x + y")
        at_once = max(n for n in range(1, AT_ONCE + 1) if s.kh * s.kw % n == 0) if is_known(s.kh, s.kw) else 1
        each = s.oc // s.c if kind == "convolution" else 1
        end = tail(
            region, layouts, pixel_grid(node.output.type.shape), (node.output,), first=1 + len(weights), add=bias
        )
        around, pad = padding(node, 1 + len(weights) + len(end.operands))
        sizes = dict(
            AT_ONCE=at_once,
            CHANNELS=s.oc,
            EACH=each,
            W_STEP=s.oc,
            XC=layouts[x][1],
            FIRST_ROW=-counted[0],
            FIRST_COLUMN=-counted[1],
            END_ROW=s.h + counted[2],
            END_COLUMN=s.w + counted[3],
            MEANS=kind == "average_pool",
            FILTERED=kind == "convolution",
            **pad,
            **s.sizes(layouts[x]),
        )
        return kernel(
            "window.py",
            region,
            tactic,
            sizes,
            block + end.text,
            (x, *weights, *end.operands, *around),
            s.n * ceil_div(s.oh, tactic["HIGH"]) * ceil_div(s.ow, tactic["WIDE"]) * ceil_div(s.oc, tactic["BN"]),
            layouts,
        )


@gpu_template
class TritonLocalResponse(ChannelsLastTemplate):
    name = "lrn"
    anchors = ("lrn",)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.output.type.dtype not in (F32, F16, BF16):
            return f"not in {node.output.type.dtype.value}"
        return tail_rejection(region, node.output.type.shape, 1) or nodes_rejection(region.tail)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        for size, warps in ((1024, 4), (512, 4)):
            cb = power_of_two(region.anchor.output.type.shape[1], 1, 64)
            yield Tactic(self.name, target.isa, (("RB", size // cb), ("CB", cb), ("WARPS", warps)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, attrs = region.anchor, region.anchor.attrs
        x, grid = node.inputs[0], pixel_grid(node.output.type.shape)
        rows, cols = math.prod(d for axis, d in enumerate(x.type.shape) if axis != 1), x.type.shape[1]
        block = (
            f"SIZE, BEFORE = tl.constexpr({attrs['size']}), tl.constexpr({(attrs['size'] - 1) // 2})\nSCALE, BETA, BIAS"
            f" = (tl.constexpr(x) for x in ({attrs['alpha'] / attrs['size']!r}, {attrs['beta']!r},"
            f" {attrs['bias']!r}))\n\n\n"
        )
        end = tail(region, layouts, grid, (node.output,), first=1)
        return kernel(
            "lrn.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols, XC=layouts[x][1]),
            block + emit_offset("x_at", grid, layouts[x]) + end.text,
            (x, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )
