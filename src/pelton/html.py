"""Small pieces of HTML, every text in them escaped: what notebooks show of engines, ports and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text(given: str) -> str:
    """Text as HTML. Names of models may have halves of surrogate pairs, which no page can hold: they become "?"."""
    return escape(given.encode("utf-8", "replace").decode())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table; numbers are as they are given, as texts."""
    top = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def shortened(given: str, width: int = 60) -> str:
    """The text, or its beginning and an ellipsis."""
    return given if len(given) <= width else given[: width - 1] + "…"
