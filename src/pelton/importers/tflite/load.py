"""Reads TFLite models as networks: subgraph by subgraph, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from pelton.errors import InputError, ModelError, near
from pelton.importers.imported import Range, Shape, check_inputs, constant_of, parse_shape
from pelton.importers.input_sizes import InputSizes, read_until_settled
from pelton.importers.reading import ImportRecord, located
from pelton.ir.graph import unique
from pelton.ir.imported import OnData
from pelton.ir.op import Op
from pelton.network import Network, NetworkTensor
from pelton.plugins import plugin_for
from pelton.ir.attributes import attributes_of

from . import ops  # noqa: F401  (declares the readers)
from .file import ModelSpec, OperatorSpec, SignatureSpec, SubgraphSpec, TensorSpec, name_of, opened
from .flatbuffer import Damaged
from .held import Held
from .node import CUSTOM, READERS, NodeReader, TFLiteReading, type_of

DEEPEST = 16  # nesting of subgraphs
MOST = 1 << 17  # operators; those of subgraphs count at each call
OF_COMPLEX = {"REAL", "IMAG", "COMPLEX_ABS", "CAST"}  # operators from complex to real numbers
MOVES = {"EXPAND_DIMS", "GATHER", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"}  # on either part alike
NEXT = ".next"  # suffix of a variable's name: the output with its new value


def read(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    signature: str = "",
    values: Mapping[str, Any] | None = None,
) -> Network:
    """Reads a TFLite model (a path or bytes) as a network.

    shapes: sizes of inputs by name, instead of the file's, whose sizes of −1 are dynamic dimensions. signature: the key
    of the signature to read, the first one by default; inputs and outputs have its names. values: arrays by the names
    of inputs that become constants, as their values decide the program. Variables become inputs of their names, and
    outputs of these names with ".next"; `Network.states` has their initial values. Raises ModelError for damaged files
    and for operators that cannot be read, its subclass OnData if only a script can run the model (`unread`), InputError
    for other names.
    """
    with naming_damage(source):
        model = opened(source)
        return read_until_settled(model.title, lambda sizes: _read(model, sizes, shapes or {}, signature, values or {}))


@contextmanager
def naming_damage(source: Any) -> Iterator[None]:
    """Prepends the file's name to errors of damage."""
    try:
        yield
    except Damaged as e:
        raise Damaged(f"{name_of(source)}: the file is cut off or damaged: {e}") from None


def _read(
    model: ModelSpec, sizes: InputSizes, shapes: Mapping[str, Shape], key: str, values: Mapping[str, Any]
) -> Network:
    """Reads the network of a model; raises ModelError instead of OnData if it keeps state."""
    reader = ModelReader(model, sizes.net)
    try:
        ports = Ports(model, key)
        net = reader.read(ports, ports.declare(sizes, shapes, values))
        check_inputs(model.name, (*shapes, *values), [*ports.inputs.values(), *net.states])  # which reading finds
        return net
    except OnData as e:
        if model.keeps_state:
            raise ModelError(f"{e}; a model with state cannot become a script") from None
        raise OnData(str(e), tuple(reader.record.deciding_inputs)) from None


class Ports:
    """The main subgraph of a model, and the names of its inputs and outputs: those of a signature, or of tensors."""

    def __init__(self, model: ModelSpec, key: str = ""):
        self.model, self.warnings = model, list[str]()
        signature = self._signature(key) or SignatureSpec("", 0, {}, {})
        self.subgraph = model.subgraph(signature.subgraph)
        self.inputs = self._names(self.subgraph.inputs, signature.inputs)
        self.outputs = self._names(self.subgraph.outputs, signature.outputs)

    def declare(self, sizes: InputSizes, shapes: Mapping[str, Shape], values: Mapping[str, Any]) -> dict[str, Held]:
        """Declares the inputs of the network by name; those with values are constants."""
        return {name: _input(sizes, name, self.subgraph.tensors[i], shapes, values) for i, name in self.inputs.items()}

    def _signature(self, key: str) -> SignatureSpec | None:
        signatures = self.model.signatures
        keys = [s.key for s in signatures]
        if key and key not in keys:
            raise InputError(f"{self.model.name}: there is no signature {key!r}{near(key, keys)}; there are {keys}")
        if len({s.subgraph for s in signatures}) > 1 and not key:
            others = ", ".join(map(repr, keys[1:]))
            self.warnings.append(
                f"{self.model.name} has several signatures, and the first is read, {keys[0]!r}; for {others},"
                " build the network of pelton.importers.tflite.read(path, signature=…)"
            )
        return next((s for s in signatures if s.key == key or not key), None)

    def _names(self, numbers: Sequence[int], named: Mapping[int, str]) -> dict[int, str]:
        """Returns the unique names of inputs or outputs: the signature's, else the tensors'."""
        names: dict[int, str] = {}
        for i in numbers:
            if i < 0:
                raise ModelError(f"{self.model.name}: {self.subgraph.name} lacks an input or output")
            if i not in names:
                names[i] = unique(named.get(i) or self.subgraph.tensors[i].name, set(names.values()))
        return names


