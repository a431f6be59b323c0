"""Elements from one or several other places: padding, repetition, triangles, bits as another type, blends and
scatters."""

from __future__ import annotations

import math

from pelton.ir.dims import Size, maximum
from pelton.ir.types import F64
from pelton.codegen.c.templates import blend, moves, scatter
from pelton.codegen.code import Text, code, join
from pelton.codegen.grid import Grid, ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts, Strides
from pelton.plan.region import Region

from pelton.codegen.triton.emit import TYPES, function, in_registers, index, kernel, memory_type, emit_offset, tail
from .picks import ElementTemplate, grid_extents, emit_held
from .rows import JOINED
from .window import emit_join

# of elements in memory
NAMES = {short: f"tl.{'uint8' if long == 'int1' else long}" for long, short in TYPES.values()}


@gpu_template
class TritonMove(ElementTemplate, moves.Move):
    def node_rejection(self, region: Region) -> str | None:
        return "see gathers and blends" if region.anchor.op.name == "resize" else None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, to = node.inputs[0], node.output.type.dtype
        rows, cols = grid_extents(grid)
        filled = node.op.name == "pad" and node.attrs["mode"] == "constant"
        operands = (x, node.inputs[1]) if filled else (x,)
        same = f"x.to({NAMES[memory_type(to)]}, bitcast=True)" if node.op.name == "bit_cast" else "x"
        block = f"FILLED = tl.constexpr({filled})\n\n\n" + self._source(region, layouts[x], grid)
        block += function("held", "x", code("return {}", in_registers(same, to)))
        end = tail(region, layouts, grid, (node.output,), first=len(operands))
        return kernel(
            "move.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols),
            block + end.text,
            (*operands, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )

    def _source(self, region: Region, strides: Strides, grid: Grid) -> Text:
        """Emits a device function that returns the offset of the element for (r, c), and true if there is one."""
        op, attrs, shape = region.anchor.op.name, region.anchor.attrs, region.anchor.inputs[0].type.shape
        lines, terms, there, rank = list[Text](), list[Text](), list[Text](["(r >= 0)"]), len(shape)
        for axis, d in enumerate(shape):
            at = index(grid, axis)
            if op == "tile" and attrs["repeats"][axis] != 1:
                at = code("({} % {})", at, d)
            if op == "pad":
                before, after = attrs["pads"][axis], attrs["pads"][rank + axis]
                first: Size = maximum(0, -before)  # skipped elements of the input
                if maximum(0, before, after) != 0:
                    size, filled = d - first - maximum(0, -after), attrs["mode"] == "constant"
                    at = code("{} - {}", at, maximum(0, before))
                    lines.append(code(f"i{axis} = {{}}", at if filled else code(attrs["mode"] + "({}, {})", at, size)))
                    there += [code(f"(i{axis} >= 0) & (i{axis} < {{}})", size)] * filled
                    at = f"i{axis}"
                at = code("({} + {})", at, first) if first != 0 else at
            terms.append(code("{} * {}", at, strides[axis]))
        if op == "trilu":
            kept = "({} >= {} + {})" if attrs["upper"] else "({} <= {} + {})"
            there.append(code(kept, index(grid, rank - 1), index(grid, rank - 2), attrs["k"]))
        statement = code("return {}, {}", join(" + ", terms or ["0"]), join(" & ", there))
        return function("source", "r, c, a", *lines, statement)


@gpu_template
class TritonBlend(ElementTemplate, blend.Blend):
    def moves(self, region: Region) -> bool:
        return False

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, indices, weights = node.inputs
        rows, cols = grid_extents(grid)
        axis, walked = node.attrs["axis"], self.operand_strides(region, layouts)
        block = join("", [emit_offset(f"{name}_at", grid, strides) for name, strides in zip("xiw", walked)])
        sizes = dict(
            ROWS=rows,
            COLS=cols,
            TAPS=indices.type.shape[-1],
            SIZE=x.type.shape[axis],
            STEP=layouts[x][axis],
            IK=layouts[indices][-1],
            WK=layouts[weights][-1],
        )
        block += f"KIND = tl.constexpr({'tl.float64' if x.type.dtype is F64 else 'tl.float32'})\n\n\n"
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel(
            "blend.py",
            region,
            tactic,
            sizes,
            block + end.text,
            (x, indices, weights, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )


@gpu_template
class TritonScatter(ElementTemplate, scatter.Scatter):
    """Every element of the output reads all updates in order, so results are equal in every run."""

    without_tail = False

    def moves(self, region: Region) -> bool:
        return region.anchor.attrs["reduction"] == "none"

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, indices, updates = node.inputs
        shape, ids, new = x.type.shape, layouts[indices], layouts[updates]
        rows, cols = grid_extents(grid)
        if node.op.name == "scatter_nd":
            lead, depth = indices.type.shape[:-1], indices.type.shape[-1]
            i_at, u_at, steps = (0,) * len(shape), (*[0] * depth, *new[len(lead) :]), (ids[:-1], new[: len(lead)])
            conditions = [
                code(f"(place(tl.load(i + {k} * {{}}), {{}}) == {{}})", ids[-1], shape[k], index(grid, k))
                for k in range(depth)
            ]
            known = list[Text]()
        else:
            axis = node.attrs["axis"]
            lead = (indices.type.shape[axis],)
            i_at, u_at = (tuple(0 if k == axis else s for k, s in enumerate(strides)) for strides in (ids, new))
            steps = ((ids[axis],), (new[axis],))
            conditions = [code("(place(tl.load(i, mask=inside, other=0), {}) == {})", shape[axis], index(grid, axis))]
            known = [
                code("({} < {})", index(grid, k), n)
                for k, n in enumerate(indices.type.shape)
                if k != axis and n != shape[k]
            ]
        counted = Grid(lead, (), tuple(range(len(lead))), ())
        block = (
            emit_offset("x_at", grid, layouts[x]) + emit_offset("i_at", grid, i_at) + emit_offset("u_at", grid, u_at)
        )
        block += emit_offset("i_step", counted, steps[0]) + emit_offset("u_step", counted, steps[1])
        block += function("meets", "i, r, c, inside, a", code("return {}", join(" & ", conditions or ["(r >= 0)"])))
        block += function("known", "r, c, a", code("return {}", join(" & ", known or ["(r >= 0)"])))
        block += emit_held(x.type.dtype)
        reduction = node.attrs["reduction"]
        block += emit_join("y" if reduction == "none" else JOINED[scatter.JOINS[reduction]][0])
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel(
            "scatter.py",
            region,
            tactic,
            dict(ROWS=rows, COLS=cols, UPDATES=math.prod(lead)),
            block + end.text,
            (x, indices, updates, *end.operands),
            ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"]),
            layouts,
        )
