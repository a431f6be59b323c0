"""Resolved steps over raw pointers, ready to run: what a context and the tuner hand to the step walker."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence

import numpy as np

from pelton.errors import EngineError, InputError

from .binding import library
from .memory import address
from .share import cores

MAX_THREADS = 256

Row = tuple[int, Sequence[int], int, int, int, int, int]


class Program:
    """A table of steps (kernel address, words, how many of the words are pointers, tiles, grain, wave, bytes of scratch per thread).

    `patches` (step, word, port, offset) name the words that become ports[port] + offset at the start of every run.
    Whoever makes a program keeps everything alive that its words point to, and runs it from one thread at a time.
    """

    def __init__(self, steps: Iterable[Row], threads: int | None = None, patches: Iterable[tuple[int, int, int, int]] = ()):
        self._handle: int | None = None
        rows: list[tuple[int, ...]] = []
        words: list[int] = []
        starts: list[int] = []
        for function, own, pointers, tiles, grain, wave, scratch in steps:
            if not (function and 0 <= pointers <= len(own) and 0 <= tiles < 1 << 31 and 1 <= grain < 1 << 31 and scratch >= 0):
                raise InputError(f"a step needs a kernel, tiles and grain below 2**31 and no negative scratch, got kernel {function:#x}, {pointers} pointers "
                                 f"of {len(own)} words, {tiles} tiles by {grain}, {scratch} bytes")
            starts.append(len(words))
            rows.append((function, len(words), tiles, grain, wave, scratch))
            words.extend(own)
        available = cores()
        self.threads = check_threads(threads) if threads is not None else max(1, math.ceil(available))
        table = np.array(rows, np.int64).reshape(-1, 6)
        values = np.array([w if w < 1 << 63 else w - (1 << 64) for w in words], np.int64)
        changes = np.array([(starts[s] + w, port, offset) for s, w, port, offset in patches], np.int64).reshape(-1, 3)
        self._count = len(rows)
        self._library = library()
        self._handle = self._library.pelton_program(address(table), len(table), address(values), len(values), address(changes), len(changes), self.threads,
                                                    int(min(available, MAX_THREADS) * 1000))
        if not self._handle:
            scratch = max((row[5] for row in rows), default=0)
            raise EngineError(f"there is no memory for the engine's step table and scratch ({self.threads} × {scratch / 1e6:.1f} MB)")

    @property
    def native(self) -> tuple:
        """The native function that runs this program and its first argument; the second is the table of ports. For callers who count microseconds."""
        return self._library.pelton_run, self._handle

    def run(self, ports: ctypes.Array | None = None) -> None:
        """Runs all steps. `ports`: addresses for the patches."""
        self._library.pelton_run(self._handle, ports)

    def time(self, repeats: int = 1, ports: ctypes.Array | None = None) -> list[int]:
        """Nanoseconds of each of `repeats` runs, one right after the other, the threads awake."""
        times = (ctypes.c_int64 * repeats)()
        self._library.pelton_time(self._handle, ports, repeats, times)
        return list(times)

    def profile(self, ports: ctypes.Array | None = None) -> list[int]:
        """Nanoseconds of each step in a run in which no two steps overlap."""
        stamps = (ctypes.c_int64 * (2 * self._count))()
        self._library.pelton_profile(self._handle, ports, stamps)
        return [end - begin for begin, end in zip(stamps[::2], stamps[1::2])]

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.pelton_program_free(handle)


def check_threads(threads: object) -> int:
    """`threads` if it is a number of threads that a program can have; InputError otherwise."""
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or not 1 <= threads <= MAX_THREADS:
        raise InputError(f"threads is a whole number from 1 to {MAX_THREADS}, got {threads!r}")
    return int(threads)
