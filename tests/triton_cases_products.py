"""Cases of the GPU templates for pointwise regions, products, convolutions, windows and attention."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from triton_cases import HALF, NONE, RELU, attention, constant, conv, few_seen, one, pool, up  # noqa: E402

from kernel_harness import program  # noqa: E402
from triton_harness import Case, nhwc  # noqa: E402

from pelton.ir.types import DType  # noqa: E402

CASES: dict[str, list[Case]] = {
    "pointwise": [
        *(
            one(
                f"tail-{t}",
                ("y", "add", "a b"),
                ("z", "relu", "y"),
                ("o", "mul", "z c"),
                a=f"{t}[3, 5, 7]",
                b=f"{t}[7]",
                c=f"{t}[5, 1]",
            )
            for t in HALF
        ),
        one("two-outputs", ("out0", "sigmoid", "a"), ("y", "mul", "a out0"), a="f16[2, 37]"),
        one("compare", ("y", "greater", "a b"), a="f32[3, 70]", b="f32[70]"),
        one("where", ("y", "where", "m a b"), m="bool[5, 13]", a="f16[5, 13]", b="f16[13]"),
        one("integers", ("y", "mul", "a b"), ("z", "add", "y a"), a="i64[3, 11]", b="i64[11]"),
        one("bytes", ("y", "add", "a b"), a="u8[3, 11]", b="u8[11]"),
        one("cast-half", ("y", "cast", "a", dict(to=DType.F16)), ("z", "cast", "y", dict(to=DType.F32)), a="f32[41]"),
        one("cast-int", ("y", "cast", "a", dict(to=DType.I32)), a="f32[41]"),
        one("turned", ("y", "add", "a b"), a="f32[3, 33, 17]", b="f32[3, 33, 17]", orders={"a": (0, 2, 1)}),
        *(
            one(f"copy-{t}", ("y", "copy", "a"), a=f"{t}[2, 33, 5, 7]", orders={"a": o})
            for t, o in (
                ("f16", (0, 2, 3, 1)),
                ("f32", (0, 1, 2, 3)),
                ("i64", (3, 1, 0, 2)),
                ("f8e4m3fn", (0, 2, 3, 1)),
                ("i4", (3, 1, 0, 2)),
            )
        ),
        one("f64", ("y", "exp", "a"), a="f64[3, 9]"),
        one("library", ("y", "atan", "a"), ("z", "pow", "b y"), ("o", "round", "z"), a="f32[31]", b="f32[31]"),
        one("odd", ("y", "mod", "a b"), ("z", "sign", "y"), a="i32[31]", b="i32[31]"),
        one("gelu", ("y", "gelu", "a"), ("z", "tanh", "y"), a="f32[130]"),
        Case(
            "powers-below-0",
            program(("y", "pow", "x n"), x="i32[5, 9]", n="i32[9]"),
            arrays={"x": np.repeat([1, -1, 2, 0, -3], 9).reshape(5, 9), "n": np.arange(-4, 5)},
        ),
        *(
            Case(
                f"divided-{t}",
                program(("q", "div", "x y"), ("r", "fmod", "x y"), ("m", "mod", "x y"), x=f"{t}[5, 1]", y=f"{t}[5]"),
                arrays={
                    "x": np.array([[low], [low + 1], [0], [7], [high]], dtype),
                    "y": np.array([0, low, 3, high, high if low == 0 else -1], dtype),
                },
            )
            for t, dtype, low, high in (
                (d.value, d.numpy, np.iinfo(d.numpy).min, np.iinfo(d.numpy).max)
                for d in (DType.I8, DType.U8, DType.I16, DType.I32, DType.U32, DType.I64)
            )
        ),
        one("nothing-by-nothing", ("n", "sub", "x x"), ("y", "fmod", "n n"), ("z", "div", "n n"), x="i8[5]"),
    ],
    "gemm": [
        *(
            one(
                f"{t}-bias",
                ("y", "matmul", "a b"),
                ("z", "add", "y c"),
                ("o", "relu", "z"),
                a=f"{t}[37, 19]",
                b=f"{t}[19, 45]",
                c=f"{t}[45]",
            )
            for t in HALF
        ),
        one("batched", ("y", "matmul", "a b"), a="f16[2, 3, 17, 21]", b="f16[3, 21, 9]"),
        one("turned", ("y", "matmul", "a b"), a="f16[4, 33, 64]", b="f16[4, 64, 20]", orders={"b": (0, 2, 1)}),
        one(
            "residual",
            ("y", "matmul", "a b"),
            ("z", "add", "y r"),
            a="f16[2, 20, 32]",
            b="f16[32, 40]",
            r="f16[2, 20, 40]",
        ),
        one(
            "per-batch",
            ("y", "matmul", "a b"),
            ("z", "mul", "y c"),
            a="f16[2, 17, 21]",
            b="f16[2, 21, 9]",
            c="f16[2, 1, 1]",
        ),
        one("apart", ("y", "matmul", "a b"), a="f16[4, 1, 17, 32]", b="f16[4, 1, 32, 20]", orders={"a": (1, 2, 0, 3)}),
        one("row", ("y", "matmul", "a b"), a="f32[1, 61]", b="f32[61, 129]"),
        conv("f16", (2, 24, 5, 7), 40, (1, 1), tail=RELU),
    ],
    "few": [
        *(
            one(
                f"{t}-bias",
                ("y", "matmul", "a b"),
                ("z", "add", "y c"),
                a=f"{t}[3, 61]",
                b=f"{t}[61, 45]",
                c=f"{t}[45]",
            )
            for t in HALF
        ),
        one("constant", ("y", "matmul", "a b"), ("z", "relu", "y"), a="f16[1, 700]", b=constant("f16", 700, 33)),
        one("vector-of-each", ("y", "matmul", "a b"), a="f16[3, 2, 1, 37]", b="f16[2, 37, 21]"),
        one("turned", ("y", "matmul", "a b"), a="f16[2, 1, 64]", b="f16[2, 64, 29]", orders={"b": (0, 2, 1)}),
        conv("f16", (2, 24, 1, 1), 40, (1, 1), tail=RELU),
        conv("f32", (1, 7, 2, 2), 19, (1, 1)),
    ],
    "conv": [
        *(conv(t, (2, 16, 9, 7), 20, (3, 3), pads=1, tail=RELU) for t in HALF),
        conv("f16", (1, 32, 8, 9), 24, (3, 3), strides=2, pads=1),
        conv("f16", (1, 3, 15, 17), 8, (7, 7), strides=2, pads=3),
        conv("f32", (2, 12, 11, 9), 18, (3, 3), dilations=2, group=3),
        conv("f16", (1, 5, 23), 7, (4,), strides=3, pads=2),
        conv("f16", (1, 16, 9, 9), 40, (1, 1), strides=2),
        conv("f32", (1, 13, 6, 6), 8, (1, 1)),
        *(
            one(
                f"planes-{t}",
                ("y", "convolution", "x w b", dict(strides=(k, k), pads=(p,) * 4, dilations=(1, 1), group=1)),
                *RELU,
                x=f"{t}{x}",
                w=constant(t, 9, x[1], size, size),
                b=constant(t, 9),
            )
            for t, x, k, p, size in (
                ("f16", [2, 3, 14, 18], 2, 3, 7),
                ("f32", [1, 3, 11, 12], 4, 0, 3),
                ("bf16", [1, 1, 9, 8], 1, 2, 5),
            )
        ),
        one(
            "fed",
            ("y", "convolution", "x w b", dict(strides=(2, 1), pads=(1, 1, 0, 1), dilations=(1, 1), group=2)),
            x="f16[2, 12, 7, 8]",
            w="f16[10, 6, 3, 2]",
            b="f16[10]",
            orders={"x": nhwc(4)},
        ),
        one(
            "grouped",
            ("y", "convolution", "x w b", dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=2)),
            x="f16[1, 32, 4, 5]",
            w=constant("f16", 12, 16, 3, 3),
            b=constant("f16", 12),
            orders={"x": nhwc(4)},
        ),
        up("f16", (2, 16, 5, 4), 20, (2, 2), tail=RELU),
        up("f32", (1, 6, 4, 5), 7, (3, 3), pads=1, extra=1),
        up("bf16", (1, 8, 5, 6), 6, (4, 3), strides=3, pads=1, dilations=2, group=2),
        up("f16", (1, 5, 7), 3, (4,), strides=4, dilations=6),
        up("f32", (1, 4, 5, 5), 4, (3, 3), strides=1, group=4),
    ],
    "window": [
        *(conv(t, (2, 37, 9, 7), 37, (3, 3), pads=1, group=37, tail=RELU) for t in HALF),
        conv("f16", (1, 6, 11, 9), 12, (5, 5), strides=2, pads=2, group=6),
        pool("max_pool", "f16", (2, 19, 11, 13), (3, 3), (2, 2), (1, 1, 1, 1)),
        pool("max_pool", "f32", (1, 5, 12, 12), (3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True),
        pool("max_pool", "u8", (1, 3, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
        pool("average_pool", "f16", (1, 21, 8, 9), (2, 3), (2, 1), (0, 1, 1, 0)),
        pool(
            "average_pool", "f32", (1, 4, 10, 9), (3, 2), (3, 3), (1, 0, 1, 1), ceil_mode=True, count_include_pad=True
        ),
        pool("average_pool", "f32", (2, 5, 31), (4,), (3,), (2, 1)),
    ],
    "attention": [
        *(
            attention("bert", t, (1, 2, 61, 64), (1, 2, 61, 64), (1, 2, 61, 64), (1, 1, 1, 61), heads=True)
            for t in HALF
        ),
        *(
            attention(
                "cross",
                t,
                (1, 3, 23, 19),
                (1, 3, 71, 19),
                (1, 3, 71, 21),
                (23, 71),
                (("s", "add", "y z"), ("o", "relu", "s")),
                True,
                z=(1, 3, 23, 21),
            )
            for t in HALF
        ),
        attention("unmasked", "f16", (2, 2, 50, 32), (2, 2, 50, 32), (2, 2, 50, 32), NONE),
        attention("mask-per-query", "f32", (2, 13, 8), (2, 17, 8), (2, 17, 3), (1, 13, 1)),
        attention("mask-per-head", "f32", (2, 13, 8), (2, 17, 8), (2, 17, 3), (2, 1, 1)),
        attention("causal", "f16", (1, 2, 70, 40), (1, 2, 70, 40), (1, 2, 70, 24), (70, 70), causal=True),
        attention("causal-more-queries", "f32", (45, 9), (31, 9), (31, 5), NONE, causal=True),
        attention("causal-more-keys", "f16", (19, 9), (90, 9), (90, 5), NONE, causal=True),
        attention("causal-long", "f16", (150, 16), (150, 16), (150, 16), NONE, causal=True),
        attention("grouped", "f16", (2, 2, 3, 5, 16), (2, 2, 1, 18, 16), (2, 2, 1, 18, 16), (2, 1, 1, 1, 18)),
        attention("shared-keys", "f32", (2, 3, 7, 16), (1, 3, 18, 16), (2, 1, 18, 16), (3, 1, 18)),
        attention("decode", "f16", (1, 4, 1, 64), (1, 4, 137, 64), (1, 4, 137, 64), NONE, heads=True),
        *(attention("hidden", t, (40, 8), (300, 8), (300, 17), hidden=few_seen(40, 300)) for t in ("f32", "f16")),
        attention("wide", "f16", (70, 256), (67, 256), (67, 200), NONE),
        attention("narrow", "f32", (19, 1), (3, 1), (3, 1), NONE),
        attention("large-scores", "f32", (9, 8), (40, 8), (40, 8), (9, 40), scale=40.0),
        Case(
            "keys-turned",
            program(
                ("y", "attention", "q k v m", dict(scale=0.2)),
                q="f16[2, 33, 24]",
                k="f16[2, 20, 24]",
                v="f16[2, 20, 24]",
                m="f16[20]",
            ),
            {"k": (0, 2, 1)},
        ),
        attention(
            "nothing", "f32", (40, 8), (90, 8), (90, 17), hidden=few_seen(40, 90) | (np.arange(40)[:, None] % 3 == 1)
        ),
    ],
}
