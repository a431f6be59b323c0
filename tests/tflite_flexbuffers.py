"""Writes options of custom operators as FlexBuffers."""

from __future__ import annotations

import struct


def options(**given) -> bytes:
    """A FlexBuffers map of numbers and lists of integers, all values of four bytes."""
    data, keys, values = bytearray(), [], []

    def put(raw: bytes) -> int:
        data.extend(raw)
        return len(data) - len(raw)

    for name, value in sorted(given.items()):
        keys.append(put(name.encode() + b"\0"))
        if isinstance(value, list):
            values.append((put(struct.pack(f"<I{len(value)}i", len(value), *value)) + 4, 11))
        else:
            values.append((value, 3 if isinstance(value, float) else 1))
    begin = put(struct.pack("<I", len(keys))) + 4
    for key in keys:
        put(struct.pack("<I", len(data) - key))
    put(struct.pack("<III", len(data) - begin, 4, len(keys)))
    table = len(data)
    for value, kind in values:
        put(struct.pack("<f" if kind == 3 else "<i", len(data) - value if kind == 11 else value))
    put(bytes(kind << 2 | 2 for _, kind in values))
    put(struct.pack("<IBB", len(data) - table, 9 << 2 | 2, 4))
    return bytes(data)
