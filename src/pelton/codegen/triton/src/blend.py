"""Weighted sums of elements picked along an axis. A weight of zero picks nothing; negative indices count from the end,
and those out of range are clamped."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
RB = tl.constexpr(1)
CB = tl.constexpr(256)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
ROWS, COLS, TAPS, SIZE, STEP, IK, WK = (tl.constexpr(x) for x in (6, 37, 2, 10, 37, 1, 1))
KIND = tl.constexpr(tl.float32)


@triton.jit
def x_at(b, r, c, a):
    return c


@triton.jit
def i_at(b, r, c, a):
    return r * TAPS


@triton.jit
def w_at(b, r, c, a):
    return r * TAPS


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + r * COLS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def KERNEL(a):
    r, c = block(tl.program_id(0).to(INDEX), COLS, RB, CB)
    rows, cols = r < ROWS, c < COLS
    inside, everywhere = rows & cols, tl.zeros((RB, CB), INDEX)
    x = a[0] + (everywhere + x_at(0, r, c, a))
    i, w = a[1] + (everywhere + i_at(0, r, c, a)), a[2] + (everywhere + w_at(0, r, c, a))
    found = tl.zeros((RB, CB), KIND)
    for k in range(TAPS):
        at = tl.load(i + k * IK, mask=inside, other=0).to(tl.int64)
        at = tl.minimum(tl.maximum(tl.where(at < 0, at + SIZE, at), 0), SIZE - 1) * STEP
        by = tl.load(w + k * WK, mask=inside, other=0)
        there = inside & (by != 0)
        found += tl.where(there, by * tl.load(x + at, mask=there, other=0).to(KIND), 0)
    finish(found, 0, r, c, rows, cols, a)
