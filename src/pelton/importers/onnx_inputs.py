"""The inputs of a model: which of their sizes are numbers, which a run decides, and what becomes of those that nobody gave."""
from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from pelton.errors import InputError, ModelError, near
from pelton.ir import dims
from pelton.ir.dims import Dim, Size, Symbol
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.graph import Value, unique
from pelton.ir.types import TensorType
from pelton.ops.foreign import DTYPES

from .imported import Range
from .onnx_ports import Given
from .onnx_program import Program
from .onnx_scope import BROKEN, Scope, Stuck

FAR = 1024                      # what no such size has to be larger than for a model to be read
SHOWN = 5                       # names of a model that a message lists
USUAL = 128                     # what programs are tuned for along axes that nobody gave sizes for, the first one aside


@dataclass(frozen=True)
class Settled:
    """What a size that nobody gave had to become: narrower bounds, a number, or an expression of others; and the node that wanted it."""

    size: Range | int | str
    why: str
    given_up: bool = False                                 # whether any other size might have done, had it been known


class Inputs:
    """Binds the inputs of a model, as values whose sizes are numbers or symbols."""

    def __init__(self, program: Program, scope: Scope, given: Given, settled: Mapping[str, Settled], usual: Mapping[str, Sequence[int]] | None = None):
        self.values: list[Value] = []
        self.defaulted: list[str] = []                     # the axes that nobody gave sizes for: "image[0] (batch)"
        self.open: dict[str, str] = {}                     # names of the sizes that nobody gave and a run decides → the first such axis
        self._settled, self._usual = settled, usual
        self._symbols: dict[str, str] = {}                 # what a size goes by in the model → the name of its symbol
        self._named: dict[str, Size] = {}                  # symbol → its size
        self._labels: dict[str, str] = {}                  # symbol of a size that nobody gave → the first such axis
        declared = [i for part in given.parts for i in part.tensors]
        axes = self._axes(declared, given.shapes)
        program.open = self.open
        for part in given.parts:
            try:
                if part.problem:
                    raise ModelError(f"{part.problem} (input {part.name!r}, {program.source.name})")
                made = [self._value(program, i, self._type(program, i, given.shapes.get(i.name), axes), given.values.get(i.name)) for i in part.tensors]
                program.inputs.update(made if not part.sequence else ())
                program.bind(scope, part.name, part.thing(made))
            except ModelError as e:
                program.problems.append(str(e))
                program.bind(scope, part.name, BROKEN)
            if part.optional and not part.sequence and part.tensors and part.name not in given.values:
                program.warn(f"the model takes input {part.name!r} or does without, the engine always takes it; "
                             f"values={{{part.name!r}: None}} makes one that does without ({program.source.name})")
        program.dimensions.update((d.dim_param, axes[i.name, axis]) for i in declared for axis, d in enumerate(i.type.tensor_type.shape.dim) if d.dim_param)

    def told(self, settled: Mapping[str, Settled], model: str) -> list[str]:
        """Warnings: what is assumed of the sizes that nobody gave."""
        free = [f"{label} ({dims.usual(self._named[name])})" for name, label in self.open.items()]
        found = [f"nobody gave the sizes {', '.join(free)}: any will do, the engine is tuned for those in brackets; "
                 f"give a number or a range like 1..8..32 with shapes= ({model})"] if free and self._usual is None else []
        for name, s in settled.items():
            label = self._labels[name]
            if s.given_up:
                found.append(f"nobody gave the size {label}, and the model cannot be read for any ({s.why}): {s.size} is taken; give it with shapes=")
            elif not isinstance(s.size, Range):
                found.append(f"nobody gave the size {label}: it has to be {s.size} ({s.why})")
            elif name in self.open:
                found.append(f"the size {label} is taken from {s.size.least} to {s.size.most if s.size.most < dims.UNBOUNDED else 'any'} ({s.why})")
        return found

    def _axes(self, declared: Iterable[onnx.ValueInfoProto], given: Mapping[str, tuple[int | Range, ...]]) -> dict[tuple[str, int], Size]:
        """(input, axis) → its size. One name of a dimension is one size; InputError where the shapes given contradict that or the ranks of the inputs."""
        axes: dict[tuple[str, int], str] = {}              # to what the size goes by: the model's name for it, else "input[axis]"
        wanted: dict[str, int | Range] = {}
        nobody: list[tuple[str, str]] = []
        params: dict[str, tuple[str, int]] = {}            # names and expressions → where they stand first
        for i in declared:
            shape, tensor = given.get(i.name), i.type.tensor_type
            if shape is not None and tensor.HasField("shape") and len(shape) != len(tensor.shape.dim):
                raise InputError(f"input {i.name!r} has {len(tensor.shape.dim)} axes ({_spelled(tensor.shape)}), the shape given has {len(shape)}: "
                                 f"[{', '.join(map(str, shape))}]")
            for axis, d in enumerate(tensor.shape.dim if tensor.HasField("shape") else [onnx.TensorShapeProto.Dimension()] * len(shape or ())):
                key = axes[i.name, axis] = d.dim_param or f"{i.name}[{axis}]"
                params.setdefault(key, (i.name, axis))
                size = shape[axis] if shape is not None else d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
                if isinstance(size, int) and size > dims.UNBOUNDED:
                    raise InputError(f"input {i.name!r} has {size} elements along axis {axis}; at most {dims.UNBOUNDED} are supported, give a smaller size")
                if size is None:
                    nobody.append((key, f"{i.name}[{axis}]" + (f" ({d.dim_param})" if d.dim_param else "")))
                elif wanted.setdefault(key, size) != size:
                    raise InputError(f"the shapes given say both {wanted[key]} and {size} for the dimension {key!r}")
        sizes: dict[str, Size] = {}
        expressions = [key for key in params if "[" not in key and not key.isidentifier()]
        plain = [key for key in params if key not in expressions]
        for key in plain:
            self._symbols[key] = identifier(key if "[" not in key else "_".join(map(str, params[key])), self._symbols.values())
        for key in sorted(plain, key=lambda key: isinstance(self._settled_of(key), str)):          # what is made of others after those
            sizes[key] = self._size(key, *params[key], wanted.get(key))
        for key in expressions:
            sizes[key] = self._expressed(key, *params[key], wanted.get(key), sizes)
        self.defaulted = [text for key, text in nobody if key not in wanted and key in self._symbols]
        return {place: sizes[key] for place, key in axes.items()}

    def _expressed(self, key: str, name: str, axis: int, wanted: int | Range | None, sizes: Mapping[str, Size]) -> Size:
        """An expression of other names ("past + sequence"), or a name that is no plain word."""
        try:
            found = parse_size(key, sizes)
        except ValueError:
            self._symbols[key] = identifier(key, self._symbols.values())
            return self._size(key, name, axis, wanted)
        low, high = (wanted, wanted) if isinstance(wanted, int) else (wanted.least, wanted.most) if wanted is not None else (0, dims.UNBOUNDED)
        if not low <= dims.usual(found) <= high:
            raise InputError(f"the shapes given say both {wanted} and {dims.usual(found)} for the dimension {key!r}")
        return wanted if isinstance(wanted, int) else found

    def _size(self, key: str, name: str, axis: int, wanted: int | Range | None) -> Size:
        """A number, or a symbol of its own."""
        if isinstance(wanted, int):
            return wanted
        symbol, settled = self._symbols[key], self._settled_of(key)
        if wanted is None:
            label = self._labels[symbol] = f"{name}[{axis}]" + (f" ({key})" if "[" not in key else "")
            if isinstance(settled, (str, int)):              # others may be made of it
                self._named[symbol] = parse_size(settled, self._named) if isinstance(settled, str) else settled
                return self._named[symbol]
            self.open[symbol] = label
            wanted = settled or Range(1, USUAL if axis else 1)
            asked = (self._usual or {}).get(name, ())
            wanted = wanted._replace(usual=min(max(asked[axis], wanted.least), wanted.most)) if axis < len(asked) else wanted
        self._named[symbol] = dims.symbol(symbol, *wanted)
        return self._named[symbol]

    def _value(self, program: Program, i: onnx.ValueInfoProto, type: TensorType, known: np.ndarray | None) -> Value:
        """What a tensor stands for: an input of the program, or a constant where its value is given."""
        if known is not None:
            return program.hold(known, i.name)
        self.values.append(Value(type, i.name))
        return self.values[-1]

    def _settled_of(self, key: str) -> Range | int | str | None:
        return self._settled[self._symbols[key]].size if self._symbols[key] in self._settled else None

    def _type(self, program: Program, i: onnx.ValueInfoProto, given: tuple[int | Range, ...] | None, axes: Mapping[tuple[str, int], Size]) -> TensorType:
        where = f"input {i.name!r}, {program.source.name}"
        tensor = i.type.tensor_type
        if tensor.elem_type not in DTYPES:
            raise ModelError(f"element type number {tensor.elem_type} of the ONNX format is not supported ({where})")
        if not tensor.HasField("shape") and given is None:
            raise ModelError(f"the model does not say how many axes this input has; give its sizes with shapes={{{i.name!r}: ...}} ({where})")
        for axis, d in enumerate(tensor.shape.dim):
            if given is not None and d.HasField("dim_value") and 0 <= d.dim_value != given[axis]:
                program.resized = True
                program.warn(f"the model says {d.dim_value} for axis {axis} of input {i.name!r}; {given[axis]} is taken, as asked")
        return TensorType(DTYPES[tensor.elem_type], tuple(axes[i.name, axis] for axis in range(len(tensor.shape.dim) if given is None else len(given))))


