"""Rotary embedding."""

import numpy as np
import pytest
from kernel_harness import Case, check, declare, named, program, region_of, walk

from pelton.codegen.template import TEMPLATES
from pelton.plan.layout import dense


def rotary(x, cos, sin=None, order=None, tail=(), constant=False, interleaved=False, **more):
    rng = np.random.default_rng(1)
    dtype = x.partition("[")[0] if isinstance(x, str) else "f32"
    given = {
        n: rng.standard_normal(s).astype(np.float32) if constant else f"{dtype}{list(s)}"
        for n, s in (("cos", cos), ("sin", sin or cos))
    }
    graph = program(
        ("y", "rotary", "x cos sin", dict(interleaved=interleaved)),
        *tail,
        x=x if isinstance(x, str) else f"f32{list(x)}",
        **given,
        **more,
    )
    return Case(
        named(x, cos, sin, interleaved and "interleaved", order, constant, tail and "tail"),
        graph,
        dict(x=order) if order else {},
    )


HEADS, RESIDUAL = (0, 2, 1, 3), [("s", "mul", "y w"), ("out", "add", "s z")]
declare(
    "rotary",
    *(
        case
        for interleaved in (False, True)
        for case in (
            rotary((1, 4, 9, 64), (9, 32), order=HEADS, constant=True, interleaved=interleaved),
            rotary((2, 3, 7, 58), (2, 1, 7, 13), (7, 13), interleaved=interleaved),
            rotary((2, 5, 3, 37), (5, 1, 11), (2, 5, 1, 11), interleaved=interleaved),
            rotary((2, 5, 3, 30), (15,), (2, 5, 3, 15), order=(1, 2, 0, 3), interleaved=interleaved),
            rotary((3, 5, 24), (5, 12), order=(0, 2, 1), interleaved=interleaved),
            rotary(
                (2, 4, 5, 40),
                (5, 20),
                order=HEADS,
                tail=RESIDUAL,
                interleaved=interleaved,
                w="f32[40]",
                z="f32[2, 4, 5, 40]",
            ),
            rotary((1, 3, 1, 2), (1, 1, 1), interleaved=interleaved),
            rotary((19,), (5,), interleaved=interleaved),
            rotary("f16[3, 5, 21]", (5, 9), interleaved=interleaved),
            rotary("bf16[3, 5, 16]", (5, 8), interleaved=interleaved),
            rotary("f64[3, 5, 21]", (5, 9), interleaved=interleaved),
        )
    ),
)


@pytest.mark.parametrize("template, case", walk("rotary"))
def test_rotary(template, case):
    check(template, case)


def test_heads_are_written_in_the_order_in_which_they_are_read():
    """Slices of one projection to queries, keys and values go in, and what attention reads as heads comes out."""
    region, template = region_of(rotary((1, 12, 128, 64), (128, 32)).graph), TEMPLATES["rotary"]
    x, cos, sin = region.body.inputs
    # cos and sin as halves of wider rows
    layouts = {x: (294912, 64, 2304, 1), cos: (64, 1), sin: (64, 1)}
    assert template.output_order(region, region.output, layouts) == (0, 2, 1, 3)
    layouts[region.output] = dense(region.output.type.shape, (0, 2, 1, 3))
    assert all(template.fits(region, v, layouts) for v in layouts)
    assert not template.fits(region, cos, {**layouts, cos: (1, 128)})
