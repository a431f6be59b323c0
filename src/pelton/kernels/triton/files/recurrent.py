"""Recurrent layers, given the input's part of all gates: LSTM, GRU and the plain one.

A program has some units of some rows of the batch, in one direction. Where there is more than one time step it has all units, and what its threads exchange
goes through memory, with barriers of the one program: programs never wait for each other.
"""
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(1)
BU = tl.constexpr(32)
BK = tl.constexpr(32)
DOT = tl.constexpr(0)
PRECISION = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *
# <region>
WHAT, KIND, CLIP, LOOPS = tl.constexpr("lstm"), tl.constexpr(tl.float32), tl.constexpr(0.0), tl.constexpr(True)
LINEAR, INPUT_FORGET, RELU, REVERSE = (tl.constexpr(x) for x in (False, False, False, False))
R, GIVEN, OLD_H, OLD_C, PEEP, BIAS, Y, LAST_H, LAST_C = (tl.constexpr(x) for x in (0, 1, 2, 3, 4, -1, 5, 6, 7))
TIME, BATCH, H = tl.constexpr(5), tl.constexpr(4), tl.constexpr(19)
R_D, R_R, R_K, GIVEN_T, GIVEN_B = tl.constexpr(1444), tl.constexpr(19), tl.constexpr(1), tl.constexpr(608), tl.constexpr(152)
OLD_H_D, OLD_H_B, OLD_C_D, OLD_C_B, PEEP_D, BIAS_D = (tl.constexpr(x) for x in (76, 19, 76, 19, 57, 0))
Y_T, Y_D, Y_B, LAST_H_D, LAST_H_B, LAST_C_D, LAST_C_B = (tl.constexpr(x) for x in (152, 76, 19, 76, 19, 76, 19))
# </region>


@triton.jit
def sums(state, w, known, a):
    """What the states add to gates: of pointers to rows [BM, 1] and to rows of the weights [gates of units], [BM, gates of units]."""
    k = tl.arange(0, BK)
    if DOT:
        acc = tl.zeros((BM, w.shape[0]), KIND)
        for start in range(0, H, BK):
            left = tl.load(state + (start + k)[None, :], mask=(start + k < H)[None, :], other=0)
            right = tl.load(w[None, :] + (start + k)[:, None] * R_K, mask=known[None, :] & (start + k < H)[:, None], other=0)
            acc = tl.dot(left, right, acc, input_precision=MODE)
        return acc
    else:
        part = tl.zeros((w.shape[0], BK), KIND)
        for start in range(0, H, BK):
            here = tl.load(state + (start + k)[None, :], mask=(start + k < H)[None, :], other=0).to(KIND)
            part += tl.load(w[:, None] + (start + k)[None, :] * R_K, mask=known[:, None] & (start + k < H)[None, :], other=0).to(KIND) * here
        return tl.sum(part, 1)[None, :]


@triton.jit
def limited(x):
    if CLIP != 0:
        x = minimum(maximum(x, tl.full([], -CLIP, KIND)), tl.full([], CLIP, KIND))
    return x


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def four(x):
    """[BM, units · gates] as a block for each of four gates."""
    even, odd = tl.split(tl.reshape(x, (BM, BU, 2, 2)))
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return zero, one, two, three


