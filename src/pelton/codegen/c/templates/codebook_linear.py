"""Products with weights of four bits that number the entries of a table, which kernels pick in registers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.code import code
from pelton.codegen.grid import ceil_div
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

from .gemm import rows_of_a
from .quantized_linear import VECTORS, PanelProduct, Panels


@template
class CodebookLinear(PanelProduct):
    """Rows stay f32: entries of a table are no integers, so that digits of 8 bits would not multiply them exactly."""

    name = "codebook_linear"
    anchors = ("codebook_linear",)

    def node_rejection(self, region: Region) -> str | None:
        if not np.isfinite(_table(region.anchor)).all():
            return "entries of the table that are no numbers of f32"
        return super().node_rejection(region)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["MR"],)

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterator[Tactic]:
        p, seen = MatrixProduct(region, layouts), set()
        columns = ceil_div(p.n, VECTORS * target.lanes)
        for high in (8, 6, 4) if target.registers >= 32 else (4, 2):
            mr = min(high, p.m)
            for block in (48, p.m):
                mb = min(ceil_div(block, mr), ceil_div(p.m, mr)) * mr
                blocks = ceil_div(p.m, mb) * p.batch
                for shares in (target.threads, 6 * target.threads):
                    nb = max(1, ceil_div(columns, ceil_div(shares, blocks))) * VECTORS * target.lanes
                    if (mr, mb, nb) not in seen:
                        seen.add((mr, mb, nb))
                        yield Tactic(self.name, target.isa, (("MR", mr), ("NV", VECTORS), ("MB", mb), ("NB", nb)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, panels = MatrixProduct(region, layouts), Panels(region, tactic["NV"] * target.lanes, exact=True)
        step, start = rows_of_a(p, layouts)
        end = tail(region, layouts, p.grid, (p.node.output,), first=2, unit=target.lanes)
        block = constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=step, BLOCK=panels.block)
        block += constants(SCALES=panels.scales_at, RECORD=panels.record)
        stored = memory_type(panels.scale)
        block += code(f"typedef {stored} scale;\n#define LOAD_SCALE ld_{stored}\n")
        block += code(f"#define TABLE {', '.join(f'{x!r}f' for x in _table(p.node))}\n")
        block += macro("A_AT(b)", start) + end.text
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(p.n, tactic["NB"])
        operands: tuple[Value | Packed, ...] = (p.a, panels.packed(), *end.operands)
        return kernel("codebook_linear.c", region, tactic, block, operands, tiles)


def _table(node: Node) -> list[float]:
    with np.errstate(over="ignore"):
        return [float(x) for x in np.array(node.attrs["table"], np.float32)]
