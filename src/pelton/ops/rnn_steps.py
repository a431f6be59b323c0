"""Recurrences alone: the steps of recurrent layers, after one product of the inputs of all time steps."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, structured
from .recurrent_cells import (
    activation_functions,
    check_steps,
    clip_gates,
    gru_cell,
    lstm_cell,
    round_rows,
    run_steps,
    steps_flops,
)


@structured(
    domain=(-1.0, 1.0),
    examples=(
        ("f32[7, 2, 20]", "f32[1, 20, 5]", "f32[1, 2, 5]", "f32[1, 2, 5]", "f32[1, 15]", {}),
        (
            "f32[4, 3, 40]",
            "f32[2, 20, 5]",
            "f32[2, 3, 5]",
            "f32[2, 3, 5]",
            "f32[2, 15]",
            dict(direction="bidirectional"),
        ),
        (
            "f32[4, 1, 72]",
            "f32[1, 72, 18]",
            "f32[1, 1, 18]",
            "f32[1, 1, 18]",
            "f32[1, 54]",
            dict(direction="reverse", clip=0.5, input_forget=True),
        ),
        (
            "f32[4, 3, 40]",
            "f32[2, 20, 5]",
            "f32[2, 3, 5]",
            "f32[2, 3, 5]",
            "f32[2, 15]",
            dict(direction="bidirectional", round_state=True),
        ),
    ),
)
class lstm_steps:
    """lstm, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · (i, o, f, c)]; sigmoid
    and tanh. round_state: the products read each row of the state as DynamicQuantizeLinear rounds it."""

    def infer(
        gates: TensorType,
        r: TensorType,
        initial_h: TensorType,
        initial_c: TensorType,
        p: TensorType,
        *,
        direction: str = "forward",
        clip: float = 0.0,
        input_forget: bool = False,
        round_state: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        y, state = check_steps(gates, r, (initial_h, initial_c), 4, direction, clip)
        want = gates.with_shape((state.shape[0], 3 * state.shape[2]))
        expect(p == want, f"needs p of type {want}")
        return y, state, state

    def reference(
        gates, r, initial_h, initial_c, p, *, direction="forward", clip=0.0, input_forget=False, round_state=False
    ):
        functions, width = activation_functions(("Sigmoid", "Tanh", "Tanh"), (), ()), r.shape[1]

        def step(given, states, prepared):
            (h, c), (d, peepholes) = states, prepared
            h = round_rows(h) if round_state else h
            return lstm_cell(
                given[:, d * width : (d + 1) * width] + h @ r[d].T, c, peepholes, functions, clip, input_forget
            )

        return run_steps(gates, (initial_h, initial_c), step, lambda d: (d, np.split(p[d], 3)), direction)

    def flops(gates: TensorType, r: TensorType, initial_h, initial_c, p, **attrs) -> int:
        return steps_flops(gates, r)


@structured(
    domain=(-1.0, 1.0),
    examples=(
        ("f32[7, 2, 15]", "f32[1, 15, 5]", "f32[1, 5]", "f32[1, 2, 5]", {}),
        (
            "f32[4, 3, 30]",
            "f32[2, 15, 5]",
            "f32[2, 5]",
            "f32[2, 3, 5]",
            dict(direction="bidirectional", linear_before_reset=True),
        ),
        ("f32[4, 1, 54]", "f32[1, 54, 18]", "f32[1, 18]", "f32[1, 1, 18]", dict(direction="reverse", clip=0.7)),
    ),
)
class gru_steps:
    """gru, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · (z, r, n)]; b is the
    recurrent bias of n; sigmoid and tanh."""

    def infer(
        gates: TensorType,
        r: TensorType,
        b: TensorType,
        initial_h: TensorType,
        *,
        direction: str = "forward",
        clip: float = 0.0,
        linear_before_reset: bool = False,
    ) -> tuple[TensorType, TensorType]:
        y, state = check_steps(gates, r, (initial_h,), 3, direction, clip)
        want = gates.with_shape((state.shape[0], state.shape[2]))
        expect(b == want, f"needs b of type {want}")
        return y, state

    def reference(gates, r, b, initial_h, *, direction="forward", clip=0.0, linear_before_reset=False):
        functions, (width, hidden) = activation_functions(("Sigmoid", "Tanh"), (), ()), r.shape[1:]

        def step(given, states, prepared):
            (h,), (d, bias) = states, prepared
            return gru_cell(given[:, d * width : (d + 1) * width], h, r[d], bias, functions, clip, linear_before_reset)

        return run_steps(
            gates, (initial_h,), step, lambda d: (d, np.concatenate([np.zeros(2 * hidden, b.dtype), b[d]])), direction
        )

    def flops(gates: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return steps_flops(gates, r)


@structured(
    domain=(-1.0, 1.0),
    examples=(
        ("f32[7, 2, 5]", "f32[1, 5, 5]", "f32[1, 2, 5]", {}),
        ("f32[4, 3, 10]", "f32[2, 5, 5]", "f32[2, 3, 5]", dict(direction="bidirectional", activation="Relu")),
        ("f32[4, 1, 18]", "f32[1, 18, 18]", "f32[1, 1, 18]", dict(direction="reverse", clip=0.9)),
    ),
)
class rnn_steps:
    """rnn, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · unit]; activation Tanh or
    Relu."""

    def infer(
        gates: TensorType,
        r: TensorType,
        initial_h: TensorType,
        *,
        direction: str = "forward",
        clip: float = 0.0,
        activation: str = "Tanh",
    ) -> tuple[TensorType, TensorType]:
        expect(activation in ("Tanh", "Relu"), f"needs activation Tanh or Relu, got {activation!r}")
        return check_steps(gates, r, (initial_h,), 1, direction, clip)

    def reference(gates, r, initial_h, *, direction="forward", clip=0.0, activation="Tanh"):
        (f,), width = activation_functions((activation,), (), ()), r.shape[1]

        def step(given, states, d):
            return (f(clip_gates(given[:, d * width : (d + 1) * width] + states[0] @ r[d].T, clip)),)

        return run_steps(gates, (initial_h,), step, lambda d: d, direction)

    def flops(gates: TensorType, r: TensorType, initial_h, **attrs) -> int:
        return steps_flops(gates, r)
