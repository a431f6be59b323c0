"""The engine file: a preamble, a JSON header, then plan, machine code and constants, each at a multiple of 64 bytes.

    bytes 0–7   magic          8–11  format version      12–15  zero
    16–23       header size    24–31 file size           32–63  SHA-256 of bytes 0–31 and the header

The header names the sections (offset from the first multiple of 64 after it, size, SHA-256). Little-endian throughout. Equal engines
give equal bytes. Header, plan, code and the constants used for addressing are verified whenever a file is read; all constants on request.
"""
from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from pelton.errors import EngineError

from .check import check
from .engine import Buffer, Engine, Number, Port, Slice, Step, Symbol, Tensor

MAGIC = b"\x93PELTON\n"
VERSION = 2
PREAMBLE = struct.Struct("<8sIIQQ32s")
ALIGN = 64
PAGE = 4096                       # constants start on one
SECTIONS = ("plan", "code", "constants")


# ---- writing ----

def to_bytes(engine: Engine) -> bytes:
    """The file as bytes. EngineError for an engine that does not hang together or cannot be written as JSON."""
    return b"".join(_pieces(engine))


def write(engine: Engine, path: str | os.PathLike[str]) -> None:
    """Writes the file whole or not at all: what was at `path` stays until the new file is on disk."""
    path = os.path.realpath(path)
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.urandom(6).hex()}.part")
    pieces = _pieces(engine)
    first = next(pieces)          # what is wrong with the engine shows before a file is made
    try:
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                _write_all(handle, first)
                for piece in pieces:
                    _write_all(handle, piece)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(part, path)
        finally:
            if os.path.lexists(part):
                os.unlink(part)
    except OSError as e:
        raise EngineError(f"the engine could not be written to {path}: {e.strerror or e}; what was there before is unchanged") from e
    _sync_directory(os.path.dirname(path))


def _write_all(handle: int, piece) -> None:
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[os.write(handle, rest[:1 << 26]):]


