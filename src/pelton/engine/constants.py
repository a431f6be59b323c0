"""Constants computed on demand: in memory when first read, or in the engine's file if that is written first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pelton.system.forks import survives_fork

ALIGN = 64  # bytes: of the address of constants, and of each one's offset


class DeferredConstants:
    """`size` bytes, which `fill` writes into an array of zeros, u8[size], yielding the end of each finished part in
    order. They are computed once, on the first request. `fillers` write each part alone."""

    def __init__(
        self,
        size: int,
        fill: Callable[[np.ndarray], Iterator[int]],
        fillers: Sequence[Callable[[np.ndarray], object]] = (),
    ):
        self.size, self._fill, self._fillers = size, fill, fillers
        self._bytes: np.ndarray | None = None
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        """Resets the lock: in a forked child, a computation of another thread of the parent starts again."""
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return self.size

    @property
    def is_filled(self) -> bool:
        return self._bytes is not None

    def read(self) -> np.ndarray:
        """Returns the bytes, u8[size], at an address that is a multiple of 64, as kernels require."""
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

    def part(self, i: int, size: int) -> np.ndarray:
        """Returns the `size` bytes of a part, u8[size], computed for this call."""
        out = np.zeros(size, np.uint8)
        self._fillers[i](out)
        return out

    def parts(self, out: np.ndarray) -> Iterator[np.ndarray]:
        """Writes the bytes into an array of zeros, u8[size], and yields its parts in order as they are finished."""
        done = 0
        for end in self._fill(out):
            yield out[done:end]
            done = end

    def replace_bytes(self, computed: np.ndarray) -> None:
        """Sets the bytes, and releases the data that they are computed from."""
        self._bytes = computed
        del self._fill, self._fillers


def bytes_of(constants: Any) -> memoryview:
    """Returns the bytes of an engine's constants."""
    view = constants.read().data if isinstance(constants, DeferredConstants) else memoryview(constants)
    return view.cast("B") if view.nbytes else memoryview(b"")


def length(constants: Any) -> int:
    """Returns the number of bytes of an engine's constants, computed or not."""
    return constants.size if isinstance(constants, DeferredConstants) else memoryview(constants).nbytes
