"""Linear and cubic interpolation over one or two spatial axes, channels-last (nearest neighbours: moves.py)."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32
from pelton.ops.resize import axis_taps
from pelton.plan.layout import Layouts, Order, channels_last
from pelton.plan.region import Region

from pelton.codegen.c.emit import MAX_TABLE_ENTRIES, constants, kernel, tail
from pelton.codegen.c.fold import element_macros
from pelton.codegen.grid import Grid, ceil_div, grid_of
from pelton.codegen.sweep import Sweep, task_shape
from pelton.codegen.template import Kernel, Tactic, Target, template


def table(kind: str, name: str, rows: np.ndarray) -> str:
    """Emits a constant table in C, one row per index of the output."""

    def text(x) -> str:
        return f"{float(np.float32(x))!r}f" if kind == "float" else str(int(x))

    places, taps = rows.shape
    return (
        f"static const {kind} {name}[{places}][{taps}] ="
        f" {{{', '.join('{' + ', '.join(map(text, row)) + '}' for row in rows)}}};\n"
    )


@template
class Resize(Sweep):
    name = "resize"
    dynamic = True
    anchors = ("resize",)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, a = node.inputs[0].type, node.attrs
        if a["mode"] == "nearest":
            return "the nearest neighbour only moves elements"
        if a["antialias"] or a["roi"]:
            return "antialiased, or a part of the image"
        if x.dtype not in (F32, F16, BF16):
            return f"not in {x.dtype.value}"
        if x.rank not in (3, 4) or a["shape"][:2] != x.shape[:2] or a["scales"][:2] != (1, 1):
            return "not over one or two spatial axes"
        if not is_known(*x.shape[2:], *a["shape"][2:]):
            return "the image's size is dynamic, and with it the taps of each pixel"
        if sum(a["shape"][2:]) > MAX_TABLE_ENTRIES:
            return f"its tables of taps have more than {MAX_TABLE_ENTRIES} rows"
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        if value is region.anchor.inputs[0]:
            return channels_last(value.type.rank)
        return super().copy_order(region, value, layouts)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        return grid_of(region.output.type.shape, "pixels")

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        n, c, *space = region.output.type.shape
        yield Tactic(
            self.name,
            target.isa,
            (("RB", task_shape(n * (space[0] if len(space) == 2 else 1), 1, 4 * c * space[-1], target, 1)[0]),),
        )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, a = node.inputs[0], node.attrs
        n, c, *space = node.output.type.shape
        picked = []
        for size, new, scale in list(zip(x.type.shape, a["shape"], a["scales"]))[2:]:
            if size == new and scale == 1:
                picked.append((np.arange(new)[:, None], np.ones((new, 1))))
            else:
                taps = axis_taps(
                    size,
                    new,
                    scale,
                    mode=a["mode"],
                    coordinates=a["coordinates"],
                    nearest=a["nearest"],
                    cubic_a=a["cubic_a"],
                    exclude_outside=a["exclude_outside"],
                )
                picked.append((np.stack([at for at, _ in taps], 1), np.stack([by for _, by in taps], 1)))
        if len(space) == 1:
            space, picked = [1, *space], [(np.zeros((1, 1)), np.ones((1, 1))), *picked]
        (rows, row_weights), (columns, column_weights) = picked
        strides = layouts[x]
        block = constants(
            BATCH=n,
            C=c,
            OH=space[0],
            OW=space[1],
            TH=rows.shape[1],
            TW=columns.shape[1],
            XN=strides[0],
            XH=strides[2] if len(strides) == 4 else 0,
            XW=strides[-1],
        )
        block += table("int", "rows", rows) + table("int", "columns", columns)
        block += (
            table("float", "row_weights", row_weights)
            + table("float", "column_weights", column_weights)
            + element_macros(x.type.dtype)
        )
        end = tail(region, layouts, self.grid(region, layouts), (node.output,), first=1)
        return kernel(
            "resize.c", region, tactic, block + end.text, (x, *end.operands), n * ceil_div(space[0], tactic["RB"])
        )
