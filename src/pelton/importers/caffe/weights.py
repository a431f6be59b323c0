"""Caffemodel files: the blobs of each layer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from pelton.errors import FormatError, ModelAbsent, ModelError
from pelton.importers import signs

from .schema import Message, message_class

_RAW = {0: "<f8", 1: "<f4", 2: "<f2"}  # RawType → elements


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a file; raises FormatError if it is unreadable."""
    signs.refuse_others(path)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ModelAbsent(f"there is no file {os.fspath(path)!r}", path) from None
    except (OSError, ValueError) as e:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {e}") from None


class Caffemodel:
    """The blobs of a weights file, by layer name."""

    def __init__(self, path: str | os.PathLike[str]):
        self.file = os.fspath(path)
        data = read_file(path)
        if data.startswith(b"\x89HDF"):
            raise ModelError(f"{self.file}: holds weights as HDF5; save them as a binary .caffemodel")
        try:
            net = message_class("weights.NetParameter").FromString(data)
        except DecodeError:
            raise FormatError(
                f"{self.file}: is no caffemodel, or is damaged or truncated ({len(data)} bytes)"
            ) from None
        self.layers: dict[str, list[Message]] = {}
        for name, blobs in _layers(net):
            if blobs:
                self.layers.setdefault(name, blobs)  # Caffe also uses the first of equal names
        if not self.layers:
            raise FormatError(f"{self.file}: holds no weights; expected a .caffemodel that Caffe has saved")

    def blob(self, layer: str, i: int) -> np.ndarray:
        """Returns the i-th blob of a layer, as f32, in the file's shape; raises FormatError if it is damaged."""
        blob = self.layers[layer][i]
        where = f"{self.file}: blob {i} of layer {layer!r}"
        shape = tuple(blob.shape.dim)
        if not blob.HasField("shape") and blob.num:
            shape = (blob.num, blob.channels, blob.height, blob.width)
        elements = _elements(blob, where)
        if any(d < 0 for d in shape) or math.prod(shape) != elements.size:
            raise FormatError(f"{where} has the shape {list(shape)} and {elements.size} elements; the file is damaged")
        return elements.reshape(shape)


def _layers(net: Message) -> Iterator[tuple[str, list[Message]]]:
    oldest = [(old.layer.name, old.layer.blobs or old.blobs) for old in net.layers if old.HasField("layer")]
    newer = [(layer.name, layer.blobs) for layer in (*net.layer, *net.layers)]
    for name, blobs in (*newer, *oldest):
        yield name.decode("utf-8", "replace"), list(blobs)


def _elements(blob: Message, where: str) -> np.ndarray:
    if blob.HasField("raw_data"):
        if blob.raw_data_type not in _RAW:
            raise ModelError(f"{where} holds integers; expected floats")
        parts, dtype = [blob.raw_data], _RAW[blob.raw_data_type]
    else:
        parts, dtype = (blob.double_data, "<f8") if blob.double_data else (blob.data, "<f4")
    if not parts:  # unpacked fields, which few programs write
        plain = message_class("BlobProto")()
        try:
            plain.MergeFromString(blob.SerializeToString())
        except DecodeError:
            raise FormatError(f"{where} is damaged") from None
        return np.array(plain.double_data or plain.data, np.float32)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(data) % np.dtype(dtype).itemsize:
        raise FormatError(f"{where} ends within an element; the file is damaged")
    return np.frombuffer(data, dtype).astype(np.float32, copy=False)
