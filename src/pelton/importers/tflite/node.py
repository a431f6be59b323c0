"""The interface of a TFLite operator to its reader, and the registry of readers that the files of `ops/` fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from pelton.errors import ModelError
from pelton.importers.reading import ImportRecord, Operands
from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ir.imported import OnData
from pelton.ir.types import I64, DType, TensorType
from pelton.network import Network, NetworkTensor

from . import flexbuffer
from .file import OperatorSpec, TensorSpec
from .held import ChannelsFirst, Held, parameters, to_first
from .schema import ACTIVATIONS, DTYPES, PADDINGS, TYPE_NAMES

Given = NetworkTensor | np.ndarray | ChannelsFirst | Held
NodeReader = Callable[["TFLiteReading"], Given | tuple[Given, ...] | None]

# ("", builtin operator) or ("custom", custom operator) → writer of its layers
READERS: dict[tuple[str, str], NodeReader] = {}
CUSTOM = "custom"
MAX_FILLED = 1 << 20  # elements of generated constants


def reads(*operators: str, domain: str = "") -> Callable[[NodeReader], NodeReader]:
    """Declares a function as the reader of operators; it writes layers and returns a tensor per output.

    Results are in the file's order of axes, unless they are `ChannelsFirst`; numbers are quantized if the output is,
    integers stay unchanged. domain: CUSTOM for custom operators.
    """

    def declare(reader: NodeReader) -> NodeReader:
        for operator in operators:
            READERS[domain, operator] = reader
        return reader

    return declare


class ModelScope(Protocol):
    """The part of a model that readers need: the record of the import, subgraphs and variables."""

    @property
    def record(self) -> ImportRecord: ...

    def inline(self, subgraph: int, given: Sequence[Held]) -> list[Held]:
        """Computes the outputs of another subgraph for these inputs."""
        ...

    def branch(self) -> AbstractContextManager[None]:
        """Encloses a branch computed unconditionally."""
        ...

    def within(self, net: Network) -> AbstractContextManager[None]:
        """Redirects writes to the network of a loop's body."""
        ...

    def initialize(self, subgraph: int) -> None: ...
    def read_variable(self, name: str, spec: TensorSpec) -> Held: ...
    def assign_variable(self, name: str, value: Held) -> None: ...


