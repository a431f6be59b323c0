"""Decision trees, with packed nodes: each step reads one cache line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, U8, DType
from pelton.ops.trees import initial_value
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, number, memory_type
from pelton.codegen.grid import is_constant, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template

_MAX_ROWS = 128  # of a tile: with thirty features each, and a tree of a thousand nodes, they about fill L1
_JOINS = {"sum": "((a) + (b))", "min": "((b) < (a) ? (b) : (a))", "max": "((b) > (a) ? (b) : (a))"}


@template
class Trees(Template):
    name = "trees"
    anchors = ("trees",)
    without_tail = True
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if not all(is_constant(region, v) for v in node.inputs[1:]):
            return "the trees are not constant"
        if node.inputs[0].type.dtype not in (F32, F64) or node.inputs[-1].type.dtype not in (F32, F64):
            return "not f32 or f64"
        tables = [region.body.constants[v] for v in node.inputs[1:]]
        return (
            None
            if is_valid(*tables, features=node.inputs[0].type.shape[1], targets=node.attrs["targets"])
            else "an index in its tables is out of bounds"
        )

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return True

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        parts, rows, _ = region.output.type.shape
        if _Chains.of(region) is None:
            block = ceil_div(ceil_div(rows, ceil_div(4 * target.threads, parts)), 8) * 8
            yield Tactic(self.name, target.isa, (("RB", max(8, min(_MAX_ROWS, block))),))
        else:
            # 8 divide the few walks of a single row better, 16 hide more latency; 12 took 1.3 times as long as either
            for walks in (16, 8):
                yield Tactic(self.name, target.isa, (("WALKS", walks),))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, threshold, feature, child, depth, leaf, start, targets, weight = node.inputs
        table = {v: region.body.constants[v] for v in node.inputs[1:]}
        (xr, xf), (yp, yr, yt), (parts, rows, _) = layouts[x], layouts[node.output], node.output.type.shape
        chains, join = _Chains.of(region), node.attrs["join"]
        start_value = initial_value(join)
        fields = [("threshold", x.type.dtype.numpy), ("feature", np.int32), ("child", np.int32)]
        if chains is not None:
            fields.append(("weight", weight.type.dtype.numpy))
        kind, slots = np.dtype(fields, align=True), threshold.type.size

        def pack(out: np.ndarray) -> None:
            packed = out.view(kind)
            packed["threshold"][:slots] = table[threshold]
            packed["feature"][:slots] = table[feature] if chains is None else chains.feature
            packed["child"][:slots] = table[child] if chains is None else chains.child
            if chains is not None:
                packed["weight"] = start_value
                packed["weight"][chains.leaves] = table[weight][table[start][table[leaf][chains.leaves]]]
                packed[slots] = (np.nan, 0, slots - 1, start_value)

        nodes = Packed(
            tuple(node.inputs[1:]),
            "nodes",
            ((slots + (chains is not None)) * kind.itemsize,),
            pack,
            U8,
            has_indices=True,
        )
        block = constants(
            ROWS=rows,
            TARGETS=node.attrs["targets"],
            XR=xr,
            XF=xf,
            YP=yp,
            YR=yr,
            YT=yt,
            MISSING=bool((table[feature] < 0).any()),
            **(
                dict(TREES=depth.type.size, PARTS=parts)
                if chains is None
                else dict(FEATURES=x.type.shape[1], CHAINS=chains.first.size)
            ),
        )
        block += f"typedef {memory_type(x.type.dtype)} element;\ntypedef {memory_type(weight.type.dtype)} value;\n"
        block += f"#define START {number(start_value, weight.type.dtype)}\n#define JOIN(a, b) {_JOINS[join]}\n"
        if chains is None:
            operands = (x, nodes, depth, leaf, start, targets, weight, node.output)
            tiles = parts * ceil_div(rows, tactic["RB"])
            return kernel("trees.c", region, tactic, block, operands, tiles)

        def table_of(form: str, array: np.ndarray, dtype: DType) -> Packed:
            tables = tuple(node.inputs[1:])
            return Packed(tables, form, array.shape, lambda out: np.copyto(out, array), dtype, has_indices=True)

        first = table_of("first slots of chains", chains.first, I32)
        missing = table_of("decision for NaN", chains.missing, U8)
        tiles = ceil_div(chains.first.size * rows, tactic["WALKS"])
        return kernel("tree_chains.c", region, tactic, block, (x, nodes, first, missing, node.output), tiles)


@dataclass(frozen=True)
class _Chains:
    """The trees of each part and target as one chain, whose last leaves lead to a slot after all others."""

    first: np.ndarray  # i32[parts · targets]: where each chain begins
    child: np.ndarray  # i32[slots]: as the operator's, but leaves lead to the slot before the next root
    feature: np.ndarray  # i32[slots]
    missing: np.ndarray  # u8[slots + 1]: true where NaN leads to the child
    leaves: np.ndarray  # the slots of leaves

    @staticmethod
    def of(region: Region) -> _Chains | None:
        """Returns None unless every leaf has one weight, and all leaves of a tree one target."""
        node = region.anchor
        feature, child, depth, leaf, start, target, _ = (region.body.constants[v] for v in node.inputs[2:])
        parts, targets, trees = node.output.type.shape[0], node.attrs["targets"], depth.size
        tree = np.full(child.size, -1)  # of each slot
        of_tree = np.full(trees, -1)  # the target of each tree
        at, of = np.arange(trees), np.arange(trees)
        ends = []
        while at.size:
            if (tree[at] >= 0).any() or np.unique(at).size != at.size:
                return None  # a node with two parents
            tree[at] = of
            is_end = child[at] == at - 1
            held, owner = leaf[at[is_end]], of[is_end]
            if (start[held + 1] - start[held] != 1).any():
                return None
            targets_here = target[start[held]]
            unset = of_tree[owner] < 0
            of_tree[owner[unset]] = targets_here[unset]
            if (of_tree[owner] != targets_here).any():
                return None
            ends.append(at[is_end])
            at, of = np.concatenate([child[at[~is_end]], child[at[~is_end]] + 1]), np.tile(of[~is_end], 2)
        leaves = np.concatenate(ends)
        first = np.full(parts * targets, child.size, np.int32)
        following = np.full(trees, child.size)
        chain = np.arange(trees) // -(-trees // parts) * targets + of_tree
        for t in range(trees - 1, -1, -1):
            following[t], first[chain[t]] = first[chain[t]], t
        linked = child.astype(np.int32)
        linked[leaves] = following[tree[leaves]] - 1
        missing = np.append(feature < 0, False).astype(np.uint8)
        return _Chains(first, linked, np.where(feature < 0, ~feature, feature), missing, leaves)


def is_valid(
    threshold: np.ndarray,
    feature: np.ndarray,
    child: np.ndarray,
    depth: np.ndarray,
    leaf: np.ndarray,
    start: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    *,
    features: int,
    targets: int,
) -> bool:
    """True if every index in the tables of trees is within bounds."""
    slots, column = threshold.size, np.where(feature < 0, ~feature, feature)
    return bool(
        depth.size <= slots
        and (column < features).all()
        and (child >= -1).all()
        and (child < slots - 1).all()
        and (leaf >= 0).all()
        and (leaf < start.size - 1).all()
        and start[0] >= 0
        and (np.diff(start) >= 0).all()
        and start[-1] <= weight.size
        and (target >= 0).all()
        and (target < targets).all()
    )
