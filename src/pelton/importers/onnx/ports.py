"""Splits inputs that are sequences, maps or optionals into tensors, and converts given values to arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from pelton.errors import InputError
from pelton.ir.graph import Value
from pelton.ir.size_constraints import Range
from pelton.ir.bindings import MapInput, ValueSequence, Binding
from pelton.ir.types import STRING, TensorType
from pelton.ops.foreign import DTYPES

Sizes = tuple[int | Range, ...]
ABSENT = "none"  # text for an optional without a value
MAX_SHOWN = 16  # elements of a value in a text
MAX_SEQUENCE = 1024  # tensors of a sequence


@dataclass(frozen=True)
class Part:
    """An input as tensors: itself, the elements of a sequence ("x[0]", "x[1]", …), or none (an absent optional)."""

    name: str
    tensors: tuple[onnx.ValueInfoProto, ...] = ()
    sequence: bool = False
    optional: bool = False
    problem: str = ""  # reason why it is invalid
    map: bool = False  # two tensors: its keys and its values

    def binding(self, values: Sequence[Value]) -> Binding:
        """Returns the binding of the input's name, from the values of its tensors."""
        if self.map:
            return MapInput(*values)
        if self.sequence:
            return ValueSequence(tuple(values))
        return values[0] if values else None


@dataclass(frozen=True)
class Given:
    """The inputs of a model with the caller's sizes, and arrays of inputs that become constants, by tensor name."""

    parts: Sequence[Part]
    shapes: Mapping[str, Sizes]
    values: Mapping[str, np.ndarray]
    # arrays for inputs with an initializer in the model
    replaced: Mapping[str, np.ndarray] = field(default_factory=dict)
    # sizes by names of dimensions, for axes that `shapes` does not set
    dimensions: Mapping[str, int | Range] = field(default_factory=dict)

    def describe(self) -> dict[str, str]:
        """Describes the known inputs and their values."""
        absent = [p.name for p in self.parts if not p.tensors and not p.sequence]
        return {
            name: format_value(array) for name, array in (*self.values.items(), *self.replaced.items())
        } | dict.fromkeys(absent, "nothing")

    def forms(self) -> dict[str, Any]:
        """Returns the ports of each input that is not a single tensor."""
        return {
            p.name: _form(p)
            for p in self.parts
            if (p.sequence or p.map or not p.tensors) and not any(t.name in self.values for t in p.tensors)
        }


def _form(part: Part) -> Any:
    """Returns the ports of one input that is not a single tensor."""
    if part.map:
        return _entries(part)
    return [t.name for t in part.tensors] if part.sequence else None


def split_inputs(
    declared: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sizes], values: Mapping[str, Any]
) -> Given:
    """Splits inputs into tensors; a sequence has as many as there are sizes or values, none for sizes ().

    Raises InputError if they do not fit.
    """
    parts, sizes, arrays = [], dict(shapes), dict[str, np.ndarray]()
    for i in declared:
        type, optional = i.type, i.type.WhichOneof("value") == "optional_type"
        type = type.optional_type.elem_type if optional else type
        kind = type.WhichOneof("value") or "tensor of unknown element type"
        known = values.get(i.name, ...)
        if optional and (known is None or isinstance(known, str) and known == ABSENT):
            parts.append(Part(i.name, optional=True))
        elif kind == "tensor_type":
            parts.append(Part(i.name, (onnx.ValueInfoProto(name=i.name, type=type),), optional=optional))
            if known is not ...:
                arrays[i.name] = _array(i.name, known, type.tensor_type)
        elif kind == "map_type" and known is ... and type.map_type.value_type.HasField("tensor_type"):
            of = type.map_type
            tensors = (
                _column(f"{i.name}.keys", of.key_type, i.name),
                _column(f"{i.name}.values", of.value_type.tensor_type.elem_type, i.name),
            )
            parts.append(Part(i.name, tensors, optional=optional, map=True))
        elif kind == "sequence_type" and type.sequence_type.elem_type.WhichOneof("value") in (None, "tensor_type"):
            items = known if known is ... else _items(i.name, known)
            count = _count(i.name, shapes) if items is ... else len(items)
            of = type.sequence_type.elem_type.tensor_type
            names = [f"{i.name}[{k}]" for k in range(count or 0)]
            sizes.pop(i.name, None)
            parts.append(
                Part(
                    i.name,
                    tuple(_element(name, of) for name in names),
                    True,
                    optional,
                    (
                        ""
                        if count is not None
                        else (
                            f"input {i.name!r} is a sequence; set the sizes of each of its tensors with"
                            f" shapes={{'{i.name}[0]': ..., '{i.name}[1]': ...}}, or shapes={{{i.name!r}: ()}} for an"
                            " empty one"
                        )
                    ),
                )
            )
            if items is not ...:
                arrays.update((name, _array(name, item, of)) for name, item in zip(names, items))
        else:
            parts.append(
                Part(
                    i.name,
                    optional=optional,
                    problem=(
                        "inputs must be tensors, sequences of tensors, maps or optionals, this one is declared as "
                        f"{kind.removesuffix('_type').replace('_', ' ')}"
                    ),
                )
            )
    for name, array in arrays.items():
        if sizes.setdefault(name, array.shape) != array.shape:
            raise InputError(
                f"the value of input {name!r} has shape {list(array.shape)}, but shapes= has"
                f" [{', '.join(map(str, sizes[name]))}]; leave out the shape"
            )
    return Given(parts, sizes, arrays)


