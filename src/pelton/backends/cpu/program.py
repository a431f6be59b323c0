"""Resolved steps over raw pointers, ready to run: the input of the step walker from contexts and the tuner."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pelton.errors import EngineError, InputError
from pelton.system.memory import address
from pelton.system.share import cores

from pelton.native import library

MAX_THREADS = 256


class StepRow(NamedTuple):
    """A step of a program: `kernel` is its address, `words` its arguments, the first `pointers` of which are addresses;
    `scratch` is in bytes per thread."""

    kernel: int
    words: Sequence[int]
    pointers: int
    tiles: int
    grain: int
    wave: int
    scratch: int
    phases: int


class Patch(NamedTuple):
    """A word of a step that becomes ports[port] + offset at the start of every run."""

    step: int
    word: int
    port: int
    offset: int


class NativeProgram:
    """A table of steps for the native step walker.

    The caller keeps alive the memory that the words point to, and runs a program from one thread at a time. Raises
    InputError for rows and numbers of threads out of range, EngineError if there is not enough memory.
    """

    _handle: int | None = None

    def __init__(self, steps: Iterable[StepRow], threads: int | None = None, patches: Iterable[Patch] = ()):
        rows: list[tuple[int, ...]] = []
        words: list[int] = []
        starts: list[int] = []
        for function, own, pointers, tiles, grain, wave, scratch, phases in steps:
            if not 0 <= pointers <= len(own):
                raise InputError(f"a step needs a kernel and no more pointers than words, got {pointers} of {len(own)}")
            starts.append(len(words))
            rows.append((function, len(words), tiles, grain, wave, scratch, phases))
            words.extend(own)
        self._make(
            np.array(rows, np.int64).reshape(-1, 7),
            np.array([w if w < 1 << 63 else w - (1 << 64) for w in words], np.int64),
            np.array([(starts[s] + w, port, offset) for s, w, port, offset in patches], np.int64).reshape(-1, 3),
            threads,
            cores(),
        )

    @classmethod
    def adopt(cls, handle: int | None, count: int, why: str) -> NativeProgram:
        """Adopts a native program of `count` steps, which now belongs to the object. Raises EngineError for none."""
        program = cls.__new__(cls)
        program._library, program._handle, program._count = library(), handle, count
        if not handle:
            raise EngineError(why)
        return program

    def _make(
        self,
        table: np.ndarray,
        words: np.ndarray,
        patches: np.ndarray,
        threads: int | None,
        available: float,
    ) -> None:
        function, _, tiles, grain, _, bytes_of_scratch, phases = table.T
        counts = (tiles < 0) | (tiles >= 1 << 31) | (phases < 1) | (phases >= 1 << 31)
        wrong = (
            (function == 0)
            | counts
            | (tiles * np.where(counts, 0, phases) >= 1 << 31)
            | (grain < 1)
            | (grain >= 1 << 31)
            | (bytes_of_scratch < 0)
        )
        if wrong.any():
            at = int(wrong.argmax())
            raise InputError(
                "a step needs a kernel, tiles of all phases and grain below 2**31 and no negative scratch, got kernel"
                f" {function[at]:#x}, {phases[at]} × {tiles[at]} tiles by {grain[at]}, {bytes_of_scratch[at]} bytes"
            )
        self.threads = check_threads(threads) if threads is not None else max(1, math.ceil(available))
        table, words, patches = (np.ascontiguousarray(a, np.int64) for a in (table, words, patches))
        self._count = len(table)
        self._library = library()
        self._handle = self._library.pelton_program(
            address(table),
            len(table),
            address(words),
            len(words),
            address(patches),
            len(patches),
            self.threads,
            int(min(available, MAX_THREADS) * 1000),
            None,
        )
        if not self._handle:
            raise EngineError(
                "there is no memory for the engine's step table and scratch "
                f"({self.threads} × {bytes_of_scratch.max(initial=0) / 1e6:.1f} MB)"
            )

    @property
    def native(self) -> tuple:
        """The native function that runs this program, and its first argument; the second is the table of ports.

        For callers to whom microseconds matter.
        """
        return self._library.pelton_program_run, self._handle

    def run(self, ports: ctypes.Array | None = None) -> None:
        """Runs all steps. `ports`: addresses for the patches."""
        self._library.pelton_program_run(self._handle, ports)

    def time(self, repeats: int = 1, ports: ctypes.Array | None = None) -> list[int]:
        """Returns the nanoseconds of each of `repeats` runs in immediate succession, with the threads awake."""
        times = (ctypes.c_int64 * repeats)()
        self._library.pelton_program_time(self._handle, ports, repeats, times)
        return list(times)

    def trace(self, ports: ctypes.Array | None = None) -> list[tuple[int, int]]:
        """Returns each step's begin and end, in nanoseconds of `time.monotonic_ns`, in a run without overlap."""
        stamps = (ctypes.c_int64 * (2 * self._count))()
        self._library.pelton_program_profile(self._handle, ports, stamps)
        return list(zip(stamps[::2], stamps[1::2]))

    def profile(self, ports: ctypes.Array | None = None) -> list[int]:
        """Returns the nanoseconds of each step in a run without overlap of steps."""
        return [end - begin for begin, end in self.trace(ports)]

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.pelton_program_free(handle)


def check_threads(threads: object) -> int:
    """Returns `threads` if it is a valid number of threads for a program; raises InputError otherwise."""
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or not 1 <= threads <= MAX_THREADS:
        raise InputError(f"threads is an integer from 1 to {MAX_THREADS}, got {threads!r}")
    return int(threads)
