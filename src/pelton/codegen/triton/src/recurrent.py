"""Recurrent layers, given the input's part of all gates: LSTM, GRU and the plain one. A program has some units of some
rows of the batch, in one direction.

PHASED 0: it has all units and runs all time steps; its threads exchange data through memory, with barriers of the one
program. PHASED 1 and 2: it has few units. A time step is a phase, or two where the reset comes before a product; a
launch runs a range of phases, and keeps the data of the next launch in memory. In 1 a launch is one phase: the next one
reads what it wrote. In 2 it is any number, for which all programs must be on the GPU at once: each holds its weights
in registers and receives the states as words from the programs that have their units; a word holds a state and the
number of its phase. A word is there or not, so nothing needs fences or counters. A program that sends into a word for
the second time has received what others made of the first.
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
PHASED = tl.constexpr(0)
PHASE = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
MODE = tl.constexpr(("ieee", "tf32x3", "tf32")[PRECISION.value])


from scalars import *

# <region>
WHAT, KIND, CLIP = tl.constexpr("lstm"), tl.constexpr(tl.float32), tl.constexpr(0.0)
GATES, EACH, USED, PASSES = (tl.constexpr(x) for x in (4, 4, 4, 1))
LINEAR, INPUT_FORGET, ROUND, RELU, REVERSE = (tl.constexpr(x) for x in (False, False, False, False, False))
R, GIVEN, OLD_H, OLD_C, PEEP, BIAS, Y, LAST_H, LAST_C, OWN, SENT, COUNT = (
    tl.constexpr(x) for x in (0, 1, 2, 3, 4, -1, 5, 6, 7, -1, -1, -1)
)
TIME, DIRECTIONS, BATCH, H = tl.constexpr(5), tl.constexpr(1), tl.constexpr(4), tl.constexpr(19)
R_D, R_R, R_K, GIVEN_T, GIVEN_B = (
    tl.constexpr(1444),
    tl.constexpr(19),
    tl.constexpr(1),
    tl.constexpr(608),
    tl.constexpr(152),
)
OLD_H_D, OLD_H_B, OLD_C_D, OLD_C_B, PEEP_D, BIAS_D = (tl.constexpr(x) for x in (76, 19, 76, 19, 57, 0))
Y_T, Y_D, Y_B, LAST_H_D, LAST_H_B, LAST_C_D, LAST_C_B = (tl.constexpr(x) for x in (152, 76, 19, 76, 19, 76, 19))
# </region>


@triton.jit
def rows_of(first, each: tl.constexpr, used: tl.constexpr):
    """Returns the rows of a direction's weights for the units from the first on, their gates side by side, and a mask
    of those that exist: `used` gates of `each`, a power of two."""
    j = tl.arange(0, each * BU)
    return j % each * H + first + j // each, (first + j // each < H) & (j % each < used)


@triton.jit
def steps_of(low, high):
    """Returns how DynamicQuantizeLinear rounds rows of states, of which blocks [BM, BK] hold the least and the largest:
    the size of a step, and how many are below zero, [BM, 1]."""
    low, high = tl.minimum(tl.min(low, 1), 0)[:, None], tl.maximum(tl.max(high, 1), 0)[:, None]
    step = tl.where(high - low < 1e-30, tl.full([], 1, KIND), high - low) / 255
    return step, libdevice.rint(-low / step)


@triton.jit
def in_steps(states, step, below):
    return minimum(maximum(libdevice.rint(states / step), -below), 255 - below)


@triton.jit
def sums(state, weights, first, each: tl.constexpr, used: tl.constexpr):
    """Returns the part in gates, [BM, gates of units], of the states at pointers to rows [BM, 1]."""
    if ROUND:
        low, high, k = tl.zeros((BM, BK), KIND), tl.zeros((BM, BK), KIND), tl.arange(0, BK)
        for start in range(0, H, BK):
            here = tl.load(state + (start + k)[None, :], mask=(start + k < H)[None, :], other=0).to(KIND)
            low, high = tl.minimum(low, here), tl.maximum(high, here)
        step, below = steps_of(low, high)
        return step * sums_of(state, step, below, weights, first, each, used)
    else:
        return sums_of(state, 1, 0, weights, first, each, used)


@triton.jit
def sums_of(state, step, below, weights, first, each: tl.constexpr, used: tl.constexpr):
    """Returns the same, in steps of the states where these are rounded."""
    at, known = rows_of(first, each, used)
    w, k = weights + at * R_R, tl.arange(0, BK)
    if DOT:
        acc = tl.zeros((BM, w.shape[0]), KIND)
        for start in range(0, H, BK):
            left = tl.load(state + (start + k)[None, :], mask=(start + k < H)[None, :], other=0)
            if ROUND:
                left = in_steps(left.to(KIND), step, below).to(left.dtype)
            right = tl.load(
                w[None, :] + (start + k)[:, None] * R_K, mask=known[None, :] & (start + k < H)[:, None], other=0
            )
            acc = tl.dot(left, right, acc, input_precision=MODE)
        return acc
    else:
        part = tl.zeros((w.shape[0], BK), KIND)
        for start in range(0, H, BK):
            here = tl.load(state + (start + k)[None, :], mask=(start + k < H)[None, :], other=0).to(KIND)
            if ROUND:
                here = in_steps(here, step, below)
            part += (
                tl.load(
                    w[:, None] + (start + k)[None, :] * R_K, mask=known[:, None] & (start + k < H)[None, :], other=0
                ).to(KIND)
                * here
            )
        return tl.sum(part, 1)[None, :]


@triton.jit
def held(weights, first, each: tl.constexpr, used: tl.constexpr):
    """Loads all weights of the units, [gates of units, BK], or their transpose for matrix products."""
    at, known = rows_of(first, each, used)
    k = tl.arange(0, BK)
    if DOT:
        return tl.load(weights + at[None, :] * R_R + k[:, None] * R_K, mask=known[None, :] & (k < H)[:, None], other=0)
    else:
        return tl.load(
            weights + at[:, None] * R_R + k[None, :] * R_K, mask=known[:, None] & (k < H)[None, :], other=0
        ).to(KIND)


@triton.jit
def held_sums(states, w):
    """Returns the part of states [BM, BK] in the gates whose weights are held."""
    if ROUND:
        step, below = steps_of(states, states)
        states = in_steps(states, step, below)
    if DOT:
        left = states.to(w.dtype)
        found = tl.dot(left, w, input_precision=MODE).to(KIND)
    else:
        # a gather moves states to the threads of their weights; otherwise products would move to those of the states
        here = tl.gather(tl.reshape(states, (BK,)), tl.arange(0, BK), 0)
        found = tl.sum(w * here[None, :], 1)[None, :]
    return step * found if ROUND else found


@triton.jit
def received(phase, first, d, b, rows, a):
    """Returns the states [BM, BK] that a phase begins with: the initial ones, or those sent to it, as soon as all have
    arrived."""
    k = tl.arange(0, BK)[None, :]
    known = rows & (k < H)
    if phase == 0:
        states = tl.load(first + k, mask=known, other=0).to(KIND)
    else:
        at = a[SENT] + (((phase - 1) % 2 * DIRECTIONS + d) * BATCH + b) * H + k
        words = tl.load(at, mask=known, other=phase, volatile=True)
        while tl.max((words.to(tl.int32) != phase).to(tl.int32)) != 0:
            words = tl.load(at, mask=known, other=phase, volatile=True)
        states = (words >> 32).to(tl.int32).to(KIND, bitcast=True)
    return states


@triton.jit
def send(phase, h, d, b, u, inside, a):
    """Sends states to the next phase."""
    at = ((phase % 2 * DIRECTIONS + d) * BATCH + b) * H + u
    if PHASED == 1:
        tl.store(a[SENT] + at, h, mask=inside)
    else:
        h = h.to(a[R].dtype.element_ty).to(KIND)
        tl.atomic_xchg(
            a[SENT] + at, (h.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (phase + 1), mask=inside, sem="relaxed"
        )


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
    """Splits [BM, units · gates] into a block for each of four gates."""
    even, odd = tl.split(tl.reshape(x, (BM, BU, 2, 2)))
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return zero, one, two, three


@triton.jit
def two(x):
    return tl.split(tl.reshape(x, (BM, BU, 2)))


@triton.jit
def inputs(given, first, b, rows, each: tl.constexpr, used: tl.constexpr, a):
    """Loads the input's part of gates, [BM, gates of units], of a time step and direction."""
    at, known = rows_of(first, each, used)
    return tl.load(given + b * GIVEN_B + at[None, :], mask=rows & known[None, :], other=0).to(KIND)


