"""Determines the types of a model's inputs: fixed sizes, dynamic dimensions, and the symbols of unspecified ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from pelton.errors import InputError, ModelError, near
from pelton.ir import dims
from pelton.ir.dims import Size, Symbol
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.graph import Value
from pelton.ir.size_constraints import Range, SizeConstraint, identifier, multiple
from pelton.ir.bindings import BROKEN
from pelton.ir.types import TensorType
from pelton.ops.foreign import DTYPES

from .ports import Given
from .program import Program
from .scope import Scope

MAX_SHOWN = 5  # names of a model in a message
DEFAULT_OPTIMUM = 128  # the optimum of unspecified dimensions other than the first of an input, whose optimum is 1
# exporters' names for unnamed dimensions
NO_NAME = re.compile(r"[\W\d_]*|none|null|nil|nan|unk|unknown|undefined|dynamic", re.IGNORECASE)


class Inputs:
    """Binds the inputs of a model to values whose sizes are numbers or symbols."""

    def __init__(
        self,
        program: Program,
        scope: Scope,
        given: Given,
        settled: Mapping[str, SizeConstraint],
        optimum: Mapping[str, Sequence[int]] | None = None,
    ):
        self.values: list[Value] = []
        self.defaulted: list[str] = []  # axes of unspecified sizes: "image[0] (batch)"
        self.unspecified: dict[str, str] = {}  # symbol of an unspecified dynamic dimension → its first axis
        self.requested: dict[str, str] = {}  # symbol of a range that the caller gave → its first axis
        self._settled, self._optimum = settled, optimum
        self._symbols: dict[str, str] = {}  # key of a size → the name of its symbol
        self._named: dict[str, Size] = {}  # symbol → its size
        self._labels: dict[str, str] = {}  # symbol of an unspecified size → its first axis
        self._without_optimum: set[str] = set()  # symbols of sizes without an optimum from the caller
        self._optima: dict[str, int] = {}  # key of a size → the optimum that the caller gave
        self.observed: set[str] = set()  # the symbols in `unspecified` with an optimum from the caller
        declared = [i for part in given.parts for i in part.tensors]
        names = self._names(program, declared, given.shapes)
        axes = self._axes(program, declared, given, names)
        program.unspecified, program.known_sizes = self.unspecified, self.observed
        program.requested = self.requested
        for part in given.parts:
            try:
                if part.problem:
                    raise ModelError(f"{part.problem} (input {part.name!r}, {program.source.name})")
                made = [
                    self._value(
                        program, i, self._type(program, i, given.shapes.get(i.name), axes), given.values.get(i.name)
                    )
                    for i in part.tensors
                ]
                program.inputs.update(made if not part.sequence else ())
                program.bind(scope, part.name, part.binding(made))
            except ModelError as e:
                program.problems.append(str(e))
                program.bind(scope, part.name, BROKEN)
            if part.optional and not part.sequence and part.tensors and part.name not in given.values:
                program.warn(
                    f"input {part.name!r} is optional in the model, but required by the engine; "
                    f"values={{{part.name!r}: None}} builds one without it ({program.source.name})"
                )
        program.dimensions.update((name, axes[place]) for place, name in names.items() if name)

    @property
    def free(self) -> dict[str, Symbol]:
        """Symbols of unspecified dynamic dimensions by name."""
        return {name: next(iter(dims.symbols(self._named[name]))) for name in self.unspecified}

    def assumptions(self, settled: Mapping[str, SizeConstraint], model: str) -> list[str]:
        """Formats warnings on assumptions about unspecified sizes; none if the caller gave optima."""
        if self._optimum is not None:
            return []
        # reversed: the factor of a multiple has the same label, and comes later
        sizes = {label: self._named[name] for name, label in reversed(self._labels.items())}
        labels, warnings = list(self.unspecified.values()), []
        if labels:
            tuned = ", ".join(str(dims.optimum(sizes[label])) for label in labels)
            have = "has" if len(labels) == 1 else "have"
            warnings.append(
                f"{', '.join(labels)} {have} no fixed size: any works; tuned for {tuned}. Set a number or a range like"
                f" 1..8..32 with shapes= ({model})"
            )
        for name, s in settled.items():
            label = self._labels[name]
            if s.given_up:
                warnings.append(
                    f"{label} has no fixed size, but the model cannot be imported for every size ({s.why}): fixed to"
                    f" {sizes[label]}. Set it with shapes="
                )
            elif s.step > 1:
                warnings.append(f"{label} must be a multiple of {s.step} ({s.why})")
            elif not isinstance(s.size, Range):
                warnings.append(f"{label} must be {s.size} ({s.why})")
            elif name in self.unspecified:
                warnings.append(
                    f"{label} must be at least {s.size.minimum} ({s.why})"
                    if s.size.maximum >= dims.UNBOUNDED
                    else f"{label} must be from {s.size.minimum} to {s.size.maximum} ({s.why})"
                )
        return warnings

    def assumed(self, settled: Mapping[str, SizeConstraint]) -> list[str]:
        """Describes the unspecified sizes that had to be fixed, with their assumed values: "x[2] (height) = 128"."""
        return [
            f"{self._labels[name]} = {s.size}"
            for name, s in settled.items()
            if s.given_up and name in self._without_optimum
        ]

    def _names(
        self, program: Program, declared: Iterable[onnx.ValueInfoProto], given: Mapping[str, tuple[int | Range, ...]]
    ) -> dict[tuple[str, int], str]:
        """Maps (input, axis) to the model's name of the dimension.

        "" is for unnamed dimensions, and for names with several sizes in the given shapes: runtimes do not check that
        equal names have equal sizes, and some models violate it.
        """
        names: dict[tuple[str, int], str] = {}
        sizes_by_name: dict[str, dict[int | Range, None]] = {}
        for i in declared:
            shape = given.get(i.name) or (self._optimum or {}).get(i.name) or ()
            for axis, d in enumerate(i.type.tensor_type.shape.dim):
                names[i.name, axis] = name = "" if NO_NAME.fullmatch(d.dim_param) else d.dim_param
                if name and axis < len(shape):
                    sizes_by_name.setdefault(name, {})[shape[axis]] = None
        several = {name: sizes for name, sizes in sizes_by_name.items() if len(sizes) > 1}
        for name, sizes in several.items():
            if not all(isinstance(size, int) for size in sizes):
                raise InputError(f"shapes= sets both {' and '.join(map(str, sizes))} for the dimension {name!r}")
            program.warn(
                f"several axes of the model are named {name!r}, but their sizes are"
                f" {' and '.join(map(str, sizes))}: each is taken as a separate dimension ({program.source.name})"
            )
        return {place: "" if name in several else name for place, name in names.items()}

    def _axes(
        self,
        program: Program,
        declared: Iterable[onnx.ValueInfoProto],
        given: Given,
        names: Mapping[tuple[str, int], str],
    ) -> dict[tuple[str, int], Size]:
        """Maps (input, axis) to its size; dimensions of one name share one size.

        Raises InputError if the given shapes contradict the ranks of the inputs.
        """
        # (input, axis) → key of the size: the model's name for it, else "input[axis]"
        axes: dict[tuple[str, int], str] = {}
        requested: dict[str, int | Range] = {}
        unspecified: list[tuple[str, str]] = []
        params: dict[str, tuple[str, int]] = {}  # key → its first axis
        for i in declared:
            shape, optimum, tensor = given.shapes.get(i.name), (self._optimum or {}).get(i.name, ()), i.type.tensor_type
            if shape is not None and tensor.HasField("shape") and len(shape) != len(tensor.shape.dim):
                raise InputError(
                    f"input {i.name!r} has {len(tensor.shape.dim)} axes ({_format_shape(tensor.shape)}), but its"
                    f" shape in shapes= has {len(shape)}: [{', '.join(map(str, shape))}]"
                )
            unknown = [onnx.TensorShapeProto.Dimension()] * len(shape or optimum)
            for axis, d in enumerate(tensor.shape.dim if tensor.HasField("shape") else unknown):
                name = names.get((i.name, axis), "")
                key = axes[i.name, axis] = name or f"{i.name}[{axis}]"
                params.setdefault(key, (i.name, axis))
                size: int | Range | None = None
                if shape is not None:
                    size = shape[axis]
                elif d.HasField("dim_value") and d.dim_value >= 0:
                    size = d.dim_value
                elif name in given.dimensions:
                    size = given.dimensions[name]
                if isinstance(size, int) and size > dims.UNBOUNDED:
                    raise InputError(
                        f"input {i.name!r} has {size} elements along axis {axis}; use at most {dims.UNBOUNDED}"
                    )
                if size is not None:
                    requested.setdefault(key, size)
                else:
                    unspecified.append((key, f"{i.name}[{axis}]" + (f" ({name})" if name else "")))
                    if axis < len(optimum):
                        self._optima.setdefault(key, optimum[axis])
        sizes: dict[str, Size] = {}
        named = set(names.values())
        expressions = [key for key in params if key in named and not key.isidentifier()]
        plain = [key for key in params if key not in expressions]
        for key in plain:
            self._symbols[key] = identifier(
                key if key in named else "_".join(map(str, params[key])), self._symbols.values()
            )
        for key in sorted(plain, key=self._depends_on_others):  # sizes that depend on others come last
            sizes[key] = self._size(key, *params[key], requested.get(key), key in named)
        for key in expressions:
            sizes[key] = self._evaluate_expression(program, key, *params[key], requested.get(key), sizes)
        self.defaulted = [text for key, text in unspecified if key not in requested and key in self._symbols]
        return {place: sizes[key] for place, key in axes.items()}

    def _evaluate_expression(
        self, program: Program, key: str, name: str, axis: int, requested: int | Range | None, sizes: Mapping[str, Size]
    ) -> Size:
        """Evaluates an expression of other dimensions ("past + sequence").

        Names that are no identifier, and expressions that contradict the given sizes, become separate symbols.
        """
        try:
            size = parse_size(key, sizes)
        except ValueError:
            size = None
        if size is None:
            self._symbols[key] = identifier(key, self._symbols.values())
            return self._size(key, name, axis, requested, True)
        setting = self._optima.get(key, requested)
        if setting is None:
            low, high = 0, dims.UNBOUNDED
        elif isinstance(setting, int):
            low, high = setting, setting
        else:
            low, high = setting.minimum, setting.maximum
        if low <= dims.optimum(size) <= high:
            return requested if isinstance(requested, int) else size
        if isinstance(requested, Range):
            raise InputError(f"shapes= sets both {requested} and {dims.optimum(size)} for the dimension {key!r}")
        program.warn(
            f"axis {axis} of input {name!r} is {key} in the model, {dims.optimum(size)} by the other sizes in"
            f" shapes=, but {setting} in shapes=: it becomes a separate dimension ({program.source.name})"
        )
        self._symbols[key] = identifier(key, self._symbols.values())
        return self._size(key, name, axis, requested, True)

    def _size(self, key: str, name: str, axis: int, requested: int | Range | None, named: bool) -> Size:
        """Returns a number, a symbol, or a multiple of a symbol."""
        if isinstance(requested, int):
            return requested
        symbol, label = self._symbols[key], f"{name}[{axis}]" + (f" ({key})" if named else "")
        if requested is not None:
            self._named[symbol], self.requested[symbol] = dims.symbol(symbol, *requested), label
            return self._named[symbol]
        return self._dynamic_size(symbol, label, Range(1, default_optimum(axis)), self._optima.get(key))

    def _dynamic_size(self, symbol: str, label: str, range: Range, optimum: int | None) -> Size:
        """Creates the size of an unspecified dimension, under the constraints found so far."""
        self._labels[symbol] = label
        if optimum is None:
            self._without_optimum.add(symbol)
        settled = self._settled.get(symbol)
        if settled is not None and isinstance(settled.size, (str, int)):  # may depend on other sizes
            self._named[symbol] = (
                parse_size(settled.size, self._named) if isinstance(settled.size, str) else settled.size
            )
        elif optimum == 0:
            # an empty axis: most facts about other sizes do not hold for it
            self._named[symbol] = 0
        elif settled is not None and isinstance(settled.size, Range) and settled.step > 1:
            inner = self._dynamic_size(
                multiple(symbol, settled.step),
                label,
                settled.size,
                None if optimum is None else optimum // settled.step,
            )
            self._named[symbol] = settled.step * inner
        else:
            range = settled.size if settled is not None and isinstance(settled.size, Range) else range
            if optimum is not None:
                range = range._replace(optimum=min(max(optimum, range.minimum), range.maximum))
            self._named[symbol] = dims.symbol(symbol, *range)
            if not dims.is_known(self._named[symbol]):  # the bounds may leave one number
                self.unspecified[symbol] = label
                if optimum is not None:
                    self.observed.add(symbol)
        return self._named[symbol]

    def _value(self, program: Program, i: onnx.ValueInfoProto, type: TensorType, known: np.ndarray | None) -> Value:
        """Returns an input of the graph, or a constant if the value is known."""
        if known is not None:
            return program.builder.constant(known, i.name)
        self.values.append(Value(type, i.name))
        return self.values[-1]

    def _depends_on_others(self, key: str) -> bool:
        """True if a size is constrained to an expression of others."""
        settled = self._settled.get(self._symbols[key])
        return settled is not None and isinstance(settled.size, str)

    def _type(
        self,
        program: Program,
        i: onnx.ValueInfoProto,
        given: tuple[int | Range, ...] | None,
        axes: Mapping[tuple[str, int], Size],
    ) -> TensorType:
        where = f"input {i.name!r}, {program.source.name}"
        tensor = i.type.tensor_type
        if tensor.elem_type not in DTYPES:
            raise ModelError(f"element type number {tensor.elem_type} of the ONNX format is not supported ({where})")
        if tensor.HasField("shape"):
            rank = len(tensor.shape.dim)
        elif given is not None:
            rank = len(given)
        elif i.name in (self._optimum or {}):
            rank = len((self._optimum or {})[i.name])
        else:
            raise ModelError(
                f"the model does not declare the rank of this input; set its sizes with shapes={{{i.name!r}: ...}}"
                f" ({where})"
            )
        for axis, d in enumerate(tensor.shape.dim):
            if given is not None and d.HasField("dim_value") and 0 <= d.dim_value != given[axis]:
                program.resized = True
                program.warn(
                    f"the model declares {d.dim_value} for axis {axis} of input {i.name!r}; shapes= overrides it"
                    f" with {given[axis]}"
                )
        return TensorType(DTYPES[tensor.elem_type], tuple(axes[i.name, axis] for axis in range(rank)))


def default_optimum(axis: int) -> int:
    """Returns the size for which an unspecified dimension is tuned."""
    return DEFAULT_OPTIMUM if axis else 1


def check_names(what: str, given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raises InputError for a name that the model does not have, with similar names."""
    names = dict.fromkeys(known)  # without duplicates: most inputs are their own port
    for name in given:
        if name not in names:
            has = ", ".join(map(repr, [*names][:MAX_SHOWN])) + (
                f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
            )
            raise InputError(
                f"{what} names {name!r}, but the model has no such name among its {kind}{near(name, names)}; it has"
                f" {has}"
            )


def _format_shape(shape: onnx.TensorShapeProto) -> str:
    return (
        "x".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in shape.dim) or "a scalar"
    )
