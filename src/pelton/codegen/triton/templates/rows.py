"""Rows reduced to a number each, or normalised: reductions over any axes, places of extremes, softmax, layer and RMS
norm."""

from __future__ import annotations

import math
from collections.abc import Callable

from pelton.ir.dims import Size, bounds, is_known, optimum
from pelton.ir.graph import Value
from pelton.ir.types import BF16, BOOL, F16, F32, I32, U8, DType
from pelton.codegen.c.templates.norm import split_affine
from pelton.codegen.c.templates.reduce import KINDS
from pelton.codegen.grid import Grid, ceil_div, tail_rejection
from pelton.codegen.sweep import memory_order
from pelton.codegen.template import Kernel, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, Order
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.emit import computable, register_type, kernel, emit_offset, tail, nodes_rejection
from .pointwise import power_of_two
from pelton.codegen.triton.cost import AWAY, BYTES, NEAR, waves
from .window import emit_join, float_literal

HELD = 4096  # elements of a row in registers; longer rows are read again
SECTOR = 32  # bytes of the smallest read
# elements that a multiprocessor joins per cycle, other work for each included
LANES = 64
MAX_TACTICS = 8  # tactics of a reduction
MAX_PARTS = 256  # of a row
MAX_COUNTED = 1 << 14  # blocks of rows computed in parts
REDUCES = (*KINDS, "arg_max", "arg_min")
WHOLE = tuple(name for name in REDUCES if name != "reduce_mean")  # also of integers

JOINED: dict[str, tuple[str, Callable[[DType], float]]] = {
    "sum": ("x + y", lambda dtype: 0),
    "prod": ("x * y", lambda dtype: 1),
    "max": ("maximum(x, y)", lambda dtype: dtype.lowest),
    "min": ("minimum(x, y)", lambda dtype: dtype.highest),
}


