"""Products of few rows with a matrix, as sums in f32, or of bytes in i32: bound by the speed of reading the matrix."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
ROWS = tl.constexpr(1)
BN = tl.constexpr(4)
BK = tl.constexpr(512)
AHEAD = tl.constexpr(3)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
M, N, K, AK, BK_STEP = (tl.constexpr(x) for x in (1, 768, 768, 1, 1))
INTEGERS = tl.constexpr(False)


@triton.jit
def a_at(b, r, c, a):
    return r * K


@triton.jit
def b_at(b, r, c, a):
    return c * K


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * N + c, x0, mask=rows & cols)


# </region>
KIND = tl.constexpr(tl.int32 if INTEGERS.value else tl.float32)


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    across = tl.cdiv(N, BN)
    b = tile // across
    r, c = tl.arange(0, ROWS)[:, None].to(INDEX), tile % across * BN + tl.arange(0, BN)
    rows, cols = r < M, c < N
    x, w = a[0] + a_at(b, r, 0, a), a[1] + b_at(b, 0, c[:, None], a)
    acc = tl.zeros((ROWS, BN), KIND)
    for start in tl.range(0, K, BK, num_stages=AHEAD):
        k = start + tl.arange(0, BK)[None, :].to(INDEX)
        left = tl.load(x + k * AK, mask=rows & (k < K), other=0).to(KIND)
        right = tl.load(w + k * BK_STEP, mask=cols[:, None] & (k < K), other=0).to(KIND)
        acc += tl.sum(left[:, None, :] * right[None, :, :], 2)
    finish(acc, b, r, c[None, :], rows, cols[None, :], a)
