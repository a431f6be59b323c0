"""Recognizes formats by the beginning of files: first bytes, first fields of protobuf messages, names in archives."""

from __future__ import annotations

import io
import itertools
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pelton.errors import FormatError
from pelton.system import heads

HEAD = 1 << 12  # bytes that identify a format
ZIP, HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"Rar!")  # gzip, bzip2, xz, zstd, …
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf wire types
TEXT = -1  # printable BYTES

# field → wire type. ModelProto of onnx.proto
ONNX = dict.fromkeys((6, 7, 8, 14, 20, 25, 26), BYTES) | {1: VARINT, 5: VARINT} | dict.fromkeys((2, 3, 4), TEXT)
NODE_DEF = {1: TEXT, 2: TEXT, 3: TEXT, 4: TEXT, 5: BYTES, 6: BYTES, 7: BYTES}  # of tensorflow's node_def.proto
GRAPH_DEF = {1: BYTES, 2: BYTES, 3: VARINT, 4: BYTES, 5: BYTES}  # of tensorflow's graph.proto
PROGRAM_DESC = {1: BYTES, 4: BYTES, 5: BYTES}  # of paddle's framework.proto
BLOCK_DESC = {1: VARINT, 2: VARINT, 3: BYTES, 4: BYTES, 5: VARINT}


def suffix(source: Any) -> str:
    """Returns the suffix of a path in lower case, with its dot; "" for anything else."""
    return os.path.splitext(os.fsdecode(source))[1].lower() if isinstance(source, (str, os.PathLike)) else ""


def head(source: Any, size: int = HEAD) -> bytes:
    """Returns the first bytes of a regular file or of bytes; none if unreadable, or for anything else."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source[:size])
    if not isinstance(source, (str, os.PathLike)):
        return b""
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):  # opening a pipe would wait for its other end
            return b""
        with open(source, "rb") as file:
            return file.read(size)
    except (OSError, ValueError):
        return b""


def refuse_others(source: Any) -> None:
    """Raises FormatError for model files, or bytes of them, that are engines or pointers of Git LFS."""
    if description := heads.describe_foreign_file(head(source, heads.LONGEST)):
        name = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the given data"
        raise FormatError(f"{name} is not a model file: {description}")


def is_empty(source: Any) -> bool:
    """True if a source is the path of a regular file without content."""
    try:
        about = os.stat(source) if isinstance(source, (str, os.PathLike)) else None
    except (OSError, ValueError):
        return False
    return about is not None and stat.S_ISREG(about.st_mode) and not about.st_size


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yields (number, wire type, value) of a protobuf message's fields, which may be truncated; ends otherwise."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
        elif wire == BYTES:
            length, at = _varint(data, at)
            yield number, wire, data[at : at + length]
            at += length
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
            yield number, wire, data[at : at + size]
            at += size
        else:
            yield number, wire, b""  # no message begins so
            return


def fits(data: bytes, message: Mapping[int, int]) -> bool:
    """True if bytes, which may be truncated, begin as a protobuf message with these fields (number → wire type)."""
    has_fields = False
    for number, wire, value in fields(data):
        known = message.get(number)
        if wire != (BYTES if known == TEXT else known):
            return False
        if known == TEXT and isinstance(value, bytes) and not _is_text(value):
            return False
        has_fields = True
    return has_fields


def is_onnx(data: bytes) -> bool:
    """True if a file that begins so is an ONNX model. Its version is a small number, mostly the first field."""
    first = next(fields(data), None)
    return fits(data, ONNX) and first is not None and not (first[0] == 1 and not 0 < int(first[2]) < 1000)


def is_graph_def(data: bytes) -> bool:
    """True if a file that begins so is a GraphDef of TensorFlow, whose first field is a node with a name and an op."""
    return fits(data, GRAPH_DEF) and _first_fits(data, NODE_DEF, (1, 2))


def is_program_desc(data: bytes) -> bool:
    """True if a file that begins so is a ProgramDesc of PaddlePaddle, whose first field is its first block."""
    return fits(data, PROGRAM_DESC) and _first_fits(data, BLOCK_DESC, (1, 2))


def models_in(folder: str | os.PathLike[str]) -> list[str]:
    """Returns a few of the ONNX and TFLite files in a folder and its subfolders, relative to it."""
    paths = (p for pattern in ("*.onnx", "*.tflite", "*/*.onnx", "*/*.tflite") for p in Path(folder).glob(pattern))
    return sorted(str(p.relative_to(folder)) for p in itertools.islice(paths, 4))


def is_packed(source: Any) -> bool:
    """True if a file is a zip archive, a tar, or compressed, whatever its content."""
    data = head(source, 512)
    return data.startswith((ZIP, *PACKED)) or data[257:262] == b"ustar"


def names_in_zip(source: Any) -> frozenset[str]:
    """Returns the names of the files in an archive (a path or bytes); none if it is not one."""
    if head(source, 4) != ZIP:
        return frozenset()
    try:
        with open_zip(source) as archive:
            return frozenset(archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return frozenset()


def open_zip(source: Any) -> zipfile.ZipFile:
    """Opens the archive at a path or in bytes."""
    return zipfile.ZipFile(source if isinstance(source, (str, os.PathLike)) else io.BytesIO(source))


def _first_fits(data: bytes, message: Mapping[int, int], begins: tuple[int, ...]) -> bool:
    """True if the first field is a message that begins with these fields."""
    first = next(fields(data), None)
    inner = first[2] if first is not None and first[0] == 1 else b""
    return (
        isinstance(inner, bytes)
        and fits(inner, message)
        and tuple(number for number, *_ in list(fields(inner))[: len(begins)]) == begins
    )


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError as e:
        return e.reason == "unexpected end of data" and data[: e.start].decode().isprintable()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes a number and its end; a truncated one ends with the data."""
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 127) << 7 * i
        if byte < 128:
            return number, at + i + 1
    return number, len(data)
