"""Tables of results in pages, between marks."""

from __future__ import annotations

from pathlib import Path

from pelton.system import files


def replace_part(page: Path, begin: str, end: str, lines: list[str]) -> None:
    """Replaces the lines between two marks of a page. Raises ValueError if the page lacks them."""
    text = page.read_text()
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} lacks the marks {begin} and {end}")
    files.write(page, ["\n".join([head + begin, *lines, end + tail]).encode()])
