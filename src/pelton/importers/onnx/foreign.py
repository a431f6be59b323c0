"""Translates nodes without a reader: by the function body of their schema, or as a step of the onnx package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.ir import lineage
from pelton.ir.graph import Value
from pelton.ir.imported import OnData
from pelton.ir.bindings import Broken, kind_of
from pelton.ir.types import TensorType
from pelton.ops import foreign as ops_foreign

from . import names
from .node import Reading

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

# constants up to this size become part of the step's model: shapes may depend on them
_MAX_BAKED = 64
_MAX_EVALUATED = 1 << 28  # bytes of a node's constants, up to which it is evaluated at import
# Ops whose reference in the onnx package is wrong for some opsets or attributes.
MISREAD = {
    "BatchNormalization",
    "GRU",
    "Gelu",
    "GroupNormalization",
    "Hardmax",
    "LRN",
    "LSTM",
    "LogSoftmax",
    "MaxUnpool",
    "Pad",
    "RNN",
    "Resize",
    "Softmax",
    "Upsample",
}
# Ops that our own importer and references run as host steps: those, and others whose reference needs types in advance,
# is missing, or accepts meaningless numbers (too few repeat counts, a k beyond the axis).
BY_PELTON = MISREAD | {
    "AffineGrid",
    "DFT",
    "DynamicSlice",
    "OneHot",
    "Reshape",
    "SequenceInsert",
    "Split",
    "SplitToSequence",
    "Tile",
    "TopK",
}


def title(n: Reading) -> str:
    return f"{n.domain or 'onnx'}::{n.op}@{n.opset}"


def schema_body(n: Reading) -> onnx.FunctionProto | None:
    """Returns the function body in the schema of a composite op, for this opset and these inputs."""
    schema = n.schema
    plain, contextual = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    if plain:
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(_nearest(plain, n.opset)))
    if contextual and all(t is None or isinstance(t, Value) for t in n.bindings):
        types = [_type(t.type) if isinstance(t, Value) else onnx.TypeProto() for t in n.bindings]
        try:
            body = schema.get_context_dependent_function_with_opset_version(
                _nearest(contextual, n.opset), n.node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        except onnx.shape_inference.InferenceError as e:
            raise n.refuse(f"{n.op} does not fit its inputs: {e}") from None
        return onnx.FunctionProto.FromString(body) if body else None
    return None


def _nearest(versions: list[int], opset: int) -> int:
    """Returns the newest body up to an opset, else the oldest; a body states its own opset, and all are equivalent."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _type(type: TensorType) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(ops_foreign.CODES[type.dtype.value], ops_foreign.dims_as_onnx(type.shape))


def step(n: Reading, types: Mapping[int, TensorType]) -> tuple[Value | None, ...]:
    """Converts the node to one foreign op. Outer values that its subgraphs read become inputs.

    `types` of outputs, and those that the model declares, apply where onnx infers none; wrong declarations are ignored.
    """
    node = onnx.NodeProto()
    node.CopyFrom(n.node)
    node.name = node.doc_string = ""
    inputs: dict[str, Value] = {}
    for name in [*node.input, *sorted(names.read_by(n.node) - set(node.input))]:
        binding = n.scope.find(name) if name and n.scope.sees(name) else None
        if binding is not None and not isinstance(binding, (Value, Broken)):
            raise OnData(
                f"{n.op} reads {kind_of(binding)}, which exists during the import only; it cannot become a step"
                f" ({n.where})"
            )
        if isinstance(binding, Value):
            inputs[name] = binding
    if has_axis_out_of_range(node, (v.type.rank for v in inputs.values())):
        raise n.refuse(
            f"{n.op} names an axis that none of its inputs has:"
            f" {', '.join(map(str, (v.type for v in inputs.values()))) or 'there are none'}"
        )
    for i, name in enumerate(node.input):
        if name not in inputs:
            node.input[i] = ""
    if missing := [
        f.name
        for f, name in zip_longest(n.schema.inputs if n.schema else (), node.input)
        if f and f.option == f.option.Single and not name
    ]:
        raise n.refuse(f"{n.op} needs its inputs {', '.join(missing)}")
    arrays = {name: n.builder.constants[v] for name, v in inputs.items() if v in n.builder.constants}
    for array in arrays.values():
        lineage.read(array)
    all_known = (
        len(arrays) == len(inputs) and not n.is_random and sum(a.nbytes for a in arrays.values()) <= _MAX_EVALUATED
    )
    baked = {name: a for name, a in arrays.items() if all_known or a.size <= _MAX_BAKED}
    used = [i for i in range(len(node.output)) if n.is_output_used(i)]
    fed = {k: v for k, v in inputs.items() if k not in baked}

    def model(types: Mapping[int, TensorType]) -> onnx.ModelProto:
        return _model(n, node, fed, baked, {node.output[i]: types.get(i) for i in used})

    try:
        run = ops_foreign.bounded(model({}))
    except Exception as e:  # any exception of the packages behind it
        raise n.refuse(
            f"{n.op} of opset {n.opset} is known to onnx, but its reference evaluator cannot run it: {e}"
        ) from None
    if all_known:
        values = tuple(n.builder.shared_constant(a) for a in _evaluate(n, run, model({})))
    else:
        op, declared = ops_foreign.foreign(title(n)), {**n.declared(), **types}
        try:
            values = n.emit_all(op, *fed.values(), model=ops_foreign.packed(model(declared)))
        except ModelError:
            if declared == types:
                raise
            values = n.emit_all(op, *fed.values(), model=ops_foreign.packed(model(types)))
    out: list[Value | None] = [None] * len(node.output)
    for i, value in zip(used, values):
        out[i] = value
    return tuple(out)


