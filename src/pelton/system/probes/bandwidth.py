"""Measures the bandwidth of memory: all threads read at once, with numpy, as `doctor` runs without a compiler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from pelton.errors import EngineError

from ..memory import allocate
from .tree import FileTree

LEAST, MOST = 128 << 20, 1 << 30  # bytes that are read in a round
FACTOR = 4  # of all last-level caches together: less could stay in them
SHARE = 8  # at most this part of the free memory is used
SECONDS = 0.3  # for all of it; the best round counts, as others may use the machine


@dataclass(frozen=True)
class MemoryBandwidth:
    """GB/s (10^9 bytes) that `threads` read together out of `size` bytes."""

    rate: float
    threads: int
    size: int


def cache_bytes(tree: FileTree, cpus: Sequence[int], of_one: int) -> int:
    """Returns the bytes of the last-level caches of CPUs; of_one: the bytes of one of them, for machines whose kernel
    does not show which CPUs share it."""
    shared = {tree.text(f"sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list") for cpu in cpus}
    return of_one * max(len(shared - {""}), 1)


def size_for(caches: int, free: int | None) -> int | None:
    """Returns the bytes to read for last-level caches of that many bytes; None if that much memory is not free."""
    size = min(max(FACTOR * caches, LEAST), MOST)
    return size if free is None or size <= free // SHARE else None


def measure(caches: int, threads: int, free: int | None, seconds: float = SECONDS) -> MemoryBandwidth | None:
    """Reads memory with several threads. caches: bytes of all last-level caches; free: bytes that programs can get.
    Each thread first writes its part, which places it on the thread's NUMA node. None if too little memory is
    free."""
    size = size_for(caches, free)
    if size is None:
        return None
    end = time.perf_counter() + seconds
    try:
        parts = [allocate(size // threads // 8 * 8).view(np.uint64) for _ in range(threads)]
    except EngineError:
        return None
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: part.fill(1), parts))
        best = float("inf")
        while best == float("inf") or time.perf_counter() < end:
            start = time.perf_counter()
            list(pool.map(np.add.reduce, parts))
            best = min(best, time.perf_counter() - start)
    return MemoryBandwidth(sum(part.nbytes for part in parts) / best / 1e9, threads, size)
