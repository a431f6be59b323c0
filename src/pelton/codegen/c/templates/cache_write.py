"""Writes of rows into a cache of attention, position by position."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I32, I64
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type
from pelton.codegen.code import code
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

CHUNK_BYTES = 64 << 10  # of a tile


@template
class CacheWrite(Template):
    name = "cache_write"
    anchors = ("cache_write",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        cache, _, *places = region.anchor.inputs
        if any(v.type.dtype not in (I32, I64) for v in places) or places[0].type.dtype is not places[1].type.dtype:
            return "positions in other types than i32 and i64"
        if not is_known(cache.type.shape[3]):
            return "the depth is dynamic"
        return None if cache.type.dtype.size <= 8 else f"{cache.type.dtype.value} is no type that kernels copy"

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        cache, rows, *_ = region.anchor.inputs
        return value not in (cache, rows, region.output) or value.type.shape[3] == 1 or layouts[value][3] == 1

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        cache = region.anchor.inputs[0].type
        yield Tactic(self.name, target.isa, (("CHUNK", max(1, CHUNK_BYTES // (cache.dtype.size * cache.shape[3]))),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, y = region.anchor, region.output
        cache, rows, begin, end = node.inputs
        batch, heads, capacity, depth = cache.type.shape
        length = y.type.shape[2]
        block = constants(
            BATCH=batch,
            HEADS=heads,
            C=capacity,
            R=rows.type.shape[2],
            L=length,
            D=depth,
            KEEP=node.attrs["keep"],
            XR=layouts[cache][2],
            UR=layouts[rows][2],
            YR=layouts[y][2],
        )
        for name, v in (("X", cache), ("U", rows), ("Y", y)):
            block += macro(f"{name}_AT(b, h)", code("((b) * {} + (h) * {})", layouts[v][0], layouts[v][1]))
        for name, v in (("BEGIN", begin), ("END", end)):
            block += macro(f"{name}_AT(b)", code("((b) * {})", layouts[v][0]))
        stored = cache.type.dtype.size
        block += code(f"typedef {memory_type(begin.type.dtype)} place;\ntypedef u{8 * stored} element;\n")
        tiles = batch * heads * ceil_div(length, tactic["CHUNK"])
        return kernel("cache_write.c", region, tactic, block, (cache, rows, begin, end, y), tiles)
