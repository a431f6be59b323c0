"""HDF5's storage of many objects by name: trees of names, and heaps of links and attributes.

Follows the HDF5 File Format Specification, version 3.0, III.A to III.G.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

UNDEFINED = (1 << 64) - 1  # the address of nothing
DEEPEST = 32  # levels of a tree
LONGEST = 64  # bytes of a tree's record, which locates an object

Spend = Callable[[int], None]  # counts the parts read of a file, and raises DamagedHdf5 for too many


class DamagedHdf5(Exception):
    """The file contradicts itself."""


class ByteReader:
    """Reads bytes from an offset on, little-endian."""

    def __init__(self, data: bytes | memoryview, at: int = 0):
        self.data, self.at, self.start = data, at, at

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        if not 0 <= self.at <= self.at + size <= len(self.data):
            raise DamagedHdf5(f"{size} bytes are missing at {self.at} of {len(self.data)}")
        self.at += size
        return memoryview(self.data)[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.view(size), "little")

    def skip(self, size: int) -> ByteReader:
        self.at += size
        return self


def names_and_headers(data: bytes, tree: int, heap: int, spend: Spend) -> Iterator[tuple[str, int | None]]:
    """Yields the objects of an old-style group: a tree of tables, with names in a heap (III.A.1, III.B, III.D)."""
    r = ByteReader(data, heap)
    if r.take(4) != b"HEAP":
        raise DamagedHdf5(f"there are no names at {heap}")
    size, _, start = r.skip(4).number(8), r.number(8), r.number(8)
    names, unread = ByteReader(data, start).take(size), size
    nodes = [tree]
    for address in nodes:
        r = ByteReader(data, address)
        sign = r.take(4)
        if sign not in (b"TREE", b"SNOD"):
            raise DamagedHdf5(f"there is no table of objects at {address}")
        used = r.skip(2).number(2)
        spend(1 + used)
        if sign == b"TREE":
            r.skip(16)
            nodes += [r.skip(8).number(8) for _ in range(used)]
            continue
        for _ in range(used):
            name, header, kind = r.number(8), r.number(8), r.number(4)
            r.skip(20)
            end = names.find(b"\0", name)
            unread -= (end if end >= 0 else size) - name
            if not 0 <= name < size or unread < 0:
                raise DamagedHdf5(f"there is no name at {start + name}")
            yield names[name : end if end >= 0 else None].decode(), None if kind == 2 else header


def dense_objects(data: bytes, heap: int, tree: int, skipped: int, spend: Spend) -> Iterator[memoryview]:
    """Yields the links, or attributes, that a tree lists and a heap holds. skipped: bytes of a record before its place
    in the heap."""
    if heap == UNDEFINED or tree == UNDEFINED:
        return
    held = _Heap(data, heap)
    for record in _records(data, tree, spend):
        yield held.object(record[skipped:])


def _records(data: bytes, address: int, spend: Spend) -> Iterator[bytes]:
    """Yields the records of a tree of version 2 (III.A.2)."""
    r = ByteReader(data, address)
    if r.take(4) != b"BTHD":
        raise DamagedHdf5(f"there is no tree at {address}")
    node_size, record_size, depth = r.skip(2).number(4), r.number(2), r.number(2)
    root, count = r.skip(2).number(8), r.number(2)
    if not 0 < record_size <= LONGEST or depth > DEEPEST or node_size <= 10 + record_size:
        raise DamagedHdf5(f"there is no tree of records at {address}")
    most = (node_size - 10) // record_size  # records of a leaf
    widths = [(0, 0)]  # bytes of a child's number of records: its own, and of all below it
    total = most
    for level in range(1, depth + 1):
        own = _bytes_for(most)
        widths.append((own, _bytes_for(total) if level > 1 else 0))
        most = max((node_size - 10 - sum(widths[-1]) - 8) // (record_size + sum(widths[-1]) + 8), 0)
        total = (most + 1) * total + most
    nodes = [(root, count, depth)] if root != UNDEFINED else []
    for address, count, level in nodes:
        spend(1 + count)
        r = ByteReader(data, address)
        if r.take(4) != (b"BTIN" if level else b"BTLF"):
            raise DamagedHdf5(f"there is no node of a tree at {address}")
        r.skip(2)
        for _ in range(count):
            yield r.take(record_size)
        if level:
            own, below = widths[level]
            for _ in range(count + 1):
                child, number = r.number(8), r.number(own)
                r.skip(below)
                nodes.append((child, number, level - 1))


def _bytes_for(number: int) -> int:
    """Returns the number of bytes that hold numbers up to this one."""
    return max(number.bit_length() + 7, 8) // 8


class _Heap:
    """A fractal heap, without filters: blocks of doubling sizes (III.G)."""

    def __init__(self, data: bytes, address: int):
        self.data = data
        r = ByteReader(data, address)
        if r.take(4) != b"FRHP":
            raise DamagedHdf5(f"there is no heap at {address}")
        filters, flags = r.skip(3).number(2), r.number(1)
        most = r.number(4)
        self.width = r.skip(96).number(2)
        self.first, self.largest, bits = r.number(8), r.number(8), r.number(2)
        self.root, self.rows = r.skip(2).number(8), r.number(2)
        self.offset_size = (bits + 7) // 8
        self.length_size = _bytes_for(min(self.largest, most))
        if filters or not self.width or not self.first or bits > 64 or self.rows > 64 or flags & 0xFC:
            raise DamagedHdf5(f"the heap at {address} is of an unknown kind")

    def object(self, place: bytes) -> memoryview:
        """Returns the object at a place: its offset and length."""
        r = ByteReader(place)
        kind = r.number(1) & 0x30
        if kind == 0x20:
            return r.view((place[0] & 15) + 1)
        if kind:
            raise DamagedHdf5("an object of a group is too large")
        offset, length = r.number(self.offset_size), r.number(self.length_size)
        block, start = self._block(offset)
        return ByteReader(self.data, block + offset - start).view(length)

    def _block(self, offset: int) -> tuple[int, int]:
        """Returns the address of the block that holds an offset, and the offset of its first byte."""
        if not self.rows:
            return self.root, 0
        start, size = 0, self.first
        for row in range(self.rows):
            size = self.first if row < 2 else size * 2
            if size > self.largest:
                break
            if offset < start + size * self.width:
                column = (offset - start) // size
                entries = ByteReader(self.data, self.root)
                if entries.take(4) != b"FHIB":
                    raise DamagedHdf5(f"there is no table of blocks at {self.root}")
                entries.skip(9 + self.offset_size + 8 * (row * self.width + column))
                return entries.number(8), start + column * size
            start += size * self.width
        raise DamagedHdf5(f"there is no block with the offset {offset}")
