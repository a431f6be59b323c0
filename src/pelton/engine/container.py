"""The container of engine files: a preamble, a row for each section, then the sections, verified by SHA-256.

    bytes 0–7   magic          8–11  format version      12–15  number of sections     16–23  zero
    24–31       file size      32–63 SHA-256 of bytes 0–31 and the rows

A row is the name of a section (16 bytes, padded by zeros), its offset in the file, its size (8 bytes each) and its
SHA-256. Integers are little-endian. Equal contents give equal bytes. In signed files the last section is `SIGNATURES`
(see `signature`). The native library checks preamble and rows (`native/file.c`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pelton import native
from pelton.errors import EngineAbsent, EngineError
from pelton.record import record
from pelton.system import files, heads
from pelton.system.memory import address

VERSION = 8
PREAMBLE = struct.Struct("<8sIIQQ32s")
ROW = struct.Struct("<16sQQ32s")
ALIGN = 64
PAGE = 4096  # constants start on a page
SIGNATURES = "signatures"
# sections that are read on demand, and start on a page
MAPPED = ("constants", "present", "refit")
AGAIN = "copy or build it again"
BYTES = "the given data"  # the name in messages of an engine without a file


# ---- writing ----


@contextmanager
def report_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager: turns an OSError of writing `path` into an EngineError."""
    try:
        yield
    except OSError as e:
        raise EngineError(
            f"cannot write the engine to {os.path.realpath(path)}: {e.strerror or e}; the existing file is unchanged"
        ) from e


def write_file(pieces: Iterator[Any], path: str | os.PathLike[str]) -> None:
    """Writes the pieces of a file in order: the whole file, or none. Raises EngineError if that fails."""
    first = next(pieces)  # faults of the engine show before a file is created
    with report_write_errors(path):
        files.write(path, chain((first,), pieces), durable=True)


def frame(contents: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the bytes of a file with these sections, one after another."""
    places = place_sections(contents)
    yield build_front(places, {name: hashlib.sha256(data).digest() for name, data in contents.items()})
    written = PREAMBLE.size + ROW.size * len(contents)
    for name, data in contents.items():
        yield bytes(places[name][0] - written)
        yield data
        written = sum(places[name])


def place_sections(contents: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Returns section → (offset in the file, size), in bytes."""
    places, at = {}, PREAMBLE.size + ROW.size * len(contents)
    for name, data in contents.items():
        at = round_up(at, PAGE if name in MAPPED else ALIGN)
        places[name] = at, len(data)
        at += len(data)
    return places


def build_front(places: Mapping[str, tuple[int, int]], digests: Mapping[str, bytes]) -> bytes:
    """Builds the preamble and rows; their size does not depend on the digests."""
    rows = b"".join(ROW.pack(name.encode(), at, size, digests[name]) for name, (at, size) in places.items())
    size = max(map(sum, places.values()), default=PREAMBLE.size)
    start = PREAMBLE.pack(heads.ENGINE, VERSION, len(places), 0, size, bytes(32))[:32]
    return start + hashlib.sha256(start + rows).digest() + rows


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def to_json(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as e:
        raise EngineError(f"the engine's {what} cannot be written as JSON: {e}") from None


# ---- reading ----


def map_file(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> tuple[memoryview, str]:
    """Maps a file into memory; returns its bytes and its name in messages. Raises EngineAbsent if it does not exist."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return memoryview(bytes(source)), BYTES
    where = os.fspath(source)
    try:
        if not stat.S_ISREG(os.stat(where).st_mode):
            raise EngineError(f"{where} is not a file; an engine is one")
        with open(where, "rb") as f:
            return _map_pages(f), where
    except FileNotFoundError as e:
        raise EngineAbsent(f"the engine {where} cannot be read: {e.strerror}", where) from None
    except OSError as e:
        raise EngineError(f"the engine {where} cannot be read: {e.strerror or e}") from None


def _map_pages(f: BinaryIO) -> memoryview:
    size = os.fstat(f.fileno()).st_size
    return memoryview(mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


class SectionRow(NamedTuple):
    """The place of a section in its file, and its hash."""

    offset: int
    size: int
    sha256: bytes


@record(frozen=True)
class Container:
    """A file with a valid preamble and rows."""

    data: memoryview
    rows: Mapping[str, SectionRow]
    damaged: str  # the beginning of messages about damage

    @property
    def digest(self) -> str:
        """The SHA-256 of the rows, in hexadecimal: they hold the hashes of all sections, so this identifies the file
        without reading it."""
        return bytes(self.data[32:64]).hex()

    def sections(self, names: Iterable[str]) -> dict[str, memoryview]:
        """Returns the bytes of sections, by name. Raises EngineError if one is missing.

        Those of `MAPPED` are views of the file. All others are copies: the verified bytes are those that run, even if
        the file is rewritten meanwhile."""
        sections = {}
        for name in names:
            if name not in self.rows:
                raise EngineError(f"{self.damaged}it has no section {name!r}; {AGAIN}")
            offset, size, _ = self.rows[name]
            data = self.data[offset : offset + size]
            sections[name] = data if name in MAPPED else memoryview(bytes(data))
        return sections

    def verify(self, sections: Mapping[str, memoryview], where: str) -> None:
        """Raises EngineError unless the sections match the hashes of their rows."""
        for name, data in sections.items():
            if hashlib.sha256(data).digest() != self.rows[name].sha256:
                raise EngineError(f"{where} is altered in its {name}; {AGAIN}")


def open_container(data: memoryview, where: str) -> Container:
    """Checks preamble and rows. Raises EngineError if the file is no engine, or one of another format version."""
    begin = bytes(data[: heads.LONGEST])
    if not begin.startswith(heads.ENGINE):
        raise EngineError(f"{where} is not a Pelton engine{_instead(begin, where)}")
    start = np.frombuffer(data, np.uint8)
    why = ctypes.create_string_buffer(native.REASON)
    if not native.library().pelton_file_check(address(start), len(data), why):
        raise EngineError(f"{where} {why.value.decode().removeprefix('it ')}")
    count = PREAMBLE.unpack_from(data)[2]
    rows: dict[str, SectionRow] = {}
    for name, *row in ROW.iter_unpack(data[PREAMBLE.size : PREAMBLE.size + ROW.size * count]):
        rows.setdefault(name.rstrip(b"\0").decode(errors="replace"), SectionRow(*row))
    return Container(data, rows, f"{where} is damaged: ")


def _instead(begin: bytes, where: str) -> str:
    """Returns the end of a message about a file that is no engine: its actual kind, if recognized."""
    if not begin:
        return ": it is empty"
    if description := heads.describe_foreign_file(begin):
        return f": {description}"
    return " (ONNX models are made into one by `pelton build`)" if where.endswith(".onnx") else ""


def path_of(where: str) -> str:
    """Returns the file behind an engine's name in messages; "" if it came as bytes."""
    return "" if where.startswith(BYTES) else where


def parse_json(text: bytes | memoryview, what: str) -> Any:
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as e:
        raise EngineError(f"{what} is no JSON ({e})") from None


def as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EngineError(f"{what} is no JSON object")
    return value


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.50}")
    return value
