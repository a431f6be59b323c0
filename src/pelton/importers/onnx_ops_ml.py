"""Readers of ai.onnx.ml: preprocessing, linear models and support vectors in ops of ours; where strings go in, the onnx package runs the node."""
from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I64, STRING, DType

from .onnx_file import array_of
from .onnx_reading import Reading, Thing, reads

ML = "ai.onnx.ml"


def transformed(n: Reading, scores: Value, post: str) -> Value:
    """What `post_transform` makes of rows of scores."""
    def number(x: float) -> Value:
        return n.like(scores, x)
    if post == "LOGISTIC":
        return n.emit("sigmoid", scores)
    if post == "SOFTMAX":
        return n.emit("softmax", scores, axis=1)
    if post == "SOFTMAX_ZERO":                             # what is zero stays zero
        top = n.emit("reduce_max", scores, axes=(1,), keepdims=True)
        grown = n.emit("exp", n.emit("sub", scores, top))
        small = n.emit("less_equal", n.emit("abs", scores), number(1e-7))
        grown = n.emit("where", small, n.emit("mul", scores, n.emit("exp", n.emit("neg", top))), grown)
        total = n.emit("reduce_sum", grown, axes=(1,), keepdims=True)
        none = n.emit("equal", total, number(0))
        return n.emit("where", none, number(0.5), n.emit("div", grown, n.emit("where", none, number(1), total)))
    if post == "PROBIT":                                   # √2 · erf⁻¹(2x − 1), by Winitzki's formula
        x = n.emit("sub", n.emit("mul", scores, number(2)), number(1))
        log = n.emit("log", n.emit("mul", n.emit("sub", number(1), x), n.emit("add", x, number(1))))
        v = n.emit("add", n.emit("mul", log, number(0.5)), number(2 / (math.pi * 0.147)))
        inner = n.emit("sub", n.emit("sqrt", n.emit("sub", n.emit("mul", v, v), n.emit("mul", log, number(1 / 0.147)))), v)
        return n.emit("mul", n.emit("mul", n.emit("sign", x), n.emit("sqrt", inner)), number(math.sqrt(2)))
    if post not in ("NONE", "", None):
        raise n.refuse(f"{n.op} asks for post_transform {post!r}, which is not known")
    return scores


def labelled(n: Reading, places: Value) -> Value:
    """The label of each place among the classes."""
    words = n.attr("classlabels_strings")
    numbers = n.attr("classlabels_ints") or n.attr("classlabels_int64s")
    if not words and not numbers:
        return places
    return n.emit("gather", n.constant(np.array(words, object) if words else np.array(numbers, np.int64)), places, axis=0)


def two_scores(n: Reading, score: Value, post: str, certain: bool, linear: bool = False) -> tuple[Thing, ...]:
    """Labels and scores of two classes from one score, a probability of the second where `certain`, else a distance: as ONNX Runtime does it, which
    gives the first class the rest to 1 also for distances of a linear model."""
    second = n.emit("greater", n.reshape(score, score.type.shape[:1]), n.like(score, 0.5 if certain else 0))
    rest = (certain or linear) and post != "LOGISTIC"
    if post == "PROBIT":
        score = transformed(n, score, post)
    first = n.emit("sub", n.like(score, 1), score) if rest else n.emit("neg", score)
    both = n.emit("concat", first, score, axis=1)
    return labelled(n, n.cast(second, I64)), transformed(n, both, post) if post == "LOGISTIC" else both


def _floats(n: Reading, name: str, like: Value) -> np.ndarray:
    return np.asarray(n.attr(name) or (), np.float32).astype(like.type.dtype.numpy)


def _features(n: Reading) -> Value:
    """Rows of features; a vector is one row, and what is neither f32 nor f64 is read as f32."""
    x = n.input(0)
    x = n.reshape(x, (1, x.type.size)) if x.type.rank == 1 else x
    if x.type.rank != 2 or x.type.dtype is STRING:
        raise n.refuse(f"{n.op} needs rows of numbers, got {x.type}")
    return x if x.type.dtype in (F32, F64) else n.cast(x, F32)


# --- preprocessing

