"""Rows reduced to a number each, or normalised: reductions, places of extremes, softmax, layer and RMS norm."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# <tactic>
RB = tl.constexpr(4)
CB = tl.constexpr(256)
PARTS = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)


from scalars import *

# <region>
ROWS, COLS, ONE = tl.constexpr(64), tl.constexpr(200), tl.constexpr(True)
WHAT, EPSILON, NEUTRAL, KIND = (
    tl.constexpr("softmax"),
    tl.constexpr(1e-5),
    tl.constexpr(float("-inf")),
    tl.constexpr(tl.float32),
)
# the extreme to find, and which one of equals
LEAST, LAST = tl.constexpr(False), tl.constexpr(False)
FOUND, ARRIVED = tl.constexpr(2), tl.constexpr(3)


@triton.jit
def x_at(b, r, c, a):
    return r * COLS + c


@triton.jit
def join(x, y):
    return x + y


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[1] + r * COLS + c, x0, mask=rows & cols)


# </region>


@triton.jit
def load(r, c, rows, a):
    return load_or(a[0] + x_at(0, r, c, a), rows & (c < COLS), NEUTRAL).to(KIND)


@triton.jit
def extreme(r, c, rows, a):
    """Returns the extreme of some columns, True if NaN is among them, which precedes numbers as in numpy, and its
    place."""
    x = load(r, c, rows, a)
    if LEAST:
        found = tl.min(x, 1, keep_dims=True).to(KIND)
    else:
        found = tl.max(x, 1, keep_dims=True).to(KIND)
    strange = tl.max((x != x).to(tl.int32), 1, keep_dims=True) > 0
    counts = (c < COLS) & tl.where(strange, x != x, x == found)
    if LAST:
        return found, strange, tl.max(tl.where(counts, c, -1), 1, keep_dims=True)
    else:
        return found, strange, tl.min(tl.where(counts, c, 2147483647), 1, keep_dims=True)


@triton.jit
def reduced(r, begin, end, rows, a):
    """Reduces some columns. Threads combine their results once, behind the last column."""
    c, found = tl.arange(0, CB)[None, :].to(INDEX), tl.full((RB, CB), NEUTRAL, KIND)
    for start in range(begin, end, CB):
        found = join(found, load(r, start + c, rows, a))
    return tl.reduce(found, 1, join, keep_dims=True)


@triton.jit
def written(found, r, rows, a):
    if EPSILON != 0:
        found = found / COLS
    finish(found, 0, r, tl.zeros((1, 1), tl.int32), rows, tl.full((1, 1), 1, tl.int1), a)


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    # of a reduction; the last program to finish one joins them all
    if PARTS:
        part, program = program % PARTS, program // PARTS
    r = program * RB + tl.arange(0, RB)[:, None]
    rows, c = r < ROWS, tl.arange(0, CB)[None, :].to(INDEX)
    if WHAT == "reduce" and PARTS:
        each = tl.cdiv(tl.cdiv(COLS, CB), PARTS) * CB
        tl.store(
            a[FOUND] + part * ROWS + r, reduced(r, part * each, tl.minimum((part + 1) * each, COLS), rows, a), mask=rows
        )
        if last_to_arrive(a[ARRIVED] + program, PARTS - 1):
            parts = tl.arange(0, triton.next_power_of_2(PARTS))[None, :]
            found = tl.load(
                a[FOUND] + parts * ROWS + r, mask=rows & (parts < PARTS), other=NEUTRAL, cache_modifier=".cg"
            )
            written(tl.reduce(found, 1, join, keep_dims=True), r, rows, a)
    elif WHAT == "reduce":
        written(reduced(r, 0, COLS, rows, a), r, rows, a)
    elif WHAT == "arg":
        top, strange, place = tl.full((RB, 1), NEUTRAL, KIND), tl.zeros((RB, 1), tl.int1), tl.zeros((RB, 1), INDEX)
        for start in range(0, COLS, CB):
            x, odd, there = extreme(r, start + c, rows, a)
            further = (x < top) if LEAST else (x > top)
            if LAST:
                further = further | (x == top)
            further = tl.where(strange | odd, odd & (strange == 0) | odd & LAST, further)
            top, strange, place = tl.where(further, x, top), strange | odd, tl.where(further, there, place)
        finish(place.to(tl.int64), 0, r, tl.zeros((1, 1), tl.int32), rows, tl.full((1, 1), 1, tl.int1), a)
    elif ONE:
        x = load(r, c, rows, a)
        if WHAT == "softmax" or WHAT == "log_softmax":
            x = x - tl.max(x, 1, keep_dims=True)
            total = tl.sum(tl.exp(x), 1, keep_dims=True)
            if WHAT == "softmax":
                x = tl.exp(x) / total
            else:
                x = x - tl.log(total)
        else:
            if WHAT == "layer_norm":
                x = tl.where(c < COLS, x - tl.sum(x, 1, keep_dims=True) / COLS, 0)
            x = x / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / COLS + EPSILON)
        finish(x, 0, r, c, rows, c < COLS, a)
    else:
        if WHAT == "softmax" or WHAT == "log_softmax":
            top, total = tl.full((RB, 1), float("-inf"), KIND), tl.zeros((RB, 1), KIND)
            for start in range(0, COLS, CB):
                x = load(r, start + c, rows, a)
                higher = tl.maximum(top, tl.max(x, 1, keep_dims=True))
                base = tl.where(higher == float("-inf"), 0, higher)
                total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), 1, keep_dims=True)
                top = higher
            for start in range(0, COLS, CB):
                x = load(r, start + c, rows, a) - top
                if WHAT == "softmax":
                    x = tl.exp(x) / total
                else:
                    x = x - tl.log(total)
                finish(x, 0, r, start + c, rows, start + c < COLS, a)
        else:
            mean = tl.zeros((RB, 1), KIND)
            if WHAT == "layer_norm":
                for start in range(0, COLS, CB):
                    mean += tl.sum(load(r, start + c, rows, a), 1, keep_dims=True)
                mean = mean / COLS
            square = tl.zeros((RB, 1), KIND)
            for start in range(0, COLS, CB):
                x = tl.where(start + c < COLS, load(r, start + c, rows, a) - mean, 0)
                square += tl.sum(x * x, 1, keep_dims=True)
            scale = 1 / tl.sqrt(square / COLS + EPSILON)
            for start in range(0, COLS, CB):
                finish((load(r, start + c, rows, a) - mean) * scale, 0, r, start + c, rows, start + c < COLS, a)
