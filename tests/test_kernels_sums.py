"""Sums of so many similar terms that sequential addition would show its rounding, all in one direction."""

import numpy as np
import pytest
from kernel_harness import Case, check, program

from pelton.codegen.template import TEMPLATES

LAST = (0, 2, 3, 1)
POOL = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))


def steady(*shape):
    """Numbers near 0.1 that differ in their last digits."""
    rng = np.random.default_rng(sum(shape))
    return rng.uniform(0.09, 0.11) * (1 + 1e-5 * rng.random(shape))


def case(op, attrs, orders=None, **shapes):
    arrays = {name: steady(*shape) for name, shape in shapes.items()}
    return Case(
        op,
        program(("y", op, " ".join(shapes), attrs), **{n: f"f32{list(s)}" for n, s in shapes.items()}),
        orders or {},
        arrays,
    )


def attention(queries, keys):
    """Every query reads every key alike."""
    inputs = dict(q=f"f32[1, {queries}, 4]", k=f"f32[1, {keys}, 4]", v=f"f32[1, {keys}, 5]")
    graph = program(("y", "attention", "q k v mask", dict(scale=0.3)), mask=np.zeros((), np.float32), **inputs)
    return Case("attention", graph, {}, dict(q=steady(1, queries, 4), k=steady(1, keys, 4), v=steady(1, keys, 5)))


@pytest.mark.parametrize(
    "template, what",
    [
        ("reduce", case("reduce_mean", dict(axes=(0, 2), keepdims=False), x=(1 << 17, 2, 3))),
        ("reduce", case("reduce_sum", dict(axes=(0,), keepdims=False), x=(1 << 20, 2))),
        ("reduce", case("reduce_mean", dict(axes=(1,), keepdims=False), x=(1, 1 << 21))),
        ("pool", case("average_pool", dict(POOL, kernel=(256, 256)), dict(x=LAST), x=(1, 3, 256, 256))),
        ("pool", case("average_pool", dict(POOL, kernel=(1, 1 << 16)), dict(x=LAST), x=(1, 3, 1, 1 << 16))),
        ("softmax", case("softmax", dict(axis=1), x=(1, 1 << 20))),
        ("softmax", case("softmax", dict(axis=0), x=(1 << 16, 3))),
        ("few", case("matmul", {}, a=(2, 1 << 17), b=(1 << 17, 3))),
        ("few", case("matmul", {}, dict(b=(1, 0)), a=(2, 1 << 19), b=(1 << 19, 3))),
        ("attention_few", attention(2, 1 << 15)),
        ("attention", attention(5, 1 << 15)),
    ],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_long_sums_are_exact(template, what):
    check(TEMPLATES[template], what)