@reads("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(n: Reading) -> Thing | tuple[Thing, ...]:
    x, places = n.inputs
    if x.type.dtype is STRING:
        return n.foreign()
    x = n.reshape(x, (1, x.type.size)) if x.type.rank == 1 else x
    return n.emit("gather", x, n.reshape(places, (places.type.size,)), axis=x.type.rank - 1)


@reads("Binarizer", domain=ML)
def binarizer(n: Reading) -> Thing:
    x = n.input(0)
    return n.cast(n.emit("greater", x, n.like(x, n.attr("threshold", 0.0))), x.type.dtype)


@reads("Scaler", domain=ML)
def scaler(n: Reading) -> Thing:
    """(x − offset) · scale, a number for all features or one for each."""
    x = n.input(0) if n.input(0).type.dtype.is_float else n.cast(n.input(0), F32)
    offset, scale = _floats(n, "offset", x), _floats(n, "scale", x)
    y = n.emit("sub", x, n.constant(offset)) if offset.size else x
    return n.cast(n.emit("mul", y, n.constant(scale)) if scale.size else y, F32)


@reads("Normalizer", domain=ML)
def normalizer(n: Reading) -> Thing:
    """Rows divided by their largest size, the sum of their sizes or their length."""
    x, norm = _features(n), n.attr("norm", "MAX")
    word = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}.get(norm)
    if word is None:
        raise n.refuse(f"Normalizer needs norm MAX, L1 or L2, got {norm!r}")
    size = n.emit(word, n.emit("abs", x) if norm == "MAX" else x, axes=(1,), keepdims=True)
    return n.cast(n.emit("div", x, n.emit("maximum", size, n.like(x, 1e-30))), F32)


@reads("Imputer", domain=ML)
def imputer(n: Reading) -> Thing:
    """One value replaced: NaN, or a number."""
    x = n.input(0)
    values = n.attr("imputed_value_floats") if x.type.dtype.is_float else n.attr("imputed_value_int64s")
    old = n.attr("replaced_value_float", 0.0) if x.type.dtype.is_float else n.attr("replaced_value_int64", 0)
    if not values or len(values) not in (1, x.type.shape[-1]):
        raise n.refuse(f"Imputer needs a value for all features of {x.type} or one for each, got {len(values or ())}")
    hit = n.emit("is_nan", x) if isinstance(old, float) and math.isnan(old) else n.emit("equal", x, n.like(x, old))
    return n.emit("where", hit, n.constant(np.array(values), x.type.dtype), x)


@reads("OneHotEncoder", domain=ML)
def one_hot_encoder(n: Reading) -> Thing | tuple[Thing, ...]:
    """What is none of the categories gives zeros; where that should be an error, the onnx package looks for it."""
    x, categories = n.input(0), n.attr("cats_int64s")
    if x.type.dtype is STRING or not categories or not n.flag("zeros", 1):
        return n.foreign()
    whole = x if x.type.dtype.is_integer else n.cast(x, I64)
    spread = n.reshape(whole, (*x.type.shape, 1))
    return n.cast(n.emit("equal", spread, n.constant(np.array(categories), whole.type.dtype)), F32)


@reads("FeatureVectorizer", domain=ML)
def feature_vectorizer(n: Reading) -> Thing:
    """Columns side by side, each input cut or filled with zeros to its dimension."""
    parts = []
    for x, size in zip(n.inputs, n.attr("inputdimensions") or [v.type.shape[-1] for v in n.inputs], strict=True):
        x = n.cast(n.reshape(x, (x.type.size, 1)) if x.type.rank == 1 else x, F32)
        more = size - x.type.shape[1]
        parts.append(n.slice(x, 1, 0, size) if more <= 0 else n.emit("concat", x, n.filled(0, (x.type.shape[0], more), F32), axis=1))
    return n.emit("concat", *parts, axis=1)


_KINDS: tuple[tuple[str, DType], ...] = (("floats", F32), ("int64s", I64), ("strings", STRING))


@reads("LabelEncoder", domain=ML)
def label_encoder(n: Reading) -> Thing | tuple[Thing, ...]:
    """Numbers looked up among numbers; NaN finds NaN."""
    x = n.input(0)
    keys, values = _column(n, "keys"), _column(n, "values")
    if keys is None or values is None or x.type.dtype is STRING or STRING in (_kind(keys), _kind(values)):
        return n.foreign()
    if keys.size != values.size or not keys.size:
        raise n.refuse(f"LabelEncoder needs as many values as keys, got {values.size} for {keys.size}")
    otherwise = n.attr("default_tensor")
    default = array_of(otherwise, n.program.source).reshape(()) if otherwise is not None else np.asarray(
        n.attr("default_float", -0.0) if values.dtype.kind == "f" else n.attr("default_int64", -1), values.dtype)
    spread = n.reshape(x, (*x.type.shape, 1))
    hits = n.emit("equal", spread, n.constant(keys.astype(x.type.dtype.numpy)))
    if x.type.dtype.is_float and np.isnan(keys).any():
        hits = n.emit("logical_or", hits, n.emit("logical_and", n.emit("is_nan", spread), n.constant(np.isnan(keys))))
    place = n.emit("arg_max", n.cast(hits, F32), axis=x.type.rank, keepdims=False)
    found = n.emit("reduce_max", hits, axes=(x.type.rank,), keepdims=False)
    return n.emit("where", found, n.emit("gather", n.constant(values), place, axis=0), n.constant(default))


