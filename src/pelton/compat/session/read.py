"""The compiler's side of a session: the signature of a model file, and an engine built from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton import progress
from pelton.errors import ModelError, Needs
from pelton.options import Options
from pelton.backends.cpu.check import check_runs_here

from .changes import Changes
from .signature import NAMES, ModelMetadata, NodeArg, Signature

if TYPE_CHECKING:
    import onnx

    from pelton.importers.onnx.file import Source
    from pelton.runtime import Engine

_UNKNOWN = "tensor(float)"  # nothing says otherwise


def opened(model: Path | bytes, sizes: Mapping[str, int], changes: Changes | None = None) -> Source:
    """The model with the sizes that were given by name, and changed; BuildError where Pelton is installed without what
    building needs."""
    with Needs("a session of a model that it has not met yet builds an engine, which"):
        from pelton.importers.onnx import file
    found = file.read(model)
    for value in (*found.model.graph.input, *found.model.graph.output, *found.model.graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param in sizes:
                d.dim_value = sizes[d.dim_param]
    if changes is not None:
        changes.make(found.model)
    return found


def external(model: Path | bytes) -> list[str]:
    """The files, relative to its own, in which a model keeps constants."""
    found = opened(model, {}).model
    import onnx

    from pelton.importers.onnx.names import subgraphs

    names: set[str] = set()

    def look(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
        tensors = (
            [*graph.initializer, *(t for s in graph.sparse_initializer for t in (s.values, s.indices))]
            if isinstance(graph, onnx.GraphProto)
            else []
        )
        tensors += [t for node in graph.node for a in node.attribute for t in (a.t, *a.tensors)]
        names.update(e.value for t in tensors for e in t.external_data if e.key == "location")
        for node in graph.node:
            for inner in subgraphs(node):
                look(inner)

    for graph in (found.graph, *found.functions):
        look(graph)
    return sorted(names)


def signature(source: Source, options: Options) -> Signature:
    """What the model says of itself. ModelError for what is wrong with it whatever the sizes of a run are and whatever
    its inputs say."""
    from pelton.importers.onnx import load as importer
    from pelton.importers.imported import OnData, OnSizes, parse_shape
    from pelton.ir.dims import symbols

    model, graph = source.model, source.model.graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    metadata = ModelMetadata(
        model.producer_name,
        graph.name,
        model.domain,
        model.doc_string,
        graph.doc_string,
        model.model_version,
        {p.key: p.value for p in model.metadata_props},
    )
    made: dict[str, NodeArg] = {}
    fixed = set(options.values or ())  # inputs no more
    declared = [i.type for i in graph.input if i.name not in stored]
    # else nothing is known before a run
    if all(t.HasField("map_type") or t.tensor_type.HasField("shape") for t in declared):
        # warnings come with the engine
        _, found = importer.examine(source, options.shapes, options.outputs, options.values, optimum={})
        if isinstance(found, ModelError) and not isinstance(found, (OnData, OnSizes)):
            raise found
        named = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
        if not isinstance(found, ModelError) and not found.info.assumed:
            made = {
                v.name: NodeArg(
                    v.name,
                    NAMES[v.type.dtype.value],
                    [
                        d if isinstance(d, int) else str(d) if {s.name for s in symbols(d)} <= named else None
                        for d in v.type.shape
                    ],
                )
                for v in found.graph.outputs
            }
    given = {name: parse_shape(name, shape) for name, shape in (options.shapes or {}).items()}
    inputs = tuple(
        _sized(_declared(i, None), given.get(i.name, ()))
        for i in graph.input
        if i.name not in stored and i.name not in fixed
    )
    overridable = tuple(
        _declared(i, None) for i in graph.input if i.name in stored and i.name not in fixed and model.ir_version >= 4
    )
    by_name = {o.name: o for o in graph.output}
    outputs = tuple(
        (
            _declared(by_name[name], made.get(name))
            if name in by_name
            else made.get(name) or NodeArg(name, _UNKNOWN, [], False)
        )
        for name in options.outputs or by_name
    )
    return Signature(inputs, outputs, overridable, metadata)


def _sized(arg: NodeArg, given: Sequence[Any]) -> NodeArg:
    """With the sizes that options give as numbers."""
    return (
        replace(arg, shape=[g if isinstance(g, int) else d for d, g in zip(arg.shape, given)])
        if len(given) == len(arg.shape)
        else arg
    )


def _declared(value: onnx.ValueInfoProto, made: NodeArg | None) -> NodeArg:
    """As the file declares it, else as it was found to be."""
    from pelton.ops.foreign import DTYPES

    kind = value.type.WhichOneof("value")
    if kind in ("sequence_type", "map_type", "optional_type"):
        # of no tensor where it is none that is optional
        held = value.type.optional_type.elem_type.tensor_type
        return NodeArg(
            value.name, _spelled(value.type, value.name), _dims(held), kind != "optional_type" or held.HasField("shape")
        )
    tensor = value.type.tensor_type
    if made is None and tensor.elem_type not in DTYPES:
        raise ModelError(f"the model does not say what kind of tensor {value.name!r} is; declare its type")
    type = NAMES[DTYPES[tensor.elem_type].value] if tensor.elem_type in DTYPES else made.type if made else _UNKNOWN
    if tensor.HasField("shape"):
        known = (
            made.shape
            if made is not None and len(made.shape) == len(tensor.shape.dim)
            else [None] * len(tensor.shape.dim)
        )
        return NodeArg(value.name, type, [d if d is not None else k for d, k in zip(_dims(tensor), known)])
    return made or NodeArg(value.name, type, [], False)


def _dims(tensor: onnx.TypeProto.Tensor) -> list[int | str | None]:
    """What a model says of sizes; a number below 0 says nothing."""
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None for d in tensor.shape.dim
    ]


def _spelled(type: onnx.TypeProto, name: str) -> str:
    """As ONNX Runtime spells it: seq(map(int64,tensor(float)))."""
    from pelton.ops.foreign import DTYPES

    match type.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_spelled(type.sequence_type.elem_type, name)})"
        case "optional_type":
            return f"optional({_spelled(type.optional_type.elem_type, name)})"
        case "map_type" if type.map_type.key_type in DTYPES:
            key = NAMES[DTYPES[type.map_type.key_type].value].removeprefix("tensor(").removesuffix(")")
            return f"map({key},{_spelled(type.map_type.value_type, name)})"
        case "tensor_type" if type.tensor_type.elem_type in DTYPES:
            return NAMES[DTYPES[type.tensor_type.elem_type].value]
    raise ModelError(f"the model does not say what kind of tensor {name!r} is made of; declare its type")


def built(source: Source, options: Options, optimum: Mapping[str, Sequence[int]] | None, show: bool) -> Engine:
    """An engine: for all sizes, tuned for `optimum`, or for those that the options give."""
    from pelton.compiler.build import build

    check_runs_here(options.target, "the session")
    with progress.show_progress(show) as tell:
        return build(source, options=options, optimum=optimum, progress=tell)
