"""Recurrent networks: LSTM, GRU and the plain RNN, as ONNX defines them, for sequences of one length.

x is [time, batch, input]; w, r and b hold the gates one behind the other, per direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import TensorType

from .linear import matmul
from .math import add
from .op import TermLike, expect, expect_equal, structured
from .shape import along, concat, reshape, transpose

_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

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


def _functions(names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]) -> list[Callable]:
    """The activations in order, each taking the next alpha and beta where it has one."""
    next_alpha, next_beta, found = iter(alphas), iter(betas), []
    for name in names:
        fn, alpha, beta = _ACTIVATIONS[name.lower()]
        alpha = None if alpha is None else next(next_alpha, alpha)
        beta = None if beta is None else next(next_beta, beta)
        found.append(lambda x, fn=fn, a=alpha, b=beta: fn(x, a, b))
    return found


def taken(names: tuple[str, ...]) -> tuple[int, int]:
    """How many alphas and betas the activations take, from lists that all of them share; none those that there are
    not."""
    alphas, betas = ([_ACTIVATIONS.get(name.lower(), (None, None, None))[i] for name in names] for i in (1, 2))
    return len(names) - alphas.count(None), len(names) - betas.count(None)


def _limited(x: np.ndarray, clip: float) -> np.ndarray:
    """What a gate's activation reads: limited to ±clip, where there is one."""
    return np.clip(x, -clip, clip) if clip else x


