"""Recurrent layers over sequences [time, batch, …]. A second bottom cuts them: a sequence begins where it is 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.network.tensor import NetworkTensor

LONGEST = 1 << 10  # steps, all of which are unrolled
States = tuple[NetworkTensor, ...]


@reads("RNN")
def rnn(n: LayerReading) -> Sequence[NetworkTensor]:
    """Computes h = tanh(W·x + b + U·h′), o = tanh(V·h + c)."""
    p = n.param("recurrent_param")
    size = p.num_output
    x = _projected(n, size, 1)
    recurrent = n.filled((size, size), p, "weight_filler")
    weight, bias = n.filled((size, size), p, "weight_filler"), n.filled((size,), p, "bias_filler", 0)

    def step(x: NetworkTensor, going: NetworkTensor, states: States) -> tuple[NetworkTensor, States]:
        h = n.net.tanh(x + n.net.linear(states[0] * going, recurrent))
        return n.net.tanh(n.net.linear(h, weight, bias)), (h,)

    return _unrolled(n, x, step, 1)


@reads("LSTM")
def lstm(n: LayerReading) -> Sequence[NetworkTensor]:
    """Computes i, f, o, g = W·x + b + U·h′, c = σ(f)·c′ + σ(i)·tanh(g), h = σ(o)·tanh(c)."""
    p = n.param("recurrent_param")
    size = p.num_output
    x = _projected(n, 4 * size, 2)
    recurrent = n.filled((4 * size, size), p, "weight_filler")

    def step(x: NetworkTensor, going: NetworkTensor, states: States) -> tuple[NetworkTensor, States]:
        gates = x + n.net.linear(states[0] * going, recurrent)
        i, f, o, g = n.net.split(gates, 4, 1)
        c = going * n.net.sigmoid(f) * states[1] + n.net.sigmoid(i) * n.net.tanh(g)
        h = n.net.sigmoid(o) * n.net.tanh(c)
        return h, (h, c)

    return _unrolled(n, x, step, 2)


def _projected(n: LayerReading, outputs: int, states: int) -> NetworkTensor:
    """Computes W·x + b of all steps at once: [time, batch, outputs]."""
    p, x = n.param("recurrent_param"), n.input()
    if p.num_output < 1 or x.rank < 2:
        raise n.refuse(f"needs num_output, and sequences [time, batch, …], got {x!r}")
    expected = 2 + (states if p.expose_hidden else 0)
    if len(n.bottoms) != expected:  # a further one is an input of all steps
        raise n.refuse(f"needs sequences, where they go on, and its states, {expected} bottoms, got {len(n.bottoms)}")
    features = n.number(math.prod(x.shape[2:]), "the number of features")
    weight = n.filled((outputs, features), p, "weight_filler")
    bias = n.filled((outputs,), p, "bias_filler", 0)
    return n.net.linear(n.net.reshape(x, (*x.shape[:2], features)), weight, bias)


def _unrolled(
    n: LayerReading,
    x: NetworkTensor,
    step: Callable[[NetworkTensor, NetworkTensor, States], tuple[NetworkTensor, States]],
    count: int,
) -> Sequence[NetworkTensor]:
    """Unrolls all steps: returns their outputs [time, batch, num_output], and the last states."""
    p, going = n.param("recurrent_param"), n.input(1)
    steps, batch, size = n.number(x.shape[0], "the number of steps"), x.shape[1], p.num_output
    if steps > LONGEST or going.shape != x.shape[:2]:
        raise n.refuse(f"needs at most {LONGEST} steps, and where sequences go on [time, batch], got {x!r}, {going!r}")
    if p.expose_hidden:
        states: States = tuple(n.net.reshape(n.input(2 + i), (batch, size)) for i in range(count))
    else:
        zero = n.net.expand(np.zeros((), x.dtype.numpy), (batch, size))
        states = (zero,) * count
    outputs = []
    for t in range(steps):
        out, states = step(x[t], n.net.unsqueeze(going[t], 1), states)
        outputs.append(n.net.unsqueeze(out, 0))
    whole = n.net.concat(outputs, 0, name=n.name) if steps > 1 else outputs[0]
    return [whole, *(n.net.unsqueeze(s, 0) for s in states)] if p.expose_hidden else [whole]
