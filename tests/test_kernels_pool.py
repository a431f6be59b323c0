"""Pooling kernels."""

import numpy as np
import pytest
from kernel_harness import Case, check, check_dynamic, declare, named, program, walk

from pelton.codegen.template import TEMPLATES

LAST = dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1))


def pool(
    op, shape, kernel, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), dtype="f32", tail=(), array=None, **more
):
    attrs = dict(kernel=kernel, strides=strides, pads=pads, dilations=dilations, **more)
    graph = program(("y", op, "x", attrs), *tail, x=f"{dtype}{list(shape)}")
    return Case(
        named(op, dtype, shape, kernel, strides, *more, array is not None and "strange"),
        graph,
        LAST if len(shape) == 4 else dict(x=(0, 2, 1)),
        {} if array is None else dict(x=array),
    )


def strange():
    """Numbers with NaN and both infinities here and there."""
    x = np.random.default_rng(0).standard_normal((1, 21, 9, 11))
    x[0, ::5, 2, 3], x[0, 1::4, 6, 1], x[0, 2::4, 6, 2], x[0, 3, :, :] = np.nan, np.inf, -np.inf, -np.inf
    return x


declare(
    "pool",
    pool("max_pool", (1, 21, 9, 11), (3, 3), (2, 2), (1, 1, 1, 1), array=strange()),
    pool("average_pool", (1, 21, 9, 11), (3, 3), (2, 2), (1, 1, 1, 1), array=strange()),
    pool("max_pool", (2, 3, 11, 13), (3, 3), (2, 2), (1, 1, 1, 1)),
    pool("max_pool", (1, 58, 14, 14), (3, 3), (1, 1), (1, 1, 1, 1)),
    pool("max_pool", (1, 64, 23, 25), (3, 3), (2, 2), (0, 0, 1, 1), ceil_mode=True),
    pool("max_pool", (1, 13, 9, 8), (2, 2), (2, 2), tail=[("z", "relu", "y")]),
    pool("max_pool", (1, 9, 12, 17), (2, 3), (3, 5), (0, 1, 1, 0), (2, 1)),
    pool("max_pool", (1, 20, 16, 16), (13, 13), (1, 1), (6, 6, 6, 6)),
    pool("max_pool", (1, 5, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), dtype="u8"),
    pool("max_pool", (1, 21, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), dtype="f16"),
    pool("max_pool", (2, 5, 31), (4,), (3,), (2, 1), (2,)),
    pool("average_pool", (1, 35, 17, 17), (3, 3), (1, 1), (1, 1, 1, 1)),
    pool("average_pool", (1, 35, 17, 17), (3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=True),
    pool("average_pool", (1, 3, 10, 9), (3, 2), (3, 3), (1, 0, 1, 1), (1, 2), ceil_mode=True),
    pool("average_pool", (1, 3, 10, 9), (3, 2), (3, 3), (1, 0, 1, 1), (1, 2), ceil_mode=True, count_include_pad=True),
    pool("average_pool", (1, 1030, 7, 7), (7, 7)),
    pool("average_pool", (1, 11, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), dtype="f64"),
    pool("average_pool", (1, 11, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), dtype="bf16"),
    pool("average_pool", (1, 1, 5, 7), (3, 3), (1, 1), (1, 1, 1, 1)),
    pool("average_pool", (3, 40, 20), (20,), (1,), (0, 0), (1,)),
    Case(
        "residual",
        program(
            ("y", "max_pool", "x", dict(kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))),
            ("s", "add", "y z"),
            ("out", "relu", "s"),
            x="f32[1, 11, 7, 9]",
            z="f32[1, 11, 7, 9]",
        ),
        dict(LAST, z=(0, 1, 2, 3)),
    ),
)


@pytest.mark.parametrize("template, case", walk("pool"))
def test_pool(template, case):
    check(template, case)


@pytest.mark.parametrize(
    "case",
    [
        pool("max_pool", (1, 13, 4, 24), (3, 3), (1, 1), (1, 1, 1, 1)),
        pool("average_pool", (1, 17, 5, 24), (3, 3), (2, 2), (1, 1, 1, 1)),
        pool("max_pool", (1, 9, 24, 24), (3, 3), (2, 2), ceil_mode=True),
        pool("average_pool", (1, 24, 8, 8), (2, 2), (2, 2), ceil_mode=True),
    ],
)
def test_every_rest(case):
    """What a row has left after its whole groups of windows is a number of its own in the code."""
    assert check_dynamic(TEMPLATES["pool"], case, most=3, more=range(-2, 10)) >= 12
