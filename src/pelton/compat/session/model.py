"""The model of a session: its file with the session's changes, its signature, and the build of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pelton import progress
from pelton.errors import ModelError, Needs
from pelton.options import Options
from pelton.backends.cpu.check import check_runs_here

from .changes import Changes
from .signature import NAMES, NodeArg, Signature, metadata_from_json

if TYPE_CHECKING:
    import onnx

    from pelton.importers.onnx.file import Source
    from pelton.runtime import Engine

_UNKNOWN = "tensor(float)"  # the type of an unknown port


def _builder() -> ModuleType:
    """Returns the part of builds in sessions. Raises BuildError if a package for building is missing."""
    with Needs("building an engine in a session, for a model without one in the engine cache,"):
        from pelton.builder import sessions
    return sessions


def load_model(model: Path | bytes, sizes: Mapping[str, int], changes: Changes | None = None) -> Source:
    """Reads a model, fixes the dimensions that `sizes` names, and applies `changes`.

    Raises ModelError if it is not a model; BuildError if Pelton is installed without the packages for building.
    """
    source: Source = _builder().load_model(model, sizes)
    if changes is not None:
        changes.apply(source.model)
    return source


def external_files(model: Path | bytes) -> list[str]:
    """Returns the files in which a model keeps constants, relative to its own."""
    files: list[str] = _builder().external_files(load_model(model, {}).model)
    return files


def requirements(error: ModelError) -> list[dict[str, Any]]:
    """Returns the size requirements of a failed import, in the form of `Limits`."""
    limits: list[dict[str, Any]] = _builder().requirements(error.requirements)
    return limits


def count_layers(model: onnx.ModelProto) -> int:
    """Counts the different layers that a build tunes one by one."""
    count: int = _builder().count_layers(model)
    return count


def weights_bytes(model: onnx.ModelProto) -> int:
    """Returns the size in bytes of a model's constants, which a build reads, packs and writes."""
    size: int = _builder().weights_bytes(model)
    return size


def read_signature(source: Source, options: Options) -> Signature:
    """Returns the inputs, outputs and metadata of a model.

    Raises ModelError for faults of the model that no sizes or values of inputs could mend.
    """
    builder = _builder()
    model, graph = source.model, source.model.graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    metadata = metadata_from_json(builder.metadata(model))
    inferred: dict[str, NodeArg] = {}
    plugins: dict[str, str | None] = {}
    limits: dict[str, Any] | None = None
    constant = set(options.values or ())  # inputs whose values the options fix
    # with an input of unknown rank, nothing is known before a run
    declared = [i.type for i in graph.input if i.name not in stored]
    if all(t.HasField("map_type") or t.tensor_type.HasField("shape") for t in declared):
        outputs, plugins, limits = builder.infer_outputs(source, options)
        inferred = {name: NodeArg(name, NAMES[o.dtype], o.shape) for name, o in outputs.items()}
    untyped = [o.name for o in graph.output if not o.type.WhichOneof("value") and o.name not in inferred]
    if untyped:  # sizes that depend on the data
        types = builder.inferred_element_types(model)
        inferred.update({name: NodeArg(name, NAMES[types[name]], [], False) for name in untyped if name in types})
    fixed = builder.fixed_sizes(options)
    inputs = tuple(
        _fix_sizes(_declared(i, None), fixed.get(i.name, ()))
        for i in graph.input
        if i.name not in stored and i.name not in constant
    )
    overridable = tuple(
        _declared(i, None) for i in graph.input if i.name in stored and i.name not in constant and model.ir_version >= 4
    )
    by_name = {o.name: o for o in graph.output}

    def output(name: str) -> NodeArg:
        if name in by_name:
            return _declared(by_name[name], inferred.get(name))
        return inferred.get(name) or NodeArg(name, _UNKNOWN, [], False)

    # the model may list a tensor twice
    names = options.outputs or [o.name for o in graph.output]
    return Signature(inputs, tuple(map(output, names)), overridable, metadata, plugins, limits)


def _fix_sizes(arg: NodeArg, fixed: Sequence[int | None]) -> NodeArg:
    if len(fixed) != len(arg.shape):
        return arg
    return replace(arg, shape=[d if f is None else f for d, f in zip(arg.shape, fixed)])


def _declared(value: onnx.ValueInfoProto, inferred: NodeArg | None) -> NodeArg:
    """Returns a port as the model declares it, completed from `inferred`."""
    kind = value.type.WhichOneof("value")
    if kind in ("sequence_type", "map_type", "optional_type"):
        # not a tensor, and so without sizes, unless it is an optional one
        held = value.type.optional_type.elem_type.tensor_type
        ranked = kind != "optional_type" or held.HasField("shape")
        return NodeArg(value.name, _format_type(value.type, value.name), _dims(held), ranked)
    tensor = value.type.tensor_type
    dtype = _builder().element_type(tensor.elem_type)
    if dtype is not None:
        type = NAMES[dtype]
    elif inferred is not None:
        type = inferred.type
    else:
        raise ModelError(f"the model does not declare the element type of {value.name!r}; declare it")
    if not tensor.HasField("shape"):
        return inferred or NodeArg(value.name, type, [], False)
    dims = _dims(tensor)
    known: Sequence[int | str | None] = [None] * len(dims)
    if inferred is not None and len(inferred.shape) == len(dims):
        known = inferred.shape
    return NodeArg(value.name, type, [d if d is not None else k for d, k in zip(dims, known)])


def _dims(tensor: onnx.TypeProto.Tensor) -> list[int | str | None]:
    """Returns the sizes that a model declares; None for unspecified ones, negative numbers included."""
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None for d in tensor.shape.dim
    ]


def _format_type(type: onnx.TypeProto, name: str) -> str:
    """Formats a type in ONNX Runtime's notation: seq(map(int64,tensor(float)))."""
    element_type = _builder().element_type
    match type.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_format_type(type.sequence_type.elem_type, name)})"
        case "optional_type":
            return f"optional({_format_type(type.optional_type.elem_type, name)})"
        case "map_type" if (key := element_type(type.map_type.key_type)) is not None:
            key = NAMES[key].removeprefix("tensor(").removesuffix(")")
            return f"map({key},{_format_type(type.map_type.value_type, name)})"
        case "tensor_type" if (dtype := element_type(type.tensor_type.elem_type)) is not None:
            return NAMES[dtype]
    raise ModelError(f"the model does not declare the element type of {name!r}; declare it")


def build_engine(source: Source, options: Options, optimum: Mapping[str, Sequence[int]] | None, show: bool) -> Engine:
    """Builds an engine for the dynamic dimensions that `options` leave, tuned for the shapes of `optimum`; `show`: with
    a progress bar."""
    from pelton.builder.build import build

    check_runs_here(options.target, "the session")
    stages = progress.course(options.level, options.calibration is not None)
    with progress.show_progress(show, stages) as tell:
        return build(source, options=options, optimum=optimum, progress=tell)
