"""The writer of one node: its view of the program, and the ONNX nodes that it emits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pelton.exporters.attributes import Attributes
from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.op import Op, get
from pelton.ir.types import I64, DType, TensorType
from pelton.ops.foreign import CODES

from .model import ModelWriter
from .schemas import Unwritable

NodeWriter = Callable[["Writing"], "str | Sequence[str]"]
WRITERS: dict[Op, NodeWriter] = {}


def writes(*names: str) -> Callable[[NodeWriter], NodeWriter]:
    """Registers the function that writes these ops: it emits nodes and returns the names of the op's results.

    It raises Unwritable if it cannot write exactly; then the op's expansion, if any, is written.
    """

    def register(function: NodeWriter) -> NodeWriter:
        WRITERS.update((get(name), function) for name in names)
        return function

    return register


class Writing:
    """The node to write."""

    def __init__(self, node: Node, model: ModelWriter):
        self.node, self.model, self.attrs = node, model, Attributes(node)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all operands."""
        return tuple(self.model.name(v) for v in self.node.inputs)

    def input(self, i: int) -> str:
        return self.model.name(self.node.inputs[i])

    def type(self, i: int) -> TensorType:
        """Returns the type of an operand."""
        return self.node.inputs[i].type

    @property
    def result(self) -> TensorType:
        """The type of the first output."""
        return self.node.outputs[0].type

    def known(self, i: int) -> np.ndarray | None:
        """Returns the elements of a constant operand; None for others."""
        return self.model.known(self.node.inputs[i])

    def emit(self, kind: str, *inputs: str, gives: DType | None = None, **attrs: Any) -> str:
        """Emits a node of one output and returns its name. "" is an absent input; attributes of None are omitted.
        gives: the element type, if neither the operator nor its inputs determine it."""
        return self.emit_all(kind, inputs, [gives], **attrs)[0]

    def emit_all(
        self, kind: str, inputs: Iterable[str], gives: Sequence[DType | None], *, domain: str = "", **attrs: Any
    ) -> tuple[str, ...]:
        """Emits a node with an output for each of `gives`; returns their names."""
        return self.model.emit(kind, inputs, gives, attrs, domain)

    def constant(self, array: Any, dtype: DType | None = None) -> str:
        return self.model.constant(np.asarray(array, None if dtype is None else dtype.numpy))

    def ints(self, sizes: Sequence[Size]) -> str:
        """Returns sizes as an i64 vector: a constant, or computed from the shapes of inputs."""
        return self.model.sizes.vector(sizes)

    def number(self, size: Size, dtype: DType = I64) -> str:
        """Returns a size as a scalar."""
        return self.cast(self.model.sizes.scalar(size), dtype)

    def cast(self, x: str, to: DType) -> str:
        return x if self.model.dtype(x) is to else self.emit("Cast", x, gives=to, to=CODES[to.value])

    def reshape(self, x: str, shape: Sequence[Size]) -> str:
        zero = any(isinstance(d, int) and d == 0 for d in shape)
        return self.emit("Reshape", x, self.ints(shape), allowzero=1 if zero else None)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        return x if tuple(perm) == tuple(range(len(perm))) else self.emit("Transpose", x, perm=perm)

    def value(self, value: Value) -> str:
        return self.model.name(value)

    def refuse(self, reason: str) -> Unwritable:
        return Unwritable(reason)
