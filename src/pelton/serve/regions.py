"""System shared memory: regions that clients register, below /dev/shm alone.

Source: extension "shared memory" of the Open Inference Protocol.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .requests import RequestError, integer, shown

FOLDER = "/dev/shm"
KEY = re.compile(r"/?[A-Za-z0-9_.\-]{1,200}")
MOST = 1024  # regions


@dataclass(frozen=True)
class SharedRegion:
    """A registered region: `size` bytes from `offset` on of the object `key`, mapped, and open as `handle`."""

    name: str
    key: str
    offset: int
    size: int
    memory: mmap.mmap
    handle: int

    def report(self) -> dict[str, Any]:
        """Returns the region as the protocol has it."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size}


class Regions:
    """The registered regions of a server. alone: False if it is one of several processes, which cannot share them."""

    def __init__(self, alone: bool = True) -> None:
        self._alone = alone
        self._regions: dict[str, SharedRegion] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[SharedRegion]:
        return iter(list(self._regions.values()))

    def register(self, name: str, key: Any, offset: Any, size: Any) -> None:
        """Maps a region. Raises RequestError for a name in use, a key outside /dev/shm, and a range outside it."""
        if not self._alone:
            raise RequestError("shared memory needs a server of one process: --workers 1", "unsupported")
        if not name or len(name) > 200:
            raise RequestError("a shared memory region has a name of 1 to 200 characters")
        if not isinstance(key, str) or not KEY.fullmatch(key) or key.strip("/") in (".", ".."):
            raise RequestError(f"Unable to open shared memory region: {shown(key, 200)}")
        offset, size = integer(offset, "offset of a region"), integer(size, "byte_size of a region")
        with self._lock:
            if name in self._regions:
                raise RequestError(f"shared memory region '{name}' already in manager")
            if len(self._regions) >= MOST:
                raise RequestError(f"{MOST} shared memory regions are registered; unregister some", "full")
            self._regions[name] = SharedRegion(name, key, offset, size, *_mapped(key, offset + size))

    def unregister(self, name: str | None) -> None:
        """Forgets a region, or all; unknown names are ignored, as the protocol says."""
        with self._lock:
            for gone in [name] if name else list(self._regions):
                region = self._regions.pop(gone, None)
                if region is not None:
                    os.close(region.handle)

    def get(self, name: str) -> SharedRegion:
        """Returns a region. Raises RequestError if none has the name."""
        region = self._regions.get(name)
        if region is None:
            raise RequestError(f"Unable to find system shared memory region: '{name}'", "absent")
        return region

    def view(self, place: tuple[str, int, int]) -> memoryview:
        """Returns memory of a region: name, offset and bytes. Raises RequestError outside of it."""
        name, offset, size = place
        region = self.get(name)
        if offset + size > region.size:
            raise RequestError(
                f"Invalid offset + byte size for shared memory region: '{name}' has {region.size} bytes,"
                f" {offset} + {size} were asked for"
            )
        begin = region.offset + offset
        if os.fstat(region.handle).st_size < begin + size:  # a read past the end would end the process
            raise RequestError(f"shared memory region '{name}' was made smaller after it was registered")
        return memoryview(region.memory)[begin : begin + size]

    def write(self, place: tuple[str, int, int], data: Any) -> None:
        """Writes an output to a region. Raises RequestError if it does not fit."""
        if len(data) > place[2]:
            raise RequestError(
                f"shared memory size specified with the request for an output should be at least {len(data)} bytes,"
                f" got {place[2]}"
            )
        self.view(place)[: len(data)] = data


def _mapped(key: str, size: int) -> tuple[mmap.mmap, int]:
    """Maps an object of shared memory, at least `size` bytes; returns the mapping and the open file."""
    try:
        handle = os.open(os.path.join(FOLDER, key.lstrip("/")), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise RequestError(f"Unable to open shared memory region: '{key}'") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size < size:
            raise RequestError(
                f"failed to register shared memory region '{key}': invalid args, it has {status.st_size} bytes,"
                f" {size} were asked for"
            )
        if not size:
            raise RequestError(f"failed to register shared memory region '{key}': invalid args, it has no bytes")
        return mmap.mmap(handle, size), handle
    except BaseException:
        os.close(handle)
        raise
