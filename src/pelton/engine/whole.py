"""Files that are written whole or not at all."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any


def write(path: str | os.PathLike[str], pieces: Iterable[Any], *, durable: bool = False) -> None:
    """Puts the bytes of all pieces, one after another, at a path; OSError where that cannot be, and what was there before stays. Devices and pipes are not
    replaced by a file: they are written to.

    durable: the file has reached the disk before it replaces the other.
    """
    def put(handle: int) -> None:
        for piece in pieces:
            _write_all(handle, piece)
    if replaces(path):
        make(path, put, durable=durable)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)                 # of a directory that is an OSError
    try:
        put(handle)
    finally:
        os.close(handle)


def replaces(path: str | os.PathLike[str]) -> bool:
    """Whether a file at this path comes to be by replacing what is there, if anything is."""
    return not os.path.exists(path) or os.path.isfile(path)


def make(path: str | os.PathLike[str], put: Callable[[int], None], *, durable: bool = False) -> None:
    """Has `put` write an empty file, open for reading and writing, and puts it at a path."""
    path = os.path.realpath(path)
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.urandom(6).hex()}.part")
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            put(handle)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    if durable:
        _sync_directory(os.path.dirname(path))


def _write_all(handle: int, piece: Any) -> None:
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[os.write(handle, rest[:1 << 26]):]


def _sync_directory(path: str) -> None:
    """Makes the renaming durable where the file system knows how; the file itself is on disk."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
