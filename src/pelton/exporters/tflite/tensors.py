"""Tensors and operators of a TFLite model in progress, and the table of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.importers.tflite.schema import DTYPES, OPERATORS, OPTIONS, OPTIONS2
from pelton.ir.dims import Size, is_known
from pelton.ir.types import DType

from .versions import version_of

CODES = {dtype: code for code, dtype in DTYPES.items() if dtype is not None}
KINDS = {kind: ("options", number) for number, kind in OPTIONS.items()}
KINDS |= {kind: ("options2", number) for number, kind in OPTIONS2.items()}
DYNAMIC = -1  # a size of a shape signature
Row = dict[str, Any]  # a table of the schema


class NoForm(Exception):
    """TFLite has nothing that means exactly the same; its text is the reason."""


@dataclass(frozen=True)
class Scaling:
    """The meaning of stored integers: (x − zero) · scale, with one scale, or one for each element of an axis."""

    scale: tuple[float, ...]
    zero: int = 0
    axis: int = 0

    def moved(self, perm: Sequence[int]) -> Scaling:
        """Returns the scaling of a transposed tensor."""
        return self if len(self.scale) == 1 else Scaling(self.scale, self.zero, list(perm).index(self.axis))


@dataclass(frozen=True, eq=False)
class TFLiteTensor:
    """A tensor; compared by identity. Constants have data."""

    shape: tuple[Size, ...]
    dtype: DType
    name: str
    scaling: Scaling | None = None
    data: np.ndarray | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def table(self, buffer: int) -> Row:
        signature = None
        if not is_known(*self.shape):
            signature = [d if isinstance(d, int) else DYNAMIC for d in self.shape]
        row: Row = dict(
            shape=[d if isinstance(d, int) else 1 for d in self.shape],
            type=CODES[self.dtype],
            buffer=buffer,
            name=self.name,
            shape_signature=signature,
        )
        if self.scaling is not None:
            zeros = [self.scaling.zero] * len(self.scaling.scale)
            row["quantization"] = dict(scale=self.scaling.scale, zero_point=zeros, axis=self.scaling.axis)
        return row


@dataclass(frozen=True, eq=False)
class TFLiteOperator:
    """An operator. `layer`: the node of the program that it belongs to. An input of None is absent."""

    operator: str
    inputs: tuple[TFLiteTensor | None, ...]
    outputs: tuple[TFLiteTensor, ...]
    layer: str
    kind: str = ""  # of its options
    options: Mapping[str, Any] = field(default_factory=dict)


def needed(operators: Iterable[TFLiteOperator], outputs: Iterable[TFLiteTensor]) -> list[TFLiteOperator]:
    """Returns the operators that the outputs need, in order."""
    read, kept = set(outputs), list[TFLiteOperator]()
    for op in reversed(list(operators)):
        if not read.isdisjoint(op.outputs):
            kept.append(op)
            read.update(t for t in op.inputs if t is not None)
    return kept[::-1]


def model_table(
    name: str,
    inputs: Mapping[str, TFLiteTensor],
    outputs: Mapping[str, TFLiteTensor],
    operators: Sequence[TFLiteOperator],
) -> Row:
    """Returns the table of a model of one subgraph with one signature, whose ports have these names."""
    every = [*inputs.values(), *(t for op in operators for t in (*op.inputs, *op.outputs) if t is not None)]
    numbers = {t: i for i, t in enumerate(dict.fromkeys([*every, *outputs.values()]))}
    buffers: list[Row] = [{}]  # the first one is empty by convention
    tensors, codes = list[Row](), dict[tuple[str, int], int]()
    for t in numbers:
        if t.data is not None:
            buffers.append(dict(data=np.frombuffer(np.ascontiguousarray(t.data).tobytes(), np.uint8)))
        tensors.append(t.table(0 if t.data is None else len(buffers) - 1))
    rows = list[Row]()
    for op in operators:
        code = codes.setdefault((op.operator, version_of(op.operator, _types(op), op.options)), len(codes))
        row: Row = dict(
            code=code,
            inputs=[-1 if t is None else numbers[t] for t in op.inputs],
            outputs=[numbers[t] for t in op.outputs],
        )
        if op.kind:
            union, number = KINDS[op.kind]
            row |= {f"{union}_type": number, union: (op.kind, op.options)}
        rows.append(row)
    ports = [[dict(name=port, tensor=numbers[t]) for port, t in side.items()] for side in (inputs, outputs)]
    graph = dict(
        tensors=tensors,
        inputs=[numbers[t] for t in inputs.values()],
        outputs=[numbers[t] for t in outputs.values()],
        operators=rows,
        name=name,
    )
    return dict(
        version=3,
        codes=[_code(OPERATORS.index(op), version) for op, version in codes],
        subgraphs=[graph],
        buffers=buffers,
        signatures=[dict(inputs=ports[0], outputs=ports[1], key="serving_default", subgraph=0)],
    )


def _types(op: TFLiteOperator) -> list[DType | None]:
    return [None if t is None else t.dtype for t in op.inputs]


def _code(number: int, version: int) -> Row:
    return dict(code=number, old_code=min(number, 127), version=version)
