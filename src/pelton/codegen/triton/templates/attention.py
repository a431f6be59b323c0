"""Attention as one kernel that reads and writes heads in place."""

from __future__ import annotations

from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32
from pelton.codegen.c.templates import attention
from pelton.codegen.c.templates.attention import Heads
from pelton.codegen.code import Text, code
from pelton.codegen.grid import Grid, ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts, broadcast
from pelton.plan.region import Region

from pelton.codegen.triton.emit import address, function, kernel, emit_offset, tail, coordinate_mask, nodes_rejection
from .pointwise import power_of_two
from .product import TF32, precisions
from pelton.codegen.triton.cost import BYTES, STEP, products, waves

TILES = (
    (128, 128, 8, 2),
    (128, 64, 8, 3),
    (128, 64, 4, 3),
    (128, 32, 8, 3),
    (64, 128, 4, 2),
    (64, 64, 4, 3),
    (64, 32, 4, 3),
    (64, 64, 8, 2),
    (64, 32, 8, 2),
    # queries, keys, warps, stages
    (32, 64, 4, 3),
    (32, 32, 4, 3),
    (16, 128, 4, 3),
    (16, 64, 4, 3),
    (16, 32, 4, 2),
)
OTHERS = 0.08  # cycles per score of the units besides the tensor cores
WIDEST = 512  # results per query that registers hold


@gpu_template
class TritonAttention(attention.Attention):
    name = "attention"
    anchors = ("attention",)
    types = (F32, F16, BF16)

    def node_rejection(self, region: Region) -> str | None:
        h = Heads(region)
        widest = WIDEST // (2 if self.wide(h) else 1)
        return (
            super().node_rejection(region)
            or nodes_rejection(region.tail)
            or (f"heads of more than {WIDEST}" if max(h.d, h.dv) > widest else None)
        )

    def wide(self, h: Heads) -> bool:
        return h.q.type.dtype is F32

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        h, shape = Heads(region), value.type.shape
        return (
            value not in (h.q, h.k, h.v)
            or shape[-2:] == (1, 1)
            or 1 in [s for s, d in zip(layouts[value][-2:], shape[-2:]) if d != 1]
        )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["BM"], tactic["BN"]

    def is_exact(self, tactic: Tactic) -> bool:
        return tactic["PRECISION"] == 0

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        h, estimates = Heads(region), list[tuple[float, Tactic]]()
        d, dv = (power_of_two(x, 16) for x in (h.d, h.dv))
        for bm, bn, warps, stages in TILES:
            threads, each, most = (32 * warps, 4, 100) if self.wide(h) else (32 * warps, 2, 200)
            room = (bn * stages * (d + dv) + bm * d) * each
            if bm > power_of_two(h.sq, 16) or bn > power_of_two(h.sk, 32) or self.wide(h) and warps == 8 and bm < 128:
                continue
            if bm * (dv + bn + (bn + d) * each // 4) > threads * most or room > 160 << 10:
                # past registers (measured by compiling for both generations), or shared memory
                continue
            held = threads * min(255, 48 + bm * (bn + dv) // threads)
            for precision in precisions(each, target):
                busy = bm * bn * ((d + dv) / products(bm, target, each, precision) + OTHERS) + STEP
                takes = waves(
                    h.batch * ceil_div(h.sq, bm),
                    ceil_div(h.sk, bn),
                    busy,
                    bn * (d + dv) * each,
                    room,
                    held,
                    stages - 1,
                    bm * dv * each / BYTES,
                    target,
                )
                estimates.append(
                    (
                        takes,
                        Tactic(
                            self.name,
                            target.isa,
                            (("BM", bm), ("BN", bn), ("WARPS", warps), ("STAGES", stages), ("PRECISION", precision)),
                        ),
                    )
                )
        yield from (t for _, t in sorted(estimates, key=lambda pair: pair[0]))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        h = Heads(region)
        settings = (h.node.attrs["scale"], h.node.attrs["causal"], h.masked, tactic["PRECISION"] == TF32)
        block: Text = f"SCALE, CAUSAL, MASKED, ROUND = (tl.constexpr(x) for x in {settings!r})\n\n\n"
        for name, v in (("q_at", h.q), ("k_at", h.k), ("v_at", h.v)):
            shape = (*h.lead, *v.type.shape[-2:])
            block += emit_offset(
                name, Grid(shape, h.grid.b, h.grid.r, h.grid.c), broadcast(v.type.shape, layouts[v], shape)
            )
        if h.masked:
            strides = broadcast(h.mask.type.shape, layouts[h.mask], h.scores.shape)
            mask = coordinate_mask(h.scores.varying(strides))
            known = f", mask={mask}, other=0" if mask else ""
            load = code("return tl.load(a[3] + ({}){}).to(tl.float32)", address(h.scores, strides), known)
            block += function("mask_at", "b, r, c, rows, cols, a", load)
        operands = h.operands
        end = tail(region, layouts, h.grid, (h.node.output,), first=len(operands))
        sizes = dict(SQ=h.sq, SK=h.sk, D=h.d, DV=h.dv, WIDE=power_of_two(h.d, 16), WIDE_V=power_of_two(h.dv, 16))
        return kernel(
            "attention.py",
            region,
            tactic,
            sizes,
            block + end.text,
            (*operands, *end.operands),
            h.batch * ceil_div(h.sq, tactic["BM"]),
            layouts,
        )
