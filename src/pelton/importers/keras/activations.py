"""The activation functions of Keras, by their names in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pelton.network import Network, NetworkTensor

from .config import LayerConfig, plain
from .held import HeldTensor
from .reading import READERS, KerasReading

Function = Callable[..., NetworkTensor]  # arguments: a network, a tensor, and options by name

SELU = dict(alpha=1.6732632423543772, gamma=1.0507009873554805)


def soft_shrink(net: Network, x: NetworkTensor, threshold: float = 0.5) -> NetworkTensor:
    return net.relu(x - threshold) - net.relu(-x - threshold)


def hard_shrink(net: Network, x: NetworkTensor, threshold: float = 0.5) -> NetworkTensor:
    return net.where(net.abs(x) > threshold, x, np.zeros((), x.dtype.numpy))


def sparse_plus(net: Network, x: NetworkTensor) -> NetworkTensor:
    bent = net.clip(x + 1.0, 0.0, 2.0)
    return bent * bent * 0.25 + net.relu(x - 1.0)


def squareplus(net: Network, x: NetworkTensor, b: float = 4.0) -> NetworkTensor:
    return (x + net.sqrt(x * x + float(b))) * 0.5


def elu(net: Network, x: NetworkTensor, alpha: float = 1.0) -> NetworkTensor:
    return net.elu(x, alpha=float(alpha))


def relu(
    net: Network,
    x: NetworkTensor,
    negative_slope: float = 0.0,
    max_value: float | None = None,
    threshold: float = 0.0,
) -> NetworkTensor:
    """Clips x at max_value; below the threshold, multiplies its distance to the threshold by the slope."""
    if threshold == 0 and negative_slope == 0:
        return net.relu(x) if max_value is None else net.clip(x, 0.0, max_value)
    if threshold == 0:
        y = net.leaky_relu(x, alpha=float(negative_slope))
    else:
        y = net.where(x >= threshold, x, (x - threshold) * negative_slope)
    return y if max_value is None else net.minimum(y, max_value)


def leaky_relu(net: Network, x: NetworkTensor, negative_slope: float = 0.2) -> NetworkTensor:
    return net.leaky_relu(x, alpha=float(negative_slope))


def gelu(net: Network, x: NetworkTensor, approximate: bool = False) -> NetworkTensor:
    return net.gelu_tanh(x) if approximate else net.gelu(x)


def hard_sigmoid(net: Network, x: NetworkTensor) -> NetworkTensor:
    return net.hard_sigmoid(x, alpha=1 / 6, beta=0.5)


def log_sigmoid(net: Network, x: NetworkTensor) -> NetworkTensor:
    return -net.softplus(-x)


ELEMENTWISE: dict[str, Function] = {
    "celu": lambda net, x, alpha=1.0: net.celu(x, alpha=float(alpha)),
    "elu": elu,
    "exponential": lambda net, x: net.exp(x),
    "gelu": gelu,
    "hard_shrink": hard_shrink,
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": lambda net, x: net.hard_swish(x),
    "hard_swish": lambda net, x: net.hard_swish(x),
    "hard_tanh": lambda net, x: net.clip(x, -1.0, 1.0),
    "leaky_relu": leaky_relu,
    "linear": lambda net, x: x,
    "log_sigmoid": log_sigmoid,
    "mish": lambda net, x: net.mish(x),
    "relu": relu,
    "relu6": lambda net, x: net.clip(x, 0.0, 6.0),
    "selu": lambda net, x: net.selu(x, **SELU),
    "sigmoid": lambda net, x: net.sigmoid(x),
    "silu": lambda net, x: net.swish(x),
    "soft_shrink": soft_shrink,
    "softplus": lambda net, x: net.softplus(x),
    "softsign": lambda net, x: net.softsign(x),
    "sparse_plus": sparse_plus,
    "sparse_sigmoid": lambda net, x: net.clip((x + 1.0) * 0.5, 0.0, 1.0),
    "squareplus": squareplus,
    "swish": lambda net, x: net.swish(x),
    "tanh": lambda net, x: net.tanh(x),
    "tanh_shrink": lambda net, x: x - net.tanh(x),
}
ALONG = {"softmax": "softmax", "log_softmax": "log_softmax"}  # along the last axis


def along(net: Network, x: HeldTensor, name: str, axis: int) -> HeldTensor:
    """Computes softmax or log_softmax along an axis, counted from the front."""
    return x.mapped(lambda t: getattr(net, name)(t, x.axis(axis)))


def activated(r: KerasReading, x: HeldTensor, option: str = "activation") -> HeldTensor:
    """Applies the activation function that an option names: a text, or a layer."""
    function = r.layer.option(option, "linear")
    if isinstance(function, dict):
        config, kind = function.get("config"), function.get("class_name")
        if kind == "function" and function.get("module") in ("builtins", None) and isinstance(config, str):
            function = config
        elif isinstance(config, dict) and isinstance(kind, str):
            return _layer(r, x, function)
    if function is None:
        return x
    if not isinstance(function, str) or function not in ELEMENTWISE and function not in ALONG:
        raise r.refuse(f"has the unknown activation {function!r:.60}")
    if function in ALONG:
        return along(r.net, x, function, x.rank - 1)
    if function == "hard_sigmoid" and r.layer.version == 2:
        return x.mapped(lambda t: r.net.hard_sigmoid(t, alpha=0.2, beta=0.5))
    return x.mapped(lambda t: ELEMENTWISE[function](r.net, t))


def _layer(r: KerasReading, x: HeldTensor, given: Any) -> HeldTensor:
    """Applies an activation that is a layer without variables."""
    layer = LayerConfig.of(plain(given), r.layer.version, f"layer {r.layer.name!r}")
    if not layer.is_own or layer.type not in ("ReLU", "LeakyReLU", "ELU", "Softmax", "Activation", "ThresholdedReLU"):
        raise r.refuse(f"has the unknown activation {layer.type}")
    inner = KerasReading(r.net, layer, r.scope, r.weights, [x], {})
    layer.check_policy()
    output = READERS[layer.type](inner)
    layer.check_rest()
    return output
