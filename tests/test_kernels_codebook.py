"""Products with weights that number the entries of a table: blocks, scales and rows of odd sizes, in f32."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGETS, check, check_on, declare

from pelton.codegen.c.templates.quantized_linear import Panels
from pelton.codegen.template import TEMPLATES
from pelton.tuning.candidates import template_rejection

TEMPLATE = TEMPLATES["codebook_linear"]


def product(rows, n, k, block, scale="float32", tail=(), orders=None, table=None, **more):
    """rows: the sizes before the last one."""
    rng = np.random.default_rng(n)
    w = rng.integers(0, 256, (n, -(-k // 2)), np.uint8)
    s = (rng.uniform(-2, 2, (n, -(-k // block))) / 8).astype(scale)
    table = tuple(map(float, rng.uniform(-1, 1, 16).astype(np.float32))) if table is None else table
    node = ("y", "codebook_linear", "x w s", dict(block=block, table=table))
    graph = program(node, *tail, x=f"f32[{', '.join(map(str, (*rows, k)))}]", w=w, s=s, **more)
    return Case(named((*rows, k), n, block, scale[5:]), graph, orders or {})


declare(
    "codebook_linear",
    product((1,), 70, 96, 32, "float16"),
    product((5,), 43, 70, 32),
    product((2, 3), 33, 200, 64),
    product((13,), 35, 100, 100),
    product((29,), 61, 513, 128, "float16"),
    product((3,), 130, 48, 16),
    product((97,), 37, 2111, 2111),
    product((2, 17), 40, 160, 32, tail=[("s", "add", "y c"), ("out", "tanh", "s")], c="f32[40]"),
    product((3, 4, 5), 21, 64, 64, orders=dict(x=(1, 0, 2, 3))),
)


@pytest.mark.parametrize("case", CASES["codebook_linear"], ids=lambda c: c.name)
def test_cases(case):
    check(TEMPLATE, case)


@pytest.mark.parametrize("isa", list(TARGETS))
def test_every_level(isa):
    assert check_on(TARGETS[isa], TEMPLATE, product((13,), 67, 165, 32), 3, gaps=False) == 3


def test_panels_hold_four_bits_and_a_scale():
    panels = Panels(region_of(product((9,), 40, 64, 32, "float16").graph), 32, exact=True)
    assert panels.packed().shape == (2, 2, 32 * (16 + 2))


@pytest.mark.parametrize(
    "case, reason",
    [
        (product((9,), 40, 100, 24), "blocks of 24 elements, no multiple of 16"),
        (product((), 40, 96, 32), "the operand is a vector"),
        (product((9,), 40, 96, 32, table=(1e39,) * 16), "entries of the table that are no numbers of f32"),
    ],
)
def test_rejections(case, reason):
    assert template_rejection(TEMPLATE, region_of(case.graph)) == reason
