"""Schemas of operators, including those of ONNX Runtime, and checks of nodes against them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

Schema = Any  # onnx.defs.OpSchema, which onnx's stubs cover only half, or None

# the newest opset of each domain that readers support
NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}
# attributes of old exporters without effect on results: a hint which inputs an output may overwrite
MEANINGLESS = {"consumed_inputs"}
_UNBOUNDED = 2**31 - 1  # the number of inputs of variadic operators


@functools.cache
def schema_of(op: str, opset: int, domain: str) -> Schema:
    """Returns the schema valid at an opset, else ONNX Runtime's, else the oldest (of a later opset), else None."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        known = _onnxruntime().get((domain, op))
        return known or min(history(op, domain), key=lambda s: s.since_version, default=None)


@functools.cache
def history(op: str, domain: str) -> tuple[Schema, ...]:
    """Returns all versions of an operator in the onnx package."""
    return tuple(s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, domain))


@functools.cache
def _onnxruntime() -> Mapping[tuple[str, str], Schema]:
    """Returns the schemas in `onnxruntime.txt`, by domain and operator."""
    lines = (Path(__file__).parent / "onnxruntime.txt").read_text(encoding="utf-8").splitlines()
    return {(s.domain, s.name): s for s in map(_parse, lines[1:])}


def _parse(line: str) -> Schema:
    """Parses a line: domain::operator, least and largest number of inputs, largest number of outputs, attributes."""
    title, *rest = line.split()
    domain, _, name = title.partition("::")
    least, most, outputs = (_UNBOUNDED if n == "*" else int(n) for n in rest[:3])
    schema = onnx.defs.OpSchema
    option = onnx.defs.OpSchema.FormalParameterOption

    def operands(least: int, most: int) -> list[Any]:
        single = [schema.FormalParameter(f"x{i}", "T") for i in range(least)]
        if most == _UNBOUNDED:
            return [*single[:-1], schema.FormalParameter("rest", "T", param_option=option.Variadic)]
        return single + [schema.FormalParameter(f"x{i}", "T", param_option=option.Optional) for i in range(least, most)]

    return schema(
        name,
        "" if domain == "ai.onnx" else domain,
        1,
        inputs=operands(least, most),
        outputs=operands(0 if outputs != _UNBOUNDED else 1, outputs),
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[_attribute(text) for text in rest[3:]],
    )


def _attribute(text: str) -> Any:
    """Parses name:TYPE, =default or nothing, and ! if it is required."""
    name, _, rest = text.removesuffix("!").partition(":")
    kind, separator, default = rest.partition("=")
    attribute = onnx.defs.OpSchema.Attribute
    if not separator:
        return attribute(name, getattr(onnx.defs.OpSchema.AttrType, kind), required=text.endswith("!"))
    value = {"INT": int, "FLOAT": float, "STRING": str}[kind](default)
    return attribute(name, onnx.helper.make_attribute(name, value))


def faults(
    schema: Schema, node: onnx.NodeProto, inputs: int, known: frozenset[str] | None, known_inputs: int | None
) -> Iterator[str]:
    """Yields the faults of a node by its schema and its reader, beginning with the operator's name.

    known, known_inputs: attributes and the number of inputs that the reader knows; None: all of the schema.
    """
    version = node.op_type
    if schema is not None:
        version = f"{node.op_type} of opset {schema.since_version}"
        yield from _faults_by_schema(schema, node, inputs)
    for a in node.attribute:
        spec = schema.attributes.get(a.name) if schema is not None else None
        if known is not None and a.name not in known and (spec is None or not _is_default(a, spec)):
            yield f"{version} with attribute {a.name!r} is not supported; export the model without it"
    for i in range(inputs if known_inputs is None else known_inputs, inputs):
        if node.input[i]:
            yield f"{version} with input {i} is not supported; export the model without it"


def _faults_by_schema(schema: Schema, node: onnx.NodeProto, inputs: int) -> Iterator[str]:
    low, high = schema.min_input, schema.max_input
    if not low <= inputs <= high:
        counts = f"{low} to {high}" if high < _UNBOUNDED else f"{low} and more"
        counts = f"{low}" if low == high else counts
        yield f"{node.op_type} needs {counts} inputs, got {inputs}"
    version = f"{node.op_type} of opset {schema.since_version}"
    if len(node.output) > schema.max_output:
        yield f"{version} has {schema.max_output} outputs, the node has {len(node.output)}"
    present = {a.name: a for a in node.attribute}
    for name, spec in schema.attributes.items():
        proto = present.get(name)
        if proto is None and spec.required:
            yield f"{node.op_type} needs attribute {name!r}"
        if proto is not None and proto.type != spec.type.value:
            kind = AttributeProto.AttributeType.Name(proto.type)
            yield f"{node.op_type} needs attribute {name!r} as {spec.type.name}, got {kind}"
    for name in sorted(present.keys() - schema.attributes.keys() - MEANINGLESS):
        others = [s for s in history(node.op_type, schema.domain) if name in s.attributes]
        if any(_is_default(present[name], s.attributes[name]) for s in others):
            continue
        which = f", which opset {' and '.join(str(s.since_version) for s in others)} has" if others else ""
        yield f"{version} has no attribute {name!r}{which}; export the model for an opset that has it, or without it"


def _is_default(given: AttributeProto, spec: Any) -> bool:
    """True if an attribute equals its default. Without a default, absence means 0, or nothing."""
    value, default = onnx.helper.get_attribute_value(given), spec.default_value
    if given.type != spec.type.value:
        return False
    if default.type:
        return bool(value == onnx.helper.get_attribute_value(default))
    return not spec.required and not isinstance(value, (onnx.TensorProto, onnx.GraphProto)) and not value
