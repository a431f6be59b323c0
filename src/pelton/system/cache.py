"""The cache directory: entries are written atomically, verified when read, and evicted least recently used first."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import files
from pelton.logs import Logger
from pelton.errors import InputError

if TYPE_CHECKING:
    from pelton.options import Options

log = Logger("pelton.cache")

# folder → suffixes of its files; no other files are ever touched
PARTS = {
    "objects": (".o",),
    "cubins": (".cubin",),
    "times": (".json",),
    "guarded": (".ok",),
    "sessions": (".pelton", ".json", ".lock"),
    "imports": (".onnx",),
}
LIMIT = 4 * 10**9  # bytes, if unspecified
# fraction of the limit that eviction frees: not every build then evicts
SPARE = 0.1
KEPT = 90 * 24 * 3600  # seconds after which unused entries are evicted
# seconds after which the directory is scanned, even if it hardly grew
DAY = 24 * 3600
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
# file with the time of the last scan, the bytes then, and the bytes added by each build since
LEDGER = "size.txt"
DIGEST = hashlib.sha256().digest_size

_warned: set[Path] = set()  # unusable directories already warned about


@dataclass(frozen=True)
class Entry:
    """A file of the cache. size: bytes. used: time of its last read or write, in seconds since 1970."""

    path: str
    part: str
    size: int
    used: float


class Cache:
    """A directory of entries, shared by any number of processes; without `home`, nothing is stored.

    An entry's time of use is its modification time, which reading sets, as file systems often do not record reads.
    Entries may be removed at any time; readers keep their bytes or mappings. A directory that cannot be read or written
    is no error and costs only time.
    """

    def __init__(self, home: str | os.PathLike[str] | None, limit: int = LIMIT):
        self.home, self.limit = Path(home) if home is not None else None, limit
        self._added: list[int] = []

    def path(self, part: str, name: str = "") -> Path | None:
        """Returns the path of an entry, or of a whole part; None without a directory."""
        return self.home / part / name if self.home is not None else None

    def read(self, part: str, name: str) -> bytes | None:
        """Returns the bytes stored under a name; None if missing or damaged."""
        path = self.path(part, name)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self.refused(e)
            return None
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        mark_used(path)
        return data[DIGEST:]

    def store(self, part: str, name: str, data: bytes) -> None:
        path = self.path(part, name)
        if path is not None:
            self.write(path, hashlib.sha256(data).digest() + data)

    def write(self, path: Path, data: bytes) -> None:
        """Writes a file of the cache unchanged."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write(path, [data])
        except OSError as e:
            self.refused(e)
        else:
            self.added(len(data))

    def refused(self, e: Exception) -> None:
        """Warns, once per directory, that it cannot be used."""
        if self.home is not None and self.home not in _warned:
            _warned.add(self.home)
            log.warning("%s", self._unusable(e))

    def _unusable(self, e: Exception) -> str:
        return (
            f"the cache {self.home} cannot be used ({getattr(e, 'strerror', None) or e}): the next build starts"
            " from scratch; set another directory with PELTON_CACHE_DIR"
        )

    def problem(self) -> str | None:
        """Tries to store a file; returns the obstacle and its remedy, or None if it works."""
        if self.home is None:
            return "there is no cache directory, as this user has no home; name one with PELTON_CACHE_DIR"
        absent = [p for p in (self.home, *self.home.parents) if not os.path.exists(p)]
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=self.home):
                return None
        except OSError as e:
            return self._unusable(e)
        finally:
            for p in absent:  # removed again, unless another process uses it by now
                with contextlib.suppress(OSError):
                    p.rmdir()

    def added(self, size: int) -> None:
        """Counts added bytes for the next `settle`."""
        self._added.append(size)

    def settle(self) -> None:
        """Evicts entries above the limit.

        Scans the directory only if the bytes added by all processes require it.
        """
        added, self._added = sum(self._added), []
        if self.home is None:
            return
        try:
            if self._grown(added):
                self.trim(self.limit, spare=SPARE)
        except OSError as e:
            self.refused(e)

    def _grown(self, added: int) -> bool:
        """Returns True if the directory may exceed its limit, or was not scanned for a day."""
        assert self.home is not None
        ledger = self.home / LEDGER
        if added:
            with open(ledger, "ab") as f:
                f.write(b"%d\n" % added)
        try:
            looked, *sizes = map(int, ledger.read_bytes().split())
        except (FileNotFoundError, ValueError):
            return True
        return sum(sizes) > self.limit or not 0 <= time.time() - looked <= DAY

    def entries(self) -> list[Entry]:
        """Returns all entries; raises OSError if the directory cannot be read."""
        return [
            e
            for part, endings in PARTS.items()
            if self.home is not None
            for e in _entries(str(self.home / part), part, endings)
        ]

    def trim(self, limit: float, *, spare: float = 0, kept: float = KEPT) -> list[Entry]:
        """Evicts entries unused for `kept` seconds and, above `limit` bytes, the least recently used; returns them.

        spare: fraction of the limit to free in the latter case. Files that cannot be removed stay. Raises OSError if
        the directory cannot be read.
        """
        assert self.home is not None
        entries, now = sorted(self.entries(), key=lambda e: e.used), time.time()
        total = sum(e.size for e in entries)
        goal = limit if total <= limit else limit * (1 - spare)
        gone = []
        for e in entries:
            old = e.used < now - kept
            if total <= goal and not old:
                break
            # locks have no bytes, and a process may be waiting for one
            if (old or e.size) and _removed(e.path):
                total -= e.size
                gone.append(e)
        if gone:
            log.info(
                "%d files with %d bytes of the cache %s were evicted: unused for long, or the least recently used above"
                " its limit of %d bytes",
                len(gone),
                sum(e.size for e in gone),
                self.home,
                limit,
            )
        with contextlib.suppress(OSError):  # then the next build scans again
            if self.home.is_dir():
                files.write(self.home / LEDGER, [b"%d %d\n" % (now, total)])
        return gone

    def clear(self) -> list[Entry]:
        """Removes all entries, as `trim`."""
        return self.trim(0, kept=-math.inf)