@triton.jit
def lstm(x, c, d, u, inside, a):
    """Returns the states and the cells after a time step, from the sums of four gates."""
    i, o, f, n = four(x)
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
def plain(x):
    """Returns the states after a time step, from the sums."""
    x = limited(x)
    return maximum(x, tl.full([], 0, KIND)) if RELU else libdevice.tanh(x)


@triton.jit
def fresh_parts(given, b, d, u, inside, a):
    """Loads the input's part of a GRU's new states, and the bias of the states' part."""
    return (
        tl.load(given + b * GIVEN_B + 2 * H + u, mask=inside, other=0).to(KIND),
        tl.load(a[BIAS] + d * BIAS_D + u, mask=inside, other=0).to(KIND),
    )


@triton.jit
def mixed(z, h, n):
    """Mixes a GRU's old and new states."""
    n = libdevice.tanh(limited(n))
    return z * (h - n) + n


@triton.jit
def gru(x, h, given, bias):
    """Returns a GRU's states after a time step whose reset comes behind the product."""
    z, r, n, _ = four(x)
    return mixed(sigmoid(limited(z)), h, given + sigmoid(limited(r)) * (n + bias))


@triton.jit
def time_of(step, d, a):
    t = step + tl.zeros([], INDEX)  # offsets of long sequences pass 2³¹
    return TIME - 1 - t if REVERSE else tl.where(d == 1, TIME - 1 - t, t)


