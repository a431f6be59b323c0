"""Engine files: the sections of an engine in a container (see `container`).

Equal engines give equal bytes. Reading a file verifies all sections but the constants, and the constants used for
addressing; all constants on request.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import EngineError
from pelton.system import files
from pelton.system.memory import allocate

from .constants import ALIGN, DeferredConstants, bytes_of, length
from .container import (
    AGAIN,
    MAPPED,
    Container,
    as_object,
    build_front,
    frame,
    map_file,
    open_container,
    parse_json,
    path_of,
    place_sections,
    report_write_errors,
    round_up,
    to_json,
    write_file,
)
from .plan import Buffer, EnginePlan
from .plan_rows import PlanRows
from .plan_tables import HASH, NAMED, with_hash
from .stored import plan_rows, stored_plan
from .validate import validate

if TYPE_CHECKING:
    from .script import Script

SECTIONS = ("plan", "code", "meta", "constants")
PRESENT = "present"  # in place of the constants: those present in a stripped engine
REFIT = "refit"  # the section of engines that can be refitted, see `refit_record`
STORED = ("constant", "table", "text")  # kinds of buffers whose bytes are among the constants
LARGEST = 1 << 44  # bytes of constants
# other contents of a file than an engine: section → the module that reads it
FORMATS = {"script": ".script_file"}
NOTHING: Mapping[str, bytes] = {}
UNKNOWN = bytes(HASH)  # placeholder for a hash not yet known


# ---- writing ----


def to_bytes(engine: EnginePlan, lent: bool = False) -> bytes:
    """Returns the file as bytes; `lent`: without its constants, which are stored elsewhere. Raises EngineError for an
    engine that is inconsistent or cannot be written as JSON."""
    return b"".join(_pieces(engine, lent))


def write(engine: EnginePlan, path: str | os.PathLike[str], sign: Any = None) -> None:
    """Writes the file atomically: the old file stays until the new one is on disk. Missing constants are computed in
    the file, to avoid a second copy in memory. sign: a private key, as in `signature`."""
    constants = engine.constants
    if sign is not None:
        from . import signature  # imported only for signed engines

        key = signature.private_key(sign)
        write_file(signature.signed(_pieces(engine, more=signature.EMPTY), [key]), path)
        return
    if not isinstance(constants, DeferredConstants) or engine.absent or not files.replaces(path):
        write_file(_pieces(engine), path)
        return
    with constants.lock:
        if constants.is_filled:
            write_file(_pieces(engine), path)
            return
        validate(engine)
        contents = _sections(engine, plan_rows(engine).bytes, constants)
        with report_write_errors(path):
            files.make(path, lambda handle: _make(handle, engine, contents, constants), durable=True)


def _make(handle: int, engine: EnginePlan, contents: dict[str, Any], constants: DeferredConstants) -> None:
    """Fills the file of an engine, computing its constants in place: the front, with their hashes, comes last."""
    places = place_sections(contents)
    start = places["constants"][0]
    stored, digest = compute_in_file(handle, start, constants)
    contents["plan"] = with_hash(contents["plan"], _hash_of_tables(plan_rows(engine), stored.data))
    digests = {
        name: digest if name == "constants" else hashlib.sha256(data).digest() for name, data in contents.items()
    }
    for at, data in (
        (0, build_front(places, digests)),
        *((places[name][0], contents[name]) for name in contents if name != "constants"),
    ):
        os.pwrite(handle, data, at)
    constants.replace_bytes(stored)


def compute_in_file(handle: int, start: int, constants: DeferredConstants) -> tuple[np.ndarray, bytes]:
    """Computes constants at this offset of a file; returns them, read-only memory of the file, and their SHA-256."""
    # reserves disk space for the mapped memory
    os.posix_fallocate(handle, 0, start + constants.size)
    room, digest = np.frombuffer(mmap.mmap(handle, start + constants.size), np.uint8)[start:], hashlib.sha256()
    for part in constants.parts(room):
        digest.update(part.data)
    stored = np.frombuffer(mmap.mmap(handle, start + constants.size, access=mmap.ACCESS_READ), np.uint8)[start:]
    return stored, digest.digest()


def _pieces(engine: EnginePlan, lent: bool = False, more: Mapping[str, bytes] = NOTHING) -> Iterator[Any]:
    """Yields the bytes of an engine's file, one after another. more: sections after its own."""
    validate(engine)
    rows, constants = plan_rows(engine), bytes_of(engine.constants)
    tables = with_hash(rows.bytes, _hash_of_tables(rows, constants))
    stored: Any = _present(engine, constants) if engine.absent else constants
    yield from frame({**_sections(engine, tables, b"" if lent else stored), **more})


def _sections(engine: EnginePlan, tables: bytes, constants: Any) -> dict[str, Any]:
    name = PRESENT if engine.absent else "constants"
    own = {"plan": tables, "code": bytes(engine.code), "meta": _meta(engine), name: constants}
    return {**own, REFIT: memoryview(engine.refit).cast("B")} if len(engine.refit) else own


