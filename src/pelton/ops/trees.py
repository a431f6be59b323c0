"""Decision trees: sums or extremes of the leaf weights that rows of features reach."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import I32, TensorType

from .op import expect, structured

_JOINS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def initial_value(join: str) -> float:
    """Returns the value of a target without leaves: finite for any type of weights."""
    limits = np.finfo(np.float32)
    return {"sum": 0.0, "min": float(limits.max), "max": float(limits.min)}[join]


@structured(
    examples=(
        (
            "f32[5, 4]",
            "f32[21]",
            "i32[21]",
            "i32[21]",
            "i32[3]",
            "i32[21]",
            "i32[13]",
            "i32[12]",
            "f32[12]",
            dict(targets=1),
        ),
        (
            "f32[9, 3]",
            "f32[62]",
            "i32[62]",
            "i32[62]",
            "i32[10]",
            "i32[62]",
            "i32[8]",
            "i32[15]",
            "f32[15]",
            dict(targets=3, parts=4, join="min"),
        ),
    )
)
class trees:
    """Y[part, row, target] = the weights for a target of the leaves that a row of X reaches, combined by `join`.

    A part is a run of ⌈trees / parts⌉ trees. Nodes have slots, the roots of the trees first; `depth` is per tree. From
    a slot, a row goes on to `child` if its feature is at most the threshold, else to the slot after that one. A feature
    is ~f if NaN goes to `child`. A leaf's threshold is NaN and its child the slot before its own, so that it leads to
    itself. Its targets and weights are those from start[leaf] to start[leaf + 1].
    """

    def infer(
        x: TensorType,
        threshold: TensorType,
        feature: TensorType,
        child: TensorType,
        depth: TensorType,
        leaf: TensorType,
        start: TensorType,
        target: TensorType,
        weight: TensorType,
        *,
        targets: int,
        parts: int = 1,
        join: str = "sum",
    ) -> TensorType:
        expect(
            x.rank == 2 and x.dtype.is_float and threshold.dtype is x.dtype,
            "needs rows of features, and thresholds of their floating-point type",
        )
        expect(
            all(t.rank == 1 for t in (threshold, feature, child, depth, leaf, start, target, weight)),
            "needs its tables as vectors",
        )
        expect(
            all(t.dtype is I32 for t in (feature, child, depth, leaf, start, target)),
            "needs its tables in i32, but for thresholds and weights",
        )
        expect(
            threshold.shape == feature.shape == child.shape == leaf.shape and target.shape == weight.shape,
            "needs tables of equal length",
        )
        expect(
            weight.dtype.is_float and targets >= 1 and parts >= 1 and join in _JOINS,
            f"needs weights, 1 target and more, 1 part and more, and join sum, min or max, got {join!r}",
        )
        return weight.with_shape((parts, x.shape[0], targets))

    def reference(x, threshold, feature, child, depth, leaf, start, target, weight, *, targets, parts=1, join="sum"):
        rows = np.arange(x.shape[0])[:, None]
        at = np.repeat(np.arange(depth.size)[None], x.shape[0], 0)
        columns = np.where(feature < 0, ~feature, feature)
        for _ in range(depth.max(initial=0)):
            v = x[rows, columns[at]]
            at = child[at] + ~((v <= threshold[at]) | (np.isnan(v) & (feature[at] < 0)))
        y = np.full((parts, x.shape[0], targets), initial_value(join), weight.dtype)
        first = start[leaf[at]]
        count = start[leaf[at] + 1] - first
        for k in range(count.max(initial=0)):
            row, tree = np.nonzero(count > k)
            entry = first[row, tree] + k
            _JOINS[join].at(y, (tree // -(-depth.size // parts), row, target[entry]), weight[entry])
        return y

    def flops(
        x: TensorType, threshold: TensorType, feature, child, depth: TensorType, *rest: TensorType, **attrs
    ) -> int:
        """Counts a comparison per level, as if trees were balanced."""
        trees = max(1, depth.size)
        return x.shape[0] * trees * max(1, (threshold.size // trees).bit_length())
