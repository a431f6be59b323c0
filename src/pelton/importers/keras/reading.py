"""The interface of layers to their readers, and the registries that the files of `layers/` and `ops/` fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pelton.importers.reading import Checks
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor

from .config import MAX_NUMBER, LayerConfig, UnknownPart, flattened
from .held import HeldTensor
from .weights import VARIABLES, WITHIN, Declared, Within, Variables

Result = Any  # a HeldTensor, or a sequence of them
LayerReader = Callable[["KerasReading"], Result]

READERS: dict[str, LayerReader] = {}  # by layer type
TRACES_MASKS: set[str] = set()  # layer types whose result depends on a mask
TAKES_ARGUMENTS: set[str] = set()  # layer types called with more than their tensors


class LayerScope(Protocol):
    """The part of the model that readers of layers with inner layers need."""

    def within(self, layer: LayerConfig) -> list[LayerConfig]:
        """Returns the layers within a layer, the same ones each time."""
        ...

    def apply(self, layer: LayerConfig, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> list[HeldTensor]:
        """Applies a layer."""
        ...


def reads(
    *types: str,
    variables: Declared | Sequence[str] = (),
    within: Within | None = None,
    masks: bool = False,
    arguments: bool = False,
) -> Callable[[LayerReader], LayerReader]:
    """Registers the reader of layers of these types.

    variables: their names in Keras' order, with a leading "~" for untrained ones. within: their inner layers. masks:
    True if the result depends on a mask. arguments: True if they read all arguments of their calls, and refuse unknown
    ones; other layers refuse all but the first argument."""

    def register(reader: LayerReader) -> LayerReader:
        for type in types:
            READERS[type] = reader
            if variables:
                VARIABLES[type] = variables if callable(variables) else lambda layer: list(variables)
            if within is not None:
                WITHIN[type] = within
            if masks:
                TRACES_MASKS.add(type)
            if arguments:
                TAKES_ARGUMENTS.add(type)
        return reader

    return register


@dataclass
class KerasReading(Checks):
    """A call of a layer. args, kwargs: its arguments, tensors as `HeldTensor`."""

    net: Network
    layer: LayerConfig
    scope: LayerScope
    weights: Variables
    args: list[Any]
    kwargs: dict[str, Any]

    def refuse(self, reason: str) -> UnknownPart:
        """Builds the error to raise."""
        return self.layer.refuse(reason)

    error = refuse

    # --- arguments of the call

    @property
    def inputs(self) -> list[HeldTensor]:
        """All tensors of the first argument."""
        inputs = flattened(self.args[0]) if self.args else []
        if not inputs or not all(isinstance(x, HeldTensor) for x in inputs):
            raise self.refuse("is called with something else than tensors")
        return inputs

    def input(self, ranks: Sequence[int] = ()) -> HeldTensor:
        """Returns the only tensor argument, which must have one of these ranks."""
        inputs = self.inputs
        if len(inputs) != 1:
            raise self.refuse(f"is called with {len(inputs)} tensors, where one is expected")
        return self.checked(inputs[0], ranks)

    def checked(self, x: HeldTensor, ranks: Sequence[int]) -> HeldTensor:
        if ranks and x.rank not in ranks:
            raise self.refuse(f"needs a tensor of {' or '.join(map(str, ranks))} axes, got {list(x.shape)}")
        return x

    def floats(self, ranks: Sequence[int] = (), casts: bool = False) -> HeldTensor:
        """Returns the only tensor argument as f32. casts: True if the layer casts other types."""
        x = self.input(ranks)
        if x.dtype is DType.F32:
            return x
        if not casts:
            raise self.refuse(f"needs floats, got {x.form.type}")
        return x.mapped(lambda t: self.net.cast(t, to="f32"))

    def argument(self, name: str, place: int | None = None) -> Any:
        """Returns an argument by name, or by its place among the others; None if it is missing."""
        if place is not None and place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name)

    def expect_arguments(self, *names: str, places: int | None = None) -> None:
        """Refuses other named arguments, unless None or False, and more than `places` arguments by place."""
        unknown = [key for key, v in self.kwargs.items() if v is not None and v is not False and key not in names]
        more = (
            []
            if places is None
            else [f"argument {i}" for i, v in enumerate(self.args) if i >= places and v is not None]
        )
        if unknown or more:
            raise self.refuse(f"is called with {', '.join([*map(repr, unknown), *more])}, which is not supported")

    # --- the order of axes

    def is_channels_first(self) -> bool:
        return self.layer.choice("data_format", "channels_last", "channels_first", default="channels_last") != (
            "channels_last"
        )

    def image(self, x: HeldTensor, channels_first: bool) -> NetworkTensor:
        """Returns a tensor as [batch, channels, space…]."""
        return x.tensor() if channels_first else x.image()

    def of_image(self, tensor: NetworkTensor, channels_first: bool) -> HeldTensor:
        """Wraps a tensor [batch, channels, space…]."""
        return HeldTensor(self.net, tensor) if channels_first else HeldTensor(self.net, first=tensor)

    def axis(self, axis: Any, rank: int, what: str = "an axis") -> int:
        """Returns an axis counted from the front."""
        if isinstance(axis, (list, tuple)) and len(axis) == 1:
            (axis,) = axis
        return super().axis(self.whole(axis, "axis", -MAX_NUMBER, MAX_NUMBER), rank, what)

    # --- variables

    def variable(self, name: str, *shape: Any) -> np.ndarray:
        """Returns a variable of these sizes in f32; None allows any size."""
        array = self.weights.array(self.layer, name)
        if len(array.shape) != len(shape) or any(s not in (None, n) for s, n in zip(shape, array.shape)):
            raise self.refuse(f"needs {name!r} of shape {list(shape)}, the file has {list(array.shape)}")
        return array if array.dtype == np.float32 else array.astype(np.float32)

    def of(self, tensor: NetworkTensor) -> HeldTensor:
        """Wraps a tensor in Keras' order of axes."""
        return HeldTensor(self.net, tensor)

    def numbered(self, index: int, shape: Sequence[int] | None = None) -> np.ndarray:
        """Returns a variable by its place, for a layer without variable names."""
        if shape is None:
            return self.weights.array(self.layer, str(index)).astype(np.float32)
        return self.variable(str(index), *shape)