@triton.jit
def whole(weights, d, first, b, u, rows, inside, a):
    """Runs all time steps in one program."""
    old = a[OLD_H] + d * OLD_H_D + b * OLD_H_B
    h = tl.load(old + u, mask=inside, other=0).to(KIND)
    if WHAT == "lstm":
        c = tl.load(a[OLD_C] + d * OLD_C_D + b * OLD_C_B + u, mask=inside, other=0).to(KIND)
    for s in range(TIME):
        t = time_of(s, d, a)
        if Y >= 0:
            here = a[Y] + t * Y_T + d * Y_D + b * Y_B
        else:
            here = a[LAST_H] + d * LAST_H_D + b * LAST_H_B
        given = a[GIVEN] + t * GIVEN_T + d * GATES * H
        if WHAT == "lstm":
            h, c = lstm(sums(old, weights, first, 4, 4) + inputs(given, first, b, rows, 4, 4, a), c, d, u, inside, a)
        elif WHAT == "gru":
            fresh, bias = fresh_parts(given, b, d, u, inside, a)
            if LINEAR:
                h = gru(sums(old, weights, first, 4, 3) + inputs(given, first, b, rows, 4, 2, a), h, fresh, bias)
            else:  # the product of n waits for r of all units
                z, r = two(sums(old, weights, first, 2, 2) + inputs(given, first, b, rows, 2, 2, a))
                tl.debug_barrier()
                tl.store(here + u, sigmoid(limited(r)) * h, mask=inside)
                tl.debug_barrier()
                h = mixed(sigmoid(limited(z)), h, fresh + sums(here, weights + 2 * H * R_R, first, 1, 1) + bias)
        else:
            h = plain(sums(old, weights, first, 1, 1) + inputs(given, first, b, rows, 1, 1, a))
        tl.debug_barrier()  # all threads have read the old states
        tl.store(here + u, h, mask=inside)
        tl.debug_barrier()
        old = here
    if LAST_H >= 0:
        tl.store(a[LAST_H] + d * LAST_H_D + b * LAST_H_B + u, h, mask=inside)
    if LAST_C >= 0:
        tl.store(a[LAST_C] + d * LAST_C_D + b * LAST_C_B + u, c, mask=inside)


@triton.jit
def products(phase, old, weights, w, d, first, b, rows, each: tl.constexpr, used: tl.constexpr, a):
    """Returns the part in gates of the states that a phase begins with."""
    if PHASED == 2:
        return held_sums(received(phase, old, d, b, rows, a), w)
    else:
        sent = a[SENT] + (((phase + 1) % 2 * DIRECTIONS + d) * BATCH + b) * H
        return sums(tl.where(phase == 0, old, sent), weights, first, each, used)


