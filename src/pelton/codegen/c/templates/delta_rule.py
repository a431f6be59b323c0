"""Linear attention: a state for each sequence and head, which tokens update and read one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, I32, I64
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type
from pelton.codegen.code import code
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, Template, template

MAX_WIDTH = 128  # columns of a tile, whose changes lie on the stack


@template
class DeltaRule(Template):
    name = "delta_rule"
    anchors = ("delta_rule",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        *floats, of = region.anchor.inputs
        if any(v.type.dtype is not F32 for v in floats):
            return "not f32"
        if of.type.dtype not in (I32, I64):
            return "sequences in other types than i32 and i64"
        q, state = floats[0], floats[5]
        return None if is_known(*q.type.shape[1:], *state.type.shape[1:]) else "the number or depth of heads is dynamic"

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return value is region.anchor.inputs[6] or value.type.shape[-1] == 1 or layouts[value][-1] == 1

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        values = region.anchor.inputs[2].type.shape[2]
        widths = (MAX_WIDTH, 4 * target.lanes, 2 * target.lanes, target.lanes)
        for width in dict.fromkeys(min(values, width) for width in widths):
            yield Tactic(self.name, target.isa, (("WIDTH", max(1, width)),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, written = region.anchor, region.body.outputs
        q, k, v, decay, beta, state, of = node.inputs
        y, ends, changes = node.outputs
        tokens, heads, queries, keys = q.type.shape
        batch, _, _, values = state.type.shape
        block = constants(
            TOKENS=tokens,
            BATCH=batch,
            HEADS=heads,
            Q=queries,
            K=keys,
            V=values,
            DECAYS=decay.type.shape[2],
            RETRIEVE=node.attrs["retrieve"],
            ENDS=ends in written,
            YS=y in written,
            CHANGES=changes in written,
            Q_ROW=layouts[q][2],
            S_ROW=layouts[state][2],
            E_ROW=layouts[ends][2] if ends in written else 0,
            Y_ROW=layouts[y][2] if y in written else 0,
        )
        places = dict(Q=q, K=k, V=v, DECAY=decay, BETA=beta, S=state, E=ends, Y=y, D=changes)
        for name, value in places.items():
            if value in node.inputs or value in written:
                block += macro(f"{name}_AT(i, h)", code("((i) * {} + (h) * {})", *layouts[value][:2]))
            else:
                block += macro(f"{name}_AT(i, h)", code("0"))
        block += macro("OF_AT(t)", code("((t) * {})", layouts[of][0]))
        block += code(f"typedef {memory_type(of.type.dtype)} place;\n")
        # the state behind the tokens is always argument 7 (`compiler/in_place.py`)
        results = (ends if ends in written else state, *(r for r in (y, changes) if r in written))
        tiles = batch * heads * ceil_div(values, tactic["WIDTH"])
        scratch = 0 if ends in written else 4 * keys * tactic["WIDTH"]
        return kernel("delta_rule.c", region, tactic, block, (*node.inputs, *results), tiles, scratch=scratch)
