"""Measures this machine's roof beyond `peak`: INT8 operations per second, and the bandwidth of each level of caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import NativeProgram, describe, load_code
from pelton.backends.cpu.program import StepRow
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import source
from pelton.targets import ISAS

from .peak import least_time

ROUNDS = 30  # the best counts, as others may use the machine
CHAINS, TURNS, TILES = 12, 2048, 500  # of sums, as in peak_int8.c; tiles for each thread
RUNS, LENGTH, REPEATS = 8, 16, 32  # as in cached_bandwidth.c
READ = 64 << 20  # bytes that each thread reads in a round
HALF = 2  # the part of a level that is read: other data share it
_CALL = "void peak_int8(const args *a, idx begin, idx end, void *scratch) {{ sums_of_bytes({how}, a, begin, end); }}\n"


def bytes_peak(isa: str, threads: int, cc: str | None = None) -> float:
    """Measures 10⁹ operations per second of `threads` at once that add products of bytes; BuildError without a
    compiler."""
    lanes, tiles = ISAS[isa].lanes, TILES * threads
    numbers, out = np.ones(8 * lanes, np.int8), np.empty(tiles * lanes, np.int32)
    with load_code(bytes_code(isa, cc)) as loaded:
        pointers = [numbers.ctypes.data, out.ctypes.data]
        best = _best(loaded.symbol("peak_int8"), pointers, 2, tiles, threads)
    return 8 * CHAINS * lanes * TURNS * tiles / best


def bytes_code(isa: str, cc: str | None = None) -> bytes:
    """Compiles the kernel of `bytes_peak`; BuildError without a compiler."""
    how = {"fours": "AT_ONCE", "pairs": "PAIRS", "words": "WORDS"}[ISAS[isa].dot]
    with ClangCompiler(isa, cc=cc) as compiler:
        return compiler.link(compiler.objects({"peak_int8": source("peak_int8.c") + _CALL.format(how=how)}))


def cache_bandwidths(isa: str, threads: int, cc: str | None = None) -> dict[str, tuple[int, float]]:
    """Measures GB/s of `threads` at once out of each level of caches: level → (bytes of a core's, GB/s). BuildError
    without a compiler."""
    lanes = ISAS[isa].lanes
    block = 4 * RUNS * LENGTH * lanes
    tiles = max(READ // (block * REPEATS), 1) * threads
    caches = describe()["caches"]
    levels = {name: caches[key] for name, key in (("l1", "l1d"), ("l2", "l2"), ("l3", "l3")) if caches.get(key)}
    out = np.empty(tiles * lanes, np.float32)
    with ClangCompiler(isa, cc=cc) as compiler:
        text = source("cached_bandwidth.c").replace("KERNEL", "cached_bandwidth")
        code = compiler.link(compiler.objects({"cached_bandwidth": text}))
    rates = {}
    with load_code(code) as loaded:
        for level, size in levels.items():
            blocks = max(size // HALF // block, 1)
            memory = np.ones(blocks * block // 4, np.float32)
            words = [memory.ctypes.data, out.ctypes.data, blocks]
            best = _best(loaded.symbol("cached_bandwidth"), words, 2, tiles, threads)
            rates[level] = (size, tiles * REPEATS * block / best)
    return rates


def _best(kernel: int, words: Sequence[int], pointers: int, tiles: int, threads: int) -> float:
    """Returns the least nanoseconds of a run of a kernel on all threads, by their CPU time."""
    program = NativeProgram([StepRow(kernel, words, pointers, tiles, 1, 0, 0, 1)], threads)
    program.time(3)  # wakes threads and raises clock rates
    return least_time(program, threads, ROUNDS)
