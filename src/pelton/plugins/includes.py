"""Resolves a C source's includes outside Pelton's own headers: files of a plugin, which change independently."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_INCLUDED = re.compile(r"""^[ \t]*#[ \t]*(?:include|embed)[ \t]*["<]([^">\n]+)[">]""", re.MULTILINE)


def with_included(text: str, house: Path | None = None) -> str:
    """Adds a line with the SHA-256 of the bytes of every other file that a source includes, directly or not.

    house: the compiler's own include folder. Its files are left out, as every key of code contains their hash already,
    and so are missing files.
    """
    digests: dict[Path, str] = {}

    def collect(text: str, folder: Path | None) -> None:
        for name in _INCLUDED.findall(text):
            path = Path(folder or "", name)
            if path not in digests and path.is_absolute() and path.parent != house and path.is_file():
                data = path.read_bytes()
                digests[path] = f"\n// {hashlib.sha256(data).hexdigest()}"
                collect(data.decode(errors="replace"), path.parent)

    collect(text, house)
    return text + "".join(digests.values())


def with_paths(text: str, folder: Path) -> str:
    """Rewrites includes of files in `folder` to their whole paths."""

    def whole(m: re.Match[str]) -> str:
        path = folder.absolute() / m[1]
        return m[0].replace(m[1], str(path)) if path.is_file() else m[0]

    return _INCLUDED.sub(whole, text)
