"""Dynamic dimensions in ONNX: computed from the shapes of inputs, where a node reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Atom, Dim, Size, SizeFunction, Symbol
from pelton.ir.graph import Value
from pelton.ir.types import I64, DType

from .schemas import Unwritable


class Emitter(Protocol):
    """The receiver of the nodes: a model in progress."""

    def constant(self, array: np.ndarray) -> str: ...
    def emit(
        self, kind: str, inputs: Iterable[str], gives: Sequence[DType | None], attrs: Mapping[str, Any]
    ) -> tuple[str, ...]: ...
    def outside(self, hint: str) -> AbstractContextManager[None]: ...


class SizeNodes:
    """Emits the nodes that compute sizes, each once, in the main graph."""

    def __init__(self, model: Emitter, inputs: Iterable[Value]):
        self.model = model
        self._made: dict[Size | Atom, str] = {}  # → an i64[1]
        self._sources: dict[str, tuple[str, int, int]] = {}  # symbol → input, axis, and the factor of its size there
        for v in inputs:
            for axis, d in enumerate(v.type.shape):
                for s in dims.symbols(d):
                    factor = dims.exact(d, dims.symbol(s.name, s.minimum, s.optimum, s.maximum))
                    if isinstance(factor, int) and factor > 0:
                        self._sources.setdefault(s.name, (v.name, axis, factor))

    def vector(self, sizes: Sequence[Size]) -> str:
        """Returns sizes as i64[n]: a constant if all are numbers."""
        if dims.is_known(*sizes):
            return self.model.constant(np.array([int(d) for d in sizes], np.int64))
        with self.model.outside("sizes"):
            parts = [self._one(d) for d in sizes]
            return parts[0] if len(parts) == 1 else self._emit("Concat", *parts, axis=0)

    def scalar(self, size: Size) -> str:
        """Returns a size as i64[]."""
        if dims.is_known(size):
            return self.model.constant(np.array(int(size), np.int64))
        with self.model.outside("sizes"):
            return self._emit("Squeeze", self._one(size), self.model.constant(np.array([0], np.int64)))

    def _emit(self, kind: str, *inputs: str, **attrs: int) -> str:
        return self.model.emit(kind, inputs, [I64], attrs)[0]

    def _one(self, size: Size) -> str:
        """Returns a size as i64[1]."""
        if size not in self._made:
            self._made[size] = self._sum(size) if isinstance(size, Dim) else self._number(int(size))
        return self._made[size]

    def _number(self, n: int) -> str:
        return self.model.constant(np.array([n], np.int64))

    def _sum(self, size: Dim) -> str:
        total = ""
        for monomial, factor in size.terms:
            parts = [self._atom(a) for a in monomial]
            parts += [self._number(factor)] if factor != 1 or not parts else []
            product = parts[0]
            for part in parts[1:]:
                product = self._emit("Mul", product, part)
            total = self._emit("Add", total, product) if total else product
        return total

    def _atom(self, atom: Atom) -> str:
        if atom not in self._made:
            self._made[atom] = self._symbol(atom) if isinstance(atom, Symbol) else self._function(atom)
        return self._made[atom]

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.name not in self._sources:
            raise Unwritable(f"the size {symbol.name} is not a size of an input, nor a multiple is")
        name, axis, factor = self._sources[symbol.name]
        size = self._emit("Shape", name, start=axis, end=axis + 1)
        return size if factor == 1 else self._emit("Div", size, self._number(factor))

    def _function(self, atom: SizeFunction) -> str:
        parts = [self._one(a) for a in atom.args]
        if atom.fn != "floordiv":
            return self._emit(atom.fn.capitalize(), *parts)
        a, b = parts
        if dims.bounds(atom.args[0])[0] < 0:  # Div rounds towards zero
            a = self._emit("Sub", a, self._emit("Mod", a, b))
        return self._emit("Div", a, b)
