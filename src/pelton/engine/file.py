"""The engine file: a preamble, a JSON header, then plan, machine code and constants, each at a multiple of 64 bytes.

    bytes 0–7   magic          8–11  format version      12–15  zero
    16–23       header size    24–31 file size           32–63  SHA-256 of bytes 0–31 and the header

The header names the sections (offset from the first multiple of 64 after it, size, SHA-256). Little-endian throughout.
Equal engines give equal bytes. Header, plan, code and the constants used for addressing are verified whenever a file is
read; all constants on request.
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
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pelton.errors import EngineAbsent, EngineError

from pelton.system import files
from .validate import validate
from .constants import Unmade, bytes_of
from .model import Buffer, EnginePlan, Number, Port, Slice, Step, DynamicDimension, Tensor
from pelton.record import record

if TYPE_CHECKING:
    from .program import Script

MAGIC = b"\x93PELTON\n"
VERSION = 7
PREAMBLE = struct.Struct("<8sIIQQ32s")
ALIGN = 64
PAGE = 4096  # constants start on one
SECTIONS = ("plan", "code", "constants")
AGAIN = "copy or build it again"
BYTES = "these bytes"  # what messages call an engine that came without a file
# what else a file may hold than an engine: a key of its header → what reads it
FORMATS = {"engines": ".program_file"}
UNKNOWN = "0" * 64  # a hash of what is not there yet


# ---- writing ----


def to_bytes(engine: EnginePlan, lent: bool = False) -> bytes:
    """The file as bytes; `lent`: without its constants, which are kept elsewhere. EngineError for an engine that does
    not hang together or cannot be written as JSON."""
    return b"".join(_pieces(engine, lent))


def write(engine: EnginePlan, path: str | os.PathLike[str]) -> None:
    """Writes the file whole or not at all: what was at `path` stays until the new file is on disk. Constants that are
    not there yet are made in the file, so that nothing is in memory twice."""
    constants = engine.constants
    if not isinstance(constants, Unmade) or not files.replaces(path):
        put(_pieces(engine), path)
        return
    with constants.lock:
        if constants.there:
            put(_pieces(engine), path)
            return
        validate(engine)
        header, contents = _header(engine), {"plan": _plan(engine), "code": bytes(engine.code), "constants": constants}
        with _told(path):
            files.make(path, lambda handle: _make(handle, engine, header, contents, constants), durable=True)


def _make(
    handle: int, engine: EnginePlan, header: Mapping[str, Any], contents: Mapping[str, Any], constants: Unmade
) -> None:
    """Fills the file of an engine, making its constants in place: the front, which has their hashes, comes last."""
    places = _places(contents)
    front = _front({**header, "tables": UNKNOWN}, places, dict.fromkeys(contents, UNKNOWN))
    start = len(front) + places["constants"][0]
    # so that memory mapped to the file has a place on the disk
    os.posix_fallocate(handle, 0, start + constants.size)
    room, digest = np.frombuffer(mmap.mmap(handle, start + constants.size), np.uint8)[start:], hashlib.sha256()
    for part in constants.parts(room):
        digest.update(part.data)
    digests = {
        name: digest.hexdigest() if name == "constants" else hashlib.sha256(data).hexdigest()
        for name, data in contents.items()
    }
    front = _front({**header, "tables": _hash_of_tables(engine.buffers, room.data)}, places, digests)
    for at, data in ((0, front), *((len(front) + places[name][0], contents[name]) for name in ("plan", "code"))):
        os.pwrite(handle, data, at)
    constants.lie(np.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_READ), np.uint8)[start:])


@contextmanager
def _told(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise EngineError(
            f"the engine could not be written to {os.path.realpath(path)}: {e.strerror or e}; what was there before is"
            " unchanged"
        ) from e


def put(pieces: Iterator[Any], path: str | os.PathLike[str]) -> None:
    """Writes the pieces of a file whole or not at all."""
    first = next(pieces)  # what is wrong with the engine shows before a file is made
    with _told(path):
        files.write(path, chain((first,), pieces), durable=True)


def _pieces(engine: EnginePlan, lent: bool = False) -> Iterator[Any]:
    """The bytes of an engine's file, one after another."""
    validate(engine)
    constants = bytes_of(engine.constants)
    header = {**_header(engine), "tables": _hash_of_tables(engine.buffers, constants)}
    yield from framed(header, dict(zip(SECTIONS, (_plan(engine), bytes(engine.code), b"" if lent else constants))))


def _plan(engine: EnginePlan) -> bytes:
    return as_json(
        {
            "buffers": [
                [b.kind, b.offset, b.size, *([b.values, b.dtype] if b.kind in ("sizes", "iota") else [])]
                for b in engine.buffers
            ],
            "steps": [_step_to_json(s) for s in engine.steps],
            "sizes": dict(engine.sizes),
        },
        "plan",
    )


