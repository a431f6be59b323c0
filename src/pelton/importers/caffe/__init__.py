"""Nets of Caffe: a prototxt, with weights in a .caffemodel.

Protobuf is imported when a net is read: recognizing and listing formats works without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.errors import InputError, ModelError, Needs
from pelton.importers import signs
from pelton.importers.imported import Shape
from pelton.importers.network import register_network_format
from pelton.importers.registry import About, ModelFiles
from pelton.network import Network

HEAD = 1 << 16  # first bytes of a file, enough to recognize a prototxt
_FIRST = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*"
    rb"(?:name|input|input_dim|input_shape|force_backward|state|debug_info|layers?)\s*[:{<]"
)
_LAYER = re.compile(rb"^\s*(?:layers?\s*:?\s*[{<]|input(?:_dim|_shape)?\s*[:{<])", re.MULTILINE)


def recognizes(source: Any) -> bool:
    """True if a source begins like a Caffe net."""
    head = signs.head(source, HEAD)
    return _FIRST.match(head) is not None and _LAYER.search(head) is not None


def read(source: Any, shapes: Mapping[str, Shape] | None) -> Network:
    """Reads the network of a prototxt (a path or bytes), with the weights of `ModelFiles`, of the .caffemodel beside
    it, or random ones. shapes: input shapes other than the file's."""
    with Needs("reading nets of Caffe"):
        from .prototxt import parse
        from .translate import translate
        from .weights import Caffemodel, read_file

    model, weights = _files(source)
    text, name = (bytes(model), "the prototxt") if _is_bytes(model) else (read_file(model), os.fsdecode(model))
    return translate(parse(text, name), None if weights is None else Caffemodel(weights), shapes or {})


def _is_bytes(model: Any) -> bool:
    return isinstance(model, (bytes, bytearray, memoryview))


def _files(source: Any) -> tuple[Any, str | os.PathLike[str] | None]:
    """Returns the prototxt, and the file of its weights if there is one."""
    model, weights = (source.model, source.weights) if isinstance(source, ModelFiles) else (source, None)
    path = None if _is_bytes(model) else Path(os.fsdecode(model))
    if weights is not None and Path(weights).suffix == ".prototxt":
        raise InputError(
            f"weights= is a prototxt, {os.fspath(weights)!r}; pass it as the model, and a .caffemodel as weights="
        )
    if path is None or weights is not None:
        return model, weights
    text, beside = path.with_suffix(".prototxt"), path.with_suffix(".caffemodel")
    if path.suffix == ".caffemodel":
        if not text.exists():
            raise ModelError(
                f"{path}: a file of weights; pass the prototxt of its net as the model, and this file as weights="
            )
        return text, path
    return model, beside if beside.exists() else None


register_network_format(
    "Caffe",
    recognizes,
    read,
    two_files=True,
    files=_files,
    suffixes=(".prototxt", ".caffemodel"),
    about=About(
        files=".prototxt, with .caffemodel",
        export="net.save('net.caffemodel') of pycaffe, next to the deploy.prototxt",
        covers="nets of BVLC's Caffe, of SSD and of usual forks; not Python, Filter and BatchReindex layers",
        checked="OpenCV 4.14, and loops written from Caffe's definitions",
    ),
)
