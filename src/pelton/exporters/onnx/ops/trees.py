"""Writers of decision trees as TreeEnsembleRegressor of ai.onnx.ml, whose leaves have any number of targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from pelton.ir.types import F32, F64
from pelton.ops.trees import initial_value

from ..schemas import Unwritable
from ..writing import Writing, writes

ML, VERSION = "ai.onnx.ml", 4  # the last version before its replacement
_MODES = ("BRANCH_LEQ", "LEAF")


@writes("trees")
def trees(w: Writing) -> str:
    """Writes one node per part, and stacks their sums or extremes."""
    tables = [w.known(i) for i in range(1, 9)]
    if any(t is None for t in tables) or w.type(8).dtype is not F32:
        raise w.refuse("trees need tables that are constants, and weights in f32")
    count, parts = w.type(4).shape[0], w.attrs["parts"]
    each = -(-count // parts)
    if any(k * each >= count for k in range(parts)):
        raise w.refuse("a part without trees has no operator")
    w.model.opsets.setdefault(ML, VERSION)
    made = [
        _part(w, [np.asarray(t) for t in tables], range(k * each, min(count, (k + 1) * each))) for k in range(parts)
    ]
    apart = [w.emit("Unsqueeze", y, w.constant([0])) for y in made]
    return apart[0] if parts == 1 else w.emit("Concat", *apart, axis=0)


def _reachable(root: int, child: np.ndarray, is_leaf: np.ndarray) -> list[int]:
    """Returns the slots of a tree, its root first."""
    slots, waiting = {root: None}, [root]
    while waiting:
        slot = waiting.pop()
        for inner in () if is_leaf[slot] else (int(child[slot]), int(child[slot]) + 1):
            if inner not in slots:
                slots[inner] = None
                waiting.append(inner)
    return list(slots)


def _part(w: Writing, tables: Sequence[np.ndarray], roots: range) -> str:
    """Writes the sum, or an extreme, of some trees; numbers their nodes tree by tree."""
    threshold, feature, child, _, leaf, start, target, weight = tables
    is_leaf = np.isnan(threshold) & (child == np.arange(child.size) - 1)
    slots = [_reachable(root, child, is_leaf) for root in roots]
    place = [{slot: i for i, slot in enumerate(nodes)} for nodes in slots]
    at = np.array([slot for nodes in slots for slot in nodes])
    ends = [
        (tree, i, entry)
        for tree, nodes in enumerate(slots)
        for i, slot in enumerate(nodes)
        if is_leaf[slot]
        for entry in range(start[leaf[slot]], start[leaf[slot] + 1])
    ]
    if not ends:
        raise Unwritable("trees without a weight have no operator")
    tree_of, node_of, entries = map(list, zip(*ends))

    def next_nodes(offset: int) -> list[int]:
        return [0 if is_leaf[s] else place[t][int(child[s]) + offset] for t, nodes in enumerate(slots) for s in nodes]

    leaves = is_leaf[at]
    values, weights = np.where(leaves, 0, threshold[at]), weight[entries]
    attrs: dict[str, Any] = dict(
        nodes_treeids=[tree for tree, nodes in enumerate(slots) for _ in nodes],
        nodes_nodeids=[i for nodes in slots for i in range(len(nodes))],
        nodes_featureids=np.where(leaves, 0, np.where(feature[at] < 0, ~feature[at], feature[at])).tolist(),
        nodes_modes=[_MODES[k] for k in leaves.astype(int)],
        nodes_truenodeids=next_nodes(0),
        nodes_falsenodeids=next_nodes(1),
        nodes_missing_value_tracks_true=(~leaves & (feature[at] < 0)).astype(int).tolist(),
        target_treeids=tree_of,
        target_nodeids=node_of,
        target_ids=target[entries].tolist(),
        n_targets=w.attrs["targets"],
        aggregate_function=w.attrs["join"].upper(),
    )
    if w.type(0).dtype is F64:
        attrs["nodes_values_as_tensor"] = onnx.numpy_helper.from_array(values)
        attrs["target_weights_as_tensor"] = onnx.numpy_helper.from_array(weights.astype(np.float64))
    else:
        attrs |= dict(nodes_values=values.tolist(), target_weights=weights.tolist())
    (y,) = w.emit_all("TreeEnsembleRegressor", [w.input(0)], [F32], domain=ML, **attrs)
    if w.attrs["join"] == "sum" or len(entries) >= np.count_nonzero(leaves) * w.attrs["targets"]:
        return y
    # ONNX returns 0 where no leaf has a weight
    ones = {k: _ones(v) for k, v in attrs.items() if k.startswith("target_weights")}
    (count,) = w.emit_all(
        "TreeEnsembleRegressor", [w.input(0)], [F32], domain=ML, **{**attrs, **ones, "aggregate_function": "SUM"}
    )
    nothing = w.emit("Equal", count, w.constant(0, F32))
    return w.emit("Where", nothing, w.constant(initial_value(w.attrs["join"]), F32), y)


def _ones(weights: Any) -> Any:
    if isinstance(weights, list):
        return [1.0] * len(weights)
    return onnx.numpy_helper.from_array(np.ones(weights.dims[0]))