def _header(engine: EnginePlan) -> dict[str, Any]:
    """All but what hashes say."""
    return {
        "name": engine.name,
        "inputs": [port_to_json(p) for p in engine.inputs],
        "outputs": [port_to_json(p) for p in engine.outputs],
        "symbols": [[s.name, s.minimum, s.optimum, s.maximum] for s in engine.symbols],
        "arena": engine.arena,
        "target": dict(engine.target),
        "meta": dict(engine.meta),
    }


def framed(header: Mapping[str, Any], contents: Mapping[str, Any]) -> Iterator[Any]:
    """The bytes of a file with this header, to which the table of sections is added, and these contents of its
    sections."""
    places = _places(contents)
    yield _front(header, places, {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    written = 0
    for name, data in contents.items():
        yield bytes(places[name][0] - written)
        yield data
        written = sum(places[name])


def _places(contents: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Where each section begins in the body, which itself starts on a page, and its size."""
    found, at = {}, 0
    for name, data in contents.items():
        at = _up(at, PAGE if name not in ("plan", "code") else ALIGN)
        found[name] = at, len(data)
        at += len(data)
    return found


def _front(header: Mapping[str, Any], places: Mapping[str, tuple[int, int]], digests: Mapping[str, str]) -> bytes:
    """All that comes before the body: as long for any digests."""
    sections = {name: {"offset": at, "size": size, "sha256": digests[name]} for name, (at, size) in places.items()}
    text = as_json({**header, "sections": sections}, "meta")
    body = _up(PREAMBLE.size + len(text), PAGE)
    start = PREAMBLE.pack(MAGIC, VERSION, 0, len(text), body + max(map(sum, places.values())), bytes(32))[:32]
    return start + hashlib.sha256(start + text).digest() + text + bytes(body - PREAMBLE.size - len(text))


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def as_json(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as e:
        raise EngineError(f"the engine's {what} cannot be written as JSON: {e}") from None


def _hash_of_tables(buffers: tuple[Buffer, ...], constants: memoryview) -> str:
    digest = hashlib.sha256()
    for b in buffers:
        if b.kind == "table":
            digest.update(constants[b.offset : b.offset + b.size])
    return digest.hexdigest()


def port_to_json(p: Port) -> dict[str, Any]:
    return {"name": p.name, "dtype": p.dtype, "shape": p.shape, "dims": p.dims}


def _tensor_to_json(t: Tensor) -> list[Any]:
    return [t.slice.buffer, t.slice.offset, t.dtype, t.shape, t.strides]


def _step_to_json(s: Step) -> dict[str, Any]:
    common = {"name": s.name, "wave": s.wave, "info": dict(s.info)}
    if s.host:
        return {
            **common,
            "host": s.host,
            "inputs": [_tensor_to_json(t) for t in s.inputs],
            "outputs": [_tensor_to_json(t) for t in s.outputs],
        }
    return {
        **common,
        "symbol": s.symbol,
        "args": [[a.buffer, a.offset] for a in s.args],
        "dims": s.dims,
        "tiles": s.tiles,
        "grain": s.grain,
        "scratch": s.scratch,
        "phases": s.phases,
        "outputs": [_tensor_to_json(t) for t in s.outputs],
        "alternatives": [_step_to_json(x) for x in s.alternatives],
    }


# ---- reading ----


def read(source: str | os.PathLike[str] | bytes | bytearray | memoryview, verify: bool = False) -> EnginePlan | Script:
    """The engine or script in a file or in bytes. Constants are mapped, not read; `verify` reads and checks them, too.

    Raises EngineError for what is no engine, or is truncated, altered or of a newer version.
    """
    data, where = mapped(source)
    found = opened(data, where)
    for key, reader in FORMATS.items():
        if key in found.header:
            return import_module(reader, __package__).read_in(found, where, verify)
    return engine_in(found, where, verify)


def mapped(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> tuple[memoryview, str]:
    """The bytes of a file, mapped, and what messages call it."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return memoryview(bytes(source)), BYTES
    where = os.fspath(source)
    try:
        if not stat.S_ISREG(os.stat(where).st_mode):
            raise EngineError(f"{where} is not a file; an engine is one")
        with open(where, "rb") as f:
            return _map(f), where
    except FileNotFoundError as e:
        raise EngineAbsent(f"the engine {where} cannot be read: {e.strerror}", where) from None
    except OSError as e:
        raise EngineError(f"the engine {where} cannot be read: {e.strerror or e}") from None


def _map(f: BinaryIO) -> memoryview:
    size = os.fstat(f.fileno()).st_size
    return memoryview(mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


@record(frozen=True)
class Opened:
    """A file whose preamble and header are sound: its header, and the bytes after it."""

    header: dict[str, Any]
    body: memoryview
    damaged: str  # how messages begin that say what is wrong with it

    def sections(self, names: Iterable[str]) -> dict[str, memoryview]:
        """Where the constants lie, and copies of all else: what is verified is what runs, though the file were
        rewritten meanwhile."""
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
            found[name] = data if name == "constants" else memoryview(bytes(data))
        return found

    def verify(self, sections: Mapping[str, memoryview], where: str) -> None:
        for name, data in sections.items():
            if hashlib.sha256(data).hexdigest() != self.header["sections"][name].get("sha256"):
                raise EngineError(f"{where} is altered in its {name}; {AGAIN}")


def opened(data: memoryview, where: str) -> Opened:
    """What is in the bytes of a file, its sections not yet looked at."""
    if len(data) < 8 or data[:8] != MAGIC:
        raise EngineError(
            f"{where} is not a Pelton engine"
            + (" (ONNX models are made into one by `pelton build`)" if where.endswith(".onnx") else "")
        )
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
    h = as_object(parsed(header, damaged + "its header"), damaged + "its header")
    return Opened(h, data[min(_up(PREAMBLE.size + header_size, PAGE), len(data)) :], damaged)


def engine_in(found: Opened, where: str, verify: bool, lent: memoryview | None = None) -> EnginePlan:
    """The engine in a file that was opened, with constants that it was written without, if these are given."""
    h, damaged = found.header, found.damaged
    sections = found.sections(SECTIONS)
    found.verify({name: sections[name] for name in (SECTIONS if verify else SECTIONS[:2])}, where)
    constants = sections["constants"] if lent is None else lent
    plan = as_object(parsed(sections["plan"], damaged + "its plan"), damaged + "its plan")
    try:
        engine = EnginePlan(
            name=as_text(h["name"]),
            inputs=tuple(map(as_port, h["inputs"])),
            outputs=tuple(map(as_port, h["outputs"])),
            arena=h["arena"],
            symbols=tuple(map(as_symbol, h["symbols"])),
            sizes=as_object(plan["sizes"], "its table of sizes"),
            buffers=tuple(map(_buffer, plan["buffers"])),
            steps=tuple(map(_step, plan["steps"])),
            constants=constants,
            code=bytes(sections["code"]),
            target=as_object(h["target"], "its target"),
            meta=as_object(h["meta"], "its meta"),
            file=file_of(where),
        )
    except (KeyError, TypeError, ValueError, AttributeError, EngineError) as e:
        raise EngineError(
            f"{damaged}a part of its header or plan is missing or of another form ({type(e).__name__}: {e}); {AGAIN}"
        ) from None
    validate(engine)
    if _hash_of_tables(engine.buffers, constants) != h.get("tables"):
        raise EngineError(f"{where} is altered in the constants it uses for addressing; {AGAIN}")
    return engine


def file_of(where: str) -> str:
    """The file behind what messages call an engine; "" where it came as bytes."""
    return "" if where.startswith(BYTES) else where


def parsed(text: bytes | memoryview, what: str) -> Any:
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


def as_numbers(value: Any) -> tuple[Number, ...]:
    if not isinstance(value, list) or any(type(v) is not int and type(v) is not str for v in value):
        raise TypeError(f"expected whole numbers, got {value!r:.50}")
    return tuple(value)


def as_symbol(s: list[Any]) -> DynamicDimension:
    name, minimum, optimum, maximum = s
    return DynamicDimension(as_text(name), minimum, optimum, maximum)


def _buffer(b: list[Any]) -> Buffer:
    kind, offset, size, *made = b
    if not made:
        return Buffer(as_text(kind), offset, size)
    values, dtype = made
    return Buffer(as_text(kind), offset, size, as_numbers(values), as_text(dtype))


def as_port(p: Mapping[str, Any]) -> Port:
    return Port(
        as_text(p["name"]),
        as_text(p["dtype"]),
        as_numbers(p["shape"]),
        tuple(None if d is None else as_text(d) for d in p["dims"]),
    )


def _tensor(t: list[Any]) -> Tensor:
    buffer, offset, dtype, shape, strides = t
    return Tensor(Slice(buffer, offset), as_text(dtype), as_numbers(shape), as_numbers(strides))


def _step(s: Mapping[str, Any]) -> Step:
    common = {"name": as_text(s["name"]), "wave": s["wave"], "info": as_object(s["info"], "the info of a step")}
    if "host" in s:
        return Step(
            symbol="",
            host=as_text(s["host"]),
            tiles=0,
            inputs=tuple(map(_tensor, s["inputs"])),
            outputs=tuple(map(_tensor, s["outputs"])),
            **common,
        )
    return Step(
        symbol=as_text(s["symbol"]),
        args=tuple(Slice(b, o) for b, o in s["args"]),
        dims=as_numbers(s["dims"]),
        tiles=s["tiles"],
        grain=s["grain"],
        scratch=s["scratch"],
        phases=s["phases"],
        outputs=tuple(map(_tensor, s["outputs"])),
        alternatives=tuple(map(_step, s["alternatives"])),
        **common,
    )
