"""Memory: aligned to cache lines, in huge pages or in small ones; addresses; and the amount that the machine has."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from ctypes import c_void_p

import numpy as np

from pelton.errors import EngineError

LINE = 64
HUGE_PAGE = 2 << 20
NO_HUGE_PAGE = 15  # MADV_NOHUGEPAGE of madvise(2)
POPULATE_READ = 22  # MADV_POPULATE_READ of madvise(2), Linux 5.14 and newer
LARGE = 64 << 20  # bytes that take the system milliseconds to map
PIECE = 4 << 20  # bytes for which a call keeps other threads from mapping memory


def allocate(size: int) -> np.ndarray:
    """Allocates a uint8 array of `size` zero bytes, aligned to a cache line, or from 2 MB on to a huge page.

    Raises EngineError if the system refuses.
    """
    slack = HUGE_PAGE if size >= HUGE_PAGE else 0
    room = _mapped(max(size + slack, 1))
    if slack:
        try:
            room.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            slack = 0  # a kernel without huge pages
    whole = np.frombuffer(room, np.uint8)
    start = -address(whole) % HUGE_PAGE if slack else 0
    return whole[start : start + size]


def zeros_by_page(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocates an array of zeros that takes memory page by page, as it is written.

    numpy has large arrays in huge pages, of which the first number written takes 2 MB: 180 heads of a cache with room
    for 4,096 tokens took 670 MB for the first 500, and take 35 MB here. Raises EngineError if the system refuses.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE:
        return np.zeros(shape, dtype)
    room = _mapped(size)
    try:
        room.madvise(NO_HUGE_PAGE)
    except (OSError, ValueError):
        pass  # a kernel without huge pages
    return np.frombuffer(room, dtype).reshape(shape)


def _mapped(size: int) -> mmap.mmap:
    """Maps `size` zero bytes. Raises EngineError if the system refuses."""
    try:
        # private: a forked child gets its own
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as e:
        raise EngineError(f"the engine needs {size / 1e6:.1f} MB of memory, but the system refuses it ({e})") from None


def address(array: np.ndarray) -> int:
    """Returns the address of an array's first element."""
    return array.__array_interface__["data"][0]


def populate(array: np.ndarray) -> None:
    """Maps all pages under an array of a mapped file at once, if the system can.

    Otherwise each page is mapped at its first read: with 134 MB of weights a first run took 58, 56 and 39 ms without
    this call, and 38, 31 and 42 ms after 6 to 10 ms for it. Large arrays are mapped by a thread, beside what follows.
    """

    def advise() -> None:
        madvise, end = ctypes.CDLL(None).madvise, address(array) + array.nbytes
        for start in range(address(array) // mmap.PAGESIZE * mmap.PAGESIZE, end, PIECE):
            madvise(c_void_p(start), ctypes.c_size_t(min(PIECE, end - start)), POPULATE_READ)

    if array.nbytes < LARGE:
        advise()
    else:
        threading.Thread(target=advise, name="pelton-populate", daemon=True).start()


def aligned(data) -> np.ndarray:
    """Returns the bytes of a buffer as a uint8 array aligned to a cache line: itself if aligned, else a copy."""
    view = np.frombuffer(data, np.uint8) if len(memoryview(data)) else np.empty(0, np.uint8)
    if address(view) % LINE == 0:
        return view
    room = allocate(view.size)
    room[:] = view
    return room


def installed() -> int:
    """Returns the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