@gpu_template
class TritonRows(Template):
    name = "rows"
    anchors = ("softmax", "log_softmax", "layer_norm", "rms_norm", *REDUCES)
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x = node.inputs[0].type
        if not computable(x.dtype) or not x.dtype.is_float and node.op.name not in WHOLE:
            return f"{node.op.name} of {x.dtype.value}"
        if node.op.name.startswith("arg") and (x.dtype is BOOL or bounds(x.shape[node.attrs["axis"]])[1] >= 1 << 31):
            return f"{node.op.name} of {x.dtype.value} along {x.shape[node.attrs['axis']]}"
        return tail_rejection(region, node.output.type.shape) or nodes_rejection(split_affine(region)[0].tail)

    def along(self, region: Region) -> tuple[int, ...]:
        """Returns the axes that a row runs along."""
        node = region.anchor
        if node.op.name in KINDS:
            return tuple(sorted(node.attrs["axes"]))
        axis, rank = node.attrs["axis"], node.inputs[0].type.rank
        return (axis,) if node.op.name in ("softmax", "log_softmax", *REDUCES) else tuple(range(axis, rank))

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        x = region.anchor.inputs[0]
        order = memory_order(x.type.shape, layouts[x])
        if value.type.rank == x.type.rank:
            return order
        axes = self.along(region)
        kept = [a for a in range(x.type.rank) if a not in axes]
        return tuple(kept.index(a) for a in order if a in kept)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def grids(self, region: Region, layouts: Layouts) -> tuple[Grid, Grid]:
        """Returns (the input's grid, the output's): rows, in memory order, × the axes that a row runs along."""
        x, y, axes = region.anchor.inputs[0], region.anchor.output, self.along(region)
        order = memory_order(x.type.shape, layouts[x])
        kept, run = tuple(a for a in order if a not in axes), tuple(a for a in order if a in axes)
        if region.anchor.op.name.endswith("_norm"):
            run = axes  # scale and bias are row-major
        there = Grid(x.type.shape, (), kept, run)
        if region.anchor.op.name not in REDUCES:
            return there, there
        if y.type.rank == x.type.rank:
            return there, Grid(y.type.shape, (), kept, axes)
        left = [a for a in range(x.type.rank) if a not in axes]
        return there, Grid(y.type.shape, (), tuple(left.index(a) for a in kept), ())

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        there, _ = self.grids(region, layouts)
        rows, cols = (math.prod(there.shape[a] for a in axes) for axes in (there.r, there.c))
        across = bool(there.r) and cols != 1 and layouts[region.anchor.inputs[0]][there.c[-1]] != 1
        if region.anchor.op.name in KINDS:
            yield from self.reductions(rows, cols, across, region.anchor.inputs[0].type.dtype, target)
            return
        for size, warps in ((1024, 4), (2048, 4), (4096, 8), (512, 2)):
            max_cb = max(size, HELD) if cols <= HELD else size
            cb = power_of_two(cols, 1, 32 if across else max_cb)
            rb = power_of_two(rows, 1, max(1, size // cb))
            while rb > 1 and ceil_div(rows, rb) < 2 * target.threads:
                rb //= 2
            yield Tactic(self.name, target.isa, (("RB", rb), ("CB", cb), ("PARTS", 0), ("WARPS", warps)))

    # The mean of 112×112 pixels of 32 channels takes 196 programs of two steps in parts, 32 of 392 steps without.
    def reductions(self, rows: Size, cols: Size, across: bool, dtype: DType, target: Target) -> list[Tactic]:
        """Returns the likely fastest: by a program for each block of rows, or by several where such blocks are few and
        long. `across`: neighbours in memory are elements of different rows."""
        estimates = dict[Tactic, float]()
        m, n = optimum(rows), optimum(cols)
        for size, warps in ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (512, 2)):
            high = power_of_two(m, 1, 64 if across else max(1, size // power_of_two(n)))
            for rb in {high >> k for k in range(high.bit_length()) if not across or high >> k >= min(high, 8)}:
                cb = power_of_two(n, 1, max(1, size // rb))
                blocks, steps = ceil_div(m, rb), ceil_div(n, cb)
                for parts in {0, *(min(ceil_div(k * target.threads, blocks), steps // 2, MAX_PARTS) for k in (1, 2))}:
                    if parts < 2 and parts != 0 or parts and target.threads == 1:
                        continue
                    piece = (rb * cb if not across else max(rb, SECTOR // dtype.size) * cb) * dtype.size
                    joins = 2 * AWAY + NEAR + parts * rb * 4 / BYTES if parts else 0
                    estimate = (
                        waves(
                            blocks * max(1, parts),
                            ceil_div(steps, max(1, parts)),
                            rb * cb / LANES,
                            piece,
                            0,
                            64 * 32 * warps,
                            1,
                            0,
                            target,
                        )
                        + joins
                    )
                    estimates[
                        Tactic(self.name, target.isa, (("RB", rb), ("CB", cb), ("PARTS", parts), ("WARPS", warps)))
                    ] = estimate
        return sorted(estimates, key=lambda tactic: estimates[tactic])[:MAX_TACTICS]

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (int(tactic["PARTS"] > 0),)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, op = node.inputs[0], node.op.name
        there, grid = self.grids(region, layouts)
        rows, cols = (math.prod(there.shape[a] for a in axes) for axes in (there.r, there.c))
        reduces, least, dtype = op in KINDS, op == "arg_min", x.type.dtype
        whole = split_affine(region)[0] if op.endswith("_norm") else region
        if reduces:
            joins = KINDS[op]
        elif op.endswith("softmax") or op in REDUCES:
            joins = "min" if least else "max"
        else:
            joins = "sum"
        join, neutral = JOINED[joins]
        kind = "tl.uint8" if dtype is BOOL else register_type(dtype)
        epsilon = float(op == "reduce_mean") if reduces else node.attrs.get("epsilon", 0.0)
        if reduces:
            what = "reduce"
        else:
            what = "arg" if op in REDUCES else op
        block = (
            f"WHAT, EPSILON = tl.constexpr({what!r}),"
            f" tl.constexpr({epsilon!r})\nNEUTRAL, KIND = tl.constexpr({float_literal(neutral(dtype))}),"
            f" tl.constexpr({kind})\nLEAST, LAST = tl.constexpr({least}),"
            f" tl.constexpr({node.attrs.get('select_last_index', False)})\n\n\n"
            + emit_offset("x_at", there, layouts[x])
            + emit_join(join)
        )
        end = tail(whole, layouts, grid, (whole.anchor.output,), first=1)
        one = is_known(cols) and cols <= tactic["CB"]
        operands: tuple[Value | KernelWorkspace, ...] = (x, *end.operands)
        blocks, most = ceil_div(rows, tactic["RB"]), bounds(ceil_div(rows, tactic["RB"]))[1]
        # some runs may have too many to gain anything
        if most > MAX_COUNTED:
            tactic = Tactic(tactic.template, tactic.isa, tuple({**dict(tactic.params), "PARTS": 0}.items()))
        sizes, parts = (
            dict(ROWS=rows, COLS=cols, ONE=one, FOUND=len(operands), ARRIVED=len(operands) + 1),
            tactic["PARTS"],
        )
        if parts:
            held = {F16: F32, BF16: F32, BOOL: U8}.get(dtype, dtype)
            operands += KernelWorkspace((parts, rows), held), KernelWorkspace((most,), I32, zero=True)
        return kernel("rows.py", region, tactic, sizes, block + end.text, operands, blocks * max(1, parts), layouts)
