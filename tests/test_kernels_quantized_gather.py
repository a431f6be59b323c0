"""Rows of tables of few bits, out of the panels of the product with the same weights."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGETS, check, check_on, declare

from pelton.codegen.c.templates.quantized_linear import Panels
from pelton.codegen.template import TEMPLATES
from pelton.ops.words import quantized_gather, quantized_linear
from pelton.tuning.candidates import template_rejection

TEMPLATE = TEMPLATES["quantized_gather"]


def weights(n, k, bits, block, scale="float32", zeros=""):
    rng, blocks = np.random.default_rng(n), -(-k // block)
    arrays = dict(w=rng.integers(0, 256, (n, -(-k * bits // 8)), np.uint8))
    arrays["s"] = (rng.uniform(-2, 2, (n, blocks)) / 8).astype(scale)
    if zeros == "bytes":
        arrays["z"] = rng.integers(0, 1 << bits, (n, blocks), np.uint8)
    elif zeros:
        arrays["z"] = (rng.uniform(-1, 1, (n, blocks)) / arrays["s"]).astype(np.float32)
    return arrays


def rows(shape, n, k, bits, block, scale="float32", zeros="", tail=(), indices="i64", rounds=False, **more):
    arrays = weights(n, k, bits, block, scale, zeros)
    attrs = dict(block=block, bits=bits, length=k, round_scales=rounds)
    node = ("y", "quantized_gather", " ".join(["w", "i", *[a for a in arrays if a != "w"]]), attrs)
    graph = program(node, *tail, i=f"{indices}[{', '.join(map(str, shape))}]", **arrays, **more)
    return Case(named(shape, n, k, bits, block, scale[5:], zeros, rounds and "rounds"), graph)


declare(
    "quantized_gather",
    rows((1,), 70, 96, 4, 32),
    rows((5,), 43, 70, 4, 32, zeros="bytes"),
    rows((2, 3), 33, 200, 8, 64, zeros="bytes"),
    rows((13,), 35, 100, 8, 100, indices="i32"),
    rows((29,), 61, 513, 4, 128, zeros="floats"),
    rows((3,), 130, 48, 2, 16, zeros="bytes"),
    rows((7, 1), 31, 90, 2, 16),
    rows((), 40, 33, 4, 16),
    rows((9,), 70, 96, 4, 32, rounds=True),
    rows((2, 5), 37, 100, 8, 100, zeros="bytes", rounds=True),
    rows((2, 17), 40, 160, 4, 32, tail=[("s", "add", "y c"), ("out", "tanh", "s")], c="f32[160]"),
)


@pytest.mark.parametrize("case", CASES["quantized_gather"], ids=lambda c: c.name)
def test_cases(case):
    check(TEMPLATE, case)


@pytest.mark.parametrize("zeros", ["", "bytes", "floats"])
@pytest.mark.parametrize("isa", list(TARGETS))
def test_every_level(isa, zeros):
    assert check_on(TARGETS[isa], TEMPLATE, rows((13,), 67, 165, 4, 32, zeros=zeros), 1, gaps=False) == 1


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("bits, block, zeros", [(4, 32, ""), (8, 64, "bytes"), (2, 16, "floats")])
def test_panels_are_those_of_the_product(bits, block, zeros, exact):
    arrays = weights(70, 200, bits, block, zeros=zeros)
    attrs, others = dict(block=block, bits=bits), [a for a in arrays if a != "w"]
    product = program(("y", "quantized_linear", " ".join(["x", *arrays]), attrs), x="f32[3, 200]", **arrays)
    picked = rows((3,), 70, 200, bits, block, zeros=zeros).graph
    packed = [Panels(region_of(g), 32, exact).packed() for g in (product, picked)]
    assert [n.op for g in (product, picked) for n in g.nodes] == [quantized_linear, quantized_gather]
    assert len(others) == len(arrays) - 1 and packed[0].form == packed[1].form
    contents = [np.zeros(p.shape, np.uint8) for p in packed]
    for p, array in zip(packed, contents):
        p.fill(array)
    assert [v.name for v in packed[0].sources] == [v.name for v in packed[1].sources]
    assert np.array_equal(*contents)


@pytest.mark.parametrize(
    "case, reason",
    [
        (rows((9,), 40, 100, 4, 24), "blocks of 24 elements, no multiple of 16"),
        (rows((9,), 40, 96, 4, 32, "float16"), "not f32"),
    ],
)
def test_rejections(case, reason):
    assert template_rejection(TEMPLATE, region_of(case.graph)) == reason
