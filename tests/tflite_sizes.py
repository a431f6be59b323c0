"""TFLite models whose operators read the dynamic sizes of an input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tflite_cases import F, ints, normal, resized, transposed
from tflite_models import ModelWriter
from tflite_values import I32, number
from tflite_values_computed import to_batch


@dataclass(frozen=True)
class Sizes:
    """Operators behind an input x of dynamic sizes, which they read by SHAPE; what numpy gives; shapes in turn.

    write: of a subgraph, x and the sizes i32[rank], the operators; it gives the tensor of the output."""

    name: str
    shape: tuple[int, ...]
    write: Callable[..., int]
    expected: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    wrong: tuple[tuple[int, ...], ...] = ()

    def model(self) -> bytes:
        w = ModelWriter()
        m = w.main
        x = m.input([max(d, 1) for d in self.shape], "f32", signature=list(self.shape), name="x")
        m.op("SHAPE", [x], [sizes := m.tensor((len(self.shape),), "i32")], "ShapeOptions", out_type=2)
        m.outputs.append(self.write(m, x, sizes))
        return w.bytes()


def out(m, rank, dtype="f32"):
    return m.tensor([1] * rank, dtype, signature=[-1] * rank) if rank else m.tensor((), dtype)


def emit(m, op, inputs, rank, dtype="f32", kind="", **options):
    m.op(op, inputs, [y := out(m, rank, dtype)], kind, **options)
    return y


def element(m, sizes, axis):
    """One of the sizes, i32[]."""
    given = [sizes, *(m.constant(ints(v)) for v in (axis, axis + 1, 1))]
    return emit(m, "STRIDED_SLICE", given, 0, "i32", "StridedSliceOptions", shrink_axis_mask=1)


def packed(m, *parts):
    return emit(m, "PACK", parts, 1, "i32", "PackOptions", count=len(parts), axis=0)


def times(m, a, factor):
    return emit(m, "MUL", [a, m.constant(ints(*factor))], 1, "i32", "MulOptions")


def of_rows():
    shapes, row = ((2, 3), (5, 3), (1, 3)), normal(1, 3)
    rank, two = dict(shape=(-1, 3), shapes=shapes), number(2)

    def case(name, write, expected, **more):
        return Sizes(name, write=write, expected=expected, **{**rank, **more})

    def n(m, s):
        return element(m, s, 0)

    def with_one(m, s):
        return packed(m, n(m, s), m.constant(number(1)))

    yield case(
        "TILE",
        lambda m, x, s: emit(m, "TILE", [m.constant(row), with_one(m, s)], 2),
        lambda x: np.tile(row, (len(x), 1)),
    )
    yield case(
        "RANGE",
        lambda m, x, s: emit(m, "RANGE", [m.constant(number(0)), n(m, s), m.constant(number(1))], 1, "i32"),
        lambda x: np.arange(len(x), dtype=I32),
    )
    yield case(
        "RANGE by 2",
        lambda m, x, s: emit(m, "RANGE", [m.constant(number(1)), n(m, s), m.constant(two)], 1, "i32"),
        lambda x: np.arange(1, len(x), 2, dtype=I32),
    )
    yield case(
        "FILL",
        lambda m, x, s: emit(m, "FILL", [s, m.constant(number(2.5, F))], 2),
        lambda x: np.full(x.shape, 2.5, F),
    )
    yield case(
        "BROADCAST_TO",
        lambda m, x, s: emit(m, "BROADCAST_TO", [m.constant(row), s], 2, version=2),
        lambda x: np.broadcast_to(row, x.shape),
    )

    def pads(m, s):
        flat = packed(m, n(m, s), m.constant(number(0)), m.constant(number(1)), n(m, s))
        return emit(m, "RESHAPE", [flat, m.constant(ints(2, 2))], 2, "i32")

    for op, more in (("PAD", ()), ("PADV2", (number(1.5, F),))):
        yield case(
            op,
            lambda m, x, s, op=op, more=more: emit(m, op, [x, pads(m, s), *map(m.constant, more)], 2),
            lambda x, more=more: np.pad(x, ((len(x), 0), (1, len(x))), constant_values=more[0] if more else 0),
        )
    for mode, how in ((0, "reflect"), (1, "symmetric")):
        edges = np.asarray([[2 - (mode == 0), 1], [0, 1]], I32)
        yield case(
            f"MIRROR_PAD {how}",
            lambda m, x, s, edges=edges, mode=mode: emit(
                m, "MIRROR_PAD", [x, m.constant(edges)], 2, kind="MirrorPadOptions", mode=mode
            ),
            lambda x, edges=edges, how=how: np.pad(x, edges, how),
            shapes=((2, 3), (5, 3)),
            wrong=((1, 3),),
        )
    yield case(
        "ONE_HOT",
        lambda m, x, s: emit(
            m,
            "ONE_HOT",
            [m.constant(ints(0, 1, 4)), n(m, s), m.constant(number(1, F)), m.constant(number(0, F))],
            2,
            kind="OneHotOptions",
            axis=-1,
        ),
        lambda x: (np.arange(len(x)) == ints(0, 1, 4)[:, None]).astype(F),
    )
    yield case(
        "SLICE",
        lambda m, x, s: emit(m, "SLICE", [x, m.constant(ints(1, 1)), packed(m, *minus_one(m, s))], 2),
        lambda x: x[1:, 1:],
    )
    yield case(
        "STRIDED_SLICE",
        lambda m, x, s: emit(
            m,
            "STRIDED_SLICE",
            [x, m.constant(ints(-2, 0)), s, m.constant(ints(1, 1))],
            2,
            kind="StridedSliceOptions",
        ),
        lambda x: x[-2:],
        shapes=((2, 3), (5, 3)),
    )
    yield case(
        "STRIDED_SLICE backwards",
        lambda m, x, s: emit(
            m,
            "STRIDED_SLICE",
            [x, *map(m.constant, (ints(0, 0), ints(0, 0), ints(-1, 2)))],
            2,
            kind="StridedSliceOptions",
            begin_mask=3,
            end_mask=3,
        ),
        lambda x: x[::-1, ::2],
    )
    for op, count in (("SPLIT", 2), ("SPLIT", 3)):

        def halves(m, x, s, count=count):
            parts = [out(m, 2) for _ in range(count)]
            m.op("SPLIT", [m.constant(number(0)), x], parts, "SplitOptions", splits=count)
            return emit(m, "SUB", [parts[0], parts[-1]], 2, kind="SubOptions")

        yield case(
            f"{op} {count}",
            halves,
            lambda x, count=count: np.split(x, count)[0] - np.split(x, count)[-1],
            shapes=((count, 3), (4 * count, 3)),
            wrong=((2 * count + 1, 3),),
        )
    yield case(
        "SPLIT_V",
        lambda m, x, s: split_v(m, x, n(m, s)),
        lambda x: x[1:],
        shapes=((2, 3), (5, 3)),
    )
    for op, f in (("CUMSUM", lambda x: np.cumsum(x, 0)), ("REVERSE_V2", lambda x: x[::-1])):
        axis, kind = number(0) if op == "CUMSUM" else ints(0), "CumsumOptions" if op == "CUMSUM" else ""
        yield case(op, lambda m, x, s, op=op, axis=axis, kind=kind: emit(m, op, [x, m.constant(axis)], 2, kind=kind), f)
    yield case(
        "TOPK_V2",
        lambda m, x, s: topk(m, x, n(m, s)),
        lambda x: -np.sort(-x.T, 1),
    )
    yield case(
        "SCATTER_ND",
        lambda m, x, s: emit(m, "SCATTER_ND", [m.constant(np.asarray([[0]], I32)), m.constant(row), s], 2),
        lambda x: np.concatenate([row, np.zeros((len(x) - 1, 3), F)]),
    )
    yield case(
        "DYNAMIC_UPDATE_SLICE",
        lambda m, x, s: emit(m, "DYNAMIC_UPDATE_SLICE", [x, m.constant(row), m.constant(ints(9, 0))], 2),
        lambda x: np.concatenate([x[:-1], row]),
    )
    yield case(
        "MATRIX_DIAG",
        lambda m, x, s: emit(m, "MATRIX_DIAG", [emit(m, "TRANSPOSE", [x, m.constant(ints(1, 0))], 2)], 3),
        lambda x: np.stack([np.diag(a) for a in x.T]),
    )


def minus_one(m, s):
    return [emit(m, "SUB", [element(m, s, a), m.constant(number(1))], 0, "i32", "SubOptions") for a in (0, 1)]


def split_v(m, x, n):
    rest = emit(m, "SUB", [n, m.constant(number(1))], 0, "i32", "SubOptions")
    parts = [out(m, 2), out(m, 2)]
    sizes = packed(m, m.constant(number(1)), rest)
    m.op("SPLIT_V", [x, sizes, m.constant(number(0))], parts, "SplitVOptions", splits=2)
    return parts[1]


def topk(m, x, k):
    columns = emit(m, "TRANSPOSE", [x, m.constant(ints(1, 0))], 2)
    m.op("TOPK_V2", [columns, k], [y := out(m, 2), out(m, 2, "i32")])
    return y


def of_images():
    shapes = ((1, 3, 4, 2), (2, 5, 7, 2))

    def space(m, s):
        given = [s, *(m.constant(ints(v)) for v in (1, 3, 1))]
        return emit(m, "STRIDED_SLICE", given, 1, "i32", "StridedSliceOptions")

    for op, linear in (("RESIZE_BILINEAR", True), ("RESIZE_NEAREST_NEIGHBOR", False)):
        kind = "ResizeBilinearOptions" if linear else "ResizeNearestNeighborOptions"
        for label, factor in (("twice", (2, 2)), ("three by one", (3, 1))):
            yield Sizes(
                f"{op} {label}",
                (-1, -1, -1, 2),
                lambda m, x, s, op=op, kind=kind, factor=factor: emit(
                    m, op, [x, times(m, space(m, s), factor)], 4, kind=kind, half_pixel=True
                ),
                lambda x, linear=linear, factor=factor: resized(
                    (x.shape[1] * factor[0], x.shape[2] * factor[1]), linear, half=True
                )(x, None),
                shapes,
            )
        yield Sizes(
            f"{op} to numbers",
            (1, -1, -1, 2),
            lambda m, x, s, op=op, kind=kind: emit(m, op, [x, m.constant(ints(6, 5))], 4, kind=kind),
            lambda x, linear=linear: resized((6, 5), linear)(x, None),
            ((1, 3, 4, 2), (1, 9, 7, 2)),
        )
    yield Sizes(
        "SPACE_TO_BATCH_ND",
        (-1, -1, 4, 2),
        lambda m, x, s: emit(
            m, "SPACE_TO_BATCH_ND", [x, m.constant(ints(2, 2)), m.constant(np.asarray([[1, 1], [0, 0]], I32))], 4
        ),
        lambda x: to_batch(x, ints(2, 2), ints(1, 1, 0, 0).reshape(2, 2)),
        ((1, 4, 4, 2), (2, 8, 4, 2)),
    )
    weights = normal(3, 3, 3, 2)

    def scalar_times(m, s):
        parts = [emit(m, "MUL", [element(m, s, a), m.constant(number(2))], 0, "i32", "MulOptions") for a in (1, 2)]
        return packed(m, element(m, s, 0), *parts, m.constant(number(3)))

    yield Sizes(
        "TRANSPOSE_CONV",
        (-1, -1, -1, 2),
        lambda m, x, s: emit(
            m,
            "TRANSPOSE_CONV",
            [scalar_times(m, s), m.constant(weights), x],
            4,
            kind="TransposeConvOptions",
            padding=0,
            stride_h=2,
            stride_w=2,
        ),
        lambda x: transposed((len(x), 2 * x.shape[1], 2 * x.shape[2], 3), (2, 2), 0)(None, weights, x),
        shapes,
    )


SIZES = [*of_rows(), *of_images()]
