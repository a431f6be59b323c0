"""Custom torch operators that are plugins, as nodes of ONNX models with the plugins' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from pelton.importers.onnx.plugins import DOMAIN
from pelton.plugins import plugin_for

OpSchema = onnx.defs.OpSchema
TYPES = {bool: "INT", int: "INT", float: "FLOAT", str: "STRING"}
OF_TORCH = {"aten", "prim", "prims"}  # namespaces without custom operators


def translations(program: Any) -> dict[Any, Callable[..., Any]]:
    """Returns a program's custom operators with plugins, and their translations for `torch.onnx.export`."""
    ops = {target: plugin_for("torch", target._schema.name) for target in custom_operators(program)}
    return {target: _translation(target._schema, op.name) for target, op in ops.items() if op is not None}


def custom_operators(program: Any) -> list[Any]:
    """Returns the operators (OpOverload) of an exported program that are not torch's own."""
    targets = dict.fromkeys(node.target for node in program.graph.nodes if hasattr(node.target, "_schema"))
    return [t for t in targets if t.namespace not in OF_TORCH]


def advice(program: Any) -> str:
    """Explains how to read the custom operators without a plugin, to end a sentence with; "" if there are none."""
    unknown = [n for t in custom_operators(program) if plugin_for("torch", n := t._schema.name) is None]
    if not unknown:
        return ""
    return (
        f"; the custom operators {', '.join(unknown[:4])} need plugins: a pelton.Plugin with torch = {unknown[0]!r}"
        " (docs/plugins.md)"
    )


def _translation(schema: Any, name: str) -> Callable[..., Any]:
    """Returns a function that torch.onnx calls with the arguments of a custom operator, to emit a node of that plugin:
    tensors are its inputs, all else its attributes."""
    tensors = [a.name for a in schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]

    def translate(*args: Any, **kwargs: Any) -> Any:
        from onnxscript import values

        arguments = {**dict(zip((a.name for a in schema.arguments), args)), **kwargs}
        attrs = {k: v for k, v in arguments.items() if k not in tensors and v is not None}
        inputs = [arguments.get(t) for t in tensors]
        while inputs and inputs[-1] is None:
            inputs.pop()
        of = _schema(name, len(inputs), len(schema.returns), attrs)
        return values.Op(values.Opset(DOMAIN, 1), name, of)(*inputs, **attrs)

    return translate


def _schema(name: str, inputs: int, outputs: int, attrs: dict[str, Any]) -> OpSchema:
    """Returns the schema of a node with tensors of any type and these attributes."""
    every = list(onnx.defs.get_schema("Identity", 13).type_constraints[0].allowed_type_strs)
    ports = [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)]
    optional = OpSchema.FormalParameterOption.Optional
    return OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[OpSchema.FormalParameter(p, f"T{p}", param_option=optional) for p in ports[0]],
        outputs=[OpSchema.FormalParameter(p, f"T{p}") for p in ports[1]],
        type_constraints=[(f"T{p}", every, "") for p in (*ports[0], *ports[1])],
        attributes=[OpSchema.Attribute(k, _attribute_type(k, v), required=False) for k, v in attrs.items()],
    )


def _attribute_type(name: str, value: Any) -> Any:
    several = isinstance(value, (list, tuple))
    kind = TYPES.get(type(value[0]) if several and value else type(value), "INT" if several else "")
    if not kind:
        raise TypeError(f"argument {name!r} must be a tensor, a number, a text or a list of these, got {value!r:.99}")
    return getattr(OpSchema.AttrType, kind + "S" * several)
