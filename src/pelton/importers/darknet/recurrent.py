"""Recurrent layers of Darknet. Steps of sequences are along the batch, slowest; states begin with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.network import Network, NetworkTensor
from pelton.network.tensor import Operand

from .reading import Parameters, SectionReading, channels, normalized, reads, units


@reads("lstm")
def lstm(r: SectionReading) -> NetworkTensor:
    """Reads gates i, o, f, g; the file's order depends on the Darknet that wrote it."""
    hidden, x = r.section.integer("output", 1, 1), r.flat()
    order = "figo" if r.weights.forked else "ifog"
    recurrent = {gate: r.take_matrix(hidden, hidden).folded() for gate in order}
    own = {gate: r.take_matrix(hidden, units(x)).folded() for gate in order}
    w, state, b = _gates([own[gate] for gate in "iofg"], [recurrent[gate] for gate in "iofg"])
    zeros, no_peepholes = _zeros(r, 1, r.batch[1], hidden), np.zeros((1, 3 * hidden), np.float32)
    y, *_ = r.net.lstm(_steps(r, x), w, state, b, zeros, zeros, no_peepholes, hidden=hidden)
    return r.net.reshape(y, (x.shape[0], hidden))


@reads("gru")
def gru(r: SectionReading) -> NetworkTensor:
    """Reads gates z, r, h. The candidate h is a logistic function unless `tanh` is on."""
    hidden, x = r.section.integer("output", 1, 1), r.flat()
    first, second = (hidden, units(x)) if not r.weights.forked else (units(x), hidden)
    matrices = [r.take_matrix(hidden, n).folded() for n in (first,) * 3 + (second,) * 3]
    recurrent, own = (matrices[:3], matrices[3:]) if not r.weights.forked else (matrices[3:], matrices[:3])
    w, state, b = _gates(own, recurrent)
    candidate = "Tanh" if r.section.flag("tanh") else "Sigmoid"
    y, _ = r.net.gru(
        _steps(r, x),
        w,
        state,
        b,
        _zeros(r, 1, r.batch[1], hidden),
        hidden=hidden,
        activations=("Sigmoid", candidate),
    )
    return r.net.reshape(y, (x.shape[0], hidden))


def _gates(own: Sequence[tuple[np.ndarray, np.ndarray]], recurrent: Sequence[tuple[np.ndarray, np.ndarray]]):
    """Returns the weights of the input and of the state, and both biases, with gates concatenated, of one direction."""
    w, state = (np.concatenate([weights for weights, _ in each])[None] for each in (own, recurrent))
    return w, state, np.concatenate([bias for _, bias in (*own, *recurrent)])[None]


def _steps(r: SectionReading, x: NetworkTensor) -> NetworkTensor:
    return r.net.reshape(x, (*r.batch, *x.shape[1:]))


def _zeros(r: SectionReading, *shape) -> NetworkTensor:
    return r.net.expand(np.float32(0), shape=shape)


@reads("rnn")
def rnn(r: SectionReading) -> NetworkTensor:
    """Computes H′ = f(x) + g(H), plus H with `shortcut`; returns h(H′)."""
    s, x = r.section, r.flat()
    s.refuse_options("logistic")
    outputs = s.integer("output", 1, 1)
    hidden = s.integer("hidden", outputs, 1)
    f, g, h = (r.take_matrix(n, m) for n, m in ((hidden, units(x)), (hidden, hidden), (outputs, hidden)))

    def apply(net: Network, x: NetworkTensor, p: Parameters) -> NetworkTensor:
        return normalized(net, net.linear(x, p.weights, None if p.norm else p.bias), p)

    return _simple(r, x, (f, g, h), apply, (hidden,), (outputs,))


@reads("crnn")
def crnn(r: SectionReading) -> NetworkTensor:
    """Reads an `rnn` whose products are convolutions, of 3 × 3 unless AlexeyAB's `size` is set."""
    s, x = r.section, r.image()
    s.refuse_options("xnor")
    for name in ("stride", "dilation", "groups"):
        if s.integer(name, 1) != 1:
            raise s.refuse(f"{name} must be 1, got {s.text(name)}", name)
    size = s.integer("size", 3, 1)
    padding = size // 2 if s.integer("pad", 1) else s.integer("padding", 0)
    if size != 2 * padding + 1:
        raise s.refuse(f"padding must keep the size of images, got {padding} for windows of {size}", "size")
    hidden, outputs = (s.integer(name + "_filters", s.integer(name, 1, 1), 1) for name in ("hidden", "output"))
    f, g, h = (r.take_filters(n, m, size) for n, m in ((hidden, channels(x)), (hidden, hidden), (outputs, hidden)))

    def apply(net: Network, x: NetworkTensor, p: Parameters) -> NetworkTensor:
        return normalized(net, net.convolution(x, p.weights, None if p.norm else p.bias, padding=padding), p)

    return _simple(r, x, (f, g, h), apply, (hidden, *x.shape[2:]), (outputs, *x.shape[2:]))


def _simple(r: SectionReading, x: NetworkTensor, parameters, apply, hidden: tuple, outputs: tuple) -> NetworkTensor:
    """Combines three linear layers to a recurrent one; only that of the state is computed step by step."""
    net, activation, (f, g, h) = r.net, r.activation("logistic"), parameters
    keeps = r.section.flag("shortcut")

    def step(inner: Network, state: NetworkTensor, own: Operand) -> tuple[NetworkTensor, NetworkTensor]:
        new = activation(inner, apply(inner, state, g)) + own
        new = new + state if keeps else new
        return new, new

    own = _steps(r, activation(net, apply(net, x, f)))
    _, states = net.scan(step, [_zeros(r, r.batch[1], *hidden)], [own])
    states = net.reshape(states, (x.shape[0], *hidden))
    return net.reshape(activation(net, apply(net, states, h)), (x.shape[0], *outputs))
