"""User-defined operators: `Plugin`, one class for each, and `register`, which adds them."""

from __future__ import annotations

from pelton.ir import scalar
from pelton.ir.types import DType, TensorType
from pelton.network import Network  # whose methods include the operators of plugins

from .kernels import CKernel, TritonKernel
from .plugin import Plugin
from .registry import (
    fingerprint,
    fingerprints,
    load_entry_points,
    plugin_for,
    plugin_named,
    register,
    registered,
    types_of,
)

__all__ = [
    "CKernel",
    "DType",
    "Network",
    "Plugin",
    "TensorType",
    "TritonKernel",
    "fingerprint",
    "fingerprints",
    "load_entry_points",
    "plugin_for",
    "plugin_named",
    "register",
    "registered",
    "scalar",
    "types_of",
]
