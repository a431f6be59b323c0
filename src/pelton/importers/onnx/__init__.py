"""ONNX models of every opset."""

import os
from typing import Any

import onnx

from pelton.importers.registry import Format, register

from . import load, unread
from .file import Source


def recognizes(source: Any) -> bool:
    """Whether a source is an ONNX model by its type or the name of its file. Bytes say nothing of their format."""
    return (
        isinstance(source, (onnx.ModelProto, Source))
        or isinstance(source, (str, os.PathLike))
        and os.fspath(source)[-5:] in (".onnx", b".onnx")
    )


register(Format("ONNX", recognizes, load.load, load.examine, unread.unread))
