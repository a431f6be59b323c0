"""Answers sessions' questions before a build: a model's file, external data, outputs and layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from pelton.errors import ModelError
from pelton.importers.imported import parse_shape
from pelton.importers.onnx import load as importer
from pelton.importers.onnx.file import Source, metadata_of, read
from pelton.importers.onnx.foreign import element_types
from pelton.importers.onnx.names import all_nodes, subgraphs
from pelton.ir.dims import Dim, Size, symbols
from pelton.ir.dims_text import tree
from pelton.ir.imported import OnData, OnSizes
from pelton.ir.types import DType
from pelton.ops.foreign import DTYPES
from pelton.options import Options
from pelton.plugins import fingerprints

MAX_REQUIREMENTS = 256  # of input sizes, per session


class Outputs(NamedTuple):
    """A model's outputs as known before a run, its plugins with fingerprints, and the limits of its inputs as JSON
    (`compat.session.limits`)."""

    types: dict[str, Output]
    plugins: dict[str, str | None]
    limits: dict[str, Any]


class Output(NamedTuple):
    """An output's type: Pelton's name of the dtype; per axis a number, a formula in the model's names, or None."""

    dtype: str
    shape: list[int | str | None]


def load_model(model: Path | bytes, sizes: Mapping[str, int]) -> Source:
    """Reads a model; `sizes` fixes dimensions by the model's names for them."""
    source = read(model)
    for value in (*source.model.graph.input, *source.model.graph.output, *source.model.graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param in sizes:
                d.dim_value = sizes[d.dim_param]
    return source


def metadata(model: onnx.ModelProto) -> dict[str, Any]:
    """Returns the model's own metadata, as engines record it."""
    return asdict(metadata_of(model))


def external_files(model: onnx.ModelProto) -> list[str]:
    """Lists the files with a model's external constants, relative to its own."""
    names: set[str] = set()
    for graph in (model.graph, *model.functions):
        _collect_external(graph, names)
    return sorted(names)


def _collect_external(graph: onnx.GraphProto | onnx.FunctionProto, names: set[str]) -> None:
    tensors: list[onnx.TensorProto] = []
    if isinstance(graph, onnx.GraphProto):
        tensors += graph.initializer
        tensors += (t for s in graph.sparse_initializer for t in (s.values, s.indices))
    tensors += (t for node in graph.node for a in node.attribute for t in (a.t, *a.tensors))
    names.update(e.value for t in tensors for e in t.external_data if e.key == "location")
    for node in graph.node:
        for inner in subgraphs(node):
            _collect_external(inner, names)


def element_type(code: int) -> str | None:
    """Returns Pelton's name of an element type of onnx.TensorProto; None for an unknown number."""
    return DTYPES[code].value if code in DTYPES else None


def inferred_element_types(model: onnx.ModelProto) -> dict[str, str]:
    """Returns Pelton's names of the element types of undeclared outputs, as far as onnx infers them."""
    codes = element_types(model)
    return {o.name: name for o in model.graph.output if (name := element_type(codes.get(o.name, 0))) is not None}


def fixed_sizes(options: Options) -> dict[str, list[int | None]]:
    """Maps inputs to sizes fixed by options, None for dynamic ones. InputError for shapes that cannot be parsed."""
    shapes = {name: parse_shape(name, shape) for name, shape in (options.shapes or {}).items()}
    return {name: [d if isinstance(d, int) else None for d in shape] for name, shape in shapes.items()}


def infer_outputs(source: Source, options: Options) -> Outputs:
    """Infers the types of a model's outputs by name, as far as they are known before a run, with plugins and limits.

    ModelError for a model that is wrong for all sizes and values of its inputs.
    """
    # the build issues the warnings
    program, outcome = importer.import_model(source, options.shapes, options.outputs, options.values, optimum={})
    if isinstance(outcome, ModelError) and not isinstance(outcome, (OnData, OnSizes)):
        raise outcome
    limits = {
        "readable": not isinstance(outcome, ModelError),
        "inputs": _sized(program.shapes),
        "requirements": requirements(program.requirements),
    }
    if isinstance(outcome, ModelError) or outcome.info.assumed:
        return Outputs({}, {}, limits)
    named = {d.dim_param for i in source.model.graph.input for d in i.type.tensor_type.shape.dim}

    def size(d: object) -> int | str | None:
        if isinstance(d, int):
            return d
        return str(d) if {s.name for s in symbols(d)} <= named else None

    outputs = {v.name: Output(v.type.dtype.value, [size(d) for d in v.type.shape]) for v in outcome.graph.outputs}
    return Outputs(outputs, fingerprints(outcome.graph), limits)


def requirements(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the size requirements of all runs (`SizeRequirement`), as JSON."""
    return [
        {"inputs": _sized(r.shapes), "needed": [tree(d) for d in r.needed], "relation": r.relation, "why": r.why}
        for r in found[:MAX_REQUIREMENTS]
    ]


def _sized(shapes: Mapping[str, Sequence[Size]]) -> dict[str, Any]:
    """Returns shapes of inputs as JSON: numbers and texts, the trees of these, and the bounds of their symbols."""
    dynamic = {str(d): tree(d) for shape in shapes.values() for d in shape if isinstance(d, Dim)}
    return {
        "shapes": {name: [str(d) if isinstance(d, Dim) else int(d) for d in shape] for name, shape in shapes.items()},
        "sizes": dynamic,
        "symbols": {s.name: [s.minimum, s.optimum, s.maximum] for s in symbols([*shapes.values()])},
    }


def weights_bytes(model: onnx.ModelProto) -> int:
    """Returns the bytes of a model's constants, including external files."""
    total = 0
    for t in model.graph.initializer:
        dtype = DTYPES.get(t.data_type)
        total += math.prod(t.dims) * dtype.size if dtype is not None and dtype is not DType.STRING else 0
    return total


def count_layers(model: onnx.ModelProto) -> int:
    """Counts the different layers that a build tunes one by one, at least 1.

    A layer is a node with a constant of more than one axis; equal ones count once. Other nodes are fused into the one
    before them, or cost little.
    """
    sizes = {t.name: (t.data_type, *t.dims) for t in model.graph.initializer}
    for node in all_nodes(model.graph):
        for a in node.attribute if node.op_type == "Constant" and node.output else ():
            if a.HasField("t"):
                sizes[node.output[0]] = (a.t.data_type, *a.t.dims)
    seen = set()
    for graph in (model.graph, *model.functions):
        for node in all_nodes(graph):
            if any(name in sizes and len(sizes[name]) > 2 for name in node.input):
                attributes = sorted(a.SerializeToString() for a in node.attribute)
                seen.add((node.op_type, *attributes, *(sizes.get(name) for name in node.input)))
    return max(len(seen), 1)
