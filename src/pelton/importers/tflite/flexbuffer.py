"""FlexBuffers, the options of custom operators: maps of numbers, texts and vectors of numbers.

The format: https://flatbuffers.dev/flexbuffers/. A value has one of a few widths in bytes. A vector holds its length,
then values of equal width, then a byte of type and width for each unless it is typed. A map is a vector of values,
preceded by the place and the width of its keys, a typed vector in the same order.
"""

from __future__ import annotations

import struct
from typing import Any

from .flatbuffer import Damaged

_INT, _UINT, _FLOAT, _KEY, _STRING, _INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT, _MAP, _VECTOR = range(1, 11)
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 15: _KEY, 36: 26}
_FIXED = {16 + i: ((_INT, _UINT, _FLOAT)[i % 3], 2 + i // 3) for i in range(9)}  # vectors of 2, 3 and 4 numbers
_BLOB, _BOOL = 25, 26
_CODES = {_INT: "bhiq", _UINT: "BHIQ", _FLOAT: "?efd", _BOOL: "BHIQ"}
DEEPEST = 8  # nesting of vectors
MOST = 1 << 16  # values


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.left = data, MOST

    def number(self, kind: int, at: int, width: int) -> Any:
        if width not in (1, 2, 4, 8) or at < 0 or at + width > len(self.data) or (kind == _FLOAT and width == 1):
            raise Damaged(f"a number of {width} bytes at byte {at} of options of {len(self.data)} bytes")
        return struct.unpack_from("<" + _CODES[kind][width.bit_length() - 1], self.data, at)[0]

    def value(self, kind: int, at: int, width: int, under: int, depth: int = 0) -> Any:
        """Returns the value in a slot of some width; indirect values have the width `under`."""
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise Damaged("options of custom operators nest too deeply, or have too many values")
        if kind == 0:
            return None
        if kind in (_INT, _UINT, _FLOAT, _BOOL):
            value = self.number(kind, at, width)
            return bool(value) if kind == _BOOL else value
        at -= self.number(_UINT, at, width)
        if kind in (_INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT):
            return self.number(kind - _INDIRECT_INT + _INT, at, under)
        if kind == _KEY:
            return self.key(at)
        if kind in _FIXED:
            of, count = _FIXED[kind]
            return [self.value(of, at + i * under, under, 1, depth + 1) for i in range(count)]
        count = self.number(_UINT, at - under, under)
        if kind in (_STRING, _BLOB):
            value = self.data[at : at + count]
            return value.decode("utf-8", "replace") if kind == _STRING else value
        if kind in _TYPED:
            return [self.value(_TYPED[kind], at + i * under, under, 1, depth + 1) for i in self.within(count)]
        if kind not in (_MAP, _VECTOR):
            raise Damaged(f"options of a kind {kind} that is not known")
        packed = [self.number(_UINT, at + count * under + i, 1) for i in self.within(count)]
        values = [self.value(p >> 2, at + i * under, under, 1 << (p & 3), depth + 1) for i, p in enumerate(packed)]
        if kind == _VECTOR:
            return values
        keys = at - 3 * under - self.number(_UINT, at - 3 * under, under)
        wide = self.number(_UINT, at - 2 * under, under)
        return {self.key(keys + i * wide - self.number(_UINT, keys + i * wide, wide)): v for i, v in enumerate(values)}

    def within(self, count: int) -> range:
        if count > len(self.data):
            raise Damaged(f"a vector of {count} values in options of {len(self.data)} bytes")
        return range(count)

    def key(self, at: int) -> str:
        end = self.data.find(b"\0", at) if 0 <= at < len(self.data) else -1
        if end < 0:
            raise Damaged("a key of options is outside of them")
        return self.data[at:end].decode("utf-8", "replace")


def loads(data: bytes) -> Any:
    """Parses FlexBuffers data; raises Damaged if it is invalid."""
    if len(data) < 3:
        raise Damaged(f"options of {len(data)} bytes are none")
    width, packed = data[-1], data[-2]
    return _Reader(data).value(packed >> 2, len(data) - 2 - width, width, 1 << (packed & 3))