@triton.jit
def phased(weights, d, first, b, u, rows, inside, a):
    """Runs the phases of a launch."""
    begin, end, phases = a[PHASE], a[PHASE + 1], TIME * PASSES
    old = a[OLD_H] + d * OLD_H_D + b * OLD_H_B
    own, each = (d * BATCH + b) * H + u, DIRECTIONS * BATCH * H
    h, c = tl.zeros((BM, BU), KIND), tl.zeros((BM, BU), KIND)  # of a GRU in two passes, c is its z
    if begin == 0:
        h = tl.load(old + u, mask=inside, other=0).to(KIND)
        if WHAT == "lstm":
            c = tl.load(a[OLD_C] + d * OLD_C_D + b * OLD_C_B + u, mask=inside, other=0).to(KIND)
    else:
        if WHAT == "gru":
            h = tl.load(a[OWN] + own, mask=inside, other=0)
        if WHAT == "lstm" or PASSES == 2:
            c = tl.load(a[OWN] + (PASSES - 1) * each + own, mask=inside, other=0)
    w, v = 0, 0
    if PHASED == 2:
        w = held(weights, first, EACH, USED)
        if PASSES == 2:
            v = held(weights + 2 * H * R_R, first, 1, 1)
    for phase in range(begin, tl.minimum(end, phases)):
        t = time_of(phase // PASSES, d, a)
        given = a[GIVEN] + t * GIVEN_T + d * GATES * H
        if WHAT == "lstm":
            x = inputs(given, first, b, rows, 4, 4, a)
            h, c = lstm(x + products(phase, old, weights, w, d, first, b, rows, EACH, USED, a), c, d, u, inside, a)
            sent = h
        elif WHAT == "rnn":
            x = inputs(given, first, b, rows, 1, 1, a)
            h = plain(x + products(phase, old, weights, w, d, first, b, rows, EACH, USED, a))
            sent = h
        elif LINEAR:
            x = inputs(given, first, b, rows, 4, 2, a)
            fresh, bias = fresh_parts(given, b, d, u, inside, a)
            h = gru(x + products(phase, old, weights, w, d, first, b, rows, EACH, USED, a), h, fresh, bias)
            sent = h
        elif phase % 2 == 0:
            x = inputs(given, first, b, rows, 2, 2, a)
            z, r = two(x + products(phase, old, weights, w, d, first, b, rows, EACH, USED, a))
            c = sigmoid(limited(z))
            sent = sigmoid(limited(r)) * h
        else:
            fresh, bias = fresh_parts(given, b, d, u, inside, a)
            h = mixed(c, h, fresh + bias + products(phase, old, weights + 2 * H * R_R, v, d, first, b, rows, 1, 1, a))
            sent = h
        if phase + 1 < phases:
            send(phase, sent, d, b, u, inside, a)
        if Y >= 0:
            tl.store(a[Y] + t * Y_T + d * Y_D + b * Y_B + u, h, mask=inside & (phase % PASSES == PASSES - 1))
    if end < phases:
        if WHAT == "gru":
            tl.store(a[OWN] + own, h, mask=inside)
        if WHAT == "lstm" or PASSES == 2:
            tl.store(a[OWN] + (PASSES - 1) * each + own, c, mask=inside)
    else:
        if LAST_H >= 0:
            tl.store(a[LAST_H] + d * LAST_H_D + b * LAST_H_B + u, h, mask=inside)
        if LAST_C >= 0:
            tl.store(a[LAST_C] + d * LAST_C_D + b * LAST_C_B + u, c, mask=inside)
        if PHASED == 2:
            # all programs have received all words: clears them for the next run
            if last_to_arrive(a[COUNT], tl.num_programs(0) - 1):
                k = tl.arange(0, 1024)
                for start in range(0, 2 * each, 1024):
                    tl.store(a[SENT] + start + k, tl.zeros((1024,), tl.int64), mask=start + k < 2 * each)


@triton.jit
def KERNEL(a):
    tile = tl.program_id(0).to(INDEX)
    parts, groups = tl.cdiv(H, BU), tl.cdiv(BATCH, BM)
    d, first = tile // (parts * groups), tile % parts * BU
    b, u = tile // parts % groups * BM + tl.arange(0, BM)[:, None], first + tl.arange(0, BU)[None, :]
    rows, inside = b < BATCH, (b < BATCH) & (u < H)
    b = tl.where(rows, b, 0)
    if PHASED:
        phased(a[R] + d * R_D, d, first, b, u, rows, inside, a)
    else:
        whole(a[R] + d * R_D, d, first, b, u, rows, inside, a)
