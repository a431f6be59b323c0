"""What threads of this machine reach at most, measured: floating point operations per second, and bytes per second out
of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import NativeProgram, describe, load_code
from pelton.backends.cpu.program import StepRow
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.targets import ISAS
from pelton.codegen.template import source

ROUNDS = 30  # of some 8 ms; the best counts, for others may use the machine
# rounds between two looks at the CPU time, which systems count in steps of up to 10 ms
TOGETHER = 5
# seconds until threads that nobody gives work sleep: what running ones have used does not all count yet
ASLEEP = 2e-3
CHAINS, TURNS, TILES = 12, 2048, 2000  # of additions and products, as in peak.c; tiles for each thread
# of numbers, as in bandwidth.c; bytes read in a round, or four times what caches hold
RUNS, LENGTH, LEAST = 8, 2048, 128 << 20


def peak(isa: str, threads: int, cc: str | None = None) -> tuple[float, float]:
    """GFLOP/s of `threads` at once in a loop of f32 multiply-adds, and GB/s in one that reads memory. BuildError where
    there is no compiler.

    Operations are counted by the CPU time that the threads took: where others use the machine, two threads may share
    one core for as long as this looks, and by the clock on the wall the peak would be half of what it is. On an EPYC of
    two cores with 5 to 7 busy processes that clock gave 59 to 134 GFLOP/s, this one 188 to 201, and either 204 without
    them. Bytes are counted by the wall: they are one memory's, however many read it.
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
            program.time(3)  # threads and clocks come up
            return program

        computing = ready("peak", [numbers.ctypes.data, out.ctypes.data], tiles)
        reading = ready("bandwidth", [memory.ctypes.data, out.ctypes.data], parts)
        operations = 2 * CHAINS * lanes * TURNS * tiles
        return operations / min(_round(computing, threads) for _ in range(ROUNDS // TOGETHER)), parts * size / min(
            reading.time(ROUNDS)
        )


def _round(program: NativeProgram, threads: int) -> float:
    """Nanoseconds of a run by the CPU time of its threads, or by the wall where that is less: then nobody was in their
    way."""
    time.sleep(ASLEEP)
    start = time.process_time_ns()
    walls = program.time(TOGETHER)
    time.sleep(ASLEEP)
    return min(*walls, (time.process_time_ns() - start) / (TOGETHER * threads))