def _present(engine: EnginePlan, constants: memoryview) -> bytes:
    """Returns the constants present in a stripped engine, each at 64 bytes."""
    return b"".join(
        bytes(constants[b.offset : b.offset + b.size]) + bytes(-b.size % ALIGN)
        for b in _stored(engine.buffers, engine.absent)
    )


def _stored(buffers: Sequence[Buffer], absent: Collection[int]) -> list[Buffer]:
    """Returns the buffers whose bytes are in a stripped engine's file."""
    return [b for i, b in enumerate(buffers) if b.kind in STORED and i not in absent]


def _meta(engine: EnginePlan) -> bytes:
    """Encodes the data that no run needs."""
    return to_json(
        {
            "dims": [p.dims for p in (*engine.inputs, *engine.outputs)],
            "info": [dict(s.info) for s in (*engine.steps, *(k for s in engine.steps for k in s.alternatives))],
            "target": {key: value for key, value in engine.target.items() if key not in (*NAMED, "features")},
            "meta": dict(engine.meta),
            **({"absent": engine.absent, "constants": length(engine.constants)} if engine.absent else {}),
        },
        "meta",
    )


def _hash_of_tables(rows: PlanRows, constants: memoryview) -> bytes:
    """Returns the SHA-256 of the constants that kernels use for addressing."""
    digest = hashlib.sha256()
    for offset, size in rows.places("table").values():
        digest.update(constants[offset : offset + size])
    return digest.digest()


# ---- reading ----


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, verify: bool = False, trust: Any = None
) -> EnginePlan | Script:
    """Reads the engine or script in a file or in bytes. Constants are mapped, not read; `verify` reads and checks them,
    too. trust: public keys, as in `pelton.load`; the whole file is then read into private memory and checked.

    Raises EngineError for data that is no engine, or is truncated, altered, of a newer version, or not signed by
    `trust`.
    """
    container, where = open_engine(source, trust)
    return read_in(container, where, verify)


def open_engine(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, trust: Any = None
) -> tuple[Container, str]:
    """Opens a file or bytes, and checks its signatures if asked to; returns it and its name in messages. Parameters
    and errors as for `read`."""
    data, where = map_file(source)
    if trust is None:
        return open_container(data, where), where
    from . import signature  # imported only to check signatures

    data = signature.private_copy(data)  # the checked bytes are those that run
    container = open_container(data, where)
    signature.check(data, container, trust, where)
    return container, where


def read_in(container: Container, where: str, verify: bool = False) -> EnginePlan | Script:
    """Returns the engine or script in an opened file; parameters and errors as for `read`."""
    for key, reader in FORMATS.items():
        if key in container.rows:
            return import_module(reader, __package__).read_in(container, where, verify)
    return engine_in(container, where, verify)


def engine_in(found: Container, where: str, verify: bool, lent: memoryview | None = None) -> EnginePlan:
    """Returns the engine in an opened file, with the given constants if it was written without them."""
    damaged = found.damaged
    names = [PRESENT if name == "constants" and PRESENT in found.rows else name for name in SECTIONS]
    sections = found.sections([*names, *([REFIT] if REFIT in found.rows else [])])
    found.verify({name: data for name, data in sections.items() if verify or name not in MAPPED}, where)
    meta = as_object(parse_json(sections["meta"], damaged + "its meta"), damaged + "its meta")
    try:
        constants = lent if lent is not None else sections[names[-1]]
        absent, size = (tuple(meta["absent"]), meta["constants"]) if PRESENT in sections else ((), len(constants))
        if not all(type(n) is int and 0 <= n <= LARGEST for n in (*absent, size)):
            raise ValueError(f"it lacks the constants {absent!r:.50} of {size!r:.50} bytes")
        rows = PlanRows(bytes(sections["plan"]), size)
        if absent:
            constants = _with_gaps(constants, rows.buffers(), absent, size)
        engine = stored_plan(
            rows,
            meta["dims"],
            meta["info"],
            as_object(meta["target"], damaged + "its target"),
            constants=constants,
            code=bytes(sections["code"]),
            meta=as_object(meta["meta"], damaged + "its record of the build"),
            file=path_of(where),
            refit=sections.get(REFIT, b""),
            absent=absent,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise EngineError(f"{damaged}{e}; {AGAIN}") from None
    if rows.hash_of_tables != _hash_of_tables(rows, constants):
        raise EngineError(f"{where} is altered in the constants it uses for addressing; {AGAIN}")
    return engine


def _with_gaps(present: memoryview, buffers: Sequence[Buffer], absent: Collection[int], size: int) -> memoryview:
    """Returns the constants of a stripped engine, with zeros where absent. Raises ValueError if they do not fit."""
    kept = _stored(buffers, absent)
    if not all(i < len(buffers) and buffers[i].kind == "constant" for i in absent):
        raise ValueError("buffers that are absent are no weights")
    if len(present) != sum(round_up(b.size, ALIGN) for b in kept):
        raise ValueError(f"{len(present)} bytes of constants do not match their hash")
    whole, at = allocate(size).data, 0  # occupies memory only where it is written
    for b in kept:
        whole[b.offset : b.offset + b.size] = present[at : at + b.size]
        at += round_up(b.size, ALIGN)
    return whole
