"""Turns single nodes into host steps of a script, and infers the types of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.ir.bindings import Binding, ValueSequence
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value
from pelton.ir.dims import Dim, Size
from pelton.ir.types import I32, I64, DType, TensorType
from pelton.ir.unread import HostCall, Known
from pelton.ops import foreign

from . import foreign as onnx_foreign, names as onnx_names
from .file import Source
from .load import opsets_of
from .node import MICROSOFT, READERS, attribute
from .program import Program
from .scope import Scope, domain_of
from .translate import Translator

_MAX_BAKED = 64  # elements of constants for shape inference


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: attribute(a) for a in node.attribute}


# (domain, op) → the function in `reference.functions`, and its attributes there
HOST_FUNCTIONS: dict[tuple[str, str], tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    ("", "NonZero"): ("nonzero", lambda a: {}),
    ("", "Compress"): ("compress", lambda a: {"axis": a.get("axis")}),
    ("", "Unique"): ("unique", lambda a: {"axis": a.get("axis"), "sorted": bool(a.get("sorted", 1))}),
    ("", "NonMaxSuppression"): ("non_max_suppression", lambda a: {"center": bool(a.get("center_point_box", 0))}),
    ("", "StringNormalizer"): (
        "normalized",
        lambda a: {
            "case": a.get("case_change_action", "NONE"),
            "sensitive": bool(a.get("is_case_sensitive", 0)),
            "stopwords": list(a.get("stopwords", ())),
        },
    ),
    (MICROSOFT, "Unique"): ("unique_in_order", lambda a: {}),
    (MICROSOFT, "DynamicTimeWarping"): ("warped", lambda a: {}),
    (MICROSOFT, "BifurcationDetector"): (
        "bifurcated",
        lambda a: {"shortest": a.get("min_ngram_size", 1), "longest": a.get("max_ngram_size", 3)},
    ),
    (MICROSOFT, "Tokenizer"): (
        "tokens",
        lambda a: {
            "pad": a.get("pad_value", "#"),
            "mark": bool(a.get("mark", 0)),
            "separators": list(a.get("separators", ())),
            "expression": a.get("tokenexp", ""),
            "shortest": int(a.get("mincharnum", 1)),
        },
    ),
}

# operators that an op without kernels represents
HOST_OPERATORS = {(MICROSOFT, "Inverse")}


def call(source: Source, opsets: Mapping[str, int], node: onnx.NodeProto, reason: str) -> HostCall:
    """Returns the host step for a single node; raises ModelError with this reason if nothing can run it."""
    if (domain_of(node.domain), node.op_type) in HOST_FUNCTIONS:
        name, attributes = HOST_FUNCTIONS[domain_of(node.domain), node.op_type]
        return HostCall(name, json.dumps(attributes(_attributes(node))), tuple(node.input), tuple(node.output))
    model = _model(opsets, node, {}, {})

    def of(kind: str) -> HostCall:
        return HostCall(
            kind, foreign.packed(model), tuple(i.name for i in model.graph.input), tuple(filter(None, node.output))
        )

    if domain_of(node.domain) == "" and node.op_type in onnx_foreign.BY_PELTON:
        return of("read")
    try:
        foreign.bounded(model)
    except Exception as e:  # any exception of the packages behind it
        if (domain_of(node.domain), node.op_type) in READERS:
            return of("read")
        raise ModelError(
            f"{reason or node.op_type}; the reference evaluator of the onnx package cannot run it either: {e}"
            f" ({source.name})"
        ) from None
    return of("onnx")


def result(model: onnx.ModelProto, given: Mapping[str, Any]) -> list[Any]:
    """Computes the outputs of a one-node model for these constant inputs: arrays, lists of arrays, and None.

    Raises ModelError if they are meaningless.
    """
    (node,) = model.graph.node
    program = Program(Source(model, None))
    builder = program.builder

    def binding(value: Any) -> Binding:
        if isinstance(value, list):
            return ValueSequence(tuple(builder.constant(a) for a in value))
        return None if value is None else builder.constant(np.asarray(value))

    scope = Scope(
        opsets_of(program),
        bound={name: binding(value) for name, value in given.items()},
        used_names=frozenset(filter(None, node.output)),
    )
    program.bind_initializers(model.graph, scope)
    bindings = Translator(program).node(node, scope)
    if program.problems:
        raise ModelError(program.problems[0])
    parts = dict.fromkeys(v for b in bindings for v in (b.values if isinstance(b, ValueSequence) else (b,)))
    values = [v for v in parts if isinstance(v, Value)]
    arrays = evaluate(builder.finish([], {f"{i}": v for i, v in enumerate(values)}), {})
    of: dict[Any, Any] = {v: arrays[f"{i}"] for i, v in enumerate(values)}
    bound = [b for b, name in zip(bindings, node.output) if name]
    return [[of[v] for v in b.values] if isinstance(b, ValueSequence) else of.get(b) for b in bound]


def _model(
    opsets: Mapping[str, int],
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    arrays: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """Builds a model of one node; outer values of its nested graphs become inputs."""
    graph = onnx.GraphProto(name=node.op_type, node=[node])
    names = dict.fromkeys([*filter(None, node.input), *sorted(onnx_names.read_by(node))])
    graph.input.extend(onnx.ValueInfoProto(name=name, type=types.get(name)) for name in names if name not in arrays)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), name) for name, a in arrays.items()
    )
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in sorted(opsets.items())], producer_name="pelton"
    )


def types(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    known: Known,
    declared: Mapping[str, tuple[DType, int]],
    size: Callable[[str, int], Size],
) -> list[TensorType | None]:
    """Infers the types of the outputs, with the declared element types and ranks; None for unknown ones.

    size: creates a symbol from a hint and a rank, for each unknown size.
    """

    def fresh(i: int, axis: int, rank: int = 1) -> Size:
        return size(f"{node.output[i] or node.op_type}_{axis}", rank)

    input_types = [known.type(name) if name else None for name in node.input]
    if (domain_of(node.domain), node.op_type) in HOST_FUNCTIONS and input_types[0] is not None:
        return _host_function_types(node, input_types, fresh(0, 0))[: len(node.output)]
    if node.op_type == "DynamicSlice" and (x := input_types[0]) is not None:  # unknown to the onnx package
        return [x.with_shape(fresh(0, axis, x.rank) for axis in range(x.rank))]
    if node.op_type == "SequenceAt" and (
        items := [known.type(name) for name in known.sequences.get(node.input[0], ())]
    ):
        return [_common_type([t for t in items if t is not None], len(items), fresh)]
    protos, arrays = {}, {}
    for name in onnx_names.read_by(node):
        t = known.type(name)
        if name in known.constants and known.constants[name].size <= _MAX_BAKED:
            arrays[name] = known.constants[name]
        elif t is not None:
            protos[name] = onnx.helper.make_tensor_type_proto(
                foreign.CODES[t.dtype.value], foreign.dims_as_onnx(t.shape)
            )
    named = {str(d): d for t in input_types if t is not None for d in t.shape if isinstance(d, Dim)}
    inferred = onnx.ModelProto()
    try:
        if not onnx_foreign.has_axis_out_of_range(
            node, (t.rank for name in onnx_names.read_by(node) if (t := known.type(name)) is not None)
        ):
            inferred = foreign.inferred(_model(opsets, node, protos, arrays))
    except ValueError:
        pass
    outs = {v.name: v.type for v in inferred.graph.output}

    def read(i: int, name: str) -> TensorType | None:
        tensor = outs[name].tensor_type if name in outs and outs[name].WhichOneof("value") == "tensor_type" else None
        if tensor is None or tensor.elem_type not in foreign.DTYPES or not tensor.HasField("shape"):
            dtype, rank = declared.get(name, (None, 0))
            return TensorType(dtype, tuple(fresh(i, axis, rank) for axis in range(rank))) if dtype is not None else None
        rank = len(tensor.shape.dim)
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else named.get(d.dim_param) or fresh(i, axis, rank)
            for axis, d in enumerate(tensor.shape.dim)
        )
        return TensorType(foreign.DTYPES[tensor.elem_type], shape)

    return [read(i, name) for i, name in enumerate(node.output)]


def _common_type(items: list[TensorType], count: int, fresh: Callable[..., Size]) -> TensorType | None:
    """Returns the common type of a list's elements, with differing sizes unknown; None if ranks differ."""
    if len(items) < count or len({(t.dtype, t.rank) for t in items}) > 1:
        return None
    rank, columns = items[0].rank, [set(column) for column in zip(*(t.shape for t in items))]
    return items[0].with_shape(c.pop() if len(c) == 1 else fresh(0, axis, rank) for axis, c in enumerate(columns))


