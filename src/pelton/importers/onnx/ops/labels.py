"""Readers of lookups (labels, categories, maps): host steps for texts, kernels for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.bindings import MapInput, MapSequence
from pelton.ir.types import F32, I64, STRING, DType

from pelton.importers.onnx.file import array_of
from pelton.importers.onnx.node import Reading, Binding, reads
from .ml import ML


@reads("OneHotEncoder", domain=ML)
def one_hot_encoder(n: Reading) -> Binding | tuple[Binding, ...]:
    """Maps elements of no category to zeros; where they should be an error, the onnx package raises it."""
    x, categories = n.input(0), n.attr("cats_int64s")
    if not n.flag("zeros", 1):
        return n.foreign()
    if x.type.dtype is STRING:
        words = np.array(n.attr("cats_strings") or (), object)
        place = n.reshape(n.emit("lookup", x, n.constant(words)), (*x.type.shape, 1))
        return n.cast(n.emit("equal", place, n.count(words.size)), F32)
    if not categories:
        return n.foreign()
    whole = x if x.type.dtype.is_integer else n.cast(x, I64)
    spread = n.reshape(whole, (*x.type.shape, 1))
    return n.cast(n.emit("equal", spread, n.constant(np.array(categories), whole.type.dtype)), F32)


_KINDS: tuple[tuple[str, DType], ...] = (("floats", F32), ("int64s", I64), ("strings", STRING))


@reads("LabelEncoder", domain=ML)
def label_encoder(n: Reading) -> Binding | tuple[Binding, ...]:
    """Maps elements from keys to values; NaN matches NaN."""
    x = n.input(0)
    keys, values = _column(n, "keys"), _column(n, "values")
    # opset 1: maps words to their indices, or indices to words
    if keys is None and n.attr("classes_strings"):
        words = np.array(n.attr("classes_strings"), object)
        indices = np.arange(words.size)
        return (
            _emit_lookup(n, x, words, indices, n.attr("default_int64", -1))
            if x.type.dtype is STRING
            else (_emit_lookup(n, x, indices, words, n.attr("default_string", "_Unused")))
        )
    if keys is None or values is None:
        raise n.refuse("LabelEncoder needs keys and values")
    if keys.size != values.size or not keys.size:
        raise n.refuse(f"LabelEncoder needs as many values as keys, got {values.size} for {keys.size}")
    return _emit_lookup(n, x, keys, values, _default_label(n, values.dtype))


def _default_label(n: Reading, dtype: np.dtype) -> Any:
    """Returns LabelEncoder's value for unknown keys, by the element type of its values."""
    tensor = n.attr("default_tensor")
    if tensor is not None:
        return array_of(tensor, n.program.source).reshape(-1)[0]
    if dtype.kind == "f":
        return n.attr("default_float", -0.0)
    if dtype.kind in "OUS":
        return n.attr("default_string", "_Unused")
    return n.attr("default_int64", -1)


def _emit_lookup(n: Reading, x: Value, keys: np.ndarray, values: np.ndarray, default: Any) -> Value:
    """Returns the value of each element's key; the default for other elements."""
    if (x.type.dtype is STRING) != (keys.dtype.kind in "OUS"):
        raise n.refuse(
            f"{n.op} looks {x.type} up among keys that are {'texts' if keys.dtype.kind in 'OUS' else 'numbers'}"
        )
    table = n.constant(np.append(values, np.array(default, values.dtype)))
    if x.type.dtype is STRING:
        place = n.emit("lookup", x, n.constant(keys))
        place = n.emit("where", n.emit("less", place, n.constant(0, I64)), n.constant(values.size, I64), place)
        return n.emit("gather", table, place, axis=0)
    spread = n.reshape(x, (*x.type.shape, 1))
    hits = n.emit("equal", spread, n.constant(keys.astype(x.type.dtype.numpy)))
    if x.type.dtype.is_float and np.isnan(keys.astype(x.type.dtype.numpy)).any():
        hits = n.emit(
            "logical_or",
            hits,
            n.emit("logical_and", n.emit("is_nan", spread), n.constant(np.isnan(keys.astype(x.type.dtype.numpy)))),
        )
    is_key = n.emit("reduce_max", hits, axes=(x.type.rank,), keepdims=False)
    place = n.emit("arg_max", n.cast(hits, F32), axis=x.type.rank, keepdims=False)
    return n.emit("gather", table, n.emit("where", is_key, place, n.constant(values.size, I64)), axis=0)


def _column(n: Reading, name: str) -> np.ndarray | None:
    tensor = n.attr(f"{name}_tensor")
    if tensor is not None:
        return array_of(tensor, n.program.source).reshape(-1)
    return next(
        (np.array(n.attr(f"{name}_{kind}"), dtype.numpy) for kind, dtype in _KINDS if n.attr(f"{name}_{kind}")), None
    )


@reads("CategoryMapper", domain=ML)
def category_mapper(n: Reading) -> Binding:
    x = n.input(0)
    words, numbers = np.array(n.attr("cats_strings") or (), object), np.array(n.attr("cats_int64s") or (), np.int64)
    if words.size != numbers.size or not words.size:
        raise n.refuse(f"CategoryMapper needs as many words as numbers, got {words.size} and {numbers.size}")
    if x.type.dtype is STRING:
        return _emit_lookup(n, x, words, numbers, n.attr("default_int64", -1))
    return _emit_lookup(n, x, numbers, words, n.attr("default_string", "_Unused"))


# --- maps


@reads("DictVectorizer", domain=ML)
def dict_vectorizer(n: Reading) -> Binding:
    """Returns [1, vocabulary]: the value of each key of the vocabulary, 0 for keys missing in the map."""
    mapping = n.bindings[0] if n.bindings else None
    if not isinstance(mapping, MapInput):
        raise n.refuse("DictVectorizer needs a map, which must be an input of the model")
    words, numbers = n.attr("string_vocabulary"), n.attr("int64_vocabulary")
    keys, values = mapping.keys, mapping.values
    if (keys.type.dtype is STRING) != bool(words) or not (words or numbers) or values.type.dtype is STRING:
        raise n.refuse(
            "DictVectorizer needs a vocabulary of its map's key type, and numbers as values, got a map from"
            f" {keys.type.dtype.value} to {values.type.dtype.value}"
        )
    place = n.emit("lookup", keys, n.constant(np.array(words, object))) if words else keys
    vocabulary = n.count(len(words)) if words else n.constant(np.array(numbers, np.int64))
    rows = (*keys.type.shape, 1)
    hit = n.emit("equal", n.reshape(place, rows), vocabulary)
    return n.emit(
        "reduce_sum", n.emit("where", hit, n.reshape(values, rows), n.like(values, 0)), axes=(0,), keepdims=True
    )


@reads("ZipMap", domain=ML)
def zip_map(n: Reading) -> Binding:
    """Creates a dict per row; a vector is one row."""
    x, words, numbers = n.input(0), n.attr("classlabels_strings"), n.attr("classlabels_int64s")
    keys = words or numbers
    x = n.reshape(x, (1, *x.type.shape)) if x.type.rank == 1 else x
    if not keys or x.type.rank != 2 or x.type.shape[1] != len(keys):
        raise n.refuse(
            f"ZipMap needs rows of scores and a label for each column, got {x.type} and {len(keys or ())} labels"
        )
    return MapSequence(x, tuple(keys))
