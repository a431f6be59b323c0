"""GPU templates, interpreted: every template on small awkward sizes against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

from compare import assert_close  # noqa: E402
from draw import examples, operands  # noqa: E402
from kernel_harness import drawn, laid, named, program, region_of  # noqa: E402
from test_kernels_image import regions  # noqa: E402
from triton_harness import TARGET, Case, check, check_dynamic, check_empty, checked, interpreted, nhwc  # noqa: E402

from pelton.engine.library import LIBRARIES  # noqa: E402
from pelton.ir import dims  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.builder import Builder  # noqa: E402
from pelton.ir.types import DType, TensorType  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Tactic  # noqa: E402
from pelton.codegen.triton.emit import TYPES, with_alignment  # noqa: E402
from pelton.ops import get  # noqa: E402

RNG = np.random.default_rng(5)
HALF = ("f32", "f16", "bf16")


def constant(dtype: str, *shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / max(1, np.sqrt(np.prod(shape[1:])))).astype(DType(dtype).numpy)


def conv(dtype: str, x: tuple, o: int, kernel: tuple, strides=1, pads=0, dilations=1, group=1, tail=()) -> Case:
    s = len(kernel)
    graph = program(
        (
            "y",
            "convolution",
            "x w b",
            dict(strides=(strides,) * s, pads=(pads,) * 2 * s, dilations=(dilations,) * s, group=group),
        ),
        *tail,
        x=f"{dtype}{list(x)}",
        w=constant(dtype, o, x[1] // group, *kernel),
        b=constant(dtype, o),
    )
    return Case(
        named(dtype, x, o, kernel, strides, pads, dilations, group, "tail" if tail else ""), graph, {"x": nhwc(len(x))}
    )


def up(dtype: str, x: tuple, o: int, kernel: tuple, strides=2, pads=0, dilations=1, group=1, extra=0, tail=()) -> Case:
    s = len(kernel)
    filters = (x[1], o // group, *kernel)
    graph = program(
        (
            "y",
            "conv_transpose",
            "x w b",
            dict(
                strides=(strides,) * s,
                pads=(pads,) * 2 * s,
                dilations=(dilations,) * s,
                group=group,
                output_padding=(extra,) * s,
            ),
        ),
        *tail,
        x=f"{dtype}{list(x)}",
        w=constant(dtype, *filters),
        b=constant(dtype, o),
    )
    return Case(named("up", dtype, x, o, kernel, strides, pads, dilations, group), graph, {"x": nhwc(len(x))})


def pool(op: str, dtype: str, x: tuple, kernel: tuple, strides: tuple, pads: tuple, **more) -> Case:
    graph = program(
        ("y", op, "x", dict(kernel=kernel, strides=strides, pads=pads, dilations=(1,) * len(kernel), **more)),
        x=f"{dtype}{list(x)}",
    )
    return Case(named(op, dtype, x, kernel, *more), graph, {"x": nhwc(len(x))})


def one(name: str, *nodes, orders=None, **inputs) -> Case:
    return Case(name, program(*nodes, **inputs), orders or {})


def last_true(name: str, rows: int, columns: int) -> Case:
    """Whether anything of a row is true: the last element of every other one is, and nothing else."""
    x = (np.arange(columns) == columns - 1) & (np.arange(rows)[:, None] % 2 == 0)
    return Case(name, program(("y", "reduce_max", "x", dict(axes=(1,))), x=f"bool[{rows}, {columns}]"), arrays={"x": x})


def picks(name: str, node: tuple, x: str, indices: list, tail=()) -> Case:
    array = np.array(indices, np.int64)
    return Case(name, program(node, *tail, x=x, i=f"i64{list(array.shape)}"), arrays={"i": array})


def attention(
    name: str,
    dtype: str,
    q: tuple,
    k: tuple,
    v: tuple,
    mask: tuple | np.ndarray = (),
    tail=(),
    heads=False,
    hidden=None,
    z=(),
    **attrs,
) -> Case:
    """heads: they lie side by side in rows, as a projection leaves them. hidden: where the mask is, instead of numbers,
    minus infinity."""
    arrays = {} if hidden is None else {"mask": np.where(hidden, -np.inf, 0)}
    masked = (
        mask.astype(DType(dtype).numpy)
        if isinstance(mask, np.ndarray)
        else f"{dtype}{list(mask if hidden is None else hidden.shape)}"
    )
    more = {"z": f"{dtype}{list(z)}"} if z else {}
    graph = program(
        ("y", "attention", "q k v mask", dict(dict(scale=0.3), **attrs)),
        *tail,
        q=f"{dtype}{list(q)}",
        k=f"{dtype}{list(k)}",
        v=f"{dtype}{list(v)}",
        mask=masked,
        **more,
    )
    return Case(f"{name}-{dtype}", graph, dict.fromkeys("qkvz", (0, 2, 1, 3)) if heads else {}, arrays)


def few_seen(rows: int, columns: int) -> np.ndarray:
    """A mask under which every row sees some neighbouring columns only."""
    first = np.arange(rows)[:, None] * columns // rows
    return (np.arange(columns) < first) | (np.arange(columns) > first + 5)


NONE = np.zeros(())


def steps(op: str, dtype: str, time: int, batch: int, hidden: int, outputs: str = "", **attrs) -> Case:
    """A recurrence over given gates; `outputs` are those of its results that are read, all where none is named."""
    directions, gates = 1 + (attrs.get("direction") == "bidirectional"), {"lstm": 4, "gru": 3, "rnn": 1}[op]
    state, results = f"{dtype}[{directions}, {batch}, {hidden}]", {"lstm": "y h1 c1", "gru": "y h1", "rnn": "y h1"}[op]
    inputs = {
        "g": f"{dtype}[{time}, {batch}, {directions * gates * hidden}]",
        "r": constant(dtype, directions, gates * hidden, hidden),
        **({"b": f"{dtype}[{directions}, {hidden}]"} if op == "gru" else {}),
        "h": state,
        **({"c": state, "p": constant(dtype, directions, 3 * hidden)} if op == "lstm" else {}),
    }
    graph = program((results, f"{op}_steps", " ".join(inputs), attrs), **inputs)
    ends = outputs.split() or results.split()
    return Case(
        named(op, dtype, time, batch, hidden, *ends, *(k for k, v in attrs.items() if v)),
        graph.replace(outputs=tuple(v for v in graph.outputs if v.name in ends)),
    )


def blend(dtype: str, x: tuple, places: tuple, axis: int, batch: int, weights: str, tail=(), **more) -> Case:
    indices = RNG.integers(-x[axis], x[axis], places)
    by = RNG.standard_normal(places) * (RNG.random(places) < 0.8)  # some pick nothing
    node = ("y", "blend", "x i w", dict(axis=axis, batch_dims=batch))
    graph = program(node, *tail, x=f"{dtype}{list(x)}", i=f"i64{list(places)}", w=f"{weights}{list(places)}")
    return Case(named(dtype, x, axis, batch), graph, arrays={"i": indices, "w": by}, **more)


def scatters(op: str, dtype: str, x: tuple, indices: list, updates: tuple, reduction: str, tail=(), **attrs) -> Case:
    array = np.array(indices, np.int64)
    graph = program(
        ("y", op, "x i u", dict(reduction=reduction, **attrs)),
        *tail,
        x=f"{dtype}{list(x)}",
        i=f"i64{list(array.shape)}",
        u=f"{dtype}{list(updates)}",
    )
    return Case(named(op, dtype, x, updates, reduction), graph, arrays={"i": array})


RELU = (("z", "relu", "y"),)
BOTH = dict(direction="bidirectional")
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
        regions("max_roi_pool", "bf16[2, 3, 9, 11]", 7, height=7, width=7),
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
            "mean-pictures",
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
ALL = [pytest.param(name, case, id=f"{name}-{case.name}") for name, cases in CASES.items() for case in cases]


def of_example(name, op, types, attrs) -> Case:
    arrays = dict(zip("abcdefgh", operands(op, types, attrs)))
    b = Builder()
    return Case(name, b.graph(b.emit(op, [b.input(t, n) for n, t in zip(arrays, types)], attrs)), arrays=arrays)


def held(case: Case) -> bool:
    """Whether kernels hold all its element types, and it has something to compute."""
    values = (*case.graph.inputs, *case.graph.outputs)
    return all(v.type.dtype.value in TYPES and v.type.size for v in values)


SCALARS = [case for example in examples("pointwise") if held(case := of_example(*example))]


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: case.name)
def test_every_pointwise_op_has_a_triton_reading(case):
    check(GPU_TEMPLATES["pointwise"], case)


def test_every_template_has_cases():
    # the latter have their own: test_triton_cublaslt.py, …_cudnn.py, …_im2col.py
    assert {*CASES, *LIBRARIES, "im2col"} == set(GPU_TEMPLATES)


@pytest.mark.parametrize("name, case", ALL)
def test_template(name, case):
    check(GPU_TEMPLATES[name], case)


@pytest.mark.parametrize(
    "name, index",
    [
        ("pointwise", 0),
        ("gemm", 1),
        ("gemm", 3),
        ("window", 3),
        ("rows", 0),
        ("rows", 7),
        ("conv", 1),
        ("attention", 0),
        ("attention", 3),
        ("attention", 9),
        ("few", 0),
        ("few", 4),
        ("scan", 0),
        ("top_k", 7),
        ("recurrent", 0),
        ("recurrent", 11),
        ("move", 0),
        ("move", 7),
        ("matmul", 0),
    ],
)
def test_sizes_that_a_run_decides(name, index):
    assert check_dynamic(GPU_TEMPLATES[name], CASES[name][index]).dims


@pytest.mark.parametrize(
    "name, index",
    [
        ("window", 4),
        ("lrn", 0),
        ("roi", 0),
        ("rows", 0),
        ("gemm", 3),
        ("conv", 1),
        ("attention", 0),
        ("few", 0),
        ("recurrent", 0),
        ("move", 0),
    ],
)
def test_sizes_that_may_be_none(name, index):
    assert check_empty(GPU_TEMPLATES[name], CASES[name][index])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tactic", ["BM=64,BN=64,BK=32", "BM=128,BN=64,BK=64"])
def test_products_by_descriptors(tactic, turned):
    case = one(
        "described",
        ("y", "matmul", "a b"),
        ("z", "add", "y c"),
        a="f16[3, 67, 72]",
        b="f16[72, 136]",
        c="f16[136]",
        orders={"b": (1, 0)} if turned else {},
    )
    region, template = region_of(case.graph), GPU_TEMPLATES["gemm"]
    lay = laid(template, region, case, 0)
    way = Tactic.parse(f"gemm:{tactic},TALL=8,WARPS=4,STAGES=3,PRECISION=0,DESCRIBED=1,PERSISTENT=1,STREAM=0@sm_90")
    assert {t["DESCRIBED"] for t in template.tactics(region, lay, TARGET)} == {0, 1}
    kernel, inputs = template.emit(region, lay, way, TARGET), drawn(case)
    assert kernel.tiles == TARGET.threads and "descriptor" in kernel.source
    for k in (kernel, with_alignment(kernel, [True, False, True, True])):
        (got,) = interpreted(region, k, lay, inputs, way.name).values()
        assert_close(got, evaluate(case.graph, inputs, round=False)["z"].astype(np.float16))


class Pictures(type(GPU_TEMPLATES["conv"])):  # type: ignore[misc]
    """Convolutions by tactics whose rows are one pixel of many pictures."""

    def tactics(self, region, layouts, target):
        found = [t for t in super().tactics(region, layouts, target) if t["PICTURES"]]
        return found or super().tactics(region, layouts, target)


@pytest.mark.parametrize(
    "case",
    [
        *(conv(t, (70, 24, 4, 3), 20, (3, 3), strides=s, pads=1, tail=RELU) for t, s in (("f16", 1), ("bf16", 2))),
        conv("f16", (65, 64, 3, 3), 36, (3, 3), dilations=2, pads=2, group=2),
        conv("f16", (66, 32, 5), 9, (3,), pads=1),
        up("f16", (66, 16, 3, 2), 8, (3, 3), pads=1),
    ],
    ids=lambda case: case.name,
)
def test_pixels_of_many_pictures_side_by_side(case):
    dense, gapped = check(Pictures(), case)
    assert "DESCRIBED = tl.constexpr(True)" in dense.source and "DESCRIBED = tl.constexpr(False)" in gapped.source


def test_many_pictures_whose_number_a_run_decides():
    b = Builder()
    x = b.input(TensorType(DType.F16, (dims.symbol("N", 1, 70, 99), 16, 4, 3)), "x")
    attrs = dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1)
    y = b.emit(
        get("convolution"),
        [x, *(b.constant(constant("f16", *shape), name) for name, shape in (("w", (20, 16, 3, 3)), ("b", (20,))))],
        attrs,
    )
    kernel = check_dynamic(Pictures(), Case("many", b.graph(y), {"x": nhwc(4)}))
    assert kernel.dims and "DESCRIBED = tl.constexpr(True)" in kernel.source


@pytest.mark.parametrize(
    "name, case",
    [
        (
            "blend",
            one("blend", ("y", "blend", "x i w", dict(axis=1)), x="f32[3, 29, 6]", i="i64[11, 2]", w="f32[11, 2]"),
        ),
        (
            "scatter",
            one(
                "scatter",
                ("y", "scatter_nd", "x i u", dict(reduction="add")),
                x="f32[9, 7]",
                i="i64[4, 1]",
                u="f32[4, 7]",
            ),
        ),
        (
            "scatter",
            one(
                "elements",
                ("y", "scatter_elements", "x i u", dict(axis=0, reduction="mul")),
                x="f32[9, 7]",
                i="i64[4, 3]",
                u="f32[4, 3]",
            ),
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_indices_into_sizes_that_a_run_decides(name, case):
    assert check_dynamic(GPU_TEMPLATES[name], case).dims


@pytest.mark.parametrize(
    "name, op, types, attrs",
    [
        ("gemm", "matmul", ((19, "n"), ("n", 21)), {}),
        ("few", "matmul", ((2, "n"), ("n", 21)), {}),
        ("attention", "attention", ((1, 2, 5, 8), (1, 2, "n", 8), (1, 2, "n", 8), ()), dict(scale=0.3)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_sums_of_nothing_that_a_run_decides(name, op, types, attrs):
    b, n = Builder(), dims.symbol("N", 0, 24, 99)
    inputs = [
        b.input(TensorType(DType.F32, tuple(n if d == "n" else d for d in shape)), f"x{i}")
        for i, shape in enumerate(types)
    ]
    assert checked(
        GPU_TEMPLATES[name], Case("nothing", b.graph(b.emit(get(op), inputs, attrs))), {"N": -24}, {"N": 3}
    ).dims


def test_sizes_may_have_the_names_that_kernels_use():
    n, m, k, c = (dims.symbol(name, 1, size, 99) for name, size in (("N", 5), ("M", 19), ("K", 24), ("COLS", 7)))
    b = Builder()
    x, w = b.input(TensorType(DType.F32, (n, c, m, k)), "x"), b.input(TensorType(DType.F32, (k, c * 3)), "w")
    (y,) = b.emit(get("matmul"), [x, w])
    assert check_dynamic(GPU_TEMPLATES["gemm"], Case("names", b.graph(b.emit(get("relu"), [y])))).dims
