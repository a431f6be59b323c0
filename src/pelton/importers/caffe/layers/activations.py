"""Elementwise functions."""

from __future__ import annotations

import math

import numpy as np

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.network.tensor import NetworkTensor


@reads("ReLU")
def relu(n: LayerReading) -> NetworkTensor:
    slope = n.param("relu_param").negative_slope
    return n.net.leaky_relu(n.input(), alpha=slope, name=n.name) if slope else n.net.relu(n.input(), name=n.name)


@reads("ReLU6")
def relu6(n: LayerReading) -> NetworkTensor:
    return n.net.clip(n.input(), 0.0, n.param("relu6_param").threshold, name=n.name)


@reads("Clip")
def clip(n: LayerReading) -> NetworkTensor:
    p = n.param("clip_param")
    if not (p.HasField("min") and p.HasField("max")):
        raise n.refuse("needs clip_param with min and max")
    return n.net.clip(n.input(), p.min, p.max, name=n.name)


@reads("PReLU")
def prelu(n: LayerReading) -> NetworkTensor:
    p, x = n.param("prelu_param"), n.input()
    if x.rank < 2:
        raise n.refuse(f"needs channels along axis 1, got {x!r}")
    channels = n.number(x.shape[1], "the number of channels")
    slope = n.filled(() if p.channel_shared else (channels,), p, "filler", 0.25)
    return n.net.prelu(x, slope if p.channel_shared else slope.reshape(-1, *[1] * (x.rank - 2)), name=n.name)


@reads("ELU")
def elu(n: LayerReading) -> NetworkTensor:
    return n.net.elu(n.input(), alpha=n.param("elu_param").alpha, name=n.name)


@reads("Swish")
def swish(n: LayerReading) -> NetworkTensor:
    return n.net.swish(n.input(), alpha=n.param("swish_param").beta, name=n.name)


@reads("Sigmoid")
def sigmoid(n: LayerReading) -> NetworkTensor:
    return n.net.sigmoid(n.input(), name=n.name)


@reads("TanH")
def tanh(n: LayerReading) -> NetworkTensor:
    return n.net.tanh(n.input(), name=n.name)


@reads("AbsVal")
def absolute(n: LayerReading) -> NetworkTensor:
    return n.net.abs(n.input(), name=n.name)


@reads("BNLL")
def binomial_log_likelihood(n: LayerReading) -> NetworkTensor:
    return n.net.softplus(n.input(), name=n.name)


@reads("Threshold")
def threshold(n: LayerReading) -> NetworkTensor:
    above = n.input() > n.param("threshold_param").threshold
    return n.net.where(above, np.float32(1), np.float32(0), name=n.name)


@reads("Power")
def power(n: LayerReading) -> NetworkTensor:
    """Computes (shift + scale · x)^power."""
    p = n.param("power_param")
    if p.power == 1:
        return _scaled(n, p.scale, p.shift, n.name)
    return n.net.pow(_scaled(n, p.scale, p.shift), p.power, name=n.name)


@reads("Exp")
def exponential(n: LayerReading) -> NetworkTensor:
    """Computes base^(shift + scale · x), with e for a base of −1."""
    p = n.param("exp_param")
    factor = _logarithm(n, p.base)
    return n.net.exp(_scaled(n, p.scale * factor, p.shift * factor), name=n.name)


@reads("Log")
def logarithm(n: LayerReading) -> NetworkTensor:
    """Computes log_base(shift + scale · x)."""
    p = n.param("log_param")
    factor, x = _logarithm(n, p.base), _scaled(n, p.scale, p.shift)
    return n.net.log(x, name=n.name) if factor == 1 else n.net.mul(n.net.log(x), 1 / factor, name=n.name)


def _logarithm(n: LayerReading, base: float) -> float:
    if base == -1:
        return 1.0
    if base <= 0 or base == 1:
        raise n.refuse(f"needs a base above 0 and other than 1, or -1 for e, got {base}")
    return math.log(base)


def _scaled(n: LayerReading, scale: float, shift: float, name: str = "") -> NetworkTensor:
    if shift == 0:
        return n.input() if scale == 1 else n.net.mul(n.input(), scale, name=name)
    return n.net.add(n.input() if scale == 1 else n.input() * scale, shift, name=name)
