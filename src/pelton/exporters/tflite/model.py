"""A TFLite model in progress: the tensors of a program's values, in the orders of axes that operators need."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Graph, Value, unique
from pelton.ir.types import F32, I8, I32, U8, DType

from .forms import (
    Perm,
    arranged,
    identity,
    inverse_of,
    is_relabeling,
    reshaped_form,
    volume,
)
from .sizes import TFLiteSizes
from .tensors import CODES, NoForm, Scaling, TFLiteOperator, TFLiteTensor


@dataclass
class Written:
    """What a model has of a value: tensors by form, the first one native; its elements if constant.

    scaling: of stored integers. stored: the integers that the value is the dequantization of.
    """

    forms: dict[Perm, TFLiteTensor] = field(default_factory=dict)
    array: np.ndarray | None = None
    scaling: Scaling | None = None
    stored: Value | None = None


class TFLiteDraft:
    """Tensors and operators in order; values are written on demand."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Value, Perm],
        write_body: Callable[[TFLiteDraft, Graph, Sequence[Value]], None],
    ):
        self.graph = graph
        self.operators: list[TFLiteOperator] = []
        self.layer = ""  # of new operators
        self.write_body: Callable[[TFLiteDraft, Graph, Sequence[Value]], None] = write_body
        self._taken: set[str] = set()
        self._written: dict[Value, Written] = {v: Written(array=a) for v, a in graph.constants.items()}
        self._equal: dict[Any, TFLiteTensor] = {}  # small constants
        self.inputs: dict[Value, TFLiteTensor] = {}
        for v, perm in inputs.items():
            self.inputs[v] = TFLiteTensor(arranged(v.type.shape, perm), v.type.dtype, self.fresh(v.name))
            self.put(v, self.inputs[v], perm)
        self.sizes = TFLiteSizes(self, {v: (self.inputs[v], perm) for v, perm in inputs.items()})

    # --- tensors

    def fresh(self, hint: str) -> str:
        name = unique(hint, self._taken)
        self._taken.add(name)
        return name

    def tensor(
        self, shape: Sequence[Size], dtype: DType, scaling: Scaling | None = None, name: str = ""
    ) -> TFLiteTensor:
        if dtype not in CODES:
            raise NoForm(f"TFLite has no elements of type {dtype.value}")
        return TFLiteTensor(tuple(shape), dtype, self.fresh(name or self.layer or "tensor"), scaling)

    def constant(self, array: np.ndarray, scaling: Scaling | None = None) -> TFLiteTensor:
        """Returns a constant, equal ones once."""
        array = np.asarray(array)
        if (dtype := DType.of(array)) not in CODES:
            raise NoForm(f"TFLite has no elements of type {dtype.value}")
        key = (dtype, array.shape, _digest(array), scaling)
        if key not in self._equal:
            name = self.fresh("constant")
            self._equal[key] = TFLiteTensor(array.shape, dtype, name, scaling, array)
        return self._equal[key]

    def emit(
        self,
        name: str,
        inputs: Sequence[TFLiteTensor | None],
        shape: Sequence[Size],
        dtype: DType,
        kind: str = "",
        options: Mapping[str, Any] | None = None,
        scaling: Scaling | None = None,
    ) -> TFLiteTensor:
        """Appends an operator of one output and returns that."""
        output = self.tensor(shape, dtype, scaling)
        self.append(name, inputs, [output], kind, options)
        return output

    def append(
        self,
        name: str,
        inputs: Sequence[TFLiteTensor | None],
        outputs: Sequence[TFLiteTensor],
        kind: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.operators.append(
            TFLiteOperator(name, tuple(inputs), tuple(outputs), self.layer, kind, dict(options or {}))
        )

    def transposed(self, x: TFLiteTensor, perm: Perm) -> TFLiteTensor:
        """Returns a tensor with its axes in another order."""
        if perm == identity(x.rank):
            return x
        shape = arranged(x.shape, perm)
        if is_relabeling(x.shape, identity(x.rank), perm):
            return self.reshaped(x, shape)
        if x.rank > 6:
            raise NoForm(f"TFLite transposes up to 6 axes, got {x.rank}")
        order = self.constant(np.array(perm, np.int32))
        return self.emit("TRANSPOSE", [x, order], shape, x.dtype, scaling=x.scaling and x.scaling.moved(perm))

    def reshaped(self, x: TFLiteTensor, shape: Sequence[Size]) -> TFLiteTensor:
        """Returns a tensor with the same elements under another shape."""
        if tuple(shape) == x.shape:
            return x
        if x.data is not None and x.scaling is None:
            return self.constant(x.data.reshape([int(d) for d in shape]))
        dynamic = [i for i, d in enumerate(shape) if not isinstance(d, int)]
        options: dict[str, Any] = {}
        if len(dynamic) <= 1 and (not dynamic or 0 not in shape):
            numbers = np.array([d if isinstance(d, int) else -1 for d in shape], np.int32)
            to, options = self.constant(numbers), dict(new_shape=numbers)
        else:
            to = self.sizes.vector(shape)
        return self.emit("RESHAPE", [x, to], shape, x.dtype, "ReshapeOptions", options, x.scaling)

    def rescaled(self, x: TFLiteTensor, scaling: Scaling, dtype: DType = I8) -> TFLiteTensor:
        """Returns stored integers, or numbers, in another scaling."""
        if x.scaling == scaling and x.dtype is dtype:
            return x
        return self.emit("QUANTIZE", [x], x.shape, dtype, scaling=scaling)

    def cast(self, x: TFLiteTensor, to: DType) -> TFLiteTensor:
        if x.dtype is to:
            return x
        if x.data is not None and to in (I32,) and (np.abs(x.data) < 1 << 31).all():
            return self.constant(x.data.astype(to.numpy))
        options = dict(in_type=CODES[x.dtype], out_type=CODES[to])
        return self.emit("CAST", [x], x.shape, to, "CastOptions", options)

    # --- values

    def of(self, v: Value) -> Written:
        if v not in self._written:
            raise NoForm(f"%{v.name} has no form")
        return self._written[v]

    def holds(self, v: Value) -> bool:
        return v in self._written

    def is_stored(self, v: Value) -> bool:
        """True if a value is the dequantization of stored integers of one scale, or constant."""
        entry = self._written.get(v)
        return entry is not None and entry.stored is not None

    def put(self, v: Value, tensor: TFLiteTensor, perm: Perm | None = None) -> None:
        """Records a tensor of a value; the first one is its native form."""
        perm = identity(v.type.rank) if perm is None else perm
        assert perm is not None
        entry = self._written.setdefault(v, Written())
        entry.forms.setdefault(perm, tensor)
        if tensor.scaling is not None and entry.scaling is None:
            entry.scaling = tensor.scaling.moved(inverse_of(perm))

    def put_constant(self, v: Value, array: np.ndarray) -> None:
        self._written[v] = Written(array=array)

    def put_stored(self, v: Value, stored: Value, scaling: Scaling) -> None:
        """Records that a value is the dequantization of stored integers."""
        self._written[v] = Written(stored=stored, scaling=scaling)

    def put_codes(self, v: Value, codes: np.ndarray, scaling: Scaling) -> None:
        """Records constant stored integers."""
        self._written[v] = Written(array=codes, scaling=scaling)

    def stored(self, v: Value) -> tuple[Value, Scaling]:
        """Returns the stored integers of a value, and their scaling."""
        entry = self.of(v)
        assert entry.stored is not None and entry.scaling is not None
        return entry.stored, entry.scaling

    def holds_integers(self, v: Value) -> bool:
        """True if a value is stored integers, whose numbers depend on a scale."""
        entry = self._written.get(v)
        return entry is not None and entry.scaling is not None and entry.stored is None

    def scaling(self, v: Value) -> Scaling | None:
        return self.of(v).scaling

    def scale_input(self, v: Value, scaling: Scaling) -> None:
        """Declares an input as stored integers; unsigned bytes are then shifted to signed ones."""
        (perm, before), entry = next(iter(self.of(v).forms.items())), self.of(v)
        shift = 128 if v.type.dtype is U8 else 0
        x = replace(before, scaling=Scaling(scaling.scale, scaling.zero + shift))
        self.inputs[v] = x
        entry.forms, entry.scaling = {perm: self.rescaled(x, scaling)}, scaling
        self.sizes = TFLiteSizes(self, {u: (t, next(iter(self.of(u).forms))) for u, t in self.inputs.items()})

    def forget(self, values: Iterable[Value]) -> None:
        for v in values:
            self._written.pop(v, None)

    def rename(self, v: Value, to: Value) -> None:
        """Makes a value the same as another one."""
        self._written[to] = self.of(v)

    def copied(self, x: TFLiteTensor) -> TFLiteTensor:
        """Returns another tensor with the same elements."""
        if not x.shape:  # a shape without sizes means any
            x = self.reshaped(x, (1,))
            return self.emit("RESHAPE", [x, self.constant(np.zeros(0, np.int32))], (), x.dtype, "ReshapeOptions")
        numbers = np.array([d if isinstance(d, int) else -1 for d in x.shape], np.int32)
        known = (numbers >= 0).all()
        to = self.constant(numbers) if known else self.sizes.vector(x.shape)
        options = dict(new_shape=numbers) if known else {}
        return self.emit("RESHAPE", [x, to], x.shape, x.dtype, "ReshapeOptions", options, x.scaling)

    def known(self, v: Value) -> np.ndarray | None:
        """Returns the elements of a constant; None for others."""
        entry = self.of(v)
        if entry.array is None and entry.stored is not None and (codes := self.known(entry.stored)) is not None:
            assert entry.scaling is not None
            entry.array = numbers_of(codes, entry.scaling)
        return entry.array

    def native(self, v: Value) -> Perm:
        """Returns the form that a value has at no cost; for constants, its own order."""
        entry = self.of(v)
        if entry.forms:
            return next(iter(entry.forms))
        if entry.stored is not None and entry.array is None:
            return self.native(entry.stored)
        return identity(v.type.rank)

    def get(self, v: Value, perm: Perm | None = None) -> TFLiteTensor:
        """Returns a value in a form, its own order by default."""
        perm = identity(v.type.rank) if perm is None else perm
        assert perm is not None
        entry = self.of(v)
        if perm not in entry.forms:
            if (array := self.known(v)) is not None:
                scaling = None if entry.scaling is None or entry.stored else entry.scaling.moved(perm)
                entry.forms[perm] = self.constant(np.asarray(array.transpose(perm), order="C"), scaling)
            elif entry.forms:
                before, x = next(iter(entry.forms.items()))
                entry.forms[perm] = self.transposed(x, tuple(before.index(a) for a in perm))
            else:
                assert entry.stored is not None
                x = self.get(entry.stored, perm)
                entry.forms[perm] = self.emit("DEQUANTIZE", [x], x.shape, F32)
        return entry.forms[perm]

    def integers(self, v: Value, perm: Perm | None = None) -> TFLiteTensor | None:
        """Returns the stored integers of a value in a form; None if it has none."""
        entry = self.of(v)
        return None if entry.stored is None else self.get(entry.stored, perm)

    def cheapest(self, values: Sequence[Value], perms: Sequence[Perm]) -> Perm:
        """Returns the form in which the fewest elements of these values have to be transposed."""

        def cost(perm: Perm) -> int:
            return sum(
                volume(v.type.shape)
                for v in values
                if v.type.rank == len(perm) and not is_relabeling(v.type.shape, self.native(v), perm)
            )

        return min(perms, key=cost)

    def reshape(self, v: Value, to: Value) -> None:
        """Writes a value as another one of the same elements under another shape."""
        if (array := self.known(v)) is not None:
            entry = self.of(v)
            codes = None if entry.stored is None else self.known(entry.stored)
            if codes is not None and entry.scaling is not None and len(entry.scaling.scale) == 1:
                held = Value(to.type.with_dtype(DType.of(codes)), to.name)
                self.put_codes(held, codes.reshape(to.type.shape), entry.scaling)
                self.put_stored(to, held, entry.scaling)
            else:
                self.put_constant(to, array.reshape(to.type.shape))
            return
        before, after = v.type.shape, to.type.shape
        native = self.native(v)
        perm = reshaped_form(before, after, native)
        source = identity(v.type.rank) if perm is None else native
        perm = identity(to.type.rank) if perm is None else perm
        entry = self.of(v)
        if entry.stored is not None and not entry.forms:  # integers stay integers
            stored = Value(to.type.with_dtype(entry.stored.type.dtype), to.name)
            self.put(stored, self.reshaped(self.get(entry.stored, source), arranged(after, perm)), perm)
            assert entry.scaling is not None
            self.put_stored(to, stored, entry.scaling)
            return
        self.put(to, self.reshaped(self.get(v, source), arranged(after, perm)), perm)

    def widened(self, v: Value, rank: int) -> Value:
        """Returns a value with leading axes of 1 up to a rank."""
        if v.type.rank == rank:
            return v
        wide = Value(v.type.with_shape((*[1] * (rank - v.type.rank), *v.type.shape)), v.name)
        self.reshape(v, wide)
        return wide


def numbers_of(codes: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Returns the numbers that stored integers represent, in f32."""
    scale = np.array(scaling.scale, np.float32)
    if scale.size > 1:
        scale = scale.reshape([-1 if a == scaling.axis else 1 for a in range(codes.ndim)])
    return ((codes.astype(np.int32) - scaling.zero).astype(np.float32) * scale).astype(np.float32)


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.asarray(array, order="C").tobytes(), digest_size=20).digest()
