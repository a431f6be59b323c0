"""Single operators as text, which scripts read anew for each run, with their data as constants."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.ir.evaluate import evaluate
from pelton.network import Network

from .file import OperatorOptions, OperatorSpec, Quantization, SubgraphSpec, TensorSpec
from .held import Held
from .load import ModelReader
from .schema import OPERATORS

NESTED = ("CALL", "CALL_ONCE", "IF", "STABLEHLO_COMPOSITE", "WHILE")  # operators that run subgraphs


@dataclass(frozen=True)
class OneOperator:
    """A model of one operator, in the form that `ModelReader` needs."""

    name: str

    def subgraph(self, number: int) -> SubgraphSpec:
        raise ModelError(f"{self.name}: there is no subgraph {number} around a single operator")

    def where(self, number: int, node: OperatorSpec, subgraph: SubgraphSpec) -> str:
        return self.name


def to_text(node: OperatorSpec, subgraph: SubgraphSpec, where: str) -> str:
    """Serializes an operator and its tensors. Raises ModelError for one that cannot be run alone."""
    tensors = [subgraph.tensors[i] for i in (*node.inputs, *node.outputs) if i >= 0]
    if node.name in NESTED or any(t.dtype is None or t.is_variable for t in tensors):
        raise ModelError(f"{node.name} cannot be run alone ({where})")
    options = node.options
    return json.dumps(
        {
            "where": where,
            "name": node.name,
            "custom": base64.b64encode(node.custom_options).decode() if node.custom else None,
            "version": node.version,
            "options": None if options is None else [options.kind, {k: _plain(v) for k, v in options.values.items()}],
            "inputs": [None if i < 0 else _described(subgraph.tensors[i]) for i in node.inputs],
            "outputs": [_described(subgraph.tensors[i]) for i in node.outputs if i >= 0],
        }
    )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _described(spec: TensorSpec) -> list[Any]:
    q = spec.quantization
    how = None if q is None else [q.scale.tolist(), q.zero.tolist(), q.axis, q.block]
    return [spec.name, spec.code, list(spec.shape), how]


def run(text: str, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Computes the outputs of an operator for the stored elements of its inputs. Raises ModelError if they do not fit
    it, ValueError and others for damaged text."""
    request = json.loads(text)
    inputs = [None if t is None else _spec(*t) for t in request["inputs"]]
    outputs = [_spec(*t) for t in request["outputs"]]
    tensors = (*(t for t in inputs if t is not None), *outputs)
    numbers = iter(range(len(tensors)))
    read = tuple(-1 if t is None else next(numbers) for t in inputs)
    made, custom = tuple(numbers), request["custom"]
    if custom is None and request["name"] not in OPERATORS:
        raise ValueError(f"there is no operator {request['name']!r}")
    options = None if request["options"] is None else _options(*request["options"])
    node = OperatorSpec(
        request["name"],
        custom is not None,
        request["version"],
        read,
        made,
        options,
        b"" if custom is None else base64.b64decode(custom, validate=True),
    )
    subgraph, net = SubgraphSpec("", tensors, (), made, (node,)), Network("main")
    held = {
        i: Held(net, tensors[i], np.asarray(a)) for i, a in zip(read, arrays, strict=True) if i >= 0 and a is not None
    }
    values = ModelReader(OneOperator(request["where"]), net).operator(node, subgraph, held, request["where"])
    for i in made:
        net.output(values[i].raw(), str(i))
    results = evaluate(net.graph(), {})
    return [results[str(i)] for i in made]


def _options(kind: str, values: dict[str, Any]) -> OperatorOptions:
    return OperatorOptions(kind, {k: np.asarray(v, np.int32) if isinstance(v, list) else v for k, v in values.items()})


def _spec(name: str, code: int, shape: list[int], how: list[Any] | None) -> TensorSpec:
    q = None
    if how is not None:
        scale, zero, axis, block = how
        q = Quantization(np.asarray(scale, np.float32), np.asarray(zero, np.int64), axis, block)
    return TensorSpec(name, code, tuple(shape), tuple(shape), None, q, False)
