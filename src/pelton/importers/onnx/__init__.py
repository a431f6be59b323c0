"""ONNX models of every opset."""

from typing import Any

import onnx

from pelton.importers import signs
from pelton.importers.registry import About, Format, register

from . import load, unread
from .file import Source


def recognizes(source: Any) -> bool:
    """Whether a source is an ONNX model, by its type or how its bytes begin."""
    return isinstance(source, (onnx.ModelProto, Source)) or signs.is_onnx(signs.head(source))


register(
    Format(
        "ONNX",
        recognizes,
        load.load,
        load.examine,
        unread.unread,
        suffixes=(".onnx",),
        about=About(
            files=".onnx, onnx.ModelProto",
            export="torch.onnx.export, tf2onnx, skl2onnx, and most others",
            covers="opset 1 and newer; docs/operators.md lists the operators",
            checked="the onnx package's tests (docs/conformance.md), ONNX Runtime (docs/real-models.md)",
        ),
    )
)
