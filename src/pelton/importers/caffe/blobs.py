"""Layer weights from a file, or random numbers from a fixed seed."""

from __future__ import annotations

import math
import zlib

import numpy as np

from pelton.errors import near

from .fillers import default, fill
from .schema import Message
from .weights import Caffemodel

SEED = 0
MOST = 1 << 28  # random weights; larger nets need a file


class Blobs:
    """The blobs of a net's layers, by layer name. Raises ValueError if they do not fit."""

    def __init__(self, trained: Caffemodel | None):
        self.trained = trained
        self.filled: list[str] = []  # layers with random weights
        self._total = 0
        self._shared: dict[str, np.ndarray] = {}  # random blobs shared by layers, by the names of their `param`

    def holds(self, layer: str) -> bool:
        """True if the file has weights of a layer."""
        return self.trained is not None and layer in self.trained.layers

    def count(self, layer: str) -> int:
        """Counts the blobs of a layer in the file."""
        return len(self.trained.layers.get(layer, ())) if self.trained else 0

    def shape(self, layer: str, i: int) -> tuple[int, ...]:
        """Returns the shape of a layer's blob in the file."""
        assert self.trained is not None
        return self.trained.blob(layer, i).shape

    def blob(self, layer: Message, i: int, shape: tuple[int, ...], filler: Message | None) -> np.ndarray:
        """Returns the i-th blob of a layer. filler: distribution of a blob without a file; None: He et al.'s."""
        return self._read(layer.name, i, shape) if self.holds(layer.name) else self._fill(layer, i, shape, filler)

    def _read(self, layer: str, i: int, shape: tuple[int, ...]) -> np.ndarray:
        assert self.trained is not None
        if i >= self.count(layer):
            raise ValueError(f"needs {i + 1} blobs of weights, {self.trained.file} has {self.count(layer)} of it")
        blob = self.trained.blob(layer, i)
        # old files have four axes, the first ones of size 1
        if _significant(blob.shape) != _significant(shape):
            raise ValueError(
                f"needs weights of shape {list(shape)} as blob {i}, {self.trained.file} has {list(blob.shape)};"
                " does the file belong to this net?"
            )
        return blob.reshape(shape)

    def _fill(self, layer: Message, i: int, shape: tuple[int, ...], filler: Message | None) -> np.ndarray:
        shared = layer.param[i].name if i < len(layer.param) else ""
        if shared in self._shared and self._shared[shared].size == math.prod(shape):
            return self._shared[shared].reshape(shape)
        self._total += math.prod(shape)
        if self._total > MOST:
            raise ValueError(
                f"needs weights of shape {list(shape)}, more than {MOST} with those before; nets of that size need a"
                " file of weights"
            )
        if layer.name not in self.filled:
            self.filled.append(layer.name)
        # seeded by layer: its weights do not depend on the net's outputs
        rng = np.random.default_rng([SEED, zlib.crc32(layer.name.encode()), i])
        blob = fill(default("msra") if filler is None else filler, shape, rng)
        if shared:
            self._shared[shared] = blob
        return blob

    def missing(self) -> str:
        """Describes layers whose weights are random; "" if there are none."""
        if not self.filled:
            return ""
        some = ", ".join(map(repr, self.filled[:4])) + (", …" if len(self.filled) > 4 else "")
        if self.trained is None:
            return (
                f"the weights of {len(self.filled)} layers ({some}) are random, there is no .caffemodel; name it with"
                " weights="
            )
        known = near(self.filled[0], self.trained.layers)
        return f"{self.trained.file} has no weights of {len(self.filled)} layers ({some}){known}; they are random"


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape without the sizes of 1 in front."""
    first = next((i for i, d in enumerate(shape) if d != 1), len(shape))
    return tuple(shape[first:])
