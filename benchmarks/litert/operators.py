"""Judges LiteRT operator by operator: each one alone, on the operands that LiteRT computed in front of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pelton import importers
from pelton.exporters.tflite.flatbuffer import TableWriter
from pelton.exporters.tflite.tensors import TFLiteOperator, TFLiteTensor, model_table
from pelton.exporters.tflite.write import TFLiteFile
from pelton.importers.tflite.schema import IDENTIFIER, SCHEMA
from pelton.ir.evaluate import evaluate

STEPS, FLOAT = 1.01, 1e-4  # as far as integers may be apart, in steps; floats, of the largest


@dataclass(frozen=True)
class OperatorMatch:
    """How an operator of LiteRT differs from its meaning: elements in all, different ones, those beyond a step."""

    operator: str
    elements: int
    different: int
    beyond: int

    @property
    def share(self) -> float:
        """The share of elements beyond a step."""
        return self.beyond / max(self.elements, 1)


def write_all_tensors(file: TFLiteFile, path: Path) -> None:
    """Writes a model again, with what every operator computes as an output, by the name of the tensor.

    Delegates such as XNNPACK fill no inner tensors, but all outputs.
    """
    path.write_bytes(_data(file.inputs, {t.name: t for op in file.operators for t in op.outputs}, file.operators))


def operator_matches(file: TFLiteFile, tensors: Mapping[str, np.ndarray], folder: Path) -> list[OperatorMatch]:
    """Compares each operator with its meaning: Pelton's reading of a file with this operator alone, in float64.

    tensors: the model's inputs by port, and what LiteRT made of `write_all_tensors`, by tensor.
    """
    known = {t: tensors[name] for name, t in file.inputs.items()}
    known |= {t: tensors[t.name] for op in file.operators for t in op.outputs}
    return [_match(op, known, folder / "operator.tflite") for op in file.operators]


def summed(matches: Iterable[OperatorMatch]) -> dict[str, OperatorMatch]:
    """Returns the matches of each kind of operator as one, by kind."""
    found = dict[str, OperatorMatch]()
    for m in matches:
        o = found.get(m.operator, OperatorMatch(m.operator, 0, 0, 0))
        found[m.operator] = OperatorMatch(
            m.operator, o.elements + m.elements, o.different + m.different, o.beyond + m.beyond
        )
    return found


def _match(op: TFLiteOperator, known: Mapping[TFLiteTensor, np.ndarray], path: Path) -> OperatorMatch:
    variable = [t for t in dict.fromkeys(op.inputs) if t is not None and t.data is None]
    operands, results = ({f"{side}{i}": t for i, t in enumerate(s)} for side, s in (("x", variable), ("y", op.outputs)))
    path.write_bytes(_data(operands, results, [op]))
    feeds = {k: known[t] for k, t in operands.items()}
    wanted = evaluate(importers.load(path, {k: a.shape for k, a in feeds.items()}).graph, feeds)
    elements = different = beyond = 0
    for k, t in results.items():
        found, meant = known[t].astype(np.float64), wanted[k].astype(np.float64)
        if found.shape != meant.shape:
            raise ValueError(f"LiteRT's {op.operator} has the shape {found.shape}, not {meant.shape}")
        off = np.abs(found - meant)
        if t.dtype.is_float:
            off /= FLOAT * max(np.abs(meant).max(initial=0), 1e-30)
        elements, different, beyond = elements + off.size, different + _count(off > 0.5), beyond + _count(off > STEPS)
    return OperatorMatch(op.operator, elements, different, beyond)


def _count(where: np.ndarray) -> int:
    return int(np.count_nonzero(where))


def _data(
    inputs: Mapping[str, TFLiteTensor], outputs: Mapping[str, TFLiteTensor], operators: Sequence[TFLiteOperator]
) -> bytes:
    return bytes(TableWriter(SCHEMA, IDENTIFIER).finished("Model", model_table("model", inputs, outputs, operators)))
