"""The registry of operations, and the interface to their readers: arguments by name, tensors as `HeldTensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pelton.importers.reading import FileValues
from pelton.ir.types import BOOL, DType
from pelton.network import NetworkTensor

from ..config import DTYPES, MAX_NUMBER, UnknownPart
from ..held import HeldTensor, together
from ..reading import KerasReading

Given = dict[str, Any]
OperationReader = Callable[["Operation"], Any]
# class name → its reader, and the names of its call's arguments
OPERATIONS: dict[str, tuple[OperationReader, tuple[str, ...]]] = {}
MODULES = ("keras.src.ops.", "keras.ops", "")


class Operation(FileValues):
    """A call of an operation: its options and arguments."""

    def __init__(self, reading: KerasReading, type: str, given: Given):
        self.reading, self.net, self.layer, self.type, self.given = reading, reading.net, reading.layer, type, given
        self.seen: set[str] = set()

    def refuse(self, reason: str) -> UnknownPart:
        return self.layer.refuse(reason)

    error = refuse

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an argument as written; the default if it is missing or null."""
        self.seen.add(name)
        value = self.given.get(name)
        return default if value is None else value

    def expect(self, **values: Any) -> None:
        """Raises UnknownPart if these arguments have other values."""
        for name, value in values.items():
            if self.get(name, value) != value:
                raise self.refuse(f"has the unknown {name}={self.get(name)!r:.60}")

    def check_rest(self) -> None:
        rest = [name for name, v in self.given.items() if name not in self.seen and v is not None]
        if rest:
            raise self.refuse(f"has the unknown arguments {', '.join(map(repr, rest[:4]))}")

    # --- arguments

    def held(self, name: str) -> HeldTensor:
        """Returns a tensor, also for a constant."""
        value = self.get(name)
        if isinstance(value, HeldTensor):
            return value
        return HeldTensor(self.net, self.net.constant(self.array(value, name)))

    def tensor(self, name: str) -> NetworkTensor:
        return self.held(name).tensor()

    def floats(self, name: str) -> HeldTensor:
        x = self.held(name)
        return x if x.dtype.is_float else x.mapped(lambda t: self.net.cast(t, to="f32"))

    def array(self, given: Any, name: str = "operand") -> np.ndarray:
        """Converts a number or an array to f32, i32 or bool, as Keras converts Python's."""
        array = np.asarray(given) if isinstance(given, (int, float, bool, list, tuple, np.ndarray)) else None
        if array is None or array.dtype.kind not in "fiub":
            raise self.refuse(f"needs a tensor or numbers as {name}, got {given!r:.60}")
        if isinstance(given, np.ndarray):
            return array
        return array.astype({"f": np.float32, "i": np.int32, "u": np.int32, "b": np.bool_}[array.dtype.kind])

    def number(self, name: str, default: float | None = None) -> float:
        return self.real(self.get(name, default), name)

    def integers(self, name: str, low: int = -MAX_NUMBER) -> tuple[int, ...]:
        value = self.get(name)
        return self.wholes([value] if isinstance(value, int) else value, name, low, MAX_NUMBER)

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        return self.reading.axis(self.get(name, default), rank)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns axes from the front; all if there are none."""
        axes = self.get(name)
        if axes is None:
            return tuple(range(rank))
        return tuple(self.reading.axis(a, rank) for a in (axes if isinstance(axes, (list, tuple)) else [axes]))

    def dtype(self, name: str) -> DType | None:
        kind = self.get(name)
        if kind is None:
            return None
        kind = kind.get("config", {}).get("name") if isinstance(kind, dict) else kind
        if kind not in DTYPES:
            raise self.refuse(f"has the type {kind!r:.60}")
        return BOOL if kind == "bool" else DType(DTYPES[kind])

    def operands(self, *names: str) -> tuple[list[Any], HeldTensor]:
        """Returns arguments to broadcast against each other, of one type, in one order of axes."""
        values = [self.get(name) for name in names]
        kinds = [x.dtype for x in values if isinstance(x, HeldTensor)]
        if not kinds:
            raise self.refuse("has no tensor among its operands")
        arrays = [x if isinstance(x, HeldTensor) else self.array(x, name) for x, name in zip(values, names)]
        to = self._common(kinds, [x for x in arrays if not isinstance(x, HeldTensor)], values)
        cast = [self._as(x, to) for x in arrays]
        return together(cast)

    def _common(self, kinds: Sequence[DType], arrays: Sequence[np.ndarray], given: Sequence[Any]) -> DType:
        """Returns the type of a result: floats before integers before bools; Python numbers adopt tensors' types."""
        firm = [*kinds, *(DType.of(v) for v in given if isinstance(v, np.ndarray))]
        floats = [k for k in firm if k.is_float]
        if any(k is not DType.F32 for k in floats) and len(set(floats)) > 1:
            raise self.refuse(f"has operands of several types, {', '.join(k.value for k in firm)}")
        if floats:
            return floats[0]
        if any(a.dtype.kind == "f" for a in arrays):
            return DType.F32
        integers = {k for k in firm if k.is_integer}
        if len(integers) > 1:
            raise self.refuse(f"has operands of several types, {', '.join(k.value for k in firm)}")
        if integers:
            return integers.pop()
        return DType.I32 if any(a.dtype.kind in "iu" for a in arrays) else BOOL

    def _as(self, x: Any, to: DType) -> Any:
        if isinstance(x, HeldTensor):
            return x if x.dtype is to else x.mapped(lambda t: self.net.cast(t, to=to))
        return x.astype(to.numpy)

    def of(self, tensor: NetworkTensor) -> HeldTensor:
        return HeldTensor(self.net, tensor)


def reads_operation(*types: str, args: Sequence[str] = ("x",)) -> Callable[[OperationReader], OperationReader]:
    """Registers the reader of operations of these classes. args: the names of their calls' arguments."""

    def register(reader: OperationReader) -> OperationReader:
        OPERATIONS.update(dict.fromkeys(types, (reader, tuple(args))))
        return reader

    return register


def operation(r: KerasReading) -> Any:
    """Applies an operation of Keras 3."""
    layer = r.layer
    if layer.type not in OPERATIONS or not layer.is_own or not layer.module.startswith(MODULES):
        raise layer.refuse("is an operation that is not known")
    _, names = OPERATIONS[layer.type]
    if len(r.args) > len(names):
        raise layer.refuse(f"is called with {len(r.args)} arguments, where {len(names)} are known")
    options = {name: layer.option(name) for name in layer.options if name not in ("name", "dtype")}
    if "dtype" in layer.options:
        options["dtype"] = layer.options["dtype"]
    call = dict(zip(names, r.args)) | r.kwargs
    if set(options) & {k for k, v in call.items() if v is not None and options.get(k) is not None}:
        raise layer.refuse("has an argument twice")
    return applied(r, layer.type, options | {k: v for k, v in call.items() if v is not None or k not in options})


def applied(r: KerasReading, type: str, given: Given) -> Any:
    """Applies an operation with these options and arguments."""
    reader, _ = OPERATIONS[type]
    op = Operation(r, type, given)
    outputs = reader(op)
    op.check_rest()
    return outputs
