"""Reads GGUF files: metadata and the places of tensors, in a file mapped into memory.

The package gguf reads them as well, but it trusts the numbers of a file, and needs seconds for the tokens of a large
vocabulary. Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import FormatError, ModelAbsent, ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
MOST_AXES, MOST_DEPTH = 4, 4  # of tensors; of arrays within arrays
MOST_NAME = 128  # bytes of a key or of a tensor's name; the format allows names of 64
ALIGNMENT = 32  # of tensors, in bytes, unless the file says another


@dataclass(frozen=True)
class BlockType:
    """A type of tensors: `size` bytes hold `count` numbers."""

    name: str
    count: int
    size: int


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
REFUSED = {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
REFUSED |= {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
REFUSED |= {29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file: its type, its shape with rows first, and its begin in the file."""

    kind: BlockType
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.kind.count * self.kind.size


class GgufFile:
    """A GGUF file: `metadata` by key, `tensors` by name. Raises FormatError for a damaged file, naming the fault, and
    ModelError for types of tensors that are not supported."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with open(path, "rb") as f:
                self.data: Any = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelAbsent(f"there is no file {path}", path) from None
        except (OSError, ValueError) as e:
            raise FormatError(f"{path} cannot be read: {e}") from None
        self.at = 0
        if self._bytes(4) != MAGIC:
            raise FormatError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}")
        version = self._number("<I")
        if version not in VERSIONS:
            raise FormatError(f"{path} has version {version} of GGUF; supported are {', '.join(map(str, VERSIONS))}")
        count, keys = self._count("tensors", 24), self._count("keys", 13)
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name("a key")
            self.metadata[key] = self._value(self._number("<I"), key)
        self.tensors = self._tensors(count)

    def bytes_of(self, tensor: GgufTensor) -> np.ndarray:
        """Returns the bytes of a tensor, which stay in the file."""
        return np.frombuffer(self.data, np.uint8, tensor.size, tensor.start)

    # --- numbers and texts

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FormatError(
                f"{self.path} is cut or damaged: {count} bytes at {self.at} would reach beyond its end at"
                f" {len(self.data)}"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def _number(self, kind: str) -> Any:
        (number,) = struct.unpack(kind, self._bytes(struct.calcsize(kind)))
        return number

    def _count(self, what: str, least: int) -> int:
        """Reads a number of things of at least so many bytes each, for which the file must have room."""
        count = self._number("<Q")
        if count * least > len(self.data) - self.at:
            raise FormatError(f"{self.path} is cut or damaged: it would have {count} {what}, for which it has no room")
        return count

    def _text(self, what: str) -> str:
        try:
            return self._bytes(self._number("<Q")).decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.path} is damaged: {what} at {self.at} is no text in UTF-8") from None

    def _name(self, what: str) -> str:
        begin, text = self.at, self._text(what)
        if self.at - begin - 8 > MOST_NAME:
            raise FormatError(
                f"{self.path} is damaged: {what} at {begin} has {self.at - begin - 8} bytes, more than {MOST_NAME}"
            )
        return text

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._text(f"the value of {key!r}")
        if kind != ARRAY or depth == MOST_DEPTH:
            raise FormatError(f"{self.path} is damaged: {key!r} has a value of an unknown type {kind}")
        inner = self._number("<I")
        if inner in SCALARS:
            size = struct.calcsize(SCALARS[inner])
            count = self._count(f"numbers in {key!r}", size)
            return np.frombuffer(self._bytes(count * size), SCALARS[inner]).tolist()
        if inner == STRING:
            return self._texts(self._count(f"texts in {key!r}", 8), key)
        return [self._value(inner, key, depth + 1) for _ in range(self._count(f"arrays in {key!r}", 12))]

    def _texts(self, count: int, key: str) -> list[str]:
        """Reads `count` texts, the slowest part of opening a file."""
        data, at, end, length = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        texts = []
        try:
            for _ in range(count):
                (size,) = length(data, at)
                if size > end - at - 8:
                    raise FormatError(f"{self.path} is cut or damaged: a text of {key!r} at {at} has {size} bytes")
                texts.append(data[at + 8 : at + 8 + size].decode())
                at += 8 + size
        except UnicodeDecodeError:
            raise FormatError(f"{self.path} is damaged: a text of {key!r} at {at} is none in UTF-8") from None
        except struct.error:
            raise FormatError(f"{self.path} is cut or damaged: {key!r} reaches beyond its end") from None
        self.at = at
        return texts

    # --- tensors

    def _tensors(self, count: int) -> dict[str, GgufTensor]:
        heads = []
        for _ in range(count):
            name, axes = self._name("a name of a tensor"), self._number("<I")
            if axes > MOST_AXES:
                raise FormatError(f"{self.path} is damaged: tensor {name!r} has {axes} axes, more than {MOST_AXES}")
            shape = tuple(self._number("<Q") for _ in range(axes))[::-1]
            heads.append((name, shape, self._number("<I"), self._number("<Q")))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
            raise FormatError(f"{self.path} is damaged: general.alignment is {alignment!r:.60}, no multiple of 8")
        begin = -(-self.at // alignment) * alignment
        return {name: self._tensor(name, shape, kind, begin + offset) for name, shape, kind, offset in heads}

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
        if kind in REFUSED:
            raise ModelError(
                f"{self.path}: tensor {name!r} has the type {REFUSED[kind]}, which is not supported, only"
                f" {', '.join(t.name for t in TYPES.values())}"
            )
        if kind not in TYPES:
            raise FormatError(f"{self.path} is damaged: tensor {name!r} has an unknown type {kind}")
        tensor = GgufTensor(TYPES[kind], shape, start)
        if not shape or 0 in shape or shape[-1] % tensor.kind.count:
            raise FormatError(
                f"{self.path} is damaged: tensor {name!r} of shape {list(shape)} has no whole blocks of"
                f" {tensor.kind.count} numbers"
            )
        if start + tensor.size > len(self.data):
            raise FormatError(
                f"{self.path} is cut: tensor {name!r} would end at {start + tensor.size}, the file ends at"
                f" {len(self.data)}"
            )
        return tensor
