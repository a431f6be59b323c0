"""Tensors of a TFLite model while it is read: in the file's order of axes, with channels as axis 1, or both.

TFLite's images are [batch, space…, channels], the programs' [batch, channels, space…]. The output of an image operator
keeps its order until a reader needs the other one, which avoids transposes between layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.ir.dims import Size
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor

from .file import TensorSpec

QUANTIZED = (DType.I8, DType.U8, DType.I16, DType.I4, DType.U4, DType.I2)
Elements = NetworkTensor | np.ndarray


@dataclass(frozen=True)
class ChannelsFirst:
    """An image from a reader, [batch, channels, space…]."""

    tensor: Any


def to_first(rank: int) -> tuple[int, ...]:
    """Returns the permutation of an image from channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


@dataclass
class Held:
    """A tensor, as integers if quantized. At least one of the forms is set; constants are arrays.

    variable: the name of a handle's variable. imaginary: the imaginary part of complex numbers, whose real part the
    forms here are."""

    net: Network
    spec: TensorSpec
    last: Elements | None = None
    first: Elements | None = None
    variable: str = ""
    imaginary: Held | None = None
    _real: dict[bool, NetworkTensor] = field(default_factory=dict)

    @property
    def is_quantized(self) -> bool:
        return self.spec.quantization is not None and self.spec.dtype in QUANTIZED

    @property
    def is_first(self) -> bool:
        """True if only the form with channels first is set."""
        return self.last is None and self.first is not None

    @property
    def any_form(self) -> Elements:
        form = self.last if self.last is not None else self.first
        if form is None:
            raise ModelError(f"tensor {self.spec} is read before an operator writes it")
        return form

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes in the file's order of axes."""
        shape = self.any_form.shape
        return tuple(shape[a] for a in to_last(len(shape))) if self.is_first else tuple(shape)

    @property
    def rank(self) -> int:
        return len(self.any_form.shape)

    def elements(self, first: bool = False) -> Elements:
        """Returns the stored elements, in one of the two orders."""
        form = self.any_form
        if first and self.first is None:
            if self.rank < 3:
                raise ModelError(f"tensor {self.spec} is no image: it has {self.rank} axes")
            self.first = self._transposed(form, to_first(self.rank))
        elif not first and self.last is None:
            self.last = self._transposed(form, to_last(self.rank))
        chosen = self.first if first else self.last
        assert chosen is not None
        return chosen

    def raw(self, first: bool = False) -> NetworkTensor:
        return self.net.tensor_of(self.elements(first))

    def real(self, first: bool = False) -> NetworkTensor:
        """Returns real numbers: the elements, dequantized if needed."""
        if not self.is_quantized:
            return self.raw(first)
        if first not in self._real:
            self._real[first] = self._dequantized(self.elements(first), to_first(self.rank) if first else None)
        return self._real[first]

    def transposed(self, perm: Sequence[int]) -> NetworkTensor:
        """Returns the numbers with their axes in another order: weights, as constants that stay integers."""
        x = self._transposed(self.elements(), perm)
        return self._dequantized(x, perm) if self.is_quantized else self.net.tensor_of(x)

    def _transposed(self, x: Elements, perm: Sequence[int]) -> Elements:
        return np.ascontiguousarray(x.transpose(perm)) if isinstance(x, np.ndarray) else self.net.transpose(x, perm)

    def _dequantized(self, x: Elements, perm: Sequence[int] | None) -> NetworkTensor:
        scale, zero = parameters(self.spec)
        quantization = self.spec.quantization
        assert quantization is not None
        axis = 0 if quantization.scale.size == 1 else quantization.axis
        axis = axis if perm is None or quantization.scale.size == 1 else list(perm).index(axis)
        if quantization.block and perm is not None:
            scale, zero = scale.transpose(perm), zero.transpose(perm)
        zeros = [zero] if zero.any() else []
        return self.net.dequantize(x, scale, *zeros, axis=axis, block=quantization.block)


def parameters(spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Returns scale and zero point of a quantized tensor as operands of `quantize` and `dequantize`."""
    q, dtype = spec.quantization, spec.dtype
    assert q is not None and dtype is not None
    if (q.scale <= 0).any() and not q.block or (q.zero < dtype.lowest).any() or (q.zero > dtype.highest).any():
        raise ModelError(
            f"tensor {spec} needs scales above 0 and zero points of its type, got {q.scale.flat[:4]} and"
            f" {q.zero.flat[:4]}"
        )
    scale, zero = q.scale.astype(np.float32), q.zero.astype(dtype.numpy)
    return (scale.reshape(()), zero.reshape(())) if scale.size == 1 else (scale, zero)
