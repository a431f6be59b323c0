"""The k largest or smallest elements of each row and their places, in order; of equals the first ones.

Elements and their places are sorted as one number: the upper bits are an integer that orders as the elements do, the
lower bits the place, counted backwards.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
RB = tl.constexpr(4)
CB = tl.constexpr(256)
HELD = tl.constexpr(16)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
ROWS, COLS, COUNT, SMALLEST, KIND = (
    tl.constexpr(64),
    tl.constexpr(200),
    tl.constexpr(10),
    tl.constexpr(False),
    tl.constexpr(tl.float32),
)


@triton.jit
def x_at(b, r, c, a):
    return r * COLS + c


@triton.jit
def finish(x0, x1, b, r, c, rows, cols, a):
    tl.store(a[1] + r * COUNT + c, x0, mask=rows & cols)
    tl.store(a[2] + r * COUNT + c, x1, mask=rows & cols)


# </region>


@triton.jit
def ordered(x):
    """Returns an i32 that is larger where an element is; NaN is the largest float, and both zeros are equal."""
    if KIND == tl.float32:
        bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
        return tl.where(x != x, 2147483647, tl.where(bits < 0, bits ^ 2147483647, bits))
    elif KIND == tl.uint32:
        return (x.to(tl.int64) - 2147483648).to(tl.int32)
    else:
        return x.to(tl.int32)


@triton.jit
def element(i):
    if KIND == tl.float32:
        return tl.where(i < 0, i ^ 2147483647, i).to(tl.float32, bitcast=True)
    elif KIND == tl.uint32:
        return (i.to(tl.int64) + 2147483648).to(tl.uint32)
    else:
        return i.to(KIND)


@triton.jit
def keys(r, c, rows, a):
    inside = rows & (c < COLS)
    x = ordered(tl.load(a[0] + x_at(0, r, c, a), mask=inside, other=0).to(KIND))
    x = ~x if SMALLEST else x
    return tl.where(inside, x.to(tl.int64) * 4294967296 + (4294967295 - c.to(tl.int64)), -9223372036854775808)


@triton.jit
def KERNEL(a):
    r = tl.program_id(0).to(INDEX) * RB + tl.arange(0, RB)[:, None]
    rows, c = r < ROWS, tl.arange(0, CB)[None, :].to(INDEX)
    best = tl.topk(keys(r, c, rows, a), HELD)
    for start in range(CB, COLS, CB):
        more = tl.topk(keys(r, start + c, rows, a), HELD)
        best = tl.topk(tl.reshape(tl.join(best, more), (RB, 2 * HELD)), HELD)
    found = (best >> 32).to(tl.int32)
    found = ~found if SMALLEST else found
    c = tl.arange(0, HELD)[None, :].to(INDEX)
    finish(element(found), 4294967295 - (best & 4294967295), 0, r, c, rows, c < COUNT, a)