@triton.jit
def gates(weights, first, each: tl.constexpr, used: tl.constexpr):
    """Rows of the weights for the units from the first on, their gates side by side, and which of them there are: `used` gates of `each`, a power of two."""
    j = tl.arange(0, each * BU)
    return weights + (j % each * H + first + j // each) * R_R, (first + j // each < H) & (j % each < used)


@triton.jit
def lstm(c, old, given, weights, first, d, u, inside, a):
    """One time step: the states and the cells."""
    w, known = gates(weights, first, 4, 4)
    i, o, f, n = four(sums(old, w, known, a))
    given += d * 4 * H
    i += tl.load(given, mask=inside, other=0).to(KIND)
    o += tl.load(given + H, mask=inside, other=0).to(KIND)
    f += tl.load(given + 2 * H, mask=inside, other=0).to(KIND)
    n += tl.load(given + 3 * H, mask=inside, other=0).to(KIND)
    if PEEP >= 0:
        i += c * tl.load(a[PEEP] + d * PEEP_D + u, mask=inside, other=0).to(KIND)
        f += c * tl.load(a[PEEP] + d * PEEP_D + 2 * H + u, mask=inside, other=0).to(KIND)
    i = sigmoid(limited(i))
    if INPUT_FORGET:
        f = 1 - i
    else:
        f = sigmoid(limited(f))
    c = f * c + i * libdevice.tanh(limited(n))
    if PEEP >= 0:
        o += c * tl.load(a[PEEP] + d * PEEP_D + H + u, mask=inside, other=0).to(KIND)
    return sigmoid(limited(o)) * libdevice.tanh(c), c


@triton.jit
def gru(h, old, here, given, weights, first, d, u, inside, a):
    """One time step: the states. `here` is memory for as many."""
    given += d * 3 * H
    fresh = tl.load(given + 2 * H, mask=inside, other=0).to(KIND)
    bias = tl.load(a[BIAS] + d * BIAS_D + u, mask=inside, other=0).to(KIND)
    if LINEAR:
        w, known = gates(weights, first, 4, 3)
        z, r, n, _ = four(sums(old, w, known, a))
    else:
        w, known = gates(weights, first, 2, 2)
        z, r = tl.split(tl.reshape(sums(old, w, known, a), (BM, BU, 2)))
    z = sigmoid(limited(z + tl.load(given, mask=inside, other=0).to(KIND)))
    r = sigmoid(limited(r + tl.load(given + H, mask=inside, other=0).to(KIND)))
    if LINEAR:
        fresh += r * (n + bias)
    else:                                       # the product of n waits for r of all units
        tl.debug_barrier()
        tl.store(here + u, r * h, mask=inside)
        tl.debug_barrier()
        w, known = gates(weights + 2 * H * R_R, first, 1, 1)
        fresh += sums(here, w, known, a) + bias
        tl.debug_barrier()
    fresh = libdevice.tanh(limited(fresh))
    return z * (h - fresh) + fresh


@triton.jit
def plain(old, given, weights, first, d, inside, a):
    """One time step: the states."""
    w, known = gates(weights, first, 1, 1)
    x = limited(sums(old, w, known, a) + tl.load(given + d * H, mask=inside, other=0).to(KIND))
    return maximum(x, tl.full([], 0, KIND)) if RELU else libdevice.tanh(x)


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    parts, groups = tl.cdiv(H, BU), tl.cdiv(BATCH, BM)
    d, first = tile // (parts * groups), tile % parts * BU
    b, u = tile // parts % groups * BM + tl.arange(0, BM)[:, None], first + tl.arange(0, BU)[None, :]
    rows, inside = b < BATCH, (b < BATCH) & (u < H)
    b = tl.where(rows, b, 0)
    weights = a[R] + d * R_D
    old = a[OLD_H] + d * OLD_H_D + b * OLD_H_B
    h = tl.load(old + u, mask=inside, other=0).to(KIND)
    if WHAT == "lstm":
        c = tl.load(a[OLD_C] + d * OLD_C_D + b * OLD_C_B + u, mask=inside, other=0).to(KIND)
    for s in range(TIME):
        t = s + tl.zeros([], INDEX)             # offsets of long sequences pass 2³¹
        t = TIME - 1 - t if REVERSE else tl.where(d == 1, TIME - 1 - t, t)
        here = old
        if Y >= 0:
            here = a[Y] + t * Y_T + d * Y_D + b * Y_B
        elif LOOPS or WHAT == "gru" and not LINEAR:
            here = a[LAST_H] + d * LAST_H_D + b * LAST_H_B
        given = a[GIVEN] + t * GIVEN_T + b * GIVEN_B + u
        if WHAT == "lstm":
            h, c = lstm(c, old, given, weights, first, d, u, inside, a)
        elif WHAT == "gru":
            h = gru(h, old, here, given, weights, first, d, u, inside, a)
        else:
            h = plain(old, given, weights, first, d, inside, a)
        if LOOPS:
            tl.debug_barrier()                  # all have read what was there
        if Y >= 0 or LOOPS:
            tl.store(here + u, h, mask=inside)
        if LOOPS:
            tl.debug_barrier()
            old = here
    if LAST_H >= 0:
        tl.store(a[LAST_H] + d * LAST_H_D + b * LAST_H_B + u, h, mask=inside)
    if LAST_C >= 0:
        tl.store(a[LAST_C] + d * LAST_C_D + b * LAST_C_B + u, c, mask=inside)
