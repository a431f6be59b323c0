"""The native SHA-256 against hashlib's."""

import ctypes
import hashlib
import random

import pytest

from pelton.native import library


def digest(data: bytes, plain: bool) -> str:
    out = ctypes.create_string_buffer(32)
    library().pelton_sha256(data, len(data), plain, out)
    return out.raw.hex()


@pytest.mark.parametrize("size", [*range(130), 1000, 4095, 4096, 100_003, 1 << 20])
def test_hashes_are_those_of_hashlib(size):
    data = random.Random(size).randbytes(size)
    assert digest(data, False) == hashlib.sha256(data).hexdigest()
    if size % 64 == 0:
        assert digest(data, True) == hashlib.sha256(data).hexdigest()


def test_the_vectors_of_the_standard():
    assert digest(b"abc", False) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest(b"", False) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
