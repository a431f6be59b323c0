"""Recurrent layers as ONNX defines them, for sequences of one length: LSTM, GRU and the plain RNN.

x is [time, batch, input]; w, r and b hold the gates one after the other, per direction. A layer expands to one matrix
product of the inputs of all time steps, and the steps (`rnn_steps.py`), which are sequential.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, TensorType

from .linear import matmul
from .math import add
from .op import TermLike, expect, structured
from .recurrent_cells import (
    DIRECTIONS,
    activation_functions,
    check_layer,
    clip_gates,
    gru_cell,
    layer_flops,
    lstm_cell,
    round_rows,
    run_steps,
)
from .rnn_steps import gru_steps, lstm_steps, rnn_steps
from .shape import along, concat, reshape, transpose


def _input_gates(x: Value, w: Value, bias: TermLike) -> TermLike:
    """Computes the input's part of all steps' and directions' gates: [time, batch, direction · gate · unit]."""
    (time, batch, inputs), (directions, width, _) = x.type.shape, w.type.shape
    weights = transpose(reshape(w, shape=(directions * width, inputs)), perm=(1, 0))
    sums = matmul(reshape(x, shape=(time * batch, inputs)), weights)
    return reshape(add(sums, reshape(bias, shape=(directions * width,))), shape=(time, batch, directions * width))


