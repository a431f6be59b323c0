"""The most floating point operations per second that threads of this machine reach, measured: what kernels are compared with."""
from __future__ import annotations

import numpy as np

from pelton.backends.cpu import Program, load_code
from pelton.kernels.compile import Compiler
from pelton.kernels.template import source

CHAINS, TURNS = 12, 2048                          # as in peak.c
LANES = {"x86_64_v3": 8, "x86_64_v4": 16}
ROUNDS, TILES = 30, 2000                          # rounds of some 8 ms; the best counts, for others may use the machine


def peak(isa: str, threads: int, cc: str | None = None) -> float:
    """f32 operations per nanosecond (GFLOP/s) of `threads` at once in a loop of fused multiply-adds. BuildError where there is no compiler."""
    tiles = TILES * threads
    numbers = np.array([0.5, 1.0], np.float32)
    out = np.empty(tiles * LANES[isa], np.float32)
    with Compiler(isa, cc=cc) as compiler:
        code = compiler.link(compiler.objects({"peak": source("peak.c").replace("KERNEL", "peak")}))
    with load_code(code) as loaded:
        program = Program([(loaded.symbol("peak"), [numbers.ctypes.data, out.ctypes.data], 2, tiles, 1, 0, 0)], threads)
        program.time(3)                           # threads and clocks come up
        return 2 * CHAINS * LANES[isa] * TURNS * tiles / min(program.time(ROUNDS))
