"""Decision trees, with packed nodes: each step reads one cache line."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, U8
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
        yield Tactic(
            self.name,
            target.isa,
            (("RB", max(8, min(_MAX_ROWS, ceil_div(ceil_div(rows, ceil_div(4 * target.threads, parts)), 8) * 8))),),
        )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        x, threshold, feature, child, depth, leaf, start, targets, weight = node.inputs
        table = {v: region.body.constants[v] for v in node.inputs[1:]}
        (xr, xf), (yp, yr, yt), (parts, rows, _) = layouts[x], layouts[node.output], node.output.type.shape
        leaves: tuple[Value | Packed, ...] = (leaf, start, targets, weight)
        of_tree = _target_of_tree(*(table[v] for v in (child, depth, leaf, start, targets)))
        # then a leaf's one weight lies in the node itself, on a line that is there already
        if of_tree is not None:
            leaves = (
                Packed(
                    (targets,),
                    "targets by tree",
                    of_tree.shape,
                    lambda out: np.copyto(out, of_tree),
                    I32,
                    has_indices=True,
                ),
            )
        kind = np.dtype(
            [
                ("threshold", x.type.dtype.numpy),
                ("feature", np.int32),
                ("child", np.int32),
                ("weight", weight.type.dtype.numpy, (int(of_tree is not None),)),
            ],
            align=True,
        )

        def pack(out: np.ndarray) -> None:
            packed = out.view(kind)
            packed["threshold"], packed["feature"], packed["child"] = table[threshold], table[feature], table[child]
            if of_tree is not None:
                packed["weight"][:, 0] = table[weight][np.minimum(table[start][table[leaf]], weight.type.size - 1)]

        nodes = Packed(
            tuple(node.inputs[1:]), "nodes", (threshold.type.size * kind.itemsize,), pack, U8, has_indices=True
        )
        join = node.attrs["join"]
        block = constants(
            ROWS=rows,
            TREES=depth.type.size,
            PARTS=parts,
            TARGETS=node.attrs["targets"],
            XR=xr,
            XF=xf,
            YP=yp,
            YR=yr,
            YT=yt,
            MISSING=bool((table[feature] < 0).any()),
            SINGLE=of_tree is not None,
        )
        block += f"typedef {memory_type(x.type.dtype)} element;\ntypedef {memory_type(weight.type.dtype)} value;\n"
        block += f"#define START {number(initial_value(join), weight.type.dtype)}\n#define JOIN(a, b) {_JOINS[join]}\n"
        return kernel(
            "trees.c",
            region,
            tactic,
            block,
            (x, nodes, depth, *leaves, node.output),
            parts * ceil_div(rows, tactic["RB"]),
        )


def _target_of_tree(
    child: np.ndarray, depth: np.ndarray, leaf: np.ndarray, start: np.ndarray, target: np.ndarray
) -> np.ndarray | None:
    """The target of each tree if every leaf has one weight, all of a tree for the same target; else None."""
    found = np.full(depth.size, -1, np.int32)
    at = tree = np.arange(depth.size)
    for _ in range(int(depth.max(initial=0)) + 1):
        ends = child[at] == at - 1
        held, of = leaf[at[ends]], tree[ends]
        # a node may have many parents: give up, instead of following every path
        if at.size > child.size or (start[held + 1] - start[held] != 1).any():
            return None
        targets = target[start[held]]
        found[of[found[of] < 0]] = targets[found[of] < 0]
        if (found[of] != targets).any():
            return None
        at, tree = np.concatenate([child[at[~ends]], child[at[~ends]] + 1]), np.tile(tree[~ends], 2)
    return found


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
    """Whether every index in the tables of trees is within bounds."""
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
