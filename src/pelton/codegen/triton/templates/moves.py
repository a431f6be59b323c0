"""Elements that come from other places, one or several of them each: padding, repetition, triangles, bits as another type, blends and scatters."""
from __future__ import annotations

import math

from pelton.ir.dims import Size, maximum
from pelton.ir.types import F64
from pelton.codegen.c.templates import blend, moves, scatter
from pelton.codegen.c.emit import Grid
from pelton.codegen.grid import divide
from pelton.codegen.template import Kernel, Layouts, Tactic, Target, gpu_template
from pelton.plan.layout import Strides
from pelton.plan.region import Region

from pelton.codegen.triton.emit import TYPES, in_registers, kernel, memory, place, spelled, tail
from .picks import ByElement, extents, held
from .rows import JOINED
from .window import joining


NAMES = {short: f"tl.{'uint8' if long == 'int1' else long}" for long, short in TYPES.values()}       # of elements in memory


def index(grid: Grid, axis: int) -> str:
    """The index along an axis at (r, c)."""
    axes, var = (grid.r, "r") if axis in grid.r else (grid.c, "c")
    at = axes.index(axis)
    below = math.prod(grid.shape[a] for a in axes[at + 1:])
    part = var if below == 1 else f"({var} // {spelled(below)})"
    return part if at == 0 else f"({part} % {spelled(grid.shape[axis])})"


def function(name: str, parameters: str, *lines: str) -> str:
    return f"@triton.jit\ndef {name}({parameters}):\n    " + "\n    ".join(lines) + "\n\n\n"


@gpu_template
class Move(ByElement, moves.Move):
    def refuses_node(self, region: Region) -> str | None:
        return "gathers and blends say the same" if region.anchor.op.name == "resize" else None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, to = node.inputs[0], node.output.type.dtype
        rows, cols = extents(grid)
        filled = node.op.name == "pad" and node.attrs["mode"] == "constant"
        operands = (x, node.inputs[1]) if filled else (x,)
        same = f"x.to({NAMES[memory(to)]}, bitcast=True)" if node.op.name == "bit_cast" else "x"
        block = f"FILLED = tl.constexpr({filled})\n\n\n" + self._source(region, layouts[x], grid) + function("held", "x", f"return {in_registers(same, to)}")
        end = tail(region, layouts, grid, (node.output,), first=len(operands))
        return kernel("move.py", region, tactic, dict(ROWS=rows, COLS=cols), block + end.text, (*operands, *end.operands),
                      divide(rows, tactic["RB"]) * divide(cols, tactic["CB"]), layouts)

    def _source(self, region: Region, strides: Strides, grid: Grid) -> str:
        """A device function that gives the offset of the element that belongs at (r, c), and whether there is one."""
        op, attrs, shape = region.anchor.op.name, region.anchor.attrs, region.anchor.inputs[0].type.shape
        lines, terms, there, rank = [], [], ["(r >= 0)"], len(shape)
        for axis, d in enumerate(shape):
            at = index(grid, axis)
            if op == "tile" and attrs["repeats"][axis] != 1:
                at = f"({at} % {spelled(d)})"
            if op == "pad":
                before, after = attrs["pads"][axis], attrs["pads"][rank + axis]
                first: Size = maximum(0, -before)                          # elements of the input that are left out
                if maximum(0, before, after) != 0:
                    size = spelled(d - first - maximum(0, -after))
                    at = f"{at} - {spelled(maximum(0, before))}"
                    lines.append(f"i{axis} = {at if attrs['mode'] == 'constant' else f'''{attrs['mode']}({at}, {size})'''}")
                    there += [f"(i{axis} >= 0) & (i{axis} < {size})"] * (attrs["mode"] == "constant")
                    at = f"i{axis}"
                at = f"({at} + {spelled(first)})" if first != 0 else at
            terms.append(f"{at} * {spelled(strides[axis])}")
        if op == "trilu":
            there.append(f"({index(grid, rank - 1)} {'>=' if attrs['upper'] else '<='} {index(grid, rank - 2)} + {spelled(attrs['k'])})")
        return function("source", "r, c, a", *lines, f"return {' + '.join(terms) or '0'}, {' & '.join(there)}")


@gpu_template
class Blend(ByElement, blend.Blend):
    def moves(self, region: Region) -> bool:
        return False

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, indices, weights = node.inputs
        rows, cols = extents(grid)
        axis, walked = node.attrs["axis"], self.walked(region, layouts)
        block = "".join(place(f"{name}_at", grid, strides) for name, strides in zip("xiw", walked))
        sizes = dict(ROWS=rows, COLS=cols, TAPS=indices.type.shape[-1], SIZE=x.type.shape[axis], STEP=layouts[x][axis], IK=layouts[indices][-1],
                     WK=layouts[weights][-1])
        block += f"KIND = tl.constexpr({'tl.float64' if x.type.dtype is F64 else 'tl.float32'})\n\n\n"
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel("blend.py", region, tactic, sizes, block + end.text, (x, indices, weights, *end.operands),
                      divide(rows, tactic["RB"]) * divide(cols, tactic["CB"]), layouts)


@gpu_template
class Scatter(ByElement, scatter.Scatter):
    """Every element of the output looks at all updates in their order: what meets twice is joined in the same order in every run."""

    alone = False

    def moves(self, region: Region) -> bool:
        return region.anchor.attrs["reduction"] == "none"

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, grid = region.anchor, self.grid(region, layouts)
        x, indices, updates = node.inputs
        shape, ids, new = x.type.shape, layouts[indices], layouts[updates]
        rows, cols = extents(grid)
        if node.op.name == "scatter_nd":
            lead, depth = indices.type.shape[:-1], indices.type.shape[-1]
            i_at, u_at, steps = (0,) * len(shape), (*[0] * depth, *new[len(lead):]), (ids[:-1], new[:len(lead)])
            found = [f"place(tl.load(i + {k} * {spelled(ids[-1])}), {spelled(shape[k])}) == {index(grid, k)}" for k in range(depth)]
            known = []
        else:
            axis = node.attrs["axis"]
            lead = (indices.type.shape[axis],)
            i_at, u_at = (tuple(0 if k == axis else s for k, s in enumerate(strides)) for strides in (ids, new))
            steps = ((ids[axis],), (new[axis],))
            found = [f"place(tl.load(i, mask=inside, other=0), {spelled(shape[axis])}) == {index(grid, axis)}"]
            known = [f"({index(grid, k)} < {spelled(n)})" for k, n in enumerate(indices.type.shape) if k != axis and n != shape[k]]
        counted = Grid(lead, (), tuple(range(len(lead))), ())
        block = place("x_at", grid, layouts[x]) + place("i_at", grid, i_at) + place("u_at", grid, u_at)
        block += place("i_step", counted, steps[0]) + place("u_step", counted, steps[1])
        block += function("meets", "i, r, c, inside, a", f"return {' & '.join(f'({f})' for f in found) or '(r >= 0)'}")
        block += function("known", "r, c, a", f"return {' & '.join(known) or '(r >= 0)'}") + held(x.type.dtype)
        reduction = node.attrs["reduction"]
        block += joining("y" if reduction == "none" else JOINED[scatter.JOINS[reduction]][0])
        end = tail(region, layouts, grid, (node.output,), first=3)
        return kernel("scatter.py", region, tactic, dict(ROWS=rows, COLS=cols, UPDATES=math.prod(lead)), block + end.text, (x, indices, updates, *end.operands),
                      divide(rows, tactic["RB"]) * divide(cols, tactic["CB"]), layouts)
