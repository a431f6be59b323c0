"""Activation layers, and layers without effect at inference."""

from __future__ import annotations

import numpy as np

from ..activations import activated, along, leaky_relu, relu
from ..held import HeldTensor
from ..reading import KerasReading, reads

PASSES = (
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianDropout", "GaussianNoise"),
    *("AlphaDropout", "ActivityRegularization", "Identity", "StochasticDepth"),
)


@reads(*PASSES)
def passed(r: KerasReading) -> HeldTensor:
    r.layer.ignore("rate", "noise_shape", "stddev", "l1", "l2", "data_format", "survival_probability")
    if r.layer.type == "StochasticDepth":
        r.layer.ignore("drop_path_rate")
    return r.input()


@reads("Activation")
def activation(r: KerasReading) -> HeldTensor:
    return activated(r, r.input())


@reads("ReLU")
def relu_layer(r: KerasReading) -> HeldTensor:
    highest = None if r.layer.option("max_value", None) is None else r.layer.number("max_value")
    slope, threshold = (r.layer.number(name, 0.0) for name in ("negative_slope", "threshold"))
    return r.input().mapped(lambda t: relu(r.net, t, slope, highest, threshold))


@reads("LeakyReLU")
def leaky(r: KerasReading) -> HeldTensor:
    name = "negative_slope" if "negative_slope" in r.layer.options else "alpha"
    slope = r.layer.number(name, 0.3)
    return r.input().mapped(lambda t: leaky_relu(r.net, t, slope))


@reads("ELU")
def elu(r: KerasReading) -> HeldTensor:
    alpha = r.layer.number("alpha", 1.0)
    return r.input().mapped(lambda t: r.net.elu(t, alpha=alpha))


@reads("ThresholdedReLU")
def thresholded(r: KerasReading) -> HeldTensor:
    theta = r.layer.number("theta", 1.0)
    return r.input().mapped(lambda t: r.net.thresholded_relu(t, alpha=theta))


@reads("PReLU", variables=("alpha",))
def prelu(r: KerasReading) -> HeldTensor:
    x = r.floats()
    shared = r.layer.option("shared_axes", None) or []
    axes = {r.axis(axis, x.rank) for axis in shared}
    slope = r.variable("alpha", *(1 if a in axes else r.number(x.shape[a], "its sizes") for a in range(1, x.rank)))
    order = [a - 1 for a in (_order(x) if x.is_first else range(x.rank)) if a]
    return x.mapped(lambda t: r.net.prelu(t, np.ascontiguousarray(slope.transpose(order))))


def _order(x: HeldTensor) -> tuple[int, ...]:
    return (0, x.rank - 1, *range(1, x.rank - 1))


@reads("Softmax", masks=True)
def softmax(r: KerasReading) -> HeldTensor:
    x = r.floats()
    return along(r.net, x, "softmax", r.axis(r.layer.option("axis", -1), x.rank))
