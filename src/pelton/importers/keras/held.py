"""Tensors while a model is read: in Keras' order of axes, with channels as axis 1, or both.

Keras' images are mostly [batch, space…, channels], a network's [batch, channels, space…]. The output of an image layer
keeps its order until a reader needs the other one, which avoids transposes between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor


class HeldTensor:
    """A tensor. masked: True if Keras has a mask for it, which selects the valid steps of a sequence."""

    def __init__(
        self,
        net: Network,
        last: NetworkTensor | None = None,
        first: NetworkTensor | None = None,
        masked: bool = False,
    ):
        self.net, self.masked = net, masked
        self._last, self._first = last, first

    @property
    def is_first(self) -> bool:
        """True if operations should use it with its last axis as axis 1."""
        return self._first is not None

    @property
    def form(self) -> NetworkTensor:
        """The elements in the preferred order for operations."""
        tensor = self._first if self._first is not None else self._last
        assert tensor is not None
        return tensor

    @property
    def rank(self) -> int:
        return self.form.rank

    @property
    def dtype(self) -> DType:
        return self.form.dtype

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes in Keras' order."""
        shape = self.form.shape
        return (shape[0], *shape[2:], shape[1]) if self.is_first else shape

    def tensor(self) -> NetworkTensor:
        """Returns the elements in Keras' order."""
        if self._last is None:
            self._last = self.net.transpose(self.form, (0, *range(2, self.rank), 1))
        return self._last

    def image(self) -> NetworkTensor:
        """Returns the elements with the last axis as axis 1."""
        if self._first is None:
            self._first = self.net.transpose(self.form, to_first(self.rank))
        return self._first

    def axis(self, axis: int) -> int:
        """Converts an axis of Keras, counted from the front, to an axis of `form`."""
        return to_first(self.rank).index(axis) if self.is_first else axis

    def like(self, tensor: NetworkTensor) -> HeldTensor:
        """Wraps a tensor of the same rank, with axes in the order of `form`."""
        last, first = (None, tensor) if self.is_first else (tensor, None)
        return HeldTensor(self.net, last, first, self.masked)

    def mapped(self, function: Callable[[NetworkTensor], NetworkTensor]) -> HeldTensor:
        """Applies an elementwise function."""
        return self.like(function(self.form))


def to_first(rank: int) -> tuple[int, ...]:
    """Returns the permutation that moves the last axis to axis 1."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 1 else tuple(range(rank))


class Refuses(Protocol):
    """A reading that can build its own refusal."""

    def refuse(self, reason: str) -> Exception: ...


def of_one_type(reading: Refuses, given: Sequence[HeldTensor]) -> list[HeldTensor]:
    """Casts tensors to one type: f32 if one of them is."""
    kinds = {x.dtype for x in given}
    if len(kinds) > 1 and not (DType.F32 in kinds and all(k is DType.F32 or not k.is_float for k in kinds)):
        raise reading.refuse(f"has operands of several types, {', '.join(sorted(k.value for k in kinds))}")
    if len(kinds) < 2:
        return list(given)
    net = given[0].net
    return [x if x.dtype is DType.F32 else x.mapped(lambda t: net.cast(t, to="f32")) for x in given]


Operand = Any  # a HeldTensor, an array or a number


def together(operands: Sequence[Operand]) -> tuple[list[Any], HeldTensor]:
    """Returns operands to broadcast against each other in one order of axes, and one of them that has this order."""
    held = [x for x in operands if isinstance(x, HeldTensor)]
    rank = max(np.ndim(x) if not isinstance(x, HeldTensor) else x.rank for x in operands)
    like = next((x for x in held if x.is_first and x.rank == rank), held[0])
    if not like.is_first or like.rank != rank or any(x.is_first and x.rank != rank for x in held):
        like = held[0]
        plain = HeldTensor(like.net, like.tensor())
        return [x.tensor() if isinstance(x, HeldTensor) else x for x in operands], plain
    return [_among(x, rank) for x in operands], like


def _among(x: Operand, rank: int) -> Any:
    """Returns an operand with the last of `rank` axes as axis 1."""
    if isinstance(x, HeldTensor):
        if x.rank == rank:
            return x.image()
        if x.rank == 0:
            return x.form
        wide = x.net.reshape(x.form, (*[1] * (rank - x.rank), *x.shape))
        return x.net.transpose(wide, to_first(rank))
    if np.ndim(x) == 0:
        return x
    array = np.asarray(x)
    return array.reshape(*[1] * (rank - array.ndim), *array.shape).transpose(to_first(rank))
