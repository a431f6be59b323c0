"""The machine code of an engine as linkable bytes: the loaded image of its shared object."""

from __future__ import annotations

import struct

from pelton.errors import EngineError
from pelton.record import record

LOAD, DYNAMIC, WRITABLE = 1, 2, 2  # types and a flag of program headers (System V ABI, chapter 5)
SYMTAB, STRTAB, HASH = 6, 5, 4  # tags of the dynamic section
RELOCATIONS = {7: "RELA", 17: "REL", 23: "JMPREL", 36: "RELR"}
SYMBOL = struct.Struct("<IBBHQQ")


@record(frozen=True)
class Image:
    """The bytes from address 0 on, which run from any page boundary, and the offset of each kernel."""

    code: bytes
    symbols: dict[str, int]


def image(code: bytes) -> Image:
    """Returns the image of the code of an engine for CPUs. Raises EngineError if it needs a loader."""
    if len(code) < 64 or code[:7] != b"\x7fELF\x02\x01\x01":
        raise EngineError("the engine's machine code is no 64-bit ELF object; the engine is damaged, build it again")
    (table,) = struct.unpack_from("<Q", code, 32)
    entry, count = struct.unpack_from("<HH", code, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", code, table + i * entry) for i in range(count)]
    loaded = [h for h in headers if h[0] == LOAD]
    end = max((at + size for _, flags, _, at, _, size, _, _ in loaded if not flags & WRITABLE), default=0)
    room = bytearray(max((at + size for _, _, _, at, _, size, _, _ in loaded), default=0))
    for _, _, offset, at, _, size, _, _ in loaded:
        room[at : at + size] = code[offset : offset + size]
    tags = {}
    for _, _, _, at, _, size, _, _ in (h for h in headers if h[0] == DYNAMIC):
        tags = dict(struct.unpack_from("<QQ", room, at + 16 * i) for i in range(size // 16))
    if named := [name for tag, name in RELOCATIONS.items() if tag in tags]:
        raise EngineError(f"the engine's machine code needs a loader ({', '.join(named)}), so it cannot be linked")
    (chains,) = struct.unpack_from("<I", room, tags[HASH] + 4)
    symbols = {}
    for i in range(1, chains):
        name, _, _, _, value, _ = SYMBOL.unpack_from(room, tags[SYMTAB] + i * SYMBOL.size)
        start = tags[STRTAB] + name
        symbols[room[start : room.index(0, start)].decode()] = value
    return Image(bytes(room[:end]), symbols)
