"""Shared parts of recurrent layers and steps: activations, checks of operands, cells, and the loop over time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, expect_equal

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

# lower-case ONNX name → (function of x, alpha, beta; default alpha; default beta); None: takes no such parameter
_ACTIVATIONS: dict[str, tuple[Callable, float | None, float | None]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * (np.exp(x) - 1), x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
}


def activation_parameters(
    names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]
) -> list[tuple[str, float | None, float | None]]:
    """Returns (lower-case name, alpha, beta) of activations in order; each consumes the next alpha and beta if it has
    one."""
    next_alpha, next_beta, parameters = iter(alphas), iter(betas), []
    for name in map(str.lower, names):
        _, alpha, beta = _ACTIVATIONS[name]
        alpha = None if alpha is None else next(next_alpha, alpha)
        beta = None if beta is None else next(next_beta, beta)
        parameters.append((name, alpha, beta))
    return parameters


def activation_functions(names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]) -> list[Callable]:
    """Returns the activations in order, with their parameters."""
    return [
        lambda x, fn=_ACTIVATIONS[name][0], a=alpha, b=beta: fn(x, a, b)
        for name, alpha, beta in activation_parameters(names, alphas, betas)
    ]


def count_parameters(names: tuple[str, ...]) -> tuple[int, int]:
    """Counts the alphas and betas of these activations; unknown activations have none."""
    alphas, betas = ([_ACTIVATIONS.get(name.lower(), (None, None, None))[i] for name in names] for i in (1, 2))
    return len(names) - alphas.count(None), len(names) - betas.count(None)


def clip_gates(x: np.ndarray, clip: float) -> np.ndarray:
    """Clips the operand of a gate's activation to ±clip, unless clip is 0."""
    return np.clip(x, -clip, clip) if clip else x


def check_layer(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    b: TensorType,
    states: tuple[TensorType, ...],
    gates: int,
    *,
    hidden: int,
    direction: str,
    activations: tuple[str, ...],
    functions: int,
    clip: float,
) -> tuple[TensorType, TensorType]:
    """Returns the types of y and of a final state; ValueError for an operand that does not fit."""
    expect(direction in DIRECTIONS, f"needs direction forward, reverse or bidirectional, got {direction!r}")
    expect(clip >= 0, f"needs a clip of zero (none) and more, got {clip}")
    n = DIRECTIONS[direction]
    unknown = [a for a in activations if a.lower() not in _ACTIVATIONS]
    expect(not unknown, f"does not know the activations {unknown}")
    expect(len(activations) in (0, n * functions), f"needs {n * functions} activations, got {len(activations)}")
    expect(
        x.dtype.is_float and all(t.dtype is x.dtype for t in (w, r, b, *states)),
        "needs operands of one floating-point type",
    )
    expect(x.rank == 3, "needs an input of rank 3: time, batch, input")
    time, batch = x.shape[:2]
    state = x.with_shape((n, batch, hidden))
    for name, type, want in (
        ("w", w, (n, gates * hidden, x.shape[2])),
        ("r", r, (n, gates * hidden, hidden)),
        ("b", b, (n, 2 * gates * hidden)),
    ):
        expect_equal(type.shape, want, f"needs {name} of shape {list(want)}")
    for s in states:
        expect_equal(s.shape, state.shape, f"needs initial states of shape {list(state.shape)}")
    return x.with_shape((time, n, batch, hidden)), state


def run_steps(
    x: np.ndarray, states: tuple[np.ndarray, ...], step: Callable, prepare: Callable, direction: str
) -> tuple[np.ndarray, ...]:
    """Returns y [time, direction, batch, hidden] and the final states of a loop over time in each direction.

    `step(x_t, states, prepared)` returns the new states, the hidden one first; `prepare(d)` returns the weights of
    direction d for `step`.
    """
    n = DIRECTIONS[direction]
    y = np.empty((x.shape[0], n, *states[0].shape[1:]), x.dtype)
    finals = []
    for d in range(n):
        now, prepared = tuple(s[d] for s in states), prepare(d)
        times = range(x.shape[0])
        for t in reversed(times) if direction == "reverse" or d == 1 else times:
            now = step(x[t], now, prepared)
            y[t, d] = now[0]
        finals.append(now)
    return y, *(np.stack(f) for f in zip(*finals))