def _element(name: str, of: onnx.TypeProto.Tensor) -> onnx.ValueInfoProto:
    """Declares one tensor of a sequence, without dimension names: each tensor may have other sizes."""
    info = onnx.ValueInfoProto(name=name, type=onnx.TypeProto(tensor_type=of))
    for d in info.type.tensor_type.shape.dim:
        d.ClearField("dim_param")
    return info


def _column(name: str, dtype: int, of: str) -> onnx.ValueInfoProto:
    """Declares the keys or the values of a map, equal in number."""
    return onnx.helper.make_tensor_value_info(name, dtype, [f"{of}.entries"])


def _entries(part: Part) -> dict[str, Any]:
    keys, values = part.tensors
    return {
        "keys": keys.name,
        "values": values.name,
        "types": [DTYPES[t.type.tensor_type.elem_type].value for t in part.tensors],
    }


def _count(name: str, shapes: Mapping[str, Sizes]) -> int | None:
    """Counts the tensors of a sequence for which sizes are given."""
    if name in shapes:
        if shapes[name]:
            raise InputError(
                f"input {name!r} is a sequence: its tensors have shapes, '{name}[0]', '{name}[1]', …, and () stands for"
                " none of them"
            )
        return 0
    indices = sorted(
        int(match[1]) for key in shapes if (match := re.fullmatch(re.escape(name) + r"\[(\d{1,6})\]", key))
    )
    if indices != list(range(len(indices))) or len(indices) > MAX_SEQUENCE:
        raise InputError(
            f"the tensors of sequence {name!r} are numbered from 0 to at most {MAX_SEQUENCE}; shapes= has"
            f" {indices[:MAX_SHOWN]}"
        )
    return len(indices) or None


def _items(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)) or len(given) > MAX_SEQUENCE:
        raise InputError(
            f"input {name!r} is a sequence, its value a list of at most {MAX_SEQUENCE} arrays;"
            f" got {type(given).__name__}"
        )
    return given


def _array(name: str, given: Any, declared: onnx.TypeProto.Tensor) -> np.ndarray:
    """Converts a value to an array of the declared type; InputError if it has another or would lose information."""
    where, dtype = f"the value of input {name!r}", DTYPES.get(declared.elem_type)
    if dtype is None:
        raise InputError(f"{where} is of no use: the model declares no element type that is supported")
    typed = isinstance(given, (np.ndarray, np.generic))
    if typed and dtype is not STRING and given.dtype != dtype.numpy:
        raise InputError(f"{where} must be {dtype.value}, got {given.dtype.name}; convert it with .astype")
    try:
        array = np.asarray(
            _parsed(given, len(declared.shape.dim)) if isinstance(given, str) and dtype is not STRING else given
        )
        if dtype is STRING:
            if array.dtype.kind not in "OUT" or not all(isinstance(s, str) for s in array.flat):
                raise TypeError
            return array.astype(object)
        result = array if typed else array.astype(dtype.numpy)
        if not typed and not dtype.is_float and not np.array_equal(result, array):
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{where} must be an array of {dtype.value}, or numbers that make one, got {given!r:.80}"
        ) from None
    return np.array(result, order="C")


def _parsed(text: str, rank: int) -> Any:
    """Parses `3`, `1,2` or `[[1, 2], [3, 4]]`; raises ValueError for anything else."""
    text = re.sub(r"\b(True|False)\b", lambda found: found[0].lower(), text)
    value = json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    return value[0] if rank == 0 and len(value) == 1 else value


def format_value(array: np.ndarray) -> str:
    """Formats the type and the first elements of a value."""
    return (
        f"{TensorType.of(array)} ="
        f" {np.array2string(array, separator=', ', threshold=MAX_SHOWN, edgeitems=4, max_line_width=10**6)}".replace(
            "\n", ""
        )
    )
