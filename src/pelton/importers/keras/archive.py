"""Checks of a .keras archive before Keras may open it: its size, the names in it, and code in its layers."""

from __future__ import annotations

import lzma
import os
import stat
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import Any

from pelton.errors import ModelError
from pelton.importers import signs

FREE, RATIO = 1 << 28, 20  # bytes that any archive may expand to, and a multiple of its own size
ENTRIES = 10_000
CONFIG = 1 << 26  # bytes of the layers' description
LINK_MODE = 16  # shift of the Unix mode within external attributes


def allows_code() -> bool:
    """True if the user allows models to run Python code of their own."""
    return os.environ.get("PELTON_UNSAFE_KERAS") == "1"


def check_archive(source: Any) -> None:
    """Raises ModelError for an archive (a path or bytes) that would expand to far more than its size, writes outside
    its folder, is damaged, or has Lambda layers, unless `allows_code`."""
    name = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the given archive"
    try:
        size = os.path.getsize(source) if isinstance(source, (str, os.PathLike)) else len(source)
        with signs.open_zip(source) as archive:
            entries = archive.infolist()
            _check_entries(entries, size, name)
            config = archive.read("config.json")
    except ModelError:
        raise
    # zipfile's errors for damaged and encrypted archives
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as e:
        raise ModelError(f"{name} is a damaged archive of Keras: {e}; save the model again") from None
    if b'"__lambda__"' in config and not allows_code():
        raise ModelError(
            f"{name} has Lambda layers, whose Python code would be run; replace them by layers or registered functions,"
            " or set PELTON_UNSAFE_KERAS=1 if you trust the model as you trust a program"
        )


def _check_entries(entries: list[zipfile.ZipInfo], size: int, name: str) -> None:
    if len(entries) > ENTRIES:
        raise ModelError(f"{name} has {len(entries)} entries; at most {ENTRIES} are expected of a model of Keras")
    total = sum(e.file_size for e in entries)
    limit = max(FREE, RATIO * size)
    if total > limit:
        raise ModelError(
            f"{name} has {size} bytes and would expand to {total}; at most {limit} are expected of a model of Keras, so"
            " it is refused"
        )
    names = [e.filename for e in entries]
    if len(set(names)) < len(names):
        raise ModelError(f"{name} has two entries of one name; refused")
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in entry.filename:
            raise ModelError(f"{name} has an entry {entry.filename!r} outside of its folder; refused")
        if stat.S_ISLNK(entry.external_attr >> LINK_MODE):
            raise ModelError(f"{name} has an entry {entry.filename!r}, a link; refused")
        if entry.filename == "config.json" and entry.file_size > CONFIG:
            raise ModelError(f"{name} describes its layers in {entry.file_size} bytes; at most {CONFIG} are read")
