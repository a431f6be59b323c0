"""Reads the subset of HDF5 that Keras writes: groups, texts as attributes, contiguous arrays.

Follows the HDF5 File Format Specification, version 3.0 (sections are named where they are read). Every offset and count
is checked against the file, since the usual library crashes on damaged ones. Links to other places and files are
refused; parts that Keras does not write, such as compressed arrays, are an `UnknownPart`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pelton.errors import ModelError

from .config import UnknownPart
from .hdf5_storage import DamagedHdf5, ByteReader, dense_objects, names_and_headers

MOST = 1 << 20  # parts of headers, names and attributes read from a file
CHARACTERS = 1 << 28  # bytes of text read from a file
DATASPACE, LINK_INFO, DATATYPE, EXTERNAL, LINK, LAYOUT, FILTERS = 0x1, 0x2, 0x3, 0x7, 0x6, 0x8, 0xB
ATTRIBUTE, CONTINUATION, SYMBOL_TABLE, ATTRIBUTE_INFO = 0xC, 0x10, 0x11, 0x15
FLOATS = {2: "f2", 4: "f4", 8: "f8"}
HARD = 0  # the kind of a link

Message = tuple[int, ByteReader]  # its type, and a reader of its bytes


class Hdf5Object:
    """A group or an array: its header."""

    def __init__(self, file: Hdf5, address: int):
        self.file, self.messages = file, list(file.messages(address))
        self._links: dict[str, int | None] | None = None

    def find(self, type: int) -> ByteReader | None:
        """Returns the header message of a type."""
        return next((ByteReader(r.data, r.start) for kind, r in self.messages if kind == type), None)

    @property
    def is_group(self) -> bool:
        return any(kind in (SYMBOL_TABLE, LINK_INFO, LINK) for kind, _ in self.messages)

    @property
    def links(self) -> dict[str, int | None]:
        """Addresses of the objects in a group; None for links to other files or paths."""
        if self._links is None:
            self._links = self.file.guarded(lambda: dict(self.file.links(self)))
        links: dict[str, int | None] = self._links
        return links


class Hdf5:
    """A file in memory. name: its name in messages. Damage and links out of the file raise ModelError."""

    def __init__(self, data: bytes, name: str):
        self.name, self.data = name, data
        self.left, self.characters = MOST, CHARACTERS
        self.objects: dict[int, Hdf5Object] = {}
        self.root = self.guarded(lambda: self._object(self._root()))

    def guarded(self, read: Any) -> Any:
        """Calls read(), whose errors mean a damaged file."""
        try:
            return read()
        except (DamagedHdf5, UnicodeDecodeError, OverflowError, RecursionError) as e:
            raise ModelError(f"{self.name} is a truncated or damaged HDF5 file: {e}") from None

    # --- interface for importers

    def group(self, path: str, parent: Hdf5Object | None = None) -> Hdf5Object | None:
        """Returns the group at a path below the parent; None if there is none."""
        group = self.guarded(lambda: self._find(path, parent or self.root))
        if group is not None and not group.is_group:
            raise ModelError(f"{self.name} is damaged: {path!r} must be a group")
        return group

    def array(self, group: Hdf5Object, path: str) -> np.ndarray:
        """Returns the read-only elements of the array at a path below a group."""
        return self.guarded(lambda: self._array(group, path))

    def attribute(self, of: Hdf5Object, name: str) -> Any:
        """Returns a text, or a list of texts; None if there is none."""
        return self.guarded(lambda: self._attribute(of, name))

    def texts(self, of: Hdf5Object, name: str) -> list[str]:
        """Returns a list of texts; Keras spreads long ones over attributes numbered behind the name."""
        texts = self.attribute(of, name)
        if texts is None:
            texts, i = [], 0
            while (part := self.attribute(of, f"{name}{i}")) is not None:
                texts, i = [*texts, *part], i + 1
        if not isinstance(texts, list):
            raise ModelError(f"{self.name} is damaged: {name!r} must be a list of names")
        return texts

    def spend(self, parts: int, characters: int = 0) -> None:
        """Counts the parts read, as damaged files may repeat the same parts endlessly."""
        self.left, self.characters = self.left - parts, self.characters - characters
        if self.left < 0:
            raise DamagedHdf5(f"it has more than {MOST} parts")
        if self.characters < 0:
            raise DamagedHdf5(f"it has texts of more than {CHARACTERS} bytes")

    # --- headers (III.A, IV.A.1)

    def _root(self) -> int:
        """Returns the address of the root group's header."""
        r = ByteReader(self.data, 8)
        version = r.number(1)
        sizes = r.skip(0 if version > 1 else 4).take(2)
        if version > 3 or sizes != b"\x08\x08":
            raise UnknownPart(f"{self.name} is an HDF5 file of version {version}, with sizes {list(sizes)}")
        r.skip(1 if version > 1 else 9 + 4 * version)
        base, _, end, *_, root = [r.number(8) for _ in range(4 if version > 1 else 6)]
        if base:
            raise UnknownPart(f"{self.name} has its data behind {base} bytes of something else")
        if end > len(self.data):
            raise DamagedHdf5(f"it must have {end} bytes, but has {len(self.data)}")
        return root

    def _object(self, address: int) -> Hdf5Object:
        if address not in self.objects:
            self.objects[address] = Hdf5Object(self, address)
        return self.objects[address]

    def messages(self, address: int) -> Iterator[Message]:
        """Returns the messages of the header at an address, including its continuations."""
        r = ByteReader(self.data, address)
        if r.take(4) == b"OHDR":
            flags = r.skip(1).number(1)
            r.skip(16 * bool(flags & 0x20) + 4 * bool(flags & 0x10))
            blocks, ordered = [(r, r.number(1 << (flags & 3)))], bool(flags & 4)
        else:
            r = ByteReader(self.data, address)
            if r.number(1) != 1:
                raise DamagedHdf5(f"there is no object at {address}")
            size = r.skip(7).number(4)
            blocks, ordered = [(r.skip(4), size)], None
        for r, size in blocks:
            end = r.at + size
            while r.at + (4 if ordered is not None else 8) <= end:
                self.spend(1)
                kind, part = self._message(r, ordered)
                if kind == CONTINUATION:
                    at, length = part.number(8), part.number(8)
                    inner = ByteReader(self.data, at)
                    if ordered is not None and inner.take(4) != b"OCHK":
                        raise DamagedHdf5(f"there is no continuation at {at}")
                    blocks.append((inner, length - (8 if ordered is not None else 0)))
                else:
                    yield kind, part

    def _message(self, r: ByteReader, ordered: bool | None) -> Message:
        if ordered is None:
            kind, size, flags = r.number(2), r.number(2), r.number(1)
            r.skip(3)
        else:
            kind, size, flags = r.number(1), r.number(2), r.number(1)
            r.skip(2 * ordered)
        if flags & 2 and kind in (DATASPACE, DATATYPE, LAYOUT):
            raise UnknownPart(f"{self.name} shares the descriptions of its arrays")
        return kind, ByteReader(r.view(size))

    # --- groups (IV.A.2.g, IV.A.2.r, III.C)

    def links(self, group: Hdf5Object) -> Iterator[tuple[str, int | None]]:
        for kind, part in group.messages:
            if kind == LINK:
                yield self._link(ByteReader(part.data))
        if (table := group.find(SYMBOL_TABLE)) is not None:
            yield from names_and_headers(self.data, table.number(8), table.number(8), self.spend)
        if (info := group.find(LINK_INFO)) is not None:
            flags = info.skip(1).number(1)
            heap, tree = info.skip(8 * (flags & 1)).number(8), info.number(8)
            for data in dense_objects(self.data, heap, tree, 4, self.spend):
                yield self._link(ByteReader(data))

    def _link(self, r: ByteReader) -> tuple[str, int | None]:
        flags = r.skip(1).number(1)
        kind = r.number(1) if flags & 8 else HARD
        r.skip(8 * bool(flags & 4) + bool(flags & 0x10))
        name = r.take(r.number(1 << (flags & 3))).decode()
        return name, r.number(8) if kind == HARD else None

    def _find(self, path: str, at: Hdf5Object) -> Hdf5Object | None:
        for part in path.split("/"):
            if not at.is_group or part not in at.links:
                return None
            address = at.links[part]
            if address is None:
                raise ModelError(f"{self.name} has a link, {part!r}, to somewhere else; it is refused")
            at = self._object(address)
        return at

    # --- arrays and attributes (IV.A.2.b, d, i, m)

    def _array(self, group: Hdf5Object, path: str) -> np.ndarray:
        dataset = self._find(path, group)
        if dataset is None:
            raise ModelError(f"{self.name} is damaged: it lists {path!r}, but does not contain it")
        parts = [dataset.find(kind) for kind in (DATATYPE, DATASPACE, LAYOUT)]
        if dataset.find(EXTERNAL) is not None:
            raise ModelError(f"{self.name} has elements of {path!r} in another file; refused")
        if any(part is None for part in parts):
            raise ModelError(f"{self.name} is damaged: {path!r} must be an array")
        kind, space, layout = parts
        assert kind is not None and space is not None and layout is not None
        dtype, shape = self._dtype(kind), _shape(space)
        version, form = layout.number(1), layout.number(1)
        size = math.prod(shape) * dtype.itemsize
        if version not in (3, 4) or form not in (0, 1) or dataset.find(FILTERS) is not None:
            raise UnknownPart(f"{self.name} has {path!r} in pieces, or compressed")
        if not size:
            return np.empty(shape, dtype)
        data = ByteReader(self.data, layout.number(8)) if form else layout
        held = layout.number(8 if form else 2)
        if held != size:
            raise DamagedHdf5(f"{path!r} must have {size} bytes, but has {held}")
        return np.frombuffer(data.view(size), dtype).reshape(shape)

    def _dtype(self, r: ByteReader) -> np.dtype:
        kind, bits = r.number(1) & 15, r.number(3)
        size = r.number(4)
        order = "<>"[bits & 1]
        if kind == 0 and size in (1, 2, 4, 8):
            return np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}")
        if kind == 1 and size in FLOATS and r.take(4) == bytes([0, 0, 8 * size, 0]):
            return np.dtype(order + FLOATS[size])
        raise UnknownPart(f"{self.name} has elements of an unknown type ({kind}, {size} bytes)")

    def _attribute(self, of: Hdf5Object, name: str) -> Any:
        for data in self._attributes(of):
            self.spend(1)
            r = ByteReader(data)
            version, flags = r.number(1), r.number(1)
            sizes = [r.number(2) for _ in range(3)]
            r.skip(version == 3)
            padded = [-(-n // 8) * 8 for n in sizes] if version == 1 else sizes
            written, kind, space = (ByteReader(r.take(n)) for n in padded)
            if written.take(sizes[0]).rstrip(b"\0").decode() == name:
                if version > 1 and flags & 3:
                    raise UnknownPart(f"{self.name} shares the description of {name!r}")
                return self._texts(name, kind, _shape(space), r)
        return None

    def _attributes(self, of: Hdf5Object) -> Iterator[bytes | memoryview]:
        for kind, part in of.messages:
            if kind == ATTRIBUTE:
                yield part.data
        if (info := of.find(ATTRIBUTE_INFO)) is not None:
            flags = info.skip(1).number(1)
            heap, tree = info.skip(2 * (flags & 1)).number(8), info.number(8)
            yield from dense_objects(self.data, heap, tree, 0, self.spend)

    def _texts(self, name: str, kind: ByteReader, shape: tuple[int, ...], r: ByteReader) -> Any:
        """Reads the texts of an attribute, a single one without a list."""
        form, bits, size = kind.number(1) & 15, kind.number(3), kind.number(4)
        count = math.prod(shape)
        if form == 3:
            self.spend(count, count * size)
            strings = [r.take(size).rstrip(b"\0") for _ in range(count)]
        elif form == 9 and bits & 15 == 1:
            self.spend(count)
            strings = [self._heap_object(r) for _ in range(count)]
        elif count == 0:
            strings = []
        else:
            raise UnknownPart(f"{self.name} has {name!r} as something else than texts")
        texts = [t.decode("utf-8", "replace") for t in strings]
        return texts if shape else texts[0]

    def _heap_object(self, r: ByteReader) -> bytes:
        """Reads a text from a heap of objects of any length (III.E)."""
        size, address, index = r.number(4), r.number(8), r.number(4)
        if not size:
            return b""
        self.spend(1, size)
        heap = ByteReader(self.data, address)
        if heap.take(4) != b"GCOL":
            raise DamagedHdf5(f"there are no texts at {address}")
        end = address + heap.skip(4).number(8)
        while heap.at + 16 <= end:
            self.spend(1)
            number, length = heap.number(2), heap.skip(6).number(8)
            if number == index:
                return heap.take(min(size, length))
            if number == 0:
                break
            heap.skip(-(-length // 8) * 8)
        raise DamagedHdf5(f"there is no text {index} at {address}")


def _shape(r: ByteReader) -> tuple[int, ...]:
    version, rank = r.number(1), r.number(1)
    if version == 1:
        r.skip(6)
    elif r.skip(1).number(1) == 2:
        return (0,)
    shape = tuple(r.number(8) for _ in range(rank))
    if rank > 32 or math.prod(n or 1 for n in shape) >= 1 << 48:
        raise DamagedHdf5(f"it has an array of the shape {list(shape[:8])}")
    return shape
