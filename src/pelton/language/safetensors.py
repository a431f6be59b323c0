"""Reads safetensors files lazily: a header in JSON, then the bytes of tensors, mapped into memory."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import FormatError, ModelError

MOST_HEADER = 100_000_000  # bytes, as in the format's own library
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4}
SIZES |= {"I64": 8, "U64": 8} | {name: np.dtype(t).itemsize for name, t in FLOATS.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file: its type, such as "BF16", its shape, and its bytes in the file."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


def tensors_of(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a file by name. Raises FormatError for a damaged file, naming the fault."""
    try:
        length = path.stat().st_size
        with open(path, "rb") as f:
            first = f.read(8)
            if len(first) < 8:
                raise FormatError(
                    f"{path} is no safetensors file: it has {length} bytes, fewer than the 8 of its begin"
                )
            (count,) = struct.unpack("<Q", first)
            if count > min(MOST_HEADER, length - 8):
                raise FormatError(
                    f"{path} is damaged: its header would have {count} bytes, of a file of {length} and at most"
                    f" {MOST_HEADER}"
                )
            header = json.loads(f.read(count))
    except OSError as e:
        raise FormatError(f"{path} cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path} is damaged: its header is no JSON ({e})") from None
    if not isinstance(header, dict):
        raise FormatError(f"{path} is damaged: its header is no JSON object")
    begin = 8 + count
    return {
        name: _tensor(path, name, about, begin, length - begin)
        for name, about in header.items()
        if name != "__metadata__"
    }


def _tensor(path: Path, name: str, about: Any, begin: int, room: int) -> StoredTensor:
    """Checks what a header has about a tensor. room: bytes behind the header."""
    about = about if isinstance(about, dict) else {}
    kind, shape, at = about.get("dtype"), about.get("shape"), about.get("data_offsets")
    if kind not in SIZES:
        raise FormatError(f"{path}: tensor {name!r} has a type {kind!r} that is not known")
    if not _sizes(shape) or not _sizes(at) or len(at) != 2 or not at[0] <= at[1] <= room:
        raise FormatError(
            f"{path} is damaged or cut: tensor {name!r} of shape {shape} has bytes {at}, of {room} that there are"
        )
    if math.prod(shape) * SIZES[kind] != at[1] - at[0]:
        raise FormatError(f"{path} is damaged: tensor {name!r} of {kind}{shape} has {at[1] - at[0]} bytes")
    return StoredTensor(path, kind, tuple(shape), begin + at[0], at[1] - at[0])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)


def read(tensor: StoredTensor) -> np.ndarray:
    """Returns a tensor of floats as f32; those in f32 stay in the file until they are used. Raises ModelError for
    other types."""
    if tensor.kind not in FLOATS:
        raise ModelError(f"{tensor.path}: tensors of type {tensor.kind} are not supported, only {', '.join(FLOATS)}")
    if not tensor.size:
        return np.zeros(tensor.shape, np.float32)
    stored = np.memmap(tensor.path, FLOATS[tensor.kind], "r", tensor.start, tensor.shape)
    if tensor.kind == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored) if tensor.kind == "F32" else stored.astype(np.float32)
