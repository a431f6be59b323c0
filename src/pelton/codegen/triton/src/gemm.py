"""Matrix products C[b, m, n] = A[b, m, k] · B[b, k, n], summed in f32, or of bytes in i32; operands have any strides,
or the TMA of an H100 copies them as tiles."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(64)
BN = tl.constexpr(64)
BK = tl.constexpr(32)
TALL = tl.constexpr(8)
PRECISION = tl.constexpr(0)
DESCRIBED = tl.constexpr(0)
PERSISTENT = tl.constexpr(0)
STREAM = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
# half at a time: the tail needs registers beside the sums
WIDE = tl.constexpr(BN.value // 2 if BN.value >= 128 else BN.value)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *

# <region>
BATCH = tl.constexpr(1)
M = tl.constexpr(256)
N = tl.constexpr(256)
K = tl.constexpr(256)
AK = tl.constexpr(1)
BK_STEP = tl.constexpr(256)
EVEN = tl.constexpr(True)
# for bytes: u8 are less 128, and the slot MISSING holds the correction of their sums
INTEGERS, SHIFTED, MISSING = tl.constexpr(False), tl.constexpr(False), tl.constexpr(2)
FLOAT8 = tl.constexpr(False)
# slots of the data that programs of a stream exchange
SUMS, ARRIVED = tl.constexpr(3), tl.constexpr(4)
ROUND_A, ROUND_B = tl.constexpr(False), tl.constexpr(False)
# of descriptors: steps from row to row; True if those of B are columns
ROW_A, ROW_B, TURNED = tl.constexpr(256), tl.constexpr(256), tl.constexpr(False)


@triton.jit
def a_at(b, r, c, a):
    return r * K


@triton.jit
def b_at(b, r, c, a):
    return c


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * N + c, x0, mask=rows & cols)


# </region>
KIND = tl.constexpr(tl.int32 if INTEGERS.value else tl.float32)
NOTHING = tl.constexpr(0.0 if FLOAT8.value else 0)
# an H100 keeps few bits of FP8 sums: those of a step are added in f32
COARSE = tl.constexpr(BK.value if FLOAT8.value else 0)


@triton.jit
def complete(sums, b, r, c, a):
    if SHIFTED:
        sums += tl.load(a[MISSING] + c, mask=c < N, other=0)
    finish(sums, b, r, c, r < M, c < N, a)


@triton.jit
def at(tile, a):
    """Returns the number of a tile's product in the batch, and the tile's first row and column."""
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    i, j = grouped(tile % (down * across), down, across, TALL)
    return tile // (down * across), i * BM, j * BN


@triton.jit
def write(acc, b, i, j, a):
    r, c = i + tl.arange(0, BM)[:, None], j + tl.arange(0, WIDE)[None, :]
    if WIDE < BN:
        left, right = halves(acc, BM, BN)
        complete(left, b, r, c, a)
        complete(right, b, r, c + WIDE, a)
    else:
        complete(acc, b, r, c, a)


@triton.jit
def summed(x, w, b, i, j, begin, end, a):
    """Returns a tile's sums of products from one place to another."""
    acc = tl.zeros((BM, BN), KIND)
    if DESCRIBED:
        for start in range(begin, end, BK):
            left = x.load([i.to(tl.int32), start])
            if TURNED:
                right = w.load([j.to(tl.int32), start]).T
            else:
                right = w.load([start, j.to(tl.int32)])
            left = less_128(left, SHIFTED)
            acc = tl.dot(left, right, acc, input_precision=MODE, max_num_imprecise_acc=COARSE, out_dtype=KIND)
    else:
        r, c = i + tl.arange(0, BM)[:, None], j + tl.arange(0, BN)[None, :]
        rows, cols = r < M, c < N
        k = begin + tl.arange(0, BK)
        x += a_at(b, r, 0, a) + k[None, :] * AK
        w += b_at(b, 0, c, a) + k[:, None] * BK_STEP
        k = tl.arange(0, BK)
        for start in range(begin, end, BK):
            if EVEN:
                left, right = tl.load(x, mask=rows, other=NOTHING), tl.load(w, mask=cols, other=NOTHING)
            else:
                left = tl.load(x, mask=rows & (k[None, :] < K - start), other=NOTHING)
                right = tl.load(w, mask=cols & (k[:, None] < K - start), other=NOTHING)
            left, right = less_128(nearest(left, ROUND_A), SHIFTED), nearest(right, ROUND_B)
            acc = tl.dot(left, right, acc, input_precision=MODE, max_num_imprecise_acc=COARSE, out_dtype=KIND)
            x += BK * AK
            w += BK * BK_STEP
    return acc


@triton.jit
def streamed(program, x, w, a):
    """Computes one program's share of the steps of all tiles, one tile after the other. The last program to finish its
    part of a tile adds up all parts."""
    steps = tl.cdiv(K, BK)
    total = BATCH * tl.cdiv(M, BM) * tl.cdiv(N, BN) * steps
    begin, end = share(program, total)
    for tile in range(begin // steps, tl.cdiv(end, steps)):
        b, i, j = at(tile, a)
        one, last = sharers(tile, steps, total)
        first, until = tl.maximum(begin - tile * steps, 0) * BK, tl.minimum(end - tile * steps, steps) * BK
        if DESCRIBED:
            first, until = first.to(tl.int32), until.to(tl.int32)
        acc = summed(x, w, b, i, j, first, until, a)
        if one == last:
            write(acc, b, i, j, a)
        elif parted(acc, places(BM, BN, 0, BN), BM * BN, program, one, last, a[SUMS], a[ARRIVED]):
            r = i + tl.arange(0, BM)[:, None]
            for left in tl.static_range(0, BN, WIDE):
                c = j + left + tl.arange(0, WIDE)[None, :]
                complete(joined(one, last, places(BM, BN, left, WIDE), BM * BN, a[SUMS]), b, r, c, a)


@triton.jit
def whole(tile, x, w, a):
    b, i, j = at(tile, a)
    write(summed(x, w, b, i, j, 0, K, a), b, i, j, a)


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    if DESCRIBED:  # of a batch of one
        x = tl.make_tensor_descriptor(a[0], [M, K], [ROW_A, 1], [BM, BK])
        if TURNED:
            w = tl.make_tensor_descriptor(a[1], [N, K], [ROW_B, 1], [BN, BK])
        else:
            w = tl.make_tensor_descriptor(a[1], [K, N], [ROW_B, 1], [BK, BN])
    else:
        x, w = a[0], a[1]
    if STREAM:
        streamed(program, x, w, a)
    elif PERSISTENT:
        for tile in tl.range(program, BATCH * tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0)):
            whole(tile, x, w, a)
    else:
        whole(program, x, w, a)
