"""Maps element types of inputs and outputs to types of numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.engine.plan import numpy_dtype
from pelton.errors import InputError
from pelton.onnxruntime.missing import missing_names
from pelton.compat.session.signature import NAMES

__getattr__ = missing_names("onnxruntime.transformers.io_binding_helper")

# torch names float and double by size, and separates the narrow ones by underscores
_TORCH = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "c64": "complex64",
    "c128": "complex128",
}


def _ours(ort_type: str) -> str:
    name = next((ours for ours, theirs in NAMES.items() if theirs == ort_type), "string")
    if name == "string":
        raise InputError(f"the type of a tensor of numbers is needed, as 'tensor(float)', got {ort_type!r}")
    return name


class TypeHelper:
    """Converts `NodeArg.type` to types of other libraries. InputError, a ValueError, for types that they lack."""

    @staticmethod
    def get_input_type(ort_session: Any, name: str) -> str:
        return _type(ort_session.get_inputs(), name)

    @staticmethod
    def get_output_type(ort_session: Any, name: str) -> str:
        return _type(ort_session.get_outputs(), name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> type:
        return bool if _ours(ort_type) == "bool" else numpy_dtype(_ours(ort_type)).type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        import torch

        ours = _ours(ort_type)
        dtype = getattr(torch, _TORCH.get(ours, np.dtype(numpy_dtype(ours)).name), None)
        if dtype is None:
            raise InputError(f"torch has no element type for {ort_type}")
        return dtype


def _type(args: Any, name: str) -> str:
    type_name = next((a.type for a in args if a.name == name), None)
    if type_name is None:
        raise InputError(f"there is no {name!r} among {', '.join(repr(a.name) for a in args) or 'none'}")
    return type_name