def has_axis_out_of_range(node: onnx.NodeProto, ranks: Iterable[int]) -> bool:
    """True if a node has an axis far out of range, for which onnx's shape inference reads out of bounds."""
    named = [i for a in node.attribute if a.name in ("axis", "axes") for i in (a.i, *a.ints)]
    bound = max(ranks, default=0) + len(named)
    return any(not -bound <= i <= bound for i in named)


def _evaluate(n: Reading, run: ReferenceEvaluator, model: onnx.ModelProto) -> list[np.ndarray]:
    """Evaluates a node with constant inputs; raises ModelError if its outputs would be too large."""
    if _inferred_elements(model) > _MAX_EVALUATED:
        raise n.refuse(f"{n.op} of these constants would be a constant of more than {_MAX_EVALUATED >> 20} MiB")
    try:
        with np.errstate(all="ignore"):
            outputs = run.run(None, {})
    except Exception as e:  # any exception of the packages behind it
        raise n.refuse(f"onnx cannot evaluate {n.op} on these constants: {e}") from None
    if any(isinstance(a, (list, dict)) or a is None for a in outputs):
        raise OnData(
            f"{n.op} has an output that is no tensor; sequences are supported only within the model ({n.where})"
        )
    if sum(np.asarray(a).nbytes for a in outputs) > _MAX_EVALUATED:
        raise n.refuse(f"{n.op} of these constants is a constant of more than {_MAX_EVALUATED >> 20} MiB")
    return [np.asarray(a) for a in outputs]


def _inferred_elements(model: onnx.ModelProto) -> int:
    """Counts the elements of the outputs, as far as onnx can infer them."""
    try:
        inferred = ops_foreign.inferred(model)
    except ValueError:
        return 0
    return sum(
        math.prod(d.dim_value for d in v.type.tensor_type.shape.dim if d.dim_value > 0) for v in inferred.graph.output
    )


def _model(
    n: Reading,
    node: onnx.NodeProto,
    inputs: dict[str, Value],
    baked: dict[str, np.ndarray],
    outputs: Mapping[str, TensorType | None],
) -> onnx.ModelProto:
    graph = onnx.GraphProto(name=n.op, node=[node])
    graph.input.extend(onnx.ValueInfoProto(name=name, type=_type(v.type)) for name, v in inputs.items())
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), name) for name, a in baked.items()
    )
    graph.output.extend(onnx.ValueInfoProto(name=name, type=_type(t) if t else None) for name, t in outputs.items())
    opsets = [
        onnx.helper.make_opsetid(domain, version)
        for domain, version in sorted({**n.scope.opsets, n.domain: n.opset}.items())
    ]
    local = list(n.program.functions.values()) if names.subgraphs(node) else []
    return onnx.helper.make_model(graph, opset_imports=opsets, functions=local, producer_name="pelton")


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the element types of a model's main graph, as far as onnx can infer them, without its weights."""
    graph = onnx.GraphProto(name="types", node=model.graph.node, output=model.graph.output)
    graph.input.extend(i for i in model.graph.input if i.type.WhichOneof("value"))
    known = {i.name for i in graph.input}
    for t in model.graph.initializer:
        if math.prod(t.dims) <= _MAX_BAKED:
            graph.initializer.append(t)
        if t.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    whole = onnx.ModelProto(
        graph=graph, opset_import=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )
    try:
        inferred_graph = ops_foreign.inferred(whole).graph
    except ValueError:
        return {}
    return {v.name: v.type.tensor_type.elem_type for v in (*inferred_graph.value_info, *inferred_graph.output)}
