"""The weights of Darknet's networks: a header and arrays of f32 in the order of the layers, or random numbers."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pelton.errors import FormatError, ModelError
from pelton.importers import signs

from .cfg import Section

MAX_ELEMENTS = 1 << 29  # of a network's weights, 2 GB; the largest known have a quarter of that
MAX_RANDOM = 1 << 28  # without a file as a bound


class Weights(Protocol):
    """The source of layers' arrays, in the order of the file.

    transposed: matrices are [inputs, outputs]. forked: written by AlexeyAB's Darknet, whose LSTM and batch norm layers
    have another order."""

    transposed: bool
    forked: bool

    def take(self, section: Section, what: str, *shape: int) -> np.ndarray:
        """Returns the next f32 array; FormatError past the end. what: bias, scale, mean, variance or weights."""

    def finish(self) -> None:
        """Raises ModelError if the file has more than the layers need."""


class WeightsFile:
    """A `.weights` file: major, minor and revision (i32), the number of images seen (i64 from version 0.2 on, i32
    before), then the arrays. Versions above 1000 mark transposed matrices."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.fspath(path)
        signs.refuse_others(self.path)
        try:
            self.bytes = os.path.getsize(self.path)
            with open(self.path, "rb") as file:
                head = file.read(20)
        except OSError as e:
            raise FormatError(f"the weights {self.path} cannot be read: {e.strerror or e}") from None
        if len(head) < 16:
            raise FormatError(
                f"{self.path} is no file of Darknet weights: a header has 16 or 20 bytes, got {len(head)}"
            )
        major, minor, revision = struct.unpack("<3i", head[:12])
        self.transposed = major > 1000 or minor > 1000
        self.forked = revision >= 5
        self.at = 20 if major * 10 + minor >= 2 else 16
        self.taken = 0

    def take(self, section: Section, what: str, *shape: int) -> np.ndarray:
        count = _count(section, self.taken, MAX_ELEMENTS, shape)
        expected, rest = 4 * count, max(self.bytes - self.at, 0)
        if expected > rest:
            raise FormatError(
                f"{self.path} is too short: the {what} of layer {section.index} ([{section.name}], line"
                f" {section.line} of {section.path}) need {expected} bytes ({' × '.join(map(str, shape))} numbers)"
                f" from byte {self.at} on, {rest} are left; is it the weights file of this configuration?"
            )
        values = np.fromfile(self.path, "<f4", count, offset=self.at).reshape(shape)
        self.at, self.taken = self.at + expected, self.taken + count
        return values

    def finish(self) -> None:
        if self.at != self.bytes:
            raise ModelError(
                f"{self.path} has {self.bytes} bytes, the layers of its configuration take {self.at}:"
                f" {self.bytes - self.at} are left over; is it of this configuration?"
            )


class RandomWeights:
    """Random weights that preserve the scale of activations, the same ones each time."""

    transposed = forked = False

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.taken = 0

    def take(self, section: Section, what: str, *shape: int) -> np.ndarray:
        self.taken += _count(section, self.taken, MAX_RANDOM, shape)
        if what in ("scale", "variance"):
            return self.random.uniform(0.5, 1.5, shape).astype(np.float32)
        drawn = self.random.standard_normal(shape, np.float32)
        drawn *= math.sqrt(2 / math.prod(shape[1:])) if what == "weights" else 0.1
        return drawn

    def finish(self) -> None:
        pass


def _count(section: Section, taken: int, limit: int, shape: Sequence[int]) -> int:
    """Counts the elements of an array; raises ModelError beyond the known maximum."""
    count = math.prod(shape)
    if taken + count > limit:
        raise section.refuse(f"weights of {' × '.join(map(str, shape))} numbers are too large: {limit} may be in all")
    return count
