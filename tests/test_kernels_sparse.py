"""Products by weights of mostly zeros: f32 at odd sizes and densities, and bytes of which half are kept."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGET, TARGETS, check, check_on, declare, laid

from pelton.codegen.template import TEMPLATES
from pelton.tuning.candidates import template_rejection

SPARSE = TEMPLATES["sparse"]


def sparse(shape, share, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * (rng.random(shape) < share)).astype(np.float32)


def linear(rows, n, k, share=0.2, tail=(), orders=None, holes=(), **more):
    """holes: outputs without a weight."""
    w = sparse((k, n), share, n)
    w[:, list(holes)] = 0
    graph = program(("y", "matmul", "x w"), *tail, x=f"f32[{', '.join(map(str, (*rows, k)))}]", w=w, **more)
    return Case(named((*rows, k), n, share, holes), graph, orders or {})


def convolution(size, n, k, share=0.2, tail=(), **more):
    w, bias = sparse((n, k, *(1 for _ in size)), share, n), np.linspace(-1, 1, n, dtype=np.float32)
    attrs = dict(strides=[1] * len(size), pads=[0] * 2 * len(size), dilations=[1] * len(size), group=1)
    shape = ", ".join(map(str, (2, k, *size)))
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"f32[{shape}]", w=w, b=bias, **more)
    return Case(named("1x1", size, n, k, share), graph, dict(x=(0, *range(2, 2 + len(size)), 1)))


declare(
    "sparse",
    linear((37,), 43, 70),
    linear((1,), 45, 96, holes=range(16, 45)),
    linear((3,), 45, 81, 0.4),
    linear((2, 5), 33, 200, 0.1, holes=(0, 1, 31, 32)),
    linear((1,), 1, 5000, 0.3),
    linear((130,), 3, 1100, 0.25),
    linear((9,), 64, 64, 0.0),
    linear((17,), 40, 160, tail=[("s", "add", "y c"), ("out", "tanh", "s")], c="f32[40]"),
    linear((3, 4, 5), 61, 64, orders=dict(x=(1, 0, 2, 3))),
    convolution((7, 9), 43, 50, tail=[("out", "relu", "y")]),
    convolution((49,), 33, 257, 0.05, tail=[("s", "add", "y z"), ("out", "sigmoid", "s")], z="f32[2, 33, 49]"),
)


@pytest.mark.parametrize("template, case", [pytest.param(SPARSE, c, id=c.name) for c in CASES["sparse"]])
def test_cases(template, case):
    check(template, case)


@pytest.mark.parametrize("isa", list(TARGETS))
def test_tactics_of_every_level(isa):
    case = linear((83,), 67, 400)
    assert check_on(TARGETS[isa], SPARSE, case, 9, gaps=False) >= 4
