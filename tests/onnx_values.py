"""Operands known only at run time: values that one engine receives in turn, and meaningless values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx_operands import Draws, f32, i64


class Fed(NamedTuple):
    """A node whose operands are inputs, with what these are in turn, and with operands that mean nothing."""

    op: str
    good: tuple[tuple[Any, ...], ...]
    wrong: tuple[tuple[Any, ...], ...] = ()
    attrs: dict[str, Any] = {}


draws = Draws(46)
TABLE, CUBE, IMAGE, COLUMN = (draws.weights(*s) for s in ((3, 4), (2, 3, 5), (1, 2, 3, 4), (3, 1)))
THETA, SOLID, BLOCKS, WAVE = (draws.weights(*s) for s in ((2, 2, 3), (1, 3, 4), (1, 12, 12), (1, 40)))
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95]]], np.float32)
POOLED, PLACES = f32(1, 2, 3, 4).reshape(1, 1, 2, 2), i64(0, 2, 8, 10).reshape(1, 1, 2, 2)
REDUCTIONS = "Max Min Mean Prod L1 L2 LogSum LogSumExp SumSquare".split()


def number(x: Any, dtype: Any = np.int64) -> np.ndarray:
    return np.array(x, dtype)


def behind(x: Any, *values: Any) -> tuple[tuple[Any, ...], ...]:
    """The same first operand with one second operand after the other."""
    return tuple((x, i64(*v) if isinstance(v, tuple) else number(v)) for v in values)


def ranges(dtype: Any, *values: tuple[Any, Any, Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(number(v, dtype) for v in each) for each in values)


FED = [
    Fed("Range", ranges(np.int64, (0, 5, 1), (10, 0, -3), (0, 0, 1), (2, 9, 4)), ranges(np.int64, (0, 5, 0))),
    Fed("Range", ranges(np.int32, (1, 9, 3), (3, -3, -2))),
    Fed(
        "Range",
        ranges(np.float32, (0, 5, 1), (1, 0, -0.25), (0, 1, 0.3)),
        ranges(np.float32, (0, 5, 0), (0, np.nan, 1)),
    ),
    Fed("Tile", behind(TABLE, (1, 2), (2, 1), (0, 1), (1, 1)), behind(TABLE, (-1, 1))),
    Fed("Expand", behind(COLUMN, (3, 4), (1, 1), (3, 0)), behind(COLUMN, (2, 4), (-1, 4))),
    Fed("Expand", behind(COLUMN, (2, 3, 1), (2, 1, 4))),
    Fed("Reshape", behind(TABLE, (4, 3), (2, -1), (0, -1), (12, 1)), behind(TABLE, (5, 5), (-1, -1), (-2, 6))),
    Fed("Reshape", behind(CUBE, (5, 6, 1), (0, 0, -1), (1, 0, -1))),
    Fed(
        "Slice",
        tuple(
            (TABLE, i64(a), i64(b), i64(axis), i64(step))
            for a, b, axis, step in ((0, 2, 0, 1), (-1, -100, 0, -1), (1, 3, 1, 2), (5, 1, 1, 1), (3, 0, -1, -2))
        ),
        tuple((TABLE, i64(0), i64(2), i64(axis), i64(step)) for axis, step in ((5, 1), (0, 0), (-3, 1))),
    ),
    Fed("Slice", tuple((TABLE, i64(*a), i64(*b)) for a, b in (((0, 0), (2, 2)), ((1, 1), (9, 9)), ((-1, -1), (9, 9))))),
    Fed("Pad", tuple((TABLE, i64(*p), number(1.5, np.float32)) for p in ((0, 1, 0, 2), (1, 0, 0, 0), (0, -1, 0, 0)))),
    Fed("Pad", behind(TABLE, (0, 1, 0, 2), (2, 0, 0, 0), (0, 0, 0, 0)), attrs={"mode": "reflect"}),
    Fed("Pad", behind(TABLE, (0, 1, 0, 2), (9, 0, 0, 0)), attrs={"mode": "edge"}),
    Fed(
        "Pad",
        tuple((TABLE, i64(1, 2), number(2, np.float32), i64(axis)) for axis in (0, 1, -1)),
        ((TABLE, i64(1, 2), number(2, np.float32), i64(7)),),
        {"opset": 18},
    ),
    Fed("TopK", behind(TABLE, (1,), (2,), (4,), (0,)), behind(TABLE, (5,), (-1,)), {"outputs": 2}),
    Fed("TopK", behind(TABLE, (1,), (3,)), behind(TABLE, (4,)), {"outputs": 2, "axis": 0}),
    Fed(
        "OneHot",
        tuple((i64(0, 2, -1, 9), number(depth), f32(-1, 2)) for depth in (3, 5, 1)),
        tuple((i64(0, 2, -1, 9), number(depth), f32(-1, 2)) for depth in (0, -1)),
    ),
    Fed("OneHot", tuple((f32(0, 2, -1), f32(depth), f32(-1, 2)) for depth in (3, 5)), attrs={"axis": 0}),
    Fed(
        "Resize",
        tuple((IMAGE, None, f32(1, 1, *s)) for s in ((2, 2), (0.5, 1.5))),
        tuple((IMAGE, None, f32(1, 1, *s)) for s in ((-1, 1), (0, 1), (np.nan, 1))),
        {"mode": "nearest"},
    ),
    Fed(
        "Resize",
        tuple((IMAGE, None, None, i64(1, 2, *s)) for s in ((2, 2), (7, 9), (3, 4))),
        ((IMAGE, None, None, i64(1, 2, -1, 1)),),
        {"mode": "linear"},
    ),
    Fed(
        "Resize",
        tuple((IMAGE, None, None, i64(*s)) for s in ((5, 6), (7, 9))),
        attrs={"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "opset": 18},
    ),
    Fed("Resize", tuple((IMAGE, f32(1, 1, *s)) for s in ((2, 2), (0.5, 1.5))), attrs={"opset": 10}),
    Fed("Upsample", tuple((IMAGE, f32(1, 1, *s)) for s in ((2, 2), (3, 1))), attrs={"opset": 9}),
    Fed("Squeeze", behind(draws.weights(1, 3, 1), (0,), (2,), (-1,)), behind(draws.weights(1, 3, 1), (1,), (5,))),
    Fed("Squeeze", behind(draws.weights(1, 3, 1), (0, 2), (0, -1))),
    Fed("Unsqueeze", behind(TABLE, (0,), (1,), (-1,)), behind(TABLE, (7,))),
    Fed("Unsqueeze", behind(TABLE, (0, 1), (1, 3)), behind(TABLE, (0, 0))),
    Fed("ReduceSum", behind(CUBE, (0,), (1,), (-1,)), behind(CUBE, (5,))),
    Fed("ReduceSum", behind(CUBE, (0, 1), (1, -1)), attrs={"keepdims": 0}),
    *(
        Fed(f"Reduce{how}", behind(np.abs(CUBE), (0,), (1,), (-1,)), behind(CUBE, (5,)), {"opset": 18})
        for how in REDUCTIONS
    ),
    Fed(
        "Split",
        behind(TABLE, (1, 3), (2, 2), (0, 4)),
        behind(TABLE, (1, 1), (-1, 5)),
        {"outputs": 2, "axis": 1},
    ),
    Fed("ConstantOfShape", ((i64(2, 3),), (i64(0, 4),), (i64(1, 1),)), ((i64(-1, 2),),)),
    Fed("CenterCropPad", behind(TABLE, (2, 2), (5, 7), (3, 4), (0, 1)), attrs={"opset": 18}),
    Fed(
        "AffineGrid",
        behind(THETA, (2, 1, 4, 5), (2, 3, 2, 7), (2, 1, 3, 2)),
        behind(THETA, (3, 1, 2, 2), (2, 1, 0, 2), (2, 1, -1, 2)),
        {"opset": 20},
    ),
    Fed("AffineGrid", behind(SOLID, (1, 1, 4, 5, 3), (1, 3, 2, 7, 2)), attrs={"opset": 20, "align_corners": 1}),
    Fed(
        "Col2Im",
        tuple((BLOCKS, i64(*image), i64(*block)) for image, block in (((4, 5), (2, 2)), ((5, 4), (2, 2)))),
        ((BLOCKS, i64(4, 6), i64(3, 3)),),
        {"opset": 18},
    ),
    Fed("Trilu", behind(TABLE, 0, 1, -1, 10, -10)),
    Fed("CumSum", behind(TABLE, 0, 1, -1), behind(TABLE, 2)),
    Fed("CumSum", behind(TABLE, (0,), (1,), (-1,)), attrs={"exclusive": 1, "reverse": 1}),
    Fed(
        "Clip", tuple((TABLE, f32(low).reshape(()), f32(high).reshape(())) for low, high in ((-0.5, 0.5), (0, np.inf)))
    ),
    Fed("Dropout", tuple((TABLE, number(p, np.float32), number(t, bool)) for p, t in ((0.5, False), (0, True)))),
    Fed(
        "MaxUnpool",
        ((POOLED, PLACES, i64(1, 1, 4, 4)),),
        attrs={"kernel_shape": [2, 2], "strides": [2, 2], "opset": 11},
    ),
    Fed(
        "NonMaxSuppression",
        tuple(
            (BOXES, SCORES, number(most), number(overlap, np.float32), number(score, np.float32))
            for most, overlap, score in ((3, 0.5, 0), (0, 0.5, 0), (-1, 0.5, 0), (2, 0.5, 0.7), (9, 0, 0), (9, 1, 0))
        ),
        tuple(
            (BOXES, SCORES, number(9), number(overlap, np.float32), number(0, np.float32))
            for overlap in (1.5, -0.1, np.nan)
        ),
    ),
    Fed(
        "STFT",
        tuple((WAVE, number(step), None, number(length)) for step, length in ((4, 8), (8, 16))),
        tuple((WAVE, number(step), None, number(length)) for step, length in ((0, 8), (4, 80), (4, -1))),
    ),
    Fed("DFT", behind(draws.weights(1, 16, 1), 16, 8, 20), behind(draws.weights(1, 16, 1), 0, -1), {"axis": 1}),
    Fed(
        "DFT",
        tuple((draws.weights(1, 16, 3, 1), number(8), number(axis)) for axis in (1, 2, -2, -3)),
        ((draws.weights(1, 16, 3, 1), number(8), number(9)),),
        {"opset": 20},
    ),
    *(Fed(f"{name}Window", tuple((number(n),) for n in (8, 5, 1))) for name in ("Hann", "Hamming", "Blackman")),
    Fed(
        "MelWeightMatrix",
        tuple(
            (number(bins), number(16), number(8192), number(low, np.float32), number(high, np.float32))
            for bins, low, high in ((8, 0, 4096), (4, 100, 4000))
        ),
    ),
    Fed("Compress", tuple((TABLE, np.array(c)) for c in ([True, False, True], [False] * 3)), attrs={"axis": 0}),
    Fed("Compress", ((TABLE, np.array([True, False, True, True])),), attrs={"axis": 0}),
    Fed("Gather", behind(TABLE, (0, 2), (-1, -3)), behind(TABLE, (3, 0), (-4, 0))),
    Fed(
        "TensorScatter",
        tuple((draws.weights(2, 6, 3), draws.weights(2, 2, 3), i64(*at)) for at in ((0, 1), (4, 2))),
        attrs={"opset": 24, "axis": 1},
    ),
    Fed("Cast", ((np.array(["15", "1E3", "100.5"], object),),), ((np.array(["1", "x", ""], object),),), {"to": 7}),
    Fed("RegexFullMatch", (), ((np.array(["a"], object),),), {"pattern": "(", "opset": 20}),
]
