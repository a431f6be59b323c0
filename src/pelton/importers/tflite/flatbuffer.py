"""Tables of a FlatBuffers file, read on demand, with every offset and length checked against the file.

The format: https://flatbuffers.dev/internals/. A table begins with the distance back to its vtable. The vtable holds
its own size, the table's, and the place of each field in the table, 0 for missing ones. Strings, vectors and tables are
fields that hold the distance forward to them; vectors begin with their number of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.errors import FormatError

Fields = Mapping[str, tuple[int, str, Any]]  # name → the number of the field, its type, its default
SCALARS = {
    "bool": "?",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "f32": "f",
}


class Damaged(FormatError):
    """The file is no FlatBuffers file of this schema."""


class File:
    """The bytes of a file and a bound on its tables: damaged offsets may lead to the same ones repeatedly."""

    def __init__(self, data: memoryview, schema: Mapping[str, Fields]):
        self.data, self.schema = data, schema
        self.tables = len(data) // 4

    def read(self, code: str, at: int, kind: str) -> Any:
        """Returns the number of this struct code at a byte."""
        if at < 0 or at + struct.calcsize("<" + code) > len(self.data):
            raise Damaged(f"a {kind} points to byte {at} of a file of {len(self.data)} bytes")
        return struct.unpack_from("<" + code, self.data, at)[0]


class Table:
    """A table of a file: `table.get("name")` reads a field by its schema.

    Types of fields: scalars of SCALARS, "string" (str), "[scalar]" (an array), the name of a table (Table or None),
    "[Table]" (a list), and "union" (a table whose schema another field names: `union`).
    """

    __slots__ = ("file", "at", "kind", "_vtable", "_size")

    def __init__(self, file: File, at: int, kind: str):
        self.file, self.at, self.kind = file, at, kind
        file.tables -= 1
        if file.tables < 0:
            raise Damaged("the file has more tables than its bytes can hold")
        self._vtable = at - file.read("i", at, kind)
        self._size = file.read("H", self._vtable, kind)
        if self._size < 4 or self._size % 2 or self._vtable + self._size > len(file.data):
            raise Damaged(f"the vtable of a {kind} at byte {at} is damaged")

    def _place(self, number: int) -> int:
        """Returns the place of a field; 0 if it is missing."""
        entry = 4 + 2 * number
        offset = self.file.read("H", self._vtable + entry, self.kind) if entry + 2 <= self._size else 0
        return self.at + offset if offset else 0

    def _target(self, at: int) -> int:
        return at + int(self.file.read("I", at, self.kind))

    def get(self, name: str) -> Any:
        """Returns the value of a field, or its default if missing."""
        number, kind, default = self.file.schema[self.kind][name]
        at = self._place(number)
        if not at:
            return default
        if kind in SCALARS:
            return self.file.read(SCALARS[kind], at, self.kind)
        target = self._target(at)
        if kind == "string":
            return bytes(self._vector(target, 1)).decode("utf-8", "replace")
        if not kind.startswith("["):
            return Table(self.file, target, kind)
        element = kind[1:-1]
        if element in SCALARS:
            size = struct.calcsize("<" + SCALARS[element])
            return np.frombuffer(self._vector(target, size), np.dtype("<" + SCALARS[element]))
        places = np.frombuffer(self._vector(target, 4), np.dtype("<u4"))
        return [Table(self.file, target + 4 + 4 * i + int(offset), element) for i, offset in enumerate(places)]

    def union(self, name: str, kind: str) -> Table | None:
        """Returns a table field whose kind another field names."""
        at = self._place(self.file.schema[self.kind][name][0])
        return Table(self.file, self._target(at), kind) if at else None

    def _vector(self, at: int, size: int) -> memoryview:
        count, length = self.file.read("I", at, self.kind), len(self.file.data)
        begin, end = at + 4, at + 4 + count * size
        if end > length:
            raise Damaged(f"a vector of a {self.kind} has {count} elements, more than the file of {length} bytes")
        return self.file.data[begin:end]


def root(data: memoryview, identifier: bytes, kind: str, schema: Mapping[str, Fields]) -> Table:
    """Returns the first table of a file with this identifier; raises Damaged if there is none."""
    if len(data) < 8 or bytes(data[4:8]) != identifier:
        raise Damaged(f"the file does not begin as one of {identifier.decode()} does")
    return Table(File(data, schema), struct.unpack_from("<I", data)[0], kind)


def parsed(text: str) -> dict[str, Fields]:
    """Parses a schema of lines `Table: field type, field type = default, …`, with fields in numerical order; `-` marks
    an unread one. Lines that begin with a space continue the one before."""
    tables: dict[str, Fields] = {}
    for line in filter(None, text.replace("\n ", " ").splitlines()):
        kind, _, rest = line.partition(":")
        fields = {}
        for number, field in enumerate(filter(None, map(str.strip, rest.split(",")))):
            if field != "-":
                what, _, default = map(str.strip, field.partition("="))
                name, of = what.split()
                fields[name] = (number, of, _default(of, default))
        tables[kind] = fields
    return tables


def _default(kind: str, text: str) -> Any:
    if kind in SCALARS:
        return float(text or 0) if kind == "f32" else int(text or 0)
    if kind.startswith("["):
        return np.zeros(0, np.dtype("<" + SCALARS[kind[1:-1]])) if kind[1:-1] in SCALARS else []
    return "" if kind == "string" else None
