"""Recurrent layers over sequences, whose states are variables."""

from __future__ import annotations

from functools import partial

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor

from ..held import Held
from ..node import Given, TFLiteReading, reads
from .images import bias_of

LONGEST = 1 << 10  # steps, all of which are unrolled
STEP = np.float32(2**-12)  # of gates' sums in quantized layers
STATES = (18, 19)  # inputs: the hidden state, and the cells


@reads("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(n: TFLiteReading) -> Given:
    """Computes an LSTM over [batch, time, inputs] (or time first) with weights of gates input, forget, cell and output.

    Peepholes, projections, normalizations of gates and coupled gates are refused.
    """
    net, x = n.net, n.input(0)
    absent = {"peepholes": range(9, 12), "a projection": range(16, 18), "normalized gates": range(20, 24)}
    for what, inputs in absent.items():
        if any(n.has(i) for i in inputs):
            raise n.refuse(f"has {what}, which is not supported")
    if not all(n.has(i) for i in (*range(1, 9), *range(12, 16))):
        raise n.refuse("lacks the weights of a gate (coupled gates), which is not supported")
    if n.option("activation") != 4:
        raise n.refuse("needs tanh as its activation")
    time_major = bool(n.option("time_major"))
    x = x if time_major else net.transpose(x, (1, 0, 2))
    order = (0, 3, 1, 2)  # ONNX's gates are input, output, forget, cell
    w, r = (net.concat([n.input(begin + i) for i in order], axis=0) for begin in (1, 5))
    b = net.concat([bias_of(n, 12 + i, 1 + i, 0, n.given(12 + i).shape[0]) for i in order], axis=0)
    states = [n.given(i) for i in STATES]
    plain = not n.option("cell_clip") and not any(s.is_quantized for s in states)
    y, after = (_layer if plain else _written_out)(n, x, (w, r, b), states)
    for state, last in zip(states, after):
        n.scope.assign_variable(state.variable, last)
    return y if time_major else net.transpose(y, (1, 0, 2))


Weights = tuple[NetworkTensor, NetworkTensor, NetworkTensor]  # of the input, of the hidden state, biases
Result = tuple[NetworkTensor, list[Held]]  # the hidden states of all steps [time, batch, hidden], and the last states


def _layer(n: TFLiteReading, x: NetworkTensor, weights: Weights, states: list[Held]) -> Result:
    net, (w, r, b) = n.net, (n.net.unsqueeze(t, 0) for t in weights)
    h, c = (net.unsqueeze(s.real(), 0) for s in states)
    y, *last = net.lstm(x, w, r, net.concat([b, np.zeros(b.shape, np.float32)], axis=1), h, c)
    return net.squeeze(y, 1), [n.finished(net.squeeze(t, 0), s.spec) for t, s in zip(last, states)]


def _written_out(n: TFLiteReading, x: NetworkTensor, weights: Weights, states: list[Held]) -> Result:
    """Unrolls all steps, since cells are clipped between them, or states rounded to integers."""
    net, clip, steps, (w, r, b) = n.net, n.option("cell_clip"), x.shape[0], weights
    if not is_known(steps) or steps > LONGEST:
        raise n.refuse(
            f"needs a fixed number of steps, up to {LONGEST}, as it has clipped cells or quantized states, got"
            f" {steps}; set it with shapes="
        )
    h, c = states
    as_held = partial(_in_steps, net) if h.is_quantized else lambda gates: gates
    projections, outputs = as_held(net.linear(x, w, b)), []
    for t in range(int(steps)):
        i, o, forget, new = net.split(as_held(net.add(projections[t], net.linear(h.real(), r))), 4, 1)
        cells = net.add(net.mul(net.sigmoid(forget), c.real()), net.mul(net.sigmoid(i), net.tanh(new)))
        c = n.finished(net.clip(cells, -clip, clip) if clip else cells, c.spec)
        h = n.finished(net.mul(net.sigmoid(o), net.tanh(c.real())), h.spec)
        outputs.append(net.unsqueeze(h.real(), 0))
    return net.concat(outputs, 0), [h, c]


def _in_steps(net: Network, gates: NetworkTensor) -> NetworkTensor:
    """Rounds gates' sums as quantized layers do after each product: to steps of 1/4096 below 8 in magnitude."""
    return net.dequantize(net.quantize(gates, STEP, to=DType.I16), STEP)
