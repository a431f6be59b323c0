"""Atomic writes of files, and locks on files between processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

try:
    import fcntl
except ImportError:  # without it there are no locks
    fcntl = None  # type: ignore[assignment]


def write(path: str | os.PathLike[str], pieces: Iterable[Any], *, durable: bool = False) -> None:
    """Writes the concatenation of `pieces` to a file atomically; on failure raises OSError and keeps the old file.

    Devices and pipes are written to, not replaced. durable: sync the file to disk before it replaces the old one.
    """

    def put(handle: int) -> None:
        for piece in pieces:
            _write_all(handle, piece)

    if replaces(path):
        make(path, put, durable=durable)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # raises OSError for a directory
    try:
        put(handle)
    finally:
        os.close(handle)


def rejection(path: str | os.PathLike[str]) -> str | None:
    """Returns the reason why no file can be written at a path, as far as it is known beforehand; else None."""
    folder = os.path.dirname(os.path.realpath(path))
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            return f"{folder} is no folder"
        if not replaces(path):
            return "it is a folder or a device, not a file"
    except FileNotFoundError:
        return f"there is no folder {folder}"
    except OSError as e:
        return f"{folder}: {e.strerror}"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"files cannot be made in the folder {folder}"
    return None


def replaces(path: str | os.PathLike[str]) -> bool:
    """Returns True if writing at this path replaces or creates a file, rather than writing to a device."""
    return not os.path.exists(path) or os.path.isfile(path)


def make(path: str | os.PathLike[str], put: Callable[[int], None], *, durable: bool = False) -> None:
    """Creates a file at a path atomically; `put` writes to its descriptor, open for reading and writing.

    The file has no name until it is complete: a killed process leaves nothing behind (open(2), O_TMPFILE). On file
    systems without that (NFS), it is called `.NAME.….part`.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.part")
    try:
        handle = _nameless(folder)
        named = handle is None
        if handle is None:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            put(handle)
            if durable:
                os.fsync(handle)
            if not named:
                # Python follows the link only if a directory is passed
                os.link(f"/proc/self/fd/{handle}", part, src_dir_fd=handle, follow_symlinks=True)
        finally:
            os.close(handle)
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    if durable:
        _sync_directory(folder)


def _nameless(folder: str) -> int | None:
    """Opens an unnamed empty file; None if the file system has no such files."""
    try:
        handle = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):
        # other errors recur with the named file
        return None
    if os.path.exists(f"/proc/self/fd/{handle}"):
        return handle
    os.close(handle)
    return None


def _write_all(handle: int, piece: Any) -> None:
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[os.write(handle, rest[: 1 << 26]) :]


def _sync_directory(path: str) -> None:
    """Syncs a renaming to disk, if the file system can; the file itself is synced already."""
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


@contextmanager
def alone(path: str | os.PathLike[str], waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Context manager: holds a lock on a file, created if missing, among all processes.

    waiting: called before waiting for another process. The lock ends with the process. Where locking fails, as in a
    read-only folder or on a file system without locks, there is none.
    """
    with ExitStack() as held:
        with suppress(OSError):
            while fcntl and not _hold(path, held, waiting):
                pass
        yield


def _hold(path: str | os.PathLike[str], held: ExitStack, waiting: Callable[[], object]) -> bool:
    """Locks the file; returns True if it is still the one at the path."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(handle, fcntl.LOCK_EX)
    # closing alone would leave it to forked children
    held.callback(fcntl.flock, handle, fcntl.LOCK_UN)
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
