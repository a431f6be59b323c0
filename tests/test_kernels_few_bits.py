"""Products with weights of few bits: every storage, at odd sizes, exact by three digits, and near by fewer."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGET, TARGETS, check, check_on, declare, laid

from pelton.codegen.c.templates.quantized_linear import Panels
from pelton.codegen.template import TEMPLATES
from pelton.ir.types import DType
from pelton.tuning.candidates import template_rejection

TEMPLATE = TEMPLATES["quantized_linear"]


def product(
    rows,
    n,
    k,
    bits,
    block,
    scale="float32",
    zeros=False,
    round_rows=False,
    minimum="",
    tail=(),
    orders=None,
    half=DType.F32,
    **more,
):
    """rows: the sizes before the last one; zeros: with zero points; minimum: the type that holds those of blocks, of
    which floats as zero points are made."""
    rng, blocks = np.random.default_rng(n), -(-k // block)
    arrays = dict(w=rng.integers(0, 256, (n, -(-k * bits // 8)), np.uint8))
    arrays["s"] = (rng.uniform(-2, 2, (n, blocks)) / 8).astype(scale)
    if zeros:
        arrays["z"] = rng.integers(0, 1 << bits, (n, blocks), np.uint8)
    if minimum:
        least = rng.uniform(-1, 1, (n, blocks)).astype(minimum)
        arrays["z"] = (-least.astype(np.float64) / arrays["s"]).astype(np.float32)
    attrs = dict(block=block, bits=bits, round_rows=round_rows)
    node = ("y", "quantized_linear", " ".join(["x", *arrays]), attrs)
    graph = program(node, *tail, x=f"f32[{', '.join(map(str, (*rows, k)))}]", **arrays, **more)
    name = named((*rows, k), n, bits, block, scale[5:], zeros and "zeros", minimum, round_rows and "rounds")
    return Case(name, graph, orders or {}, half=half)


declare(
    "quantized_linear",
    product((1,), 70, 96, 4, 32, "float16"),
    product((5,), 43, 70, 4, 32, zeros=True),
    product((2, 3), 33, 200, 8, 64, zeros=True),
    product((13,), 35, 100, 8, 100),
    product((29,), 61, 513, 4, 128, "float16", round_rows=True),
    product((3,), 130, 48, 2, 16, zeros=True),
    product((7,), 31, 90, 2, 16, round_rows=True),
    product((97,), 37, 64, 4, 16, "float16", zeros=True),
    product((50,), 5, 33, 8, 40, zeros=True),
    product((2, 17), 40, 160, 4, 32, tail=[("s", "add", "y c"), ("out", "tanh", "s")], c="f32[40]"),
    product((11,), 45, 96, 4, 32, zeros=True, half=DType.BF16),
    product((3, 4, 5), 21, 64, 8, 32, "float16", orders=dict(x=(1, 0, 2, 3))),
    product((1,), 70, 96, 4, 32, "float16", minimum="float16"),
    product((13,), 35, 100, 8, 100, minimum="float32"),
    product((29,), 61, 513, 4, 128, "float16", minimum="float32", round_rows=True),
    product((7,), 31, 90, 2, 16, minimum="float16", half=DType.BF16),
    product((50,), 37, 200, 8, 64, minimum="float16"),
)


@pytest.mark.parametrize("template, case", [pytest.param(TEMPLATE, c, id=c.name) for c in CASES["quantized_linear"]])
def test_cases(template, case):
    check(template, case)


@pytest.mark.parametrize("more", [dict(zeros=True), dict(minimum="float16"), dict(minimum="float32", bits=8)])
@pytest.mark.parametrize("isa", list(TARGETS))
def test_tactics_of_every_level(isa, more):
    case = product(**dict(rows=(13,), n=67, k=160, bits=4, block=32, round_rows=True) | more)
    assert check_on(TARGETS[isa], TEMPLATE, case, 6, gaps=False) == 6


@pytest.mark.parametrize("minimum, held", [("float16", 2), ("float32", 4)])
def test_minima_are_stored_as_narrow_as_they_are(minimum, held):
    case = product((9,), 40, 64, 4, 32, "float16", minimum=minimum)
    (panel, _, record) = Panels(region_of(case.graph), 32, True).packed().shape
    assert (panel, record) == (2, 32 * (16 + 2 + held))


@pytest.mark.parametrize("exact, factor, held", [(True, 1, 4), (False, 1, 2), (False, 1e-8, 4), (False, 1e6, 4)])
def test_scales_become_halves_with_rounded_rows(exact, factor, held):
    """Those that are subnormal or infinite as halves stay f32."""
    graph = product((9,), 40, 64, 4, 32).graph
    next(a for v, a in graph.constants.items() if v.name == "s")[:] *= np.float32(factor)
    assert Panels(region_of(graph), 32, exact).packed().shape[-1] == 32 * (16 + held)


def test_few_tactics_round_rows():
    def parts(half=DType.F32, **options):
        case = product((9,), 40, 64, 4, 32, **options)
        region, target = region_of(case.graph), replace(TARGET, half=half)
        return {t["PARTS"] for t in TEMPLATE.tactics(region, laid(TEMPLATE, region, case, 0), target)}

    assert parts() == {3}
    assert parts(DType.BF16) == {2, 3}
    assert parts(round_rows=True) == {1, 3}
    assert parts(DType.F16, round_rows=True) == {1, 2, 3}


@pytest.mark.parametrize(
    "case, reason",
    [
        (product((9,), 40, 100, 4, 24), "blocks of 24 elements, no multiple of 16"),
        (product((), 40, 96, 4, 32), "the operand is a vector"),
    ],
)
def test_rejections(case, reason):
    assert template_rejection(TEMPLATE, region_of(case.graph)) == reason
