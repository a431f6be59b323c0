"""Normalizations: layer and RMS norm over trailing axes, instance and group norm, and local response."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32
from pelton.ops import get
from pelton.plan.layout import Layouts, Order
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.fold import element_macros
from pelton.codegen.code import code
from pelton.codegen.grid import Grid, ceil_div
from pelton.codegen.sweep import Sweep, extent, memory_order, task_shape
from pelton.codegen.tail import operands
from pelton.codegen.template import Kernel, Tactic, Target, template


def f32_literal(x: float) -> str:
    """Returns the C literal of an f32."""
    return f"{float(np.float32(x))!r}f"


def float_rejection(region: Region) -> str | None:
    """Returns the reason why the input's type cannot be normalized, or None."""
    dtype = region.anchor.inputs[0].type.dtype
    return None if dtype in (F32, F16, BF16) else f"not in {dtype.value}"


def split_affine(region: Region, spread: bool = False) -> tuple[Region, dict[Value, Value]]:
    """Returns the region with scale and bias as pointwise nodes behind the anchor, which belong to the tail.

    spread: they are one number per channel, and the tail reads them as [C, 1, …]. Also returns the values that then
    replace them, each with its original.
    """
    node = region.anchor
    x, *factors = node.inputs
    stands: dict[Value, Value] = {}
    if spread:
        for f in factors:
            stands[Value(f.type.with_shape((*f.type.shape, *[1] * (x.type.rank - 2))), f.name)] = f
        factors = list(stands)
    names = ["mul", "add"][: len(factors)]
    made = [*(Value(node.output.type, op) for op in ("normalised", *names[:-1])), node.output]
    nodes = [Node(node.op, (x,), node.attrs, (made[0],), node.name)]
    nodes += [Node(get(op), (made[i], f), {}, (made[i + 1],)) for i, (op, f) in enumerate(zip(names, factors))]
    body = region.body.replace(nodes=(*nodes, *(n for n in region.body.nodes if n is not node)))
    if spread:
        body = body.replace(
            constants={
                **body.constants,
                **{s: body.constants[f].reshape(s.type.shape) for s, f in stands.items() if f in body.constants},
            }
        )
    return Region(body, (nodes[0],)), stands


