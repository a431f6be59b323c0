"""Matrix products without tensor cores, of any element type: summed in its type in registers, where integers wrap."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(16)
BN = tl.constexpr(16)
BK = tl.constexpr(16)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
M, N, K, AK, BK_STEP = tl.constexpr(64), tl.constexpr(64), tl.constexpr(64), tl.constexpr(1), tl.constexpr(64)
KIND = tl.constexpr(tl.float64)


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


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    b, tile = tile // (down * across), tile % (down * across)
    r, c = block(tile, N, BM, BN)
    rows, cols = r < M, c < N
    k = tl.arange(0, BK)
    x = a[0] + (a_at(b, r, 0, a) + k[None, :] * AK)
    w = a[1] + (b_at(b, 0, c, a) + k[:, None] * BK_STEP)
    acc = tl.zeros((BM, BN), KIND)
    for start in range(0, K, BK):
        left = tl.load(x, mask=rows & (k[None, :] < K - start), other=0).to(KIND)
        right = tl.load(w, mask=cols & (k[:, None] < K - start), other=0).to(KIND)
        acc += tl.reduce(left[:, :, None] * right[None, :, :], 1, add)
        x += BK * AK
        w += BK * BK_STEP
    finish(acc, b, r, c, rows, cols, a)
