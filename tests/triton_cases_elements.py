"""Cases of the GPU templates that move, order, reduce or scan elements, and of recurrent layers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from triton_cases import BOTH, HALF, RELU, blend, last_true, one, picks, scatters, steps  # noqa: E402

from kernel_harness import program  # noqa: E402
from test_kernels_image import regions  # noqa: E402
from triton_harness import Case, nhwc  # noqa: E402

from pelton.ir.types import DType  # noqa: E402

CASES: dict[str, list[Case]] = {
    "scan": [
        *(
            one(
                f"{op}-{t}-{exclusive}-{reverse}",
                ("y", op, "x", dict(axis=1, exclusive=exclusive, reverse=reverse)),
                ("z", "relu", "y"),
                x=f"{t}[3, 37]",
            )
            for op, t, exclusive, reverse in (
                ("cumsum", "f32", False, False),
                ("cumsum", "i64", True, False),
                ("cumsum", "f16", True, True),
                ("cumprod", "i32", False, True),
                ("cumprod", "f32", True, False),
            )
        ),
        one("long", ("y", "cumsum", "x", dict(axis=1, reverse=True)), x="f32[2, 2500]"),
        one("across", ("y", "cumsum", "x", dict(axis=1)), x="f32[2, 13, 5]"),
        one("bytes", ("y", "cumsum", "x", dict(axis=0)), x="u8[300]"),
    ],
    "top_k": [
        *(
            one(f"{t}-{largest}", ("v i", "top_k", "x", dict(k=k, axis=1, largest=largest)), x=f"{t}[3, 37]")
            for t, largest, k in (
                ("f32", True, 5),
                ("f32", False, 37),
                ("f16", True, 1),
                ("bf16", False, 9),
                ("i32", True, 6),
                ("u32", False, 6),
                ("u8", True, 4),
            )
        ),
        one("across", ("v i", "top_k", "x", dict(k=3, axis=1)), x="f16[2, 13, 5]"),
        one("long", ("v i", "top_k", "x", dict(k=11, axis=1)), x="f32[1, 700]"),
        Case(
            "equals",
            program(("v i", "top_k", "x", dict(k=20, axis=0, largest=False)), x="f32[41]"),
            arrays={
                "x": np.where(
                    np.arange(41) % 5 == 3, np.nan, np.arange(41) % 4 * np.where(np.arange(41) % 2, -0.0, 1.0)
                )
            },
        ),
    ],
    "lrn": [
        one(
            f"lrn-{t}",
            ("y", "lrn", "x", dict(size=5, alpha=1e-2, beta=0.75, bias=1.0)),
            ("z", "relu", "y"),
            x=f"{t}[2, 7, 5, 3]",
            orders={"x": nhwc(4)},
        )
        for t in HALF
    ],
    "gather": [
        picks("embedding", ("y", "gather", "x i", dict(axis=0)), "f16[19, 70]", [[0, 18, -1], [-19, 3, 7]], tail=RELU),
        picks("middle", ("y", "gather", "x i", dict(axis=1)), "f32[2, 7, 3]", [6, -7, 2, 2]),
        picks("bool", ("y", "gather", "x i", dict(axis=0)), "bool[9, 5]", [3, 1]),
        picks("complex", ("y", "gather", "x i", dict(axis=1)), "c64[3, 5]", [3, 1, -1]),
        picks("elements", ("y", "gather_elements", "x i", dict(axis=1)), "f32[3, 7]", [[1, 6], [0, -1], [5, 2]]),
        picks("tuples", ("y", "gather_nd", "x i"), "i64[5, 7, 3]", [[4, 2], [-1, 6], [0, 0], [3, -7]]),
    ],
    "matmul": [
        one("f64", ("y", "matmul", "a b"), ("z", "add", "y c"), a="f64[2, 19, 21]", b="f64[21, 37]", c="f64[37]"),
        one("i32", ("y", "matmul", "a b"), a="i32[33, 45]", b="i32[45, 9]", orders={"a": (1, 0)}),
        one("i64", ("y", "matmul", "a b"), a="i64[3, 2, 5, 7]", b="i64[2, 7, 4]"),
        one("u8", ("y", "matmul", "a b"), a="u8[5, 70]", b="u8[70, 3]"),
    ],
    "move": [
        one(
            "pad-holes",
            ("y", "pad", "x v", dict(pads=(0, 1, 3, 0, 2, 4))),
            ("z", "relu", "y"),
            x="f16[2, 3, 37]",
            v="f16[]",
        ),
        one("pad-less", ("y", "pad", "x v", dict(pads=(-1, 2, 1, -3))), x="f32[5, 21]", v="f32[]"),
        *(
            one(
                f"pad-{m}",
                ("y", "pad", "x v", dict(pads=(2, 0, 9, 1, 0, 11), mode=m)),
                x="f32[5, 3, 7]",
                v="f32[]",
                orders={"x": (2, 0, 1)},
            )
            for m in ("reflect", "edge", "wrap")
        ),
        one("pad-bool", ("y", "pad", "x v", dict(pads=(1, 2, 1, 0))), x="bool[3, 9]", v="bool[]"),
        one("tile", ("y", "tile", "x", dict(repeats=(2, 3, 1))), x="bf16[3, 5, 7]"),
        one("tile-inner", ("y", "tile", "x", dict(repeats=(1, 4))), x="i64[3, 5]"),
        *(
            one(f"trilu-{upper}-{k}", ("y", "trilu", "x", dict(upper=upper, k=k)), x="f32[2, 7, 11]")
            for upper, k in ((True, 0), (True, 3), (False, -2))
        ),
        *(
            one(f"bits-{a}-{b.value}", ("y", "bit_cast", "x", dict(to=b)), x=f"{a}[3, 41]")
            for a, b in (
                ("f32", DType.I32),
                ("i64", DType.F64),
                ("f16", DType.U16),
                ("bf16", DType.I16),
                ("u8", DType.BOOL),
                ("bool", DType.I8),
            )
        ),
    ],
    "blend": [
        *(
            blend(t, (2, 5, 7, 3), (2, 4, 2), 2, 1, w)
            for t, w in (("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f64", "f64"))
        ),
        blend("f32", (3, 29, 6), (11, 3), 1, 0, "f32", tail=(("z", "relu", "y"),)),
        blend("f16", (1, 6, 9, 5), (17, 4), 2, 0, "f32", orders={"x": nhwc(4)}),
    ],
    "scatter": [
        *(
            scatters("scatter_nd", t, (7, 5), [[3], [-1], [3], [0]], (4, 5), r)
            for t, r in (("f32", "add"), ("f16", "mul"), ("bf16", "max"), ("i64", "min"))
        ),
        scatters(
            "scatter_nd",
            "f32",
            (4, 3, 21),
            [[[0, 1], [3, -1]], [[2, 2], [0, 0]]],
            (2, 2, 21),
            "none",
            tail=(("z", "relu", "y"),),
        ),
        scatters("scatter_nd", "f32", (4, 6), [[0, 1], [3, -6], [3, 0]], (3,), "add"),
        scatters("scatter_nd", "bool", (9,), [[4], [0]], (2,), "none"),
        scatters("scatter_elements", "f32", (5, 7), [[0, -1, 2], [1, 1, 1]], (2, 3), "add", axis=0),
        scatters("scatter_elements", "f16", (3, 9), [[0, -1, 2], [8, 1, 4]], (2, 3), "none", axis=1),
        scatters("scatter_elements", "i32", (3, 2, 5), [[[4, 4, 0]]], (1, 1, 3), "mul", axis=2),
    ],
    "roi": [
        regions("roi_align", "f32[2, 21, 9, 11]", 7, height=2, width=3, samples=2, tail=[("s", "relu", "y")]),
        regions("roi_align", "f32[1, 35, 9, 11]", 5, height=3, width=2, samples=0, half_pixel=False),
        regions("roi_align", "f32[2, 3, 9, 11]", 7, "i32", height=1, width=2, samples=0, mode="max"),
        regions("roi_align", "f16[2, 9, 9, 11]", 4, height=2, width=2, samples=3, mode="max", half_pixel=False),
        regions("max_roi_pool", "f32[2, 21, 9, 11]", 7, height=2, width=3),
        regions("max_roi_pool", "bf16[2, 3, 9, 11]", 7, height=5, width=4),
    ],
    "recurrent": [
        *(steps("lstm", t, 4, 3, 19, **BOTH) for t in HALF),
        steps("lstm", "f32", 5, 2, 18, "h1 c1", direction="reverse", clip=0.5, input_forget=True),
        steps("lstm", "f16", 3, 1, 130, "y"),
        steps("lstm", "f64", 2, 2, 9),
        steps("lstm", "f32", 2, 1, 500, "y"),
        steps("lstm", "f32", 1, 2, 21, **BOTH),
        *(steps("lstm", t, 1, 5, 37, "y c1") for t in HALF),
        *(steps("gru", t, 4, 3, 19, **BOTH) for t in HALF),
        steps("gru", "f32", 3, 2, 18, "h1", direction="reverse", clip=0.7),
        steps("gru", "f32", 4, 2, 21, linear_before_reset=True, **BOTH),
        steps("gru", "f16", 1, 1, 45, "y", linear_before_reset=True),
        steps("gru", "f16", 1, 19, 33, "y", linear_before_reset=True),
        steps("gru", "f32", 1, 2, 33),
        steps("gru", "f32", 1, 2, 33, "h1"),
        steps("rnn", "f32", 4, 3, 19, **BOTH),
        steps("rnn", "f16", 4, 2, 10, "h1", activation="Relu", clip=0.9),
        steps("rnn", "bf16", 1, 17, 23, "y", direction="reverse"),
    ],
    "rows": [
        *(one(f"softmax-{t}", ("y", "softmax", "x", dict(axis=1)), x=f"{t}[5, 13]") for t in HALF),
        one("softmax-long", ("y", "softmax", "x", dict(axis=1)), x="f32[2, 5003]"),
        one("softmax-across", ("y", "softmax", "x", dict(axis=1)), x="f16[2, 3, 7, 5]"),
        one("log-softmax", ("y", "log_softmax", "x", dict(axis=1)), x="f32[3, 109]"),
        one("log-softmax-long", ("y", "log_softmax", "x", dict(axis=1)), x="f32[1, 4999]"),
        *(
            one(
                f"layer-norm-{t}",
                ("y", "layer_norm", "x g b", dict(axis=1, epsilon=1e-5)),
                ("z", "relu", "y"),
                x=f"{t}[6, 61]",
                g=f"{t}[61]",
                b=f"{t}[61]",
            )
            for t in HALF
        ),
        one(
            "layer-norm-two",
            ("y", "layer_norm", "x g b", dict(axis=1, epsilon=1e-5)),
            x="f32[3, 7, 9]",
            g="f32[7, 9]",
            b="f32[7, 9]",
        ),
        one(
            "layer-norm-long",
            ("y", "layer_norm", "x g b", dict(axis=1, epsilon=1e-5)),
            x="f32[2, 4321]",
            g="f32[4321]",
            b="f32[4321]",
        ),
        one("rms-norm", ("y", "rms_norm", "x g", dict(axis=2)), x="f16[2, 5, 58]", g="f16[58]"),
        *(
            one(f"{op}-{axes}", ("y", op, "x", dict(axes=axes, keepdims=keep)), x="f32[3, 11, 6, 5]")
            for op, axes, keep in (
                ("reduce_sum", (3,), True),
                ("reduce_mean", (2, 3), False),
                ("reduce_max", (1,), True),
                ("reduce_min", (0, 2), False),
                ("reduce_prod", (3,), False),
                ("reduce_mean", (0, 1, 2, 3), True),
            )
        ),
        one(
            "mean-half",
            ("y", "reduce_mean", "x", dict(axes=(2, 3))),
            ("z", "relu", "y"),
            x="f16[2, 21, 7, 7]",
            orders={"x": (0, 2, 3, 1)},
        ),
        one(
            "mean-wide",
            ("y", "reduce_mean", "x", dict(axes=(2, 3), keepdims=True)),
            ("z", "sigmoid", "y"),
            x="f16[1, 24, 61, 61]",
            orders={"x": (0, 2, 3, 1)},
        ),
        one(
            "mean-images",
            ("y", "reduce_mean", "x", dict(axes=(2, 3))),
            x="bf16[3, 72, 29, 31]",
            orders={"x": (0, 2, 3, 1)},
        ),
        *(
            one(f"{op}-long-{t}", ("y", op, "x", dict(axes=(1,))), x=f"{t}[2, 6011]")
            for op, t in (("reduce_sum", "f32"), ("reduce_max", "f16"), ("reduce_min", "i64"))
        ),
        last_true("max-bool-long", 3, 6011),
        last_true("max-bool", 5, 13),
        one("sum-whole", ("y", "reduce_sum", "x", dict(axes=(0,))), x="i32[5, 13]"),
        one("max-whole", ("y", "reduce_max", "x", dict(axes=(1,))), x="i64[5, 13]"),
        *(
            one(f"{op}-{t}", ("y", op, "x", dict(axis=1, select_last_index=op == "arg_min")), x=f"{t}[5, 37, 3]")
            for op, t in (
                ("arg_max", "f32"),
                ("arg_min", "f16"),
                ("arg_max", "i32"),
                ("arg_min", "u8"),
                ("arg_max", "i64"),
            )
        ),
        one("arg-long", ("y", "arg_max", "x", dict(axis=1, keepdims=False)), ("z", "add", "y y"), x="f32[2, 5003]"),
        Case(
            "arg-equal",
            program(("y", "arg_max", "x", dict(axis=1, select_last_index=True)), x="f32[2, 70]"),
            arrays={"x": np.full((2, 70), -np.inf)},
        ),
        Case(
            "arg-long-nan",
            program(("y", "arg_max", "x", dict(axis=0, select_last_index=True)), x="f32[9000]"),
            arrays={"x": np.where(np.arange(9000) % 4000 == 5, np.nan, 1)},
        ),
        Case(
            "arg-nan",
            program(("y", "arg_min", "x", dict(axis=1)), x="f32[1, 70]"),
            arrays={"x": np.where(np.arange(70) % 9 == 7, np.nan, np.arange(70))},
        ),
    ],
}
