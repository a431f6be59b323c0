"""Sliding windows over each channel by itself, channels-last: pooling and depthwise convolution."""
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(32)
BN = tl.constexpr(64)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *
# <region>
BATCH, CHANNELS, EACH, W_STEP = tl.constexpr(1), tl.constexpr(64), tl.constexpr(1), tl.constexpr(64)
H, W, OH, OW = tl.constexpr(14), tl.constexpr(14), tl.constexpr(14), tl.constexpr(14)
KH, KW, SH, SW, DH, DW, PT, PL = (tl.constexpr(x) for x in (3, 3, 1, 1, 1, 1, 1, 1))
XN, XH, XW, XC = tl.constexpr(12544), tl.constexpr(896), tl.constexpr(64), tl.constexpr(1)
FIRST_ROW, FIRST_COLUMN, END_ROW, END_COLUMN = tl.constexpr(0), tl.constexpr(0), tl.constexpr(14), tl.constexpr(14)
MEANS, FILTERED, NEUTRAL, KIND = tl.constexpr(False), tl.constexpr(False), tl.constexpr(float("-inf")), tl.constexpr(tl.float32)


@triton.jit
def join(x, y):
    return maximum(x, y)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[1] + r * CHANNELS + c, x0, mask=rows & cols)
# </region>


@triton.jit
def KERNEL(a):
    r, c = block(tl.program_id(0).to(INDEX), CHANNELS, BM, BN)
    rows, cols = r < BATCH * OH * OW, c < CHANNELS
    top, left = r // OW % OH * SH - PT, r % OW * SW - PL
    x = a[0] + (r // (OH * OW) * XN + top * XH + left * XW + c // EACH * XC)
    acc = tl.full((BM, BN), NEUTRAL, KIND)
    count = tl.zeros((BM, 1), tl.int32)
    for tap in range(KH * KW):
        y, z = top + tap // KW * DH, left + tap % KW * DW
        there = rows & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        here = tl.load(x + (tap // KW * DH * XH + tap % KW * DW * XW), mask=there & cols, other=NEUTRAL).to(KIND)
        if FILTERED:
            here = here * tl.load(a[1] + (tap * W_STEP + c), mask=cols, other=0).to(KIND)
        acc = join(acc, here)
        if MEANS:
            count += ((y >= FIRST_ROW) & (y < END_ROW) & (z >= FIRST_COLUMN) & (z < END_COLUMN)).to(tl.int32)
    if MEANS:
        acc = acc / tl.maximum(count, 1).to(KIND)
    finish(acc, 0, r, c, rows, cols, a)
