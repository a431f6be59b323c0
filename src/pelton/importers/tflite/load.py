"""Reads TFLite models as networks: subgraph by subgraph, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pelton.errors import InputError, ModelError, near
from pelton.importers.imported import Range, Shape, parse_shape
from pelton.importers.input_sizes import InputSizes, UndecidedLayer, read_until_settled
from pelton.ir.dims import Undecided
from pelton.ir.graph import unique
from pelton.ir.op import Op
from pelton.network import Network, NetworkTensor
from pelton.plugins import plugin_for
from pelton.plugins.plugin import attributes_of

from . import ops  # noqa: F401  (declares the readers)
from .file import ModelSpec, OperatorSpec, SignatureSpec, SubgraphSpec, TensorSpec, name_of, opened
from .flatbuffer import Damaged
from .held import Held
from .node import CUSTOM, READERS, NodeReader, TFLiteReading, type_of

DEEPEST = 16  # subgraphs within subgraphs
MOST = 1 << 17  # operators, those of subgraphs counted as often as they are called
ADVICE = "give the inputs numbers, or ranges that decide it, with shapes="
OF_COMPLEX = {"REAL", "IMAG", "COMPLEX_ABS", "CAST"}  # operators that make real numbers of complex ones
MOVES = {"EXPAND_DIMS", "GATHER", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"}  # of either part alike
NEXT = ".next"  # behind the name of a variable: the output that has its new value


def read(source: Any, shapes: Mapping[str, Shape] | None = None, signature: str = "") -> Network:
    """The network of a TFLite model (a path or bytes).

    shapes: sizes of inputs by their names, in place of those of the file, whose sizes of −1 are dynamic dimensions.
    signature: the key of the signature to read, the first one by default; its names are those of inputs and outputs.
    Variables become inputs of their names, and outputs of these names with ".next"; `Network.states` has their initial
    values. Raises ModelError for damaged files and for operators that cannot be read, InputError for other names.
    """
    try:
        model = opened(source)
        name = model.name.rpartition(".")[0] or "tflite"
        return read_until_settled(name, lambda sizes: _ModelReader(model, sizes).read(shapes or {}, signature))
    except Damaged as e:
        raise Damaged(f"{name_of(source)}: the file is cut off or damaged: {e}") from None


class _ModelReader:
    """The state of reading one model; what `ModelScope` asks for."""

    def __init__(self, model: ModelSpec, sizes: InputSizes):
        self.model = model
        self.net, self.sizes = sizes.net, sizes
        self.left = MOST
        self.depth = 0
        self.initial: dict[str, Held] = {}  # variables before the first run
        self.current: dict[str, Held] = {}  # variables as the operator read last left them
        self.initializing = False
        self.branches = 0  # that are computed whether they are taken or not

    def read(self, shapes: Mapping[str, Shape], key: str) -> Network:
        found = self._signature(key) or SignatureSpec("", 0, {}, {})
        subgraph = self.model.subgraph(found.subgraph)
        names = self._names(subgraph, subgraph.inputs, found.inputs)
        given = [self._input(names[i], subgraph.tensors[i], shapes) for i in subgraph.inputs]
        results = self._subgraph(subgraph, given)
        inputs = [*names.values(), *self.net.states]  # which reading has found
        for name in shapes:
            if name not in inputs:
                raise InputError(
                    f"{self.model.name}: there is no input {name!r}{near(name, inputs)}; there are {', '.join(inputs)}"
                )
        out = self._names(subgraph, subgraph.outputs, found.outputs)
        for i, held in dict(zip(subgraph.outputs, results)).items():
            if held.imaginary is not None:
                raise ModelError(
                    f"{self.model.name}: the output {out[i]!r} has complex numbers, which is not supported"
                )
            self.net.output(held.raw(), out[i])
        for name, (output, _) in self.net.states.items():
            self.net.output(self.current[name].raw(), output)
        return self.net

    def _signature(self, key: str) -> SignatureSpec | None:
        signatures = self.model.signatures
        keys = [s.key for s in signatures]
        if key and key not in keys:
            raise InputError(f"{self.model.name}: there is no signature {key!r}{near(key, keys)}; there are {keys}")
        if len({s.subgraph for s in signatures}) > 1 and not key:
            others = ", ".join(map(repr, keys[1:]))
            self.net.warnings.append(
                f"{self.model.name} has several signatures, of which the first is read, {keys[0]!r}; for {others},"
                " build the network that pelton.importers.tflite.read(path, signature=…) gives"
            )
        return next((s for s in signatures if s.key == key or not key), None)

    def _names(self, subgraph: SubgraphSpec, numbers: Sequence[int], named: Mapping[int, str]) -> dict[int, str]:
        """The names of inputs or outputs: those of the signature, else those of the tensors, each once."""
        found: dict[int, str] = {}
        for i in numbers:
            if i < 0:
                raise ModelError(f"{self.model.name}: {subgraph.name} lacks an input or output")
            if i not in found:
                found[i] = unique(named.get(i) or subgraph.tensors[i].name, set(found.values()))
        return found

    def _input(self, name: str, spec: TensorSpec, shapes: Mapping[str, Shape]) -> Held:
        sizes: Sequence[int | Range | None] = [d if s >= 0 else None for d, s in zip(spec.shape, spec.signature)]
        if name in shapes:
            sizes = parse_shape(name, shapes[name])
            if len(sizes) != len(spec.shape):
                raise InputError(f"input {name!r} is {spec}, got {len(sizes)} sizes: {list(sizes)}")
        shape = tuple(d if isinstance(d, int) else self.sizes.dynamic(name, i, d) for i, d in enumerate(sizes))
        return Held(self.net, spec, self.net.input(name, type_of(spec, shape)))

    # --- subgraphs

    def inline(self, number: int, given: Sequence[Held]) -> list[Held]:
        """The outputs of another subgraph for these inputs."""
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
            where = f"operator {number}, {node.name}, of {subgraph.name!r} of {self.model.name}"
            try:
                results = self._operator(node, subgraph, values, where)
            except Undecided as e:
                raise UndecidedLayer(f"{e}; {ADVICE} ({where})", where, e) from None
            except Damaged as e:
                raise Damaged(f"{e} ({where})") from None
            except (InputError, ModelError) as e:
                if isinstance(e.__cause__, Undecided):
                    raise UndecidedLayer(f"{e} ({where})", where, e.__cause__) from None
                raise e if where in str(e) else ModelError(f"{e} ({where})") from None
            except (ValueError, TypeError, LookupError, ArithmeticError) as e:
                raise ModelError(f"cannot be read: {e} ({where})") from e
            values.update(results)
        return [self._tensor(subgraph, values, i) for i in subgraph.outputs]

    def _tensor(self, subgraph: SubgraphSpec, values: dict[int, Held], number: int) -> Held:
        """A tensor: what an operator gave, a constant of the file, or a state that an operator keeps."""
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
                raise ModelError(f"tensor {spec} is read before an operator gives it")
        return values[number]

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
            found = self._read_by(reader, TFLiteReading(self.net, self, node, held, outputs, where))
            if has_parts:
                parts = tuple(h if h is None or h.imaginary is None else h.imaginary for h in held)
                others = self._read_by(reader, TFLiteReading(self.net, self, node, parts, outputs, where))
                found = [replace(a, imaginary=b) for a, b in zip(found, others)]
        return dict(zip((i for i in node.outputs if i >= 0), found))

    def _read_by(self, reader: NodeReader, n: TFLiteReading) -> list[Held]:
        given = reader(n)
        results = () if given is None else given
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < len(n.outputs):
            raise ModelError(f"{n.op} gives {len(results)} tensors, the file has {len(n.outputs)}")
        return [n.finished(r, s) for r, s in zip(results, n.outputs)]

    # --- variables

    def initialize(self, number: int) -> None:
        """Runs the subgraph that gives variables their initial values."""
        before, self.initializing = self.initializing, True
        self.inline(number, ())
        self.initializing = before

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Around what is computed whether it is wanted or not, which must not change variables."""
        self.branches += 1
        try:
            yield
        finally:
            self.branches -= 1

    @contextmanager
    def within(self, net: Network) -> Iterator[None]:
        """Around what is written into the network of a loop's body."""
        around, self.net = self.net, net
        try:
            yield
        finally:
            self.net = around

    def assign_variable(self, name: str, value: Held) -> None:
        if self.branches:
            raise ModelError(f"variable {name!r} is assigned where the data decides, which is not supported")
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


def _zeros(spec: TensorSpec) -> np.ndarray:
    """What a variable begins with that nobody initializes: zeros, as its type stores them; one element, broadcast."""
    zero = 0 if spec.quantization is None else spec.quantization.zero[0]
    return np.broadcast_to(np.asarray(zero, type_of(spec, ()).dtype.numpy), spec.shape)


def _apply(op: Op, n: TFLiteReading) -> tuple[NetworkTensor, ...]:
    """A custom operator that is a plugin: its attributes are the custom options, its operands numbers."""
    values = [n.given(i).real() for i in range(n.count)]
    return n.net.apply(op, values, attributes_of(op, n.custom_options, n.where), op.name)
