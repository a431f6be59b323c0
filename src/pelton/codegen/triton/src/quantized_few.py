"""Products of few rows with weights of few bits, as sums in f32: bound by the speed of reading bytes and scales."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
ROWS = tl.constexpr(1)
BN = tl.constexpr(4)
GROUPS = tl.constexpr(64)
AHEAD = tl.constexpr(3)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
M, N, K, AK = tl.constexpr(1), tl.constexpr(768), tl.constexpr(768), tl.constexpr(1)
# byte i of a group of 16 holds the numbers i, i + 16, … of its 16 · HELD ones
BITS, HELD, LENGTH = tl.constexpr(4), tl.constexpr(2), tl.constexpr(24)
# so many runs of 16 numbers, one after the other in a group, have one scale
BLOCK, ALIKE = tl.constexpr(32), tl.constexpr(2)
SCALE_ROW, SCALE_STEP = tl.constexpr(24), tl.constexpr(1)
ZEROS, ZERO_ROW, ZERO_STEP = tl.constexpr(False), tl.constexpr(0), tl.constexpr(0)


@triton.jit
def a_at(b, r, c, a):
    return r * K


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + r * N + c, x0, mask=rows & cols)


# </region>
MASK, MIDDLE = tl.constexpr((1 << BITS.value) - 1), tl.constexpr(1 << (BITS.value - 1))


@triton.jit
def numbers(c, k, a):
    """Returns the scales and zero points of columns at places along the sum."""
    at, there = k // BLOCK, (c < N) & (k < K)
    scale = tl.load(a[2] + (c * SCALE_ROW + at * SCALE_STEP), mask=there, other=0).to(tl.float32)
    if ZEROS:
        zero = tl.load(a[3] + (c * ZERO_ROW + at * ZERO_STEP), mask=there, other=0).to(tl.float32)
    else:
        zero = tl.full(scale.shape, MIDDLE, tl.float32)
    return scale, zero


@triton.jit
def fourfold(x):
    """Repeats what groups have for each quarter of them."""
    return tl.reshape(tl.broadcast_to(x[:, :, None], (BN, GROUPS, 4)), (BN, 4 * GROUPS))


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    across = tl.cdiv(N, BN)
    b, c = tile // across, (tile % across * BN + tl.arange(0, BN))[:, None]
    r, i = tl.arange(0, ROWS)[:, None, None, None].to(INDEX), tl.arange(0, 16)
    x, w = a[0] + a_at(b, r, 0, a), a[1] + c[:, :, None] * (16 * LENGTH) + i[None, None, :]
    # a thread adds four numbers at once: it has those of x after a load
    quarter, i = tl.arange(0, 4 * GROUPS)[:, None], tl.arange(0, 4)[None, :]
    acc = tl.zeros((ROWS, BN, 4 * GROUPS), tl.float32)
    for start in tl.range(0, LENGTH, GROUPS, num_stages=AHEAD):
        q = start + tl.arange(0, GROUPS)[None, :].to(INDEX)
        codes = tl.load(w + q[:, :, None] * 16, mask=((c < N) & (q < LENGTH))[:, :, None], other=0)
        for j in tl.static_range(HELD):
            if j % ALIKE == 0:
                scale, zero = numbers(c, (q * HELD + j) * 16, a)
                factor = fourfold(scale)
            k = (((start + quarter // 4) * HELD + j) * 16 + quarter % 4 * 4 + i)[None, None, :, :]
            left = tl.load(x + k * AK, mask=(r < M) & (k < K), other=0).to(tl.float32)
            right = ((codes >> (j * BITS)) & MASK).to(tl.float32) - zero[:, :, None]
            right = tl.reshape(right, (1, BN, 4 * GROUPS, 4))
            acc += tl.sum(left * right, 3) * factor[None, :, :]
    r, c = tl.arange(0, ROWS)[:, None].to(INDEX), tl.reshape(c, (1, BN))
    finish(tl.sum(acc, 2), b, r, c, r < M, c < N, a)
