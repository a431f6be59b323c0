"""The interface of Darknet's layers to their readers, and the registry of these readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pelton.errors import near
from pelton.ir.dims import is_known
from pelton.network import Network, NetworkTensor

from .activations import ACTIVATIONS
from .cfg import Section
from .weights import Weights

EPSILON = 1e-6  # added to variances, as Darknet does on CPUs; its GPU kernels add 1e-5
MAX_ELEMENTS = 1 << 31  # of a layer's output for one picture

LayerReader = Callable[["SectionReading"], NetworkTensor]  # returns a layer's output

READERS: dict[str, LayerReader] = {}  # by section name


def reads(*names: str) -> Callable[[LayerReader], LayerReader]:
    """Registers the reader of sections of these names."""

    def register(reader: LayerReader) -> LayerReader:
        READERS.update(dict.fromkeys(names, reader))
        return reader

    return register


@dataclass(frozen=True)
class Parameters:
    """The parameters of a linear layer: weights by output and input, a bias, and the normalization before the bias."""

    weights: np.ndarray
    bias: np.ndarray
    norm: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # scale, mean, variance

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Folds the normalization into weights and a bias."""
        if self.norm is None:
            return self.weights, self.bias
        scale, mean, variance = (a.astype(np.float64) for a in self.norm)
        factor = scale / np.sqrt(variance + EPSILON)
        weights = self.weights * factor.reshape(-1, *[1] * (self.weights.ndim - 1))
        return weights.astype(np.float32), (self.bias - mean * factor).astype(np.float32)


@dataclass
class SectionReading:
    """A section and the layers before it. x: output of the layer before, [batch, channels, height, width] or [batch,
    units]; made: outputs of all layers before; steps: the length of sequences, whose steps are along the batch,
    slowest."""

    net: Network
    section: Section
    weights: Weights
    picture: tuple[int, int]  # height and width of the network's input
    x: NetworkTensor
    made: list[NetworkTensor] = field(default_factory=list)
    parameters: dict[int, Parameters] = field(default_factory=dict)  # of convolutions, by layer, for sharing
    batch: tuple = ()  # steps and sequences, in networks with recurrent layers

    # --- tensors

    def image(self, x: NetworkTensor | None = None) -> NetworkTensor:
        """Returns x (by default the output of the layer before) as [batch, channels, height, width]."""
        x = self._numbers(self.x if x is None else x)
        return x if x.rank == 4 else self.net.reshape(x, (*x.shape, 1, 1))

    def flat(self) -> NetworkTensor:
        """Returns the output of the layer before as [batch, units]."""
        return self.x if self.x.rank == 2 else self.net.flatten(self._numbers(self.x))

    def _numbers(self, x: NetworkTensor) -> NetworkTensor:
        if x.rank == 3:
            raise self.section.refuse(f"it reads boxes, {list(x.shape[1:])}; put a [route] to another layer before it")
        return x

    def layer(self, index: float, option: str) -> NetworkTensor:
        """Returns the output of a layer before, by its number, or counted back from this one; ModelError for others."""
        number = int(index) + (self.section.index if index < 0 else 0)
        if index != int(index) or not 0 <= number < self.section.index:
            raise self.section.refuse(
                f"{option} must name layers before this one, 0 to {self.section.index - 1} or"
                f" {-self.section.index} to -1, got {index:g}",
                option,
            )
        return self.made[number]

    def source(self) -> NetworkTensor:
        """Returns the image of the one layer that the option `from` names."""
        if "from" not in self.section.options:
            raise self.section.refuse("it needs the option from=, the layer that it reads besides the one before")
        return self.image(self.layer(self.section.number("from", 0), "from"))

    def activated(self, x: NetworkTensor, default: str) -> NetworkTensor:
        """Applies the section's activation function."""
        return self.activation(default)(self.net, x)

    def activation(self, default: str) -> Callable[[Network, NetworkTensor], NetworkTensor]:
        name = self.section.text("activation", default)
        if name not in ACTIVATIONS:
            raise self.section.refuse(
                f"activation {name!r} is unknown{near(name, ACTIVATIONS)}; there are {', '.join(ACTIVATIONS)}",
                "activation",
            )
        return ACTIVATIONS[name]

    # --- weights

    def take_filters(self, outputs: int, inputs: int, size: int) -> Parameters:
        """Reads a convolution's parameters: the bias, the normalization, and weights [outputs, inputs, size, size]."""
        bias, norm = self._take("bias", outputs), self._take_norm(outputs)
        weights = self._take("weights", outputs, inputs, size, size)
        if self.section.flag("flipped"):
            weights = weights.reshape(-1, outputs).T.reshape(weights.shape)
        return Parameters(weights, bias, norm)

    def take_matrix(self, outputs: int, inputs: int) -> Parameters:
        """Reads a matrix product's parameters: the bias, weights [outputs, inputs], and the normalization."""
        bias = self._take("bias", outputs)
        weights = self._take("weights", outputs, inputs)
        if self.weights.transposed:
            weights = weights.reshape(inputs, outputs).T
        return Parameters(weights, bias, self._take_norm(outputs))

    def _take_norm(self, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        if not (self.section.flag("batch_normalize") or self.section.flag("cbn")):
            return None
        return self._take("scale", outputs), self._take("mean", outputs), self._take("variance", outputs)

    def _take(self, what: str, *shape: int) -> np.ndarray:
        return self.weights.take(self.section, what, *shape)


def channels(x: NetworkTensor) -> int:
    return x.shape[1]


def units(x: NetworkTensor) -> int:
    """Counts the elements of one picture, or of one step of a sequence."""
    count = 1
    for size in x.shape[1:]:
        count *= size
    return count


def normalized(net: Network, x: NetworkTensor, p: Parameters) -> NetworkTensor:
    """Normalizes x, a product with the weights without a bias."""
    if p.norm is None:
        return x
    scale, mean, variance = p.norm
    return net.batch_norm(x, scale, p.bias, mean, variance, epsilon=EPSILON)


def check_size(section: Section, x: NetworkTensor) -> None:
    """Raises ModelError for an empty or too large result."""
    sizes = x.shape[1:]
    if not is_known(*sizes) or not 0 < units(x) < MAX_ELEMENTS:
        raise section.refuse(f"it has {' × '.join(map(str, sizes))} outputs; their product must be below 2³¹")
