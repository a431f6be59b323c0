"""Readers of ai.onnx.ml: preprocessing and linear models."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import equal
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I64, STRING

from pelton.importers.onnx.node import Reading, Binding, reads

ML = "ai.onnx.ml"


def emit_post_transform(n: Reading, scores: Value, post: str) -> Value:
    """Applies `post_transform` to rows of scores."""

    def number(x: float) -> Value:
        return n.like(scores, x)

    if post == "LOGISTIC":
        return n.emit("sigmoid", scores)
    if post == "SOFTMAX":
        return n.emit("softmax", scores, axis=1)
    if post == "SOFTMAX_ZERO":  # zeros stay zero
        top = n.emit("reduce_max", scores, axes=(1,), keepdims=True)
        grown = n.emit("exp", n.emit("sub", scores, top))
        small = n.emit("less_equal", n.emit("abs", scores), number(1e-7))
        grown = n.emit("where", small, n.emit("mul", scores, n.emit("exp", n.emit("neg", top))), grown)
        total = n.emit("reduce_sum", grown, axes=(1,), keepdims=True)
        none = n.emit("equal", total, number(0))
        return n.emit("where", none, number(0.5), n.emit("div", grown, n.emit("where", none, number(1), total)))
    if post == "PROBIT":  # √2 · erf⁻¹(2x − 1), by Winitzki's formula
        x = n.emit("sub", n.emit("mul", scores, number(2)), number(1))
        log = n.emit("log", n.emit("mul", n.emit("sub", number(1), x), n.emit("add", x, number(1))))
        v = n.emit("add", n.emit("mul", log, number(0.5)), number(2 / (math.pi * 0.147)))
        inner = n.emit(
            "sub", n.emit("sqrt", n.emit("sub", n.emit("mul", v, v), n.emit("mul", log, number(1 / 0.147)))), v
        )
        return n.emit("mul", n.emit("mul", n.emit("sign", x), n.emit("sqrt", inner)), number(math.sqrt(2)))
    if post not in ("NONE", "", None):
        raise n.refuse(f"{n.op} needs post_transform NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT, got {post!r}")
    return scores


def emit_labels(n: Reading, indices: Value) -> Value:
    """Maps indices of classes to labels."""
    words = n.attr("classlabels_strings")
    numbers = n.attr("classlabels_ints") or n.attr("classlabels_int64s")
    if not words and not numbers:
        return indices
    return n.emit(
        "gather", n.constant(np.array(words, object) if words else np.array(numbers, np.int64)), indices, axis=0
    )


def emit_two_scores(n: Reading, score: Value, post: str, certain: bool, linear: bool = False) -> tuple[Binding, ...]:
    """Returns labels and scores of two classes from one score, as ONNX Runtime computes them.

    The score is a probability of the second class if `certain`, else a distance. The first class gets 1 minus the score
    (also for distances of a `linear` model), else the negated score.
    """
    second = n.emit("greater", n.reshape(score, score.type.shape[:1]), n.like(score, 0.5 if certain else 0))
    rest = (certain or linear) and post != "LOGISTIC"
    if post == "PROBIT":
        score = emit_post_transform(n, score, post)
    first = n.emit("sub", n.like(score, 1), score) if rest else n.emit("neg", score)
    both = n.emit("concat", first, score, axis=1)
    return emit_labels(n, n.cast(second, I64)), emit_post_transform(n, both, post) if post == "LOGISTIC" else both


def floats(n: Reading, name: str, like: Value) -> np.ndarray:
    return np.asarray(n.attr(name) or (), np.float32).astype(like.type.dtype.numpy)


def features(n: Reading) -> Value:
    """Returns rows of features in f32 or f64; a vector is one row, other element types become f32."""
    x = n.input(0)
    x = n.reshape(x, (1, x.type.size)) if x.type.rank == 1 else x
    if x.type.rank != 2 or x.type.dtype is STRING:
        raise n.refuse(f"{n.op} needs rows of numbers, got {x.type}")
    return x if x.type.dtype in (F32, F64) else n.cast(x, F32)


# --- preprocessing


@reads("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(n: Reading) -> Binding | tuple[Binding, ...]:
    x, indices = n.inputs
    if x.type.dtype is STRING:
        return n.foreign()
    x = n.reshape(x, (1, x.type.size)) if x.type.rank == 1 else x
    return n.emit("gather", x, n.reshape(indices, (indices.type.size,)), axis=x.type.rank - 1)


@reads("Binarizer", domain=ML)
def binarizer(n: Reading) -> Binding:
    x = n.input(0)
    return n.cast(n.emit("greater", x, n.like(x, n.attr("threshold", 0.0))), x.type.dtype)


@reads("Scaler", domain=ML)
def scaler(n: Reading) -> Binding:
    """Computes (x − offset) · scale, each one number or one per feature."""
    x = n.input(0) if n.input(0).type.dtype.is_float else n.cast(n.input(0), F32)
    offset, scale = floats(n, "offset", x), floats(n, "scale", x)
    y = n.emit("sub", x, n.constant(offset)) if offset.size else x
    return n.cast(n.emit("mul", y, n.constant(scale)) if scale.size else y, F32)


@reads("Normalizer", domain=ML)
def normalizer(n: Reading) -> Binding:
    """Divides rows by their L∞, L1 or L2 norm."""
    x, norm = features(n), n.attr("norm", "MAX")
    word = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}.get(norm)
    if word is None:
        raise n.refuse(f"Normalizer needs norm MAX, L1 or L2, got {norm!r}")
    size = n.emit(word, n.emit("abs", x) if norm == "MAX" else x, axes=(1,), keepdims=True)
    return n.cast(n.emit("div", x, n.emit("maximum", size, n.like(x, 1e-30))), F32)


@reads("Imputer", domain=ML)
def imputer(n: Reading) -> Binding:
    """Replaces one value, NaN or a number."""
    x = n.input(0)
    values = n.attr("imputed_value_floats") if x.type.dtype.is_float else n.attr("imputed_value_int64s")
    old = n.attr("replaced_value_float", 0.0) if x.type.dtype.is_float else n.attr("replaced_value_int64", 0)
    if not values or len(values) != 1 and not equal(len(values), x.type.shape[-1]):
        raise n.refuse(f"Imputer needs a value for all features of {x.type} or one for each, got {len(values or ())}")
    hit = n.emit("is_nan", x) if isinstance(old, float) and math.isnan(old) else n.emit("equal", x, n.like(x, old))
    return n.emit("where", hit, n.constant(np.array(values), x.type.dtype), x)


@reads("FeatureVectorizer", domain=ML)
def feature_vectorizer(n: Reading) -> Binding:
    """Concatenates columns, each input cropped or zero-padded to its dimension."""
    parts = []
    for x, size in zip(n.inputs, n.attr("inputdimensions") or [v.type.shape[-1] for v in n.inputs], strict=True):
        x = n.cast(n.reshape(x, (x.type.size, 1)) if x.type.rank == 1 else x, F32)
        more = size - x.type.shape[1]
        parts.append(
            n.slice(x, 1, 0, size)
            if more <= 0
            else n.emit("concat", x, n.filled(0, (x.type.shape[0], more), F32), axis=1)
        )
    return n.emit("concat", *parts, axis=1)


# --- linear models


def _emit_linear(n: Reading, x: Value, outputs: int) -> Value:
    """Computes x · coefficientsᵀ + intercepts."""
    w, b = floats(n, "coefficients", x), floats(n, "intercepts", x)
    if not equal(w.size, outputs * x.type.shape[1]) or b.size not in (0, outputs):
        raise n.refuse(
            f"{n.op} needs {outputs} coefficients for each of {x.type.shape[1]} features, and {outputs} intercepts or"
            f" none, got {w.size} coefficients and {b.size} intercepts"
        )
    y = n.emit("matmul", x, n.constant(np.ascontiguousarray(w.reshape(outputs, -1).T)))
    return n.emit("add", y, n.constant(b)) if b.any() else y


@reads("LinearRegressor", domain=ML)
def linear_regressor(n: Reading) -> Binding:
    return emit_post_transform(
        n, n.cast(_emit_linear(n, features(n), n.attr("targets", 1)), F32), n.attr("post_transform", "NONE")
    )


@reads("LinearClassifier", domain=ML)
def linear_classifier(n: Reading) -> tuple[Binding, ...]:
    """Selects the class of the largest score; of two classes with one score, the second if it is positive."""
    x, post = features(n), n.attr("post_transform", "NONE")
    outputs = max(len(n.attr("intercepts") or ()), 1)
    classes = max(len(n.attr("classlabels_ints") or ()), len(n.attr("classlabels_strings") or ()))
    scores = n.cast(_emit_linear(n, x, outputs), F32)
    if outputs == 1:
        return n.foreign() if classes != 2 else emit_two_scores(n, scores, post, False, linear=True)
    return emit_labels(n, n.emit("arg_max", scores, axis=1, keepdims=False)), emit_post_transform(n, scores, post)