def _check(
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
    """The types of y and of a final state; ValueError where an operand does not fit."""
    expect(direction in _DIRECTIONS, f"needs direction forward, reverse or bidirectional, got {direction!r}")
    expect(clip >= 0, f"needs a clip of zero (none) and more, got {clip}")
    n = _DIRECTIONS[direction]
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


def _run(
    x: np.ndarray, states: tuple[np.ndarray, ...], step: Callable, prepare: Callable, direction: str
) -> tuple[np.ndarray, ...]:
    """Steps through time in each direction: `prepare(d)` gives what `step(x_t, states, prepared)` → new states (the
    hidden one first) reads."""
    n = _DIRECTIONS[direction]
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


def _lstm_cell(
    gates: np.ndarray,
    c: np.ndarray,
    peepholes: list[np.ndarray],
    functions: list[Callable],
    clip: float,
    input_forget: bool,
) -> tuple[np.ndarray, ...]:
    """The new states from the sums of the gates i, o, f, c; the cell itself is not limited, as in ONNX Runtime."""
    (i, o, forget, new), (peep_i, peep_o, peep_f), (f, g, k) = np.split(gates, 4, axis=-1), peepholes, functions
    i = f(_limited(i + peep_i * c, clip))
    forget = 1 - i if input_forget else f(_limited(forget + peep_f * c, clip))
    c = forget * c + i * g(_limited(new, clip))
    return f(_limited(o + peep_o * c, clip)) * k(c), c


def _gru_cell(
    given: np.ndarray,
    h: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray,
    functions: list[Callable],
    clip: float,
    linear_before_reset: bool,
) -> tuple[np.ndarray]:
    """The new state from the input's part of the gates z, r, n, the recurrent weights and biases."""
    hidden, (f, g) = h.shape[-1], functions
    z, reset = np.split(
        f(_limited(given[:, : 2 * hidden] + h @ r[: 2 * hidden].T + bias[: 2 * hidden], clip)), 2, axis=-1
    )
    r_new, bias_new = r[2 * hidden :].T, bias[2 * hidden :]
    recurrent = reset * (h @ r_new + bias_new) if linear_before_reset else (reset * h) @ r_new + bias_new
    return ((1 - z) * g(_limited(given[:, 2 * hidden :] + recurrent, clip)) + z * h,)


def _flops(x: TensorType, r: TensorType) -> int:
    """Two products per time step: the input's and the state's with all gates."""
    return 2 * x.shape[0] * x.shape[1] * r.shape[0] * r.shape[1] * (x.shape[2] + r.shape[2])


def _check_steps(
    gates: TensorType, r: TensorType, states: tuple[TensorType, ...], count: int, direction: str, clip: float
) -> tuple[TensorType, TensorType]:
    """The types of y and of a final state of the steps alone; ValueError where an operand does not fit."""
    expect(direction in _DIRECTIONS, f"needs direction forward, reverse or bidirectional, got {direction!r}")
    expect(clip >= 0, f"needs a clip of zero (none) and more, got {clip}")
    expect(
        gates.dtype.is_float and all(t.dtype is gates.dtype for t in (r, *states)),
        "needs operands of one floating-point type",
    )
    expect(
        gates.rank == 3 and r.rank == 3,
        "needs gates of time, batch, gate and recurrent weights of direction, gate, unit",
    )
    n, hidden = _DIRECTIONS[direction], r.shape[2]
    expect(r.shape == (n, count * hidden, hidden), f"needs r of shape {[n, count * hidden, hidden]}")
    expect(gates.shape[2] == n * count * hidden, f"needs {n * count * hidden} gates")
    state = gates.with_shape((n, gates.shape[1], hidden))
    for s in states:
        expect_equal(s.shape, state.shape, f"needs initial states of shape {list(state.shape)}")
    return gates.with_shape((gates.shape[0], *state.shape)), state


def _flops_steps(gates: TensorType, r: TensorType) -> int:
    return 2 * gates.shape[0] * gates.shape[1] * r.size


# --- expansions: the input's products of all time steps as one, then the steps that wait for each other


def _given(x: Value, w: Value, bias: TermLike) -> TermLike:
    """The gates of all time steps and directions without what the state adds to them: [time, batch, direction · gate ·
    unit]."""
    (time, batch, inputs), (directions, width, _) = x.type.shape, w.type.shape
    weights = transpose(reshape(w, shape=(directions * width, inputs)), perm=(1, 0))
    sums = matmul(reshape(x, shape=(time * batch, inputs)), weights)
    return reshape(add(sums, reshape(bias, shape=(directions * width,))), shape=(time, batch, directions * width))


def _biases(b: Value, gates: int) -> tuple[TermLike, TermLike]:
    """The input's biases and the state's, each [direction, gate, unit]."""
    directions, width = b.type.shape
    each = reshape(b, shape=(directions, 2, gates, width // (2 * gates)))
    own, recurrent = (
        reshape(along(each, 1, i, i + 1), shape=(directions, gates, width // (2 * gates))) for i in (0, 1)
    )
    return own, recurrent


def _usual(names: tuple[str, ...], *usual: str) -> bool:
    """Whether activations, if any are named, are those of the steps, in each direction."""
    return not names or all(name.lower() == usual[i % len(usual)] for i, name in enumerate(names))


_ALL = {"hidden": 5}
_ACTIVE = dict(
    activations=("HardSigmoid", "ScaledTanh", "Softsign"),
    activation_alpha=(0.3, 0.9),
    activation_beta=(0.4, 0.7),
    clip=0.5,
)


@structured(
    "LSTM",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        (
            "f32[7, 2, 3]",
            "f32[1, 20, 3]",
            "f32[1, 20, 5]",
            "f32[1, 40]",
            "f32[1, 2, 5]",
            "f32[1, 2, 5]",
            "f32[1, 15]",
            _ALL,
        ),
        (
            "f32[4, 3, 7]",
            "f32[2, 20, 7]",
            "f32[2, 20, 5]",
            "f32[2, 40]",
            "f32[2, 3, 5]",
            "f32[2, 3, 5]",
            "f32[2, 15]",
            dict(_ALL, direction="bidirectional"),
        ),
        (
            "f32[4, 1, 7]",
            "f32[1, 20, 7]",
            "f32[1, 20, 5]",
            "f32[1, 40]",
            "f32[1, 1, 5]",
            "f32[1, 1, 5]",
            "f32[1, 15]",
            dict(_ALL, direction="reverse", **_ACTIVE),
        ),
        (
            "f32[3, 2, 3]",
            "f32[1, 20, 3]",
            "f32[1, 20, 5]",
            "f32[1, 40]",
            "f32[1, 2, 5]",
            "f32[1, 2, 5]",
            "f32[1, 15]",
            dict(_ALL, input_forget=True),
        ),
    ),
)
class lstm:
    """i, o, f = f(X·Wᵀ + H·Rᵀ + b + P⊙C), C′ = f⊙C + i⊙g(X·Wcᵀ + H·Rcᵀ + bc), H′ = o⊙h(C′): gates i, o, f, c; peepholes
    i, o, f (o reads C′)."""

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
    ) -> tuple[TensorType, TensorType, TensorType]:
        y, state = _check(
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
            p.shape == (_DIRECTIONS[direction], 3 * hidden) and p.dtype is x.dtype,
            f"needs p of type {x.with_shape((_DIRECTIONS[direction], 3 * hidden))}",
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
    ):
        names = activations or ("Sigmoid", "Tanh", "Tanh") * _DIRECTIONS[direction]
        functions = _functions(names, activation_alpha, activation_beta)

        def step(x, states, prepared):
            (h, c), (w, r, b, peepholes, functions) = states, prepared
            return _lstm_cell(x @ w.T + h @ r.T + b, c, peepholes, functions, clip, input_forget)

        def prepare(d):
            return w[d], r[d], b[d, : 4 * hidden] + b[d, 4 * hidden :], np.split(p[d], 3), functions[3 * d : 3 * d + 3]

        return _run(x, (initial_h, initial_c), step, prepare, direction)

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
        **_,
    ) -> TermLike:
        if not _usual(activations, "sigmoid", "tanh", "tanh"):
            return None
        return lstm_steps(
            _given(x, w, add(*_biases(b, 4))),
            r,
            initial_h,
            initial_c,
            p,
            direction=direction,
            clip=clip,
            input_forget=input_forget,
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, initial_c, p, **attrs) -> int:
        return _flops(x, r)


@structured(
    "GRU",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        ("f32[7, 2, 3]", "f32[1, 15, 3]", "f32[1, 15, 5]", "f32[1, 30]", "f32[1, 2, 5]", _ALL),
        (
            "f32[4, 3, 7]",
            "f32[2, 15, 7]",
            "f32[2, 15, 5]",
            "f32[2, 30]",
            "f32[2, 3, 5]",
            dict(_ALL, direction="bidirectional", linear_before_reset=True),
        ),
        (
            "f32[4, 1, 7]",
            "f32[1, 15, 7]",
            "f32[1, 15, 5]",
            "f32[1, 30]",
            "f32[1, 1, 5]",
            dict(_ALL, direction="reverse", activations=("Sigmoid", "Relu"), clip=0.7),
        ),
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
        return _check(
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
        names = activations or ("Sigmoid", "Tanh") * _DIRECTIONS[direction]
        functions = _functions(names, activation_alpha, activation_beta)

        def step(x, states, prepared):
            (h,), (w, r, bias_w, bias_r, functions) = states, prepared
            return _gru_cell(x @ w.T + bias_w, h, r, bias_r, functions, clip, linear_before_reset)

        def prepare(d):
            return w[d], r[d], b[d, : 3 * hidden], b[d, 3 * hidden :], functions[2 * d : 2 * d + 2]

        return _run(x, (initial_h,), step, prepare, direction)

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
        """The reset gate multiplies the recurrent bias of n where the product comes first: it is not added
        beforehand."""
        if not _usual(activations, "sigmoid", "tanh"):
            return None
        own, recurrent = _biases(b, 3)
        later: TermLike = np.zeros((w.type.shape[0], hidden))
        if linear_before_reset:
            later = reshape(along(recurrent, 1, 2, 3), shape=later.shape)
            bias = concat(add(along(own, 1, 0, 2), along(recurrent, 1, 0, 2)), along(own, 1, 2, 3), axis=1)
        else:
            bias = add(own, recurrent)
        return gru_steps(
            _given(x, w, bias),
            r,
            later,
            initial_h,
            direction=direction,
            clip=clip,
            linear_before_reset=linear_before_reset,
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return _flops(x, r)


@structured(
    "RNN",
    recurrent=True,
    heavy=True,
    domain=(-1.0, 1.0),
    examples=(
        ("f32[7, 2, 3]", "f32[1, 5, 3]", "f32[1, 5, 5]", "f32[1, 10]", "f32[1, 2, 5]", _ALL),
        (
            "f32[4, 3, 7]",
            "f32[2, 5, 7]",
            "f32[2, 5, 5]",
            "f32[2, 10]",
            "f32[2, 3, 5]",
            dict(_ALL, direction="bidirectional", activations=("Relu", "Elu"), clip=0.9),
        ),
        (
            "f32[4, 3, 7]",
            "f32[2, 5, 7]",
            "f32[2, 5, 5]",
            "f32[2, 10]",
            "f32[2, 3, 5]",
            dict(_ALL, direction="bidirectional", activations=("ThresholdedRelu", "Softplus"), activation_alpha=(0.2,)),
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
        return _check(
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
        functions = _functions(activations or ("Tanh",) * _DIRECTIONS[direction], activation_alpha, activation_beta)

        def step(x, states, prepared):
            (h,), (w, r, b, f) = states, prepared
            return (f(_limited(x @ w.T + h @ r.T + b, clip)),)

        def prepare(d):
            return w[d], r[d], b[d, :hidden] + b[d, hidden:], functions[d]

        return _run(x, (initial_h,), step, prepare, direction)

    def expand(
        x: Value, w: Value, r: Value, b: Value, initial_h: Value, *, direction, activations, clip, **_
    ) -> TermLike:
        name = activations[0].capitalize() if activations else "Tanh"
        if name not in ("Tanh", "Relu") or not _usual(activations, name.lower()):
            return None
        return rnn_steps(
            _given(x, w, add(*_biases(b, 1))), r, initial_h, direction=direction, clip=clip, activation=name
        )

    def flops(x: TensorType, w: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return _flops(x, r)


# The recurrence alone: what is left of a layer when the input's products of all time steps are one matrix product
# before it.


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
    ),
)
class lstm_steps:
    """lstm, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · (i, o, f, c)]; sigmoid
    and tanh."""

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
    ) -> tuple[TensorType, TensorType, TensorType]:
        y, state = _check_steps(gates, r, (initial_h, initial_c), 4, direction, clip)
        want = gates.with_shape((state.shape[0], 3 * state.shape[2]))
        expect(p == want, f"needs p of type {want}")
        return y, state, state

    def reference(gates, r, initial_h, initial_c, p, *, direction="forward", clip=0.0, input_forget=False):
        functions, width = _functions(("Sigmoid", "Tanh", "Tanh"), (), ()), r.shape[1]

        def step(given, states, prepared):
            (h, c), (d, peepholes) = states, prepared
            return _lstm_cell(
                given[:, d * width : (d + 1) * width] + h @ r[d].T, c, peepholes, functions, clip, input_forget
            )

        return _run(gates, (initial_h, initial_c), step, lambda d: (d, np.split(p[d], 3)), direction)

    def flops(gates: TensorType, r: TensorType, initial_h, initial_c, p, **attrs) -> int:
        return _flops_steps(gates, r)


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
        y, state = _check_steps(gates, r, (initial_h,), 3, direction, clip)
        want = gates.with_shape((state.shape[0], state.shape[2]))
        expect(b == want, f"needs b of type {want}")
        return y, state

    def reference(gates, r, b, initial_h, *, direction="forward", clip=0.0, linear_before_reset=False):
        functions, (width, hidden) = _functions(("Sigmoid", "Tanh"), (), ()), r.shape[1:]

        def step(given, states, prepared):
            (h,), (d, bias) = states, prepared
            return _gru_cell(given[:, d * width : (d + 1) * width], h, r[d], bias, functions, clip, linear_before_reset)

        return _run(
            gates, (initial_h,), step, lambda d: (d, np.concatenate([np.zeros(2 * hidden, b.dtype), b[d]])), direction
        )

    def flops(gates: TensorType, r: TensorType, b, initial_h, **attrs) -> int:
        return _flops_steps(gates, r)


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
        return _check_steps(gates, r, (initial_h,), 1, direction, clip)

    def reference(gates, r, initial_h, *, direction="forward", clip=0.0, activation="Tanh"):
        (f,), width = _functions((activation,), (), ()), r.shape[1]

        def step(given, states, d):
            return (f(_limited(given[:, d * width : (d + 1) * width] + states[0] @ r[d].T, clip)),)

        return _run(gates, (initial_h,), step, lambda d: d, direction)

    def flops(gates: TensorType, r: TensorType, initial_h, **attrs) -> int:
        return _flops_steps(gates, r)
