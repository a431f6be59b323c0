"""Elements moved to other places: padding, repetition, triangles, and bits reinterpreted as another type."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
RB = tl.constexpr(1)
CB = tl.constexpr(256)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *


@triton.jit
def wrap(i, n):
    """Maps an index past the ends of an axis to its other end; the functions below to its mirror image or edge."""
    return (i % n + n) % n


@triton.jit
def reflect(i, n):
    period = tl.maximum(2 * (n - 1), 1)
    at = wrap(i, period)
    return tl.where(at < n, at, period - at)


@triton.jit
def edge(i, n):
    return tl.minimum(tl.maximum(i, 0), n - 1)


# <region>
ROWS, COLS, FILLED = tl.constexpr(6), tl.constexpr(37), tl.constexpr(True)


@triton.jit
def source(r, c, a):
    i1 = c - 2
    return r * 33 + i1, (i1 >= 0) & (i1 < 33)


@triton.jit
def held(x):
    return x


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * COLS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def KERNEL(a):
    r, c = block(tl.program_id(0).to(INDEX), COLS, RB, CB)
    rows, cols = r < ROWS, c < COLS
    at, there = source(r, c, a)
    there = there & rows & cols
    x = tl.load(a[0] + (tl.zeros((RB, CB), INDEX) + at), mask=there, other=0)
    if FILLED:
        x = tl.where(there, x, tl.load(a[1]))
    finish(held(x), 0, r, c, rows, cols, a)
