"""The writer of one node: its view of the model, and the TFLite operators that it emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pelton.exporters.attributes import Attributes
from pelton.importers.tflite.schema import ACTIVATIONS
from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.expansion import expand_op
from pelton.ir.op import Op, TermLike, get
from pelton.ir.types import F32, I8, DType, TensorType

from .forms import Perm, arranged, identity
from .fusion import FusedOperator
from .model import TFLiteDraft
from .tensors import NoForm, Scaling, TFLiteTensor

NodeWriter = Callable[["TFLiteWriting"], None]
WRITERS: dict[Op, NodeWriter] = {}
EXPANSIONS: dict[Op, Callable[..., Any]] = {}  # by which ops are written instead of their own


def writes(*names: str) -> Callable[[NodeWriter], NodeWriter]:
    """Registers the function that writes these ops: it emits operators and records the outputs (`result`, `put`).

    It raises NoForm if it cannot write exactly; then the op's expansion, if any, is written.
    """

    def register(function: NodeWriter) -> NodeWriter:
        WRITERS.update((get(name), function) for name in names)
        return function

    return register


def expands(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the expansion that these ops are written by, of the form of `Op.expand`; it may raise NoForm."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        EXPANSIONS.update((get(name), function) for name in names)
        return function

    return register


class TFLiteWriting:
    """The node to write. In an operator of integers (`fused.scaling`), operands are stored integers."""

    def __init__(self, node: Node, model: TFLiteDraft, end: FusedOperator):
        self.node, self.model, self.end = node, model, end
        self.attrs = Attributes(node)

    # --- operands

    @property
    def integers(self) -> bool:
        """True if the operator is one of integers."""
        return self.end.scaling is not None

    def input(self, i: int) -> Value:
        return self.node.inputs[i]

    def type(self, i: int) -> TensorType:
        return self.node.inputs[i].type

    def known(self, i: int) -> np.ndarray | None:
        """Returns the elements of a constant operand; None for others."""
        return self.model.known(self.node.inputs[i])

    def native(self, i: int) -> Perm:
        return self.model.native(self.node.inputs[i])

    def x(self, i: int, perm: Perm | None = None) -> TFLiteTensor:
        """Returns an operand in a form, its own order by default; stored integers in an operator of integers."""
        return self.tensor(self.node.inputs[i], perm)

    def tensor(self, v: Value, perm: Perm | None = None) -> TFLiteTensor:
        if self.integers and v.type.dtype is F32:
            stored = self.model.integers(v, perm)
            return self.as_integers(v, perm) if stored is None else stored
        return self.model.get(v, perm)

    def as_integers(self, v: Value, perm: Perm | None = None) -> TFLiteTensor:
        """Quantizes a constant of floats, the largest number to ±127; raises NoForm unless that is exact."""
        array = self.model.known(v)
        if array is None or not np.isfinite(array).all():
            raise NoForm(f"%{v.name} has no scale")
        top = float(np.abs(array).max(initial=0)) or 1.0
        scale = np.float32(top / 127)
        codes = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
        if (np.abs(codes * scale - array) > 1e-6 * top).any():
            raise NoForm(f"its constant %{v.name} is not quantized")
        order = identity(v.type.rank) if perm is None else perm
        assert order is not None
        return self.model.constant(np.asarray(codes.transpose(order), order="C"), Scaling((float(scale),)))

    # --- results

    @property
    def output(self) -> TensorType:
        return self.node.outputs[0].type

    def emit(
        self,
        name: str,
        inputs: Sequence[TFLiteTensor | None],
        shape: Sequence[Size],
        dtype: DType | None = None,
        kind: str = "",
        scaling: Scaling | None = None,
        **options: Any,
    ) -> TFLiteTensor:
        """Emits an operator; its element type is that of the first input by default."""
        first = next(t for t in inputs if t is not None)
        return self.model.emit(name, inputs, shape, dtype or first.dtype, kind, options, scaling)

    def result(
        self,
        name: str,
        inputs: Sequence[TFLiteTensor | None],
        perm: Perm,
        kind: str = "",
        *,
        scaling: Scaling | None = None,
        shape: Sequence[Size] | None = None,
        **options: Any,
    ) -> None:
        """Emits the operator of the node's output in a form, with its activation if its options have one.

        scaling: of an operator of integers, if its output cannot have any. shape: of the operator's output, if that is
        reshaped to the form.
        """
        end, value = self.end, self.end.value
        dtype = I8 if self.integers else value.type.dtype
        scaling = (scaling or end.scaling) if self.integers else None
        form = arranged(value.type.shape, perm)
        output = self.model.tensor(form if shape is None else shape, dtype, scaling, value.name)
        if end.activation != "NONE":
            options["activation"] = ACTIVATIONS.index(end.activation)
        self.model.append(name, inputs, [output], kind, options)
        self.finish(output if shape is None else self.model.reshaped(output, form), perm)

    def finish(self, tensor: TFLiteTensor, perm: Perm | None = None) -> None:
        """Records a tensor as the node's output in a form, rescaled as needed."""
        end = self.end
        if end.scaling is None:
            self.model.put(end.value, tensor, perm)
            return
        tensor = self.model.rescaled(tensor, end.scaling)
        for v in end.stored:
            self.model.put(v, tensor, perm)

    def put(self, i: int, tensor: TFLiteTensor, perm: Perm | None = None) -> None:
        """Records one of several outputs."""
        self.model.put(self.node.outputs[i], tensor, perm)

    def moved(
        self, name: str, inputs: Sequence[TFLiteTensor | None], perm: Perm, kind: str = "", **options: Any
    ) -> None:
        """Emits an operator whose output has the element type and the scaling of its first input."""
        first = next(t for t in inputs if t is not None)
        shape = arranged(self.end.value.type.shape, perm)
        if self.end.activation != "NONE":
            options["activation"] = ACTIVATIONS.index(self.end.activation)
        self.finish(self.model.emit(name, inputs, shape, first.dtype, kind, options, first.scaling), perm)

    def written(self, *terms: TermLike) -> tuple[Value, ...]:
        """Writes an expression of values; returns its results."""
        op = Op(self.node.op.name, "composite", expand=lambda: terms)
        body = expand_op(op, (), {})
        outputs = tuple(Value(v.type, v.name) for v in body.outputs)
        self.model.write_body(self.model, body, outputs)
        return outputs

    # --- constants

    def constant(self, array: Any, dtype: DType | None = None) -> TFLiteTensor:
        return self.model.constant(np.asarray(array, None if dtype is None else dtype.numpy))

    def ints(self, sizes: Sequence[Size]) -> TFLiteTensor:
        """Returns sizes as an i32 vector: a constant, or computed from the shapes of inputs."""
        return self.model.sizes.vector(sizes)

    def refuse(self, reason: str) -> NoForm:
        return NoForm(reason)
