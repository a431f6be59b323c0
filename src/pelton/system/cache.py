"""The cache directory: entries that are written whole, read verified, and removed, the least recently used first, where
all together take too much."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import files
from pelton.errors import InputError

if TYPE_CHECKING:
    from pelton.options import Options

log = logging.getLogger("pelton.cache")

# what a cache directory has: folder → how names of its files end. Nothing else in it is ever touched.
PARTS = {"objects": (".o",), "cubins": (".cubin",), "times": (".json",), "sessions": (".pelton", ".json", ".lock")}
LIMIT = 4 * 10**9  # bytes, where nobody gives a limit
# part of the limit that is free after entries had to go, so that not every build looks for some
SPARE = 0.1
KEPT = 90 * 24 * 3600  # seconds for which an entry stays that nobody uses
# seconds after which a build looks at the directory though it has not grown much
DAY = 24 * 3600
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
# when the directory was last measured, its bytes then, and what every build added since
LEDGER = "size.txt"
DIGEST = hashlib.sha256().digest_size

_told: set[Path] = set()  # directories of which it was said that nothing can be kept there


@dataclass(frozen=True)
class Entry:
    """A file of the cache; `used`: when it was last written or read, in seconds since 1970."""

    path: str
    part: str
    size: int
    used: float


class Cache:
    """A directory of entries, for any number of processes at once; `home` None is one that keeps nothing.

    When an entry was used is its time of modification, which reading sets (file systems often do not note when files
    are read). Entries may go at any time: who reads one has its bytes, or its mapping, as long as they are needed. A
    directory that cannot be read or written is no error, it only costs time.
    """

    def __init__(self, home: str | os.PathLike[str] | None, limit: int = LIMIT):
        self.home, self.limit = Path(home) if home is not None else None, limit
        self._added: list[int] = []

    def path(self, part: str, name: str = "") -> Path | None:
        """Where an entry lies, or all of a part; None where nothing is kept."""
        return self.home / part / name if self.home is not None else None

    def read(self, part: str, name: str) -> bytes | None:
        """What was stored under that name; None where there is nothing, or it is damaged."""
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
        used(path)
        return data[DIGEST:]

    def store(self, part: str, name: str, data: bytes) -> None:
        path = self.path(part, name)
        if path is not None:
            self.write(path, hashlib.sha256(data).digest() + data)

    def write(self, path: Path, data: bytes) -> None:
        """Puts a file of the cache there, as it is."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write(path, [data])
        except OSError as e:
            self.refused(e)
        else:
            self.added(len(data))

    def refused(self, e: Exception) -> None:
        """Says, once for a directory, why nothing is kept in it."""
        if self.home is not None and self.home not in _told:
            _told.add(self.home)
            log.warning(
                "the cache %s cannot be used (%s): what is built now is built again the next time; give another"
                " directory with PELTON_CACHE_DIR",
                self.home,
                getattr(e, "strerror", None) or e,
            )

    def added(self, size: int) -> None:
        """Notes that so many bytes have come, for the next `settle`."""
        self._added.append(size)

    def settle(self) -> None:
        """Keeps the directory below its limit after entries have come. It is gone through only if what all processes
        say they added asks for it."""
        added, self._added = sum(self._added), []
        if self.home is None or not added:
            return
        try:
            if self._grown(added):
                self.trim(self.limit, spare=SPARE)
        except OSError as e:
            self.refused(e)

    def _grown(self, added: int) -> bool:
        """Whether the directory may have become too large, or was not looked at for a day."""
        assert self.home is not None
        ledger = self.home / LEDGER
        with open(ledger, "ab") as f:
            f.write(b"%d\n" % added)
        try:
            looked, *sizes = map(int, ledger.read_bytes().split())
        except ValueError:
            return True
        return sum(sizes) > self.limit or not 0 <= time.time() - looked <= DAY

    def entries(self) -> list[Entry]:
        """All there is. OSError where it cannot be looked at."""
        return [
            e
            for part, endings in PARTS.items()
            if self.home is not None
            for e in _entries(str(self.home / part), part, endings)
        ]

    def trim(self, limit: float, *, spare: float = 0, kept: float = KEPT) -> list[Entry]:
        """Removes what nobody has used for so many seconds and, where the rest takes more than so many bytes, the least
        recently used until that part of them is spare. What was removed; OSError where the directory cannot be looked
        at. Files that are not ours to remove stay."""
        assert self.home is not None
        found, now = sorted(self.entries(), key=lambda e: e.used), time.time()
        total = sum(e.size for e in found)
        goal = limit if total <= limit else limit * (1 - spare)
        gone = []
        for e in found:
            old = e.used < now - kept
            if total <= goal and not old:
                break
            # locks take no room, and somebody may be waiting for one
            if (old or e.size) and _removed(e.path):
                total -= e.size
                gone.append(e)
        if gone:
            log.info(
                "%d files with %d bytes of the cache %s went: unused for long, or the least recently used above its"
                " limit of %d bytes",
                len(gone),
                sum(e.size for e in gone),
                self.home,
                limit,
            )
        with contextlib.suppress(OSError):  # then the next build looks again
            if self.home.is_dir():
                files.write(self.home / LEDGER, [b"%d %d\n" % (now, total)])
        return gone

    def clear(self) -> list[Entry]:
        """Removes all entries. See `trim`."""
        return self.trim(0, kept=-math.inf)


def used(path: Path) -> None:
    """Marks an entry as used just now, where that can be."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _entries(folder: str, part: str, endings: tuple[str, ...]) -> Iterator[Entry]:
    try:
        found = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for f in found:
            if f.is_dir(follow_symlinks=False):
                yield from _entries(f.path, part, endings)
            elif f.is_file(follow_symlinks=False) and (f.name.endswith(endings) or f.name.endswith(".part")):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    s = f.stat(follow_symlinks=False)
                    # a file that was not finished, by a process that was killed
                    if f.name.endswith(endings) or s.st_mtime < time.time() - DAY:
                        yield Entry(f.path, part, s.st_size, s.st_mtime)


def _removed(path: str) -> bool:
    """Whether a file is gone, by us or by another."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def opened(options: Options) -> Cache:
    """The cache that a build or a session uses. InputError for a limit in the environment that is none."""
    text = os.environ.get("PELTON_CACHE_LIMIT")
    try:
        limit = size(text) if text else LIMIT
    except ValueError as e:
        raise InputError(f"PELTON_CACHE_LIMIT should be {e}") from None
    return Cache(directory(options.cache_dir), limit if options.cache_limit is None else options.cache_limit)


def directory(given: str | os.PathLike[str] | None = None) -> Path | None:
    """Where compiled kernels, times and the engines of sessions are kept: as given, else as PELTON_CACHE_DIR says, else
    with the user's other caches; None where there is no home for these."""
    chosen = given if given is not None else os.environ.get("PELTON_CACHE_DIR") or None
    if chosen is not None:
        return Path(chosen)
    home = os.path.expanduser("~")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "pelton") if home != "~" else None


def size(text: str) -> int:
    """Bytes: 500MB, 1.5 GB, 800000. ValueError for what is no size, with what one would be."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if not found:
        raise ValueError(f"a size such as 500MB or 4GB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
