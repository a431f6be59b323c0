"""Products of two computed byte operands: equal sums of the largest differences, at odd sizes, in any layout."""

import machines
import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGETS, check, check_on, compiler, declare, laid, varying

from pelton.codegen.template import TEMPLATES
from pelton.ir.types import DType
from pelton.tuning.candidates import template_rejection

TEMPLATE = TEMPLATES["matmul_int8"]
# what follows scores between quantized layers: bytes of their own scale, a mask, bytes again
SCALED = [
    ("f", "cast", "y", dict(to=DType.F32)),
    ("s", "mul", "f scale"),
    ("r", "round", "s"),
    ("c", "clip", "r low high"),
    ("m", "add", "c mask"),
    ("t", "round", "m"),
    ("d", "clip", "t low high"),
    ("out", "cast", "d", dict(to=DType.U8)),
]
SCALING = dict(scale=np.float32(2**-11), low=np.float32(0), high=np.float32(255))


def extremes(rng, of, shape):
    """Bytes of the whole range, half of them the largest and the least."""
    low, high = (0, 255) if of == "u8" else (-128, 127)
    ends, others = rng.choice([low, high], shape), rng.integers(low, high + 1, shape)
    return np.where(rng.random(shape) < 0.5, ends, others).astype("uint8" if low == 0 else "int8")


def product(types, a, b, zeros=(0, 0), orders=None, mask=None):
    """types: of both operands; mask: the shape of what is added behind."""
    rng, (of, by) = np.random.default_rng(0), types.split()
    attrs = dict(accumulate=DType.I32, a_zero=zeros[0], b_zero=zeros[1])
    fed = dict(x=extremes(rng, of, a), w=extremes(rng, by, b))
    given = dict(x=f"{of}{list(a)}", w=f"{by}{list(b)}")
    if mask is not None:
        given |= dict(mask=f"f32{list(mask)}", **SCALING)
        fed["mask"] = rng.integers(-99, 99, mask).astype(np.float32)
    graph = program(("y", "matmul", "x w", attrs), *([] if mask is None else SCALED), **given)
    name = named(types, a, b, zeros, orders and str(orders), mask)
    return Case(name, graph, orders or {}, fed)


HEADS = dict(x=(0, 2, 1, 3), w=(0, 2, 1, 3))  # parts of a token side by side
TRANSPOSED = dict(x=(0, 2, 1, 3), w=(0, 3, 1, 2))

declare(
    "matmul_int8",
    product("u8 u8", (37, 61), (61, 43), (255, 0)),
    product("u8 i8", (58, 125), (125, 37), (0, -128)),
    product("i8 i8", (2, 3, 13, 64), (2, 3, 64, 35), (-128, 127), TRANSPOSED, (2, 1, 1, 35)),
    product("i8 u8", (3, 2, 29, 33), (2, 33, 50), (127, 255), dict(w=(0, 2, 1)), (29, 1)),
    product("u8 u8", (1, 4, 17, 21), (1, 4, 21, 32), (3, 131), HEADS),
    product("u8 i8", (1, 3, 7, 32), (2, 1, 32, 9), (121, 5), dict(w=(0, 1, 3, 2))),
    product("i8 i8", (1, 1000), (1000, 3)),
    product("i8 u8", (1, 1000), (1000, 19), (0, 128), dict(w=(1, 0))),
    product("u8 u8", (9, 1), (1, 70), (255, 255)),
    product("u8 i8", (5, 2), (2, 1), (1, 1)),
    product("i8 i8", (130, 3), (3, 130), (-1, 1), dict(w=(1, 0))),
    product("u8 u8", (4, 6, 47), (4, 47, 31), (77, 200)),
    product("u8 u8", (2, 5, 16), (16, 48), (9, 0)),
    varying("%x: u8[n, m, 5], %w: i8[n, 5, long]", "%y = matmul(%x, %w) {accumulate=i32, a_zero=255, b_zero=-128}"),
    varying("%x: i8[3, m, n], %w: i8[3, n, 7]", "%y = matmul(%x, %w) {accumulate=i32, a_zero=-128, b_zero=127}"),
)


@pytest.mark.parametrize("case", CASES["matmul_int8"], ids=lambda c: c.name)
def test_products_are_equal(case):
    assert check(TEMPLATE, case)


@pytest.mark.parametrize("isa", TARGETS)
def test_largest_differences_on_all_levels(isa):
    for case in CASES["matmul_int8"][:5]:
        check_on(TARGETS[isa], TEMPLATE, case, 1)


@pytest.mark.parametrize("isa", [isa for isa in TARGETS if isa.startswith("x86")])
def test_two_products_to_an_instruction(isa):
    case = CASES["matmul_int8"][0]
    region, target = region_of(case.graph), TARGETS[isa]
    layouts = laid(TEMPLATE, region, case, 0)
    tactic = next(iter(TEMPLATE.tactics(region, layouts, target)))
    code = compiler(isa, machines.Exact).assembly(TEMPLATE.emit(region, layouts, tactic, target).source)
    assert ("vpdpwssd" if "vnni" in isa else "vpmaddwd") in code and ("zmm" in code) == ("v4" in isa)


def test_what_it_rejects():
    def rejection(node, **given):
        return template_rejection(TEMPLATE, region_of(program(("y", "matmul", "x w", node), **given)))

    of, sums = dict(x="u8[5, 7]", w="i8[7, 3]"), dict(accumulate=DType.I32)
    assert rejection(sums, **of) is None
    assert "does not sum in i32" in rejection(dict(sums, to=DType.F32), **of)
    assert "not bytes by bytes" in rejection(sums, **dict(of, w="i16[7, 3]"))
    assert "an operand is a vector" in rejection(sums, **dict(of, x="u8[7]"))
    assert "constant" in rejection(sums, **dict(of, w=np.ones((7, 3), np.int8)))
    zeros = program(("y", "matmul", "x w", dict(sums, a_zero=1)), x="u8[5, 7]", w=np.ones((7, 3), np.int8))
    assert "subtracts zero points" in template_rejection(TEMPLATES["gemm_int8"], region_of(zeros))