class ReadModel(Protocol):
    """The part of a model that its reader needs."""

    @property
    def name(self) -> str: ...
    def subgraph(self, number: int) -> SubgraphSpec: ...
    def where(self, number: int, node: OperatorSpec, subgraph: SubgraphSpec) -> str: ...


class ModelReader:
    """The state of reading one model; implements `ModelScope`."""

    def __init__(self, model: ReadModel, net: Network, record: ImportRecord | None = None):
        self.model, self.net = model, net
        self.record = ImportRecord(net.builder) if record is None else record
        self.left = MOST
        self.depth = 0
        self.initial: dict[str, Held] = {}  # variables before the first run
        self.current: dict[str, Held] = {}  # variables after the operator read last
        self.initializing = False
        self.branches = 0  # branches computed unconditionally

    def read(self, ports: Ports, given: Mapping[str, Held]) -> Network:
        """Reads the network, whose inputs are declared."""
        net, subgraph = self.net, ports.subgraph
        net.warnings += ports.warnings
        self.record.inputs.update(net.builder.inputs)
        results = self._subgraph(subgraph, [given[ports.inputs[i]] for i in subgraph.inputs])
        for i, held in dict(zip(subgraph.outputs, results)).items():
            if held.imaginary is not None:
                raise ModelError(
                    f"{self.model.name}: the output {ports.outputs[i]!r} has complex numbers, which is not supported"
                )
            net.output(held.raw(), ports.outputs[i])
        for name, (output, _) in net.states.items():
            net.output(self.current[name].raw(), output)
        return net

    # --- subgraphs

    def inline(self, number: int, given: Sequence[Held]) -> list[Held]:
        """Computes the outputs of another subgraph for these inputs."""
        if self.depth >= DEEPEST:
            raise ModelError(f"{self.model.name}: subgraphs call each other more than {DEEPEST} deep")
        subgraph = self.model.subgraph(number)
        if len(given) != len(subgraph.inputs):
            raise ModelError(f"{subgraph.name!r} needs {len(subgraph.inputs)} inputs, got {len(given)}")
        self.depth += 1
        try:
            return self._subgraph(subgraph, given)
        finally:
            self.depth -= 1

    def _subgraph(self, subgraph: SubgraphSpec, given: Sequence[Held]) -> list[Held]:
        values: dict[int, Held] = dict(zip(subgraph.inputs, given))
        for number, node in enumerate(subgraph.operators):
            self.left -= 1
            if self.left < 0:
                raise ModelError(f"{self.model.name} has more than {MOST} operators")
            values.update(self.operator(node, subgraph, values, self.model.where(number, node, subgraph)))
        return [self._tensor(subgraph, values, i) for i in subgraph.outputs]

    def _tensor(self, subgraph: SubgraphSpec, values: dict[int, Held], number: int) -> Held:
        """Returns a tensor: an operator's output, a constant of the file, or a state of an operator."""
        if number not in values:
            spec = subgraph.tensors[number]
            if spec.data is not None:
                values[number] = Held(self.net, spec, spec.data)
            elif 0 in spec.shape and spec.dtype is not None:
                values[number] = Held(self.net, spec, np.zeros(spec.shape, spec.dtype.numpy))
            elif spec.is_variable:
                values[number] = self.read_variable(spec.name, spec)
                values[number].variable = spec.name
            else:
                raise ModelError(f"tensor {spec} is read before an operator writes it")
        return values[number]

    def operator(
        self, node: OperatorSpec, subgraph: SubgraphSpec, values: dict[int, Held], where: str
    ) -> dict[int, Held]:
        """Applies an operator and returns its outputs by tensor index; errors name its place."""
        with located(where):
            return self._operator(node, subgraph, values, where)

    def _operator(
        self, node: OperatorSpec, subgraph: SubgraphSpec, values: dict[int, Held], where: str
    ) -> dict[int, Held]:
        reader = READERS.get((CUSTOM if node.custom else "", node.name))
        if node.custom and (op := plugin_for("tflite", node.name)) is not None:
            reader = partial(_apply, op)
        if reader is None:
            how = "; read it with a plugin (pelton.Plugin, `tflite`)" * node.custom
            raise ModelError(f"there is no reader for the {'custom ' * node.custom}operator {node.name}{how}")
        held = tuple(None if i < 0 else self._tensor(subgraph, values, i) for i in node.inputs)
        outputs = tuple(subgraph.tensors[i] for i in node.outputs if i >= 0)
        has_parts = any(h is not None and h.imaginary is not None for h in held) and node.name not in OF_COMPLEX
        if has_parts and node.name not in MOVES:
            raise ModelError(f"{node.name} works on complex numbers, which is not supported")
        with self.net.scope(outputs[0].name if outputs else node.name):
            results = self._read_by(reader, TFLiteReading(self.net, self, node, held, outputs, where))
            if has_parts:
                parts = tuple(h if h is None or h.imaginary is None else h.imaginary for h in held)
                others = self._read_by(reader, TFLiteReading(self.net, self, node, parts, outputs, where))
                results = [replace(a, imaginary=b) for a, b in zip(results, others)]
        return dict(zip((i for i in node.outputs if i >= 0), results))

    def _read_by(self, reader: NodeReader, n: TFLiteReading) -> list[Held]:
        output = reader(n)
        results = () if output is None else output
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < len(n.outputs):
            raise ModelError(f"{n.op} has {len(results)} outputs, the file declares {len(n.outputs)}")
        return [n.finished(r, s) for r, s in zip(results, n.outputs)]

    # --- variables

    def initialize(self, number: int) -> None:
        """Runs the subgraph that initializes variables."""
        before, self.initializing = self.initializing, True
        self.inline(number, ())
        self.initializing = before

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Encloses a branch computed unconditionally, which must not change variables."""
        self.branches += 1
        try:
            yield
        finally:
            self.branches -= 1

    @contextmanager
    def within(self, net: Network) -> Iterator[None]:
        """Redirects writes to the network of a loop's body."""
        around, self.net = self.net, net
        try:
            yield
        finally:
            self.net = around

    def assign_variable(self, name: str, value: Held) -> None:
        if self.branches:
            raise ModelError(f"variable {name!r} is assigned in data-dependent control flow, which is not supported")
        if self.initializing:
            if not isinstance(value.elements(), np.ndarray):
                raise ModelError(f"the initial value of variable {name!r} is no constant")
            self.initial[name] = value
        else:
            self.current[name] = value

    def read_variable(self, name: str, spec: TensorSpec) -> Held:
        if name not in self.current:
            known = self.initial.get(name)
            spec = known.spec if known is not None else spec
            initial = np.asarray(known.elements()) if known is not None else _zeros(spec)
            made = Held(self.net, spec, self.net.input(name, type_of(spec, initial.shape)))
            self.current[name] = made
            self.net.states[name] = (name + NEXT, initial)
        return self.current[name]


