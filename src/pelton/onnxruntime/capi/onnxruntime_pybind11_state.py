"""Names of ONNX Runtime's native module: its exceptions, and the names of the package itself."""

from __future__ import annotations

from typing import Any

from pelton.onnxruntime.exceptions import (  # noqa: A004  # NotImplemented is ONNX Runtime's
    DeviceReset,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)

__all__ = [
    "DeviceReset",
    "EPFail",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pelton.onnxruntime

    return getattr(pelton.onnxruntime, name)
