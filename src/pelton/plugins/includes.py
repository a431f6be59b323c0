"""What a source in C includes besides the headers of the house: files of a plugin, which change on their own."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_INCLUDED = re.compile(r"""^[ \t]*#[ \t]*(?:include|embed)[ \t]*["<]([^">\n]+)[">]""", re.MULTILINE)


def with_included(text: str, house: Path | None = None) -> str:
    """A source with a line for every other file that it includes, and these in turn: the SHA-256 of its bytes.

    house: the folder where the compiler looks. Its files are left out, as their hash belongs to every key of code, and
    so are names that lead nowhere.
    """
    found: dict[Path, str] = {}

    def collect(text: str, folder: Path | None) -> None:
        for name in _INCLUDED.findall(text):
            path = Path(folder or "", name)
            if path not in found and path.is_absolute() and path.parent != house and path.is_file():
                data = path.read_bytes()
                found[path] = f"\n// {hashlib.sha256(data).hexdigest()}"
                collect(data.decode(errors="replace"), path.parent)

    collect(text, house)
    return text + "".join(found.values())


def with_paths(text: str, folder: Path) -> str:
    """A source whose includes of files in `folder`, where it lies, name these by their whole paths."""

    def whole(m: re.Match[str]) -> str:
        path = folder.absolute() / m[1]
        return m[0].replace(m[1], str(path)) if path.is_file() else m[0]

    return _INCLUDED.sub(whole, text)
