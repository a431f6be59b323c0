"""Loads, stores and copies of vec.h read and write their elements, and touch no other byte."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import numpy as np
import pytest
from vec_library import BUILDS, STORED, Library, accesses, build_library, samples

from pelton.ir.types import BF16, F16


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1]}")
def vec(request, tmp_path_factory) -> Library:
    return build_library(accesses(request.param[1]), *request.param, tmp_path_factory.mktemp("vec"))


class GuardedPages:
    """Two pages that can be written, between pages that cannot be touched."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc, size, no_access = ctypes.CDLL(None), ctypes.c_size_t(mmap.PAGESIZE), 0
        for page in (0, 3):
            assert libc.mprotect(ctypes.c_void_p(base + page * mmap.PAGESIZE), size, no_access) == 0
        self.first, self.end = base + mmap.PAGESIZE, base + 3 * mmap.PAGESIZE

    def bytes(self, address: int, count: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_partial_access_touches_nothing_else(vec, d):
    """n elements at both ends of guarded pages, n known at run time and at compile time; bytes around a store keep
    their values."""
    source, target, t, size = GuardedPages(), GuardedPages(), d.value, d.size
    x = samples(d)[60 : 60 + vec.lanes] if d not in (F16, BF16) else np.arange(1, vec.lanes + 1).astype(d.numpy)
    x = np.where(np.isnan(x), 1, x).astype(x.dtype) if d.is_float else x
    for n, constant, at_end in itertools.product(range(vec.lanes + 1), (False, True), (False, True)):
        suffix = f"_{n}" if constant else ""
        expected = x[:n].tobytes()
        p, q = (g.end - n * size if at_end else g.first for g in (source, target))
        source.bytes(p, n * size)[:] = np.frombuffer(expected, np.uint8)
        around = target.bytes(target.first, 2 * mmap.PAGESIZE)
        around[:] = 0xA5
        vec(f"t_{t}_copy{suffix}", q, p, n=n)
        assert target.bytes(q, n * size).tobytes() == expected
        assert np.count_nonzero(around != 0xA5) <= n * size
        around[q - target.first : q - target.first + n * size] = 0xA5
        assert (around == 0xA5).all()
        whole = np.full(vec.lanes, 1, x.dtype)
        vec(f"t_{t}_fill{suffix}", whole, p, n=n)
        assert whole.tobytes() == expected + bytes((vec.lanes - n) * size)


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_strided_access(vec, d):
    source, t, size = GuardedPages(), d.value, d.size
    x = np.arange(1, vec.lanes + 1).astype(d.numpy)
    for n, stride, at_end in itertools.product((0, 1, 3, vec.lanes - 1, vec.lanes), (0, 1, 3, -2), (False, True)):
        span = abs(stride) * max(n - 1, 0) + (n > 0)
        p = source.end - span * size if at_end else source.first
        memory = source.bytes(p, span * size).view(x.dtype)
        start = p + (span - 1) * size if stride < 0 else p
        order = memory[::stride] if stride else np.broadcast_to(memory[:1], n)
        if stride:
            order[:] = x[:n]
        elif n:
            memory[:] = x[-1]
        whole = np.full(vec.lanes, 1, x.dtype)
        vec(f"t_{t}_gather", whole, start, n=n, stride=stride)
        assert whole[:n].tobytes() == order.tobytes() and not whole[n:].view(np.uint8).any()
        memory.view(np.uint8)[:] = 0xFF
        vec(f"t_{t}_scatter", start, x, n=n, stride=stride)
        assert order.tobytes() == (x[:n] if stride else np.repeat(x[max(n - 1, 0)], n)).tobytes()
    vec(f"t_{t}_broadcast", whole, x[2:])
    assert (whole == x[2]).all()


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_pieces(vec, d):
    """Of n lanes, the first of which belongs at index `at`, those within an array of five elements are stored."""
    memory, x = GuardedPages(), np.arange(1, vec.lanes + 1).astype(d.numpy)
    for n, at, at_end in itertools.product(range(vec.lanes + 1), range(-vec.lanes - 1, 8), (False, True)):
        p = memory.end - 5 * d.size if at_end else memory.first
        now = memory.bytes(memory.first, 2 * mmap.PAGESIZE)
        now[:] = 0xA5
        vec(f"t_{d.value}_piece", p, x, n=n, stride=at)
        want = np.full(5 * d.size, 0xA5, np.uint8).view(x.dtype)
        for i in range(n):
            if 0 <= at + i < 5:
                want[at + i] = x[i]
        assert memory.bytes(p, 5 * d.size).tobytes() == want.tobytes()
        now[p - memory.first : p - memory.first + 5 * d.size] = 0xA5
        assert (now == 0xA5).all()


def test_block_copies(vec):
    """The engine's own memcpy, memmove and memset, overlapping both ways."""
    for n in (0, 1, 31, 32, 33, 100, 1000):
        for shift in (-40, -7, -1, 0, 1, 7, 40):
            x = np.random.default_rng(n).integers(0, 256, 2000, np.uint8)
            want = x.copy()
            want[500 + shift : 500 + shift + n] = x[500 : 500 + n].copy()
            vec("t_memmove", x.ctypes.data + 500 + shift, x.ctypes.data + 500, n=n)
            assert np.array_equal(x, want)
        want[1000 : 1000 + n] = want[:n]
        vec("t_memcpy", x.ctypes.data + 1000, x, n=n)
        want[3 : 3 + n] = 0xC3
        vec("t_memset", x.ctypes.data + 3, 0x7C3, n=n)
        assert np.array_equal(x, want)
