"""Dynamic dimensions in TFLite: computed from the shapes of inputs, where an operator reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Atom, Dim, Size, SizeFunction, Symbol
from pelton.ir.graph import Value
from pelton.ir.types import I32, DType

from .tensors import CODES, NoForm, TFLiteTensor

FUNCTIONS = {"floordiv": "FLOOR_DIV", "max": "MAXIMUM", "min": "MINIMUM"}


class Emits(Protocol):
    """The receiver of the operators: a model in progress."""

    def constant(self, array: np.ndarray) -> TFLiteTensor: ...
    def emit(
        self,
        name: str,
        inputs: Sequence[TFLiteTensor | None],
        shape: Sequence[Size],
        dtype: DType,
        kind: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> TFLiteTensor: ...


class TFLiteSizes:
    """Emits the operators that compute sizes, each once, as i32."""

    def __init__(self, model: Emits, inputs: Mapping[Value, tuple[TFLiteTensor, tuple[int, ...]]]):
        """inputs: value → its tensor and the axis of the value at each axis of the tensor."""
        self.model = model
        self._emitted: dict[Size | Atom | TFLiteTensor, TFLiteTensor] = {}
        self._sources: dict[str, tuple[TFLiteTensor, int, int]] = {}  # symbol → tensor, axis, factor of its size there
        for v, (tensor, perm) in inputs.items():
            for axis, d in enumerate(v.type.shape):
                for s in dims.symbols(d):
                    factor = dims.exact(d, dims.symbol(s.name, s.minimum, s.optimum, s.maximum))
                    if isinstance(factor, int) and factor > 0:
                        self._sources.setdefault(s.name, (tensor, perm.index(axis), factor))

    def vector(self, sizes: Sequence[Size]) -> TFLiteTensor:
        """Returns sizes as i32[n]: a constant if all are numbers."""
        if dims.is_known(*sizes):
            return self._numbers(list(map(int, sizes)))
        parts = [self.one(d) for d in sizes]
        if len(parts) == 1:
            return parts[0]
        return self.model.emit("CONCATENATION", parts, (len(parts),), I32, "ConcatenationOptions", dict(axis=0))

    def one(self, size: Size) -> TFLiteTensor:
        """Returns a size as i32[1]."""
        if size not in self._emitted:
            self._emitted[size] = self._sum(size) if isinstance(size, Dim) else self._numbers([int(size)])
        return self._emitted[size]

    def _numbers(self, sizes: Sequence[int]) -> TFLiteTensor:
        if any(not -(1 << 31) <= d < 1 << 31 for d in sizes):
            raise NoForm(f"TFLite's sizes have 32 bits, got {sizes}")
        return self.model.constant(np.array(sizes, np.int32))

    def _apply(self, name: str, a: TFLiteTensor, b: TFLiteTensor) -> TFLiteTensor:
        kind = {"ADD": "AddOptions", "MUL": "MulOptions"}.get(name, "")
        return self.model.emit(name, [a, b], (1,), I32, kind)

    def _sum(self, size: Dim) -> TFLiteTensor:
        total: TFLiteTensor | None = None
        for monomial, factor in size.terms:
            parts = [self._atom(a) for a in monomial]
            parts += [self._numbers([factor])] if factor != 1 or not parts else []
            product = parts[0]
            for part in parts[1:]:
                product = self._apply("MUL", product, part)
            total = product if total is None else self._apply("ADD", total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> TFLiteTensor:
        if atom not in self._emitted:
            if isinstance(atom, Symbol):
                self._emitted[atom] = self._symbol(atom)
            else:
                self._emitted[atom] = self._function(atom)
        return self._emitted[atom]

    def _symbol(self, symbol: Symbol) -> TFLiteTensor:
        if symbol.name not in self._sources:
            raise NoForm(f"the size {symbol.name} is not a size of an input, nor a multiple is")
        tensor, axis, factor = self._sources[symbol.name]
        if tensor not in self._emitted:
            self._emitted[tensor] = self.model.emit(
                "SHAPE", [tensor], (tensor.rank,), I32, "ShapeOptions", dict(out_type=CODES[I32])
            )
        at = [self._numbers([n]) for n in (axis, axis + 1, 1)]
        size = self.model.emit("STRIDED_SLICE", [self._emitted[tensor], *at], (1,), I32, "StridedSliceOptions")
        return size if factor == 1 else self._apply("FLOOR_DIV", size, self._numbers([factor]))

    def _function(self, atom: SizeFunction) -> TFLiteTensor:
        a, b = (self.one(arg) for arg in atom.args)
        return self._apply(FUNCTIONS[atom.fn], a, b)
