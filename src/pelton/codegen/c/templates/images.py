"""Shared by templates over images: the geometry of windows, channels-last operands, the blocks of their tasks."""

from __future__ import annotations

from collections.abc import Iterator

from pelton.ir.dims import Size, bounds, is_known
from pelton.ir.graph import Value
from pelton.plan.layout import Layouts, Order, Strides, channels_last, last_of, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import tail
from pelton.codegen.grid import all_f32, ceil_div, fits_grid, grid_of, is_constant, tail_rejection
from pelton.codegen.tail import Tail
from pelton.codegen.template import Target, Template


class WindowGeometry:
    """The sizes of a convolution or pooling over one or two spatial axes (one axis is an image of one row)."""

    def __init__(self, x: tuple[Size, ...], y: tuple[Size, ...], kernel, strides, pads, dilations):
        flat = len(x) == 3

        def two(pair: tuple[Size, ...], rows: int) -> tuple[Size, Size]:
            """Returns the pair for rows and columns."""
            return (rows, pair[0]) if flat else (pair[0], pair[1])

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
        """Returns the constants that describe it to kernels, for an input of these strides."""
        xn, xh, xw = strides[0], strides[2] if len(strides) == 4 else 0, strides[-1]
        return {
            **dict(BATCH=self.n, H=self.h, W=self.w, OH=self.oh, OW=self.ow, KH=self.kh, KW=self.kw),
            **dict(SH=self.sh, SW=self.sw, PT=self.pt, PL=self.pl, DH=self.dh, DW=self.dw, XN=xn, XH=xh, XW=xw),
        }


def window_geometry(region: Region) -> WindowGeometry:
    """Returns the geometry of the region's anchor."""
    node = region.anchor
    x, y, a = node.inputs[0].type.shape, node.output.type.shape, node.attrs
    kernel = a["kernel"] if "kernel" in a else node.inputs[1].type.shape[2:]
    return WindowGeometry(x, y, kernel, a["strides"], a["pads"], a["dilations"])


def pixel_tail(
    region: Region, layouts: Layouts, *, first: int = 2, bias: Value | None = None, unit: int | None
) -> Tail:
    """Emits the tail of a region over the pixels of its anchor's output; see `emit.tail`."""
    y = region.anchor.output
    return tail(region, layouts, grid_of(y.type.shape, "pixels"), (y,), first=first, bias=bias, unit=unit)


class ChannelsLast(Template):
    """Base of templates over images: channels-last operands, the pixel grid, a pointwise tail."""

    anchors: tuple[str, ...] = ("convolution",)
    needs_constant_filters = True  # they are packed when the engine is built

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.inputs[0].type.rank not in (3, 4):
            return "not one or two spatial axes"
        if (reason := self.operands_rejection(region)) is not None:
            return reason
        if any(not is_constant(region, v) for v in node.inputs[1:]) and self.needs_constant_filters:
            return "the filters are not constant"
        if node.inputs[0] in node.inputs[1:]:
            return "the image is its own filter"
        if not is_known(*(d for v in node.inputs[1:] for d in v.type.shape)):
            return "the sizes of the filters vary"
        return self.sizes_rejection(region) or tail_rejection(region, node.output.type.shape, 1)

    def operands_rejection(self, region: Region) -> str | None:
        """Returns the reason to reject the types of its operands, or None."""
        return None if all_f32(*region.anchor.inputs, region.anchor.output) else "not f32"

    def sizes_rejection(self, region: Region) -> str | None:
        """Returns the reason to reject its window, strides or channels, or None."""
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
        """True if the images can be read with these strides."""
        return shape[1] == 1 or strides[1] == 1

    def task_blocks(
        self, region: Region, pixels: int, panels: int, batch: int, target: Target, mr: int
    ) -> Iterator[tuple[int, int]]:
        """Yields (pixels, panels) per task worth trying; tasks that must pack their filters do so for many pixels."""
        if is_constant(region, region.anchor.inputs[1]):
            yield from task_blocks(pixels, panels, batch, target.threads, mr)
        else:
            for per in dict.fromkeys((1, ceil_div(panels, 2 * target.threads), panels)):
                tasks = ceil_div(2 * target.threads, batch * ceil_div(panels, per))
                yield ceil_div(ceil_div(pixels, tasks), mr) * mr, per


def filter_strides(packed: bool, group: Size, output: Size, channel: Size, space: Strides) -> dict[str, Size]:
    """Returns the strides of filters to pack: between groups, output channels, channels, rows and columns."""
    if packed:
        return dict(PACKED=True, WG=0, WO=0, WC=0, WH=0, WW=0)
    return dict(PACKED=False, WG=group, WO=output, WC=channel, WH=space[0] if len(space) == 2 else 0, WW=space[-1])


def task_blocks(pixels: int, panels: int, batch: int, threads: int, mr: int) -> Iterator[tuple[int, int]]:
    """Yields (pixels, panels) per task to try, the best guess first: a few tasks per thread, operands in cache."""
    tasks = 6 * threads
    for goal in (48, 96, 192, 24, *([ceil_div(pixels, threads)] if threads > 1 else [])):
        mb = min(ceil_div(goal, mr) * mr, ceil_div(pixels, mr) * mr)
        blocks = ceil_div(pixels, mb) * batch
        per = max(1, min(panels, panels * blocks // tasks))
        yield mb, per
        if blocks >= threads:
            yield mb, panels
