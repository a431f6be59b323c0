"""TFLite models of one operator whose operands are inputs of the model: those that move and fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tflite_cases import Q, F, ints, normal
from tflite_models import ModelWriter

I32 = np.int32


def number(n, dtype=I32):
    return np.asarray(n, dtype)


@dataclass(frozen=True)
class Free:
    """An input: its element type and sizes, −1 for dynamic ones."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Values:
    """An operator with inputs (`Free`, `Q`) and constants, what numpy gives, and feeds for the inputs, in turn.

    expected: of all operands, quantized ones as numbers. wrong: feeds that must be refused, with a part of the
    message. ranks: of the outputs. of: what is quantized among the outputs."""

    op: str
    inputs: tuple[Any, ...]
    expected: Callable[..., Any]
    feeds: tuple[tuple[Any, ...], ...]
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[Any, ...] = (("f32", 2),)
    wrong: tuple[tuple[tuple[Any, ...], str], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    def model(self) -> bytes:
        w = ModelWriter()
        numbers = []
        for i, x in enumerate(self.inputs):
            if isinstance(x, Free):
                known = [max(d, 1) for d in x.shape]
                more = dict(signature=list(x.shape)) if -1 in x.shape else {}
                numbers.append(w.main.input(known, x.dtype, name=f"x{i}", **more))
            elif isinstance(x, Q):
                numbers.append(w.main.input(x.shape, x.dtype, scale=x.scale, zero=x.zero, name=f"x{i}"))
            else:
                numbers.append(w.main.constant(x))
        outputs = []
        for of in self.outputs:
            if isinstance(of, Q):
                rank, dtype, more = len(of.shape), of.dtype, dict(scale=of.scale, zero=of.zero)
            else:
                (dtype, rank), more = of, {}
            signature = dict(signature=[-1] * rank) if rank else {}
            outputs.append(w.main.output([1] * rank, dtype, **signature, **more))
        w.main.op(self.op, numbers, outputs, self.kind, **self.options)
        return w.bytes()

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i, x in enumerate(self.inputs) if isinstance(x, (Free, Q))]

    def results(self, feed: tuple[Any, ...]) -> list[np.ndarray]:
        given = iter(feed)
        args = []
        for x in self.inputs:
            a = next(given) if isinstance(x, (Free, Q)) else x
            args.append(x.real(a) if isinstance(x, Q) else a)
        found = self.expected(*args)
        found = found if isinstance(found, tuple) else (found,)
        return [of.quantized(y) if isinstance(of, Q) else np.asarray(y) for of, y in zip(self.outputs, found)]


BYTES = Q((2, 6), "i8", 0.05, 3)
IMAGE = (1, 5, 4, 3)
MASKS = dict(begin_mask=0, end_mask=0, shrink_axis_mask=0)


def bytes_of(*shape):
    return np.random.default_rng(len(shape)).integers(-90, 90, shape).astype(np.int8)