def round_rows(h: np.ndarray) -> np.ndarray:
    """Rounds each row of states [batch, unit] by DynamicQuantizeLinear and back: 255 steps from its least to its
    largest, zero among them, half a step to the even one.

    ONNX Runtime rounds the rows of a thread together: a row's result then depends on the threads and on other rows."""
    low, high = h.min(1, keepdims=True, initial=0), h.max(1, keepdims=True, initial=0)
    scale = np.where(high > low, high - low, 1) / 255
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return np.clip(np.rint(h / scale), -zero, 255 - zero) * scale


def lstm_cell(
    gates: np.ndarray,
    c: np.ndarray,
    peepholes: list[np.ndarray],
    functions: list[Callable],
    clip: float,
    input_forget: bool,
) -> tuple[np.ndarray, ...]:
    """Returns the new states from the sums of gates i, o, f, c. As in ONNX Runtime, clip spares the cell state."""
    (i, o, forget, new), (peep_i, peep_o, peep_f), (f, g, k) = np.split(gates, 4, axis=-1), peepholes, functions
    i = f(clip_gates(i + peep_i * c, clip))
    forget = 1 - i if input_forget else f(clip_gates(forget + peep_f * c, clip))
    c = forget * c + i * g(clip_gates(new, clip))
    return f(clip_gates(o + peep_o * c, clip)) * k(c), c


def gru_cell(
    given: np.ndarray,
    h: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray,
    functions: list[Callable],
    clip: float,
    linear_before_reset: bool,
) -> tuple[np.ndarray]:
    """Returns the new state from the input's part of gates z, r, n, the recurrent weights and their biases."""
    hidden, (f, g) = h.shape[-1], functions
    z, reset = np.split(
        f(clip_gates(given[:, : 2 * hidden] + h @ r[: 2 * hidden].T + bias[: 2 * hidden], clip)), 2, axis=-1
    )
    r_new, bias_new = r[2 * hidden :].T, bias[2 * hidden :]
    recurrent = reset * (h @ r_new + bias_new) if linear_before_reset else (reset * h) @ r_new + bias_new
    return ((1 - z) * g(clip_gates(given[:, 2 * hidden :] + recurrent, clip)) + z * h,)


def layer_flops(x: TensorType, r: TensorType) -> int:
    """Counts two matrix products per time step: of the input and of the state with the weights of all gates."""
    return 2 * x.shape[0] * x.shape[1] * r.shape[0] * r.shape[1] * (x.shape[2] + r.shape[2])


def check_steps(
    gates: TensorType, r: TensorType, states: tuple[TensorType, ...], count: int, direction: str, clip: float
) -> tuple[TensorType, TensorType]:
    """Returns the types of y and of a final state of the steps alone; ValueError for an operand that does not fit."""
    expect(direction in DIRECTIONS, f"needs direction forward, reverse or bidirectional, got {direction!r}")
    expect(clip >= 0, f"needs a clip of zero (none) and more, got {clip}")
    expect(
        gates.dtype.is_float and all(t.dtype is gates.dtype for t in (r, *states)),
        "needs operands of one floating-point type",
    )
    expect(
        gates.rank == 3 and r.rank == 3,
        "needs gates of time, batch, gate and recurrent weights of direction, gate, unit",
    )
    n, hidden = DIRECTIONS[direction], r.shape[2]
    expect(r.shape == (n, count * hidden, hidden), f"needs r of shape {[n, count * hidden, hidden]}")
    expect(gates.shape[2] == n * count * hidden, f"needs {n * count * hidden} gates")
    state = gates.with_shape((n, gates.shape[1], hidden))
    for s in states:
        expect_equal(s.shape, state.shape, f"needs initial states of shape {list(state.shape)}")
    return gates.with_shape((gates.shape[0], *state.shape)), state


def steps_flops(gates: TensorType, r: TensorType) -> int:
    """Counts one matrix product per time step: of the state with the weights of all gates."""
    return 2 * gates.shape[0] * gates.shape[1] * r.size