def _input(
    sizes: InputSizes, name: str, spec: TensorSpec, shapes: Mapping[str, Shape], values: Mapping[str, Any]
) -> Held:
    """Declares an input of the network; a constant if its value is known."""
    extents: Sequence[int | Range | None] = [d if s >= 0 else None for d, s in zip(spec.shape, spec.signature)]
    if name in shapes:
        extents = parse_shape(name, shapes[name])
        if len(extents) != len(spec.shape):
            raise InputError(f"input {name!r} is {spec}, got {len(extents)} sizes: {list(extents)}")
    elif name in values and np.ndim(values[name]) == len(extents):
        extents = [n if d is None else d for d, n in zip(extents, np.shape(values[name]))]
    shape = tuple(d if isinstance(d, int) else sizes.dynamic(name, i, d) for i, d in enumerate(extents))
    x = sizes.net.input(name, type_of(spec, shape))
    return Held(sizes.net, spec, constant_of(x.value, values[name]) if name in values else x)


def _zeros(spec: TensorSpec) -> np.ndarray:
    """Returns the initial value of a variable without one: zeros in its stored type, as one broadcast element."""
    zero = 0 if spec.quantization is None else spec.quantization.zero[0]
    return np.broadcast_to(np.asarray(zero, type_of(spec, ()).dtype.numpy), spec.shape)


def _apply(op: Op, n: TFLiteReading) -> tuple[NetworkTensor, ...]:
    """Applies a plugin operator: its attributes are the custom options, its operands numbers."""
    values = [n.given(i).real() for i in range(n.count)]
    return n.net.apply(op, values, attributes_of(op, n.custom_options, n.where), op.name)
