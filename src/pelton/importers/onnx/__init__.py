"""ONNX models of every opset.

The package onnx is imported when a model is read: recognizing and listing formats works without it.
"""

import sys
from typing import Any

from pelton.errors import Needs
from pelton.importers import signs
from pelton.importers.registry import About, Format, register
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread

READING = Needs("reading ONNX models")


def recognizes(source: Any) -> bool:
    """True if a source is an ONNX model, by its type or its first bytes."""
    if "onnx" in sys.modules:  # else no such object exists
        import onnx

        from .file import Source

        if isinstance(source, (onnx.ModelProto, Source)):
            return True
    return signs.is_onnx(signs.head(source))


def load_model(*args: Any, **named: Any) -> Imported:
    with READING:
        from .load import load
    return load(*args, **named)


def examine_model(*args: Any, **named: Any) -> Examined:
    with READING:
        from .load import examine
    return examine(*args, **named)


def unread_model(*args: Any, **named: Any) -> Unread:
    with READING:
        from .unread import unread
    return unread(*args, **named)


register(
    Format(
        "ONNX",
        recognizes,
        load_model,
        examine_model,
        unread_model,
        suffixes=(".onnx",),
        about=About(
            files=".onnx, onnx.ModelProto",
            export="torch.onnx.export, tf2onnx, skl2onnx, and most others",
            covers="opset 1 and newer; docs/operators.md lists the operators",
            checked="the onnx package's tests (docs/conformance.md), ONNX Runtime (docs/real-models.md)",
        ),
    )
)
