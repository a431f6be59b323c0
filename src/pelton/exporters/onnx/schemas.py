"""Limits of ONNX operators at an opset: attributes, element types, and the types of their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from pelton.ir.graph import Node
from pelton.ir.types import F64, DType
from pelton.ops.foreign import CODES, DTYPES

TYPES = {d: f"tensor({onnx.TensorProto.DataType.Name(code).lower()})" for code, d in DTYPES.items()}
_DTYPES = {text: d for d, text in TYPES.items()}
assert len(TYPES) == len(CODES)


class Unwritable(ValueError):
    """A node without an exact ONNX form; its expansion may have one. `node`: the innermost such node."""

    node: Node | None = None


class NeedsOpset(Unwritable):
    """A node that needs another opset."""

    def __init__(self, what: str, opset: int):
        super().__init__(f"{what} needs opset {opset} of ONNX")
        self.opset = opset


@functools.cache
def schema_of(kind: str, opset: int, domain: str = "") -> OpSchema | None:
    """Returns the schema of an operator at an opset, or None."""
    try:
        schema = onnx.defs.get_schema(kind, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


Types = Sequence[DType | None]


def check(kind: str, opset: int, inputs: Types, gives: Types, attrs: Mapping[str, Any], domain: str = "") -> OpSchema:
    """Returns the schema of an operator for these element types of inputs (None: absent) and results (None: any) and
    these attributes. Raises NeedsOpset if a later opset has one, else Unwritable."""
    problem = _problem(kind, opset, inputs, gives, attrs, domain)
    if problem is not None and not domain:
        for later in range(opset + 1, onnx.defs.onnx_opset_version() + 1):
            if _problem(kind, later, inputs, gives, attrs, domain) is None:
                raise NeedsOpset(f"{kind} ({problem})", later)
    if problem is not None:
        raise Unwritable(f"ONNX's {kind}: {problem}")
    schema = schema_of(kind, opset, domain)
    assert schema is not None
    return schema


def _problem(kind: str, opset: int, inputs: Types, gives: Types, attrs: Mapping[str, Any], domain: str) -> str | None:
    schema = schema_of(kind, opset, domain)
    if schema is None:
        return f"there is none at opset {opset}"
    for name, value in attrs.items():
        if name not in schema.attributes:
            return f"it has no attribute {name!r} at opset {opset}"
        numbers = [v for v in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(v, float)]
        if F64 in inputs and any(float(np.float32(v)) != v for v in numbers):
            return f"its attribute {name!r} is a float32, and cannot be exactly {value}"
    if missing := [k for k, a in schema.attributes.items() if a.required and k not in attrs]:
        return f"it needs attributes {missing}"
    if len(inputs) > schema.max_input:
        return f"it has at most {schema.max_input} inputs at opset {opset}"
    for formals, dtypes in ((schema.inputs, inputs), (schema.outputs, gives)):
        for i, dtype in enumerate(dtypes):
            formal = formals[min(i, len(formals) - 1)]
            if dtype is not None and TYPES[dtype] not in formal.types:
                return f"its operand {formal.name} cannot be {dtype.value} at opset {opset}"
    return None


def given_type(schema: OpSchema, inputs: Types, output: int) -> DType | None:
    """Returns the element type of an output, as far as the operator and its inputs determine it."""
    formal = schema.outputs[min(output, len(schema.outputs) - 1)]
    for i, dtype in enumerate(inputs):
        if dtype is not None and schema.inputs[min(i, len(schema.inputs) - 1)].type_str == formal.type_str:
            return dtype
    return _DTYPES.get(next(iter(formal.types))) if len(formal.types) == 1 else None


def with_opset(opset: int, oldest: int, attempt: Callable[[int], Any]) -> Any:
    """Returns the result of an attempt at an opset, or at one that it requests."""
    tried = set[int]()
    while True:
        try:
            return attempt(opset)
        except NeedsOpset as e:
            tried.add(opset)
            if e.opset in tried or e.opset < oldest:
                raise
            opset = e.opset