def _column(n: Reading, name: str) -> np.ndarray | None:
    tensor = n.attr(f"{name}_tensor")
    if tensor is not None:
        return array_of(tensor, n.program.source).reshape(-1)
    return next((np.array(n.attr(f"{name}_{kind}"), dtype.numpy) for kind, dtype in _KINDS if n.attr(f"{name}_{kind}")), None)


def _kind(array: np.ndarray) -> DType | None:
    return STRING if array.dtype.kind in "OUS" else None


# --- linear models and support vectors

def _weighted(n: Reading, x: Value, outputs: int) -> Value:
    """x · coefficientsᵀ + intercepts."""
    w, b = _floats(n, "coefficients", x), _floats(n, "intercepts", x)
    if w.size != outputs * x.type.shape[1] or b.size not in (0, outputs):
        raise n.refuse(f"{n.op} needs {outputs} times as many coefficients as features, and {outputs} intercepts or none, got {w.size}, "
                       f"{x.type.shape[1]} and {b.size}")
    y = n.emit("matmul", x, n.constant(np.ascontiguousarray(w.reshape(outputs, -1).T)))
    return n.emit("add", y, n.constant(b)) if b.any() else y


@reads("LinearRegressor", domain=ML)
def linear_regressor(n: Reading) -> Thing:
    return transformed(n, n.cast(_weighted(n, _features(n), n.attr("targets", 1)), F32), n.attr("post_transform", "NONE"))


@reads("LinearClassifier", domain=ML)
def linear_classifier(n: Reading) -> tuple[Thing, ...]:
    """A class is what has the largest score; of two with one score between them the second where that is positive."""
    x, post = _features(n), n.attr("post_transform", "NONE")
    outputs = max(len(n.attr("intercepts") or ()), 1)
    classes = max(len(n.attr("classlabels_ints") or ()), len(n.attr("classlabels_strings") or ()))
    scores = n.cast(_weighted(n, x, outputs), F32)
    if outputs == 1:
        return n.foreign() if classes != 2 else two_scores(n, scores, post, False, linear=True)
    return labelled(n, n.emit("arg_max", scores, axis=1, keepdims=False)), transformed(n, scores, post)


@reads("SVMRegressor", domain=ML)
def svm_regressor(n: Reading) -> Thing:
    x, count = _features(n), n.attr("n_supports", 0)
    w, rho = _floats(n, "coefficients", x), _floats(n, "rho", x)
    near = x if not count else _kernel(n, x, _floats(n, "support_vectors", x).reshape(count, -1))
    if w.size != near.type.shape[1] or not rho.size:
        raise n.refuse(f"SVMRegressor needs {near.type.shape[1]} coefficients and a rho, got {w.size} and {rho.size}")
    y = n.cast(n.emit("add", n.emit("matmul", near, n.constant(w.reshape(-1, 1))), n.constant(rho[0])), F32)
    if n.flag("one_class"):
        return n.emit("where", n.emit("greater", y, n.like(y, 0)), n.like(y, 1), n.like(y, -1))
    return transformed(n, y, n.attr("post_transform", "NONE"))


def _kernel(n: Reading, x: Value, vectors: np.ndarray) -> Value:
    """How near each row is to each support vector."""
    kind, (gamma, coefficient, degree) = n.attr("kernel_type", "LINEAR"), (*_floats(n, "kernel_params", x), 0, 0, 0)[:3]
    if vectors.shape[1] != x.type.shape[1]:
        raise n.refuse(f"{n.op} needs support vectors of {x.type.shape[1]} features, got {vectors.shape[1]}")
    dot = n.emit("matmul", x, n.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dot
    if kind == "RBF":                                      # |x − s|² = x² − 2·x·s + s²
        own = n.emit("reduce_sum", n.emit("mul", x, x), axes=(1,), keepdims=True)
        apart = n.emit("add", n.emit("sub", own, n.emit("mul", dot, n.like(x, 2))), n.constant((vectors.astype(np.float64) ** 2).sum(1), x.type.dtype))
        return n.emit("exp", n.emit("mul", n.emit("maximum", apart, n.like(x, 0)), n.like(x, -gamma)))
    moved = n.emit("add", n.emit("mul", dot, n.like(x, gamma)), n.like(x, coefficient))
    if kind == "SIGMOID":
        return n.emit("tanh", moved)
    if kind == "POLY":
        return n.emit("pow", moved, n.like(x, int(degree)))
    raise n.refuse(f"{n.op} needs kernel_type LINEAR, POLY, RBF or SIGMOID, got {kind!r}")
