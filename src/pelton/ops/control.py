"""Ops with graphs as attributes: branches, loops and scans, whose graphs capture nothing."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Body
from pelton.ir.text import parse
from pelton.ir.types import BOOL, I64, TensorType

from .op import expect, nested

ENDLESS = (1 << 63) - 1  # the number of iterations of a loop that only its condition ends
_NEG = Body(parse("graph a(%x: f32[2, 3]) { %y: f32[2, 3] = neg(%x) return %y }"))
_SQUARE = Body(parse("graph b(%x: f32[2, 3]) { %y: f32[2, 3] = mul(%x, %x) return %y }"))
_HALVE = Body(
    parse(
        "graph c(%i: i64[], %x: f32[2, 3], %by: f32[]) { %y: f32[2, 3] = mul(%x, %by) %go = constant bool[] true return"
        " %go, %y }"
    )
)
_STEP = Body(
    parse(
        "graph d(%h: f32[3], %x: f32[3], %w: f32[3]) { %a: f32[3] = mul(%h, %w) %s: f32[3] = add(%a, %x) %t: f32[3] ="
        " tanh(%s) return %t, %s }"
    )
)


def _fits(body: Body, given: tuple[TensorType, ...], what: str) -> tuple[TensorType, ...]:
    """Returns the output types of a body; ValueError if its inputs have other types."""
    taken = tuple(v.type for v in body.graph.inputs)
    expect(
        taken == given,
        f"needs {what} with inputs {', '.join(map(str, given)) or 'nothing'}, got one with"
        f" {', '.join(map(str, taken)) or 'nothing'}",
    )
    return tuple(v.type for v in body.graph.outputs)


def _operations(body: Body) -> int:
    return sum(
        n.op.operations(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs), n.attrs)
        for n in body.graph.nodes
    )


@nested(examples=(("bool[]", "f32[2, 3]", dict(then=_NEG, other=_SQUARE)),))
class if_:
    """One of two graphs, by a condition; both take all further operands."""

    def infer(condition: TensorType, *inputs: TensorType, then: Body, other: Body) -> tuple[TensorType, ...]:
        expect(condition == TensorType(BOOL), "needs one bool as its condition")
        ours, theirs = _fits(then, inputs, "a branch"), _fits(other, inputs, "a branch")
        expect(
            ours == theirs,
            f"needs branches with equal output types, got {', '.join(map(str, ours))} and"
            f" {', '.join(map(str, theirs))}",
        )
        return ours

    def reference(condition, *inputs, then, other):
        return then(*inputs) if condition else other(*inputs)

    def flops(condition, *inputs, then, other):
        return max(_operations(then), _operations(other))


@nested(examples=(("i64[]", "bool[]", "f32[2, 3]", "f32[]", dict(body=_HALVE, carried=1)),))
class loop:
    """Runs a graph repeatedly, up to a number of iterations and while a condition holds (ENDLESS and true: no bound).

    Operands are the number, the condition, `carried` values, and values that all iterations take. The graph takes the
    iteration's number, the carried values and the rest; it returns the condition and the carried values, of the same
    types.
    """

    def infer(
        trips: TensorType, condition: TensorType, *inputs: TensorType, body: Body, carried: int
    ) -> tuple[TensorType, ...]:
        expect(
            trips == TensorType(I64) and condition == TensorType(BOOL),
            "needs a number of iterations, i64[], and a condition, bool[]",
        )
        expect(0 <= carried <= len(inputs), f"cannot carry {carried} of {len(inputs)} operands")
        outputs = _fits(body, (TensorType(I64), *inputs), "a graph")
        expect(
            outputs == (TensorType(BOOL), *inputs[:carried]),
            "needs a graph that returns a condition and its carried values, of equal types",
        )
        return outputs[1:]

    def reference(trips, condition, *inputs, body, carried):
        state, rest, go, i = inputs[:carried], inputs[carried:], bool(condition), 0
        while go and i < trips:
            go, *state = body(np.int64(i), *state, *rest)
            i += 1
        return tuple(state)

    def flops(trips, condition, *inputs, body, carried):
        return _operations(body)


@nested(
    examples=(
        ("f32[3]", "f32[5, 3]", "f32[3]", dict(body=_STEP, states=1, axes=(0,), into=(0,))),
        ("f32[3]", "f32[3, 5]", "f32[3]", dict(body=_STEP, states=1, axes=(1,), into=(1,), back=True)),
    )
)
class scan:
    """Runs a graph for each slice along an axis of its scanned operands, `back` from the last one to the first.

    Operands are `states` carried values, one scanned operand per axis in `axes`, and values that all iterations take.
    The graph takes the states, a slice of each scanned operand, and the rest; it returns the states, and slices that
    are stacked along a new axis, `into`.
    """

    def infer(
        *inputs: TensorType, body: Body, states: int, axes: tuple[int, ...], into: tuple[int, ...], back: bool = False
    ) -> tuple[TensorType, ...]:
        scanned = inputs[states : states + len(axes)]
        expect(
            0 <= states and len(axes) == len(scanned) > 0,
            f"needs {states} states and {len(axes)} operands to scan, got {len(inputs)}",
        )
        expect(
            all(0 <= a < t.rank for a, t in zip(axes, scanned)), f"needs axes that its operands have, got {list(axes)}"
        )
        length = scanned[0].shape[axes[0]]
        expect(
            all(t.shape[a] == length for a, t in zip(axes, scanned)), "needs operands of one length along their axes"
        )
        slices = tuple(t.with_shape((*t.shape[:a], *t.shape[a + 1 :])) for a, t in zip(axes, scanned))
        outputs = _fits(body, (*inputs[:states], *slices, *inputs[states + len(axes) :]), "a graph")
        parts = outputs[states:]
        kept = outputs[:states] == inputs[:states] and len(parts) == len(into)
        expect(kept, f"needs a graph that returns {states} states of equal types and {len(into)} parts")
        expect(all(0 <= a <= t.rank for a, t in zip(into, parts)), f"cannot join parts along axes {list(into)}")
        return (*inputs[:states], *(t.with_shape((*t.shape[:a], length, *t.shape[a:])) for a, t in zip(into, parts)))

    def reference(*inputs, body, states, axes, into, back=False):
        state, scanned, rest = inputs[:states], inputs[states : states + len(axes)], inputs[states + len(axes) :]
        rows = []
        for i in range(scanned[0].shape[axes[0]])[:: -1 if back else 1]:
            outputs = body(*state, *(x.take(i, a) for x, a in zip(scanned, axes)), *rest)
            state = outputs[:states]
            rows.append(outputs[states:])
        if not rows:
            raise ValueError("nothing to scan")
        return (*state, *(np.stack(parts[::-1] if back else parts, a) for parts, a in zip(zip(*rows), into)))

    def flops(*inputs, body, states, axes, into, back=False):
        return inputs[states].shape[axes[0]] * _operations(body)
