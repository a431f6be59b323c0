"""A simple GPU model of kernels whose programs load and multiply step by step: orders tactics without timing."""

from __future__ import annotations

from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Tactic, Target

SHARED = 227 << 10  # bytes of shared memory of a multiprocessor
REGISTERS = 1 << 16
BYTES = 40  # from the L2 cache to each multiprocessor in a cycle
AWAY = 800  # cycles until a request to memory is answered
NEAR = 300  # the same of the L2 cache
STEP = 40  # cycles of the tensor cores that barriers cost in each step of a program
# time of products with addresses computed by threads, relative to boxes (triton-lang/triton#5461)
ADDRESSED = 1.13
# cycles until the descriptors of boxes reach the units that fetch them
BOXES = 800
CLOCK = 1600  # cycles per microsecond
OPERATIONS = 256  # of a multiprocessor per cycle without tensor cores: 128 fused multiply-adds in f32
# instructions that make a float of some bits of a byte: shift, mask, convert, subtract, scale, round
UNPACK = 6
# cycles of a program outside its steps, from its launch to its last store
BEGIN = 2500


def products(bm: int, target: Target, size: int = 2, precision: int = 0) -> float:
    """Returns the products per multiprocessor and cycle, of factors of `size` bytes. An H100 makes 2,048 of half floats
    with tiles of at least 64 rows and half of that with smaller ones, an A100 1,024; of bytes twice as many; of TF32
    half as many, of which an f32 needs three (precision 1) or one (2). Other units make those of f32 themselves (0):
    128 and 64. Kernels reach three quarters."""
    new = target.isa.startswith("sm_9")
    if size == 4 and not precision:
        return 0.75 * (128 if new else 64)
    each = {4: (6, 2)[precision - 1], 2: 1, 1: 0.5}[size]
    return 0.75 * (2048 if new and bm >= 64 else 1024) / each


def microseconds(flops: int, traffic: int, size: int, precision: int, target: Target) -> float:
    """Returns a kernel's least time for so many operations and bytes of traffic. size: bytes of the factors of a
    product on tensor cores, 0 for other kernels; precision: as for `products`."""
    rate = 2 * products(64, target, size, precision) if size else OPERATIONS
    return (max(flops / rate, traffic / BYTES) / target.threads + BEGIN) / CLOCK


def waves(
    programs: int, steps: int, busy: float, piece: int, room: int, held: int, ahead: int, end: float, target: Target
) -> float:
    """Returns the cycles for so many programs of so many steps on all multiprocessors. Per step: `busy`, the cycles
    that it occupies a multiprocessor's units, and `piece`, the bytes that it loads, requested `ahead` steps early. Per
    program: `room`, its bytes of shared memory, `held`, its registers, and `end`, its cycles after its steps.

    Programs that share a multiprocessor wait for the slowest of its units, the L2 cache, and memory.
    """
    each = ceil_div(programs, target.threads)
    beside = max(1, min(SHARED // (room + 1024), REGISTERS // held, each))
    step = max(beside * busy, beside * piece / BYTES, AWAY / max(1, ahead))
    return ceil_div(each, beside) * (steps * step + BEGIN + beside * end)


def cycles(tactic: Tactic, count: int, k: int, size: int, boxes: bool, target: Target, bits: int = 0) -> float:
    """Returns the cycles for so many tiles, each a sum over k, of factors of `size` bytes. boxes: True if units for
    that fetch the operands. Programs of a PERSISTENT tactic, one per multiprocessor, make one tile after the other;
    those of a STREAM share the steps of all tiles, and the last one at each tile adds up its parts. bits: those of an
    element of the second factor, if threads unpack it."""
    chosen = dict(tactic.params)
    bm, bn, bk, warps, stages = (chosen[name] for name in ("BM", "BN", "BK", "WARPS", "STAGES"))
    piece = bm * bk * size + bn * bk * (bits or 8 * size) // 8
    steps, end, joins = ceil_div(k, bk), bm * bn * size / BYTES, 0.0
    busy = bm * bn * bk / products(bm, target, size, chosen["PRECISION"]) * (1 if boxes else ADDRESSED) + STEP
    room = piece * stages
    if bits:
        busy, room = busy + bn * bk * UNPACK / (OPERATIONS // 2), room + bn * bk * size
    held = 32 * warps * min(255, 48 + bm * bn // (32 * warps))
    programs = chosen.get("STREAM", 0) or (min(count, target.threads) if chosen.get("PERSISTENT") else count)
    if chosen.get("STREAM"):
        part, alike = bm * bn * 4 / BYTES, programs % count == 0
        parts = programs // count if alike else ceil_div(steps, count * steps // programs) + 1
        steps, end = ceil_div(count * steps, programs), end + part * (1 if alike else 2)
        # stores become visible to all programs, which then count arrivals
        joins = 2 * AWAY + ceil_div(min(count, programs), target.threads) * (NEAR + parts * part)
    elif chosen.get("PERSISTENT"):
        steps, end = steps * ceil_div(count, programs), end * ceil_div(count, programs)
    return waves(programs, steps, busy, piece, room, held, stages - 1, end, target) + joins + (BOXES if boxes else 0)
