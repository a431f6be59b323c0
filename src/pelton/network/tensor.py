"""A value of a network under construction, with the arithmetic of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import DType, TensorType

Operand = Any  # a NetworkTensor, an array or a number


class _Binary(Protocol):
    def __call__(self, other: Operand, /) -> NetworkTensor: ...


class NetworkTensor:
    """A value of a `Network`. Its type is known at once and shown: `conv1: f32[batch, 64, 112, 112]`.

    Arithmetic, comparisons (including `==` and `!=`), `@` and basic indexing return further tensors of the network;
    numbers adopt the element type of the tensor beside them.
    """

    __slots__ = ("network", "value")
    __array_ufunc__ = None  # numpy leaves array + tensor to the tensor
    __hash__ = object.__hash__
    __add__: _Binary
    __radd__: _Binary
    __sub__: _Binary
    __rsub__: _Binary
    __mul__: _Binary
    __rmul__: _Binary
    __truediv__: _Binary
    __rtruediv__: _Binary
    __pow__: _Binary
    __rpow__: _Binary
    __mod__: _Binary
    __rmod__: _Binary
    __matmul__: _Binary
    __rmatmul__: _Binary
    __lt__: _Binary
    __le__: _Binary
    __gt__: _Binary
    __ge__: _Binary

    def __init__(self, network: Any, value: Value):
        self.network, self.value = network, value

    @property
    def name(self) -> str:
        return self.network.name_of(self)

    @property
    def type(self) -> TensorType:
        return self.value.type

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes: numbers, or expressions of dynamic dimensions."""
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def rank(self) -> int:
        return self.value.type.rank

    @property
    def array(self) -> np.ndarray | None:
        """The elements of a constant; None for other values."""
        return self.network.builder.constants.get(self.value)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    def __eq__(self, other: object) -> Any:
        """Adds a layer that compares elements; to test for the same tensor, use `is` or compare their values."""
        return self.network.equal(self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.network.logical_not(self.network.equal(self, other)) if _is_operand(other) else NotImplemented

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no elements yet; write branches on data with Network.if_")

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise TypeError(f"{self!r} has no length that is known")
        return self.shape[0]

    def __iter__(self) -> Iterator[NetworkTensor]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> NetworkTensor:
        return self.network.index(self, index)

    def __neg__(self) -> NetworkTensor:
        return self.network.neg(self)

    def __abs__(self) -> NetworkTensor:
        return self.network.abs(self)

    def __invert__(self) -> NetworkTensor:
        return self.network.logical_not(self)


def _is_operand(x: object) -> bool:
    return isinstance(x, (NetworkTensor, np.ndarray, np.generic, bool, int, float))


def _operator(op: str, swapped: bool) -> Any:
    def apply(self: NetworkTensor, other: Operand) -> NetworkTensor:
        tensor: NetworkTensor = getattr(self.network, op)(*((other, self) if swapped else (self, other)))
        return tensor

    return apply


for _symbol, _op in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "pow": "pow",
    "mod": "mod",
    "matmul": "matmul",
}.items():
    setattr(NetworkTensor, f"__{_symbol}__", _operator(_op, False))
    setattr(NetworkTensor, f"__r{_symbol}__", _operator(_op, True))
for _symbol, _op in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}.items():
    setattr(NetworkTensor, f"__{_symbol}__", _operator(_op, False))
