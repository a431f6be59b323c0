"""Chains of convolutions computed depth first: expand, filter and project, or two of these, in strips of rows."""

import numpy as np
import pytest
from kernel_harness import CASES, TARGET, Case, check, declare, named, program, region_of, walk

from pelton.ir.evaluate import evaluate
from pelton.codegen.template import TEMPLATES, Target
from pelton.plan.layout import channels_last, dense

ORDER = channels_last(4)
RELU6 = "relu6"


def chained(shape, wide, out, kernel=3, stride=1, pads=None, act="relu", last=(), expand=True, **more):
    """x → 1×1 to `wide` channels, act → depthwise, act → 1×1 to `out` channels (0: none), and what comes last."""
    rng = np.random.default_rng(0)
    constants, nodes, x, c = {}, [], "x", shape[1]

    def conv(y, oc, k, group, **attrs):
        nonlocal x, c
        constants[y + "w"] = (rng.standard_normal((oc, c // group, k, k)) / np.sqrt(c // group * k * k)).astype(
            np.float32
        )
        constants[y + "b"] = rng.standard_normal(oc).astype(np.float32)
        nodes.append(
            (
                y,
                "convolution",
                f"{x} {y}w {y}b",
                dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=group) | attrs,
            )
        )
        x, c = y, oc

    def activate():
        nonlocal x
        y = x + "a"
        if act == RELU6:
            constants.update(zero=np.float32(0).reshape(1), six=np.float32(6).reshape(1))
            nodes.extend([(y + "0", "maximum", f"{x} zero"), (y, "minimum", f"{y}0 six")])
        elif act == "swish":
            nodes.extend([(y + "s", "sigmoid", x), (y, "mul", f"{x} {y}s")])
        elif act:
            nodes.append((y, act, x))
        x = y if act else x

    if expand:
        conv("e", wide, 1, 1)
        activate()
    conv("f", c, kernel, c, strides=(stride,) * 2, pads=pads or (kernel // 2,) * 4)
    activate()
    if out:
        conv("p", out, 1, 1)
    nodes += last
    graph = program(*nodes, x=f"f32{list(shape)}", **constants, **more)
    name = named(shape, wide, out, kernel, stride, pads, act, last and "tail", not expand and "no-expand")
    return Case(name, graph, dict.fromkeys(("x", "z"), ORDER))


declare(
    "strips",
    chained((1, 16, 13, 13), 96, 24, stride=2, act=RELU6),
    chained((3, 17, 14, 13), 34, 17, act=RELU6, last=[("out", "add", "p x")]),
    chained((1, 5, 7, 7), 17, 7, act="swish"),
    chained((2, 8, 9, 7), 48, 40, kernel=5, stride=2, act="relu"),
    chained((1, 3, 23, 29), 13, 19, kernel=7, last=[("s", "add", "p z"), ("out", "relu", "s")], z="f32[1, 19, 23, 29]"),
    chained((1, 4, 12, 10), 33, 9, stride=2, pads=(0, 0, 1, 1), act="tanh"),
    chained((1, 300, 5, 6), 280, 10, act=""),
    chained((1, 1, 1, 1), 1, 1),
    chained(
        (1, 6, 9, 3),
        26,
        27,
        pads=(2, 2, 0, 1),
        last=[
            ("s", "relu", "p"),
            ("out5", "slice", "s", dict(starts=(0,), ends=(5,), axes=(1,), steps=(1,))),
            ("out27", "slice", "s", dict(starts=(5,), ends=(27,), axes=(1,), steps=(1,))),
        ],
    ),
    chained((1, 12, 15, 13), 50, 0, act=RELU6),
    chained((2, 16, 11, 14), 24, 0, kernel=5, stride=2, act="swish"),
    chained((2, 35, 13, 12), 35, 19, expand=False),
    chained((1, 13, 9, 11), 13, 64, kernel=5, stride=2, act=RELU6, expand=False),
)


@pytest.mark.parametrize("template, case", walk("strips"))
def test_kernel(template, case):
    check(template, case)


@pytest.mark.parametrize("case", CASES["strips"][:3], ids=lambda c: c.name)
def test_every_tactic(case):
    assert check(TEMPLATES["strips"], case, most=100, gaps=True) >= 4


def dense_layouts(region):
    return {
        v: dense(v.type.shape, ORDER if v.type.rank == 4 else None)
        for v in (*region.body.inputs, *region.body.constants, *region.body.outputs)
    }


def test_what_a_worker_holds_stays_in_its_share_of_the_cache():
    region = region_of(chained((1, 24, 56, 56), 144, 24).graph)
    template = TEMPLATES["strips"]
    for l2 in (256 << 10, 512 << 10, 2 << 20):
        target = Target(l2=l2, threads=2)
        layouts = dense_layouts(region)
        kernels = [template.emit(region, layouts, t, target) for t in template.tactics(region, layouts, target)]
        assert kernels and all(k.scratch <= l2 for k in kernels)
    assert not list(template.tactics(region, dense_layouts(region), Target(l2=32 << 10)))


def test_images_of_a_batch_are_strips_enough():
    tactics = [
        list(TEMPLATES["strips"].tactics(r, dense_layouts(r), TARGET))
        for r in (region_of(chained((n, 8, 16, 16), 24, 8).graph) for n in (1, 8))
    ]
    assert [t[0]["RB"] for t in tactics] == [4, 16]


@pytest.mark.parametrize(
    "reason, case",
    [
        ("strides larger than the filter", chained((1, 4, 9, 9), 8, 8, kernel=3, stride=4)),
        ("entirely in the padding", chained((1, 4, 9, 9), 8, 8, kernel=3, pads=(3, 0, 0, 0))),
        ("an intermediate has several readers", chained((1, 8, 9, 9), 8, 8, last=[("out", "add", "p ea")])),
        ("an intermediate has several readers", chained((1, 8, 9, 9), 8, 0, last=[("out", "add", "fa ea")])),
        (
            "an intermediate has several readers",
            Case("kept", (g := chained((1, 8, 9, 9), 8, 8).graph).replace(outputs=(*g.outputs, g.nodes[1].output))),
        ),
    ],
)
def test_what_is_no_chain_is_rejected(reason, case):
    assert reason in TEMPLATES["strips"].rejection(region_of(case.graph))
    assert evaluate(case.graph, {v.name: np.zeros(v.type.shape, np.float32) for v in case.graph.inputs})
