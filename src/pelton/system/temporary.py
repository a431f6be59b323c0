"""Folders for temporary files, which go when they are left; those of processes that were killed go when the next one
makes its first."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_PREFIX, _LOCK = "pelton-", ".lock"


@contextmanager
def room() -> Iterator[str]:
    """The path of a new folder for as long as the block takes."""
    base = os.path.realpath(tempfile.gettempdir())
    _sweep(base)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=base) as folder:
        # the system lets go of it when the process ends, however it ends
        handle = _locked(os.path.join(folder, _LOCK + ".new"), os.O_CREAT)
        try:
            if handle is not None:
                os.rename(os.path.join(folder, _LOCK + ".new"), os.path.join(folder, _LOCK))
            yield folder
        finally:
            if handle is not None:
                os.close(handle)


@functools.cache
def _sweep(base: str) -> None:
    """Removes the folders that nobody holds."""
    for entry in os.scandir(base):
        if entry.name.startswith(_PREFIX) and _owned(entry):
            handle = _locked(os.path.join(entry.path, _LOCK), 0)
            if handle is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(handle)


def _owned(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder of this user; not where it has just gone."""
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _locked(path: str, more: int) -> int | None:
    """A handle that holds the lock of a file; None where there is no such file, or another holds it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:
        os.close(handle)
        return None
