"""Softmax and the normalisations."""

import numpy as np
import pytest
from kernel_harness import Case, check, declare, named, program, region_of, varying, walk

from pelton.codegen.template import TEMPLATES

LAST = (0, 2, 3, 1)


def softmax(type, axis, op="softmax", order=None, tail=(), array=None, **more):
    graph = program(("y", op, "x", dict(axis=axis)), *tail, x=type, **more)
    return Case(
        named(op, type, axis, order, array is not None and "hard"),
        graph,
        dict(x=order) if order else {},
        {} if array is None else dict(x=array),
    )


HARD = np.array([[0, -np.inf, 88, -100, 3e38] * 3, [-np.inf] * 14 + [0], [-3e38] * 15, [700] * 15])

declare(
    "softmax",
    *(
        softmax(type, axis, op, order)
        for op in ("softmax", "log_softmax")
        for type, axis, order in (
            ("f32[5, 13]", 1, None),
            ("f32[3, 60]", 1, None),
            ("f32[3, 1009]", 1, None),
            ("f32[2, 3, 7, 5]", 1, None),
            ("f32[2, 35, 7, 5]", 1, LAST),
            ("f32[2, 3, 7, 75]", 2, None),
        )
    ),
    *(
        varying(f"%x: {type}", f"%y = softmax(%x) {{axis={axis}}}", order=order)
        for type, axis, order in (
            ("f32[n, m]", 1, ()),
            ("f32[m, n]", 1, ()),
            ("f32[m, n]", 0, ()),
            ("f32[n, 3, m, n]", 1, LAST),
            ("f32[n, m]", 0, (1, 0)),
        )
    ),
    softmax("f32[7]", 0),
    softmax("f32[4, 1]", 1),
    softmax("f32[4, 15]", 1, array=HARD),
    softmax("f32[4, 15]", 1, "log_softmax", array=np.maximum(HARD, -1e30)),
    softmax("f16[4, 15]", 1),
    softmax("f64[4, 15]", 1, array=HARD),
    softmax("f64[3, 21, 5]", 1, "log_softmax"),
    softmax("f32[2, 3, 50]", 2, tail=[("s", "mul", "y z"), ("o", "add", "s x")], z="f32[3, 1]"),
)


@pytest.mark.parametrize("template, case", walk("softmax"))
def test_softmax(template, case):
    check(template, case)


def norm(op, type, factors, order=None, tail=(), constant=False, **attrs):
    rng = np.random.default_rng(1)
    given = {
        n: rng.standard_normal(f).astype(np.float32) if constant else f"f32{list(f)}"
        for n, f in zip(("scale", "bias"), factors)
    }
    more = dict(z=type) if tail else {}
    graph = program(("y", op, f"x {' '.join(given)}", attrs), *tail, x=type, **given, **more)
    return Case(named(op, type, *factors, *attrs.values(), order, constant), graph, dict(x=order) if order else {})


declare(
    "norm",
    norm("layer_norm", "f32[2, 5, 58]", [(58,), (58,)], axis=2),
    norm(
        "layer_norm",
        "f32[2, 5, 768]",
        [(768,), (768,)],
        axis=2,
        constant=True,
        tail=[("s", "relu", "y"), ("t", "add", "s z")],
    ),
    norm("layer_norm", "f32[3, 7, 5]", [(7, 5), (7, 5)], axis=1, epsilon=1e-3),
    norm("layer_norm", "f32[3, 7, 5]", [(1,), (7, 5)], axis=1),
    varying("%x: f32[m, n, n], %s: f32[n], %b: f32[1]", "%y = layer_norm(%x, %s, %b) {axis=2}", "%z = relu(%y)"),
    varying("%x: f32[n, 3, m], %s: f32[3, m]", "%y = rms_norm(%x, %s) {axis=1}", order=(1, 0, 2)),
    norm("layer_norm", "f32[3, 1, 5]", [(3, 1, 1), (5,)], axis=2),
    norm("layer_norm", "f32[3, 4, 35]", [(35,), (35,)], axis=2, order=(1, 0, 2)),
    norm("layer_norm", "f32[3, 4, 35]", [(35,), (35,)], axis=2, order=(0, 2, 1)),
    norm("layer_norm", "f32[4, 35]", [(4, 35), (4, 35)], axis=0, constant=True),
    norm("rms_norm", "f32[2, 5, 58]", [(58,)], axis=2),
    norm("rms_norm", "f32[3, 7, 5]", [(7, 5)], axis=1, constant=True),
)