def mark_used(path: Path) -> None:
    """Marks an entry as used now, if possible."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _entries(folder: str, part: str, endings: tuple[str, ...]) -> Iterator[Entry]:
    try:
        listing = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with listing:
        for f in listing:
            if f.is_dir(follow_symlinks=False):
                yield from _entries(f.path, part, endings)
            elif f.is_file(follow_symlinks=False) and (f.name.endswith(endings) or f.name.endswith(".part")):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    s = f.stat(follow_symlinks=False)
                    # an unfinished file of a killed process
                    if f.name.endswith(endings) or s.st_mtime < time.time() - DAY:
                        yield Entry(f.path, part, s.st_size, s.st_mtime)


def _removed(path: str) -> bool:
    """Removes a file; returns True if it is gone, by this process or another."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def open_cache(options: Options) -> Cache:
    """Opens the cache of a build or a session; raises InputError for an invalid PELTON_CACHE_LIMIT."""
    text = os.environ.get("PELTON_CACHE_LIMIT")
    try:
        limit = parse_size(text) if text else LIMIT
    except ValueError as e:
        raise InputError(f"PELTON_CACHE_LIMIT must be {e}") from None
    return Cache(directory(options.cache_dir), limit if options.cache_limit is None else options.cache_limit)


def directory(given: str | os.PathLike[str] | None = None) -> Path | None:
    """Returns the directory of compiled kernels, times and session engines; None without a home directory.

    It is `given`, else PELTON_CACHE_DIR, else in the user's cache directory (XDG Base Directory Specification).
    platformdirs returns the same on Linux, but engines need this directory with no package but numpy.
    """
    chosen = given if given is not None else os.environ.get("PELTON_CACHE_DIR") or None
    if chosen is not None:
        return Path(chosen)
    home = os.path.expanduser("~")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "pelton") if home != "~" else None


def parse_size(text: str) -> int:
    """Parses a number of bytes, such as 500MB, 1.5 GB or 800000; raises ValueError naming the expected form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if not match:
        raise ValueError(f"a size such as 500MB or 4GB, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])
