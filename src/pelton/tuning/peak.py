"""Measures this machine's peak: floating point operations per second, and bytes per second out of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import NativeProgram, describe, load_code
from pelton.backends.cpu.program import StepRow
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.targets import ISAS
from pelton.codegen.template import source

ROUNDS = 30  # of some 8 ms; the best counts, as others may use the machine
# rounds between two readings of the CPU time, which systems count in steps of up to 10 ms
TOGETHER = 5
# seconds until idle threads sleep: the CPU time of running ones is not all counted yet
ASLEEP = 2e-3
CHAINS, TURNS, TILES = 12, 2048, 2000  # of additions and products, as in peak.c; tiles for each thread
# of numbers, as in bandwidth.c; minimum bytes read in a round, or four times the caches
RUNS, LENGTH, LEAST = 8, 2048, 128 << 20


def peak(isa: str, threads: int, cc: str | None = None) -> tuple[float, float]:
    """Measures GFLOP/s of `threads` at once in a loop of f32 multiply-adds, and GB/s of one that reads memory.
    BuildError without a compiler.

    Operations are counted by the CPU time of the threads: where others use the machine, two threads may share one core
    throughout, and wall time would halve the peak. On an EPYC of two cores with 5 to 7 busy processes wall time
    measured 59 to 134 GFLOP/s, CPU time 188 to 201, and either 204 without them. Bytes are counted by wall time: all
    threads share one memory.
    """
    lanes = ISAS[isa].lanes
    tiles = TILES * threads
    size = 4 * RUNS * LENGTH * lanes
    parts = -(-max(LEAST, 4 * describe()["caches"].get("l3", 0)) // size)
    numbers, memory = np.array([0.5, 1.0], np.float32), np.ones(parts * size // 4, np.float32)
    out = np.empty(max(tiles, parts) * lanes, np.float32)
    with ClangCompiler(isa, cc=cc) as compiler:
        code = compiler.link(
            compiler.objects({name: source(f"{name}.c").replace("KERNEL", name) for name in ("peak", "bandwidth")})
        )
    with load_code(code) as loaded:

        def ready(name: str, pointers: Sequence[int], tiles: int) -> NativeProgram:
            program = NativeProgram([StepRow(loaded.symbol(name), pointers, len(pointers), tiles, 1, 0, 0, 1)], threads)
            program.time(3)  # wakes threads and raises clock rates
            return program

        computing = ready("peak", [numbers.ctypes.data, out.ctypes.data], tiles)
        reading = ready("bandwidth", [memory.ctypes.data, out.ctypes.data], parts)
        operations = 2 * CHAINS * lanes * TURNS * tiles
        return operations / least_time(computing, threads), parts * size / min(reading.time(ROUNDS))


def least_time(program: NativeProgram, threads: int, rounds: int | None = None) -> float:
    """Returns the least ns of a run by its threads' CPU time, or by wall time if that is less: then nothing disturbed
    them. rounds: ROUNDS by default."""
    return min(_round(program, threads) for _ in range(max((rounds or ROUNDS) // TOGETHER, 1)))


def _round(program: NativeProgram, threads: int) -> float:
    """Returns the ns of a run by its threads' CPU time, or by wall time if that is less: then nothing disturbed
    them."""
    time.sleep(ASLEEP)
    start = time.process_time_ns()
    walls = program.time(TOGETHER)
    time.sleep(ASLEEP)
    return min(*walls, (time.process_time_ns() - start) / (TOGETHER * threads))
