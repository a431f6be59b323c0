"""Emulates in numpy, for one program at a time, the parts of Gluon that Triton's interpreter lacks: shared memory,
barriers, fetches by maps and products of whole warps. Everything happens as late as allowed: fetched data is poison
until a wait; products read shared memory at their wait. A program that reads or overwrites too early gives NaN; one
that would wait forever raises `Hang`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.language import tensor
from triton.runtime.interpreter import TensorHandle

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Hang(RuntimeError):
    """A program waits for what never comes."""


class Layout:
    """How a block lies in registers, or in shared memory: nothing that numbers depend on."""

    def __init__(self, *_: Any, **__: Any):
        pass


NVMMADistributedLayout = BlockedLayout = SliceLayout = Layout


def arange(start: Any, end: Any, layout: Any = None) -> Any:
    return tl.arange(int(start), int(end))


def zeros(shape: Sequence[Any], dtype: Any, layout: Any = None) -> Any:
    return tl.zeros(shape, dtype)


def full(shape: Sequence[Any], value: Any, dtype: Any, layout: Any = None) -> Any:
    return tl.full(shape, value, dtype)


def convert_layout(x: Any, layout: Any) -> Any:
    if not isinstance(x, tensor):
        raise Hang("a product is used that nobody has waited for")
    return x


static_range = range


def barrier() -> None:
    """All warps are here: they always are."""


def fence_async_shared() -> None:
    """What was written is there for the units that copy."""


class Barrier:
    """Phases follow each other: one is over when all who were to arrive have, and all bytes that were expected."""

    def __init__(self) -> None:
        self.count = self.left = self.bytes = self.phase = 0
        self.ahead: list[Any] = []  # what comes, of which nothing is there yet

    def settle(self) -> None:
        if self.count and not self.left and not self.bytes:
            self.phase, self.left = self.phase + 1, self.count


class Barriers:
    def __init__(self, count: int):
        self.each = [Barrier() for _ in range(count)]

    def index(self, i: Any) -> Barrier:
        return self.each[_number(i)]


class Shared:
    """A block of shared memory, or several."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def index(self, i: Any) -> Shared:
        return Shared(self.array[_number(i)])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.array.transpose([int(i) for i in order]))


def allocate_shared_memory(dtype: Any, shape: Sequence[Any], layout: Any) -> Any:
    extents = [int(n) for n in shape]
    return Barriers(extents[0]) if dtype == tl.int64 else Shared(np.full(extents, np.nan, DTYPES[dtype]))


class mbarrier:
    """The functions of `mbarrier`."""

    MBarrierLayout = Layout

    @staticmethod
    def init(on: Barrier, count: int) -> None:
        on.count = on.left = int(count)

    @staticmethod
    def expect(on: Barrier, nbytes: Any) -> None:
        """Arrives, and expects so many bytes in this phase."""
        if not on.left:
            raise Hang("more have arrived than a phase of the barrier takes")
        on.bytes += int(nbytes)
        on.left -= 1
        on.settle()

    @staticmethod
    def wait(on: Barrier, parity: Any) -> None:
        for deliver in on.ahead:
            on.bytes -= deliver()
            if on.bytes < 0:
                raise Hang("more bytes have come than were expected")
        on.ahead.clear()
        on.settle()
        if on.phase % 2 == _number(parity):
            raise Hang(
                f"nobody ends phase {on.phase} of the barrier: {on.left} are to arrive, {on.bytes} bytes to come"
            )


