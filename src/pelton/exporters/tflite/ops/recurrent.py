"""Writers of recurrent layers: their steps, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.op import TermLike
from pelton.ops.words import add, clip, concat, matmul, mul, relu, reshape, sigmoid, slice_, sub, tanh, transpose

from ..tensors import NoForm
from ..writing import TFLiteWriting, writes

LONGEST = 1 << 10  # steps
Step = Callable[[Value, tuple[Value, ...], int], tuple[TermLike, ...]]  # gates, states, direction → new states


def _along(x: TermLike, axis: int, start: Any, end: Any) -> TermLike:
    return slice_(x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


def _unroll(w: TFLiteWriting, gates: Value, states: Sequence[Value], step: Step) -> None:
    """Writes y [time, direction, batch, unit] and the last states, step by step."""
    (time, batch, width), (count, _, hidden) = gates.type.shape, states[0].type.shape
    direction = w.attrs["direction"]
    if not is_known(time) or time > LONGEST:
        raise NoForm(f"its steps are unrolled, up to {LONGEST}, got {time}; set their number with --shapes")
    width //= count
    columns, last = list[Value](), list[tuple[Value, ...]]()
    for d in range(count):
        now = w.written(*(reshape(_along(s, 0, d, d + 1), shape=(batch, hidden)) for s in states))
        (own,) = w.written(_along(gates, 2, d * width, (d + 1) * width))
        rows = list[Value]()
        backward = direction == "reverse" or d == 1
        for t in reversed(range(time)) if backward else range(time):
            (part,) = w.written(reshape(_along(own, 0, t, t + 1), shape=(batch, width)))
            now = w.written(*step(part, now, d))
            rows += w.written(reshape(now[0], shape=(1, 1, batch, hidden)))
        columns += w.written(concat(*(rows[::-1] if backward else rows), axis=0))
        last.append(now)
    results = [concat(*columns, axis=1)]
    results += [concat(*(reshape(s, shape=(1, batch, hidden)) for s in each), axis=0) for each in zip(*last)]
    for v, made in zip(w.node.outputs, w.written(*results)):
        w.model.rename(made, v)


def _weights(r: Value, d: int, begin: int, end: int) -> TermLike:
    """Returns recurrent weights of a direction and some gates, [unit, gate · unit]."""
    part = slice_(r, starts=(d, begin), ends=(d + 1, end), axes=(0, 1), steps=(1, 1))
    return transpose(reshape(part, shape=(end - begin, r.type.shape[2])), perm=(1, 0))


def _clipped(x: TermLike, limit: float) -> TermLike:
    return clip(x, -limit, limit) if limit else x


def _parts(x: TermLike, hidden: int, count: int) -> list[TermLike]:
    return [_along(x, 1, i * hidden, (i + 1) * hidden) for i in range(count)]


@writes("lstm_steps")
def lstm_steps(w: TFLiteWriting) -> None:
    gates, r, h, c, p = w.node.inputs
    limit = w.attrs["clip"]
    if w.attrs["round_state"]:
        raise NoForm("TFLite does not round states row by row")
    hidden, input_forget = r.type.shape[2], w.attrs["input_forget"]

    # each once, for all steps
    every = range(r.type.shape[0])
    weights = [w.written(_weights(r, d, 0, 4 * hidden))[0] for d in every]
    peepholes = [w.written(*_parts(_along(p, 0, d, d + 1), hidden, 3)) for d in every]

    def step(given, states, d):
        state, cells = states
        sums = add(given, matmul(state, weights[d]))
        i, o, f, new = _parts(sums, hidden, 4)
        peep = peepholes[d]
        i = sigmoid(_clipped(add(i, mul(peep[0], cells)), limit))
        f = sub(1.0, i) if input_forget else sigmoid(_clipped(add(f, mul(peep[2], cells)), limit))
        cells = add(mul(f, cells), mul(i, tanh(_clipped(new, limit))))
        o = sigmoid(_clipped(add(o, mul(peep[1], cells)), limit))
        return mul(o, tanh(cells)), cells

    _unroll(w, gates, (h, c), step)


@writes("gru_steps")
def gru_steps(w: TFLiteWriting) -> None:
    gates, r, b, h = w.node.inputs
    limit = w.attrs["clip"]
    hidden = r.type.shape[2]

    every = range(r.type.shape[0])
    biases = [w.written(_along(b, 0, d, d + 1))[0] for d in every]
    weights = [w.written(_weights(r, d, 0, 2 * hidden), _weights(r, d, 2 * hidden, 3 * hidden)) for d in every]

    def step(given, states, d):
        (state,) = states
        z, reset, new = _parts(given, hidden, 3)
        (first, own), bias = weights[d], biases[d]
        sums = matmul(state, first)
        z, reset = (sigmoid(_clipped(add(x, s), limit)) for x, s in zip((z, reset), _parts(sums, hidden, 2)))
        if w.attrs["linear_before_reset"]:
            recurrent = mul(reset, add(matmul(state, own), bias))
        else:
            recurrent = add(matmul(mul(reset, state), own), bias)
        new = tanh(_clipped(add(new, recurrent), limit))
        return (add(mul(sub(1.0, z), new), mul(z, state)),)

    _unroll(w, gates, (h,), step)


@writes("rnn_steps")
def rnn_steps(w: TFLiteWriting) -> None:
    gates, r, h = w.node.inputs
    limit = w.attrs["clip"]
    function = tanh if w.attrs["activation"] == "Tanh" else relu

    weights = [w.written(_weights(r, d, 0, r.type.shape[1]))[0] for d in range(r.type.shape[0])]

    def step(given, states, d):
        return (function(_clipped(add(given, matmul(states[0], weights[d])), limit)),)

    _unroll(w, gates, (h,), step)
