"""Readers of support vector machines."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import equal
from pelton.ir.graph import Value
from pelton.ir.types import F32, I64

from .ml import ML, features, floats, emit_labels, emit_post_transform
from pelton.importers.onnx.node import Reading, Binding, reads


@reads("SVMRegressor", domain=ML)
def svm_regressor(n: Reading) -> Binding:
    x, count = features(n), n.attr("n_supports", 0)
    w, rho = floats(n, "coefficients", x), floats(n, "rho", x)
    near = x if not count else _kernel(n, x, floats(n, "support_vectors", x).reshape(count, -1))
    if not equal(w.size, near.type.shape[1]) or not rho.size:
        raise n.refuse(f"SVMRegressor needs {near.type.shape[1]} coefficients and a rho, got {w.size} and {rho.size}")
    y = n.cast(n.emit("add", n.emit("matmul", near, n.constant(w.reshape(-1, 1))), n.constant(rho[0])), F32)
    if n.flag("one_class"):
        return n.emit("where", n.emit("greater", y, n.like(y, 0)), n.like(y, 1), n.like(y, -1))
    return emit_post_transform(n, y, n.attr("post_transform", "NONE"))


def _kernel(n: Reading, x: Value, vectors: np.ndarray) -> Value:
    """Computes the kernel function of each row and support vector, [rows, vectors]."""
    kind, (gamma, coefficient, degree) = n.attr("kernel_type", "LINEAR"), (*floats(n, "kernel_params", x), 0, 0, 0)[:3]
    if not equal(vectors.shape[1], x.type.shape[1]):
        raise n.refuse(f"{n.op} needs support vectors of {x.type.shape[1]} features, got {vectors.shape[1]}")
    dot = n.emit("matmul", x, n.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dot
    if kind == "RBF":  # |x − s|² = x² − 2·x·s + s²
        own = n.emit("reduce_sum", n.emit("mul", x, x), axes=(1,), keepdims=True)
        apart = n.emit(
            "add",
            n.emit("sub", own, n.emit("mul", dot, n.like(x, 2))),
            n.constant((vectors.astype(np.float64) ** 2).sum(1), x.type.dtype),
        )
        return n.emit("exp", n.emit("mul", n.emit("maximum", apart, n.like(x, 0)), n.like(x, -gamma)))
    moved = n.emit("add", n.emit("mul", dot, n.like(x, gamma)), n.like(x, coefficient))
    if kind == "SIGMOID":
        return n.emit("tanh", moved)
    if kind == "POLY":
        return n.emit("pow", moved, n.like(x, int(degree)))
    raise n.refuse(f"{n.op} needs kernel_type LINEAR, POLY, RBF or SIGMOID, got {kind!r}")


@reads("SVMClassifier", domain=ML)
def svm_classifier(n: Reading) -> tuple[Binding, ...]:
    """Lets each pair of classes vote for one; without support vectors, the class with the largest score wins.

    Scores are per pair (or per class); with prob_a and prob_b, class probabilities coupled from those of pairs.
    """
    x, post = features(n), n.attr("post_transform", "NONE")
    classes = max(len(n.attr("classlabels_ints") or ()), len(n.attr("classlabels_strings") or ()))
    counts, rho, a, b = (
        np.asarray(n.attr("vectors_per_class") or (), np.int64),
        *(floats(n, name, x) for name in ("rho", "prob_a", "prob_b")),
    )
    w, pairs = floats(n, "coefficients", x), classes * (classes - 1) // 2
    if classes < 2:
        return n.foreign()
    if counts.sum() > 0:
        if (
            counts.shape != (classes,)
            or (counts < 0).any()
            or rho.size < pairs
            or w.size != (classes - 1) * counts.sum()
            or a.size not in (0, pairs)
            or (a.size != b.size)
        ):
            raise n.refuse(
                f"SVMClassifier of {classes} classes needs vectors_per_class for each, {classes - 1} coefficients per"
                f" vector, {pairs} rho, and as many prob_a and prob_b or none; got {counts.size}, {w.size}, {rho.size},"
                f" {a.size} and {b.size}"
            )
        weights, signs = _pair_weights(w.reshape(classes - 1, -1), counts)
        near = _kernel(n, x, _vectors(n, x, int(counts.sum())))
        scores = n.emit("add", n.emit("matmul", near, n.constant(weights)), n.constant(rho[:pairs]))
        won = n.cast(n.emit("greater", scores, n.like(scores, 0)), F32)
        votes = n.emit("add", n.emit("matmul", won, n.constant(signs)), n.constant(np.maximum(-signs, 0).sum(0)))
    else:
        if not rho.size or not equal(w.size, classes * x.type.shape[1]):
            raise n.refuse(
                f"SVMClassifier needs {classes} coefficients for each of {x.type.shape[1]} features and a rho, got"
                f" {w.size} and {rho.size}"
            )
        scores = n.emit(
            "add", n.emit("matmul", x, n.constant(np.ascontiguousarray(w.reshape(classes, -1).T))), n.constant(rho[0])
        )
        votes, a = scores, a[:0]
    best = n.emit("arg_max", votes, axis=1, keepdims=False)
    # as in ONNX Runtime: with one rho for more than two classes, the label is the sign of the best score
    if rho.size == 1 and classes > 2:
        if n.attr("classlabels_strings"):
            return n.foreign()
        labels = n.cast(
            n.emit("greater", n.emit("reduce_max", votes, axes=(1,), keepdims=False), n.like(votes, 0)), I64
        )
    elif rho.size == 1 and not a.size and (w >= 0).all():
        # as in ONNX Runtime: if no weight is negative, scores count as probabilities
        top = n.emit("reduce_max", votes, axes=(1,), keepdims=False)
        labels = emit_labels(
            n, n.emit("where", n.emit("greater_equal", top, n.like(top, 0.5)), n.constant(1, I64), best)
        )
    else:
        labels = emit_labels(n, best)
    if a.size:
        first = n.emit("sigmoid", n.emit("neg", n.emit("add", n.emit("mul", scores, n.constant(a)), n.constant(b))))
        return labels, n.cast(emit_post_transform(n, n.emit("coupled", first, classes=classes), post), F32)
    if scores.type.shape[1] == 1 and post != "PROBIT":
        scores = n.emit("concat", n.emit("neg", scores), scores, axis=1)
    return labels, n.cast(emit_post_transform(n, scores, post), F32)


def _pair_weights(w: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each vector's weight for each pair of classes, [vectors, pairs], and signs of votes, [pairs, classes]."""
    end = np.cumsum(counts)
    of = [slice(e - c, e) for e, c in zip(end, counts)]
    first, second = np.triu_indices(counts.size, 1)
    weights, signs = np.zeros((end[-1], first.size), w.dtype), np.zeros((first.size, counts.size), np.float32)
    for p, (i, j) in enumerate(zip(first, second)):
        weights[of[i], p], weights[of[j], p] = w[j - 1, of[i]], w[i, of[j]]
        signs[p, i], signs[p, j] = 1, -1
    return weights, signs


def _vectors(n: Reading, x: Value, count: int) -> np.ndarray:
    vectors = floats(n, "support_vectors", x)
    if not vectors.size or vectors.size % count:
        raise n.refuse(f"{n.op} needs {count} support vectors, got {vectors.size} numbers")
    return vectors.reshape(count, -1)
