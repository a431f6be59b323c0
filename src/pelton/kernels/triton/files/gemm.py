"""Matrix products C[b, m, n] = A[b, m, k] · B[b, k, n], summed in f32; operands lie in any strides."""
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(64)
BN = tl.constexpr(64)
BK = tl.constexpr(32)
TALL = tl.constexpr(8)
PRECISION = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *
# <region>
M = tl.constexpr(256)
N = tl.constexpr(256)
K = tl.constexpr(256)
AK = tl.constexpr(1)
BK_STEP = tl.constexpr(256)
EVEN = tl.constexpr(True)


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
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    b, tile = tile // (down * across), tile % (down * across)
    i, j = grouped(tile, down, across, TALL)
    r, c = i * BM + tl.arange(0, BM)[:, None], j * BN + tl.arange(0, BN)[None, :]
    rows, cols = r < M, c < N
    k = tl.arange(0, BK)
    x = a[0] + (a_at(b, r, 0, a) + k[None, :] * AK)
    w = a[1] + (b_at(b, 0, c, a) + k[:, None] * BK_STEP)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            left, right = tl.load(x, mask=rows, other=0), tl.load(w, mask=cols, other=0)
        else:
            left = tl.load(x, mask=rows & (k[None, :] < K - start), other=0)
            right = tl.load(w, mask=cols & (k[:, None] < K - start), other=0)
        acc = tl.dot(left, right, acc, input_precision=MODE)
        x += BK * AK
        w += BK * BK_STEP
    finish(acc, b, r, c, rows, cols, a)
