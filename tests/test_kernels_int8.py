"""Convolutions and products of bytes: equal sums of the largest factors, at odd sizes, in any order of addition."""

from dataclasses import replace

import machines
import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGETS, check, check_on, compiler, declare, laid, of_level

from pelton.codegen.c.templates.conv_int8 import (
    PAIRS,
    SORTED,
    AT_ONCE,
    WIDE,
    WORDS,
    Filters,
    dot_method,
    pairs_fit,
    steps_by_pairs,
)
from pelton.codegen.c.templates.winograd_int8 import parts_of
from pelton.codegen.template import TEMPLATES
from pelton.ir.types import DType
from pelton.targets import ISAS

LAST = dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1))

# the largest sums are below 2²⁴ and scaled by a power of two: f32 has the bytes that float64 has
REQUANTIZED = [
    ("f", "cast", "y", dict(to=DType.F32)),
    ("s", "mul", "f m"),
    ("r", "relu", "s"),
    ("i", "round", "r"),
    ("c", "clip", "i low high"),
    ("out", "cast", "c", dict(to=DType.U8)),
]
REQUANTIZING = dict(m=np.float32(2**-13), low=np.float32(0), high=np.float32(255))


def weights(rng, size, most, beyond=0, small=0.0):
    """A quarter of them the largest there are; so many are as large as u8 less a zero point may be. small: the share of
    input channels, in fours, whose weights are halved."""
    w = np.where(rng.random(size) < 0.25, rng.choice([-most, most], size), rng.integers(-most, most + 1, size))
    if small:
        fours = np.repeat(rng.random((size[1] + 3) // 4) < small, 4)[: size[1]]
        w = np.where(fours.reshape(-1, *[1] * (len(size) - 2)), w // 2, w)
    w.flat[rng.choice(w.size, beyond, replace=False)] = rng.choice([-255, -129, 128, 255], beyond)
    return w.astype(np.int16 if beyond else np.int8)


def conv(
    of,
    shape,
    channels,
    kernel,
    strides=(1, 1),
    pads=None,
    dilations=(1, 1),
    group=1,
    *,
    pad=0,
    most=127,
    beyond=0,
    small=0.0,
    computed=None,
    requantized=False,
):
    """Factors of the whole range, a quarter of them the largest there are. computed: what padding holds, where that
    and the biases are known only when it runs."""
    rng = np.random.default_rng(0)
    spatial = len(kernel)
    w = weights(rng, (channels, shape[1] // group, *kernel), most, beyond, small)
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
    fed, given = dict(x=x.astype("uint8" if low == 0 else "int8")), dict(w=w, b=b)
    if computed is not None:
        fed |= dict(b=b, p=np.array(computed, fed["x"].dtype))
        given |= dict(b=f"i32[{channels}]", p=f"{of}[]")
    node = ("y", "convolution", "x w b" if computed is None else "x w b p", attrs)
    given |= REQUANTIZING if requantized else {}
    graph = program(node, *(REQUANTIZED if requantized else ()), x=f"{of}{list(shape)}", **given)
    name = named(of, shape, channels, kernel, strides, group, pad, most, beyond, small, computed, requantized)
    return Case(name, graph, LAST if spatial == 2 else dict(x=(0, 2, 1)), fed)


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
    conv("u8", (1, 13, 9, 8), 37, (3, 3), beyond=9, pad=121),
    conv("i8", (2, 10, 9, 8), 22, (3, 2), (2, 1), group=2, beyond=5, computed=-128),
    conv("u8", (1, 3, 11, 9), 5, (5, 3), dilations=(1, 2), beyond=3, computed=255),
    conv("u8", (1, 58, 4, 5), 35, (1, 1), beyond=60, most=64, computed=1),
    conv("u8", (2, 5, 31), 7, (4,), (3,), (2, 1), (1,), computed=130),
    conv("u8", (1, 512, 3, 3), 16, (3, 3), dilations=(2, 1), pads=(2, 1, 2, 1)),
    conv("i8", (2, 3, 15, 17), 21, (3, 3), (2, 2), most=64, pad=-9, dilations=(2, 1)),
    conv("i8", (1, 1, 9, 11), 5, (3, 5), pad=77),
    conv("u8", (1, 2, 7, 5), 3, (7, 3), (1, 2), pads=(3, 2, 2, 0), computed=255),
    conv("u8", (1, 58, 9, 7), 37, (3, 3), (1, 2), small=0.5, pad=131),
    conv("i8", (2, 40, 6, 5), 48, (3, 2), group=2, small=0.5, pad=-128),
    conv("u8", (1, 126, 4, 5), 35, (1, 1), small=0.5, beyond=9),
)

declare(
    "depthwise_int8",
    conv("u8", (1, 13, 14, 15), 13, (3, 3), group=13, pad=7),
    conv("i8", (2, 64, 9, 7), 64, (3, 3), group=64, pad=-128),
    conv("u8", (1, 125, 9, 12), 125, (3, 3), (2, 2), group=125, most=64, pad=255),
    conv("i8", (1, 58, 11, 10), 58, (5, 5), (2, 1), group=58, most=64, pad=3),
    conv("u8", (2, 3, 23, 21), 3, (3, 3), group=3, pad=128),
    conv("i8", (1, 5, 4, 3), 5, (7, 7), group=5, pad=-5),
    conv("u8", (1, 96, 7, 7), 96, (4, 2), group=96, pads=(2, 0, 1, 1), pad=9),
    conv("u8", (1, 39, 13, 17), 39, (3, 3), (1, 2), group=39, dilations=(2, 3), pads=(2, 3, 2, 3), pad=200),
    conv("i8", (2, 72, 31), 72, (9,), (2,), (4, 3), (1,), group=72, pad=3),
    conv("u8", (1, 16, 1, 40), 16, (1, 31), group=16, pad=77),
    conv("i8", (2, 40, 1, 1), 40, (3, 3), group=40, computed=-128),
    conv("u8", (1, 144, 6, 9), 144, (3, 3), group=144, beyond=9, computed=131),
    conv("u8", (1, 70, 12, 9), 70, (8, 3), group=70, pads=(0, 0, 0, 0)),
    conv("i8", (1, 33, 6, 5), 33, (3, 3), group=33, beyond=5, pad=-77),
)


def largest(of, channels):
    """Bytes and filters whose transforms are as large as any, all of one sign: 68 · 255 and 144 · 128."""
    case = conv(of, (1, channels, 10, 9), 9, (3, 3))
    low, high = (0, 255) if of == "u8" else (-128, 127)
    halves = [np.arange(n) % 4 < 2 for n in (10, 9)]
    same = halves[0][:, None] == halves[1]
    x = np.broadcast_to(np.where(same, high, low), (1, channels, 10, 9)).astype(case.arrays["x"].dtype)
    w = next(v for v, a in case.graph.constants.items() if a.ndim == 4)
    case.graph.constants[w][...] = np.where(np.arange(9) % 2, 127, -128).reshape(9, 1, 1, 1)
    return replace(case, name=named("largest", of, channels), arrays=dict(x=x))


declare(
    "winograd_int8",
    conv("u8", (1, 58, 13, 14), 70, (3, 3), pad=7),
    conv("i8", (2, 125, 5, 9), 33, (3, 3), pad=-128),
    conv("u8", (1, 16, 1, 1), 9, (3, 3), pad=255),
    conv("i8", (1, 9, 4, 11), 8, (3, 3), pads=(0, 2, 1, 0), computed=-77),
    conv("u8", (2, 32, 7, 7), 48, (3, 3), most=64, computed=200, requantized=True),
    conv("i8", (1, 24, 18, 3), 40, (3, 3), pads=(1, 0, 1, 0)),
    largest("u8", 240),
    largest("i8", 451),
)


def product(of, a, b, most=127, beyond=0, small=0.0):
    rng = np.random.default_rng(0)
    low, high = (0, 255) if of == "u8" else (-128, 127)
    w = weights(rng, b[::-1], most, beyond, small).T.copy()
    x = np.where(rng.random(a) < 0.25, rng.choice([low, high], a), rng.integers(low, high + 1, a))
    graph = program(("y", "matmul", "x w", dict(accumulate=DType.I32)), x=f"{of}{list(a)}", w=w)
    return Case(named(of, a, b, most, beyond, small), graph, {}, dict(x=x.astype("uint8" if low == 0 else "int8")))


declare(
    "gemm_int8",
    product("u8", (58, 125), (125, 37)),
    product("i8", (2, 3, 5, 61), (61, 129), most=64),
    product("u8", (1, 768), (768, 33)),
    product("i8", (13, 3), (3, 7)),
    product("u8", (40, 125), (125, 58), beyond=7),
    product("i8", (7, 61), (61, 35), most=64, beyond=200),
    product("u8", (9, 255), (255, 49), small=0.7),
    product("i8", (5, 64), (64, 21), small=0.5),
)


@pytest.mark.parametrize("case", CASES["gemm_int8"], ids=lambda c: c.name)
def test_products_are_equal(case):
    assert check(TEMPLATES["gemm_int8"], case)


@pytest.mark.parametrize(
    "name, case",
    [(name, c) for name in ("conv_int8", "depthwise_int8", "winograd_int8") for c in CASES[name]],
    ids=lambda v: getattr(v, "name", v),
)
def test_sums_are_equal(name, case):
    assert check(TEMPLATES[name], case)


def added(region, target, rows=False, nr=16) -> int:
    """How the products of a convolution of u8 are added."""
    w = region.body.constants[region.anchor.inputs[1]]
    by_taps = w.reshape(1, *w.shape[:2], -1).transpose(0, 3, 2, 1)
    return Filters(by_taps, nr, target, False, w.shape[-1], rows).dot


@pytest.mark.parametrize("isa", TARGETS)
def test_how_products_are_added_follows_from_the_filters(isa):
    """Pairs in i16 only where all of them fit; on all levels the sums are equal."""
    x86 = [WIDE, WIDE, PAIRS, PAIRS, SORTED]
    others = ("aarch64", "riscv64_v", "wasm32_simd", "wasm32_relaxed")
    want = {"x86_64_v3": x86, "x86_64_v4": x86, **dict.fromkeys(others, [PAIRS] * 5)}
    want |= {level: [WORDS] * 5 for level in ISAS if ISAS[level].dot == "words"}
    template, target = TEMPLATES["conv_int8"], TARGETS[isa]
    cases = [*CASES["conv_int8"][:4], *(c for c in CASES["conv_int8"] if "0.5" in c.name)]
    rows = (True, False, True, False, False)
    assert [added(region_of(c.graph), target, r) for c, r in zip(cases, rows)] == want.get(isa, [AT_ONCE] * 5)
    for case in [*cases, *(c for c in CASES["conv_int8"] if "i16" in str([v.type for v in c.graph.constants]))]:
        check_on(target, template, case, 1)


@pytest.mark.parametrize("isa", [isa for isa in TARGETS if "vnni" in isa])
def test_levels_with_vnni_have_its_instructions(isa):
    for template, name in (("gemm_int8", "vpdpbusd"), ("winograd_int8", "vpdpwssd")):
        case = CASES[template][0]
        region, target = region_of(case.graph), TARGETS[isa]
        layouts = laid(TEMPLATES[template], region, case, 0)
        tactic = next(iter(TEMPLATES[template].tactics(region, layouts, target)))
        source = TEMPLATES[template].emit(region, layouts, tactic, target).source
        code = compiler(isa, machines.Exact).assembly(source)
        assert name in code and ("zmm" in code) == ("v4" in isa)


@pytest.mark.parametrize("isa", TARGETS)
def test_products_of_sorted_steps_are_equal(isa):
    for case in CASES["gemm_int8"][-2:]:
        check_on(TARGETS[isa], TEMPLATES["gemm_int8"], case, 1)


def test_pairs_of_a_row_of_taps_reach_into_the_next_tap():
    """Three channels: the third of a tap and the first of the next are neighbours where rows are steps."""
    w = np.zeros((1, 3, 2, 4), np.int8)
    w[0, 2, 1, 0], w[0, 0, 1, 1] = 127, 2  # the third and fourth byte of the second row
    graph = conv("u8", (1, 3, 8, 9), 1, (2, 4)).graph
    region, target = region_of(graph), of_level("x86_64_v3")
    region.body.constants[region.anchor.inputs[1]][...] = w
    assert [added(region, target, rows) for rows in (False, True)] == [PAIRS, SORTED]
    w[0, 0, 1, 1], w[0, 0, 1, 0], w[0, 1, 1, 0] = 0, 100, 29  # the first and second
    region.body.constants[region.anchor.inputs[1]][...] = w
    assert [added(region, target, rows) for rows in (False, True)] == [WIDE, SORTED]


def test_steps_are_by_pairs_where_these_fit_for_all_outputs_of_a_panel():
    w = np.zeros((1, 1, 11, 5), np.int8)
    w[0, 0, 1, 3], w[0, 0, 2, 3], w[0, 0, 6, 3], w[0, 0, 7, 3] = 100, 100, 64, 64  # no neighbours; 128
    assert steps_by_pairs(w, 4).tolist() == [[[[True, True, True]], [[True, True, True]]]]
    w[0, 0, 9, 4], w[0, 0, 8, 4], w[0, 0, 4, 1], w[0, 0, 5, 1] = -127, -2, 127, 2
    assert steps_by_pairs(w, 4).tolist() == [[[[True, False, True]], [[True, True, False]]]]


def test_tactics_are_shared_by_regions_that_add_products_differently():
    """Regions that differ in nothing but their weights have one key."""
    template, target = TEMPLATES["conv_int8"], of_level("x86_64_v3")
    few, many = (conv("u8", (1, 16, 5, 6), 9, (1, 1), most=most) for most in (64, 127))
    regions = [region_of(c.graph) for c in (few, many)]
    assert regions[0].key == regions[1].key
    layouts = [laid(template, r, c, 0) for r, c in zip(regions, (few, many))]
    for tactic in template.tactics(regions[0], layouts[0], target):
        sources = [template.emit(r, lay, tactic, target).source for r, lay in zip(regions, layouts)]
        assert [f"DOT = {how}," in s for s, how in zip(sources, (PAIRS, WIDE))] == [True, True]


@pytest.mark.parametrize("isa", TARGETS)
def test_largest_factors_of_winograd_on_all_levels(isa):
    for case in CASES["winograd_int8"][-2:]:
        check_on(TARGETS[isa], TEMPLATES["winograd_int8"], case, 1)


def test_channels_are_summed_in_parts_where_sums_may_need_27_bits():
    """Of u8, 255 · 127 · 9 per channel: 2²⁵ is reached at 116 channels; signs apart, by the worst output."""
    w = np.full((2, 116, 3, 3), 127, np.int8)
    w[0] = 1
    assert parts_of(w, False) == 2 and parts_of(w[:, :114], False) == 1 and parts_of(w[:1], False) == 1
    w[1, ::2] *= -1
    assert parts_of(w, False) == 1
    # of i8, signs matter little: 127.5 · 127 · 9 per channel, 2²⁵ at 231
    w = np.tile(w, (1, 4, 1, 1))
    assert [parts_of(w[:, :n], True) for n in (230, 232, 460, 464)] == [1, 2, 2, 3]


def test_pairs_fit_up_to_the_largest_i16():
    """255 · (64 + 64) < 2¹⁵ ≤ 255 · (64 + 65); signs apart, and channels that are no neighbours."""

    def filters(*channels: int) -> np.ndarray:
        return np.array(channels, np.int8).reshape(1, -1, 1, 1)

    assert pairs_fit(filters(64, 64)) and pairs_fit(filters(-64, -64)) and pairs_fit(filters(127, -127, 1))
    assert not pairs_fit(filters(64, 65)) and not pairs_fit(filters(-127, -2))
    assert pairs_fit(filters(1, 127, 127)) and not pairs_fit(filters(1, 127, 127, 2))


@pytest.mark.parametrize("to, low, high", [("u8", 0, 255), ("i8", -128, 127), ("i8", -7.5, 99), ("u8", 3, 3)])
@pytest.mark.parametrize("form", ["round", "truncate", "zero", "fraction"])
@pytest.mark.parametrize("isa", TARGETS)
def test_what_is_clipped_is_cast_as_it_was_rounded(isa, form, to, low, high):
    """Ties, numbers beyond i32, infinities and NaN, rounded before they are clipped, or truncated after it."""
    x = np.concatenate([np.arange(-140, 270) + 0.5, [3e9, -3e9, 2**24 + 1, np.inf, -np.inf, np.nan, -0.0, 1e-40]])
    bounds = dict(low=np.float32(low), high=np.float32(high), z=np.float32({"fraction": 0.25}.get(form, 5)))
    last = "x" if form == "truncate" else "r"
    nodes = [] if form == "truncate" else [("r", "round", "x")]
    if form in ("zero", "fraction"):
        nodes.append(("a", "add", "r z"))
        last = "a"
    nodes += [("c", "clip", f"{last} low high"), ("y", "cast", "c", dict(to=DType(to)))]
    used = {k: v for k, v in bounds.items() if k != "z" or form in ("zero", "fraction")}
    graph = program(*nodes, x=f"f32[{x.size}]", **used)
    case = Case(named(form, to, low, high), graph, {}, dict(x=x.astype(np.float32)))
    assert ("round_within" in source_of(case, isa)) == (low != -7.5 and form in ("round", "zero"))
    check_on(TARGETS[isa], TEMPLATES["pointwise"], case, 1)


def source_of(case: Case, isa: str) -> str:
    """The kernel of a case, without what it includes."""
    template, region, target = TEMPLATES["pointwise"], region_of(case.graph), TARGETS[isa]
    layouts = laid(template, region, case, 0)
    return template.emit(region, layouts, next(iter(template.tactics(region, layouts, target))), target).source


SATURATED = [
    ("f", "cast", "x", dict(to=DType.F32)),
    ("s", "mul", "f m"),
    ("r", "round", "s"),
    ("a", "add", "r z"),
    ("c", "clip", "a low high"),
]


@pytest.mark.parametrize("to, low, high", [("u8", 0, 255), ("i8", -128, 127), ("u8", 3, 200)])
@pytest.mark.parametrize("m, z", [(0.5, 121), (0.25, -7), (0.484375, 0), (3.0, 5)])
@pytest.mark.parametrize("isa", TARGETS)
def test_sums_are_saturated_where_that_is_all_of_the_type(isa, to, low, high, m, z):
    """The largest sums, ties, and what is read again, with the zero point and without; with large factors it is clipped
    before it is cast."""
    x = np.concatenate([np.arange(-600, 900), [2**31 - 1, -(2**31), 2**24 + 1]]).astype(np.int32)
    nodes = [
        *SATURATED,
        ("out", "cast", "c", dict(to=DType(to))),
        ("g", "cast", "out", dict(to=DType.F32)),
        ("b", "add", "g back"),
        ("w", "mul", "b g"),
    ]
    numbers = dict(m=m, z=z, low=low, high=high, back=-z)
    graph = program(*nodes, x=f"i32[{x.size}]", **{k: np.float32(v) for k, v in numbers.items()})
    case = Case(named(to, low, high, m, z), graph, {}, dict(x=x))
    source = source_of(case, isa)
    assert ("round_saturated" in source) == (low in (0, -128) and m < 0.5)
    assert f"cast_{to}_f32" not in source
    check_on(TARGETS[isa], TEMPLATES["pointwise"], case, 1)


@pytest.mark.parametrize("isa", TARGETS)
def test_what_may_be_nan_is_read_again_as_the_integer_that_it_became(isa):
    x = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, 300, -300], np.float32)
    nodes = [
        ("r", "round", "x"),
        ("c", "clip", "r low high"),
        ("y", "cast", "c", dict(to=DType.U8)),
        ("g", "cast", "y", dict(to=DType.F32)),
    ]
    graph = program(*nodes, x=f"f32[{x.size}]", low=np.float32(0), high=np.float32(255))
    case = Case("nan", graph, {}, dict(x=x))
    assert "cast_u8_f32" in source_of(case, isa) and "round_saturated" not in source_of(case, isa)
    check_on(TARGETS[isa], TEMPLATES["pointwise"], case, 1)


def test_single_pixels_are_in_sorted_steps_only_where_about_half_of_these_are_pairs():
    few, many = np.arange(20) < 6, np.arange(20) < 12
    assert [dot_method(f, 80, single) for f in (few, many) for single in (False, True)] == [
        SORTED,
        WIDE,
        SORTED,
        SORTED,
    ]
