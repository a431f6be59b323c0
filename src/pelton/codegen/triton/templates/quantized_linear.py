"""Products with weights of few bits, which stay bytes in memory: by tiles, or as sums of few rows.

Bytes of a row of weights lie in groups of 16, which one thread loads at once. Byte i of a group holds the numbers
i, i + 16, … of the row's next ones, so that each run of 16 numbers meets adjacent elements of x, and one scale.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from pelton.ir.dims import Size, bounds, minimum
from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, U8
from pelton.codegen.grid import ceil_div, is_constant, tail_rejection
from pelton.codegen.template import Kernel, Packed, Tactic, Target, gpu_template
from pelton.ops.quantize import unpacked
from pelton.plan.layout import Layouts
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.cost import cycles
from pelton.codegen.triton.emit import kernel, nodes_rejection, tail
from .few import MAX_SKINNY_ROWS
from .pointwise import power_of_two
from .product import (
    STEPS,
    TensorCoreTemplate,
    keep_likely,
    offsets_a,
    product,
    stream_counts,
    tf32_rounding,
    tiles,
    workspaces,
)

RUN = 16  # numbers, and bytes of a group
FLOATS = (F32, F16, BF16)


class FewBits:
    """The weights of a region as its kernels read them."""

    def __init__(self, region: Region, layouts: Layouts):
        node = region.anchor
        self.x, self.codes, self.scale, *zeros = node.inputs
        self.bits, self.inner = node.attrs["bits"], self.x.type.shape[-1]
        self.held = 8 // self.bits
        self.length = ceil_div(self.inner, RUN * self.held)  # groups of a row
        self.array = region.body.constants[self.codes]
        many = self.scale.type.shape[1] > 1
        self.block = node.attrs["block"] if many else self.length * RUN * self.held
        self.operands: tuple[Value | Packed, ...] = (self.x, self._packed(), self.scale, *zeros)
        zero_steps = layouts[zeros[0]] if zeros else (0, 0)
        self.sizes: dict[str, Size] = dict(
            K=self.inner,
            BITS=self.bits,
            HELD=self.held,
            LENGTH=self.length,
            BLOCK=self.block,
            ALIKE=gcd(self.block // RUN, self.held),
            SCALE_ROW=layouts[self.scale][0],
            SCALE_STEP=layouts[self.scale][1],
            ZEROS=bool(zeros),
            ZERO_ROW=zero_steps[0],
            ZERO_STEP=zero_steps[1],
        )

    def _packed(self) -> Packed:
        return Packed((self.codes,), f"runs{self.bits}", (len(self.array), self.length * RUN), self._fill, U8)

    def _fill(self, out: np.ndarray) -> None:
        if self.held == 1:
            out[:, : self.inner] = self.array
            return
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)[:, None]
        for i, row in enumerate(self.array):  # one by one: apart, numbers take as many bytes
            apart = np.zeros(self.length * RUN * self.held, np.uint8)
            apart[: self.inner] = unpacked(row, self.bits, self.inner)
            out[i] = np.bitwise_or.reduce(apart.reshape(self.length, self.held, RUN) << shifts, axis=1).reshape(-1)


class FewBitsTemplate(TensorCoreTemplate):
    """Base of products with constant weights of few bits."""

    anchors = ("quantized_linear",)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, weights, scale, *zeros = node.inputs
        if x.type.dtype not in FLOATS:
            return "not in one of f32, f16 and bf16"
        if x.type.rank < 2:
            return "the operand is a vector"
        if not is_constant(region, weights):
            return "the weights are not constant"
        if scale.type.dtype not in FLOATS or any(z.type.dtype not in (*FLOATS, U8) for z in zeros):
            return "scales or zero points that are neither f32, f16 nor bf16"
        if node.attrs["block"] % RUN and scale.type.shape[1] > 1:
            return f"blocks of {node.attrs['block']} elements, no multiple of {RUN}"
        return (
            self.sizes_rejection(region)
            or tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)
            or nodes_rejection(region.tail)
        )


@gpu_template
class TritonFewBitsOfFewRows(FewBitsTemplate):
    """Few rows: all weights are read once, and summed without tensor cores."""

    name = "quantized_few"

    def sizes_rejection(self, region: Region) -> str | None:
        many = bounds(product(region)[3])[1] > MAX_SKINNY_ROWS
        return f"more than {MAX_SKINNY_ROWS} rows" if many else None

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        rows, length, seen = power_of_two(m), FewBits(region, layouts).length, set()
        # one in a chain, which should have as few tiles as possible
        programs = 4 * target.threads if target.threads > 1 else 1
        for size, warps in ((8192, 8), (4096, 4), (2048, 4), (16384, 8)):  # bytes of a step, for each row
            groups = size // rows // RUN
            bn = power_of_two(ceil_div(p.n * batch, programs), 1, max(16, groups // power_of_two(length)))
            # two steps at least: a single one is not loaded ahead (K = 4096 in 2 bits took 73 barriers)
            groups = power_of_two(ceil_div(length, 2), 1, max(1, groups // bn))
            # a thread loads a group; only parts of chains need as many threads as the others have
            warps = min(warps, max(1, bn * groups // 32)) if target.threads > 1 else warps
            if (bn, groups, warps) not in seen:
                seen.add((bn, groups, warps))
                params = ("ROWS", rows), ("BN", bn), ("GROUPS", groups), ("AHEAD", 3), ("WARPS", warps)
                yield Tactic(self.name, target.isa, params)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["BN"],)

    def is_exact(self, tactic: Tactic) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        weights, (left, ak) = FewBits(region, layouts), offsets_a(p, grid, layouts)
        # chosen for the usual number of rows, and emitted for the most that a run may have
        params = {**dict(tactic.params), "ROWS": power_of_two(bounds(m)[1])}
        end = tail(region, layouts, grid, (p.node.output,), first=len(weights.operands))
        sizes = dict(M=m, N=p.n, AK=ak, **weights.sizes)
        tactic = Tactic(tactic.template, tactic.isa, tuple(params.items()))
        operands: tuple[Value | Packed, ...] = (*weights.operands, *end.operands)
        programs = batch * ceil_div(p.n, tactic["BN"])
        return kernel("quantized_few.py", region, tactic, sizes, left + end.text, operands, programs, layouts)


@gpu_template
class TritonFewBits(FewBitsTemplate):
    """Tiles of rows and columns, for which threads unpack the weights that tensor cores multiply."""

    name = "quantized_linear"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        size, weights, estimates = p.a.type.dtype.size, FewBits(region, layouts), []
        least = RUN * weights.held  # numbers of a group, as a step has at least
        steps = tuple(sorted({max(least, bk) for bk in STEPS[size]}, key=lambda bk: abs(bk - 64)))
        for t in tiles(self.name, p.k, p.k, size, target, steps):
            count = batch * ceil_div(m, t["BM"]) * ceil_div(p.n, t["BN"])
            ways = [
                Tactic(t.template, t.isa, (*t.params, ("STREAM", n)))
                for n in (0, *stream_counts(count, ceil_div(p.k, t["BK"]), target))
            ]
            estimates += keep_likely([(cycles(w, count, p.k, size, False, target, weights.bits), w) for w in ways])
        yield from (t for _, t in sorted(estimates, key=lambda pair: pair[0]))

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return *super().family(tactic), int(tactic["STREAM"] > 0)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        weights, (left, ak) = FewBits(region, layouts), offsets_a(p, grid, layouts)
        end = tail(region, layouts, grid, (p.node.output,), first=len(weights.operands))
        operands: tuple[Value | Packed | KernelWorkspace, ...] = (*weights.operands, *end.operands)
        sizes = dict(
            BATCH=batch,
            M=m,
            N=p.n,
            AK=ak,
            EVEN=p.k % tactic["BK"] == 0,
            SUMS=len(operands),
            ARRIVED=len(operands) + 1,
            ROUND_A=tf32_rounding(region, tactic, p.a, p.b)["ROUND_A"],
            **weights.sizes,
        )
        programs = count = batch * ceil_div(m, tactic["BM"]) * ceil_div(p.n, tactic["BN"])
        if tactic["STREAM"]:
            operands += workspaces(tactic)
            programs = minimum(count * ceil_div(p.k, tactic["BK"]), tactic["STREAM"])
        return kernel("quantized_linear.py", region, tactic, sizes, left + end.text, operands, programs, layouts)
