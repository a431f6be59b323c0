"""Operators whose results have whatever shape the data gives: functions of arrays, which scripts call by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pelton.errors import EngineError

from . import texts

Found = tuple[np.ndarray, ...]


def nonzero(x: np.ndarray) -> Found:
    """The indices of what is not zero, [rank, count], in row-major order; of a scalar as many as it is not zero,
    without numbers: [0, count]."""
    return (np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim],)


def compress(x: np.ndarray, condition: np.ndarray, axis: int | None = None) -> Found:
    """The slices along an axis, or the elements, for which the condition holds; what it does not reach to, or what it
    has beyond them, is left out."""
    return (np.compress(condition[: x.size if axis is None else x.shape[axis]], x, axis=axis),)


def unique(x: np.ndarray, axis: int | None = None, sorted: bool = True) -> Found:
    """What is there, each once: (values, index of the first of each, for every element the index of its value, how
    often each is there).

    In rising order, or in the order in which they come first.
    """
    if axis is not None and not x.size:
        kept = min(x.shape[axis], 1)  # slices without elements are all alike
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


def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    max_boxes: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    min_score: np.ndarray | None = None,
    center: bool = False,
) -> Found:
    """[count, 3] of (batch, class, box), best first: boxes [batch, n, 4] that no better one of their class overlaps by
    more than `overlap` (intersection over union), at most `max_boxes` per class, with scores [batch, class, n] above
    `min_score`. A box is two corners (y, x, y, x), or `center`: (x, y, width, height)."""
    limit = 0 if max_boxes is None else int(max_boxes.reshape(-1)[0])
    bound = np.float32(0 if overlap is None else overlap.reshape(-1)[0])
    floor = None if min_score is None else min_score.reshape(-1)[0]
    found: list[np.ndarray] = []
    for b, (every, by_class) in enumerate(zip(boxes, scores)):
        if center:
            low, high = every[:, :2] - every[:, 2:] / 2, every[:, :2] + every[:, 2:] / 2
        else:
            low, high = np.minimum(every[:, :2], every[:, 2:]), np.maximum(every[:, :2], every[:, 2:])
        for c, score in enumerate(by_class):
            taken = np.arange(score.size) if floor is None else np.flatnonzero(score > floor)
            order = taken[np.argsort(-score[taken], kind="stable")]
            kept = _apart(low[order], high[order], bound, limit)
            found.append(np.stack([np.full(kept.size, b), np.full(kept.size, c), order[kept]], 1))
    return (np.concatenate(found).astype(np.int64) if found else np.empty((0, 3), np.int64),)


def _apart(low: np.ndarray, high: np.ndarray, bound: np.float32, limit: int) -> np.ndarray:
    """The boxes, best first, that none of those before them overlaps too much; one pass over the rest for each that is
    kept."""
    y0, x0, y1, x1 = (np.ascontiguousarray(a, np.float32) for a in (low[:, 0], low[:, 1], high[:, 0], high[:, 1]))
    area, rest, kept = (y1 - y0) * (x1 - x0), np.arange(len(low)), list[int]()
    with np.errstate(all="ignore"):
        while rest.size and len(kept) < limit:
            kept.append(int(rest[0]))
            width = np.minimum(x1, x1[0])
            width -= np.maximum(x0, x0[0])
            height = np.minimum(y1, y1[0])
            height -= np.maximum(y0, y0[0])
            common = np.maximum(width, 0) * np.maximum(height, 0)
            # what shares nothing, or has no area, is apart whatever the bound
            apart = ~(common / (area + area[0] - common) > bound) | (common <= 0) | (area <= 0) | bool(area[0] <= 0)
            apart[0] = False
            rest, y0, x0, y1, x1, area = (a[apart] for a in (rest, y0, x0, y1, x1, area))
    return np.array(kept, np.int64)


def rows(x: np.ndarray, keys: list) -> tuple[list[dict]]:
    """A dict per row, with a key per column."""
    return ([dict(zip(keys, row)) for row in x.reshape(-1, len(keys)).tolist()],)


def refused(*_: Any, why: str) -> Found:
    """Raises EngineError: stands for a branch that could not be translated, which is rarely taken."""
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
}


def prepared(
    name: str, attributes: Any, instead: Mapping[str, Callable[..., Found]] = MappingProxyType({})
) -> Callable[..., Found]:
    """The function of a name with these attributes, one of `instead` if there is; ValueError where there is none, or
    they are not its own."""
    known = ATTRIBUTES.get(name)
    if (
        known is None
        or not isinstance(attributes, dict)
        or any(k not in known or type(v) not in known[k] for k, v in attributes.items())
    ):
        raise ValueError(f"there is no function {name!r} with attributes {attributes!r:.100}")
    found = instead.get(name, FUNCTIONS[name])
    return lambda *arrays: found(*arrays, **attributes)
