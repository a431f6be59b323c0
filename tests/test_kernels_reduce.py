"""Reductions, arg-extrema, cumulative sums and products, top-k."""

import numpy as np
import pytest
from kernel_harness import Case, check, declare, named, program, varying, walk

from pelton.ir.types import DType

LAST = (0, 2, 3, 1)


def reduction(op, type, axes, keepdims=True, order=None, tail=(), array=None, **more):
    graph = program(("y", op, "x", dict(axes=axes, keepdims=keepdims)), *tail, x=type, **more)
    return Case(
        named(op, type, axes, not keepdims and "dropped", order),
        graph,
        dict(x=order) if order else {},
        {} if array is None else dict(x=array),
    )


# of random ones, some would be among every row's
RARE = (np.arange(13) + 13 * np.arange(5)[:, None]) % 31 == 30


declare(
    "reduce",
    reduction("reduce_mean", "f32[2, 77, 7, 7]", (2, 3), order=LAST),
    reduction("reduce_mean", "f32[2, 77, 7, 7]", (2, 3), keepdims=False),
    reduction("reduce_sum", "f32[2, 3, 7, 5]", (1,), order=LAST),
    reduction("reduce_sum", "f32[2, 3, 7, 5]", (1,), keepdims=False),
    reduction("reduce_sum", "f32[3, 5, 7, 9]", (0, 2)),
    reduction("reduce_sum", "f32[3, 5, 7, 9]", (1, 3), keepdims=False),
    reduction("reduce_sum", "f32[3, 5, 7, 9]", (1, 3), order=(2, 3, 0, 1)),
    reduction("reduce_sum", "f32[3, 10090]", (0, 1), keepdims=False),
    reduction("reduce_sum", "f32[2, 1200, 5]", (1,)),
    reduction("reduce_sum", "f32[3, 4090]", (1,)),
    *(
        varying(f"%x: {type}", f"%y = {op}(%x) {{axes={axes}}}", "%z = relu(%y)", order=order)
        for op in ("reduce_mean", "reduce_max")
        for type, axes, order in (
            ("f32[n, m]", "(1,)", ()),
            ("f32[n, m]", "(0,)", ()),
            ("f32[m, n, n]", "(1, 2)", ()),
            ("f32[n, 2*n, m, n]", "(2, 3)", LAST),
        )
    ),
    varying("%x: i64[long, n]", "%y = reduce_sum(%x) {axes=(0,), keepdims=false}"),
    reduction("reduce_sum", "f64[5, 130]", (0,)),
    reduction("reduce_mean", "f64[5, 130]", (1,)),
    reduction("reduce_mean", "f16[5, 130]", (1,)),
    reduction("reduce_sum", "bf16[5, 13]", (0,)),
    reduction("reduce_max", "f32[5, 130]", (1,), tail=[("z", "sigmoid", "y")]),
    reduction("reduce_max", "i64[5, 13]", (0,)),
    reduction(
        "reduce_min",
        "u8[5, 130]",
        (1,),
        array=np.random.default_rng(1).integers(0, 256, (5, 130)) | np.arange(5)[:, None],
    ),
    reduction("reduce_max", "bool[5, 13]", (1,), array=RARE),
    reduction("reduce_min", "bool[5, 13]", (0,), array=~RARE),
    reduction("reduce_min", "f32[4, 1, 9]", (0, 1, 2)),
    reduction("reduce_mean", "i32[5, 13]", (0,)),
    reduction("reduce_mean", "i64[5, 13]", (1,)),
    reduction("reduce_prod", "f32[2, 19, 3]", (2,)),
    reduction("reduce_prod", "i32[2, 3, 19]", (0,), keepdims=False),
    reduction("reduce_sum", "f32[2, 1, 3]", (1,)),
    reduction(
        "reduce_sum",
        "f32[2, 35, 3, 3]",
        (2, 3),
        order=LAST,
        tail=[("s", "mul", "y z"), ("t", "add", "s w")],
        z="f32[35, 1, 1]",
        w="f32[2, 1, 1, 1]",
    ),
    Case("backwards", program(("y", "reduce_sum", "x", dict(axes=(1,))), x="f32[3, 5, 17]"), backwards=("x",)),
)


@pytest.mark.parametrize("template, case", walk("reduce"))
def test_reduce(template, case):
    check(template, case)


