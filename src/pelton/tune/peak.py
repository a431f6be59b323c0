"""What threads of this machine reach at most, measured: floating point operations per second, and bytes per second out of memory."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import Program, describe, load_code
from pelton.kernels.compile import Compiler
from pelton.kernels.isa import ISAS
from pelton.kernels.template import source

ROUNDS = 30                                       # of some 8 ms; the best counts, for others may use the machine
CHAINS, TURNS, TILES = 12, 2048, 2000             # of additions and products, as in peak.c; tiles for each thread
RUNS, LENGTH, LEAST = 8, 2048, 128 << 20          # of numbers, as in bandwidth.c; bytes read in a round, or four times what caches hold


def peak(isa: str, threads: int, cc: str | None = None) -> tuple[float, float]:
    """GFLOP/s of `threads` at once in a loop of f32 multiply-adds, and GB/s in one that reads memory. BuildError where there is no compiler."""
    lanes = ISAS[isa].lanes
    tiles = TILES * threads
    size = 4 * RUNS * LENGTH * lanes
    parts = -(-max(LEAST, 4 * describe()["caches"].get("l3", 0)) // size)
    numbers, memory = np.array([0.5, 1.0], np.float32), np.ones(parts * size // 4, np.float32)
    out = np.empty(max(tiles, parts) * lanes, np.float32)
    with Compiler(isa, cc=cc) as compiler:
        code = compiler.link(compiler.objects({name: source(f"{name}.c").replace("KERNEL", name) for name in ("peak", "bandwidth")}))
    with load_code(code) as loaded:
        def best(name: str, pointers: Sequence[int], tiles: int) -> int:
            program = Program([(loaded.symbol(name), pointers, len(pointers), tiles, 1, 0, 0, 1)], threads)
            program.time(3)                       # threads and clocks come up
            return min(program.time(ROUNDS))
        operations = 2 * CHAINS * lanes * TURNS * tiles
        return (operations / best("peak", [numbers.ctypes.data, out.ctypes.data], tiles),
                parts * size / best("bandwidth", [memory.ctypes.data, out.ctypes.data], parts))
