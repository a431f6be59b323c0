"""Engine files: an engine's header, plan, machine code and constants in a container (see `container`).

Equal engines give equal bytes. Header, plan, code and the constants used for addressing are verified whenever a file is
read; all constants on request.
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
from .model import Buffer, DynamicDimension, EnginePlan, IndexRange, Number, Port, Slice, Step, Tensor
from .validate import validate

if TYPE_CHECKING:
    from .program import Script

SECTIONS = ("plan", "code", "constants")
REFIT = "refit"  # the section of engines that can be refitted, see `refit_record`
STORED = ("constant", "table", "text")  # kinds of buffers whose bytes are among the constants
LARGEST = 1 << 44  # bytes of constants
# what else a file may hold than an engine: a key of its header → what reads it
FORMATS = {"engines": ".program_file"}
NOTHING: Mapping[str, bytes] = {}
UNKNOWN = "0" * 64  # a hash of what is not there yet


# ---- writing ----


def to_bytes(engine: EnginePlan, lent: bool = False) -> bytes:
    """The file as bytes; `lent`: without its constants, which are kept elsewhere. EngineError for an engine that does
    not hang together or cannot be written as JSON."""
    return b"".join(_pieces(engine, lent))


def write(engine: EnginePlan, path: str | os.PathLike[str], sign: Any = None) -> None:
    """Writes the file whole or not at all: what was at `path` stays until the new file is on disk. Constants that are
    not there yet are made in the file, so that nothing is in memory twice. sign: a private key, as `signature` has
    it."""
    constants = engine.constants
    if sign is not None:
        from . import signature  # only signed engines need it

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
        header, contents = _header(engine), _sections(engine, constants)
        with report_write_errors(path):
            files.make(path, lambda handle: _make(handle, engine, header, contents, constants), durable=True)


def _make(
    handle: int,
    engine: EnginePlan,
    header: Mapping[str, Any],
    contents: Mapping[str, Any],
    constants: DeferredConstants,
) -> None:
    """Fills the file of an engine, making its constants in place: the front, which has their hashes, comes last."""
    places = place_sections(contents)
    front = build_front({**header, "tables": UNKNOWN}, places, dict.fromkeys(contents, UNKNOWN))
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
    front = build_front({**header, "tables": _hash_of_tables(engine.buffers, room.data)}, places, digests)
    for at, data in (
        (0, front),
        *((len(front) + places[name][0], contents[name]) for name in contents if name != "constants"),
    ):
        os.pwrite(handle, data, at)
    whole = np.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_READ), np.uint8)
    constants.replace_bytes(whole[start : start + constants.size])


def _pieces(engine: EnginePlan, lent: bool = False, more: Mapping[str, bytes] = NOTHING) -> Iterator[Any]:
    """The bytes of an engine's file, one after another. more: sections behind its own."""
    validate(engine)
    constants = bytes_of(engine.constants)
    header = {**_header(engine), "tables": _hash_of_tables(engine.buffers, constants)}
    stored: Any = _present(engine, constants) if engine.absent else constants
    if lent:
        stored = b""
    yield from frame(header, {**_sections(engine, stored), **more})


def _sections(engine: EnginePlan, constants: Any) -> dict[str, Any]:
    own = {"plan": _plan(engine), "code": bytes(engine.code), "constants": constants}
    return {**own, REFIT: memoryview(engine.refit).cast("B")} if len(engine.refit) else own


def _present(engine: EnginePlan, constants: memoryview) -> bytes:
    """The constants of a stripped engine without those that are absent, each at 64 bytes."""
    return b"".join(
        bytes(constants[b.offset : b.offset + b.size]) + bytes(-b.size % ALIGN)
        for b in _stored(engine.buffers, engine.absent)
    )


def _stored(buffers: Sequence[Buffer], absent: Collection[int]) -> list[Buffer]:
    """The buffers whose bytes are in a stripped engine's file."""
    return [b for i, b in enumerate(buffers) if b.kind in STORED and i not in absent]


def _plan(engine: EnginePlan) -> bytes:
    return to_json(
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
        **({"absent": engine.absent, "constants": length(engine.constants)} if engine.absent else {}),
    }


def _hash_of_tables(buffers: tuple[Buffer, ...], constants: memoryview) -> str:
    digest = hashlib.sha256()
    for b in buffers:
        if b.kind == "table":
            digest.update(constants[b.offset : b.offset + b.size])
    return digest.hexdigest()