def along(op, type, axis, order=None, tail=(), array=None, **attrs):
    graph = program(("y i" if op == "top_k" else "y", op, "x", dict(axis=axis, **attrs)), *tail, x=type)
    return Case(
        named(op, type, axis, *(k for k, v in attrs.items() if v), order, array is not None and "ties"),
        graph,
        dict(x=order) if order else {},
        {} if array is None else dict(x=array),
    )


def only(name, i):
    """A top_k of which one result is read."""
    graph = program(("y i", "top_k", "x", dict(axis=0, k=2)), x="f32[7, 3]")
    return Case(name, graph.replace(outputs=graph.outputs[i : i + 1]))


TIES = np.array(
    [[1, 3, 3, 2, 3, -1] * 5 + [3], [-np.inf, 0, 0, -np.inf] * 7 + [0, 0, 0], [5] * 31, [0, np.nan, 7] * 10 + [np.nan]]
)

declare(
    "arg",
    *(
        along(op, "f32[4, 31]", axis, array=TIES, select_last_index=last)
        for op in ("arg_max", "arg_min")
        for axis in (0, 1)
        for last in (False, True)
    ),
    *(
        varying(f"%x: {type}", f"%y = {op}(%x) {{axis={axis}, select_last_index={last}}}")
        for op in ("arg_max", "arg_min")
        for last in ("false", "true")
        for type, axis in (("f32[n, long]", 1), ("f32[long, n]", 0), ("f64[n, m]", 0), ("f32[m, n]", 1))
    ),
    along("arg_max", "f32[2, 1000]", 1, keepdims=False),
    along("arg_max", "f32[1, 21, 9, 7]", 1, order=LAST),
    along("arg_max", "f32[1, 21, 9, 7]", 1, keepdims=False),
    along("arg_min", "i64[3, 5, 17]", 1),
    along("arg_max", "f64[3, 40]", 1),
    along("arg_max", "f16[3, 40]", 1),
    along("arg_max", "u8[3, 40]", 0, tail=[("z", "cast", "y", dict(to=DType.I32))]),
    along("arg_max", "f32[5, 3]", 1),
    along("arg_max", "f32[5, 1]", 1),
)

declare(
    "cumsum",
    *(
        along("cumsum", "f32[3, 37]", axis, exclusive=e, reverse=r)
        for axis in (0, 1)
        for e in (False, True)
        for r in (False, True)
    ),
    *(
        varying(f"%x: {type}", f"%y = cumsum(%x) {{axis={axis}, reverse={reverse}}}")
        for type, axis in (("f32[n, m]", 1), ("f32[m, n]", 0), ("f32[m, n]", 1))
        for reverse in ("false", "true")
    ),
    along("cumsum", "i64[5, 3, 9]", 1),
    along("cumsum", "i32[5, 8]", 1),
    along("cumsum", "f32[2, 19, 3, 5]", 1, order=LAST, tail=[("z", "relu", "y")]),
    along("cumsum", "f16[5, 3]", 1),
    *(
        along("cumprod", "f32[3, 37]", axis, exclusive=e, reverse=r)
        for axis in (0, 1)
        for e, r in ((False, False), (True, True))
    ),
    along("cumprod", "i64[5, 3, 9]", 1),
    varying("%x: f32[n, m]", "%y = cumprod(%x) {axis=1, exclusive=true}"),
)

declare(
    "top_k",
    varying("%x: f32[n, 4*long + 5]", "%y, %i = top_k(%x) {axis=1, k=5}"),
    varying("%x: f32[m + 5, n]", "%y, %i = top_k(%x) {axis=0, k=[m]}"),
    along("top_k", "f32[3, 190]", 1, k=5),
    along("top_k", "f32[4, 31]", 1, k=31, array=TIES),
    along("top_k", "f32[4, 31]", 1, k=7, array=TIES, largest=False),
    along("top_k", "f32[4, 31]", 0, k=3, array=TIES),
    along("top_k", "i64[2, 50, 3]", 1, k=4),
    along("top_k", "f64[2, 9]", 1, k=1),
    along("top_k", "u8[2, 9]", 1, k=3),
    only("values", 0),
    only("indices", 1),
)


@pytest.mark.parametrize("template, case", walk("arg", "cumsum", "top_k"))
def test_order(template, case):
    check(template, case)