class Fetched:
    """A map of what lies at an address: what `engine.cubin.TensorMap` says, read from the documents of the driver."""

    def __init__(self, address: int, kind: str, about: Any):
        self.about, self.dtype, self.layout = about, kind, Layout()
        size = DTYPES[kind].itemsize
        strides = [size, *about.strides][::-1]
        end = sum((n - 1) * s for n, s in zip(about.sizes[::-1], strides)) + size
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * end).from_address(address)).view(DTYPES[kind])
        # images, rows, columns, channels; or rows, columns
        self.array = np.lib.stride_tricks.as_strided(memory, about.sizes[::-1], strides)

    def box(self, at: Sequence[int]) -> np.ndarray:
        """Elements from there on, zeros outside."""
        places = [c + np.arange(n) * s for c, n, s in zip(at, self.about.box[::-1], self.about.steps[::-1])]
        return self._picked(*np.ix_(*places))

    def columns(self, at: Sequence[int], offsets: Sequence[int]) -> np.ndarray:
        """Pixels one after the other, from the one given on, each as far from where it lies as the offsets say; so many
        channels of each."""
        (channels, pixels), (low, high) = self.about.box, (self.about.lower[::-1], self.about.upper[::-1])
        n, *place = at[:3]
        c, ends = at[3], [size - 1 + h for size, h in zip(self.array.shape[1:3], high)]
        steps, found = self.about.steps[2:0:-1], []
        for _ in range(pixels):
            found.append((n, place[0] + offsets[0], place[1] + offsets[1]))
            place[1] += steps[1]
            if place[1] > ends[1]:
                place = [place[0] + steps[0], low[1]]
            if place[0] > ends[0]:
                n, place = n + 1, [low[0], place[1]]
        images, rows, columns = np.array(found).T[:, :, None]
        return self._picked(images, rows, columns, c + np.arange(channels)[None, :])

    def _picked(self, *places: np.ndarray) -> np.ndarray:
        there = np.logical_and.reduce(
            np.broadcast_arrays(*((p >= 0) & (p < n) for p, n in zip(places, self.array.shape)))
        )
        return np.where(
            there,
            self.array[tuple(np.clip(p, 0, n - 1) for p, n in zip(places, self.array.shape))],
            np.zeros((), self.array.dtype),
        )


class tma:
    """The functions of `tma`."""

    @staticmethod
    def async_load_im2col(of: Fetched, at: Sequence[Any], offsets: Sequence[Any], on: Barrier, to: Shared) -> None:
        tma._later(
            of, lambda at, by: of.columns(at, by), [_number(c) for c in at], [_number(o) for o in offsets], on, to
        )

    @staticmethod
    def async_load(of: Fetched, at: Sequence[Any], on: Barrier, to: Shared) -> None:
        tma._later(of, lambda at, by: of.box(at), [_number(c) for c in at], [], on, to)

    @staticmethod
    def _later(of: Fetched, fetch: Any, at: list[int], offsets: list[int], on: Barrier, to: Shared) -> None:
        to.array[...] = np.nan

        def deliver() -> int:
            to.array[...] = fetch(at, offsets)
            return to.array.nbytes

        on.ahead.append(deliver)


class Sums:
    """Products of which some are not made yet."""

    def __init__(self, done: Any, ahead: list[tuple[Shared, Shared]]):
        self.done, self.ahead = done, ahead


def warpgroup_mma(a: Shared, b: Shared, acc: Any, *, is_async: bool) -> Sums:
    done, ahead = (acc.done, acc.ahead) if isinstance(acc, Sums) else (acc, [])
    return Sums(done, [*ahead, (a, b)])


def warpgroup_mma_wait(left: Any, deps: Sequence[Any]) -> Any:
    """Until but so many are not made."""
    (acc,) = deps
    if not isinstance(acc, Sums):
        return acc
    cut = max(0, len(acc.ahead) - int(left))
    data = acc.done.handle.data.astype(np.float32)
    for a, b in acc.ahead[:cut]:
        data = data + a.array.astype(np.float32) @ b.array.astype(np.float32)
    done = tensor(TensorHandle(data.astype(np.float32), tl.float32), acc.done.type)
    return Sums(done, acc.ahead[cut:]) if cut < len(acc.ahead) else done


def _number(x: Any) -> int:
    return int(x.handle.data.reshape(-1)[0]) if isinstance(x, tensor) else int(x)