def _host_function_types(node: onnx.NodeProto, given: list[TensorType | None], count: Size) -> list[TensorType | None]:
    x = given[0]
    assert x is not None
    attributes = HOST_FUNCTIONS[domain_of(node.domain), node.op_type][1](_attributes(node))
    axis = attributes.get("axis")
    axis = None if axis is None else axis % max(x.rank, 1)
    if axis is None:
        selected = TensorType(x.dtype, (count,))
    else:
        selected = x.with_shape((*x.shape[:axis], count, *x.shape[axis + 1 :]))
    vector = TensorType(I64, (count,))
    if domain_of(node.domain) == MICROSOFT and node.op_type == "Unique":
        return [selected, TensorType(I64, x.shape), vector]
    match node.op_type:
        case "DynamicTimeWarping":
            return [TensorType(I32, (2, count))]
        case "BifurcationDetector":
            return [vector, given[2]]
        case "NonZero":
            return [TensorType(I64, (x.rank, count))]
        case "NonMaxSuppression":
            return [TensorType(I64, (count, 3))]
        case "Compress":
            return [selected]
        case "StringNormalizer":
            return [x.with_shape((*x.shape[:-1], count)) if attributes["stopwords"] else x]
        case "Tokenizer":
            return [x.with_shape((*x.shape, count))]
    return [selected, vector, TensorType(I64, (x.size if axis is None else x.shape[axis],)), vector]
