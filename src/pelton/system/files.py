"""Files that are written whole or not at all, and by one at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

try:
    import fcntl
except ImportError:  # without it nobody waits for others
    fcntl = None  # type: ignore[assignment]


def write(path: str | os.PathLike[str], pieces: Iterable[Any], *, durable: bool = False) -> None:
    """Puts the bytes of all pieces, one after another, at a path; OSError where that cannot be, and what was there
    before stays. Devices and pipes are not replaced by a file: they are written to.

    durable: the file has reached the disk before it replaces the other.
    """

    def put(handle: int) -> None:
        for piece in pieces:
            _write_all(handle, piece)

    if replaces(path):
        make(path, put, durable=durable)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # of a directory that is an OSError
    try:
        put(handle)
    finally:
        os.close(handle)


def refused(path: str | os.PathLike[str]) -> str | None:
    """Why no file can be put at a path, as far as that shows before it is tried; None where nothing stands in the
    way."""
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
    """Whether a file at this path comes to be by replacing what is there, if anything is."""
    return not os.path.exists(path) or os.path.isfile(path)


def make(path: str | os.PathLike[str], put: Callable[[int], None], *, durable: bool = False) -> None:
    """Has `put` write an empty file, open for reading and writing, and puts it at a path.

    Until it is whole the file has no name, so that nothing is left of it when the process is killed (open(2),
    O_TMPFILE); where the file system cannot do that (NFS), it is called `.NAME.….part`.
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
                # with a directory given, Python follows
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
    """An empty file without a name, open for reading and writing; None where the system has no such files."""
    try:
        handle = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):
        # what else is wrong the file with a name will say
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


@contextmanager
def alone(path: str | os.PathLike[str], waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Holds the file at a path, made if it is missing: who asks for it meanwhile, in any process, waits, and says so by
    `waiting`. A process that ends lets go of it. What cannot be held, as in a folder that can only be read, or on a
    file system without locks, is not waited for."""
    with ExitStack() as held:
        with suppress(OSError):
            while fcntl and not _hold(path, held, waiting):
                pass
        yield


def _hold(path: str | os.PathLike[str], held: ExitStack, waiting: Callable[[], object]) -> bool:
    """Whether the file that was taken is still the one at the path."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(handle, fcntl.LOCK_EX)
    # closing leaves it to children that were forked meanwhile
    held.callback(fcntl.flock, handle, fcntl.LOCK_UN)
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
