"""Sliding windows over each channel by itself, channels-last: pooling and depthwise convolution."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
HIGH = tl.constexpr(4)
WIDE = tl.constexpr(8)
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
# padding of images for filters: PAD, or the slot PADDING, unless that is 0
PAD, PADDING = tl.constexpr(0), tl.constexpr(0)
AT_ONCE, MEANS, FILTERED, NEUTRAL, KIND = (tl.constexpr(x) for x in (9, False, False, float("-inf"), tl.float32))


@triton.jit
def join(x, y):
    return maximum(x, y)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[1] + r * CHANNELS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def with_tap(u, v, acc, count, x, top, left, c, inside, a):
    """Joins the elements under one place of the window to those before; returns them, and how many places count."""
    y, z = top + u * DH, left + v * DW
    there = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    at = x + (u * DH * XH + v * DW * XW)
    if not FILTERED:
        here = load_or(at, there, NEUTRAL).to(KIND)
    elif PADDING:
        here = tl.load(at, mask=there, other=tl.load(a[PADDING])).to(KIND)
    else:
        here = load_or(at, there, PAD).to(KIND)
    if FILTERED:
        # one for each pixel: threads have eight channels of both; otherwise Triton
        taps = tl.broadcast_to(a[1] + ((u * KW + v) * W_STEP + c), here.shape)
        # moves pixels to the threads of their filters, behind a barrier for each tap
        here = here * tl.load(taps, mask=c < CHANNELS, other=0).to(KIND)
    if MEANS:
        count += ((y >= FIRST_ROW) & (y < END_ROW) & (z >= FIRST_COLUMN) & (z < END_COLUMN)).to(tl.int32)
    return join(acc, here), count


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    deep, across, down = tl.cdiv(CHANNELS, BN), tl.cdiv(OW, WIDE), tl.cdiv(OH, HIGH)
    n, i, j = tile // (deep * across * down), tile // (deep * across) % down, tile // deep % across
    pixel = tl.arange(0, HIGH * WIDE)[:, None]
    # adjacent windows, which read mostly the same elements
    p, q = i * HIGH + pixel // WIDE, j * WIDE + pixel % WIDE
    c = tile % deep * BN + tl.arange(0, BN)[None, :]
    rows, cols = (p < OH) & (q < OW), c < CHANNELS
    top, left = p * SH - PT, q * SW - PL
    x = a[0] + (n * XN + top * XH + left * XW + c // EACH * XC)
    acc = tl.full((HIGH * WIDE, BN), NEUTRAL, KIND)
    count = tl.zeros((HIGH * WIDE, 1), tl.int32)
    for first in range(0, KH * KW, AT_ONCE):
        # all of these loads are issued before the first arrives
        for k in tl.static_range(AT_ONCE):
            acc, count = with_tap((first + k) // KW, (first + k) % KW, acc, count, x, top, left, c, rows & cols, a)
    if MEANS:
        acc = acc / tl.maximum(count, 1).to(KIND)
    finish(acc, 0, (n * OH + p) * OW + q, c, rows, cols, a)
