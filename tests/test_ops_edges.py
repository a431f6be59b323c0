"""Ops on values that random numbers miss: edges, integers, ties and narrow floats."""

from __future__ import annotations


import numpy as np
import pytest
from compare import assert_close
from draw import node_of

from pelton.importers.onnx import load  # noqa: F401  (declares the readers)
from pelton.ir.evaluate import evaluate_node
from pelton.ir.types import F16, I32, DType, TensorType
from pelton.ops import REGISTRY


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    "name, arrays, attrs, want",
    [
        ("relu", ([NAN, -1.0, -0.0, 2.0],), {}, [NAN, 0.0, 0.0, 2.0]),
        ("maximum", ([NAN, 1.0], [1.0, NAN]), {}, [NAN, NAN]),
        ("clip", ([NAN, -5.0, 5.0], -1.0, 1.0), {}, [NAN, -1.0, 1.0]),
        ("softplus", ([-1000.0, 0.0, 1000.0],), {}, [0.0, np.log(2), 1000.0]),
        ("sigmoid", ([-1000.0, 0.0, 1000.0, NAN],), {}, [0.0, 0.5, 1.0, NAN]),
        ("elu", ([1000.0, -1000.0],), {}, [1000.0, -1.0]),
        ("mish", ([1000.0, -1000.0],), {}, [1000.0, 0.0]),
        ("round", ([0.5, 1.5, -0.5, -2.5],), {}, [0.0, 2.0, -0.0, -2.0]),
        ("softmax", ([[1000.0, 1000.0], [-INF, 0.0]],), dict(axis=1), [[0.5, 0.5], [0.0, 1.0]]),
        ("log_softmax", ([[1000.0, 1000.0]],), dict(axis=1), [[-np.log(2)] * 2]),
        ("reduce_log_sum_exp", ([[1000.0, 1000.0]],), dict(axes=(1,)), [[1000 + np.log(2)]]),
        ("reduce_log_sum_exp", ([[-INF, -INF], [INF, 0.0]],), dict(axes=(1,)), [[-INF], [INF]]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), dict(negative=False), [True, False, False, False]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), dict(positive=False), [False, True, False, False]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), {}, [True, True, False, False]),
        ("cast", ([1.9, -1.9, 0.4],), dict(to=I32), np.array([1, -1, 0], np.int32)),
        ("arg_max", ([[1.0, 3.0, 3.0]],), dict(axis=1), np.array([[1]])),
        ("arg_max", ([[1.0, 3.0, 3.0]],), dict(axis=1, select_last_index=True), np.array([[2]])),
        (
            "max_pool",
            ([[[-5.0, -7.0, -6.0]]],),
            dict(kernel=(3,), strides=(1,), pads=(1, 1), dilations=(1,)),
            [[[-5.0, -5.0, -6.0]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(1, 0), dilations=(1,)),
            [[[1.0, 2.5]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(1, 0), dilations=(1,), count_include_pad=True),
            [[[0.5, 2.5]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(0, 0), dilations=(1,), ceil_mode=True, count_include_pad=True),
            [[[1.5, 3.0]]],
        ),
        ("slice", ([0.0, 1.0, 2.0, 3.0],), dict(starts=(3,), ends=(-1,), axes=(0,), steps=(-2,)), [3.0, 1.0]),
        ("reduce_sum", (np.zeros((2, 0)),), dict(axes=(1,)), [[0.0], [0.0]]),
        ("reduce_max", (np.zeros((2, 0)),), dict(axes=(1,), keepdims=False), [-INF, -INF]),
        ("reduce_min", (np.zeros((2, 0), np.int32),), dict(axes=(1,)), np.full((2, 1), 2**31 - 1, np.int32)),
        ("reduce_mean", (np.zeros((2, 0)),), dict(axes=(1,), keepdims=False), [NAN, NAN]),
        ("reduce_mean", ([-7, 2],), dict(axes=(0,)), np.array([-2])),
        ("softmax", (np.zeros((2, 0)),), dict(axis=1), np.zeros((2, 0))),
        (
            "cast",
            ([1e9, -INF, NAN, 0.3],),
            dict(to=DType.F8E4M3FN),
            np.array([448, -448, NAN, 0.3]).astype(DType.F8E4M3FN.numpy),
        ),
        (
            "convolution",
            (np.zeros((0, 3, 5, 5)), np.zeros((4, 3, 3, 3)), np.zeros(4)),
            dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
            np.zeros((0, 4, 3, 3)),
        ),
        ("matmul", (np.zeros((2, 0)), np.zeros((0, 3))), {}, np.zeros((2, 3))),
    ],
)
def test_edges(name, arrays, attrs, want):
    op = REGISTRY[name]
    arrays = tuple(np.asarray(a) for a in arrays)
    attrs = op.complete(attrs)
    (got,) = evaluate_node(node_of(op, tuple(map(TensorType.of, arrays)), attrs), arrays)
    assert_close(got, np.asarray(want, None if isinstance(want, np.ndarray) else got.dtype))


def test_integers():
    def run(name, *arrays):
        return REGISTRY[name].evaluate(tuple(np.asarray(a) for a in arrays), {})[0].tolist()

    assert run("div", [7, -7, 7, -7], [2, 2, -2, -2]) == [3, -3, -3, 3]
    assert run("mod", [7, -7, 7, -7], [3, 3, -3, -3]) == [1, 2, -2, -1]
    assert run("fmod", [7, -7, 7, -7], [3, 3, -3, -3]) == [1, -1, 1, -1]
    assert run("shift_left", np.array([1, 255, 3], np.uint8), np.array([7, 1, 8], np.uint8)) == [128, 254, 0]
    assert run("shift_right", np.array([128, 255, 3], np.uint8), np.array([7, 1, 9], np.uint8)) == [1, 127, 0]
    assert run("minimum", [3, -1], [2, 5]) == [2, -1]


def test_top_k_of_equals_takes_the_first():
    for dtype in (np.float32, np.int64, np.uint8):
        values, where = REGISTRY["top_k"].evaluate(
            (np.array([2, 3, 3, 1, 2], dtype),), dict(k=4, axis=0, largest=True, sorted=True)
        )
        assert values.tolist() == [3, 3, 2, 2] and where.tolist() == [1, 2, 0, 4]
        _, where = REGISTRY["top_k"].evaluate(
            (np.array([2, 3, 3, 1, 2], dtype),), dict(k=3, axis=0, largest=False, sorted=True)
        )
        assert where.tolist() == [3, 0, 4]


def test_one_hot_beyond_its_depth_is_off():
    (got,) = REGISTRY["one_hot"].evaluate((np.array([-1, 3, -4, 0]), np.array([5.0, 7.0])), dict(depth=3, axis=1))
    assert got.tolist() == [[5, 5, 7], [5, 5, 5], [5, 5, 5], [7, 5, 5]]


def test_narrow_floats_are_computed_wide_and_rounded_once():
    op = REGISTRY["add"]
    types = (TensorType(F16, (1,)), TensorType(F16, (1,)))
    node = node_of(op, types, {})
    (got,) = evaluate_node(node, (np.array([2048], np.float16), np.array([1], np.float16)), round=False)
    assert got.dtype == np.float64 and got == 2049
    assert evaluate_node(node, (np.array([2048], np.float16), np.array([1], np.float16)))[0].dtype == np.float16
