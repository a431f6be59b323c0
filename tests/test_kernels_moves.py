"""Gathers, padding, repetition, triangles, nearest neighbours, and copies of views."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from kernel_harness import Case, check, declare, drawn, evaluate, named, program, varying, walk

from pelton.ir.types import TensorType
from pelton.codegen.template import TEMPLATES

LAST = (0, 2, 3, 1)


def some(*bound, shape):
    return np.random.default_rng(0).integers(-np.array(bound), np.array(bound), shape)


def gathering(op, x, indices, order=None, tail=(), array=None, **attrs):
    shape, where = TensorType.parse(x).shape, TensorType.parse(indices).shape
    if array is None:
        bound = shape[attrs.get("batch_dims", 0) :][: where[-1]] if op == "gather_nd" else (shape[attrs["axis"]],)
        array = some(*bound, shape=where)
    more = dict(z="f32[768]", w="f32[2, 5, 768]") if tail else {}
    graph = program(("y", op, "x i", attrs), *tail, x=x, i=indices, **more)
    return Case(named(op, x, indices, *attrs.values(), order), graph, dict(x=order) if order else {}, dict(i=array))


declare(
    "gather",
    gathering("gather", "f32[50, 768]", "i64[2, 5]", axis=0, tail=[("s", "add", "y z"), ("t", "add", "s w")]),
    *(
        varying(f"%x: {type}, %i: i64[{at}]", f"%y = gather(%x, %i) {{axis={axis}}}")
        for type, at, axis in (("f32[7, n]", "m", 0), ("f32[n, 7]", "m, n", 1), ("f32[n, 7, m]", "2", 1))
    ),
    varying("%x: f32[m, n + 7, m], %i: i32[m, 4*n, m]", "%y = gather_elements(%x, %i) {axis=1}"),
    varying("%x: f32[n, 7, m, n], %i: i64[n, m, 1]", "%y = gather_nd(%x, %i) {batch_dims=1}"),
    gathering("gather", "f32[2, 9, 3]", "i32[2, 5]", axis=1),
    gathering("gather", "f32[5, 13]", "i64[11]", axis=1),
    gathering("gather", "f32[7, 3]", "i64[]", axis=0),
    gathering("gather", "f32[2, 21, 5, 7]", "i64[9]", axis=1, order=LAST),
    gathering("gather", "f32[2, 21, 5, 7]", "i64[9]", axis=2, order=LAST),
    gathering("gather", "bool[5, 13]", "i64[3]", axis=0),
    gathering("gather", "f16[5, 13]", "i64[3]", axis=0),
    gathering("gather", "f8e4m3fn[5, 13]", "i64[3]", axis=1),
    gathering("gather", "i64[40]", "i32[3, 9]", axis=0),
    gathering("gather_elements", "f32[5, 7]", "i64[5, 11]", axis=1),
    gathering("gather_elements", "f32[3, 5, 20]", "i32[4, 5, 20]", axis=0),
    gathering("gather_elements", "f32[3, 5, 20]", "i32[3, 4, 13]", axis=1, order=(0, 2, 1)),
    gathering("gather_nd", "f32[5, 7, 33]", "i64[4, 2]"),
    gathering("gather_nd", "f32[2, 5, 3]", "i64[2, 7, 1]", batch_dims=1),
    gathering("gather_nd", "f32[2, 3]", "i64[9, 2]"),
    Case(
        "backwards",
        program(("y", "gather", "x i", dict(axis=1)), x="f32[3, 4, 19]", i="i64[3, 3]"),
        arrays=dict(i=some(4, shape=(3, 3))),
        backwards=("x", "i"),
    ),
)


def blending(x, indices, order=None, tail=(), index="i64", **attrs):
    """Some of the weights are zero, and some of the indices count from the end."""
    shape, where, wide = (
        TensorType.parse(x).shape,
        TensorType.parse(f"i64{indices}").shape,
        "f64" if x.startswith("f64") else "f32",
    )
    w = np.random.default_rng(1).standard_normal(where) * (np.random.default_rng(2).random(where) < 0.8)
    graph = program(
        ("y", "blend", "x i w", attrs),
        *tail,
        x=x,
        i=f"{index}{indices}",
        w=f"{wide}{indices}",
        **(dict(z="f32[21, 1, 1]") if tail else {}),
    )
    return Case(
        named("blend", x, indices, *attrs.values(), order),
        graph,
        dict(x=order) if order else {},
        dict(i=some(shape[attrs["axis"]], shape=where), w=w),
    )


declare(
    "blend",
    blending("f32[2, 21, 5, 7]", "[9, 3]", axis=2),
    blending("f32[2, 21, 5, 7]", "[9, 2]", axis=3, tail=[("s", "add", "y z"), ("t", "relu", "s")]),
    blending("f32[2, 21, 5, 7]", "[9, 3]", axis=2, order=LAST, index="i32"),
    blending("f32[2, 21, 5, 7]", "[9, 1]", axis=3, order=LAST),
    blending("f32[2, 21, 35]", "[2, 5, 9, 4]", axis=2, batch_dims=1),
    blending("f32[2, 41, 35]", "[2, 5, 9, 4]", axis=2, batch_dims=1, order=(0, 2, 1)),
    blending("f32[2, 3, 7, 35]", "[2, 3, 19, 4]", axis=3, batch_dims=2),
    blending("f64[5, 13]", "[4, 3]", axis=0),
    blending("f64[5, 13]", "[4, 3]", axis=1),
    blending("f16[5, 13]", "[4, 3]", axis=0),
    blending("bf16[5, 13]", "[4, 3]", axis=1),
    blending("f32[19]", "[2]", axis=0),
)


def moving(op, x, order=None, tail=(), value=None, **attrs):
    given = {} if value is None else dict(v=value)
    return Case(
        named(op, x, *attrs.values(), order),
        program(("y", op, "x v" if given else "x", attrs), *tail, x=x, **given),
        dict(x=order) if order else {},
    )


HALF = dict(coordinates="half_pixel", nearest="round_prefer_floor")
declare(
    "move",
    moving("pad", "f32[2, 3, 5, 7]", pads=(0, 0, 1, 2, 0, 0, 3, 0), value="f32[]"),
    moving(
        "pad", "f32[2, 33, 5, 7]", pads=(0, 0, 1, 2, 0, 0, 3, 0), value="f32[]", order=LAST, tail=[("z", "relu", "y")]
    ),
    moving("pad", "f32[5, 70]", pads=(2, 3, 1, 14), value="f32[]"),
    *(
        moving("pad", "f32[5, 27]", pads=(2, 3, 1, 14), mode=mode, value="f32[]")
        for mode in ("reflect", "edge", "wrap")
    ),
    moving("pad", "f32[5, 7]", pads=(-2, -1, 1, 20), mode="reflect", value="f32[]"),
    moving("pad", "f32[5, 1]", pads=(0, 2, 1, 2), mode="reflect", value="f32[]"),
    moving("pad", "f32[2, 3, 5, 7]", pads=(0, 0, -1, -2, 0, 0, -1, 0), value="f32[]"),
    moving("pad", "i64[7]", pads=(-2, 3), value=np.array(9)),
    moving("pad", "bool[3, 7]", pads=(1, 1, 1, 1), value=np.array(True)),
    moving("pad", "f8e5m2[3, 7]", pads=(1, 1, 1, 1), value=np.array(3, ml_dtypes.float8_e5m2)),
    *(
        varying("%x: f32[n], %v: f32[]", f'%y = pad(%x, %v) {{pads=([m], {behind}), mode="{mode}"}}')
        for mode, behind in (
            ("constant", "-1"),
            ("constant", "[2*n]"),
            ("reflect", "4"),
            ("edge", "3"),
            ("wrap", "[n]"),
        )
    ),
    varying("%x: f32[m + 64], %v: f32[]", "%y = pad(%x, %v) {pads=([3 - n], [4 - m])}"),
    varying("%x: f32[n, m]", "%y = tile(%x) {repeats=(3, 2)}", order=(1, 0)),
    varying("%x: i64[m]", "%y = tile(%x) {repeats=([n],)}"),
    varying("%x: f32[m, n, n]", "%y = trilu(%x) {k=1}"),
    varying("%x: f32[m, n, m]", "%y = trilu(%x) {k=-2, upper=false}", order=(0, 2, 1)),
    varying(
        "%x: f32[n, m, 5, 7]", "%y = resize(%x) {shape=([n], [m], 10, 9), scales=(1.0, 1.0, 2.0, 1.3)}", order=LAST
    ),
    moving("tile", "f32[3, 5]", repeats=(2, 3)),
    moving("tile", "f32[3, 50]", repeats=(1, 3)),
    moving("tile", "i64[2, 1, 3]", repeats=(1, 7, 2)),
    moving("tile", "f16[2, 9, 3]", repeats=(1, 3, 1), order=(0, 2, 1)),
    *(
        moving("trilu", "f32[2, 19, 23]", k=k, upper=upper, order=order)
        for k in (0, -3, 2)
        for upper in (True, False)
        for order in (None, (0, 2, 1))
    ),
    moving("trilu", "f32[9, 5, 5]", k=1, order=(1, 2, 0)),
    *(
        Case(f"backwards-{op}", program(("y", op, "x", attrs), x="f32[3, 4, 19]"), backwards=("x",))
        for op, attrs in (("tile", dict(repeats=(2, 1, 1))), ("trilu", dict(k=1)))
    ),
    Case(
        "backwards-pad",
        program(("y", "pad", "x v", dict(pads=(1, 0, 2, 0, 0, 1))), x="f32[3, 4, 19]", v="f32[]"),
        backwards=("x",),
    ),
    moving("trilu", "bool[5, 5]"),
    moving(
        "resize",
        "f32[1, 35, 5, 7]",
        order=LAST,
        shape=(1, 35, 10, 14),
        scales=(1.0, 1.0, 2.0, 2.0),
        coordinates="asymmetric",
        nearest="floor",
    ),
    moving(
        "resize",
        "f32[1, 3, 5, 7]",
        shape=(1, 3, 8, 3),
        scales=(1.0, 1.0, 1.6, 3 / 7),
        tail=[("z", "relu", "y")],
        **HALF,
    ),
    moving("resize", "u8[2, 3, 4]", shape=(2, 6, 4), scales=(1.0, 2.0, 1.0), **HALF),
)


@pytest.mark.parametrize("template, case", walk("blend", "gather", "move"))
def test_moves(template, case):
    check(template, case)


def test_indices_out_of_range_read_nothing_outside():
    """They meet the first or last element, with the memory around the input out of reach."""
    wild = np.array([-(2**63), -6, -5, 4, 5, 2**62])
    near = np.array([0, 0, 0, 4, 4, 4])
    for axis, type in ((0, "f32[5, 37]"), (1, "f32[37, 5]")):
        case = gathering("gather", type, "i64[6]", axis=axis, array=wild)
        want = evaluate(case.graph, dict(drawn(case), i=near), round=False)
        check(TEMPLATES["gather"], replace(case, want=want))
