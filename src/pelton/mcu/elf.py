"""Objects of 32-bit Arm cores: their sections and undefined symbols (ELF for the Arm Architecture, IHI 0044)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pelton.errors import BuildError
from pelton.record import record

NOBITS, SYMTAB = 8, 2  # types of sections
WRITE, ALLOC, EXECUTE = 1, 2, 4  # flags of sections
SECTION, SYMBOL = struct.Struct("<10I"), struct.Struct("<IIIBBH")
INFO = 12  # offset in a symbol of its binding and type
ATTRIBUTES = ".ARM.attributes"
# Addenda to the ABI for the Arm Architecture, 3.3.5.2: no enums (Tag_ABI_enum_size) and no floats (Tag_ABI_VFP_args)
# pass between functions, so any choice of the program's fits
NEUTRAL = {26: 0, 28: 3}
RAW_NAME, NAME, COMPATIBILITY = 4, 5, 32  # tags with strings; above 32, all odd ones have them
GLOBAL, WEAK, FUNCTION = 1, 2, 2  # bindings of symbols, and a type
Sections = list[tuple[str, int, int, int, int, int]]  # (name, type, flags, offset, size, link)


@record(frozen=True)
class ObjectSizes:
    """Bytes of an object's sections: code (and constants in it), constants, initialized and zeroed variables."""

    text: int
    constants: int
    data: int
    zeroed: int
    undefined: tuple[str, ...]


def sizes(code: bytes) -> ObjectSizes:
    """Measures an object. Raises BuildError if it is none of a 32-bit Arm core."""
    sections = _sections(code)
    held = dict.fromkeys(("text", "constants", "data", "zeroed"), 0)
    for _, kind, flags, _, size, _ in sections:
        if flags & ALLOC:
            held[_content(kind, flags)] += size
    undefined = sorted({name for name, _, _, section in _symbols(code, sections) if name and section == 0})
    return ObjectSizes(**held, undefined=tuple(undefined))


def _content(kind: int, flags: int) -> str:
    if kind == NOBITS:
        return "zeroed"
    if flags & WRITE:
        return "data"
    return "text" if flags & EXECUTE else "constants"


def functions(code: bytes) -> dict[str, int]:
    """Returns the bytes of each function in an object."""
    return {
        name: size for name, size, info, section in _symbols(code, _sections(code)) if section and info & 15 == FUNCTION
    }


def for_programs(code: bytes) -> bytes:
    """Returns an object of kernels that any program can be linked with.

    Kernels take neither floats nor enums, so it is marked for programs of any convention for these. Their names are
    hashes of their code, and several engines may define the same ones, so all symbols become weak.
    """
    out, sections = bytearray(code), _sections(code)
    for name, kind, _, at, size, _ in sections:
        for place, tag in _attributes(code, at, at + size) if name == ATTRIBUTES else ():
            out[place] = NEUTRAL.get(tag, code[place])
        for i in range(size // SYMBOL.size if kind == SYMTAB else 0):
            info, _, section = SYMBOL.unpack_from(code, at + i * SYMBOL.size)[3:]
            if info >> 4 == GLOBAL and section:
                out[at + i * SYMBOL.size + INFO] = WEAK << 4 | info & 15
    return bytes(out)


def _sections(code: bytes) -> Sections:
    """Returns (name, type, flags, offset, size, link) of each section."""
    if code[:7] != b"\x7fELF\x01\x01\x01" or struct.unpack_from("<H", code, 18)[0] != 40:
        raise BuildError("the engine's machine code is no object of a 32-bit Arm core; build it again")
    (table,) = struct.unpack_from("<I", code, 32)
    entry, count, names = struct.unpack_from("<HHH", code, 46)
    rows = [SECTION.unpack_from(code, table + i * entry) for i in range(count)]
    start = rows[names][4]

    def text(at: int) -> str:
        return code[start + at : code.index(0, start + at)].decode()

    return [(text(r[0]), r[1], r[2], r[4], r[5], r[6]) for r in rows]


def _symbols(code: bytes, sections: Sections) -> Iterator[tuple[str, int, int, int]]:
    """Yields (name, size, information, section) of each symbol."""
    for _, kind, _, at, size, link in sections:
        if kind != SYMTAB:
            continue
        strings = sections[link][3]
        for i in range(1, size // SYMBOL.size):
            name, _, length, info, _, section = SYMBOL.unpack_from(code, at + i * SYMBOL.size)
            yield code[strings + name : code.index(0, strings + name)].decode(), length, info, section


def _attributes(code: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the place and the tag of each attribute that is a number, in a section of attributes."""
    at += 5  # the version, the length of the vendor's part
    at = code.index(0, at) + 1 + 5  # the vendor's name, the tag of the file's attributes and their length

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = code[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < end:
        tag, place = number(), at
        if tag == COMPATIBILITY:
            number()
        if tag in (RAW_NAME, NAME, COMPATIBILITY) or (tag > COMPATIBILITY and tag % 2):
            at = code.index(0, at) + 1
        else:
            number()
            yield place, tag