declare(
    "channel_norm",
    varying("%x: f32[n, 6, m, n], %s: f32[6], %b: f32[6]", "%y = group_norm(%x, %s, %b) {groups=3}", order=LAST),
    varying("%x: f32[m, 6*n, n], %s: f32[6*n], %b: f32[6*n]", "%y = instance_norm(%x, %s, %b)"),
    norm("group_norm", "f32[2, 6, 5, 7]", [(6,), (6,)], groups=3, order=LAST),
    norm(
        "group_norm",
        "f32[1, 160, 5, 7]",
        [(160,), (160,)],
        groups=32,
        order=LAST,
        constant=True,
        tail=[("s", "relu", "y"), ("t", "add", "s z")],
    ),
    norm("group_norm", "f32[1, 58, 13]", [(58,), (58,)], groups=2, epsilon=1e-3),
    norm("group_norm", "f32[2, 21]", [(21,), (21,)], groups=7),
    norm("instance_norm", "f32[2, 3, 5, 7]", [(3,), (3,)]),
    norm(
        "instance_norm",
        "f32[2, 43, 5, 7]",
        [(43,), (43,)],
        order=LAST,
        constant=True,
        tail=[("s", "relu", "y"), ("t", "add", "s z")],
    ),
    norm("instance_norm", "f32[1, 16, 4, 9]", [(16,), (16,)], order=LAST),
    norm("instance_norm", "f32[1, 1, 50]", [(1,), (1,)], epsilon=1e-3, constant=True),
)


def lrn(shape, size, beta, bias):
    return Case(
        named("lrn", shape, size, beta),
        program(("y", "lrn", "x", dict(size=size, alpha=0.3, beta=beta, bias=bias)), x=f"f32{list(shape)}"),
        dict(x=(0, *range(2, len(shape)), 1)),
    )


declare(
    "lrn",
    varying("%x: f32[m, n, n]", "%y = lrn(%x) {size=5, alpha=0.3, beta=0.75, bias=1.0}"),
    lrn((2, 7, 5, 3), 5, 0.75, 1.0),
    lrn((1, 58, 3, 3), 4, 0.5, 2.0),
    lrn((1, 3, 9), 3, 1.0, 1.0),
    lrn((2, 19), 5, 0.6, 1.5),
    lrn((1, 5, 2, 2), 9, 0.75, 1.0),
    lrn((1, 192, 3, 2), 5, 0.75, 1.0),
)


@pytest.mark.parametrize("template, case", walk("norm", "channel_norm", "lrn"))
def test_norm(template, case):
    check(template, case)


def test_a_norm_refuses_operands_that_repeat_along_some_of_its_axes():
    """They would need two strides along the columns; in a region of their own they are a pointwise loop."""
    case = norm("layer_norm", "f32[3, 7, 5]", [(7, 5), (7, 5)], axis=1)
    assert TEMPLATES["norm"].rejection(region_of(case.graph)) is None
    for graph in (
        norm("layer_norm", "f32[3, 7, 5]", [(5,), (7, 5)], axis=1).graph,
        program(
            ("y", "layer_norm", "x s b", dict(axis=1)),
            ("out", "mul", "y z"),
            x="f32[3, 7, 5]",
            s="f32[7, 5]",
            b="f32[7, 5]",
            z="f32[5]",
        ),
    ):
        assert "repeats along some" in TEMPLATES["norm"].rejection(region_of(graph))
