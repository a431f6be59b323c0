"""LSTM steps with states rounded as by DynamicQuantizeLSTM: an ONNX scan for each direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.ir.builder import Builder
from pelton.ir.graph import Body, Node, Value
from pelton.ir.op import TermLike, get
from pelton.ir.types import I64, TensorType
from pelton.ops.shape import along
from pelton.ops.words import add, clip, div, equal, matmul, maximum, minimum, mul, neg, reduce_max, reduce_min
from pelton.ops.words import round_, sigmoid, sub, tanh, transpose, where

from ..writing import Writing

_BACK = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def rounded_steps(w: Writing) -> tuple[str, str, str]:
    """Returns the outputs of lstm_steps with `round_state`."""
    gates, recurrent, *_ = w.node.inputs
    directions, width, hidden = recurrent.type.shape
    outputs = []
    for d, back in enumerate(_BACK[w.attrs["direction"]]):
        body = _body(w, d)
        inputs = [_one(w, i, d) for i in (2, 3)] + [gates] + [_one(w, i, d) for i in (1, 4)]
        time, batch = gates.type.shape[:2]
        state = gates.type.with_shape((batch, hidden))
        made = tuple(Value(t, "state") for t in (state, state, state.with_shape((time, batch, hidden))))
        attrs = dict(body=body, states=2, axes=(0,), into=(0,), back=back)
        w.model.write_node(Node(get("scan"), tuple(inputs), attrs, made))
        outputs.append([w.value(v) for v in made])

    def joined(which: int, axis: int) -> str:
        parts = [w.emit("Unsqueeze", names[which], w.constant([axis])) for names in outputs]
        return parts[0] if directions == 1 else w.emit("Concat", *parts, axis=axis)

    return joined(2, 1), joined(0, 0), joined(1, 0)


def _one(w: Writing, i: int, direction: int) -> Value:
    """Returns one direction's part of an operand."""
    type = w.type(i).with_shape(w.type(i).shape[1:])
    value = Value(type, "part")
    w.model.bind(value, w.emit("Gather", w.input(i), w.constant(direction, I64), axis=0))
    return value


def _body(w: Writing, direction: int) -> Body:
    """Builds the graph of one step: (h, c, gates of all directions, recurrent weights, peepholes) → (h, c, h)."""
    gates, (_, width, hidden) = w.type(0), w.type(1).shape
    step = Builder("step")
    shapes = dict(h=w.type(2).shape[1:], c=w.type(3).shape[1:], x=gates.shape[1:], r=(width, hidden), p=(3 * hidden,))
    h, c, x, r, p = (step.input(TensorType(gates.dtype, tuple(s)), k) for k, s in shapes.items())
    own = along(x, 1, direction * width, (direction + 1) * width)
    sums = add(own, matmul(_rounded(h), transpose(r, perm=(1, 0))))
    new_h, new_c = _cell(sums, c, p, hidden, w.attrs)
    memo: dict[int, tuple[Value, ...]] = {}
    outputs = [step.build(t, memo=memo)[0] for t in (new_h, new_c)]
    return Body(step.graph([*outputs, outputs[0]]))


def _rounded(h: Value) -> TermLike:
    """Builds `round_rows` of ops/recurrent_cells.py."""
    low, high = minimum(reduce_min(h, axes=(1,)), 0.0), maximum(reduce_max(h, axes=(1,)), 0.0)
    width = sub(high, low)
    scale = div(where(equal(width, 0.0), 1.0, width), 255.0)
    zero = round_(minimum(maximum(neg(div(low, scale)), 0.0), 255.0))
    return mul(minimum(maximum(round_(div(h, scale)), neg(zero)), sub(255.0, zero)), scale)


def _cell(sums: TermLike, c: Value, p: Value, hidden: int, attrs: Mapping[str, Any]) -> tuple[TermLike, TermLike]:
    """Builds `lstm_cell` of ops/recurrent_cells.py, with sigmoid and tanh."""

    def within(x: TermLike) -> TermLike:
        return clip(x, -attrs["clip"], attrs["clip"]) if attrs["clip"] else x

    i, o, forget, new = (along(sums, 1, k * hidden, (k + 1) * hidden) for k in range(4))
    peep_i, peep_o, peep_f = (along(p, 0, k * hidden, (k + 1) * hidden) for k in range(3))
    i = sigmoid(within(add(i, mul(peep_i, c))))
    forget = sub(1.0, i) if attrs["input_forget"] else sigmoid(within(add(forget, mul(peep_f, c))))
    new_c = add(mul(forget, c), mul(i, tanh(within(new))))
    return mul(sigmoid(within(add(o, mul(peep_o, new_c)))), tanh(new_c)), new_c
