"""Convolutions, channels-last, as matrix products whose rows are pixels and whose sums run over taps and channels: (kh, kw, c), c fastest."""
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
BATCH, GROUPS, C, OUT, K_STEP = tl.constexpr(1), tl.constexpr(1), tl.constexpr(64), tl.constexpr(64), tl.constexpr(576)
H, W, OH, OW = tl.constexpr(14), tl.constexpr(14), tl.constexpr(14), tl.constexpr(14)
KH, KW, SH, SW, DH, DW, PT, PL = (tl.constexpr(x) for x in (3, 3, 1, 1, 1, 1, 1, 1))
XN, XH, XW, XC = tl.constexpr(12544), tl.constexpr(896), tl.constexpr(64), tl.constexpr(1)
WHOLE = tl.constexpr(True)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * OUT + c, x0, mask=rows & cols)
# </region>


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    down, across = tl.cdiv(BATCH * OH * OW, BM), tl.cdiv(OUT, BN)
    group, tile = tile // (down * across), tile % (down * across)
    i, j = grouped(tile, down, across, TALL)
    r, o = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)[None, :]
    rows, cols = r < BATCH * OH * OW, o < OUT
    top, left = r // OW % OH * SH - PT, r % OW * SW - PL
    x = a[0] + (r // (OH * OW) * XN + top * XH + left * XW + group * C * XC)[:, None]
    w = a[1] + (group * OUT + o) * K_STEP
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, KH * KW * C, BK):
        if WHOLE:                               # a step stays within one tap
            tap = start // C
            down_by, right_by = tap // KW * DH, tap % KW * DW
            there = rows & (top + down_by >= 0) & (top + down_by < H) & (left + right_by >= 0) & (left + right_by < W)
            pixels = tl.load(x + (down_by * XH + right_by * XW + (start % C + k[None, :]) * XC), mask=there[:, None], other=0)
            taps = tl.load(w + (start + k[:, None]), mask=cols, other=0)
        else:
            place = start + k
            tap, known = place // C, place < KH * KW * C
            down_by, right_by = tap // KW * DH, tap % KW * DW
            y, z = top[:, None] + down_by[None, :], left[:, None] + right_by[None, :]
            there = rows[:, None] & known[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
            pixels = tl.load(x + (down_by * XH + right_by * XW + place % C * XC)[None, :], mask=there, other=0)
            taps = tl.load(w + place[:, None], mask=cols & known[:, None], other=0)
        acc = tl.dot(pixels, taps, acc, input_precision=MODE)
    finish(acc, 0, r[:, None], group * OUT + o, rows[:, None], cols, a)