@dataclass
class TFLiteReading(Operands):
    """An operator with its inputs, and its reader's tools to translate it."""

    net: Network
    scope: ModelScope
    node: OperatorSpec
    held: tuple[Held | None, ...]
    outputs: tuple[TensorSpec, ...]
    place: str

    @property
    def record(self) -> ImportRecord:
        return self.scope.record

    @property
    def op(self) -> str:
        return self.node.name

    @property
    def where(self) -> str:
        return self.place

    @property
    def count(self) -> int:
        return len(self.held)

    def refuse(self, reason: str) -> ModelError:
        """Builds the error to raise; its catcher adds the operator's place."""
        return ModelError(f"{self.op} {reason}")

    error = refuse

    # --- inputs

    def given(self, i: int) -> Held:
        """Returns the i-th input with all known facts; raises ModelError if it is absent."""
        held = self.held[i] if i < len(self.held) else None
        if held is None:
            raise self.refuse(f"needs input {i}")
        return held

    def has(self, i: int) -> bool:
        return i < len(self.held) and self.held[i] is not None

    def input(self, i: int) -> NetworkTensor:
        """Returns the numbers of an input, dequantized if needed, in the file's order of axes."""
        return self.given(i).real()

    def image(self, i: int) -> NetworkTensor:
        """Returns the numbers of an input [batch, space…, channels] as [batch, channels, space…]."""
        return self.given(i).real(first=True)

    def operand(self, i: int) -> Value:
        return self.given(i).raw().value

    def elements(self, i: int) -> np.ndarray | None:
        elements = self.given(i).elements()
        return elements if isinstance(elements, np.ndarray) else self.net.builder.elements(elements.value)

    def integers(self, i: int, what: str) -> tuple[Size, ...]:
        """Returns the elements of an input that must be known: numbers, or sizes of dynamic dimensions."""
        if self.numbers(i, what).dtype.kind not in "iuO":
            raise self.refuse(f"needs integers as its {what}, got {self.numbers(i, what).dtype}")
        return super().integers(i, what)

    def array(self, i: int, what: str) -> np.ndarray:
        """Returns the elements of an input that must be known and free of dynamic sizes."""
        numbers = self.numbers(i, what)
        if numbers.dtype == object:
            raise OnData(
                f"{self.op} needs a known {what}, got {numbers.tolist()}; fix the inputs' sizes with shapes="
                f" ({self.where})"
            )
        return numbers

    def known(self, i: int, what: str) -> tuple[int, ...]:
        """Returns the integers of an input that must be known and free of dynamic sizes."""
        self.array(i, what)
        return tuple(map(int, self.integers(i, what)))

    def size(self, i: int, what: str) -> Size:
        """Returns the only element of an input that must be known: a number, or a size."""
        numbers = self.integers(i, what)
        if len(numbers) != 1:
            raise self.refuse(f"needs one number as its {what}, got {list(numbers)[:4]}")
        return numbers[0]

    def known_axis(self, i: int, rank: int, what: str = "axis") -> int:
        """Returns the only element of an input that must be a known axis."""
        axes = self.known(i, what)
        if len(axes) != 1:
            raise self.refuse(f"needs one {what}, got {list(axes)}")
        return self.axis(axes[0], rank)

    def axes(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Returns axes counted from the front, each once, in order."""
        return tuple(sorted({self.axis(a, rank) for a in axes}))

    # --- the order of axes

    def prefers_first(self, *inputs: int) -> bool:
        """True if an operator that works in either order should keep channels first."""
        return any(h is not None and h.is_first and h.rank >= 4 for h in (self.held[i] for i in inputs))

    def together(self, *inputs: int) -> tuple[list[NetworkTensor], bool]:
        """Returns inputs to broadcast against each other, in one order of axes, and True if that has channels first."""
        first, rank = self.prefers_first(*inputs), max(self.given(i).rank for i in inputs)
        if not first or any(h.is_first and h.rank != rank for h in map(self.given, inputs)):
            return [self.input(i) for i in inputs], False
        return [self._among(self.given(i), rank) for i in inputs], True

    def _among(self, x: Held, rank: int) -> NetworkTensor:
        if x.rank == rank:
            return x.real(first=True)
        if x.rank == 0:
            return x.real()
        real = x.real()
        wide = self.net.reshape(real, (*[1] * (rank - x.rank), *real.shape))
        return self.net.transpose(wide, to_first(rank))

    def either(self, i: int) -> tuple[NetworkTensor, bool]:
        """Returns an input in its present order, and True if that has channels first."""
        first = self.prefers_first(i)
        return self.given(i).real(first), first

    def ordered(self, tensor: NetworkTensor, first: bool) -> Given:
        return ChannelsFirst(tensor) if first else tensor

    def moves(self, *inputs: int) -> bool:
        """True if these inputs are stored like the output: elements can move without conversion to numbers."""
        to = self.outputs[0]
        return all(
            self.given(i).spec.dtype is to.dtype and self.given(i).spec.quantization == to.quantization for i in inputs
        )

    def moved(self, i: int, *others: int, first: bool = False) -> NetworkTensor:
        """Returns an input whose elements move: stored elements if the output and all other inputs are stored alike."""
        x = self.given(i)
        return x.raw(first) if self.moves(i, *others) else x.real(first)

    # --- options

    def option(self, name: str) -> Any:
        """Returns an option of a builtin operator; the schema's default, or 0, if the file lacks it."""
        options = self.node.options
        if options is None:
            return np.zeros(0, np.int32) if name in ("new_shape", "axes") else 0
        if name not in options.values:
            raise self.refuse(f"has options of another operator ({options.kind})")
        return options.values[name]

    @cached_property
    def custom_options(self) -> dict[str, Any]:
        """Options of a custom operator that keeps them as a map of FlexBuffers."""
        options = flexbuffer.loads(self.node.custom_options) if self.node.custom_options else {}
        if not isinstance(options, dict):
            raise self.refuse("needs options by name")
        return options

    @property
    def padding(self) -> str:
        number = self.option("padding")
        if not 0 <= number < len(PADDINGS):
            raise self.refuse(f"has a padding {number}; there are SAME (0) and VALID (1)")
        return PADDINGS[number]

    def strides(self, name: str = "stride", axes: str = "hw") -> tuple[int, ...]:
        """Returns an option for each spatial axis, from 1 on."""
        strides = tuple(self.option(f"{name}_{a}") for a in axes)
        if any(not 0 < s < 1 << 24 for s in strides):
            raise self.refuse(f"needs a {name} of 1 and more, got {strides}")
        return strides

    def activated(self, x: NetworkTensor) -> NetworkTensor:
        """Applies the activation that is fused into the operator."""
        number = self.option("activation")
        name = ACTIVATIONS[number] if 0 <= number < len(ACTIVATIONS) else str(number)
        if name == "NONE":
            return x
        if name in ("RELU", "TANH"):
            return self.net.relu(x) if name == "RELU" else self.net.tanh(x)
        if name not in ("RELU6", "RELU_N1_TO_1"):
            raise self.refuse(f"has the activation {name}, which is not supported")
        low, high = (0, 6) if name == "RELU6" else (-1, 1)
        return self.net.clip(x, low, high)

    # --- outputs

    def dtype(self, code: int) -> DType:
        dtype = DTYPES.get(code)
        if dtype is None:
            raise self.refuse(f"has elements of type {TYPE_NAMES.get(code, code)}, which is not supported")
        return dtype

    def sizes(self, found: Iterable[Size], dtype: DType) -> NetworkTensor:
        """Returns integers from sizes: a constant, or a value that is computed from dynamic dimensions at run time."""
        array = np.asarray(list(found), object)
        return self.net.wrap(self.net.builder.from_sizes(array, dtype, self.outputs[0].name))

    def scalar(self, size: Size, dtype: DType = I64) -> Any:
        """Returns a size as an operand."""
        if is_known(size):
            return np.asarray(size, dtype.numpy)
        return self.net.reshape(self.net.cast(self.sizes([size], I64), to=dtype), ())

    def numbered(self, size: Size, dtype: DType = I64, behind: int = 0) -> Any:
        """Returns 0, 1, … size − 1 as an operand, with `behind` trailing axes of 1."""
        if is_known(size) and size <= MAX_FILLED:
            return np.arange(size, dtype=dtype.numpy).reshape(-1, *[1] * behind)
        numbers = self.net.iota(size, dtype)
        return self.net.reshape(numbers, (size, *[1] * behind)) if behind else numbers

    def finished(self, given: Given, spec: TensorSpec) -> Held:
        """Converts a reader's output to the stored form of the declared tensor."""
        if isinstance(given, Held):
            return given if given.spec is spec else self._renamed(given, spec)
        first = isinstance(given, ChannelsFirst)
        tensor = self.net.tensor_of(given.tensor if isinstance(given, ChannelsFirst) else given)
        held = Held(self.net, spec)
        if spec.dtype is not None and tensor.dtype is not spec.dtype:
            if held.is_quantized and tensor.dtype.is_float:
                scale, zero = parameters(spec)
                if scale.size > 1:
                    raise self.refuse(f"outputs {spec.name!r} with a scale for each element of an axis")
                tensor = self.net.quantize(tensor, scale, *([zero] if zero.any() else []), to=spec.dtype)
            else:
                tensor = self.net.cast(tensor, to=spec.dtype)
        elements = tensor if tensor.array is None else tensor.array
        return Held(self.net, spec, None if first else elements, elements if first else None)

    def _renamed(self, given: Held, spec: TensorSpec) -> Held:
        if given.variable or (given.spec.dtype is spec.dtype and given.spec.quantization == spec.quantization):
            return Held(self.net, spec, given.last, given.first, given.variable)
        return self.finished(self.ordered(given.real(given.is_first), given.is_first), spec)


def type_of(spec: TensorSpec, shape: Sequence[Size]) -> TensorType:
    """Returns the type of an input or a variable; raises ModelError for texts and other non-numbers."""
    if spec.dtype is None:
        raise ModelError(f"tensor {spec} has non-numeric elements, which are not supported")
    return TensorType(spec.dtype, tuple(shape))
