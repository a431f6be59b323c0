"""Nodes of plugin operators."""

from __future__ import annotations

import onnx

from pelton.errors import InputError
from pelton.ir.bindings import Binding
from pelton.plugins import plugin_for, plugin_named
from pelton.ir.attributes import attributes_of

from .node import NodeReader, Reading, attribute


DOMAIN = "pelton.plugins"  # of nodes that name plugins directly


def reader_of_plugin(domain: str, operator: str) -> NodeReader | None:
    """Returns the reader of an operator that a plugin names, or that has a plugin's name in DOMAIN; None for others."""
    op = plugin_named(operator) if domain == DOMAIN else plugin_for("onnx", (domain, operator))
    if op is None:
        return None

    def read(n: Reading) -> tuple[Binding, ...]:
        attributes = {name: attribute(a) for name, a in n.attributes.items()}
        tensors = {k: onnx.numpy_helper.to_array(v) for k, v in attributes.items() if isinstance(v, onnx.TensorProto)}
        inputs = list(n.bindings)
        while inputs and inputs[-1] is None:
            inputs.pop()
        values = [n.input(i) for i in range(len(inputs))]
        try:
            attrs = attributes_of(op, {**attributes, **tensors})
            if op.configure is not None:
                values += [n.constant(a) for a in op.configure(*(v.type for v in values), **attrs)]
        except (InputError, TypeError, ValueError) as e:
            raise n.refuse(f"{operator}: {e}") from None
        return n.emit_all(op, *values, **attrs)

    return read
