"""TFLite models (.tflite), read directly: float and quantized networks, with the state of streaming ones."""

from __future__ import annotations

from typing import Any

from pelton.importers import signs
from pelton.importers.network import register_network_format
from pelton.importers.registry import About

from .node import CUSTOM, READERS, TFLiteReading, reads
from .held import ChannelsFirst
from .load import read
from .schema import IDENTIFIER
from .unread import unread

__all__ = ["CUSTOM", "READERS", "ChannelsFirst", "TFLiteReading", "read", "reads", "unread"]


def recognizes(source: Any) -> bool:
    """True if a path or bytes certainly are a TFLite model: by the identifier behind the first four bytes."""
    return signs.head(source, 8)[4:] == IDENTIFIER


register_network_format(
    "TFLite",
    recognizes,
    read,
    unread=unread,
    with_values=True,
    suffixes=(".tflite",),
    about=About(
        files=".tflite",
        export="tf.lite.TFLiteConverter.from_keras_model(model).convert(), or litert_torch.convert",
        covers="float and quantized models, the state of streaming ones; not strings and hash tables",
        checked="LiteRT (ai-edge-litert 2.3)",
    ),
)
