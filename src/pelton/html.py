"""Small pieces of escaped HTML for the notebook views of engines, ports and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text(given: str) -> str:
    """Escapes text as HTML. Lone surrogates in model names become "?": no page can hold them."""
    return escape(given.encode("utf-8", "replace").decode())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Builds a table; numbers arrive as text."""
    top = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def shortened(given: str, width: int = 60) -> str:
    """Shortens a text with an ellipsis if it is longer than `width`."""
    return given if len(given) <= width else given[: width - 1] + "…"
