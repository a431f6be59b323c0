"""Formats numbers and tables for people.

humanize formats sizes likewise, but `run`, `bench` and `inspect` need only numpy, and a fallback beside it would repeat
all of this. It has no nanoseconds.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import terminal

NARROWEST = 4  # minimum columns of a text


def size(count: float) -> str:
    """Formats bytes: 512 B, 1.1 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration(ns: float) -> str:
    """Formats nanoseconds in a suitable unit: 850 ns, 12.3 µs, 4.56 ms, 1.20 s."""
    for unit, factor, digits in (("s", 1e9, 2), ("ms", 1e6, 3), ("µs", 1e3, 1)):
        if ns >= factor:
            return f"{ns / factor:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def layouts(decided: Iterable[Mapping[str, Any]]) -> list[str]:
    """Formats choices among layouts (`meta["layouts"]`), a line for each region."""

    def more(by: str, cost: float, unit: str) -> str:
        return (
            f"{duration(cost)} more in that of {by}" if unit == "ns" else f"{size(cost)} more to copy in that of {by}"
        )

    return [
        f"{d['region']} [{'+'.join(d['layers'])}] has the layout of {d['template']}; "
        + ", ".join(more(by, c, d["unit"]) for by, c in d["more"].items())
        for d in decided
    ]


def count(n: int, noun: str, nouns: str = "") -> str:
    """Formats a number with its noun: 1 step, 2 steps."""
    return f"{n} {noun if n == 1 else nouns or noun + 's'}"


def sizes(shape: Iterable[int]) -> str:
    """Formats a shape in the form of options: 1x3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def printable(text: str) -> str:
    """Puts a text on one line: names of models may contain line ends, and control sequences of terminals."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(
    rows: Sequence[Sequence[str]],
    align: str,
    indent: str = "",
    *,
    heading: bool = True,
    styles: Mapping[int, str] = {},  # noqa: B006
) -> str:
    """Formats rows in columns, each on one line; `heading`: the first row is one. `align`: one character per column, l
    or r. styles: number of a row → its colour. Tables with a heading are coloured if stdout shows colours, and fit the
    terminal's width."""
    rows = [[printable(cell) for cell in row] for row in rows]
    colored = heading and terminal.colored(sys.stdout)
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    if colored or heading and sys.stdout.isatty():
        widths = _fitted(widths, align, shutil.get_terminal_size().columns - len(indent))
    lines = ["  ".join(map(_cell, row, widths, align)).rstrip() for row in rows]
    if colored:
        lines = [terminal.painted(line, styles.get(i, "")) for i, line in enumerate(lines)]
        lines[0] = terminal.painted(lines[0], "bold")
    return "\n".join(indent + line for line in lines)


def _fitted(widths: Sequence[int], align: str, room: int) -> list[int]:
    """Returns the widths of columns that fit, as far as the widest texts can shrink; numbers never do."""
    result, texts = list(widths), [i for i, side in enumerate(align) if side == "l"]
    while sum(result) + 2 * (len(result) - 1) > room and texts:
        widest = max(texts, key=result.__getitem__)
        if result[widest] <= NARROWEST:
            break
        result[widest] -= 1
    return result


def _cell(value: str, width: int, side: str) -> str:
    return shortened(value, width).ljust(width) if side == "l" else value.rjust(width)
