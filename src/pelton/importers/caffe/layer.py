"""The interface of a layer to its reader, and the registry of readers that the files of `layers/` fill."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.importers.imported import Range
from pelton.importers.reading import Checks
from pelton.ir import dims
from pelton.network import Network
from pelton.network.tensor import NetworkTensor

from .blobs import Blobs
from .fillers import default
from .schema import Message

LARGEST = 2**31 - 1  # elements of a blob, as in Caffe


class WrongShape(InputError):
    """A shape from the caller does not fit its input."""


@dataclass(frozen=True)
class NotAtInference:
    """A blob that does not exist at inference, such as a label, and all that depends on it."""

    reason: str


Blob = NetworkTensor | NotAtInference
Tops = NetworkTensor | Sequence[Blob]
Reader = Callable[["LayerReading"], Tops]
READERS: dict[str, Reader] = {}
WITHOUT_LABELS: set[str] = set()  # types whose readers accept bottoms that do not exist at inference


def reads(*types: str, without_labels: bool = False) -> Callable[[Reader], Reader]:
    """Declares a function as the reader of layer types; it adds to the network, and returns a tensor per top.

    A layer with a `NotAtInference` bottom is dropped with its tops, unless its reader accepts it `without_labels`.
    """

    def declare(reader: Reader) -> Reader:
        for name in types:
            READERS[name] = reader
            if without_labels:
                WITHOUT_LABELS.add(name)
        return reader

    return declare


@dataclass
class LayerReading(Checks):
    """A layer, the tensors of its bottoms, and its reader's tools to write it into the network."""

    net: Network
    file: str
    line: int
    layer: Message  # LayerParameter
    bottoms: tuple[Blob, ...]
    blobs: Blobs
    shapes: dict[str, tuple[int | Range, ...]]  # input shapes from the caller
    read: int = field(default=0)  # number of weight blobs read so far

    @property
    def name(self) -> str:
        return str(self.layer.name)

    @property
    def type(self) -> str:
        return str(self.layer.type)

    @property
    def tops(self) -> tuple[str, ...]:
        return tuple(self.layer.top)

    def refuse(self, reason: object) -> ModelError:
        """Builds the error to raise, with the layer's place."""
        return ModelError(f"{self.file}:{self.line}: layer {self.name!r} ({self.type}) {reason}")

    error = refuse

    def param(self, name: str) -> Message:
        """Returns the layer's parameters, such as `pooling_param`, with Caffe's defaults."""
        return getattr(self.layer, name)

    # --- bottoms

    @property
    def inputs(self) -> tuple[NetworkTensor, ...]:
        """All bottoms; raises ModelError if one is missing."""
        return tuple(self.input(i) for i in range(len(self.bottoms)))

    def input(self, i: int = 0) -> NetworkTensor:
        """Returns the i-th bottom; raises ModelError if it is missing."""
        if i >= len(self.bottoms):
            raise self.refuse(f"needs {i + 1} bottoms, got {len(self.bottoms)}")
        bottom = self.bottoms[i]
        if isinstance(bottom, NotAtInference):
            raise self.refuse(f"reads {self.layer.bottom[i]!r}, {bottom.reason}")
        return bottom

    def image(self, i: int = 0) -> NetworkTensor:
        """Returns the i-th bottom, which must be [batch, channels, height, width]."""
        x = self.input(i)
        if x.rank != 4:
            raise self.refuse(f"needs an image [batch, channels, height, width], got {x!r}")
        return x

    # --- weights

    def blob(self, shape: Sequence[int], filler: Message | None = None) -> np.ndarray:
        """Returns the layer's next blob of weights. filler: distribution without a file; None: He et al.'s."""
        if not all(d >= 1 for d in shape):
            raise self.refuse(f"needs weights of sizes of 1 and more, got {list(shape)}")
        try:
            blob = self.blobs.blob(self.layer, self.read, tuple(shape), filler)
        except ValueError as e:
            raise self.refuse(e) from None
        self.read += 1
        return blob

    def filled(self, shape: Sequence[int], param: Message, field: str, value: float | None = None) -> np.ndarray:
        """Returns the next blob of weights, with a filler from a field of the layer's parameters. value: the constant
        without this field; None: He et al.'s filler, as Caffe's zeros would give zeros."""
        fallback = None if value is None else default("constant", value)
        return self.blob(shape, getattr(param, field) if param.HasField(field) else fallback)

    # --- tops

    def declare(self, name: str, shape: Sequence[int] | None) -> NetworkTensor:
        """Declares an input of the network, with the caller's shape, else the file's."""
        override = self.shapes.get(name)
        if override is None and shape is None:
            raise self.refuse(f"does not declare the shape of {name!r}; set it with shapes={{{name!r}: ...}}")
        sizes: Sequence[Any] = tuple(shape or ()) if override is None else override
        if override is not None and shape and len(sizes) != len(shape):
            raise WrongShape(f"input {name!r} has {len(shape)} axes in {self.file}, got {len(sizes)} sizes")
        if not sizes or any((d if isinstance(d, int) else d.minimum) < 1 for d in sizes):
            kind = self.refuse if override is None else WrongShape
            raise kind(f"needs sizes of 1 and more for {name!r}, got {list(sizes)}")
        if math.prod(d for d in sizes if isinstance(d, int)) > LARGEST:
            raise self.refuse(f"needs blobs of at most {LARGEST} elements, got {name!r} of {list(sizes)}")
        return self.net.input(name, [self._dimension(name, axis, d) for axis, d in enumerate(sizes)])

    def _dimension(self, name: str, axis: int, size: Any) -> int | str:
        """Returns a size as networks declare it: batches are `batch`, one for all inputs of the same range."""
        if isinstance(size, int):
            return size
        low, best, high = size
        declared, batch = self.net.declarations.sizes, dims.symbol("batch", *size)
        label = "batch"
        if axis or declared.get(label, batch) != batch:
            label = f"{re.sub('[^0-9A-Za-z_]', '_', name)}_{axis}"
            label = label if label.isidentifier() else f"input_{label}"
        bound = "" if high >= dims.UNBOUNDED else high
        return label if label in declared else f"{label}={low}..{best}..{bound}"