def port_to_json(p: Port) -> dict[str, Any]:
    indices = {"indices": [p.indices.low, p.indices.high, p.indices.layer]} if p.indices is not None else {}
    return {"name": p.name, "dtype": p.dtype, "shape": p.shape, "dims": p.dims, **indices}


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


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, verify: bool = False, trust: Any = None
) -> EnginePlan | Script:
    """The engine or script in a file or in bytes. Constants are mapped, not read; `verify` reads and checks them, too.
    trust: public keys, as `pelton.load` takes them; the whole file is then read into memory of its own, and checked.

    Raises EngineError for what is no engine, or is truncated, altered, of a newer version, or not signed by `trust`.
    """
    data, where = map_file(source)
    if trust is None:
        found = open_container(data, where)
    else:
        from . import signature  # only engines that have to be signed need it

        data = signature.private_copy(data)  # what was checked is what runs
        found = open_container(data, where)
        signature.check(data, found, trust, where)
    for key, reader in FORMATS.items():
        if key in found.header:
            return import_module(reader, __package__).read_in(found, where, verify)
    return engine_in(found, where, verify)


def engine_in(found: Container, where: str, verify: bool, lent: memoryview | None = None) -> EnginePlan:
    """The engine in a file that was opened, with constants that it was written without, if these are given."""
    h, damaged = found.header, found.damaged
    sections = found.sections(SECTIONS)
    found.verify({name: sections[name] for name in (SECTIONS if verify else SECTIONS[:2])}, where)
    refit = found.sections([REFIT]) if REFIT in found.header["sections"] else {}
    if verify:
        found.verify(refit, where)
    constants = sections["constants"] if lent is None else lent
    plan = as_object(parse_json(sections["plan"], damaged + "its plan"), damaged + "its plan")
    try:
        buffers = tuple(map(_buffer, plan["buffers"]))
        absent = as_numbers(h["absent"]) if "absent" in h else ()
        if absent:
            constants = _with_gaps(constants, buffers, absent, h["constants"])
        engine = EnginePlan(
            name=as_text(h["name"]),
            inputs=tuple(map(as_port, h["inputs"])),
            outputs=tuple(map(as_port, h["outputs"])),
            arena=h["arena"],
            symbols=tuple(map(as_symbol, h["symbols"])),
            sizes=as_object(plan["sizes"], "its table of sizes"),
            buffers=buffers,
            steps=tuple(map(_step, plan["steps"])),
            constants=constants,
            code=bytes(sections["code"]),
            target=as_object(h["target"], "its target"),
            meta=as_object(h["meta"], "its meta"),
            file=path_of(where),
            refit=refit.get(REFIT, b""),
            absent=absent,
        )
    except (KeyError, TypeError, ValueError, AttributeError, EngineError) as e:
        raise EngineError(
            f"{damaged}a part of its header or plan is missing or of another form ({type(e).__name__}: {e}); {AGAIN}"
        ) from None
    validate(engine)
    if _hash_of_tables(engine.buffers, constants) != h.get("tables"):
        raise EngineError(f"{where} is altered in the constants it uses for addressing; {AGAIN}")
    return engine


def _with_gaps(present: memoryview, buffers: Sequence[Buffer], absent: Collection[int], size: Any) -> memoryview:
    """The constants of a stripped engine, with zeros where they are absent. ValueError where they do not fit."""
    kept = _stored(buffers, absent)
    numbers = [size, *(n for b in buffers if b.kind in STORED for n in (b.offset, b.size))]
    if any(type(n) is not int or not 0 <= n <= LARGEST for n in numbers) or not all(
        0 <= i < len(buffers) and buffers[i].kind == "constant" for i in absent
    ):
        raise ValueError("buffers that are absent are no weights")
    if size < max(b.offset + b.size for b in buffers if b.kind in STORED) or len(present) != sum(
        round_up(b.size, ALIGN) for b in kept
    ):
        raise ValueError(f"{len(present)} bytes of constants are not those that it should have")
    whole, at = allocate(size).data, 0  # which takes memory only where it is written
    for b in kept:
        whole[b.offset : b.offset + b.size] = present[at : at + b.size]
        at += round_up(b.size, ALIGN)
    return whole


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
        _indices(*p["indices"]) if "indices" in p else None,
    )


def _indices(low: Any, high: Any, layer: Any) -> IndexRange:
    return IndexRange(low, high, as_text(layer))


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
