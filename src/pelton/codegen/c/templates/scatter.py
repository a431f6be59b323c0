"""Scatters of elements, and of slices by index tuples: stored in a copy of a tensor, or reduced with its elements."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.dims import Size, bounds
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I32, I64, STRING, DType
from pelton.plan.layout import Layouts, Strides, dense, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, list_macro, macro, memory_type
from pelton.codegen.c.fold import element_macros, reduction_macros
from pelton.codegen.grid import Grid, is_computable
from pelton.codegen.sweep import TASK_ELEMENTS, extent
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

JOINS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


class ScatterStrides:
    """Strides of updates, indices and output over the updates as rows × columns, and those of the scattered axes."""

    def __init__(self, region: Region, layouts: Layouts):
        node = region.anchor
        x, indices, updates = node.inputs
        ys, ids, self.updates = layouts[node.output], layouts[indices], layouts[updates]
        rank = indices.type.rank
        self.between: Size = 0  # the stride between the numbers of an index tuple
        if node.op.name == "scatter_nd":
            depth = indices.type.shape[-1]
            self.y: Strides = (*[0] * (rank - 1), *ys[depth:])
            self.indices: Strides = (*ids[:-1], *[0] * (x.type.rank - depth))
            self.between, axes = ids[-1], range(depth)
        else:
            axis = node.attrs["axis"]
            self.y, self.indices, axes = (*ys[:axis], 0, *ys[axis + 1 :]), ids, range(axis, axis + 1)
        self.sizes, self.steps = [x.type.shape[a] for a in axes], [ys[a] for a in axes]
        self.grid = self._grid(updates.type.shape)

    def _grid(self, shape: tuple[Size, ...]) -> Grid:
        """Returns a grid whose columns are as many last axes as every operand has one stride along."""
        first = len(shape)
        while first > 0 and all(
            Grid(shape, (), (), tuple(range(first - 1, len(shape)))).step(s) is not None
            for s in (self.y, self.indices, self.updates)
        ):
            first -= 1
        return Grid(shape, (), tuple(range(first)), tuple(range(first, len(shape))))


@template
class Scatter(Template):
    name = "scatter"
    anchors = ("scatter_elements", "scatter_nd")
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, indices, _ = node.inputs
        if indices.type.dtype not in (I64, I32):
            return f"indices in {indices.type.dtype.value}"
        dtype = x.type.dtype
        if node.attrs["reduction"] == "none":
            is_stored = dtype is not STRING and dtype.size <= 8
            return None if is_stored else f"{dtype.value} is no type that kernels load and store"
        return f"{dtype.value} is not reduced by kernels" if dtype is BOOL or not is_computable(dtype) else None

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        whole = value is region.anchor.inputs[0] or value is region.output
        return not whole or layouts[value] == dense(value.type.shape, row_major(value.type.rank))

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        """Yields at most one part per thread, since each part reads all indices."""
        parts = target.threads if bounds(region.output.type.size)[1] >= TASK_ELEMENTS else 1
        yield Tactic(self.name, target.isa, (("PARTS", parts),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, p = region.anchor, ScatterStrides(region, layouts)
        x, indices, updates = node.inputs
        grid, reduction = p.grid, node.attrs["reduction"]
        ic, uc, yc = (grid.step(s) for s in (p.indices, p.updates, p.y))
        cols, row = extent(grid, grid.c), Grid(grid.shape, (), grid.r, ())
        block = constants(
            SIZE=x.type.size,
            ROWS=extent(grid, grid.r),
            COLS=cols,
            DEPTH=len(p.sizes),
            IK=p.between,
            IC=ic,
            UC=uc,
            YC=yc,
            PICK=cols != 1 and (bool(ic) or uc != 1 or yc != 1),
            REPLACES=reduction == "none",
        )
        block += macro("Y_AT(r)", row.address(p.y)) + macro("I_AT(r)", row.address(p.indices))
        block += macro("U_AT(r)", row.address(p.updates))
        block += list_macro("SIZES", p.sizes) + list_macro("STEPS", p.steps)
        block += f"typedef {memory_type(indices.type.dtype)} index;\n"
        dtype = x.type.dtype
        if reduction == "none":
            dtype = DType(f"u{8 * dtype.size}")
            block += element_macros(dtype) + "#define JOIN(a, b) (b)\n"
        else:
            block += reduction_macros(JOINS[reduction], dtype)
        block += f"#define STORE(p, v, n) stn_{dtype.value}(p, v, n)\n"
        return kernel("scatter.c", region, tactic, block, (x, indices, updates, node.output), tactic["PARTS"])
