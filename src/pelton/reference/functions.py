"""Operators whose results have data-dependent shapes: functions of arrays, which scripts call by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pelton.errors import EngineError
from pelton.ops.suppression import non_max_suppression

from . import sequences, texts

Found = tuple[np.ndarray, ...]


def nonzero(x: np.ndarray) -> Found:
    """Returns the indices of nonzero elements, [rank, count], in row-major order; for a scalar an empty [0, count],
    with count 1 if it is nonzero."""
    return (np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim],)


def compress(x: np.ndarray, condition: np.ndarray, axis: int | None = None) -> Found:
    """Returns the slices along an axis, or the elements, for which the condition holds. Elements beyond the condition,
    and conditions beyond the elements, are ignored."""
    return (np.compress(condition[: x.size if axis is None else x.shape[axis]], x, axis=axis),)


def unique(x: np.ndarray, axis: int | None = None, sorted: bool = True) -> Found:
    """Returns the distinct values: (values, index of the first of each, for every element the index of its value, count
    of each).

    The values are in rising order, or in the order of their first occurrence.
    """
    if axis is not None and not x.size:
        kept = min(x.shape[axis], 1)  # empty slices are all alike
        index = np.arange(kept, dtype=np.int64)
        values, inverse = np.take(x, index, axis), np.zeros(x.shape[axis], np.int64)
        counts = np.full(kept, x.shape[axis], np.int64)
    else:
        values, index, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
    if not sorted:
        order = np.argsort(index, kind="stable")
        values, index, counts = np.take(values, order, axis or 0), index[order], counts[order]
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        inverse = place[inverse]
    return values, index.astype(np.int64), inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


def unique_in_order(x: np.ndarray) -> Found:
    """Returns the distinct values in the order of their first occurrence, for each element the index of its value, and
    the counts."""
    values, _, inverse, counts = unique(x, sorted=False)
    return values, inverse.reshape(x.shape), counts


def rows(x: np.ndarray, keys: list) -> tuple[list[dict]]:
    """Returns a dict per row, with a key per column."""
    return ([dict(zip(keys, row)) for row in x.reshape(-1, len(keys)).tolist()],)


def refused(*_: Any, why: str) -> Found:
    """Raises EngineError: replaces a branch that could not be translated, and is rarely taken."""
    raise EngineError(f"it cannot run: {why}")


FUNCTIONS: dict[str, Callable[..., tuple]] = {
    "nonzero": nonzero,
    "compress": compress,
    "unique": unique,
    "non_max_suppression": non_max_suppression,
    "rows": rows,
    "refused": refused,
    "normalized": texts.normalized,
    "tokens": texts.tokens,
    "unique_in_order": unique_in_order,
    "warped": sequences.warped,
    "bifurcated": sequences.bifurcated,
}
ATTRIBUTES: dict[str, dict[str, tuple[type, ...]]] = {
    "nonzero": {},
    "compress": {"axis": (int, type(None))},
    "unique": {"axis": (int, type(None)), "sorted": (bool,)},
    "non_max_suppression": {"center": (bool,)},
    "rows": {"keys": (list,)},
    "refused": {"why": (str,)},
    "normalized": {"case": (str,), "sensitive": (bool,), "stopwords": (list,)},
    "tokens": {"pad": (str,), "mark": (bool,), "separators": (list,), "expression": (str,), "shortest": (int,)},
    "unique_in_order": {},
    "warped": {},
    "bifurcated": {"shortest": (int,), "longest": (int,)},
}


def prepared(
    name: str, attributes: Any, instead: Mapping[str, Callable[..., Found]] = MappingProxyType({})
) -> Callable[..., Found]:
    """Returns the function of this name with these attributes, preferring `instead`. Raises ValueError for unknown
    names or attributes."""
    known = ATTRIBUTES.get(name)
    if (
        known is None
        or not isinstance(attributes, dict)
        or any(k not in known or type(v) not in known[k] for k, v in attributes.items())
    ):
        raise ValueError(f"there is no function {name!r} with attributes {attributes!r:.100}")
    function = instead.get(name, FUNCTIONS[name])
    return lambda *arrays: function(*arrays, **attributes)
