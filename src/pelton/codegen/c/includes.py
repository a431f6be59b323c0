"""What a source in C includes besides the headers of the house: files of a plugin, which change on their own."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pelton.codegen.template import SOURCES

_INCLUDED = re.compile(r"""^[ \t]*#[ \t]*(?:include|embed)[ \t]*["<]([^">\n]+)[">]""", re.MULTILINE)


def with_included(text: str) -> str:
    """A source with a line for every other file that it includes, and these in turn: the SHA-256 of its bytes.

    Files of the house are left out, as their hash belongs to every key, and names that lead nowhere from where the
    compiler looks.
    """
    found: dict[Path, str] = {}

    def collect(text: str, folder: Path) -> None:
        for name in _INCLUDED.findall(text):
            path = Path(folder, name)
            if path not in found and path.parent != SOURCES and path.is_file():
                data = path.read_bytes()
                found[path] = f"\n// {hashlib.sha256(data).hexdigest()}"
                collect(data.decode(errors="replace"), path.parent)

    collect(text, SOURCES)
    return text + "".join(found.values())
