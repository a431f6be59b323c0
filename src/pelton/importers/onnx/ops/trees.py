"""Readers of decision trees: TreeEnsemble, and the older regressor and classifier."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, DType

from pelton.ops.trees import initial_value

from pelton.importers.onnx.file import array_of
from .ml import ML, emit_labels, emit_post_transform, emit_two_scores
from pelton.importers.onnx.node import Reading, Binding, reads

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
_MODES = {
    "BRANCH_LEQ": LEQ,
    "BRANCH_LT": LT,
    "BRANCH_GTE": GTE,
    "BRANCH_GT": GT,
    "BRANCH_EQ": EQ,
    "BRANCH_NEQ": NEQ,
    "BRANCH_MEMBER": MEMBER,
    "LEAF": LEAF,
}
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_JOINS = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}


@dataclass
class Forest:
    """The branches of all trees, as in ONNX. `yes`, `no` and `roots` index branches, or leaves from LEAVES on."""

    split: np.ndarray
    feature: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray  # true if NaN goes to `yes` in any mode
    roots: np.ndarray
    sets: list[np.ndarray] = field(default_factory=list)  # the set of each MEMBER branch


LEAVES = 1 << 30
PARTS = 16  # of a large forest, for parallel threads
MIN_PARALLEL_TREES = 256
ABREAST = 16  # walks of one row that hide each other's latency
PART_BYTES = 1 << 16  # bytes of a part's trees for one target, which stay in or near L1 while rows pass
MIN_TREES = 8  # least trees of a part and target, for large trees, to balance walks of different lengths


def _without_equalities(f: Forest) -> Forest:
    """Replaces equalities by inequalities: x = v is x ≤ v and not x < v; sets are tested member by member."""
    equalities = np.flatnonzero(f.mode >= EQ)
    if not equalities.size:
        return f
    columns = {k: list(getattr(f, k)) for k in ("split", "feature", "mode", "yes", "no", "missing")}
    sets = iter(f.sets)

    def replace_equality(i: int, value: float, yes: int, no: int, missing: bool) -> None:
        for k, v in dict(split=value, mode=LEQ, yes=len(columns["mode"]), no=no, missing=missing).items():
            columns[k][i] = v
        for k, v in dict(split=value, feature=columns["feature"][i], mode=LT, yes=no, no=yes, missing=False).items():
            columns[k].append(v)

    for i in equalities:
        yes, no, missing = f.yes[i], f.no[i], bool(f.missing[i])
        # NaN differs from all values: it goes to `yes` whatever `missing` is
        if f.mode[i] == NEQ:
            replace_equality(int(i), f.split[i], no, yes, False)
            continue
        at = int(i)
        members = next(sets) if f.mode[i] == MEMBER else f.split[i : i + 1]
        if not len(members):
            columns["mode"][i], columns["split"][i] = LEQ, np.nan
        for k, member in enumerate(members):
            others = no
            if k + 1 < len(members):
                others = len(columns["mode"]) + 1
            replace_equality(at, member, yes, others, missing and k == 0)
            if k + 1 < len(members):
                for column in columns.values():
                    column.append(column[i])
                at = others
    kinds = {k: getattr(f, k).dtype for k in columns}
    return replace(f, **{k: np.array(v, kinds[k]) for k, v in columns.items()}, sets=[])


def _measure_depths(roots: int, child: np.ndarray, inner: np.ndarray) -> np.ndarray | None:
    """Returns the depth of each tree; None if a tree has a cycle."""
    depth = np.zeros(roots, np.int32)
    at = np.arange(roots) * child.size + np.arange(roots)  # (tree, slot), as one number
    for level in range(int(inner.sum()) + 1):
        tree, slot = np.divmod(at, child.size)
        tree, slot = tree[inner[slot]], slot[inner[slot]]
        if not tree.size:
            return depth
        depth[tree] = level + 1
        at = np.unique(np.concatenate([tree * child.size + child[slot], tree * child.size + child[slot] + 1]))
    return None


def emit_trees(
    n: Reading,
    x: Value,
    forest: Forest,
    start: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    targets: int,
    join: str,
) -> Value:
    """Evaluates the trees on rows of x; slots are the roots, then two per branch for its children."""
    f, dtype = _without_equalities(forest), x.type.dtype
    count, roots = f.mode.size, f.roots.size
    ends = np.concatenate([f.roots, f.yes, f.no])
    features = x.type.shape[1]
    if (
        (((ends < 0) | (ends >= count)) & ((ends < LEAVES) | (ends >= LEAVES + start.size - 1))).any()
        or (f.feature < 0).any()
        or (is_known(features) and (f.feature >= features).any())
        or (target < 0).any()
        or (target >= targets).any()
    ):
        raise n.refuse(
            f"{n.op} has nodes that refer to nonexistent nodes, features (of {features}) or targets (of {targets})"
        )
    split = f.split.astype(dtype.numpy)
    below = (f.mode == LT) | (f.mode == GTE)
    split[below] = np.where(np.isneginf(split[below]), np.nan, np.nextafter(split[below], dtype.numpy.type(-np.inf)))
    tiny = np.finfo(dtype.numpy).tiny  # kernels flush subnormals to zero
    split = np.where(
        np.abs(split) >= tiny, split, np.where(split < 0, -tiny, np.where(np.isnan(split), split, 0))
    ).astype(dtype.numpy)
    is_swapped = (f.mode == GTE) | (f.mode == GT)
    first, second = np.where(is_swapped, f.no, f.yes), np.where(is_swapped, f.yes, f.no)
    # NaN fails every comparison; a complemented feature sends it to the first child
    feature = np.where(is_swapped ^ (f.missing != 0), ~f.feature, f.feature)
    slot = np.concatenate([f.roots, np.stack([first, second], 1).reshape(-1)])
    inner, branch = slot < LEAVES, np.where(slot < LEAVES, slot, 0)
    place = np.arange(slot.size)

    def gather_by_slot(of: np.ndarray, else_: np.ndarray | float) -> np.ndarray:
        return np.where(inner, of[branch], else_) if count else np.broadcast_to(else_, slot.shape)

    child = gather_by_slot(roots + 2 * np.arange(count), place - 1)
    depth = _measure_depths(roots, child, inner)
    if depth is None:
        raise n.refuse(f"{n.op} has a tree with a cycle")
    tables = (
        gather_by_slot(split, np.nan).astype(dtype.numpy),
        *(
            np.ascontiguousarray(t, np.int32)
            for t in (gather_by_slot(feature, 0), child, depth, np.where(inner, 0, slot - LEAVES), start, target)
        ),
        np.asarray(weight),
    )
    parts = PARTS if roots >= MIN_PARALLEL_TREES else 1
    if (np.diff(start)[slot[~inner] - LEAVES] == 1).all():
        parts = _count_chained_parts(roots, targets, slot.size * 2 * (4 + dtype.size))
    y = n.emit("trees", x, *(n.constant(t) for t in tables), targets=targets, parts=parts, join=join)
    y = n.reshape(y, y.type.shape[1:]) if parts == 1 else n.emit(f"reduce_{join}", y, axes=(0,), keepdims=False)
    return y if join == "sum" else n.emit("where", n.emit("equal", y, n.like(y, initial_value(join))), n.like(y, 0), y)


def _count_chained_parts(trees: int, targets: int, size: int) -> int:
    """Counts the parts of a forest of `size` bytes whose leaves have one weight each; no part is empty."""
    each = trees / targets
    parts = PARTS if trees >= MIN_PARALLEL_TREES else min(-(-ABREAST // targets), int(each / 2))
    parts = max(1, parts, int(min(each / MIN_TREES, size / targets / PART_BYTES)))
    return -(-trees // -(-trees // parts)) if trees else 1


@reads("TreeEnsemble", domain=ML)
def tree_ensemble(n: Reading) -> Binding:
    x, targets = _rows(n), n.attr("n_targets", 1)
    modes, splits, weights = (
        array_of(n.attr(k), n.program.source) for k in ("nodes_modes", "nodes_splits", "leaf_weights")
    )

    def integers(name: str) -> np.ndarray:
        return np.asarray(n.attr(name) or (0,) * modes.size, np.int64)

    ends = [
        np.where(integers(f"nodes_{side}leafs") != 0, LEAVES, 0) + integers(f"nodes_{side}nodeids")
        for side in ("true", "false")
    ]
    roots = np.asarray(n.attr("tree_roots"), np.int64)
    if (
        any(a.shape != modes.shape for a in (splits, *ends, integers("nodes_featureids")))
        or (roots < 0).any()
        or (roots >= modes.size).any()
    ):
        raise n.refuse(
            "TreeEnsemble needs a split, a feature and two children for every node, and tree_roots among them"
        )
    members = n.attr("membership_values")
    sets = []
    if members is not None:
        values = array_of(members, n.program.source)
        sets = [part[part == part] for part in np.split(values, np.flatnonzero(values != values) + 1)][
            : int((modes == MEMBER).sum())
        ]
    if len(sets) != (modes == MEMBER).sum():
        raise n.refuse(
            "TreeEnsemble needs a set of membership_values for each BRANCH_MEMBER node, each followed by a NaN"
        )
    is_lone_leaf = (ends[0] == ends[1]) & (ends[0] >= LEAVES)
    forest = Forest(
        splits,
        integers("nodes_featureids"),
        modes.astype(np.int64),
        ends[0],
        ends[1],
        integers("nodes_missing_value_tracks_true"),
        np.where(is_lone_leaf[roots], ends[0][roots], roots),
        sets,
    )
    join = ("AVERAGE", "SUM", "MIN", "MAX")[n.attr("aggregate_function", 1)]
    y = emit_trees(
        n, x, forest, np.arange(weights.size + 1), np.asarray(n.attr("leaf_targetids")), weights, targets, _JOINS[join]
    )
    if join == "AVERAGE":
        y = n.emit("mul", y, n.like(y, 1 / roots.size))
    return emit_post_transform(n, y, _TRANSFORMS[n.attr("post_transform", 0)])


def _rows(n: Reading) -> Value:
    """Returns the features: a vector is one row; integers become f32."""
    x = n.input(0)
    if x.type.rank == 1:
        x = n.reshape(x, (1, x.type.size))
    if x.type.rank != 2:
        raise n.refuse(f"{n.op} needs rows of features, got {x.type}")
    return x if x.type.dtype in (F32, F64) else n.cast(x, F32)


def _numbers(n: Reading, name: str, dtype: DType) -> np.ndarray:
    """Returns floats given as a list or, under another name, as a tensor."""
    tensor = n.attr(f"{name}_as_tensor")
    return (
        np.asarray(n.attr(name) or (), np.float32).astype(dtype.numpy)
        if tensor is None
        else array_of(tensor, n.program.source).astype(dtype.numpy)
    )


def _emit_old_ensemble(n: Reading, prefix: str, targets: int, join: str) -> Value:
    """Emits a TreeEnsembleRegressor or -Classifier, whose nodes have tree and node ids, plus base values."""
    x = _rows(n)
    tree, number = (np.asarray(n.attr(f"nodes_{k}") or (), np.int64) for k in ("treeids", "nodeids"))
    wide = max(number.max(initial=0), 0) + 1
    keys = tree * wide + number
    order = np.argsort(keys, kind="stable")

    def find(trees: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        nodes = order[np.minimum(np.searchsorted(keys[order], trees * wide + numbers), keys.size - 1)]
        if (keys[nodes] != trees * wide + numbers).any():
            raise n.refuse(f"{n.op} has nodes that refer to nonexistent nodes")
        return nodes

    def integers(name: str) -> np.ndarray:
        return np.asarray(n.attr(name) or (0,) * tree.size, np.int64)

    modes = np.array([_MODES.get(m, -1) for m in n.attr("nodes_modes") or ()], np.int64)
    split = _numbers(n, "nodes_values", x.type.dtype)
    feature, missing = integers("nodes_featureids"), integers("nodes_missing_value_tracks_true")
    yes, no = integers("nodes_truenodeids"), integers("nodes_falsenodeids")
    if (
        not tree.size
        or any(a.shape != tree.shape for a in (number, modes, split, feature, missing, yes, no))
        or (modes < 0).any()
        or (tree < 0).any()
    ):
        raise n.refuse(
            f"{n.op} needs nodes, with a tree id, a node id, a known mode, a value, a feature and two children each"
        )
    branches = np.flatnonzero(modes != LEAF)
    place = np.full(tree.size, 0, np.int64)
    place[branches] = np.arange(branches.size)
    place[modes == LEAF] = LEAVES + np.flatnonzero(modes == LEAF)
    ends = [place[find(tree[branches], side[branches])] for side in (yes, no)]
    roots = place[np.unique(tree, return_index=True)[1]]
    forest = Forest(split[branches], feature[branches], modes[branches], ends[0], ends[1], missing[branches], roots)
    leaves = (
        find(*(integers(f"{prefix}_{k}") for k in ("treeids", "nodeids")))
        if n.attr(f"{prefix}_treeids")
        else np.zeros(0, np.int64)
    )
    by_leaf = np.argsort(leaves, kind="stable")
    start = np.searchsorted(leaves[by_leaf], np.arange(tree.size + 1))
    weights, ids = _numbers(n, f"{prefix}_weights", x.type.dtype), integers(f"{prefix}_ids")
    if not weights.shape == ids.shape == leaves.shape:
        raise n.refuse(f"{n.op} needs a tree, a node and an id for each of its weights")
    y = emit_trees(
        n,
        x,
        forest,
        start,
        ids[by_leaf],
        weights[by_leaf].astype(np.float32 if x.type.dtype is F32 else np.float64),
        targets,
        _JOINS[join],
    )
    if join == "AVERAGE":
        y = n.emit("mul", y, n.like(y, 1 / roots.size))
    base = _numbers(n, "base_values", y.type.dtype)
    if base.size not in (0, 1, targets):
        raise n.refuse(f"{n.op} needs a base value per target, got {base.size} for {targets}")
    return n.emit("add", y, n.constant(base)) if base.size else y


@reads("TreeEnsembleRegressor", domain=ML)
def tree_regressor(n: Reading) -> Binding:
    y = n.cast(_emit_old_ensemble(n, "target", n.attr("n_targets", 1), n.attr("aggregate_function", "SUM")), F32)
    return emit_post_transform(n, y, n.attr("post_transform", "NONE"))


@reads("TreeEnsembleClassifier", domain=ML)
def tree_classifier(n: Reading) -> tuple[Binding, ...]:
    """Reads two classes that may share one score: a probability if no weight is negative, else a distance.

    A large score selects the second class.
    """
    classes = max(len(n.attr("classlabels_int64s") or ()), len(n.attr("classlabels_strings") or ()))
    ids, post = set(n.attr("class_ids") or ()), n.attr("post_transform", "NONE")
    if classes < 2:
        return n.foreign()
    if classes > 2 or len(ids) > 1:
        scores = n.cast(_emit_old_ensemble(n, "class", classes, "SUM"), F32)
        return emit_labels(n, n.emit("arg_max", scores, axis=1, keepdims=False)), emit_post_transform(n, scores, post)
    (target,) = ids or {0}
    scores = n.slice(n.cast(_emit_old_ensemble(n, "class", 2, "SUM"), F32), 1, target, target + 1)
    certain = bool((_numbers(n, "class_weights", F32) >= 0).all())
    return emit_two_scores(n, scores, post, certain)
