"""Tensors while a model is read: in the order of axes that Keras has, with channels as axis 1, or both.

Keras' images are mostly [batch, space…, channels], a network's [batch, channels, space…]. What a layer of images gives
stays as it is until somebody wants the other order, so that there are no transposes between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor


class HeldTensor:
    """A tensor. masked: whether Keras has a mask with it, which says what steps of a sequence count."""

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
        """Whether it should be worked on with its last axis as axis 1."""
        return self._first is not None

    @property
    def form(self) -> NetworkTensor:
        """The elements in the order in which they should be worked on."""
        found = self._first if self._first is not None else self._last
        assert found is not None
        return found

    @property
    def rank(self) -> int:
        return self.form.rank

    @property
    def dtype(self) -> DType:
        return self.form.dtype

    @property
    def shape(self) -> tuple[Size, ...]:
        """In the order of Keras."""
        shape = self.form.shape
        return (shape[0], *shape[2:], shape[1]) if self.is_first else shape

    def tensor(self) -> NetworkTensor:
        """The elements in the order of Keras."""
        if self._last is None:
            self._last = self.net.transpose(self.form, (0, *range(2, self.rank), 1))
        return self._last

    def image(self) -> NetworkTensor:
        """The elements with the last axis as axis 1."""
        if self._first is None:
            self._first = self.net.transpose(self.form, to_first(self.rank))
        return self._first

    def axis(self, axis: int) -> int:
        """An axis of Keras, counted from the front, in `form`."""
        return to_first(self.rank).index(axis) if self.is_first else axis

    def like(self, tensor: NetworkTensor) -> HeldTensor:
        """A tensor in the order of axes of `form`, of the same rank."""
        last, first = (None, tensor) if self.is_first else (tensor, None)
        return HeldTensor(self.net, last, first, self.masked)

    def mapped(self, function: Callable[[NetworkTensor], NetworkTensor]) -> HeldTensor:
        """What a function of elements gives."""
        return self.like(function(self.form))


def to_first(rank: int) -> tuple[int, ...]:
    """The axes in the order that has the last one as axis 1."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 1 else tuple(range(rank))


class Refuses(Protocol):
    """What knows how to say that it cannot be read."""

    def refuse(self, reason: str) -> Exception: ...


def of_one_type(reading: Refuses, given: Sequence[HeldTensor]) -> list[HeldTensor]:
    """Tensors of one type: f32 if one of them is."""
    kinds = {x.dtype for x in given}
    if len(kinds) > 1 and not (DType.F32 in kinds and all(k is DType.F32 or not k.is_float for k in kinds)):
        raise reading.refuse(f"has operands of several types, {', '.join(sorted(k.value for k in kinds))}")
    if len(kinds) < 2:
        return list(given)
    net = given[0].net
    return [x if x.dtype is DType.F32 else x.mapped(lambda t: net.cast(t, to="f32")) for x in given]


Operand = Any  # a HeldTensor, an array or a number


def together(operands: Sequence[Operand]) -> tuple[list[Any], HeldTensor]:
    """Operands that are broadcast against each other, in one order of axes, and one of them that has this order."""
    held = [x for x in operands if isinstance(x, HeldTensor)]
    rank = max(np.ndim(x) if not isinstance(x, HeldTensor) else x.rank for x in operands)
    like = next((x for x in held if x.is_first and x.rank == rank), held[0])
    if not like.is_first or like.rank != rank or any(x.is_first and x.rank != rank for x in held):
        like = held[0]
        plain = HeldTensor(like.net, like.tensor())
        return [x.tensor() if isinstance(x, HeldTensor) else x for x in operands], plain
    return [_among(x, rank) for x in operands], like


def _among(x: Operand, rank: int) -> Any:
    """An operand with the last of `rank` axes as axis 1."""
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
