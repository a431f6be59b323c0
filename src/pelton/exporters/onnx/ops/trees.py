"""Writers of decision trees, as TreeEnsembleRegressor of ai.onnx.ml, whose leaves have any number of targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from pelton.ir.types import F32, F64

from ..schemas import Unwritable
from ..writing import Writing, writes

ML, VERSION = "ai.onnx.ml", 4  # the last one without a replacement for it
_MODES = ("BRANCH_LEQ", "LEAF")


@writes("trees")
def trees(w: Writing) -> str:
    """One node for each part, whose sums, or extremes, are stacked."""
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


def _part(w: Writing, tables: Sequence[np.ndarray], roots: range) -> str:
    """The sum, or an extreme, of some trees. Nodes are called by their slots."""
    threshold, feature, child, _, leaf, start, target, weight = tables
    is_leaf = np.isnan(threshold) & (child == np.arange(child.size) - 1)
    nodes, tree_of = list[int](), list[int]()
    for tree in roots:
        seen, waiting = {tree}, [tree]
        while waiting:
            slot = waiting.pop()
            nodes.append(slot)
            tree_of.append(tree)
            for inner in () if is_leaf[slot] else (int(child[slot]), int(child[slot]) + 1):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
    at = np.array(nodes)
    ends = [(t, s, e) for t, s in zip(tree_of, nodes) if is_leaf[s] for e in range(start[leaf[s]], start[leaf[s] + 1])]
    if not ends:
        raise Unwritable("trees without a weight have no operator")
    entries = np.array(ends)
    values = np.where(is_leaf[at], 0, threshold[at])
    double = w.type(0).dtype is F64
    weights = weight[entries[:, 2]]
    attrs = dict(
        nodes_treeids=tree_of,
        nodes_nodeids=nodes,
        nodes_featureids=np.where(is_leaf[at], 0, np.where(feature[at] < 0, ~feature[at], feature[at])).tolist(),
        nodes_modes=[_MODES[k] for k in is_leaf[at].astype(int)],
        nodes_truenodeids=np.where(is_leaf[at], 0, child[at]).tolist(),
        nodes_falsenodeids=np.where(is_leaf[at], 0, child[at] + 1).tolist(),
        nodes_missing_value_tracks_true=(~is_leaf[at] & (feature[at] < 0)).astype(int).tolist(),
        target_treeids=entries[:, 0].tolist(),
        target_nodeids=entries[:, 1].tolist(),
        target_ids=target[entries[:, 2]].tolist(),
        n_targets=w.attrs["targets"],
        aggregate_function=w.attrs["join"].upper(),
    )
    if double:
        attrs |= dict(
            nodes_values_as_tensor=onnx.numpy_helper.from_array(values),
            target_weights_as_tensor=onnx.numpy_helper.from_array(weights.astype(float)),
        )
    else:
        attrs |= dict(nodes_values=values.tolist(), target_weights=weights.tolist())
    (found,) = w.emit_all("TreeEnsembleRegressor", [w.input(0)], [F32], domain=ML, **attrs)
    return found
