"""Convolutions as matrix products: rows are pixels; sums, in f32 or of bytes in i32, run over the taps of a filter and
channels. Transposed ones run by phases: the same taps reach pixels that are congruent modulo the strides."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(64)
BN = tl.constexpr(64)
BK = tl.constexpr(32)
TALL = tl.constexpr(8)
PRECISION = tl.constexpr(0)
PICTURES = tl.constexpr(0)
FLAT = tl.constexpr(0)
STREAM = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
# half at a time: the tail needs registers beside the sums
WIDE = tl.constexpr(BN.value // 2 if BN.value >= 128 else BN.value)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *

# <region>
BATCH, GROUPS, C, OUT, DEEP, K_STEP = (tl.constexpr(x) for x in (1, 1, 64, 64, 64, 576))
H, W, OH, OW, ROWS, COLUMNS = (tl.constexpr(x) for x in (14, 14, 14, 14, 14, 14))
KH, KW, SH, SW, DH, DW, PT, PL = (tl.constexpr(x) for x in (3, 3, 1, 1, 1, 1, 1, 1))
XN, XH, XW, XC = tl.constexpr(12544), tl.constexpr(896), tl.constexpr(64), tl.constexpr(1)
TRANSPOSED, DOWN, RIGHT, COMMON_H, COMMON_W, TURN_H, TURN_W = (tl.constexpr(x) for x in (False, 3, 3, 1, 1, 0, 0))
WHOLE, PLANES, DESCRIBED = tl.constexpr(True), tl.constexpr(False), tl.constexpr(False)
SUMS, ARRIVED = tl.constexpr(3), tl.constexpr(4)
ROUND_A, ROUND_B = tl.constexpr(False), tl.constexpr(False)
# for bytes: u8 are less 128, and the slot MISSING holds the correction of their sums; images are padded with PAD, or
# from the slot PADDING, unless that is 0
INTEGERS, SHIFTED, MISSING, PAD, PADDING = (tl.constexpr(x) for x in (False, False, 2, 0, 0))
FLOAT8 = tl.constexpr(False)


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * OUT + c, x0, mask=rows & cols)


# </region>
KIND = tl.constexpr(tl.int32 if INTEGERS.value else tl.float32)
NOTHING = tl.constexpr(0.0 if FLOAT8.value else 0)
# an H100 keeps few bits of FP8 sums: those of a step are added in f32
COARSE = tl.constexpr(BK.value if FLOAT8.value else 0)


@triton.jit
def reached(at, tap, size, taps, stride, dilation, common, turn):
    """Returns, along one axis of a transposed convolution, the elements that the pixels at `at` modulo the stride meet,
    padding counted: the one that the first pixel meets by the first tap that reaches it, and the distance to the one by
    a later tap; past the image where there is none."""
    # distance of taps that reach the same pixels; `turn` times the dilation is one modulo that
    apart = stride // common
    first = at // common * turn % apart
    there = (at % common == 0) & (first + tap * apart < taps)
    return (at - first * dilation) // stride, tl.where(there, -tap * (dilation // common), size + taps * dilation)


@triton.jit
def complete(sums, r, c, rows, cols, a):
    if SHIFTED:
        sums += tl.load(a[MISSING] + c, mask=cols, other=0)
    finish(sums, 0, r, c, rows, cols, a)


@triton.jit
def write(acc, r, o, rows, there, a):
    """Writes the sums of the outputs from `o` on, `there` of them."""
    c = tl.arange(0, WIDE)[None, :]
    if WIDE < BN:
        low, high = halves(acc, BM, BN)
        complete(low, r, o + c, rows, c < there, a)
        complete(high, r, o + WIDE + c, rows, c < there - WIDE, a)
    else:
        complete(acc, r, o + c, rows, c < there, a)


@triton.jit
def pixels_at(at, there, pad):
    """Loads pixels, or the padding where there are none."""
    if PADDING:
        x = tl.load(at, mask=there, other=pad)
    elif FLOAT8:
        x = tl.load(at, mask=there, other=NOTHING)
    else:
        x = load_or(at, there, PAD)
    return x


@triton.jit
def convolved(tile, first, until, program, one, last, lying, filters, a):
    """Computes and stores a tile's sums from one place to another. Where they are a part, those of the programs from
    `one` to `last` are added and stored by the last to finish."""
    area, across = ROWS * COLUMNS, tl.cdiv(OUT, BN)
    down = area * tl.cdiv(BATCH, BM) if PICTURES else tl.cdiv(BATCH * area, BM)
    part, tile = tile // (down * across), tile % (down * across)
    phase, group = part // GROUPS, part % GROUPS
    i, j = grouped(tile, down, across, TALL)
    # in columns: Triton 3.6 considers sums along a row multiples of a number even if only some are
    if PICTURES:  # the same pixel of many images
        begin = i // area * BM
        n, p, q = begin + tl.arange(0, BM)[:, None], i % area // COLUMNS, i % COLUMNS
    else:
        begin = i * BM
        r = begin + tl.arange(0, BM)[:, None]
        n, p, q = r // area, r % area // COLUMNS, r % COLUMNS
    if TRANSPOSED:
        above, before = phase // SW, phase % SW
        top, left = (
            p + reached(above + PT, 0, H, KH, SH, DH, COMMON_H, TURN_H)[0],
            q + reached(before + PL, 0, W, KW, SW, DW, COMMON_W, TURN_W)[0],
        )
        p, q = p * SH + above, q * SW + before
    else:
        top, left = p * SH - PT, q * SW - PL
    if TRANSPOSED or FLAT:
        rows = n < tl.where((p < OH) & (q < OW), BATCH, 0)
    else:
        rows = n < BATCH
    o = j * BN + tl.arange(0, BN)[None, :]
    cols = o < OUT
    x = a[0] + (n * XN + top * XH + left * XW + group * C * XC)
    w = a[1] + (part * OUT + o) * K_STEP
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), KIND)
    pad = tl.load(a[PADDING]) if PADDING else 0
    for start in range(first, until, BK):
        # u taps down and v across; separate divisions show Triton which places are adjacent
        place = start + k
        if WHOLE:  # a step stays within one tap
            # a fact that Triton 3.6 does not detect
            u, v, c = start // DEEP // RIGHT, start // DEEP % RIGHT, tl.multiple_of(start % DEEP, BK)
        elif PLANES:
            u, v, c = place // RIGHT % DOWN, place % RIGHT, place // (RIGHT * DOWN)
        else:
            u, v, c = place // (DEEP * RIGHT), place // DEEP % RIGHT, place % DEEP
        if TRANSPOSED:
            down_by = reached(above + PT, u, H, KH, SH, DH, COMMON_H, TURN_H)[1]
            right_by = reached(before + PL, v, W, KW, SW, DW, COMMON_W, TURN_W)[1]
        else:
            down_by, right_by = u * DH, v * DW
        # consecutive rows of pixels, with zeros between the images' own
        if DESCRIBED and FLAT:
            pixels = lying.load(
                [(begin + (down_by - PT) * COLUMNS + right_by - PL).to(tl.int32), (group * C + c).to(tl.int32)]
            )
            taps = filters.load([(part * OUT + j * BN).to(tl.int32), start]).T
        elif DESCRIBED:  # reads outside of the images return zero
            pixels = lying.load(
                [
                    (top + down_by).to(tl.int32),
                    (left + right_by).to(tl.int32),
                    begin.to(tl.int32),
                    (group * C + c).to(tl.int32),
                ]
            )
            pixels = pixels.reshape(BM, BK)
            taps = filters.load([(part * OUT + j * BN).to(tl.int32), start]).T
        elif WHOLE:
            there = rows & (top + down_by >= 0) & (top + down_by < H) & (left + right_by >= 0) & (left + right_by < W)
            if DEEP != C:
                there = there & (c + k[None, :] < C)
            pixels = pixels_at(x + (down_by * XH + right_by * XW + (c + k[None, :]) * XC), there, pad)
            taps = tl.load(w + place[:, None], mask=cols, other=NOTHING)
        else:
            known = place < DOWN * RIGHT * DEEP
            y, z = top + down_by[None, :], left + right_by[None, :]
            there = rows & known[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
            pixels = pixels_at(x + (down_by * XH + right_by * XW + c * XC)[None, :], there, pad)
            taps = tl.load(w + place[:, None], mask=cols & known[:, None], other=NOTHING)
        pixels, taps = less_128(nearest(pixels, ROUND_A), SHIFTED), nearest(taps, ROUND_B)
        acc = tl.dot(pixels, taps, acc, input_precision=MODE, max_num_imprecise_acc=COARSE, out_dtype=KIND)
    r, o = (n * OH + p) * OW + q, group * OUT + j * BN
    if STREAM:
        if one == last:
            write(acc, r, o, rows, OUT - j * BN, a)
        elif parted(acc, places(BM, BN, 0, BN), BM * BN, program, one, last, a[SUMS], a[ARRIVED]):
            for side in tl.static_range(0, BN, WIDE):
                at = side + tl.arange(0, WIDE)[None, :]
                sums = joined(one, last, places(BM, BN, side, WIDE), BM * BN, a[SUMS])
                complete(sums, r, o + at, rows, at < OUT - j * BN, a)
    else:
        write(acc, r, o, rows, OUT - j * BN, a)


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    if DESCRIBED:
        if FLAT:
            lying = tl.make_tensor_descriptor(
                a[0], [((BATCH - 1) * ROWS + H - 1) * COLUMNS + W, GROUPS * C], [XW, 1], [BM, BK]
            )
        else:
            lying = tl.make_tensor_descriptor(a[0], [H, W, BATCH, GROUPS * C], [XH, XW, XN, 1], [1, 1, BM, BK])
        filters = tl.make_tensor_descriptor(
            a[1], [SH * SW * GROUPS * OUT if TRANSPOSED else GROUPS * OUT, K_STEP], [K_STEP, 1], [BN, BK]
        )
    else:
        lying, filters = a[0], a[1]
    if STREAM:
        steps = tl.cdiv(DOWN * RIGHT * DEEP, BK)
        down = tl.cdiv(BATCH, BM) * ROWS * COLUMNS if PICTURES else tl.cdiv(BATCH * ROWS * COLUMNS, BM)
        total = (SH * SW * GROUPS if TRANSPOSED else GROUPS) * down * tl.cdiv(OUT, BN) * steps
        begin, end = share(program, total)
        for tile in range(begin // steps, tl.cdiv(end, steps)):
            one, last = sharers(tile, steps, total)
            first, until = tl.maximum(begin - tile * steps, 0) * BK, tl.minimum(end - tile * steps, steps) * BK
            convolved(tile, first.to(tl.int32), until.to(tl.int32), program, one, last, lying, filters, a)
    else:
        convolved(program, 0, DOWN * RIGHT * DEEP, 0, 0, 0, lying, filters, a)
