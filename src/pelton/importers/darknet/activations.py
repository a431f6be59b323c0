"""Darknet's activation functions, by their names in configurations."""

from __future__ import annotations

from collections.abc import Callable

from pelton.network import Network, NetworkTensor

Activation = Callable[[Network, NetworkTensor], NetworkTensor]

EPSILON = 1e-4  # added to sums over channels


def _stair(net: Network, x: NetworkTensor) -> NetworkTensor:
    """Computes stairs: level from even numbers to the next odd ones, then rising by one."""
    whole, half = net.floor(x), net.floor(x * 0.5)
    return half + (whole - half * 2.0) * (x - whole)


def _plse(net: Network, x: NetworkTensor) -> NetworkTensor:
    """Computes a line from (−4, 0) to (4, 1), nearly level outside."""
    return net.clip(x * 0.125 + 0.5, 0.0, 1.0) + (x - net.clip(x, -4.0, 4.0)) * 0.01


def _lhtan(net: Network, x: NetworkTensor) -> NetworkTensor:
    inside = net.clip(x, 0.0, 1.0)
    return inside + (x - inside) * 0.001


def _hard_mish(net: Network, x: NetworkTensor) -> NetworkTensor:
    bent = net.clip(x, -2.0, 0.0)
    return net.relu(x) + bent * (bent * 0.5 + 1.0)


def _share(net: Network, x: NetworkTensor) -> NetworkTensor:
    """Divides nonnegative elements by their sum over channels."""
    return x / (net.reduce_sum(x, axes=(1,), keepdims=True) + EPSILON)


def _share_of_largest(net: Network, x: NetworkTensor) -> NetworkTensor:
    return _share(net, net.exp(x - net.reduce_max(x, axes=(1,), keepdims=True)))


ACTIVATIONS: dict[str, Activation] = {
    "linear": lambda net, x: x,
    "logistic": lambda net, x: net.sigmoid(x),
    "loggy": lambda net, x: net.sigmoid(x) * 2.0 - 1.0,
    "relu": lambda net, x: net.relu(x),
    "relu6": lambda net, x: net.clip(x, 0.0, 6.0),
    "elu": lambda net, x: net.elu(x),
    "selu": lambda net, x: net.selu(x, alpha=1.6732, gamma=1.0507),
    "gelu": lambda net, x: net.gelu_tanh(x),
    "relie": lambda net, x: net.leaky_relu(x, alpha=0.01),
    "ramp": lambda net, x: net.relu(x) + x * 0.1,
    "leaky": lambda net, x: net.leaky_relu(x, alpha=0.1),
    "revleaky": lambda net, x: net.leaky_relu(x, alpha=0.1),
    "tanh": lambda net, x: net.tanh(x),
    "plse": _plse,
    "stair": _stair,
    "hardtan": lambda net, x: net.clip(x, -1.0, 1.0),
    "lhtan": _lhtan,
    "swish": lambda net, x: net.swish(x),
    "mish": lambda net, x: net.mish(x),
    "hard_mish": _hard_mish,
    "normalize_channels": lambda net, x: _share(net, net.relu(x)),
    "normalize_channels_softmax": lambda net, x: _share(net, net.exp(x)),
    "normalize_channels_softmax_maxval": _share_of_largest,
}
