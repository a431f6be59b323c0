"""Small pieces of HTML, every text in them escaped: what notebooks show of engines, ports and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table; numbers are as they are given, as texts."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def shortened(text: str, width: int = 60) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"
