"""Reading of HDF5 files: two from h5py, and effects of damage and malice on them."""

import struct
import tracemalloc

import keras_files
import keras_hdf5 as made
import numpy as np
import pytest

import pelton
from pelton.importers.keras import UnknownPart, hdf5
from pelton.importers.keras.hdf5 import Hdf5

with np.load(made.DATA) as stored:
    FILES = {name: stored[name].tobytes() for name in stored.files}
RNG = np.random.default_rng()


def read_all(data):
    """Reads all groups, arrays and texts of a file; whether it was refused at some place."""
    try:
        file = Hdf5(data, "a file")
    except pelton.ModelError:
        return True
    refused, seen, groups = False, set(), [file.root]
    for at in groups:
        for read in (
            lambda at=at: file.attribute(at, "name"),
            lambda at=at: file.texts(at, "layer_names"),
            lambda at=at: at.links,
        ):
            refused |= is_refused(read)
        if is_refused(lambda at=at: at.links):
            continue
        for name, address in at.links.items():
            if address in seen or "/" in name:
                continue
            seen.add(address)
            if is_refused(lambda at=at, name=name: groups.append(file.group(name, at))):
                refused |= is_refused(lambda at=at, name=name: file.array(at, name))
    return refused


def is_refused(read):
    try:
        read()
    except pelton.ModelError:
        return True
    return False


@pytest.mark.parametrize("name", FILES)
def test_what_h5py_wrote(name):
    made.check(Hdf5(FILES[name], name), made.COUNT)


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_refused(name):
    data = FILES[name]
    for size in {*range(0, 200), *range(200, len(data), 61), len(data) - 1}:
        with pytest.raises(pelton.ModelError, match="truncated or damaged|version"):
            Hdf5(data[:size], "a file")


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_end_in_words(name):
    data, refused = FILES[name], 0
    for _ in range(60):
        damaged = bytearray(data)
        for at in RNG.integers(8, min(len(data), RNG.choice([400, 4000, 1 << 30])), RNG.integers(1, 30)):
            damaged[at] = RNG.choice([0, 1, 127, 128, 255, RNG.integers(256)])
        refused += read_all(bytes(damaged))
    assert not read_all(data) and refused > 10


def test_a_file_behind_something_else():
    data = bytearray(FILES["earliest"])
    data[24:32] = struct.pack("<Q", 512)
    with pytest.raises(UnknownPart, match="behind 512 bytes"):
        Hdf5(bytes(data), "a file")


def hostile(*parts):
    """A file of an older version whose root group has its header at 96, and these parts, each with its address."""
    start = b"\x89HDF\r\n\x1a\n" + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0)
    size = max(at + len(data) for at, data in parts)
    start += struct.pack("<QqQqQQ", 0, -1, size, -1, 0, 96)
    data = bytearray(size)
    for at, part in ((0, start), *parts):
        data[at : at + len(part)] = part
    return bytes(data)


def header(*messages):
    body = b"".join(struct.pack("<HHI", kind, len(m), 0) + m for kind, m in messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def table(at):
    """A group whose table of objects is at an address; its names are at 200."""
    heap = struct.pack("<4s4xQQQ", b"HEAP", 64, 1, 232)
    return (96, header((0x11, struct.pack("<QQ", at, 200)))), (200, heap), (232, b"name\0")


def circle():
    """A table of many tables, each of them itself."""
    children = b"".join(struct.pack("<QQ", 0, 296) for _ in range(3_000))
    return hostile(*table(296), (296, struct.pack("<4sBBH", b"TREE", 0, 1, 3_000) + bytes(16) + children))


def long_names():
    """Many objects that share one long name."""
    tree = struct.pack("<4sBBH", b"TREE", 0, 0, 1) + bytes(24) + struct.pack("<Q", 400)
    objects = struct.pack("<4sBxH", b"SNOD", 1, 3_000) + struct.pack("<QQI20x", 0, 96, 0) * 3_000
    heap = struct.pack("<4s4xQQQ", b"HEAP", 100_000, 1, 200_000)
    group, *_ = table(296)
    return hostile(group, (200, heap), (296, tree), (400, objects), (200_000, b"x" * 100_000))


def continuations():
    """A header that goes on at itself, twice each time."""
    return hostile((96, header(*[(0x10, struct.pack("<QQ", 112, 48))] * 2)), (400, b""))


@pytest.mark.parametrize("data", [circle, long_names, continuations])
def test_malice_costs_little(data, monkeypatch):
    monkeypatch.setattr(hdf5, "MOST", 1 << 14)
    given = data()
    tracemalloc.start()
    try:
        with pytest.raises(pelton.ModelError, match="truncated or damaged"):
            dict(Hdf5(given, "a file").root.links)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def text_of(count, size, form=3):
    """A file with an attribute of so many texts of a size."""
    kind = struct.pack("<BBBBI", 0x10 | form, form == 9, 0, 0, size)
    space = struct.pack("<BBB5xQ", 1, 1, 0, count)
    body = struct.pack("<BxHHH", 1, 8, len(kind), len(space)) + b"names\0\0\0" + kind + space
    return hostile((96, header((0xC, body + bytes(64)), (2, bytes(24)))), (600, b""))


@pytest.mark.parametrize("count, size", [(1 << 47, 0), (1 << 40, 8), (9, 8), (1 << 63, 1)])
def test_texts_that_are_not_there(count, size):
    file = Hdf5(text_of(count, size), "a file")
    with pytest.raises(pelton.ModelError, match="truncated or damaged"):
        file.attribute(file.root, "names")
    file = Hdf5(text_of(8, 8), "a file")
    assert file.texts(file.root, "names") == [""] * 8


@pytest.mark.parametrize("shape", [(1 << 40, 1, 1), (0, 1 << 60, 1 << 60), (0, 1 << 24, 1 << 24), (5, 5, 1), (1, 1, 7)])
def test_arrays_that_are_not_there(shape):
    data = keras_files.hdf5({"a": np.zeros((2, 3, 1), "f4")})
    assert Hdf5(data, "a file").array(Hdf5(data, "a file").root, "a").shape == (2, 3, 1)
    file = Hdf5(data.replace(struct.pack("<3Q", 2, 3, 1), struct.pack("<3Q", *shape)), "a file")
    with pytest.raises(pelton.ModelError, match="truncated or damaged"):
        file.array(file.root, "a")
