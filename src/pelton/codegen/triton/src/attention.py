"""Attention: softmax(scale · Q·Kᵀ + mask) · V, over blocks of keys with a running maximum; scores, their sums and the
results are f32."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(64)
BN = tl.constexpr(64)
PRECISION = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *

# <region>
SQ, SK, D, DV = tl.constexpr(128), tl.constexpr(128), tl.constexpr(64), tl.constexpr(64)
WIDE, WIDE_V = tl.constexpr(64), tl.constexpr(64)  # powers of two that have room for them
SCALE, CAUSAL, MASKED, ROUND = tl.constexpr(0.125), tl.constexpr(False), tl.constexpr(False), tl.constexpr(False)


@triton.jit
def q_at(b, r, c, a):
    return b * SQ * D + r * D + c


@triton.jit
def k_at(b, r, c, a):
    return b * SK * D + r * D + c


@triton.jit
def v_at(b, r, c, a):
    return b * SK * DV + r * DV + c


@triton.jit
def mask_at(b, r, c, rows, cols, a):
    return tl.zeros((1, 1), tl.float32)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + b * SQ * DV + r * DV + c, x0, mask=rows & cols)


# </region>


@triton.jit
def attend(q, start, b, r, top, total, acc, a, EDGE: tl.constexpr):
    """Returns the maximum, sum and results with the keys from `start` on. EDGE: True if some of these keys may be past
    the end, or behind a row."""
    n = start + tl.arange(0, BN).to(INDEX)
    d, e = tl.arange(0, WIDE)[:, None].to(INDEX), tl.arange(0, WIDE_V)[None, :].to(INDEX)
    keys, values = d < D, e < DV
    if EDGE:
        keys, values = keys & (n[None, :] < SK), values & (n[:, None] < SK)
    # all keys may share one place
    k = tl.broadcast_to(tl.load(a[1] + k_at(b, n[None, :], d, a), mask=keys, other=0), (WIDE, BN))
    k = nearest(k, ROUND)
    if MASKED:  # loads during the product
        mask = mask_at(b, r, n[None, :], r < SQ, n[None, :] < SK, a)
    s = tl.dot(q, k, input_precision=MODE) * SCALE
    if MASKED:
        s += mask
    if EDGE:
        seen = n[None, :] < SK
        if CAUSAL:
            seen = seen & (n[None, :] <= r)
        s = tl.where(seen, s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1, keep_dims=True))
    base = higher
    # avoids -∞ - -∞ before any key is seen
    if MASKED:
        base = tl.where(higher == float("-inf"), 0.0, higher)
    p, fade = tl.exp(s - base), tl.exp(top - base)
    total = total * fade + tl.sum(p, 1, keep_dims=True)
    v = tl.broadcast_to(tl.load(a[2] + v_at(b, n[:, None], e, a), mask=values, other=0), (BN, WIDE_V))
    p, v = nearest(p.to(v.dtype), ROUND), nearest(v, ROUND)
    return higher, total, tl.dot(p, v, acc * fade, input_precision=MODE)


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    down = tl.cdiv(SQ, BM)
    b, i = tile // down, tile % down
    # the longest programs begin first
    if CAUSAL:
        i = down - 1 - i
    r = i * BM + tl.arange(0, BM)[:, None]
    d, e = tl.arange(0, WIDE)[None, :].to(INDEX), tl.arange(0, WIDE_V)[None, :].to(INDEX)
    q = nearest(tl.load(a[0] + q_at(b, r, d, a), mask=(r < SQ) & (d < D), other=0), ROUND)
    top, total = tl.full((BM, 1), float("-inf"), tl.float32), tl.zeros((BM, 1), tl.float32)
    acc = tl.zeros((BM, WIDE_V), tl.float32)
    end, whole = SK, SK // BN * BN
    if CAUSAL:
        end, whole = tl.minimum(SK, (i + 1) * BM), tl.minimum(SK, i * BM) // BN * BN
    for start in range(0, whole, BN):
        top, total, acc = attend(q, start, b, r, top, total, acc, a, False)
    for start in range(whole, end, BN):
        top, total, acc = attend(q, start, b, r, top, total, acc, a, True)
    finish(acc / tl.where(total == 0, 1.0, total), b, r, e, r < SQ, e < DV, a)  # the sum of no keys is 0
