"""A copy of the input into which updates are written, or joined, in their order. Each element of the output looks at
all of them, so every run joins updates of an element in the same order. Negative indices count from the end; those out
of range match nothing."""

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
ROWS, COLS, UPDATES = tl.constexpr(10), tl.constexpr(37), tl.constexpr(6)


@triton.jit
def x_at(b, r, c, a):
    return r * COLS + c


@triton.jit
def i_at(b, r, c, a):
    return 0


@triton.jit
def u_at(b, r, c, a):
    return c


@triton.jit
def i_step(b, r, c, a):
    return r


@triton.jit
def u_step(b, r, c, a):
    return r * COLS


@triton.jit
def meets(i, r, c, inside, a):
    return place(tl.load(i), ROWS) == r


@triton.jit
def known(r, c, a):
    return r >= 0


@triton.jit
def held(x):
    return x


@triton.jit
def join(x, y):
    return y


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + r * COLS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def place(i, size):
    return tl.where(i < 0, i + size, i)


@triton.jit
def KERNEL(a):
    r, c = block(tl.program_id(0).to(INDEX), COLS, RB, CB)
    rows, cols = r < ROWS, c < COLS
    inside, everywhere = rows & cols & known(r, c, a), tl.zeros((RB, CB), INDEX)
    i, u = a[1] + i_at(0, r, c, a), a[2] + (everywhere + u_at(0, r, c, a))
    found = held(tl.load(a[0] + (everywhere + x_at(0, r, c, a)), mask=rows & cols, other=0))
    for k in range(UPDATES):
        met = inside & meets(i + i_step(0, k, 0, a), r, c, inside, a)
        new = held(tl.load(u + u_step(0, k, 0, a), mask=met, other=0))
        found = tl.where(met, join(found, new), found)
    finish(found, 0, r, c, rows, cols, a)
