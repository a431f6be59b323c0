"""Bundles of cubins: round trip, the same bytes for the same cubins, and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pelton.backends.cuda.bundle import ALIGN, PREAMBLE, pack, unpack
from pelton.engine.cubin import Cubin
from pelton.errors import EngineError

CUBINS = (
    Cubin("add", 80, b"\x7fELF one", 0, 4),
    Cubin("add", 90, b"\x7fELF two" * 40, 1000, 8),
    Cubin("product", 90, b"\x7fELF three", 200_000, 12, 2, 384, 128),
    Cubin("steps", 90, b"\x7fELF four", 0, 4, phased=2),
)


def test_what_goes_in_comes_out():
    found = unpack(pack(CUBINS))
    assert {(arch, symbol) for arch, of in found.items() for symbol in of} == {
        (80, "add"),
        (90, "add"),
        (90, "product"),
        (90, "steps"),
    }
    assert all(found[c.arch][c.symbol] == c for c in CUBINS)
    assert unpack(pack([])) == {}


def test_the_same_cubins_give_the_same_bytes_in_any_order():
    assert pack(CUBINS) == pack(reversed(CUBINS))


def test_images_lie_at_multiples_of_64():
    packed = pack(CUBINS)
    for c in CUBINS:
        assert packed.index(c.image) % ALIGN == 0


def test_equal_images_are_kept_once():
    image = b"\x7fELF" * 1000
    assert len(pack([Cubin(f"k{i}", 90, image, 0, 4) for i in range(10)])) < 2 * len(image)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"arch": 20}, "arch of cubin 'add'"),
        ({"shared": -1}, "shared of cubin"),
        ({"shared": 1 << 20}, "shared of cubin"),
        ({"warps": 0}, "warps of cubin"),
        ({"warps": 33}, "warps"),
        ({"clusters": 17}, "clusters"),
        ({"scratch": 1 << 40}, "scratch"),
        ({"align": 3}, "power of 2"),
        ({"phased": 3}, "phased of cubin"),
        ({"symbol": ""}, "a name in ASCII"),
        ({"symbol": "a\0b"}, "a name in ASCII"),
        ({"image": b""}, "the image of cubin 'add'"),
        ({"warps": True}, "warps"),
    ],
)
def test_numbers_that_no_kernel_has_are_refused(change, text):
    with pytest.raises(EngineError, match=text):
        pack([dataclasses.replace(CUBINS[0], **change)])


def test_two_of_one_name_are_refused():
    with pytest.raises(EngineError, match="two cubins 'add' for sm_80"):
        pack([CUBINS[0], dataclasses.replace(CUBINS[0], image=b"other")])


def test_any_altered_bit_is_noticed():
    packed = pack(CUBINS)
    rng = np.random.default_rng(0)
    for at in {0, 7, 8, 15, 16, PREAMBLE.size, len(packed) - 1, *rng.integers(0, len(packed), 100).tolist()}:
        damaged = bytearray(packed)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(EngineError):
            unpack(bytes(damaged))


@pytest.mark.parametrize("cut", [0, 7, 47, 60])
def test_what_is_cut_off_is_refused(cut):
    with pytest.raises(EngineError, match="no bundle|altered"):
        unpack(pack(CUBINS)[:cut])
