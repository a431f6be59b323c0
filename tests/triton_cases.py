"""Builds cases for GPU templates: a graph of one region, its layouts and its operands."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

from kernel_harness import named, program  # noqa: E402
from triton_harness import Case, nhwc  # noqa: E402

from pelton.ir.types import DType  # noqa: E402

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
    if isinstance(mask, np.ndarray):
        masked = mask.astype(DType(dtype).numpy)
    else:
        masked = f"{dtype}{list(mask if hidden is None else hidden.shape)}"
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