@template
class RowNorm(Sweep):
    """Layer and RMS norm; the normalised axes are the columns."""

    name = "norm"
    dynamic = True
    anchors = ("layer_norm", "rms_norm")

    def node_rejection(self, region: Region) -> str | None:
        x, axis = region.anchor.inputs[0].type, region.anchor.attrs["axis"]
        for v in operands(split_affine(region)[0]):
            full = (1,) * (x.rank - v.type.rank) + v.type.shape
            if full[axis:] != x.shape[axis:] and any(d != 1 for d in full[axis:]):
                return f"%{v.name} repeats along some of the normalised axes"
        return float_rejection(region)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        x, axis = region.anchor.inputs[0], region.anchor.attrs["axis"]
        return (*(a for a in memory_order(x.type.shape, layouts[x]) if a < axis), *range(axis, x.type.rank))

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        axis, shape = region.anchor.attrs["axis"], region.output.type.shape
        order = memory_order(shape, layouts[region.output])
        return Grid(shape, tuple(a for a in order if a < axis), (), tuple(range(axis, len(shape))))

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        return super().fits_columns(split_affine(region)[0], grid, value, layouts)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rows, _ = task_shape(extent(grid, grid.b), 1, 2 * extent(grid, grid.c), target, 1)
        yield Tactic(self.name, target.isa, (("RB", rows),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, batch = node.inputs[0], extent(grid, grid.b)
        whole, _ = split_affine(region)
        block = (
            constants(BATCH=batch, N=extent(grid, grid.c), CENTRED=node.op.name == "layer_norm")
            + f"#define EPSILON {f32_literal(node.attrs['epsilon'])}\n"
        )
        block += macro("X_AT(b)", Grid(grid.shape, grid.b, (), ()).address(layouts[x])) + element_macros(x.type.dtype)
        end = tail(whole, layouts, grid, (whole.anchor.output,), first=1)
        return kernel("norm.c", region, tactic, block + end.text, (x, *end.operands), ceil_div(batch, tactic["RB"]))


@template
class ChannelNorm(Sweep):
    """Instance and group norm: over each channel of each image, or groups of channels; channels innermost."""

    name = "channel_norm"
    dynamic = True
    anchors = ("instance_norm", "group_norm")

    def node_rejection(self, region: Region) -> str | None:
        return (
            float_rejection(region) if is_known(self.group(region)) else "the number of channels in a group is dynamic"
        )

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return (0, *range(2, value.type.rank), 1)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        rank = region.output.type.rank
        return Grid(region.output.type.shape, (0,), tuple(range(2, rank)), (1,))

    def fits_columns(self, region: Region, grid: Grid, value: Value, layouts: Layouts) -> bool:
        if value in region.anchor.inputs[1:] and layouts[value][0] != 1 and value.type.size != 1:
            return False
        return value not in (*operands(region), region.anchor.inputs[0]) or super().fits_columns(
            region, grid, value, layouts
        )

    def group(self, region: Region) -> Size:
        """Returns the number of channels that share statistics."""
        node = region.anchor
        return node.inputs[0].type.shape[1] // node.attrs.get("groups", node.inputs[0].type.shape[1])

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        channels, pixels = extent(grid, grid.c), extent(grid, grid.r)
        for nv in [nv for nv in (4, 2, 1) if nv == 1 or nv * target.lanes <= channels][:2]:
            step = math.lcm(nv * target.lanes, self.group(region))
            _, cb = task_shape(1, channels, 3 * pixels * extent(grid, grid.b), target, step)
            yield Tactic(self.name, target.isa, (("NV", nv), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, rank = node.inputs[0], node.inputs[0].type.rank
        whole, stands = split_affine(region, spread=True)
        strides = layouts.moved({s: (*layouts[f], *[0] * (rank - 2)) for s, f in stands.items()})
        end = tail(whole, strides, grid, (whole.anchor.output,), first=1)
        sizes = dict(BATCH=x.type.shape[0], PIXELS=extent(grid, grid.r), C=x.type.shape[1], GROUP=self.group(region))
        block = constants(**sizes) + f"#define EPSILON {f32_literal(node.attrs['epsilon'])}\n"
        block += macro("X_AT(b)", code("(b) * {}", layouts[x][0]))
        block += macro("PIXEL_AT(r)", Grid(grid.shape, (), grid.r, ()).address(layouts[x])) + element_macros(
            x.type.dtype
        )
        operands = (x, *(stands.get(v, v) for v in end.operands))
        return kernel(
            "norm_across.c",
            region,
            tactic,
            block + end.text,
            operands,
            sizes["BATCH"] * ceil_div(sizes["C"], tactic["CB"]),
            scratch=8 * (tactic["CB"] + target.lanes),
        )


@template
class LocalResponse(Sweep):
    name = "lrn"
    dynamic = True
    anchors = ("lrn",)

    def node_rejection(self, region: Region) -> str | None:
        return float_rejection(region)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return (0, *range(2, value.type.rank), 1)

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        shape = region.output.type.shape
        return Grid(shape, (), tuple(a for a in memory_order(shape, layouts[region.output]) if a != 1), (1,))

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        rows = task_shape(extent(grid, grid.r), 1, 4 * extent(grid, grid.c), target, 1)[0]
        for nv in (2, 3):
            yield Tactic(self.name, target.isa, (("RB", rows), ("NV", nv)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, a = node.inputs[0], node.attrs
        beta = a["beta"]
        roots = {0.5: "(1 / f32_sqrt(v))", 0.75: "(1 / (f32_sqrt(v) * f32_sqrt(f32_sqrt(v))))", 1.0: "(1 / (v))"}
        power = roots.get(beta, f"f32_exp(f32_log(v) * bc_f32({f32_literal(-beta)}))")
        sizes = dict(PIXELS=extent(grid, grid.r), C=x.type.shape[1], SIZE=a["size"])
        block = (
            constants(**sizes)
            + f"#define BIAS {f32_literal(a['bias'])}\n#define ALPHA {f32_literal(a['alpha'] / a['size'])}\n#define"
            f" INVERSE_POWER(v) {power}\n"
        )
        block += macro("X_AT(r)", Grid(grid.shape, (), grid.r, ()).address(layouts[x])) + element_macros(x.type.dtype)
        end = tail(region, layouts, grid, (node.output,), first=1)
        scratch = x.type.dtype.size * (2 * sizes["SIZE"] + 2 * target.lanes)
        return kernel(
            "lrn.c",
            region,
            tactic,
            block + end.text,
            (x, *end.operands),
            ceil_div(sizes["PIXELS"], tactic["RB"]),
            scratch=scratch,
        )