def moves():
    x, y = normal(2, 6), Free("f32", (2, 6))
    yield Values(
        "TOPK_V2",
        (y, Free("i32", ())),
        lambda x, k: (-np.sort(-x, 1)[:, : int(k)], np.argsort(-x, 1, kind="stable")[:, : int(k)]),
        ((x, number(2)), (normal(2, 6), number(6)), (x, number(1))),
        outputs=(("f32", 2), ("i32", 2)),
        wrong=(((x, number(7)), "TOPK_V2|top_k"), ((x, number(-1)), "TOPK_V2|top_k")),
    )
    yield Values(
        "RESHAPE",
        (y, Free("i32", (2,))),
        lambda x, s: x.reshape(s),
        ((x, ints(3, 4)), (x, ints(12, -1)), (normal(2, 6), ints(1, 12))),
        wrong=(((x, ints(5, 2)), "RESHAPE"),),
    )
    yield Values(
        "TILE",
        (y, Free("i32", (2,))),
        lambda x, r: np.tile(x, r),
        ((x, ints(1, 2)), (normal(2, 6), ints(3, 1)), (x, ints(2, 2))),
        wrong=(((x, ints(1, -2)), "TILE"),),
    )
    yield Values(
        "TILE",
        (BYTES, Free("i32", (2,))),
        lambda x, r: np.tile(x, r),
        ((bytes_of(2, 6), ints(1, 2)), (bytes_of(2, 6), ints(3, 1))),
        outputs=(BYTES,),
        label="quantized",
    )

    def cut(x, b, s):
        return x[tuple(slice(i, None if n < 0 else i + n) for i, n in zip(b, s))]

    yield Values(
        "SLICE",
        (y, Free("i32", (2,)), Free("i32", (2,))),
        cut,
        ((x, ints(0, 1), ints(1, 4)), (x, ints(1, 2), ints(1, -1)), (normal(2, 6), ints(0, 3), ints(2, 3))),
        wrong=(((x, ints(0, 4), ints(2, 3)), "SLICE"), ((x, ints(-1, 0), ints(1, 1)), "SLICE")),
    )
    yield Values(
        "STRIDED_SLICE",
        (y, Free("i32", (2,)), Free("i32", (2,)), Free("i32", (2,))),
        lambda x, b, e, s: x[tuple(map(slice, b, e, s))],
        (
            (x, ints(0, 1), ints(2, 5), ints(1, 2)),
            (x, ints(0, -3), ints(1, 9), ints(1, 1)),
            (normal(2, 6), ints(1, 5), ints(2, 1), ints(1, -2)),
        ),
        "StridedSliceOptions",
        MASKS,
    )
    yield Values(
        "STRIDED_SLICE",
        (y, Free("i32", (2,)), Free("i32", (2,)), ints(1, 1)),
        lambda x, b, e, s: x[b[0], b[1] : e[1]],
        ((x, ints(0, 1), ints(1, 5)), (x, ints(1, 0), ints(2, 4)), (x, ints(-1, 2), ints(0, -1))),
        "StridedSliceOptions",
        {**MASKS, "shrink_axis_mask": 1},
        outputs=(("f32", 1),),
        label="shrunk",
    )
    edges = Free("i32", (2, 2))
    two = np.asarray([[1, 0], [2, 3]], I32), np.asarray([[0, 2], [0, 0]], I32)
    yield Values("PAD", (y, edges), np.pad, tuple((normal(2, 6), e) for e in two))
    yield Values(
        "PAD", (BYTES, edges), np.pad, tuple((bytes_of(2, 6), e) for e in two), outputs=(BYTES,), label="quantized"
    )
    yield Values(
        "PADV2",
        (y, edges, Free("f32", ())),
        lambda x, e, v: np.pad(x, e, constant_values=v),
        tuple((normal(2, 6), e, number(v, F)) for e, v in zip(two, (2.5, -1))),
        wrong=(((x, np.asarray([[1, 0], [-2, 3]], I32), number(0, F)), "PADV2"),),
    )
    for mode, how in ((0, "reflect"), (1, "symmetric")):
        some = np.asarray([[1, 0], [2, 3]], I32), np.asarray([[0, 1], [5 + mode, 0]], I32)
        yield Values(
            "MIRROR_PAD",
            (y, edges),
            lambda x, e, how=how: np.pad(x, e, how),
            tuple((normal(2, 6), e) for e in some),
            "MirrorPadOptions",
            dict(mode=mode),
            wrong=(((x, np.asarray([[0, 0], [0, 7]], I32)), "MIRROR_PAD"),),
            label=how,
        )
    yield Values(
        "TRANSPOSE",
        (Free("f32", IMAGE), Free("i32", (4,))),
        lambda x, p: x.transpose(p),
        tuple((normal(*IMAGE), ints(*p)) for p in ((0, 3, 1, 2), (3, 2, 1, 0), (0, 1, 2, 3))),
        outputs=(("f32", 4),),
        wrong=(((normal(*IMAGE), ints(0, 0, 1, 2)), "TRANSPOSE needs an order of the 4 axes"),),
    )
    yield Values(
        "EXPAND_DIMS",
        (y, Free("i32", ())),
        lambda x, a: np.expand_dims(x, int(a)),
        ((x, number(0)), (x, number(-1)), (normal(2, 6), number(1))),
        outputs=(("f32", 3),),
        wrong=(((x, number(5)), "EXPAND_DIMS needs an axis between -3 and 2, got 5"),),
    )
    yield Values(
        "SPLIT",
        (Free("i32", ()), y),
        lambda a, x: tuple(np.split(x, 2, int(a))),
        ((number(0), x), (number(1), normal(2, 6)), (number(-1), x)),
        "SplitOptions",
        dict(splits=2),
        outputs=(("f32", 2), ("f32", 2)),
    )
    yield Values(
        "SPLIT_V",
        (y, Free("i32", (2,)), number(1)),
        lambda x, s, a: tuple(np.split(x, [s[0] if s[0] >= 0 else 6 - s[1]], 1)),
        ((x, ints(2, 4)), (x, ints(-1, 5)), (normal(2, 6), ints(3, 3))),
        "SplitVOptions",
        dict(splits=2),
        outputs=(("f32", 2), ("f32", 2)),
        wrong=(((x, ints(2, 2)), "SPLIT_V"),),
    )
    yield Values(
        "REVERSE_V2",
        (Free("f32", (3, 4)), Free("i32", (1,))),
        lambda x, a: np.flip(x, tuple(a)),
        ((normal(3, 4), ints(0)), (normal(3, 4), ints(1))),
    )
    yield Values(
        "BROADCAST_TO",
        (Free("f32", (3, 1)), Free("i32", (3,))),
        lambda x, s: np.broadcast_to(x, s),
        ((normal(3, 1), ints(2, 3, 4)), (normal(3, 1), ints(1, 3, 1))),
        options=dict(version=2),
        outputs=(("f32", 3),),
        wrong=(((normal(3, 1), ints(2, 4, 4)), "BROADCAST_TO|expand"),),
    )


