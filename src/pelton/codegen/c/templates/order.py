"""Ops on the order of elements along an axis: arg min and max, cumulative sums and products, the k largest."""

from __future__ import annotations

from pelton.ir.dims import Size, bounds
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I32, I64, DType
from pelton.plan.layout import Layouts, dense
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.c.fold import reduction_macros, is_native
from pelton.codegen.grid import Grid, ceil_div
from .reduce import ReductionTemplate
from pelton.codegen.sweep import Sweep, extent, memory_order, task_shape, sweep_grid
from pelton.codegen.template import Kernel, Tactic, Target, template


def index_type(n: Size) -> DType:
    """Returns the type for indices along an axis of n elements, and for n itself."""
    return I32 if bounds(n)[1] < 1 << 31 else I64


@template
class Arg(ReductionTemplate):
    name = "arg"
    dynamic = True
    anchors = ("arg_max", "arg_min")

    def axes(self, region: Region) -> tuple[int, ...]:
        return (region.anchor.attrs["axis"],)

    def node_rejection(self, region: Region) -> str | None:
        return f"{region.anchor.op.name} of bool" if region.anchor.inputs[0].type.dtype is BOOL else None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        block, rows, cols = self.sizes(region, layouts)
        largest = node.op.name == "arg_max"
        block += (
            f"#define INDEX {index_type(node.inputs[0].type.shape[node.attrs['axis']]).value}\n#define LAST"
            f" {int(node.attrs['select_last_index'])}\n"
        )
        block += f"#define BEYOND {'>' if largest else '<'}\n#define REACHES {'>=' if largest else '<='}\n"
        end = tail(region, layouts, self.grid(region, layouts), (node.output,), first=1)
        return kernel(
            "arg.c",
            region,
            tactic,
            block + reduction_macros("max" if largest else "min", node.inputs[0].type.dtype) + end.text,
            (node.inputs[0], *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
        )


@template
class CumSum(Sweep):
    """Cumulative sums and products: coordinate r is the axis, unless it has unit stride and is c; b is the rest."""

    name = "cumsum"
    dynamic = True
    anchors = ("cumsum", "cumprod")

    def node_rejection(self, region: Region) -> str | None:
        return f"{region.anchor.op.name} of bool" if region.anchor.inputs[0].type.dtype is BOOL else None

    def grid(self, region: Region, layouts: Layouts) -> Grid:
        return along_or_across(region, layouts, region.anchor.attrs["axis"])

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        grid = self.grid(region, layouts)
        cols = extent(grid, grid.c)
        for nv in [nv for nv in (4, 2, 1) if nv == 1 or nv * target.lanes <= cols][: 2 if grid.r else 1]:
            _, cb = task_shape(1, cols, extent(grid, grid.r) * extent(grid, grid.b), target, nv * target.lanes)
            yield Tactic(self.name, target.isa, (("NV", nv), ("CB", cb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, axis = node.inputs[0], node.attrs["axis"]
        batch, cols = extent(grid, grid.b), extent(grid, grid.c)
        block = constants(
            BATCH=batch,
            COLS=cols,
            N=x.type.shape[axis],
            XN=layouts[x][axis],
            ALONG=not grid.r,
            EXCLUSIVE=node.attrs["exclusive"],
            REVERSE=node.attrs["reverse"],
        )
        block += macro("X_AT(b)", Grid(grid.shape, grid.b, (), ()).address(layouts[x]))
        block += (
            reduction_macros("prod" if node.op.name == "cumprod" else "sum", x.type.dtype)
            + f"#define START {int(node.op.name == 'cumprod')}\n"
        )
        end = tail(region, layouts, grid, (node.output,), first=1)
        return kernel(
            "cumsum.c",
            region,
            tactic,
            block + end.text,
            (x, *end.operands),
            batch * (ceil_div(cols, tactic["CB"]) if grid.r else 1),
        )


def along_or_across(region: Region, layouts: Layouts, axis: int) -> Grid:
    """Returns the grid of an op on an axis, which is c if it is innermost (without r), else r; b is the rest."""
    x = region.anchor.inputs[0]
    shape = region.output.type.shape
    moving = [a for a in memory_order(shape, layouts[region.output]) if shape[a] != 1]
    if not moving or moving[-1] == axis:
        return Grid(shape, tuple(a for a in memory_order(shape, layouts[region.output]) if a != axis), (), (axis,))
    swept_grid = sweep_grid(region, layouts, [layouts[x]], without=(axis,))
    return Grid(shape, tuple(a for a in swept_grid.r if a != axis), (axis,), swept_grid.c)


@template
class TopK(Sweep):
    """The k largest or smallest elements along an axis; operands may have any strides."""

    name = "top_k"
    dynamic = True
    anchors = ("top_k",)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if len(region.body.nodes) > 1:
            return "of two results, neither can have a tail"
        if not is_native(node.inputs[0].type.dtype):
            return f"{node.inputs[0].type.dtype.value} is not ordered by kernels"
        return None

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        shape, axis = region.anchor.inputs[0].type.shape, region.anchor.attrs["axis"]
        rows = region.anchor.inputs[0].type.size // shape[axis]
        yield Tactic(self.name, target.isa, (("RB", task_shape(rows, 1, shape[axis], target, 1)[0]),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, (values, indices) = node.inputs[0], node.outputs
        shape, axis, k = x.type.shape, node.attrs["axis"], node.attrs["k"]
        written = [v in region.body.outputs for v in (values, indices)]
        strides = {v: layouts[v] if v in layouts else dense(v.type.shape) for v in (x, values, indices)}
        rows = Grid(shape, (), tuple(a for a in memory_order(shape, strides[x]) if a != axis), ())
        block = constants(
            ROWS=extent(rows, rows.r),
            N=shape[axis],
            K=k,
            XN=strides[x][axis],
            VALUES_N=strides[values][axis],
            INDICES_N=strides[indices][axis],
            VALUES=written[0],
            INDICES=written[1],
        )
        block += macro("X_AT(r)", rows.address(strides[x])) + macro("VALUES_AT(r)", rows.address(strides[values]))
        block += macro("INDICES_AT(r)", rows.address(strides[indices]))
        at = index_type(shape[axis])
        block += (
            f"#define BEYOND {'>' if node.attrs['largest'] else '<'}\n#define INDEX {at.value}\ntypedef"
            f" {memory_type(x.type.dtype)} element;\n"
        )
        operands = (x, *(v for v, w in zip((values, indices), written) if w))
        item = 16 if 8 in (x.type.dtype.size, at.size) else 8
        return kernel(
            "top_k.c", region, tactic, block, operands, ceil_div(extent(rows, rows.r), tactic["RB"]), scratch=k * item
        )
