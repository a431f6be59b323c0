"""Arrays and kernels on the GPU for the checks: guard bands, poison, and single launches on CPU arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.backends.cuda.device import TRAILING, Device, Function, Memory, launches
from pelton.engine.cubin import Cubin
from pelton.engine.library import LIBRARIES, work
from pelton.engine.work import ALIGNED
from pelton.errors import EngineError

BAND = 4096  # bytes around an array that nobody may write
# every byte of what nobody has written: as a float of any size it is no number
POISON = 0xFF


class Placed:
    """An array in the GPU's memory between two bands, shown to others as libraries of arrays show theirs. Its first
    byte lies at a multiple of 256, the element number `first` at one of 16."""

    def __init__(self, device: Device, array: np.ndarray, stream: int, first: int = 0):
        self.device, self.dtype, self.shape, self.nbytes = device, array.dtype, array.shape, array.nbytes
        before = BAND - first * array.itemsize % 16
        self.whole = np.full(BAND + array.nbytes + BAND, POISON, np.uint8)
        self.own = slice(before, before + array.nbytes)
        self.whole[self.own] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory: Memory = device.allocate(self.whole.nbytes, "a check")
        self.address = self.memory.address + before
        device.upload(self.memory.address, self.whole.__array_interface__["data"][0], self.whole.nbytes, stream)
        device.synchronize(stream)

    @classmethod
    def poisoned(cls, device: Device, shape: Sequence[int], dtype: np.dtype, stream: int) -> Placed:
        """Memory for an array that somebody is about to write."""
        return cls(
            device,
            np.frombuffer(np.full(int(np.prod(shape)) * dtype.itemsize, POISON, np.uint8), dtype).reshape(shape),
            stream,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": self.dtype.str,
            "shape": self.shape,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }

    def fetched(self, stream: int) -> np.ndarray:
        """The array as it is now; AssertionError where a band is no longer what it was."""
        now = np.empty_like(self.whole)
        self.device.download(now.__array_interface__["data"][0], self.memory.address, now.nbytes, stream)
        self.device.synchronize(stream)
        for band in (slice(0, self.own.start), slice(self.own.stop, None)):
            if (now[band] != POISON).any():
                raise AssertionError("something was written beside an array")
        return now[self.own].view(self.dtype).reshape(self.shape)


class Unproposed(Exception):
    """A library has no algorithm for a product, which is its right."""


class Kernels:
    """Runs kernels on a device: `run` is called, and answers, as the interpreter of the tests."""

    def __init__(self, device: Device, cubins: Mapping[str, Cubin]):
        self.device, self.cubins, self.launched = device, cubins, 0

    def run(
        self,
        source: str,
        symbol: str,
        arrays: Sequence[tuple[np.ndarray, str, int]],
        dims: Sequence[int],
        tiles: int,
        phases: int = 1,
    ) -> list[np.ndarray]:
        if symbol not in LIBRARIES and symbol not in self.cubins:
            raise AssertionError(f"{symbol} could not be compiled")
        with self.device as device:
            function = (
                self._by_library(symbol, dims)
                if symbol in LIBRARIES
                else device.load(self.cubins[symbol], len(arrays) + len(dims) + TRAILING)
            )
            cubin = function.cubin
            stream = device.stream()
            placed = [Placed(device, a, stream.handle, first) for a, _, first in arrays]
            scratch = (
                device.allocate(tiles * cubin.clusters * cubin.scratch, f"the scratch memory of {symbol}")
                if cubin.scratch
                else None
            )
            words = np.array(
                [
                    *(p.address + first * p.dtype.itemsize for p, (_, _, first) in zip(placed, arrays)),
                    *dims,
                    scratch.address if scratch else 0,
                    0,
                ],
                np.int64,
            )
            for launch in launches(function, tiles, phases, words) if tiles else ():
                device.launch(launch, stream.handle)
            self.launched += 1
            return [p.fetched(stream.handle) for p in placed]

    def _by_library(self, symbol: str, dims: Sequence[int]) -> Function:
        """By the algorithm that is asked for, or by the library's first where it proposes fewer; Unproposed where it
        proposes none."""
        descriptor = work(symbol, dims)
        for choice in dict.fromkeys((descriptor.choice, 0)):
            try:
                return self.device.by_library(
                    replace(descriptor, choice=choice), [ALIGNED] * len(descriptor.operands())
                )
            except EngineError as e:
                why = str(e)
        raise Unproposed(why)
