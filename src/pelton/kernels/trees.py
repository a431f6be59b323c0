"""Decision trees, their nodes packed so that one step reads one place."""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, U8
from pelton.ops.trees import of_nothing
from pelton.plan.region import Region

from .emit import constants, kernel, literal, memory
from .grid import constant, divide
from .template import Kernel, Layouts, Packed, Tactic, Target, Template, template

_MOST = 128                                    # rows of a tile: with thirty features each they and a tree of a thousand nodes are about what L1 holds
_JOINS = {"sum": "((a) + (b))", "min": "((b) < (a) ? (b) : (a))", "max": "((b) > (a) ? (b) : (a))"}


def pack_nodes(threshold: np.ndarray, feature: np.ndarray, child: np.ndarray, out: np.ndarray) -> None:
    """The nodes as the kernel's structs, in bytes."""
    nodes = out.view(np.dtype([("threshold", threshold.dtype), ("feature", np.int32), ("child", np.int32)]))
    nodes["threshold"], nodes["feature"], nodes["child"] = threshold, feature, child


@template
class Trees(Template):
    name = "trees"
    anchors = ("trees",)
    alone = True
    dynamic = True

    def refuses_node(self, region: Region) -> str | None:
        node = region.anchor
        if not all(constant(region, v) for v in node.inputs[1:]):
            return "the trees are not constant"
        if node.inputs[0].type.dtype not in (F32, F64) or node.inputs[-1].type.dtype not in (F32, F64):
            return "not f32 or f64"
        tables = [region.body.constants[v] for v in node.inputs[1:]]
        return None if sound(*tables, features=node.inputs[0].type.shape[1], targets=node.attrs["targets"]) else "its tables lead out of themselves"

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        rows = region.output.type.shape[0]
        yield Tactic(self.name, target.isa, (("RB", max(8, min(_MOST, divide(divide(rows, 4 * target.threads), 8) * 8))),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, threshold, feature, child, depth, leaf, start, targets, weight = node.inputs
        table = {v: region.body.constants[v] for v in node.inputs[1:]}
        (xr, xf), (yr, yt), rows = layouts[x], layouts[node.output], x.type.shape[0]
        single = node.attrs["targets"] == 1 and bool((np.diff(table[start]) == 1).all())
        nodes = Packed((threshold, feature, child), "nodes", (threshold.type.size * (x.type.dtype.size + 8),),
                       lambda out: pack_nodes(table[threshold], table[feature], table[child], out), U8)
        dtype = weight.type.dtype
        leaves: tuple[Value | Packed, ...] = (leaf, start, targets, weight)
        if single:
            leaves = (Packed((leaf, weight), "weights by slot", (leaf.type.size,), lambda out: np.take(table[weight], table[leaf], out=out), dtype),)
        join = node.attrs["join"]
        block = constants(ROWS=rows, TREES=depth.type.size, TARGETS=node.attrs["targets"], XR=xr, XF=xf, YR=yr, YT=yt,
                          MISSING=bool((table[feature] < 0).any()), SINGLE=single)
        block += f"typedef {memory(x.type.dtype)} element;\ntypedef {memory(dtype)} value;\n"
        block += f"#define START {literal(of_nothing(join), dtype).partition('(')[2][:-1]}\n#define JOIN(a, b) {_JOINS[join]}\n"
        return kernel("trees.c", region, tactic, block, (x, nodes, depth, *leaves, node.output), divide(rows, tactic["RB"]))


def sound(threshold: np.ndarray, feature: np.ndarray, child: np.ndarray, depth: np.ndarray, leaf: np.ndarray, start: np.ndarray, target: np.ndarray,
          weight: np.ndarray, *, features: int, targets: int) -> bool:
    """Whether every number in the tables of trees points to a place that there is."""
    slots, column = threshold.size, np.where(feature < 0, ~feature, feature)
    return bool(depth.size <= slots and (column < features).all() and (child >= -1).all() and (child < slots - 1).all()
                and (leaf >= 0).all() and (leaf < start.size - 1).all() and start[0] >= 0 and (np.diff(start) >= 0).all() and start[-1] <= weight.size
                and (target >= 0).all() and (target < targets).all())
