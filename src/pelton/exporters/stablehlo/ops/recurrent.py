"""Writers of recurrent layers, as loops over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pelton.ir.graph import Node

from pelton.ops.recurrent_cells import DIRECTIONS, activation_parameters

from ..blocks import Operations, SsaValue
from ..registry import summed_as, writes
from .control import count_up, read_at, write_at
from .products import dot

Function = Callable[[Operations, SsaValue], SsaValue]
Cell = Callable[..., Sequence[SsaValue]]  # (block, input's gates, states, weights) → new states


def _function(name: str, a: float | None, b: float | None) -> Function:
    """Returns what writes an activation with its parameters."""
    return {
        "relu": lambda s, x: s.binary("maximum", x, 0.0),
        "tanh": lambda s, x: s.unary("tanh", x),
        "sigmoid": lambda s, x: s.unary("logistic", x),
        "affine": lambda s, x: s.add(s.multiply(x, a), b),
        "leakyrelu": lambda s, x: s.select(s.compare("LT", x, 0.0), s.multiply(x, a), x),
        "thresholdedrelu": lambda s, x: s.select(s.compare("GT", x, a), x, 0.0),
        "scaledtanh": lambda s, x: s.multiply(s.unary("tanh", s.multiply(x, b)), a),
        "hardsigmoid": lambda s, x: s.clamp(s.add(s.multiply(x, a), b), 0.0, 1.0),
        "elu": lambda s, x: s.select(s.compare("LT", x, 0.0), s.multiply(s.unary("exponential_minus_one", x), a), x),
        "softsign": lambda s, x: s.divide(x, s.add(s.unary("abs", x), 1.0)),
        "softplus": _softplus,
    }[name]


def _softplus(s: Operations, x: SsaValue) -> SsaValue:
    small = s.unary("log_plus_one", s.unary("exponential", s.unary("negate", s.unary("abs", x))))
    return s.add(s.binary("maximum", x, 0.0), small)


def _functions(node: Node, *defaults: str) -> list[Function]:
    """Returns the activations of all directions in order."""
    a = node.attrs
    names = a.get("activations") or defaults * DIRECTIONS[a["direction"]]
    parameters = activation_parameters(names, a.get("activation_alpha", ()), a.get("activation_beta", ()))
    return [_function(*each) for each in parameters]


def _clipped(node: Node) -> Function:
    """Returns what clips the operand of an activation."""
    clip = node.attrs["clip"]
    return (lambda s, x: s.clamp(x, -clip, clip)) if clip else (lambda s, x: x)


def _state_gates(s: Operations, h: SsaValue, r: SsaValue) -> SsaValue:
    """Writes H·Rᵀ for h [batch, unit] and r [gate · unit, unit]."""
    return dot(s, h, r, 0, (1, 1))


def _split(s: Operations, x: SsaValue, parts: int, axis: int = 1) -> list[SsaValue]:
    n = x.shape[axis] // parts
    return [s.slice(x, axis, i * n, (i + 1) * n) for i in range(parts)]


def _direction(s: Operations, x: SsaValue, d: int) -> SsaValue:
    """Returns the part of a direction, without its axis, which is the first."""
    return s.reshape(s.slice(x, 0, d, d + 1), x.shape[1:])


def _wide(s: Operations, operands: Sequence[SsaValue]) -> list[SsaValue]:
    return [s.convert(x, summed_as(x.dtype)) for x in operands]


def _input_gates(s: Operations, x: SsaValue, w: SsaValue, b: SsaValue) -> SsaValue:
    """Writes X·Wᵀ + b of all steps and directions: [time, batch, direction · gate · unit]."""
    directions, width, inputs = w.shape
    sums = dot(s, x, s.reshape(w, (directions * width, inputs)), 0, (2, 1))
    return s.add(sums, s.broadcast(s.reshape(b, (1, 1, directions * width)), sums.shape))


def _run(
    s: Operations,
    node: Node,
    gates: SsaValue,
    states: Sequence[SsaValue],
    cell: Callable[[int], Cell],
    weights: Sequence[SsaValue],
) -> list[SsaValue]:
    """Writes the steps of each direction; returns y [time, direction, batch, unit] and the final states.

    gates: [time, batch, direction · width]. weights: an array for each direction along their first axes.
    """
    (time, batch, wide), (directions, _, hidden) = gates.shape, states[0].shape
    width, kept, dtype = wide // directions, len(states), node.outputs[0].type.dtype
    ends = list[list[SsaValue]]()
    for d in range(directions):
        back = node.attrs["direction"] == "reverse" or d == 1
        steps = s.slice(gates, 2, d * width, (d + 1) * width)
        stack = s.constant(np.broadcast_to(np.zeros((), gates.dtype.numpy), (time, batch, hidden)))
        update = cell(d)

        def step(inner: Operations, turn: SsaValue, values: Sequence[SsaValue]) -> Sequence[SsaValue]:
            y, now, (steps, *held) = values[0], values[1 : 1 + kept], values[1 + kept :]
            at = inner.subtract(time - 1, turn) if back else turn  # noqa: B023
            new = update(inner, read_at(inner, steps, 0, at), now, held)  # noqa: B023
            return [write_at(inner, y, new[0], 0, at), *new]

        carried = [stack, *(_direction(s, x, d) for x in states), steps, *(_direction(s, w, d) for w in weights)]
        ends.append(list(count_up(s, time, carried, step) if time else carried)[: 1 + kept])
    y = s.concatenate([s.reshape(e[0], (time, 1, batch, hidden)) for e in ends], 1)
    finals = [s.concatenate([s.reshape(e[1 + i], (1, batch, hidden)) for e in ends], 0) for i in range(kept)]
    return [s.convert(x, dtype) for x in (y, *finals)]


def _rounded_rows(s: Operations, h: SsaValue) -> SsaValue:
    """Writes each row rounded to 255 steps from its least to its largest element, with 0 among them."""
    low, high = (s.reduce(kind, s.binary(kind, h, 0.0), [1], 0.0) for kind in ("minimum", "maximum"))
    span = s.subtract(high, low)
    scale = s.divide(s.select(s.compare("GT", high, low), span, 1.0), 255.0)
    zero = s.unary("round_nearest_even", s.clamp(s.divide(s.unary("negate", low), scale), 0.0, 255.0))
    by, least = s.spread(scale, h.shape, [0]), s.spread(s.unary("negate", zero), h.shape, [0])
    most = s.spread(s.subtract(255.0, zero), h.shape, [0])
    steps = s.unary("round_nearest_even", s.divide(h, by))
    return s.multiply(s.one("clamp", [least, steps, most], h.type), by)


def _lstm_cells(node: Node) -> Callable[[int], Cell]:
    functions, clip = _functions(node, "sigmoid", "tanh", "tanh"), _clipped(node)
    rounded, coupled = node.attrs["round_state"], node.attrs["input_forget"]

    def of(d: int) -> Cell:
        f, g, k = functions[3 * d : 3 * d + 3]

        def cell(s: Operations, given: SsaValue, states: Sequence[SsaValue], weights: Sequence[SsaValue]):
            (h, c), (r, p) = states, weights
            h = _rounded_rows(s, h) if rounded else h
            i, o, forget, new = _split(s, s.add(given, _state_gates(s, h, r)), 4)
            peep = [s.spread(x, c.shape, [1]) for x in _split(s, p, 3, 0)]
            i = f(s, clip(s, s.add(i, s.multiply(peep[0], c))))
            kept = s.subtract(1.0, i) if coupled else f(s, clip(s, s.add(forget, s.multiply(peep[2], c))))
            c = s.add(s.multiply(kept, c), s.multiply(i, g(s, clip(s, new))))
            return s.multiply(f(s, clip(s, s.add(o, s.multiply(peep[1], c)))), k(s, c)), c

        return cell

    return of


@writes("lstm_steps")
def lstm_steps(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    gates, r, h, c, p = _wide(s, operands)
    return _run(s, node, gates, (h, c), _lstm_cells(node), (r, p))


@writes("lstm")
def lstm(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    x, w, r, b, h, c, p = _wide(s, operands)
    gates = _input_gates(s, x, w, s.add(*_split(s, b, 2)))
    return _run(s, node, gates, (h, c), _lstm_cells(node), (r, p))


def _gru_cells(node: Node) -> Callable[[int], Cell]:
    functions, clip = _functions(node, "sigmoid", "tanh"), _clipped(node)

    def of(d: int) -> Cell:
        f, g = functions[2 * d : 2 * d + 2]

        def cell(s: Operations, given: SsaValue, states: Sequence[SsaValue], weights: Sequence[SsaValue]):
            (h,), (r, b), n = states, weights, states[0].shape[1]
            biased = lambda x, b: s.add(x, s.spread(b, x.shape, [1]))  # noqa: E731
            first = biased(_state_gates(s, h, s.slice(r, 0, 0, 2 * n)), s.slice(b, 0, 0, 2 * n))
            z, reset = _split(s, f(s, clip(s, s.add(s.slice(given, 1, 0, 2 * n), first))), 2)
            r_new, b_new = s.slice(r, 0, 2 * n, 3 * n), s.slice(b, 0, 2 * n, 3 * n)
            if node.attrs["linear_before_reset"]:
                recurrent = s.multiply(reset, biased(_state_gates(s, h, r_new), b_new))
            else:
                recurrent = biased(_state_gates(s, s.multiply(reset, h), r_new), b_new)
            new = g(s, clip(s, s.add(s.slice(given, 1, 2 * n, 3 * n), recurrent)))
            return (s.add(s.multiply(s.subtract(1.0, z), new), s.multiply(z, h)),)

        return cell

    return of


@writes("gru_steps")
def gru_steps(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    gates, r, b, h = _wide(s, operands)
    directions, hidden = b.shape
    none = s.constant(np.broadcast_to(np.zeros((), b.dtype.numpy), (directions, 2 * hidden)))
    return _run(s, node, gates, (h,), _gru_cells(node), (r, s.concatenate([none, b], 1)))


@writes("gru")
def gru(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    x, w, r, b, h = _wide(s, operands)
    own, recurrent = _split(s, b, 2)
    return _run(s, node, _input_gates(s, x, w, own), (h,), _gru_cells(node), (r, recurrent))


def _rnn_cells(node: Node) -> Callable[[int], Cell]:
    functions, clip = _functions(node, node.attrs.get("activation", "tanh")), _clipped(node)

    def of(d: int) -> Cell:
        return lambda s, given, states, weights: (
            functions[d](s, clip(s, s.add(given, _state_gates(s, states[0], weights[0])))),
        )

    return of


@writes("rnn_steps")
def rnn_steps(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    gates, r, h = _wide(s, operands)
    return _run(s, node, gates, (h,), _rnn_cells(node), (r,))


@writes("rnn")
def rnn(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    x, w, r, b, h = _wide(s, operands)
    gates = _input_gates(s, x, w, s.add(*_split(s, b, 2)))
    return _run(s, node, gates, (h,), _rnn_cells(node), (r,))
