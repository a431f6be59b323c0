"""How long a product takes that is made by tiles, by a simple model of a GPU: what orders tactics where nothing is timed."""
from __future__ import annotations

from pelton.kernels.grid import divide
from pelton.kernels.template import Tactic, Target

SHARED = 227 << 10                             # bytes of a multiprocessor that programs share out
REGISTERS = 1 << 16
BYTES = 40                                     # that the L2 cache gives each multiprocessor in a cycle
AWAY = 800                                     # cycles until what is asked of memory is there
STEP = 40                                      # cycles of the tensor cores that a step of a program loses to barriers
ADDRESSED = 1.13                               # times what products take with addresses computed by threads, rather than boxes (triton-lang/triton#5461)
BEGIN = 2500                                   # cycles of a program besides its steps, from its launch to its last store


def products(bm: int, f32: bool, target: Target) -> float:
    """Products that a multiprocessor makes in a cycle. An H100 makes 2,048 of half floats with tiles of 64 rows and more and half of that with smaller ones,
    an A100 1,024; of TF32 half as many, of which an f32 takes three. Kernels reach three quarters."""
    whole = 2048 if target.isa.startswith("sm_9") and bm >= 64 else 1024
    return 0.75 * whole / (6 if f32 else 1)


def cycles(tactic: Tactic, count: int, k: int, f32: bool, boxes: bool, target: Target) -> float:
    """Cycles for so many tiles, each a sum over k (a multiple of its steps), on all multiprocessors. boxes: operands are fetched by the units for that.

    Programs that share a multiprocessor wait for the slowest of: its tensor cores, what the L2 cache gives, and memory that was asked for as many steps ahead
    as a program has stages.
    """
    bm, bn, bk, warps, stages = (tactic[name] for name in ("BM", "BN", "BK", "WARPS", "STAGES"))
    piece = (bm + bn) * bk * (4 if f32 else 2)
    registers = 32 * warps * min(255, 48 + bm * bn // (32 * warps))
    each = divide(count, target.threads)
    beside = max(1, min(SHARED // (piece * stages + 1024), REGISTERS // registers, each))
    busy = bm * bn * bk / products(bm, f32, target) * (1 if boxes else ADDRESSED) + STEP
    step = max(beside * busy, beside * piece / BYTES, AWAY / max(1, stages - 1))
    return divide(each, beside) * (divide(k, bk) * step + BEGIN + beside * bm * bn * (4 if f32 else 2) / BYTES)