def _split_biases(b: Value, gates: int) -> tuple[TermLike, TermLike]:
    """Splits biases into the input's and the state's, each [direction, gate, unit]."""
    directions, width = b.type.shape
    each = reshape(b, shape=(directions, 2, gates, width // (2 * gates)))
    own, recurrent = (
        reshape(along(each, 1, i, i + 1), shape=(directions, gates, width // (2 * gates))) for i in (0, 1)
    )
    return own, recurrent


def _is_default(names: tuple[str, ...], *defaults: str) -> bool:
    """True if the activations are unspecified, or `defaults` in each direction."""
    return not names or all(name.lower() == defaults[i % len(defaults)] for i, name in enumerate(names))


_OTHER_ACTIVATIONS = dict(
    activations=("HardSigmoid", "ScaledTanh", "Softsign"),
    activation_alpha=(0.3, 0.9),
    activation_beta=(0.4, 0.7),
    clip=0.5,
)


def _example(x: tuple[int, int, int], gates: int, states: int = 1, **attrs: Any) -> tuple:
    """Returns operand types with 5 units for x [time, batch, input], and attributes. LSTM has peepholes, two states."""
    (_, batch, inputs), hidden = x, 5
    n = DIRECTIONS[attrs.get("direction", "forward")]
    shapes = [x, (n, gates * hidden, inputs), (n, gates * hidden, hidden), (n, 2 * gates * hidden)]
    shapes += [(n, batch, hidden)] * states + [(n, 3 * hidden)] * (states == 2)
    return (*(str(TensorType(F32, shape)) for shape in shapes), {"hidden": hidden, **attrs})


@structured(
    "LSTM",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        _example((7, 2, 3), 4, 2),
        _example((4, 3, 7), 4, 2, direction="bidirectional"),
        _example((4, 1, 7), 4, 2, direction="reverse", **_OTHER_ACTIVATIONS),
        _example((3, 2, 3), 4, 2, input_forget=True),
        _example((4, 3, 7), 4, 2, round_state=True),
        _example((4, 2, 7), 4, 2, direction="bidirectional", round_state=True),
    ),
)
class lstm:
    """i, o, f = f(X·Wᵀ + H·Rᵀ + b + P⊙C), C′ = f⊙C + i⊙g(X·Wcᵀ + H·Rcᵀ + bc), H′ = o⊙h(C′): gates i, o, f, c; peepholes
    i, o, f (o reads C′). round_state: the products read each row of H as DynamicQuantizeLinear rounds it."""

    def infer(
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        initial_h: TensorType,
        initial_c: TensorType,
        p: TensorType,
        *,
        hidden: int,
        direction: str = "forward",
        activations: tuple[str, ...] = (),
        activation_alpha: tuple[float, ...] = (),
        activation_beta: tuple[float, ...] = (),
        clip: float = 0.0,
        input_forget: bool = False,
        round_state: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        y, state = check_layer(
            x,
            w,
            r,
            b,
            (initial_h, initial_c),
            4,
            hidden=hidden,
            direction=direction,
            activations=activations,
            functions=3,
            clip=clip,
        )
        expect(
            p.shape == (DIRECTIONS[direction], 3 * hidden) and p.dtype is x.dtype,
            f"needs p of type {x.with_shape((DIRECTIONS[direction], 3 * hidden))}",
        )
        return y, state, state

    def reference(
        x,
        w,
        r,
        b,
        initial_h,
        initial_c,
        p,
        *,
        hidden,
        direction="forward",
        activations=(),
        activation_alpha=(),
        activation_beta=(),
        clip=0.0,
        input_forget=False,
        round_state=False,
    ):
        names = activations or ("Sigmoid", "Tanh", "Tanh") * DIRECTIONS[direction]
        functions = activation_functions(names, activation_alpha, activation_beta)

        def step(x, states, prepared):
            (h, c), (w, r, b, peepholes, functions) = states, prepared
            h = round_rows(h) if round_state else h
            return lstm_cell(x @ w.T + h @ r.T + b, c, peepholes, functions, clip, input_forget)

        def prepare(d):
            return w[d], r[d], b[d, : 4 * hidden] + b[d, 4 * hidden :], np.split(p[d], 3), functions[3 * d : 3 * d + 3]

        return run_steps(x, (initial_h, initial_c), step, prepare, direction)

    def expand(
        x: Value,
        w: Value,
        r: Value,
        b: Value,
        initial_h: Value,
        initial_c: Value,
        p: Value,
        *,
        direction,
        activations,
        clip,
        input_forget,
        round_state,
        **_,
    ) -> TermLike:
        if not _is_default(activations, "sigmoid", "tanh", "tanh"):
            return None
        return lstm_steps(
            _input_gates(x, w, add(*_split_biases(b, 4))),
            r,
            initial_h,
            initial_c,
            p,
            direction=direction,
            clip=clip,
            input_forget=input_forget,
            round_state=round_state,
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, initial_c, p, **attrs) -> int:
        return layer_flops(x, r)


@structured(
    "GRU",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        _example((7, 2, 3), 3),
        _example((4, 3, 7), 3, direction="bidirectional", linear_before_reset=True),
        _example((4, 1, 7), 3, direction="reverse", activations=("Sigmoid", "Relu"), clip=0.7),
    ),
)
class gru:
    """z, r = f(X·Wᵀ + H·Rᵀ + b), n = g(X·Wnᵀ + (r⊙H)·Rnᵀ + b), H′ = (1 − z)⊙n + z⊙H; linear_before_reset: r⊙(H·Rnᵀ + b)
    instead."""

    def infer(
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        initial_h: TensorType,
        *,
        hidden: int,
        direction: str = "forward",
        activations: tuple[str, ...] = (),
        activation_alpha: tuple[float, ...] = (),
        activation_beta: tuple[float, ...] = (),
        clip: float = 0.0,
        linear_before_reset: bool = False,
    ) -> tuple[TensorType, TensorType]:
        return check_layer(
            x,
            w,
            r,
            b,
            (initial_h,),
            3,
            hidden=hidden,
            direction=direction,
            activations=activations,
            functions=2,
            clip=clip,
        )

    def reference(
        x,
        w,
        r,
        b,
        initial_h,
        *,
        hidden,
        direction="forward",
        activations=(),
        activation_alpha=(),
        activation_beta=(),
        clip=0.0,
        linear_before_reset=False,
    ):
        names = activations or ("Sigmoid", "Tanh") * DIRECTIONS[direction]
        functions = activation_functions(names, activation_alpha, activation_beta)

        def step(x, states, prepared):
            (h,), (w, r, bias_w, bias_r, functions) = states, prepared
            return gru_cell(x @ w.T + bias_w, h, r, bias_r, functions, clip, linear_before_reset)

        def prepare(d):
            return w[d], r[d], b[d, : 3 * hidden], b[d, 3 * hidden :], functions[2 * d : 2 * d + 2]

        return run_steps(x, (initial_h,), step, prepare, direction)

    def expand(
        x: Value,
        w: Value,
        r: Value,
        b: Value,
        initial_h: Value,
        *,
        hidden,
        direction,
        activations,
        clip,
        linear_before_reset,
        **_,
    ) -> TermLike:
        """Keeps the recurrent bias of n apart if the product comes first: the reset gate multiplies it."""
        if not _is_default(activations, "sigmoid", "tanh"):
            return None
        own, recurrent = _split_biases(b, 3)
        later: TermLike = np.zeros((w.type.shape[0], hidden))
        if linear_before_reset:
            later = reshape(along(recurrent, 1, 2, 3), shape=later.shape)
            bias = concat(add(along(own, 1, 0, 2), along(recurrent, 1, 0, 2)), along(own, 1, 2, 3), axis=1)
        else:
            bias = add(own, recurrent)
        return gru_steps(
            _input_gates(x, w, bias),
            r,
            later,
            initial_h,
            direction=direction,
            clip=clip,
            linear_before_reset=linear_before_reset,
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return layer_flops(x, r)


@structured(
    "RNN",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        _example((7, 2, 3), 1),
        _example((4, 3, 7), 1, direction="bidirectional", activations=("Relu", "Elu"), clip=0.9),
        _example(
            (4, 3, 7),
            1,
            direction="bidirectional",
            activations=("ThresholdedRelu", "Softplus"),
            activation_alpha=(0.2,),
        ),
    ),
)
class rnn:
    """H′ = f(X·Wᵀ + H·Rᵀ + b)."""

    def infer(
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        initial_h: TensorType,
        *,
        hidden: int,
        direction: str = "forward",
        activations: tuple[str, ...] = (),
        activation_alpha: tuple[float, ...] = (),
        activation_beta: tuple[float, ...] = (),
        clip: float = 0.0,
    ) -> tuple[TensorType, TensorType]:
        return check_layer(
            x,
            w,
            r,
            b,
            (initial_h,),
            1,
            hidden=hidden,
            direction=direction,
            activations=activations,
            functions=1,
            clip=clip,
        )

    def reference(
        x,
        w,
        r,
        b,
        initial_h,
        *,
        hidden,
        direction="forward",
        activations=(),
        activation_alpha=(),
        activation_beta=(),
        clip=0.0,
    ):
        functions = activation_functions(
            activations or ("Tanh",) * DIRECTIONS[direction], activation_alpha, activation_beta
        )

        def step(x, states, prepared):
            (h,), (w, r, b, f) = states, prepared
            return (f(clip_gates(x @ w.T + h @ r.T + b, clip)),)

        def prepare(d):
            return w[d], r[d], b[d, :hidden] + b[d, hidden:], functions[d]

        return run_steps(x, (initial_h,), step, prepare, direction)

    def expand(
        x: Value, w: Value, r: Value, b: Value, initial_h: Value, *, direction, activations, clip, **_
    ) -> TermLike:
        name = activations[0].capitalize() if activations else "Tanh"
        if name not in ("Tanh", "Relu") or not _is_default(activations, name.lower()):
            return None
        return rnn_steps(
            _input_gates(x, w, add(*_split_biases(b, 1))), r, initial_h, direction=direction, clip=clip, activation=name
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return layer_flops(x, r)
