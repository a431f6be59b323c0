"""Writes `src/pelton/importers/onnx/onnxruntime.txt`: the schemas that ONNX Runtime adds to those of the onnx package.

python tests/onnxruntime_schemas.py, with onnxruntime installed; `test_versions.py` compares the file with it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import pelton

PATH = Path(pelton.__file__).parent / "importers/onnx/onnxruntime.txt"
DOMAINS = ("", "com.microsoft", "com.microsoft.nchwc")
OTHERS = ("Memcpy", "_TRT")  # of copies between devices, and of TensorRT
MANY = 2**31 - 1


def is_in_onnx(schema) -> bool:
    """Whether the onnx package has the very version of an operator."""
    if not onnx.defs.has(schema.name, schema.since_version, schema.domain):
        return False
    return onnx.defs.get_schema(schema.name, schema.since_version, schema.domain).since_version == schema.since_version


def attribute_text(name: str, attribute) -> str:
    text = f"{name}:{str(attribute.type).split('.')[1]}"
    default = onnx.AttributeProto.FromString(attribute._default_value)
    if default.type:
        value = onnx.helper.get_attribute_value(default)
        value = str(np.float32(value)) if isinstance(value, float) else value
        text += f"={value.decode() if isinstance(value, bytes) else value}"
    return text + "!" * attribute.required


def line(schema) -> str:
    """Domain and operator, least and largest number of inputs, largest number of outputs, attributes."""
    counts = ["*" if n == MANY else str(n) for n in (schema.min_input, schema.max_input, schema.max_output)]
    attributes = sorted(attribute_text(name, a) for name, a in schema.attributes.items())
    return " ".join([f"{schema.domain or 'ai.onnx'}::{schema.name}", *counts, *attributes])


def render() -> str:
    added = [
        schema
        for schema in get_all_operator_schema()
        if schema.domain in DOMAINS
        and schema.since_version == 1
        and not is_in_onnx(schema)
        and not any(part in schema.name for part in OTHERS)
    ]
    return "\n".join([f"# ONNX Runtime {onnxruntime.__version__}", *sorted(map(line, added))]) + "\n"


if __name__ == "__main__":
    PATH.write_text(render())