def _sync_directory(path: str) -> None:
    """Makes the renaming durable where the file system knows how."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:               # not every file system syncs directories; the file itself is on disk
        pass
    finally:
        os.close(handle)


def _pieces(engine: Engine) -> Iterator[Any]:
    check(engine)
    constants = memoryview(engine.constants)
    constants = constants.cast("B") if constants.nbytes else memoryview(b"")
    plan = _json({"buffers": [[b.kind, b.offset, b.size, *([b.values, b.dtype] if b.kind in ("sizes", "iota") else [])] for b in engine.buffers],
                  "steps": [_step_to_json(s) for s in engine.steps], "sizes": dict(engine.sizes)}, "plan")
    contents: dict[str, Any] = dict(zip(SECTIONS, (plan, bytes(engine.code), constants)))
    sections: dict[str, dict[str, Any]] = {}
    at = 0
    for name, data in contents.items():
        at = _up(at, ALIGN)
        if name == "constants":
            at = _up(at, PAGE)    # relative to the body, which itself starts on a page
        sections[name] = {"offset": at, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        at += len(data)
    header = _json({"name": engine.name, "inputs": [_port_to_json(p) for p in engine.inputs], "outputs": [_port_to_json(p) for p in engine.outputs],
                    "symbols": [[s.name, s.least, s.usual, s.most] for s in engine.symbols], "arena": engine.arena, "target": dict(engine.target),
                    "meta": dict(engine.meta), "sections": sections, "tables": _hash_of_tables(engine.buffers, constants)}, "meta")
    body = _up(PREAMBLE.size + len(header), PAGE)
    start = PREAMBLE.pack(MAGIC, VERSION, 0, len(header), body + at, bytes(32))[:32]
    yield start + hashlib.sha256(start + header).digest() + header + bytes(body - PREAMBLE.size - len(header))
    written = 0
    for name, data in contents.items():
        yield bytes(sections[name]["offset"] - written)
        yield data
        written = sections[name]["offset"] + len(data)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _json(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as e:
        raise EngineError(f"the engine's {what} cannot be written as JSON: {e}") from None


def _hash_of_tables(buffers: tuple[Buffer, ...], constants: memoryview) -> str:
    digest = hashlib.sha256()
    for b in buffers:
        if b.kind == "table":
            digest.update(constants[b.offset:b.offset + b.size])
    return digest.hexdigest()


def _port_to_json(p: Port) -> dict[str, Any]:
    return {"name": p.name, "dtype": p.dtype, "shape": p.shape, "dims": p.dims}


def _tensor_to_json(t: Tensor) -> list[Any]:
    return [t.slice.buffer, t.slice.offset, t.dtype, t.shape, t.strides]


def _step_to_json(s: Step) -> dict[str, Any]:
    common = {"name": s.name, "wave": s.wave, "info": dict(s.info)}
    if s.host:
        return {**common, "host": s.host, "inputs": [_tensor_to_json(t) for t in s.inputs], "outputs": [_tensor_to_json(t) for t in s.outputs]}
    return {**common, "symbol": s.symbol, "args": [[a.buffer, a.offset] for a in s.args], "dims": s.dims, "tiles": s.tiles, "grain": s.grain,
            "scratch": s.scratch}


# ---- reading ----

def read(source: str | os.PathLike[str] | bytes | bytearray | memoryview, verify: bool = False) -> Engine:
    """The engine in a file or in bytes. Constants are mapped, not read; `verify` reads and checks them, too.

    Raises EngineError for what is no engine, or is truncated, altered or of a newer version.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(memoryview(bytes(source)), "these bytes", verify)
    where = os.fspath(source)
    try:
        if not stat.S_ISREG(os.stat(where).st_mode):
            raise EngineError(f"{where} is not a file; an engine is one")
        with open(where, "rb") as f:
            data = _map(f)
    except OSError as e:
        raise EngineError(f"the engine {where} cannot be read: {e.strerror or e}") from None
    return _parse(data, where, verify)


