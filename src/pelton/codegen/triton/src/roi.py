"""Regions of interest, channels-last: a bin is the mean or the maximum of points between the elements of an image,
evenly spread over the bin, or the largest element that it touches. Positions of points are computed in f64; those off
the image, however many, are skipped at once. A program has one bin."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
CB = tl.constexpr(256)
# </tactic>
INDEX = tl.constexpr(tl.int32)
FAR = tl.constexpr(1e15)  # positions are clamped to it


from scalars import *

# <region>
C, H, W, N, PH, PW, RN, RC, BN = (tl.constexpr(x) for x in (13, 9, 11, 2, 2, 3, 4, 1, 1))
XN, XH, XW, XC = (tl.constexpr(x) for x in (1287, 143, 13, 1))
SAMPLES, SCALE, OFFSET, LEAST = tl.constexpr(2), tl.constexpr(1.0), tl.constexpr(0.5), tl.constexpr(-1e300)
TOUCHED, LARGEST = tl.constexpr(False), tl.constexpr(False)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[3] + r * C + c, x0, mask=rows & cols)


# </region>


@triton.jit
def limited(x, low, high):
    """Clamps x; NaN becomes low."""
    return tl.where(x > low, tl.where(x < high, x, high), low)


@triton.jit
def down(x):
    return tl.floor(limited(x, -FAR, FAR))


@triton.jit
def up(x):
    return -down(-x)


@triton.jit
def away(x):
    return tl.where(x < 0, -down(0.5 - x), down(x + 0.5))


@triton.jit
def along(begin, end, bins, i, size):
    """Returns the points of one axis of a bin: the first, their distance, their number, and the first and the end of
    those that may be on the image."""
    if TOUCHED:
        start = away(begin)
        each = tl.maximum(away(end) - start + 1, 1.0) / bins
        zero = start * 0
        return (
            zero,
            zero,
            zero + 1,
            limited(start + down(i * each), 0, size).to(tl.int32),
            limited(start + up((i + 1) * each), 0, size).to(tl.int32),
        )
    else:
        each = tl.where(end - begin > LEAST, end - begin, LEAST) / bins
        if SAMPLES > 0:
            count = each * 0 + SAMPLES
        else:
            count = limited(up(each), 0, FAR)
        step, first = tl.where(count > 0, each / tl.maximum(count, 1.0), 0), begin + each * i
        near, far = tl.where(step > 0, -1, size), tl.where(step > 0, size, -1)
        some = (step > 0) | (step < 0)
        by = tl.where(some, step, 1)
        low = tl.where(some, limited(down((near - first) / by) - 1, 0, count), 0)
        high = tl.where(some, limited(down((far - first) / by) + 2, 0, count), count)
        return first, step, count, low.to(tl.int32), high.to(tl.int32)


@triton.jit
def between(first, step, k, size):
    """Returns the elements around point k, the weight of the second one, and True if the point is on the image."""
    if TOUCHED:
        return k, k, 0.0, k >= 0
    else:
        x = first + step * (k + 0.5)
        there = (x >= -1) & (x <= size)
        x = limited(x, 0, size - 1)
        low = x.to(tl.int32)
        return low, tl.minimum(low + 1, size - 1), (x - low).to(tl.float32), there


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    across = tl.cdiv(C, CB)
    r, c = tile // across, tile % across * CB + tl.arange(0, CB)[None, :]
    cols = c < C
    box = a[1] + r // (PH * PW) * RN
    said = tl.load(a[2] + r // (PH * PW) * BN).to(tl.int64)
    said = tl.minimum(tl.maximum(tl.where(said < 0, said + N, said), 0), N - 1)
    x = a[0] + said * XN + c * XC
    left, top = tl.load(box).to(tl.float64) * SCALE - OFFSET, tl.load(box + RC).to(tl.float64) * SCALE - OFFSET
    right, bottom = (
        tl.load(box + 2 * RC).to(tl.float64) * SCALE - OFFSET,
        tl.load(box + 3 * RC).to(tl.float64) * SCALE - OFFSET,
    )
    y_first, y_step, y_count, y_low, y_high = along(top, bottom, PH, r // PW % PH, H)
    z_first, z_step, z_count, z_low, z_high = along(left, right, PW, r % PW, W)
    v = tl.full((1, CB), float("-inf") if LARGEST and not TOUCHED else 0.0, tl.float32)
    zero = tl.zeros((1, 1), tl.int32)
    met = zero
    for k in range(y_low, y_high):
        y0, y1, by, on_row = between(y_first, y_step, zero + k, H)
        for m in range(z_low, z_high):
            z0, z1, bz, on_column = between(z_first, z_step, zero + m, W)
            on = on_row & on_column & (zero < N) & (zero < H) & (zero < W)  # there is an image
            one = tl.load(x + (y0 * XH + z0 * XW), mask=cols & on, other=0).to(tl.float32)
            if TOUCHED:
                v = tl.where(met > 0, maximum(v, one), one)
            else:
                one *= (1 - by) * (1 - bz)
                two = tl.load(x + (y0 * XH + z1 * XW), mask=cols & on, other=0).to(tl.float32) * ((1 - by) * bz)
                three = tl.load(x + (y1 * XH + z0 * XW), mask=cols & on, other=0).to(tl.float32) * (by * (1 - bz))
                four = tl.load(x + (y1 * XH + z1 * XW), mask=cols & on, other=0).to(tl.float32) * (by * bz)
                if LARGEST:
                    v = tl.where(on, maximum(v, maximum(maximum(one, two), maximum(three, four))), v)
                else:
                    v += (one + two) + (three + four)
            met += on.to(tl.int32)
    if not TOUCHED:
        total = tl.maximum(y_count * z_count, 1.0)
        if LARGEST:
            v = tl.where(met < total, maximum(v, tl.zeros((1, CB), tl.float32)), v)
        else:
            v = v * (1 / total).to(tl.float32)
    finish(v, 0, r + zero, c, tl.full((1, 1), 1, tl.int1), cols, a)
