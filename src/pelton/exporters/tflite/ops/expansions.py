"""Expansions of ops that TFLite has no operator for: unrolled recurrent layers, interpolation, pads by elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.op import TermLike
from pelton.ops.words import (
    add,
    clip,
    concat,
    expand,
    gather,
    matmul,
    mul,
    pad,
    relu,
    reshape,
    sigmoid,
    slice_,
    sub,
    tanh,
    transpose,
)

from ..tensors import NoForm
from ..writing import expands

LONGEST = 1 << 10  # steps
MOST = 64  # elements that a point is interpolated of


def _along(x: TermLike, axis: int, start: Any, end: Any) -> TermLike:
    return slice_(x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


def _unrolled(
    gates: Value,
    states: Sequence[Value],
    direction: str,
    step: Callable[[TermLike, tuple[TermLike, ...], int], tuple[TermLike, ...]],
) -> tuple[TermLike, ...]:
    """Returns y [time, direction, batch, unit] and the last states, by `step(gates, states, direction)`."""
    (time, batch, width), (count, _, hidden) = gates.type.shape, states[0].type.shape
    if not is_known(time) or time > LONGEST:
        raise NoForm(f"its steps are unrolled, up to {LONGEST}, got {time}; set their number with --shapes")
    width //= count
    outputs, last = [], list[tuple[TermLike, ...]]()
    for d in range(count):
        now: tuple[TermLike, ...] = tuple(
            reshape(_along(s, 0, d, d + 1), shape=(batch, hidden)) if count > 1 else reshape(s, shape=(batch, hidden))
            for s in states
        )
        own = _along(gates, 2, d * width, (d + 1) * width) if count > 1 else gates
        rows = list[TermLike]()
        backward = direction == "reverse" or d == 1
        for t in reversed(range(time)) if backward else range(time):
            now = step(reshape(_along(own, 0, t, t + 1), shape=(batch, width)), now, d)
            rows.append(reshape(now[0], shape=(1, 1, batch, hidden)))
        rows = rows[::-1] if backward else rows
        outputs.append(concat(*rows, axis=0) if time > 1 else rows[0])
        last.append(now)
    y = concat(*outputs, axis=1) if count > 1 else outputs[0]
    finals = [[reshape(s, shape=(1, batch, hidden)) for s in each] for each in zip(*last)]
    return y, *(concat(*each, axis=0) if count > 1 else each[0] for each in finals)


def _weights(r: Value, d: int, begin: int, end: int) -> TermLike:
    """Returns recurrent weights of a direction and some gates, [unit, gate · unit]."""
    part = slice_(r, starts=(d, begin), ends=(d + 1, end), axes=(0, 1), steps=(1, 1))
    return transpose(reshape(part, shape=(end - begin, r.type.shape[2])), perm=(1, 0))


def _clipped(x: TermLike, limit: float) -> TermLike:
    return clip(x, -limit, limit) if limit else x


def _parts(x: TermLike, hidden: int, count: int) -> list[TermLike]:
    return [_along(x, 1, i * hidden, (i + 1) * hidden) for i in range(count)]


@expands("lstm_steps")
def lstm_steps(gates, r, h, c, p, *, direction="forward", clip=0.0, input_forget=False, round_state=False):
    if round_state:
        raise NoForm("TFLite does not round states row by row")
    hidden = r.type.shape[2]

    def step(given, states, d):
        state, cells = states
        sums = add(given, matmul(state, _weights(r, d, 0, 4 * hidden)))
        i, o, f, new = _parts(sums, hidden, 4)
        peep = [reshape(x, shape=(1, hidden)) for x in _parts(_along(p, 0, d, d + 1), hidden, 3)]
        i = sigmoid(_clipped(add(i, mul(peep[0], cells)), clip))
        f = sub(1.0, i) if input_forget else sigmoid(_clipped(add(f, mul(peep[2], cells)), clip))
        cells = add(mul(f, cells), mul(i, tanh(_clipped(new, clip))))
        o = sigmoid(_clipped(add(o, mul(peep[1], cells)), clip))
        return mul(o, tanh(cells)), cells

    return _unrolled(gates, (h, c), direction, step)


@expands("gru_steps")
def gru_steps(gates, r, b, h, *, direction="forward", clip=0.0, linear_before_reset=False):
    hidden = r.type.shape[2]

    def step(given, states, d):
        (state,) = states
        z, reset, new = _parts(given, hidden, 3)
        sums = matmul(state, _weights(r, d, 0, 2 * hidden))
        z, reset = (sigmoid(_clipped(add(x, s), clip)) for x, s in zip((z, reset), _parts(sums, hidden, 2)))
        bias, own = _along(b, 0, d, d + 1), _weights(r, d, 2 * hidden, 3 * hidden)
        if linear_before_reset:
            recurrent = mul(reset, add(matmul(state, own), bias))
        else:
            recurrent = add(matmul(mul(reset, state), own), bias)
        new = tanh(_clipped(add(new, recurrent), clip))
        return (add(mul(sub(1.0, z), new), mul(z, state)),)

    return _unrolled(gates, (h,), direction, step)


@expands("rnn_steps")
def rnn_steps(gates, r, h, *, direction="forward", clip=0.0, activation="Tanh"):
    function = tanh if activation == "Tanh" else relu

    def step(given, states, d):
        return (function(_clipped(add(given, matmul(states[0], _weights(r, d, 0, r.type.shape[1]))), clip)),)

    return _unrolled(gates, (h,), direction, step)


@expands("blend")
def blend(x, indices, weights, *, axis, batch_dims=0):
    """Sums products of picked elements."""
    taps, points = indices.type.shape[-1], indices.type.shape[:-1]
    if batch_dims or not is_known(taps) or taps > MOST:
        raise NoForm("TFLite picks elements of all batches alike, and up to 64 for each point")
    total: TermLike = None
    for t in range(taps):
        at = reshape(_along(indices, len(points), t, t + 1), shape=points)
        by = reshape(_along(weights, len(points), t, t + 1), shape=(*points, *[1] * (x.type.rank - axis - 1)))
        part = mul(gather(x, at, axis=axis), by)
        total = part if total is None else add(total, part)
    return total


@expands("pad")
def pads(x, value, *, pads, mode="constant"):
    """Crops where pads are negative, and repeats the edges, or the whole, axis by axis."""
    rank, sizes = x.type.rank, list(x.type.shape)
    if not is_known(*pads) or mode not in ("edge", "wrap", "constant"):
        raise NoForm(f"TFLite does not pad by the mode {mode}, nor by dynamic sizes")
    y: TermLike = x
    for axis, (before, after) in enumerate(zip(pads[:rank], pads[rank:])):
        if before < 0 or after < 0:
            start, end = max(-before, 0), sizes[axis] - max(-after, 0)
            y, sizes[axis] = _along(y, axis, start, end), end - start
    rest = tuple(max(p, 0) for p in pads)
    if mode == "constant":
        if rest == pads:
            raise NoForm("TFLite pads by a constant")
        return pad(y, value, pads=rest) if any(rest) else y
    for axis, (before, after) in enumerate(zip(rest[:rank], rest[rank:])):
        size, parts = sizes[axis], [y]
        if mode == "wrap" and (not is_known(size) or max(before, after) > size):
            raise NoForm("TFLite repeats an axis by joining it with itself once")
        for count, first in ((before, True), (after, False)):
            if not count:
                continue
            if mode == "wrap":
                part = _along(y, axis, size - count, size) if first else _along(y, axis, 0, count)
            else:
                one = _along(y, axis, 0, 1) if first else _along(y, axis, size - 1, size)
                part = expand(one, shape=(*sizes[:axis], count, *sizes[axis + 1 :]))
            parts = [part, *parts] if first else [*parts, part]
        y = concat(*parts, axis=axis) if len(parts) > 1 else y
        sizes[axis] = size + before + after
    return y
