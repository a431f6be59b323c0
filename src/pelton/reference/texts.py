"""Operators on texts whose results have data-dependent shapes: functions of arrays, which scripts call by name."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from pelton.ops.expressions import compiled_safely

START, END = "\x02", "\x03"  # mark the beginning and the end of a text
MAX_TOKENS = 1 << 24  # maximum texts in a table of tokens

Found = tuple[np.ndarray, ...]


def normalized(x: np.ndarray, case: str = "NONE", sensitive: bool = False, stopwords: list | None = None) -> Found:
    """Returns the texts without stop words, in lower or upper case, or unchanged; one empty text if none is left.

    Case is Unicode's, whatever the locale.
    """
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case, str)
    texts = x.reshape(-1).tolist()
    if stopwords:
        alike = str if sensitive else str.lower
        dropped = {alike(w) for w in stopwords}
        texts = [t for t in texts if alike(t) not in dropped] or [""]
    return (_array([change(t) for t in texts]).reshape((*x.shape[:-1], -1) if stopwords else x.shape),)


def tokens(
    x: np.ndarray,
    pad: str = "#",
    mark: bool = False,
    separators: list | None = None,
    expression: str = "",
    shortest: int = 1,
) -> Found:
    """Returns the parts of each text, […, longest], filled up with `pad`: matches of an expression, else parts between
    separators, else single letters."""
    split = finder(expression) if expression else splitter(separators or [""])
    rows = [[t for t in split(text) if len(t) >= shortest] for text in x.reshape(-1).tolist()]
    if mark:
        rows = [[START, *row, END] for row in rows]
    longest = max(map(len, rows), default=0)
    if longest * len(rows) > MAX_TOKENS:
        raise ValueError(
            f"{len(rows)} texts, one with {longest} tokens, would need a table of more than {MAX_TOKENS} texts;"
            " pass fewer texts per run"
        )
    return (_array([t for row in rows for t in (*row, *[pad] * (longest - len(row)))]).reshape((*x.shape, longest)),)


def finder(expression: str) -> Callable[[str], list[str]]:
    compiled = compiled_safely(expression)
    return lambda text: [m.group() for m in compiled.finditer(text) if m.group()]


def splitter(separators: list) -> Callable[[str], list[str]]:
    """Returns a function from a text to its parts, split by one separator after the other."""
    if not any(separators):
        return list
    compiled = [compiled_safely(s) for s in separators if s]

    def split(text: str) -> list[str]:
        parts = [text]
        for separator in compiled:
            parts = [p for part in parts for p in _between(separator, part)]
        return [p for p in parts if p]

    return split


def _between(separator: re.Pattern, text: str) -> list[str]:
    """Returns the parts of a text between matches, without groups."""
    parts, start = [], 0
    for m in separator.finditer(text):
        if m.end() > m.start():
            parts.append(text[start : m.start()])
            start = m.end()
    return [*parts, text[start:]]


def _array(texts: list[str]) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
