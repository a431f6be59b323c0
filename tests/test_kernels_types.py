"""Kernels on element types other than f32: products of f64 and integers, pointwise code on narrow types, bit casts."""

import ml_dtypes
import numpy as np
import pytest
from kernel_harness import Case, check, declare, named, program, varying, walk
from test_kernels import RowMajor

from pelton.ir.types import DType
from pelton.codegen.template import TEMPLATES


def product(a, b, tail=(), order=None, **more):
    graph = program(("y", "matmul", "a b"), *tail, a=a, b=b, **more)
    return Case(named(a if isinstance(a, str) else "constant", b, order), graph, dict(b=order) if order else {})


declare(
    "matmul",
    product("f64[7, 19]", "f64[19, 37]", [("s", "add", "y c"), ("out", "relu", "s")], c="f64[37]"),
    product("f64[2, 3, 5, 300]", "f64[3, 300, 9]"),
    product("f64[2, 3, 70, 19]", "f64[19, 16]"),
    product("f64[2, 13, 19]", "f64[2, 19, 21]", order=(0, 2, 1)),
    product("i32[33, 19]", "i32[19, 70]"),
    product("i64[1, 64]", "i64[64, 10]", [("out", "cast", "y", dict(to=DType.F32))]),
    product("i8[5, 300]", "i8[300, 3]"),
    product("u32[3, 9, 4]", "u32[4, 1]"),
    product(np.linspace(-1, 1, 133, dtype=np.float32).reshape(7, 19), "f32[3, 19, 21]"),
    varying("%a: f64[m, n], %b: f64[n, m]", "%y = matmul(%a, %b)"),
    varying("%a: i32[3, m, n], %b: i32[n, 5]", "%y = matmul(%a, %b)"),
)

EIGHTHS = [d for d in DType if d.value.startswith(("f8", "f6", "f4"))]
NARROW = [
    *(
        Case(
            f"there-and-back-{d.value}",
            program(
                ("y", "cast", "x", dict(to=d)),
                ("z", "cast", "y", dict(to=DType.F32)),
                ("out", "mul", "z x"),
                x="f32[5, 13]",
            ),
        )
        for d in (*EIGHTHS, DType.F16, DType.BF16)
    ),
    *(
        Case(
            f"moved-{d.value}",
            program(("out", "where", "c x y"), c="bool[5, 1]", x=f"{d.value}[5, 13]", y=f"{d.value}[13]"),
            dict(x=(1, 0)),
        )
        for d in (*EIGHTHS, DType.I4, DType.U2)
    ),
    Case(
        "dequantized",
        program(
            ("a", "cast", "x", dict(to=DType.F32)),
            ("b", "sub", "a z"),
            ("out", "mul", "b s"),
            x="i4[3, 37]",
            z=np.array(-3, np.float32),
            s="f32[37]",
        ),
    ),
    Case(
        "narrow-constants",
        program(
            ("a", "where", "c z x"),
            ("out", "equal", "a w"),
            c="bool[3, 37]",
            x="i4[3, 37]",
            z=np.array(-3, ml_dtypes.int4),
            w=np.array(-3, ml_dtypes.int4),
        ),
    ),
    Case(
        "quantized",
        program(("a", "div", "x s"), ("out", "cast", "a", dict(to=DType.F8E4M3FN)), x="f32[3, 37]", s="f32[]"),
        arrays=dict(s=np.array(0.01)),
    ),
    Case(
        "wrapped",
        program(("a", "cast", "x", dict(to=DType.U4)), ("out", "cast", "a", dict(to=DType.I64)), x="i32[5, 13]"),
    ),
    Case(
        "rounded-between",
        program(
            ("a", "cast", "x", dict(to=DType.F16)),
            ("b", "cast", "a", dict(to=DType.F64)),
            ("c", "cast", "x", dict(to=DType.F64)),
            ("out", "sub", "b c"),
            x="f32[7, 9]",
        ),
    ),
]
TURNED = [
    Case(
        named("bit_cast", x, to.value),
        program(("y", "bit_cast", "x", dict(to=to)), x=x),
        dict(x=order) if order else {},
    )
    for x, to, order in (
        ("f32[5, 13]", DType.I32, None),
        ("f16[3, 4, 19]", DType.U16, (1, 0, 2)),
        ("i4[3, 7]", DType.F4E2M1FN, None),
        ("bool[37]", DType.U8, None),
        ("f64[2, 9]", DType.I64, (1, 0)),
        ("i8[5]", DType.F8E5M2, None),
    )
]
# selections that look like minima and maxima, but for NaN
SELECTED = [
    Case(
        named("nan", compare, chosen),
        program(("c", compare, "x y"), ("e", "where", f"c {chosen}"), x="f32[3, 37]", y="f32[37]"),
        arrays=dict(x=np.where(np.arange(111) % 3, np.linspace(-2, 2, 111), np.nan).reshape(3, 37)),
    )
    for compare, chosen in (("less", "y x"), ("less_equal", "x y"), ("greater", "y x"), ("greater", "x y"))
]
declare("pointwise", *NARROW, *SELECTED)
declare("move", *TURNED)
COPIED = [
    Case(named("copy", type), program(("y", "copy", "x"), x=type), dict(x=(1, 0)))
    for type in ("f8e4m3fn[19, 13]", "i4[9, 33]", "bf16[17, 12]", "f64[9, 5]")
]
declare("transpose", *COPIED)


@pytest.mark.parametrize(
    "template, case",
    [
        *walk("matmul"),
        *(w for w in walk("pointwise", "move") if any(w.values[1] is c for c in (*NARROW, *SELECTED, *TURNED))),
    ],
)
def test_types(template, case):
    check(template, case)


@pytest.mark.parametrize("case", COPIED, ids=lambda c: c.name)
def test_copies_that_turn_axes(case):
    check(RowMajor(TEMPLATES["transpose"]), case)
