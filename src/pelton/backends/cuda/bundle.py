"""The code of a CUDA engine: cubins by architecture and symbol, as bytes.

    bytes 0–7  magic      8–15  size of the table      16–47  SHA-256 of all that follows      48–…  the table, JSON

The images follow the table, each at a multiple of 64. Equal cubins give equal bytes, whatever their order.
Little-endian.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import astuple, fields
from typing import Any

from pelton.engine.cubin import Cubin, TensorMap
from pelton.errors import EngineError

MAGIC = b"\x93CUBINS\n"
PREAMBLE = struct.Struct("<8sQ32s")
ALIGN = 64
MOST_SHARED = 228 << 10  # bytes of shared memory of the largest multiprocessor so far
MOST_WARPS = 32  # of a block: 1,024 threads
MOST_CLUSTERS = 16
MOST_SCRATCH = 1 << 24  # bytes per program; descriptors need hundreds
_LIMITS = {
    "arch": (50, 999),
    "shared": (0, MOST_SHARED),
    "warps": (1, MOST_WARPS),
    "clusters": (1, MOST_CLUSTERS),
    "scratch": (0, MOST_SCRATCH),
    "align": (1, 4096),
    "phased": (0, 2),
}
_FIELDS = ("symbol", *_LIMITS)


def pack(cubins: Iterable[Cubin]) -> bytes:
    """Packs cubins into a bundle. Raises EngineError for two cubins of one name and architecture, and for impossible
    numbers."""
    ordered = sorted(cubins, key=lambda c: (c.arch, c.symbol))
    rows: list[list[Any]] = []
    images = bytearray()
    seen: dict[bytes, int] = {}  # image → its place; equal kernels of several names share one
    for cubin in ordered:
        if cubin.image not in seen:
            images += bytes(-len(images) % ALIGN)
            seen[cubin.image] = len(images)
            images += cubin.image
        rows.append(
            [
                *(getattr(cubin, name) for name in _FIELDS),
                [astuple(m) for m in cubin.maps],
                seen[cubin.image],
                len(cubin.image),
            ]
        )
    table = json.dumps(rows, separators=(",", ":")).encode()
    body = table + bytes(-(PREAMBLE.size + len(table)) % ALIGN) + images
    packed = PREAMBLE.pack(MAGIC, len(table), hashlib.sha256(body).digest()) + body
    unpack(packed)  # raises an error for invalid ones
    return packed


def unpack(code: bytes) -> dict[int, dict[str, Cubin]]:
    """Returns architecture → symbol → cubin. Raises EngineError for data that is no bundle, or an altered one."""
    if len(code) < PREAMBLE.size or code[: len(MAGIC)] != MAGIC:
        raise EngineError(
            f"the engine's code is no bundle of cubins: {len(code)} bytes that begin with {bytes(code[:8])!r}; build"
            " the engine again"
        )
    _, size, digest = PREAMBLE.unpack_from(code)
    if hashlib.sha256(memoryview(code)[PREAMBLE.size :]).digest() != digest or size > len(code) - PREAMBLE.size:
        raise EngineError("the engine's bundle of cubins is altered; copy or build the engine again")
    start = PREAMBLE.size + size
    start += -start % ALIGN
    try:
        rows = json.loads(code[PREAMBLE.size : PREAMBLE.size + size])
    except (ValueError, RecursionError) as e:
        raise EngineError(f"the table of the engine's cubins is no JSON ({e}); build the engine again") from None
    if not isinstance(rows, list):
        raise EngineError("the table of the engine's cubins is no list; build the engine again")
    cubins: dict[int, dict[str, Cubin]] = {}
    for row in rows:
        cubin = _cubin(row, code, start)
        of_arch = cubins.setdefault(cubin.arch, {})
        if cubin.symbol in of_arch:
            raise EngineError(
                f"there are two cubins {cubin.symbol!r} for sm_{cubin.arch}; names are unique in an architecture"
            )
        of_arch[cubin.symbol] = cubin
    return cubins


def _cubin(row: Any, code: bytes, start: int) -> Cubin:
    if not isinstance(row, list) or len(row) != len(_FIELDS) + 3:
        raise EngineError(
            f"a row of the table of cubins has {len(_FIELDS) + 3} entries, got {row!r:.80}; build the engine again"
        )
    symbol, *numbers, maps, at, size = row
    if not isinstance(symbol, str) or not symbol.isascii() or not symbol.isprintable() or not symbol:
        raise EngineError(f"the symbol of a cubin is a name in ASCII, got {symbol!r:.80}")
    for (name, (least, most)), number in zip(_LIMITS.items(), numbers):
        if type(number) is not int or not least <= number <= most:
            raise EngineError(f"{name} of cubin {symbol!r} is an integer from {least} to {most}, got {number!r:.80}")
    arch, shared, warps, clusters, scratch, align, phased = numbers
    if align & align - 1:
        raise EngineError(f"align of cubin {symbol!r} is a power of 2, got {align}")
    if (
        type(at) is not int
        or type(size) is not int
        or at < 0
        or at % ALIGN
        or size < 1
        or start + at + size > len(code)
    ):
        raise EngineError(
            f"the image of cubin {symbol!r} would be {size!r:.40} bytes at {at!r:.40}, there are {len(code) - start}"
        )
    tensormaps = tuple(_map(symbol, m) for m in maps) if isinstance(maps, list) else ()
    if not isinstance(maps, list) or len({m.operand for m in tensormaps}) != len(tensormaps) or tensormaps and phased:
        raise EngineError(
            f"maps of cubin {symbol!r} are a list, one for an operand, and none where there are phases, got"
            f" {maps!r:.80}; build the engine again"
        )
    return Cubin(
        symbol,
        arch,
        bytes(code[start + at : start + at + size]),
        shared,
        warps,
        clusters,
        scratch,
        align,
        phased,
        tensormaps,
    )


def _map(symbol: str, row: Any) -> TensorMap:
    numbers = len([f for f in fields(TensorMap) if f.type == "int"])
    if (
        not isinstance(row, list)
        or len(row) != len(fields(TensorMap))
        or not all(type(n) is int for n in row[:numbers])
        or not all(isinstance(part, list) and all(type(n) is int for n in part) for part in row[numbers:])
    ):
        raise EngineError(
            f"a map of cubin {symbol!r} is {numbers} integers and {len(fields(TensorMap)) - numbers} lists of integers,"
            f" got {row!r:.80}; build the engine again"
        )
    tensormap = TensorMap.of(row)
    if (why := tensormap.rejection()) is not None:
        raise EngineError(f"a map of cubin {symbol!r} has {why}, which no GPU supports; build the engine again")
    return tensormap
