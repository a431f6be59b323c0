"""Interpolation and transposed convolutions."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import (
    CASES,
    Case,
    check,
    check_at,
    check_dynamic,
    declare,
    named,
    program,
    region_of,
    symbolic,
    walk,
)

from test_kernels import fed

from pelton.ir.graph import optimum_sizes
from pelton.ir.text import parse
from pelton.ir.types import TensorType
from pelton.codegen.template import TEMPLATES
from pelton.tuning.candidates import template_rejection

LAST = dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1))


def resizing(shape, to, scales=None, tail=(), order=True, dtype="f32", **attrs):
    scales = scales or tuple(b / a for a, b in zip(shape, to))
    last = (0, *range(2, len(shape)), 1)
    graph = program(("y", "resize", "x", dict(shape=to, scales=scales, **attrs)), *tail, x=f"{dtype}{list(shape)}")
    return Case(named(dtype, shape, to, *attrs.values(), order), graph, dict(x=last) if order else {})


declare(
    "resize",
    resizing((1, 58, 4, 4), (1, 58, 8, 8), mode="linear", coordinates="half_pixel", tail=[("z", "sigmoid", "y")]),
    resizing((2, 3, 7, 5), (2, 3, 13, 11), mode="linear", coordinates="align_corners"),
    resizing((2, 21, 9, 8), (2, 21, 5, 3), mode="linear", coordinates="pytorch_half_pixel"),
    resizing((1, 35, 5, 6), (1, 35, 9, 4), (1.0, 1.0, 1.8125, 0.7), mode="cubic", coordinates="half_pixel"),
    resizing(
        (1, 2, 5, 6),
        (1, 2, 10, 3),
        mode="cubic",
        coordinates="asymmetric",
        cubic_a=-0.5,
        exclude_outside=True,
        order=False,
    ),
    resizing((1, 9, 5, 6), (1, 9, 5, 13), mode="linear"),
    resizing((2, 9, 16), (2, 9, 13), mode="linear"),
    resizing((1, 8, 4, 4), (1, 8, 1, 1), mode="linear", dtype="f16"),
)


def upwards(shape, channels, kernel, strides, pads, dilations=None, extra=None, group=1, tail=(), **more):
    rng = np.random.default_rng(0)
    spatial = len(kernel)
    w = (rng.standard_normal((shape[1], channels // group, *kernel)) / np.sqrt(shape[1])).astype(np.float32)
    b = rng.standard_normal(channels).astype(np.float32)
    attrs = dict(
        strides=strides,
        pads=pads,
        dilations=dilations or (1,) * spatial,
        output_padding=extra or (0,) * spatial,
        group=group,
    )
    graph = program(("y", "conv_transpose", "x w b", attrs), *tail, x=f"f32{list(shape)}", w=w, b=b, **more)
    return Case(named(shape, channels, kernel, strides, group), graph, LAST if spatial == 2 else dict(x=(0, 2, 1)))


declare(
    "conv_transpose",
    upwards((2, 3, 5, 7), 8, (3, 3), (2, 2), (1, 1, 1, 1), extra=(1, 1)),
    upwards(
        (1, 58, 4, 5),
        37,
        (2, 2),
        (2, 2),
        (0, 0, 0, 0),
        tail=[("s", "relu", "y"), ("t", "add", "s z")],
        z="f32[1, 37, 8, 10]",
    ),
    upwards((1, 24, 7, 7), 16, (4, 4), (2, 2), (1, 1, 1, 1)),
    upwards((1, 6, 4, 5), 6, (3, 2), (1, 3), (0, 1, 1, 0), (2, 1), (0, 2), group=3),
    upwards((1, 5, 4, 5), 3, (1, 1), (3, 2), (0, 0, 0, 0)),
    upwards((1, 4, 9, 8), 9, (5, 5), (1, 1), (2, 2, 2, 2)),
    upwards((2, 3, 11), 5, (4,), (3,), (2, 1)),
    fed(upwards((2, 3, 11), 5, (4,), (3,), (2, 1))),
    fed(upwards((2, 12, 4, 5), 38, (3, 2), (2, 3), (0, 1, 1, 0), (2, 1), (0, 2), group=2), order=(1, 3, 0, 2)),
    fed(upwards((1, 24, 7, 7), 16, (4, 4), (2, 2), (1, 1, 1, 1), tail=[("s", "relu", "y")]), bias=False),
)

declare(
    "depthwise_transpose",
    upwards((1, 21, 6, 7), 21, (4, 4), (2, 2), (1, 1, 1, 1), group=21),
    upwards((2, 45, 3, 4), 45, (3, 3), (2, 3), (0, 1, 1, 0), (2, 1), (1, 1), group=45, tail=[("s", "relu", "y")]),
)


def regions(op, x, count, index="i64", tail=(), **attrs):
    """Some of the rois reach beyond the image, and the last has its corners swapped."""
    rng, (n, _, h, w) = np.random.default_rng(0), TensorType.parse(x).shape
    corners = rng.uniform(-0.3, 1.2, (count, 2, 2))
    corners = np.concatenate([corners.min(1), corners.max(1)], 1) * [w, h, w, h]
    corners[-1] = corners[-1][[2, 3, 0, 1]]
    graph = program(("y", op, "x r b", attrs), *tail, x=x, r=f"f32[{count}, 4]", b=f"{index}[{count}]")
    return Case(
        named(op, x, count, *attrs.values()),
        graph,
        LAST,
        dict(r=corners.astype(np.float32), b=rng.integers(0, n, count)),
    )


declare(
    "roi",
    regions("roi_align", "f32[2, 21, 9, 11]", 7, height=2, width=3, samples=2, tail=[("s", "relu", "y")]),
    regions("roi_align", "f32[1, 35, 9, 11]", 5, height=3, width=2, samples=0, half_pixel=False),
    regions("roi_align", "f32[2, 3, 9, 11]", 7, "i32", height=1, width=2, samples=0, mode="max"),
    regions("roi_align", "f16[2, 9, 9, 11]", 4, height=2, width=2, samples=3, mode="max", half_pixel=False),
    regions("max_roi_pool", "f32[2, 21, 9, 11]", 7, height=2, width=3),
    regions("max_roi_pool", "bf16[2, 3, 9, 11]", 7, height=7, width=7),
)


@pytest.mark.parametrize("template, case", walk("resize", "roi", "conv_transpose", "depthwise_transpose"))
def test_image(template, case):
    check(template, case)


@pytest.mark.parametrize("case", CASES["roi"], ids=lambda case: case.name)
def test_regions_of_empty_images_are_zero(case):
    template = TEMPLATES["roi"]
    graph = symbolic(case.graph, template, lambda d: (0, d, 4096))
    optimum = optimum_sizes(graph)
    batch, _, *spatial = graph.inputs[0].type.shape
    dynamic = sorted({str(d) for d in (batch, *spatial)} & optimum.keys())
    assert check_at(template, replace(case, graph=graph), 1, [{**optimum, name: 0} for name in dynamic])


RESIZE_ATTRS = 'shape=([batch], 9, [{twice}], 12), scales=(1.0, 1.0, 2.0, 2.0), mode="{mode}"'
RESIZING = """graph main[batch: 1..3..64, height: 1..5..64](%x: f32[batch, 9, {height}, 6]) {{
  %y: f32[batch, 9, {twice}, 12] = resize(%x) {{{attrs}}}
  return %y
}}
"""


def resizing(height, twice, mode):
    """A program that doubles the height and width of images."""
    attrs = RESIZE_ATTRS.format(twice=twice, mode=mode)
    return parse(RESIZING.format(height=height, twice=twice, attrs=attrs))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_any_batch(mode):
    case = Case("batch", resizing(5, 10, mode), LAST)
    assert check_dynamic(TEMPLATES["resize"], case) == 4


def test_resize_rejects_images_of_dynamic_size():
    region = region_of(resizing("height", "2*height", "linear"))
    reason = template_rejection(TEMPLATES["resize"], region)
    assert reason == "the image's size is dynamic, and with it the taps of each pixel"
