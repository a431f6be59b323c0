"""Convolutions and products of bytes: equal sums of the largest factors, at odd sizes, however they are added."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGETS, check, check_on, declare

from pelton.codegen.c.templates.conv_int8 import PAIRS, VNNI, WIDE, dot_method, pairs_fit
from pelton.codegen.template import TEMPLATES
from pelton.ir.types import DType

LAST = dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1))


def conv(
    of, shape, channels, kernel, strides=(1, 1), pads=None, dilations=(1, 1), group=1, *, pad=0, most=127, tail=()
):
    """Factors of the whole range, a quarter of them the largest there are."""
    rng = np.random.default_rng(0)
    spatial = len(kernel)
    size = (channels, shape[1] // group, *kernel)
    w = np.where(rng.random(size) < 0.25, rng.choice([-most, most], size), rng.integers(-most, most + 1, size))
    low, high = (0, 255) if of == "u8" else (-128, 127)
    x = np.where(rng.random(shape) < 0.25, rng.choice([low, high], shape), rng.integers(low, high + 1, shape))
    attrs = dict(
        strides=strides,
        pads=pads if pads is not None else tuple(k // 2 for k in kernel) * 2,
        dilations=dilations,
        group=group,
        accumulate=DType.I32,
        **({"pad_value": pad} if pad else {}),
    )
    b = rng.integers(-(2**20), 2**20, channels).astype(np.int32)
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"{of}{list(shape)}", w=w.astype(np.int8), b=b)
    name = named(of, shape, channels, kernel, strides, group, pad, most, tail and "tail")
    return Case(
        name, graph, LAST if spatial == 2 else dict(x=(0, 2, 1)), dict(x=x.astype("uint8" if low == 0 else "int8"))
    )


REQUANTIZED = [
    ("f", "cast", "y", dict(to=DType.F32)),
    ("s", "mul", "f m"),
    ("r", "relu", "s"),
    ("i", "round", "r"),
    ("c", "clip", "i", dict(low=0.0, high=255.0)),
    ("out", "cast", "c", dict(to=DType.U8)),
]

declare(
    "conv_int8",
    conv("u8", (1, 13, 14, 15), 19, (3, 3), pad=7),
    conv("i8", (2, 16, 9, 7), 35, (3, 3), pad=-128),
    conv("u8", (2, 16, 9, 7), 35, (3, 3), (2, 1), most=64, pad=255),
    conv("i8", (2, 58, 5, 6), 33, (1, 1), most=64),
    conv("u8", (1, 3, 23, 21), 13, (7, 7), (2, 2), pad=128),
    conv("i8", (1, 125, 4, 5), 70, (1, 1), (2, 2)),
    conv("u8", (1, 12, 9, 11), 24, (5, 2), group=3, pads=(2, 0, 1, 1), pad=9),
    conv("i8", (2, 5, 31), 7, (4,), (3,), (2, 1), (1,), pad=3),
    conv("u8", (1, 512, 3, 3), 16, (3, 3), dilations=(2, 1), pads=(2, 1, 2, 1)),
)


def product(of, a, b, most=127):
    rng = np.random.default_rng(0)
    low, high = (0, 255) if of == "u8" else (-128, 127)
    w = np.where(rng.random(b) < 0.25, rng.choice([-most, most], b), rng.integers(-most, most + 1, b)).astype(np.int8)
    x = np.where(rng.random(a) < 0.25, rng.choice([low, high], a), rng.integers(low, high + 1, a))
    graph = program(("y", "matmul", "x w", dict(accumulate=DType.I32)), x=f"{of}{list(a)}", w=w)
    return Case(named(of, a, b, most), graph, {}, dict(x=x.astype("uint8" if low == 0 else "int8")))


declare(
    "gemm_int8",
    product("u8", (58, 125), (125, 37)),
    product("i8", (2, 3, 5, 61), (61, 129), most=64),
    product("u8", (1, 768), (768, 33)),
    product("i8", (13, 3), (3, 7)),
)


@pytest.mark.parametrize("case", CASES["gemm_int8"], ids=lambda c: c.name)
def test_products_are_equal(case):
    assert check(TEMPLATES["gemm_int8"], case)


@pytest.mark.parametrize("case", CASES["conv_int8"], ids=lambda c: c.name)
def test_sums_are_equal(case):
    assert check(TEMPLATES["conv_int8"], case)


@pytest.mark.parametrize("isa", TARGETS)
def test_how_products_are_added_follows_from_the_filters(isa):
    """Pairs in i16 only where all of them fit; on all levels the sums are equal."""
    want = {"x86_64_v3": [WIDE, WIDE, PAIRS, PAIRS], "x86_64_v4": [WIDE, WIDE, PAIRS, PAIRS]}
    template, target = TEMPLATES["conv_int8"], TARGETS[isa]
    cases = CASES["conv_int8"][:4]
    assert [dot_method(region_of(c.graph), target) for c in cases] == want.get(isa, [VNNI] * 4)
    for case in cases:
        check_on(target, template, case, 1)


def test_pairs_fit_up_to_the_largest_i16():
    """255 · (64 + 64) < 2¹⁵ ≤ 255 · (64 + 65); signs apart, and channels that are no neighbours."""

    def filters(*channels: int) -> np.ndarray:
        return np.array(channels, np.int8).reshape(1, -1, 1, 1)

    assert pairs_fit(filters(64, 64)) and pairs_fit(filters(-64, -64)) and pairs_fit(filters(127, -127, 1))
    assert not pairs_fit(filters(64, 65)) and not pairs_fit(filters(-127, -2))
    assert pairs_fit(filters(1, 127, 127)) and not pairs_fit(filters(1, 127, 127, 2))