def _map(f: BinaryIO) -> memoryview:
    size = os.fstat(f.fileno()).st_size
    return memoryview(mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def _parse(data: memoryview, where: str, verify: bool) -> Engine:
    again = "copy or build it again"
    if len(data) < 8 or data[:8] != MAGIC:
        raise EngineError(f"{where} is not a Pelton engine" + (" (ONNX models are made into one by `pelton build`)" if where.endswith(".onnx") else ""))
    if len(data) < PREAMBLE.size:
        raise EngineError(f"{where} is truncated: it has only {len(data)} bytes; {again}")
    _, version, zero, header_size, file_size, digest = PREAMBLE.unpack_from(data)
    if version > VERSION:
        raise EngineError(f"{where} is an engine of format version {version}, this Pelton reads version {VERSION}; install a newer Pelton "
                          "or build it again")
    if version < VERSION:
        raise EngineError(f"{where} is an engine of format version {version}, this Pelton reads version {VERSION}; build it again")
    if zero:
        raise EngineError(f"{where} is altered in its first bytes; {again}")
    if len(data) < file_size:
        raise EngineError(f"{where} is truncated: it should have {file_size} bytes and has {len(data)}; {again}")
    if len(data) > file_size:
        raise EngineError(f"{where} is altered: it should have {file_size} bytes and has {len(data)}; {again}")
    header = data[PREAMBLE.size:PREAMBLE.size + header_size]
    if len(header) < header_size or hashlib.sha256(bytes(data[:32]) + header).digest() != digest:
        raise EngineError(f"{where} is altered in its header; {again}")
    damaged = f"{where} is damaged: "
    h = _object(_load(header, damaged + "its header"), damaged + "its header")
    sections = _sections(h, data, _up(PREAMBLE.size + header_size, PAGE), damaged)
    for name in SECTIONS if verify else SECTIONS[:2]:
        if hashlib.sha256(sections[name]).hexdigest() != h["sections"][name].get("sha256"):
            raise EngineError(f"{where} is altered in its {name}; {again}")
    plan = _object(_load(sections["plan"], damaged + "its plan"), damaged + "its plan")
    try:
        engine = Engine(
            name=_text(h["name"]), inputs=tuple(map(_port, h["inputs"])), outputs=tuple(map(_port, h["outputs"])), arena=h["arena"],
            symbols=tuple(map(_symbol, h["symbols"])), sizes=_object(plan["sizes"], "its table of sizes"), buffers=tuple(map(_buffer, plan["buffers"])),
            steps=tuple(map(_step, plan["steps"])), constants=sections["constants"], code=bytes(sections["code"]),
            target=_object(h["target"], "its target"), meta=_object(h["meta"], "its meta"))
    except (KeyError, TypeError, ValueError, AttributeError, EngineError) as e:
        raise EngineError(f"{damaged}a part of its header or plan is missing or of another form ({type(e).__name__}: {e}); {again}") from None
    check(engine)
    if _hash_of_tables(engine.buffers, sections["constants"]) != h.get("tables"):
        raise EngineError(f"{where} is altered in the constants it uses for addressing; {again}")
    return engine


def _load(text: memoryview, what: str) -> Any:
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as e:
        raise EngineError(f"{what} is no JSON ({e})") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EngineError(f"{what} is no JSON object")
    return value


def _sections(header: Mapping[str, Any], data: memoryview, body: int, damaged: str) -> dict[str, memoryview]:
    found = {}
    for name in SECTIONS:
        entry = _object(_object(header.get("sections"), damaged + "its table of sections").get(name), damaged + f"the entry of its {name}")
        offset, size = entry.get("offset"), entry.get("size")
        if type(offset) is not int or type(size) is not int or offset < 0 or size < 0 or offset % ALIGN or body + offset + size > len(data):
            raise EngineError(f"{damaged}its {name} would be {size!r} bytes at {offset!r}, the file has {len(data)}")
        found[name] = data[body + offset:body + offset + size]
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.50}")
    return value


def _numbers(value: Any) -> tuple[Number, ...]:
    if not isinstance(value, list) or any(type(v) is not int and type(v) is not str for v in value):
        raise TypeError(f"expected whole numbers, got {value!r:.50}")
    return tuple(value)


def _symbol(s: list[Any]) -> Symbol:
    name, least, usual, most = s
    return Symbol(_text(name), least, usual, most)


def _buffer(b: list[Any]) -> Buffer:
    kind, offset, size, *made = b
    if not made:
        return Buffer(_text(kind), offset, size)
    values, dtype = made
    return Buffer(_text(kind), offset, size, _numbers(values), _text(dtype))


def _port(p: Mapping[str, Any]) -> Port:
    return Port(_text(p["name"]), _text(p["dtype"]), _numbers(p["shape"]), tuple(None if d is None else _text(d) for d in p["dims"]))


def _tensor(t: list[Any]) -> Tensor:
    buffer, offset, dtype, shape, strides = t
    return Tensor(Slice(buffer, offset), _text(dtype), _numbers(shape), _numbers(strides))


def _step(s: Mapping[str, Any]) -> Step:
    common = {"name": _text(s["name"]), "wave": s["wave"], "info": _object(s["info"], "the info of a step")}
    if "host" in s:
        return Step(symbol="", host=_text(s["host"]), tiles=0, inputs=tuple(map(_tensor, s["inputs"])), outputs=tuple(map(_tensor, s["outputs"])), **common)
    return Step(symbol=_text(s["symbol"]), args=tuple(Slice(b, o) for b, o in s["args"]), dims=_numbers(s["dims"]), tiles=s["tiles"], grain=s["grain"],
                scratch=s["scratch"], **common)
