"""Weights of decoders: dense matrices, and those of few bits in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pelton.errors import ModelError

from .architecture import TensorPlace

if TYPE_CHECKING:
    from pelton.network import Network, NetworkTensor


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix [N, K] of few bits: (code − zero) · scale.

    codes: u8 [N, K · bits / 8], the first one in the lowest bits. scale, zero: [N, K / block]; without zero it is half
    of the codes' range. round_rows: products may round the rows in front of it to 8 bits.
    """

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    block: int
    bits: int
    round_rows: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.codes.shape[1] * 8 // self.bits

    def taken(self, rows: slice) -> BlockMatrix:
        zero = None if self.zero is None else self.zero[rows]
        return replace(self, codes=self.codes[rows], scale=self.scale[rows], zero=zero)


Matrix = np.ndarray | BlockMatrix


class TensorFile(Protocol):
    """A file of tensors by name."""

    name: str

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Matrix:
        """Returns a tensor, floats as f32."""
        ...


class DecoderWeights:
    """The weights of a decoder by the names of its parts, wherever its file has them. round_rows: of all matrices of
    few bits."""

    def __init__(self, file: TensorFile, places: Mapping[str, TensorPlace], round_rows: bool = False):
        self.file, self.places, self.round_rows = file, places, round_rows

    def has(self, part: str, layer: int | None = None, kind: str = "weight") -> bool:
        place = self.places.get(part)
        return place is not None and _name(place, layer, kind) in self.file

    def matrix(self, part: str, rows: int, columns: int, layer: int | None = None) -> Matrix:
        """Returns a matrix [rows, columns]. Raises ModelError if the file has none of this shape."""
        place = self._place(part, layer, "weight")
        matrix = self.file.read(_name(place, layer, "weight"))
        if place.transposed:
            matrix = self._dense(matrix, part).T
        if place.rows is not None:
            rows_of = slice(*place.rows)
            matrix = matrix.taken(rows_of) if isinstance(matrix, BlockMatrix) else matrix[rows_of]
        self._check(_name(place, layer, "weight"), matrix.shape, (rows, columns))
        return replace(matrix, round_rows=self.round_rows) if isinstance(matrix, BlockMatrix) else matrix

    def kernel(self, part: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the window of a convolution. Raises ModelError if the file has none of this shape."""
        name = _name(self._place(part, None, "weight"), None, "weight")
        array = self._dense(self.file.read(name), part)
        self._check(name, array.shape, shape)
        return array

    def vector(self, part: str, size: int, layer: int | None = None, kind: str = "weight") -> np.ndarray:
        """Returns a vector. Raises ModelError if the file has none of this size."""
        place = self._place(part, layer, kind)
        array = self._dense(self.file.read(_name(place, layer, kind)), part)
        if place.rows is not None:
            array = array[slice(*place.rows)]
        self._check(_name(place, layer, kind), array.shape, (size,))
        return np.ascontiguousarray(array)

    def bias(self, part: str, size: int, layer: int | None = None) -> np.ndarray | None:
        """Returns the bias of a product, None if the file has none."""
        return self.vector(part, size, layer, "bias") if self.has(part, layer, "bias") else None

    def _place(self, part: str, layer: int | None, kind: str) -> TensorPlace:
        place = self.places.get(part)
        if place is None or _name(place, layer, kind) not in self.file:
            name = part if place is None else _name(place, layer, kind)
            raise ModelError(f"{self.file.name} has no tensor {name!r}")
        return place

    def _dense(self, matrix: Matrix, part: str) -> np.ndarray:
        if isinstance(matrix, BlockMatrix):
            raise ModelError(
                f"{self.file.name}: {part} has few bits, which is supported for matrices of products alone"
            )
        return matrix

    def _check(self, name: str, shape: tuple[int, ...], want: tuple[int, ...]) -> None:
        if shape != want:
            raise ModelError(f"{self.file.name}: {name} has shape {list(shape)}, expected {list(want)}")


def _name(place: TensorPlace, layer: int | None, kind: str) -> str:
    name = place.name if layer is None else place.name.replace("{}", str(layer))
    return f"{name}.{kind}"


def product(net: Network, x: NetworkTensor, w: Matrix, bias: np.ndarray | None, name: str) -> NetworkTensor:
    """Adds x · wᵀ + bias over the last axis."""
    if not isinstance(w, BlockMatrix):
        return net.linear(x, w, bias, name=name)
    operands = (w.codes, w.scale) if w.zero is None else (w.codes, w.scale, w.zero)
    y = net.quantized_linear(x, *operands, block=w.block, bits=w.bits, round_rows=w.round_rows, name=name)
    return y if bias is None else y + bias


def table_rows(net: Network, w: Matrix, ids: NetworkTensor, name: str) -> NetworkTensor:
    """Adds rows of a table by their numbers."""
    if not isinstance(w, BlockMatrix):
        return net.gather(w, ids, axis=0, name=name)
    scale = w.scale.astype(np.float32)
    operands = (scale,) if w.zero is None else (scale, w.zero)
    return net.quantized_gather(w.codes, ids, *operands, block=w.block, bits=w.bits, length=w.shape[1], name=name)
