"""What readers of layers are given, and the registries that the files of `layers/` and `ops/` fill."""

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

READERS: dict[str, LayerReader] = {}  # by the type of a layer
TRACES_MASKS: set[str] = set()  # types of layers that compute something else where there is a mask
TAKES_ARGUMENTS: set[str] = set()  # types of layers that are called with more than their tensors


class LayerScope(Protocol):
    """What readers of layers that have layers within need of the model."""

    def within(self, layer: LayerConfig) -> list[LayerConfig]:
        """The layers within a layer, the same ones each time."""
        ...

    def apply(self, layer: LayerConfig, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> list[HeldTensor]:
        """What a layer gives."""
        ...


def reads(
    *types: str,
    variables: Declared | Sequence[str] = (),
    within: Within | None = None,
    masks: bool = False,
    arguments: bool = False,
) -> Callable[[LayerReader], LayerReader]:
    """Registers the reader of layers of these types.

    variables: the names of their variables in the order of Keras, where "~" is in front of those that are not trained.
    within: the layers that they have within. masks: whether they compute something else where there is a mask.
    arguments: whether they look at all that they are called with, and refuse what they do not know; of others, all but
    the first argument is refused."""

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
    """A call of a layer. args, kwargs: what it is called with, tensors as `HeldTensor`."""

    net: Network
    layer: LayerConfig
    scope: LayerScope
    weights: Variables
    args: list[Any]
    kwargs: dict[str, Any]

    def refuse(self, reason: str) -> UnknownPart:
        """The error to raise."""
        return self.layer.refuse(reason)

    error = refuse

    # --- what it is called with

    @property
    def inputs(self) -> list[HeldTensor]:
        """All tensors of the first argument."""
        found = flattened(self.args[0]) if self.args else []
        if not found or not all(isinstance(x, HeldTensor) for x in found):
            raise self.refuse("is called with something else than tensors")
        return found

    def input(self, ranks: Sequence[int] = ()) -> HeldTensor:
        """The only tensor that it is called with, of one of these ranks."""
        found = self.inputs
        if len(found) != 1:
            raise self.refuse(f"is called with {len(found)} tensors, where one is expected")
        return self.checked(found[0], ranks)

    def checked(self, x: HeldTensor, ranks: Sequence[int]) -> HeldTensor:
        if ranks and x.rank not in ranks:
            raise self.refuse(f"needs a tensor of {' or '.join(map(str, ranks))} axes, got {list(x.shape)}")
        return x

    def floats(self, ranks: Sequence[int] = (), casts: bool = False) -> HeldTensor:
        """The only tensor that it is called with, of f32. casts: whether the layer makes floats of other types."""
        x = self.input(ranks)
        if x.dtype is DType.F32:
            return x
        if not casts:
            raise self.refuse(f"needs floats, got {x.form.type}")
        return x.mapped(lambda t: self.net.cast(t, to="f32"))

    def argument(self, name: str, place: int | None = None) -> Any:
        """An argument of the call by its name, or by its place among the others; None where there is none."""
        if place is not None and place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name)

    def expect_arguments(self, *names: str, places: int | None = None) -> None:
        """Refuses what it is called with by other names, unless that is None or False, and more than some places."""
        unknown = [key for key, v in self.kwargs.items() if v is not None and v is not False and key not in names]
        more = (
            []
            if places is None
            else [f"argument {i}" for i, v in enumerate(self.args) if i >= places and v is not None]
        )
        if unknown or more:
            raise self.refuse(f"is called with {', '.join([*map(repr, unknown), *more])}, which is not known")

    # --- the order of axes

    def is_channels_first(self) -> bool:
        return self.layer.choice("data_format", "channels_last", "channels_first", default="channels_last") != (
            "channels_last"
        )

    def image(self, x: HeldTensor, channels_first: bool) -> NetworkTensor:
        """A tensor as [batch, channels, space…]."""
        return x.tensor() if channels_first else x.image()

    def of_image(self, tensor: NetworkTensor, channels_first: bool) -> HeldTensor:
        """The tensor that [batch, channels, space…] is."""
        return HeldTensor(self.net, tensor) if channels_first else HeldTensor(self.net, first=tensor)

    def axis(self, axis: Any, rank: int, what: str = "an axis") -> int:
        """An axis counted from the front."""
        if isinstance(axis, (list, tuple)) and len(axis) == 1:
            (axis,) = axis
        return super().axis(self.whole(axis, "axis", -MAX_NUMBER, MAX_NUMBER), rank, what)

    # --- variables

    def variable(self, name: str, *shape: Any) -> np.ndarray:
        """A variable, of these sizes, in f32; None stands for any size."""
        found = self.weights.array(self.layer, name)
        if len(found.shape) != len(shape) or any(s not in (None, n) for s, n in zip(shape, found.shape)):
            raise self.refuse(f"needs {name!r} of shape {list(shape)}, the file has {list(found.shape)}")
        return found if found.dtype == np.float32 else found.astype(np.float32)

    def of(self, tensor: NetworkTensor) -> HeldTensor:
        """A tensor in the order of axes of Keras."""
        return HeldTensor(self.net, tensor)

    def numbered(self, index: int, shape: Sequence[int] | None = None) -> np.ndarray:
        """A variable by its place, of a layer that does not name them."""
        if shape is None:
            return self.weights.array(self.layer, str(index)).astype(np.float32)
        return self.variable(str(index), *shape)
