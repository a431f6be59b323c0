"""Temporary folders, removed after use; the next process that needs one removes those of killed processes."""

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
def temporary_folder() -> Iterator[str]:
    """Context manager: creates a folder, yields its path, and removes it at the end of the block."""
    base = os.path.realpath(tempfile.gettempdir())
    _sweep(base)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=base) as folder:
        # the system releases the lock when the process ends, even if it is killed
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
    """Removes the folders that no process holds."""
    for entry in os.scandir(base):
        if entry.name.startswith(_PREFIX) and _owned(entry):
            handle = _locked(os.path.join(entry.path, _LOCK), 0)
            if handle is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(handle)


def _owned(entry: os.DirEntry[str]) -> bool:
    """Returns True if it is a folder of this user; False if it is gone."""
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _locked(path: str, more: int) -> int | None:
    """Locks a file and returns its descriptor; None if there is no such file, or another process holds it."""
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
