"""Constants that are not there yet: made in memory when they are first read, or in the engine's file where that is
written first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pelton.system.forks import survives_fork

ALIGN = 64  # bytes, of where they begin and of every piece


class DeferredConstants:
    """`size` bytes, which `fill` puts into an array of zeros; it gives the ends of what is done, in order. They are
    made once, whoever asks first."""

    def __init__(self, size: int, fill: Callable[[np.ndarray], Iterator[int]]):
        self.size, self._fill = size, fill
        self._bytes: np.ndarray | None = None
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        """Nobody is making them: in a forked child, where another thread of the parent was, they are made from the
        beginning."""
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return self.size

    @property
    def is_filled(self) -> bool:
        return self._bytes is not None

    def read(self) -> np.ndarray:
        """The bytes, at a multiple of 64 in memory, so that an engine can use them as they lie."""
        with self.lock:
            if self._bytes is None:
                room = np.zeros(self.size + ALIGN, np.uint8)
                start = -room.ctypes.data % ALIGN
                out = room[start : start + self.size]
                for _ in self._fill(out):
                    pass
                self.replace_bytes(out)
                return out
            return self._bytes

    def parts(self, out: np.ndarray) -> Iterator[np.ndarray]:
        """Puts the bytes into an array of zeros; gives one part of it after the other, as they are done."""
        done = 0
        for end in self._fill(out):
            yield out[done:end]
            done = end

    def replace_bytes(self, made: np.ndarray) -> None:
        """From now on the bytes are these, and what they were made from can go."""
        self._bytes = made
        del self._fill


def bytes_of(constants: Any) -> memoryview:
    """The bytes of an engine's constants."""
    found = constants.read().data if isinstance(constants, DeferredConstants) else memoryview(constants)
    return found.cast("B") if found.nbytes else memoryview(b"")


def length(constants: Any) -> int:
    """How many bytes there are, or will be."""
    return constants.size if isinstance(constants, DeferredConstants) else memoryview(constants).nbytes