def fills():
    yield Values(
        "FILL",
        (Free("i32", (2,)), Free("f32", ())),
        np.full,
        ((ints(2, 3), number(1.5, F)), (ints(4, 1), number(-2, F))),
        wrong=(((ints(-2, 3), number(1, F)), "FILL"),),
    )
    whole = tuple(Free("i32", ()) for _ in range(3))
    yield Values(
        "RANGE",
        whole,
        lambda a, b, c: np.arange(a, b, c).astype(I32),
        tuple(tuple(map(number, v)) for v in ((0, 5, 1), (2, 9, 3), (7, -2, -4))),
        outputs=(("i32", 1),),
        wrong=((tuple(map(number, (0, 3, 0))), "RANGE"),),
    )
    yield Values(
        "RANGE",
        (number(1), Free("i32", ()), number(2)),
        lambda a, b, c: np.arange(a, b, c).astype(I32),
        ((number(6),), (number(9),), (number(2),)),
        outputs=(("i32", 1),),
        label="limit",
    )
    yield Values(
        "RANGE",
        tuple(Free("f32", ()) for _ in range(3)),
        lambda a, b, c: np.arange(a, b, c).astype(F),
        tuple(tuple(number(n, F) for n in v) for v in ((0, 2, 0.5), (1.5, -1, -0.75))),
        outputs=(("f32", 1),),
        label="floats",
    )
    yield Values(
        "ONE_HOT",
        (Free("i32", (3,)), Free("i32", ()), number(2, F), number(-1, F)),
        lambda i, d, a, b: np.where(i[:, None] == np.arange(d), a, b),
        ((ints(1, 0, 3), number(4)), (ints(1, 5, 2), number(6)), (ints(1, 0, 7), number(2))),
        "OneHotOptions",
        dict(axis=-1),
        wrong=(((ints(1, 0, 3), number(-4)), "ONE_HOT"),),
    )
    shapes = (ints(5), ints(7))
    yield Values(
        "SCATTER_ND",
        (Free("i32", (2, 1)), Free("f32", (2,)), Free("i32", (1,))),
        lambda i, u, s: (a := np.zeros(tuple(s), F), np.add.at(a, i[:, 0], u))[0],
        tuple((np.asarray([[3], [0]], I32), normal(2), s) for s in shapes),
        outputs=(("f32", 1),),
    )
    yield Values(
        "SPARSE_TO_DENSE",
        (Free("i32", (2,)), Free("i32", (1,)), Free("f32", (2,)), number(7, F)),
        lambda i, s, v, d: (a := np.full(tuple(s), d), a.__setitem__(i, v))[0],
        tuple((ints(1, 3), s, normal(2)) for s in shapes),
        outputs=(("f32", 1),),
    )
    yield Values(
        "BROADCAST_ARGS",
        (Free("i32", (3,)), Free("i32", (2,))),
        lambda a, b: ints(*np.broadcast_shapes(tuple(a), tuple(b))),
        ((ints(4, 1, 3), ints(5, 1)), (ints(1, 2, 1), ints(2, 7))),
        outputs=(("i32", 1),),
    )