def check_names(what: str, given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """InputError for a name that the model does not have, with what it might have been."""
    names = dict.fromkeys(known)                           # inputs of a model and the ports that they consist of are mostly the same
    for name in given:
        if name not in names:
            has = ", ".join(map(repr, [*names][:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            raise InputError(f"{what} names {name!r}, but the model has no such name among its {kind}{near(name, names)}; it has {has}")


def _spelled(shape: onnx.TensorShapeProto) -> str:
    return "x".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in shape.dim) or "a scalar"


def identifier(text: str, taken: Container[str]) -> str:
    """A name for a symbol, as close to the text as possible."""
    hint = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "size"
    hint = f"n_{hint}" if hint[0].isdigit() else f"{hint}_" if keyword.iskeyword(hint) or hint in ("max", "min", "mod") else hint
    return unique(hint, taken)


# --- where a model cannot be read for any sizes

def settle(stuck: Sequence[Stuck], open: Mapping[str, str]) -> dict[str, Settled]:
    """What is to become of sizes that nobody gave, so that an import gets further than where it was stuck: bounds that decide the question, what makes
    two sizes equal, else 1. Nothing where it would not help."""
    for s in stuck:
        q, asked = s.question, list[Symbol]()
        found: Mapping[str, Range | int | str] = {}
        if q is not None:
            asked = sorted((x for x in dims.symbols(q.difference) if x.name in open), key=lambda x: [*open].index(x.name))
            found = _solved(q.difference, asked) if q.wanted == "=" else _narrowed(q.difference, asked, q.wanted)
        if found:
            return {name: Settled(size, s.where) for name, size in found.items()}
        met = [x.name for x in asked or s.met if x.name in open]
        if met:
            return {name: Settled(1, s.where, given_up=True) for name in met}
    return {name: Settled(1, stuck[0].where, given_up=True) for name in open} if stuck else {}


def _solved(difference: Size, asked: Sequence[Symbol]) -> dict[str, int | str]:
    """A symbol, and what it has to be for the difference to be nothing: a number before other sizes, later symbols before earlier ones."""
    found: dict[str, int | str] = {}
    terms = difference.terms if isinstance(difference, Dim) else ()
    for x in reversed(asked):                              # a · x + b = 0
        a = sum(Dim([(tuple(y for y in m if y != x), c)]) if len(m) > 1 else c for m, c in terms if m.count(x) == 1)
        b = difference - a * dims.symbol(x.name, x.least, x.usual, x.most)
        size = None if x in dims.symbols((a, b)) or not a else dims.exact(-b, a)
        if size is not None and dims.bounds(size)[0] >= 0:
            if isinstance(size, int):
                return {x.name: size}
            found = found or {x.name: str(size)}
    return found


def _narrowed(difference: Size, asked: Sequence[Symbol], wanted: str) -> dict[str, Range]:
    """Bounds of a symbol, else of all together, within which the difference has the sign wanted; around the usual sizes where that can be."""
    known = {x.name: dims.symbol(x.name, x.least, x.usual, x.most) for x in dims.symbols(difference)}

    def decided(bounds: Mapping[str, Range]) -> bool:
        low, high = dims.bounds(parse_size(str(difference), {**known, **{name: dims.symbol(name, *r) for name, r in bounds.items()}}))
        return low >= 0 if wanted else low > 0 or high <= 0

    def raised(xs: Sequence[Symbol], n: int) -> dict[str, Range]:
        return {x.name: Range(max(n, x.least), max(n, x.usual), max(n, x.most)) for x in xs}

    def lowered(xs: Sequence[Symbol], n: int) -> dict[str, Range]:
        return {x.name: Range(min(n, x.least), min(n, x.usual), min(n, x.most)) for x in xs}

    each = [[x] for x in asked] + ([list(asked)] if len(asked) > 1 else [])
    for xs, far in [*((xs, max(x.usual for x in xs)) for xs in each), *((xs, FAR) for xs in each)]:
        if decided(raised(xs, far)):
            return raised(xs, _first(lambda n, xs=xs: decided(raised(xs, n)), 0, far))                    # type: ignore[misc]
    for xs, far in [*((xs, max(x.usual for x in xs)) for xs in each), *((xs, max(x.least for x in xs)) for xs in each)]:
        if decided(lowered(xs, far)):
            return lowered(xs, -_first(lambda n, xs=xs: decided(lowered(xs, -n)), -dims.UNBOUNDED, -far))  # type: ignore[misc]
    return {}


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number for which something holds that does not for `low`, but does for `high` and all between."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
