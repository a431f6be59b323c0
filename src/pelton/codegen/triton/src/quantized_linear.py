"""Matrix products with weights of few bits, which threads unpack for the tensor cores; summed in f32."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(64)
BN = tl.constexpr(64)
BK = tl.constexpr(64)
TALL = tl.constexpr(8)
PRECISION = tl.constexpr(0)
STREAM = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
# half at a time: the tail needs registers beside the sums
WIDE = tl.constexpr(BN.value // 2 if BN.value >= 128 else BN.value)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *

# <region>
BATCH, M, N, K, AK = tl.constexpr(1), tl.constexpr(256), tl.constexpr(256), tl.constexpr(256), tl.constexpr(1)
EVEN = tl.constexpr(True)
# byte i of a group of 16 holds the numbers i, i + 16, … of its 16 · HELD ones
BITS, HELD, LENGTH = tl.constexpr(4), tl.constexpr(2), tl.constexpr(8)
# so many runs of 16 numbers, one after the other in a group, have one scale
BLOCK, ALIKE = tl.constexpr(32), tl.constexpr(2)
SCALE_ROW, SCALE_STEP = tl.constexpr(8), tl.constexpr(1)
ZEROS, ZERO_ROW, ZERO_STEP = tl.constexpr(False), tl.constexpr(0), tl.constexpr(0)
# slots of the data that programs of a stream exchange
SUMS, ARRIVED = tl.constexpr(3), tl.constexpr(4)
ROUND_A = tl.constexpr(False)


@triton.jit
def a_at(b, r, c, a):
    return r * K


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + r * N + c, x0, mask=rows & cols)


# </region>
MASK, MIDDLE = tl.constexpr((1 << BITS.value) - 1), tl.constexpr(1 << (BITS.value - 1))
GROUPS = tl.constexpr(BK.value // (16 * HELD.value))  # of a step


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
def at(tile, a):
    """Returns the number of a tile's product in the batch, and the tile's first row and column."""
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    i, j = grouped(tile % (down * across), down, across, TALL)
    return tile // (down * across), i * BM, j * BN


@triton.jit
def complete(sums, b, i, j, wide: tl.constexpr, a):
    r, c = i + tl.arange(0, BM)[:, None], j + tl.arange(0, wide)[None, :]
    finish(sums, b, r, c, r < M, c < N, a)


@triton.jit
def write(acc, b, i, j, a):
    if WIDE < BN:
        left, right = halves(acc, BM, BN)
        complete(left, b, i, j, WIDE, a)
        complete(right, b, i, j + WIDE, WIDE, a)
    else:
        complete(acc, b, i, j, BN, a)


@triton.jit
def summed(b, i, j, begin, end, a):
    """Returns a tile's sums of products from one place to another."""
    acc = tl.zeros((BM, BN), tl.float32)
    r, c = i + tl.arange(0, BM)[:, None], j + tl.arange(0, BN)[:, None]
    # a step takes the same run of every group at once
    p, q = tl.arange(0, 16 * GROUPS)[None, :], tl.arange(0, GROUPS)[None, :]
    runs = p // 16 * (16 * HELD) + p % 16
    x = a[0] + (a_at(b, r, 0, a) + (begin + runs) * AK)
    w = a[1] + (c * (16 * LENGTH) + (begin // HELD + q * 16))[:, :, None] + tl.arange(0, 16)[None, None, :]
    for start in range(begin, end, BK):
        if EVEN:
            codes = tl.load(w, mask=(c < N)[:, :, None], other=0)
        else:
            there = (c < N) & (start + q * (16 * HELD) < K)
            codes = tl.load(w, mask=there[:, :, None], other=0)
        for run in tl.static_range(HELD):
            if EVEN:
                left = tl.load(x + run * 16 * AK, mask=r < M, other=0)
            else:
                left = tl.load(x + run * 16 * AK, mask=(r < M) & (runs + run * 16 < K - start), other=0)
            if run % ALIKE == 0:
                scale, zero = numbers(c, start + (q * HELD + run) * 16, a)
            right = (((codes >> (run * BITS)) & MASK).to(tl.float32) - zero[:, :, None]) * scale[:, :, None]
            right = tl.trans(tl.reshape(right, (BN, 16 * GROUPS)))
            left, right = nearest(left, ROUND_A), nearest(right, PRECISION == 2).to(left.dtype)
            acc = tl.dot(left, right, acc, input_precision=MODE, out_dtype=tl.float32)
        x += BK * AK
        w += BK // HELD
    return acc


@triton.jit
def streamed(program, a):
    """Computes one program's share of the steps of all tiles, one tile after the other. The last program to finish its
    part of a tile adds up all parts."""
    steps = tl.cdiv(K, BK)
    total = BATCH * tl.cdiv(M, BM) * tl.cdiv(N, BN) * steps
    begin, end = share(program, total)
    for tile in range(begin // steps, tl.cdiv(end, steps)):
        b, i, j = at(tile, a)
        one, last = sharers(tile, steps, total)
        first, until = tl.maximum(begin - tile * steps, 0) * BK, tl.minimum(end - tile * steps, steps) * BK
        acc = summed(b, i, j, first, until, a)
        if one == last:
            write(acc, b, i, j, a)
        elif parted(acc, places(BM, BN, 0, BN), BM * BN, program, one, last, a[SUMS], a[ARRIVED]):
            for left in tl.static_range(0, BN, WIDE):
                sums = joined(one, last, places(BM, BN, left, WIDE), BM * BN, a[SUMS])
                complete(sums, b, i, j + left, WIDE, a)


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    if STREAM:
        streamed(program, a)
    else:
        b, i, j = at(program, a)
        write(summed(b, i, j, 0, K, a), b, i, j, a)
