"""Cumulative sums and products along rows."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
RB = tl.constexpr(4)
CB = tl.constexpr(256)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
ROWS, COLS = tl.constexpr(64), tl.constexpr(200)
PRODUCTS, EXCLUSIVE, REVERSE, KIND = (
    tl.constexpr(False),
    tl.constexpr(False),
    tl.constexpr(False),
    tl.constexpr(tl.float32),
)


@triton.jit
def x_at(b, r, c, a):
    return r * COLS + c


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[1] + r * COLS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def KERNEL(a):
    r = tl.program_id(0).to(INDEX) * RB + tl.arange(0, RB)[:, None]
    rows, c = r < ROWS, tl.arange(0, CB)[None, :].to(INDEX)
    before = tl.full((RB, 1), 1 if PRODUCTS else 0, KIND)
    for start in range(0, COLS, CB):
        at = start + c
        # in reverse, places count from the end
        read = at - 1 if EXCLUSIVE else at
        x = tl.load(
            a[0] + x_at(0, r, COLS - 1 - read if REVERSE else read, a),
            mask=rows & (read >= 0) & (read < COLS),
            other=1 if PRODUCTS else 0,
        ).to(KIND)
        if PRODUCTS:
            y = (before * tl.cumprod(x, 1)).to(KIND)
        else:
            y = (before + tl.cumsum(x, 1)).to(KIND)
        finish(y, 0, r, COLS - 1 - at if REVERSE else at, rows, at < COLS, a)
        before = tl.sum(tl.where(c == CB - 1, y, tl.zeros((RB, CB), KIND)), 1, keep_dims=True).to(KIND)
