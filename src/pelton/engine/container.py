"""The container of engine files: a preamble, a JSON header, then sections, verified by SHA-256.

    bytes 0–7   magic          8–11  format version      12–15  zero
    16–23       header size    24–31 file size           32–63  SHA-256 of bytes 0–31 and the header

The header has a table of the sections (offset from the first page after it, size, SHA-256). Integers are little-endian.
Equal contents give equal bytes. Of signed files the last section is `SIGNATURES` (see `signature`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO

from pelton.errors import EngineAbsent, EngineError
from pelton.record import record
from pelton.system import files, heads

VERSION = 7
PREAMBLE = struct.Struct("<8sIIQQ32s")
ALIGN = 64
PAGE = 4096  # constants start on one
SIGNATURES = "signatures"
MAPPED = ("constants", "refit")  # sections that are not read before they are needed
SMALL = ("plan", "code", SIGNATURES)  # sections that start anywhere, not on a page
AGAIN = "copy or build it again"
BYTES = "the given data"  # what messages call an engine that came without a file


# ---- writing ----


@contextmanager
def report_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an OSError of writing `path` into an EngineError."""
    try:
        yield
    except OSError as e:
        raise EngineError(
            f"the engine could not be written to {os.path.realpath(path)}: {e.strerror or e}; what was there before is"
            " unchanged"
        ) from e


def write_file(pieces: Iterator[Any], path: str | os.PathLike[str]) -> None:
    """Writes the pieces of a file, one after the other: the whole file, or none. EngineError if that fails."""
    first = next(pieces)  # what is wrong with the engine shows before a file is made
    with report_write_errors(path):
        files.write(path, chain((first,), pieces), durable=True)


def frame(header: Mapping[str, Any], contents: Mapping[str, Any]) -> Iterator[Any]:
    """The bytes of a file with these sections and this header, to which the table of sections is added."""
    places = place_sections(contents)
    yield build_front(header, places, {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    written = 0
    for name, data in contents.items():
        yield bytes(places[name][0] - written)
        yield data
        written = sum(places[name])


def place_sections(contents: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Section → (offset in the body, which itself starts on a page, size), in bytes."""
    found, at = {}, 0
    for name, data in contents.items():
        at = round_up(at, PAGE if name not in SMALL else ALIGN)
        found[name] = at, len(data)
        at += len(data)
    return found


def build_front(header: Mapping[str, Any], places: Mapping[str, tuple[int, int]], digests: Mapping[str, str]) -> bytes:
    """Preamble and header, up to the body; their size does not depend on the digests."""
    sections = {name: {"offset": at, "size": size, "sha256": digests[name]} for name, (at, size) in places.items()}
    text = to_json({**header, "sections": sections}, "meta")
    body = round_up(PREAMBLE.size + len(text), PAGE)
    start = PREAMBLE.pack(heads.ENGINE, VERSION, 0, len(text), body + max(map(sum, places.values())), bytes(32))[:32]
    return start + hashlib.sha256(start + text).digest() + text + bytes(body - PREAMBLE.size - len(text))


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def to_json(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as e:
        raise EngineError(f"the engine's {what} cannot be written as JSON: {e}") from None


# ---- reading ----


def map_file(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> tuple[memoryview, str]:
    """The bytes of a file, mapped into memory, and what messages call it. EngineAbsent where there is none."""
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


@record(frozen=True)
class Container:
    """A file whose preamble and header are sound: its header, and the bytes after it."""

    header: dict[str, Any]
    body: memoryview
    damaged: str  # how messages begin that say what is wrong with it

    def sections(self, names: Iterable[str]) -> dict[str, memoryview]:
        """The bytes of sections, by name. EngineError where one is missing or outside of the file.

        Those of `MAPPED` are views of the file. All else is copied, so that what is verified is what runs, even if the
        file is rewritten meanwhile."""
        found = {}
        table = as_object(self.header.get("sections"), self.damaged + "its table of sections")
        for name in names:
            entry = as_object(table.get(name), self.damaged + f"the entry of its {name}")
            offset, size = entry.get("offset"), entry.get("size")
            if (
                type(offset) is not int
                or type(size) is not int
                or offset < 0
                or size < 0
                or offset % ALIGN
                or offset + size > len(self.body)
            ):
                raise EngineError(
                    f"{self.damaged}its {name} would be {size!r} bytes at {offset!r}, there are {len(self.body)}"
                )
            data = self.body[offset : offset + size]
            found[name] = data if name in MAPPED else memoryview(bytes(data))
        return found

    def verify(self, sections: Mapping[str, memoryview], where: str) -> None:
        """Raises EngineError unless the sections have the hashes of the header."""
        for name, data in sections.items():
            if hashlib.sha256(data).hexdigest() != self.header["sections"][name].get("sha256"):
                raise EngineError(f"{where} is altered in its {name}; {AGAIN}")


def open_container(data: memoryview, where: str) -> Container:
    """Checks preamble and header. EngineError where these are no engine file, or one of another format version."""
    begin = bytes(data[: heads.LONGEST])
    if not begin.startswith(heads.ENGINE):
        raise EngineError(f"{where} is not a Pelton engine{_instead(begin, where)}")
    if len(data) < PREAMBLE.size:
        raise EngineError(f"{where} is truncated: it has only {len(data)} bytes; {AGAIN}")
    start = bytes(data[: PREAMBLE.size])
    _, version, zero, header_size, file_size, digest = PREAMBLE.unpack(start)
    if version > VERSION:
        raise EngineError(
            f"{where} is an engine of format version {version}, this Pelton reads version {VERSION}; install a newer"
            " Pelton or build it again"
        )
    if version < VERSION:
        raise EngineError(
            f"{where} is an engine of format version {version}, this Pelton reads version {VERSION}; build it again"
        )
    if zero:
        raise EngineError(f"{where} is altered in its first bytes; {AGAIN}")
    if len(data) < file_size:
        raise EngineError(f"{where} is truncated: it should have {file_size} bytes and has {len(data)}; {AGAIN}")
    if len(data) > file_size:
        raise EngineError(f"{where} is altered: it should have {file_size} bytes and has {len(data)}; {AGAIN}")
    header = bytes(data[PREAMBLE.size : PREAMBLE.size + header_size])
    if len(header) < header_size or hashlib.sha256(start[:32] + header).digest() != digest:
        raise EngineError(f"{where} is altered in its header; {AGAIN}")
    damaged = f"{where} is damaged: "
    h = as_object(parse_json(header, damaged + "its header"), damaged + "its header")
    return Container(h, data[min(round_up(PREAMBLE.size + header_size, PAGE), len(data)) :], damaged)


def _instead(begin: bytes, where: str) -> str:
    """The end of a message about a file that is no engine: what it is instead, as far as that is known."""
    if not begin:
        return ": it is empty"
    if told := heads.told(begin):
        return f": {told}"
    return " (ONNX models are made into one by `pelton build`)" if where.endswith(".onnx") else ""


def path_of(where: str) -> str:
    """The file behind what messages call an engine; "" where it came as bytes."""
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
