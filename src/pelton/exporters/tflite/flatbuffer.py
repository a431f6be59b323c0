"""Writes tables of a FlatBuffers file by the schema of its reader (`importers/tflite/flatbuffer.py`)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.errors import InputError
from pelton.importers.tflite.flatbuffer import SCALARS, Fields

LARGEST = (1 << 31) - (1 << 16)  # bytes: offsets are signed in some readers
ALIGNED = 16  # bytes: the start of vectors, so that weights can be mapped

Row = Mapping[str, Any]  # a table: field → number, text, array, Row, list of Rows, or (kind, Row) of a union


class TableWriter:
    """Builds a file. Offsets point forward, so a table is in front of what it refers to."""

    def __init__(self, schema: Mapping[str, Fields], identifier: bytes):
        self.schema = schema
        self.data = bytearray(4) + identifier

    def finished(self, kind: str, root: Row) -> bytearray:
        """Returns the file with this root table; raises InputError above 2 GB."""
        struct.pack_into("<I", self.data, 0, self._table(kind, root))
        return self.data

    def _align(self, size: int, before: int = 0) -> int:
        """Appends zeros until `before` bytes further on is a multiple of `size`; returns the place."""
        self.data += bytes(-(len(self.data) + before) % size)
        return len(self.data)

    def _table(self, kind: str, row: Row) -> int:
        fields = self.schema[kind]
        kept = {name: value for name, value in row.items() if not _is_default(value, fields[name][2])}
        sizes = {name: struct.calcsize("<" + SCALARS.get(fields[name][1], "I")) for name in kept}
        places, end = dict[str, int](), 4
        for name in sorted(kept, key=lambda name: -sizes[name]):
            end += -end % sizes[name]
            places[name] = end
            end += sizes[name]
        slots = [0] * (1 + max((fields[name][0] for name in kept), default=-1))
        for name, place in places.items():
            slots[fields[name][0]] = place
        vtable = self._align(2)
        self.data += struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), end, *slots)
        at = self._align(max([4, *sizes.values()]))
        self.data += struct.pack("<i", at - vtable) + bytes(end - 4)
        for name, value in kept.items():
            of, place = fields[name][1], at + places[name]
            if of in SCALARS:
                struct.pack_into("<" + SCALARS[of], self.data, place, value)
            else:
                target = self._table(*value) if of == "union" else self._target(of, value)
                struct.pack_into("<I", self.data, place, target - place)
        return at

    def _target(self, of: str, value: Any) -> int:
        """Appends a text, a vector or a table; returns its place."""
        if of == "string":
            text = value.encode()
            at = self._align(4)
            self.data += struct.pack("<I", len(text)) + text + b"\0"
            return at
        if not of.startswith("["):
            return self._table(of, value)
        element = of[1:-1]
        if element in SCALARS:
            array = np.ascontiguousarray(value, "<" + SCALARS[element]).reshape(-1)
            at = self._align(ALIGNED, 4)
            if at + array.nbytes > LARGEST:
                raise InputError("the model has more than 2 GB of weights, which do not fit into a TFLite file")
            self.data += struct.pack("<I", array.size)
            self.data += array.data.cast("B") if array.size else b""
            return at
        at = self._align(4)
        self.data += struct.pack("<I", len(value)) + bytes(4 * len(value))
        for i, part in enumerate(value):
            place = at + 4 + 4 * i
            struct.pack_into("<I", self.data, place, self._target(element, part) - place)
        return at


def _is_default(value: Any, default: Any) -> bool:
    if value is None:
        return True
    return not isinstance(value, (np.ndarray, list, tuple, Mapping)) and value == default
