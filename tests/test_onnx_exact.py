"""Attributes, types and opsets that neither the onnx package's tests nor the fuzzer reach, on chosen numbers."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from compare import assert_close
from onnx_text import built, same

import pelton
from pelton.errors import ModelError


def test_half_a_scale_does_not_hold_integers():
    x = np.array([65535, 32773, 5], np.uint16)
    same(
        """f (uint16[3] x) => (float16[3] y) <float f = {0.01}, uint16 z = {32768}>
         { s = Cast <to: int = 10> (f)  y = DequantizeLinear (x, s, z) }""",
        x=x,
    )
    same(
        "f (int32[2] x) => (float16[2] y) <float f = {0.0001}> { s = Cast <to: int = 10> (f)  y = DequantizeLinear (x,"
        " s) }",
        x=np.array([100000, -90000], np.int32),
    )


def test_quotients_that_are_whole():
    x = np.arange(3000, dtype=np.int64)
    _, engine = built(
        "f (int64[3000] x) => (int64[3000] y) <float c = {41}> { f = Cast <to: int = 1> (x)  q = Div (f, c)  y = Cast"
        " <to: int = 7> (q) }"
    )
    assert np.array_equal(engine(x), x // 41)
    _, engine = built("""f (float16[2000] x) => (float16[2000] y) <float f = {3}>
                      { c = Cast <to: int = 10> (f)  q = Div (x, c)  y = Floor (q) }""")
    assert np.array_equal(engine(x[:2000].astype(np.float16)), np.floor(x[:2000].astype(np.float16) / np.float16(3)))


def test_pixels_as_tensorflow_once_had_them():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    attributes = (
        '<mode: string = "nearest", coordinate_transformation_mode: string = "tf_half_pixel_for_nn", nearest_mode:'
        ' string = "floor">'
    )
    for scale, want in (("2", np.repeat(np.repeat(x, 2, 2), 2, 3)), ("0.5", x[:, :, 1::2, 1::2])):
        _, engine = built(
            f"f (float[1,1,4,4] x) => (float[a,b,c,d] y) <float[0] roi = {{}}, float[4] s = {{1, 1, {scale}, {scale}}}>"
            f" {{ y = Resize {attributes} (x, roi, s) }}",
            11,
        )
        assert np.array_equal(engine(x), want)


def test_lengths_with_what_nothing_computes_are_refused():
    with pytest.raises(ModelError, match="sequence lengths"):
        built("""f (float[5,3,4] x, float[1,8,4] w, float[1,8,2] r, int32[3] lens) => (float[1,3,2] c)
              { y, h, c = LSTM <hidden_size: int = 2, clip: float = 0.5> (x, w, r, , lens) }""")


@pytest.mark.parametrize("op, want", [("ReduceL2", [3, 5]), ("ReduceLogSum", [1, 1]), ("ReduceLogSumExp", [2, 4])])
def test_roots_and_logarithms_of_integers(op, want):
    _, engine = built(
        f"f (int32[2,3] x) => (int32[2] y) <int64[1] axes = {{1}}> {{ y = {op} <keepdims: int = 0> (x, axes) }}"
    )
    assert engine(np.array([[1, 2, 2], [0, 3, 4]], np.int32)).tolist() == want


def test_negative_powers_of_integers():
    base = np.array([1, -1, -1, 2, 0, 7], np.int32)
    _, engine = built("f (int32[6] x) => (int32[6] y) <int32[6] e = {-3, -2, -3, -1, -1, 2}> { y = Pow (x, e) }")
    assert engine(base).tolist() == [1, 1, -1, 0, 0, 49]
    _, engine = built(
        "f () => (int32[6] y) <int32[6] x = {1, -1, -1, 2, 0, 7}, int32[6] e = {-3, -2, -3, -1, -1, 2}> { y = Pow (x,"
        " e) }"
    )
    assert engine.run({})["y"].tolist() == [1, 1, -1, 0, 0, 49]


def test_targets_that_no_leaf_votes_for_are_nothing():
    node = onnx.helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        aggregate_function="MIN",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.0, 0, 0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 1],
        target_weights=[3.0, 4.0],
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, [2, 1])], [value("y", 1, [2, 2])])
    m = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8
    )
    assert pelton.build(m, level=0)(np.array([[-1], [1]], np.float32)).tolist() == [[3, 0], [0, 4]]


def test_the_largest_of_one_number():
    _, engine = built("f (int32 x) => (int64 y) { y = ArgMax (x) }")
    assert engine(np.int32(3)) == 0


def test_a_quotient_whose_inverse_is_too_small_to_hold():
    x = np.float32([2.0**120, -(2.0**101)])
    _, engine = built(
        "f (float[2] x) => (float[2] y) <float c = {170141183460469231731687303715884105728}> { y = Div (x, c) }"
    )
    assert np.array_equal(engine(x), np.float32([2.0**-7, -(2.0**-26)]))


def test_a_cubic_curve_goes_on_over_the_border():
    """At −0.25, a quarter before the first of 1, 2, 4, 8: its taps are 1, 1, 1, 2, so Keys' weight of the last one
    counts."""
    x = np.float32([1, 2, 4, 8]).reshape(1, 1, 1, 4)
    grid = np.float32([-1 + 0.25 / 2, 0]).reshape(1, 1, 1, 2)  # (g + 1) · 4 / 2 - 0.5
    _, engine = built("""f (float[1,1,1,4] x, float[1,1,1,2] g) => (float[1,1,1,1] y)
                      { y = GridSample <mode: string = "cubic", padding_mode: string = "border"> (x, g) }""")
    t, a = 1.25, -0.75
    last = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    assert_close(engine.run({"x": x, "g": grid})["y"], np.float32([1 + last]).reshape(1, 1, 1, 1))


def test_means_of_equal_numbers_are_those_numbers():
    x = np.full((1, 1, 7, 7), 0.7, np.float32)
    x *= np.arange(1, 8, dtype=np.float32)[:, None]
    _, engine = built(
        "f (float[1,1,7,7] x) => (float[1,1,7,1] y) { y = AveragePool <kernel_shape: ints = [1, 7]> (x) }"
    )
    assert np.array_equal(engine(x), (x.sum(3, keepdims=True, dtype=np.float32) / np.float32(7)))


def test_the_largest_of_nothing():
    assert built("f (float[0,3] x) => (float[0,3] y) { y = Hardmax <axis: int = 0> (x) }")[1](
        np.zeros((0, 3), np.float32)
    ).shape == (0, 3)


def test_what_is_assumed_of_a_size_for_one_node_is_not_what_others_find():
    """To pick by a number that is also a size, the first program assumes that there is nothing to pick from."""
    same(
        """f (int32[2,3] x, int64 at, int32[5] other) => (int32[p] least, int64[] picked, int64[q] steps)
         <int64 zero = {0}, int64 two = {2}, int64 three = {3}, bool on = {1}> {
           u, first = Unique <sorted: int = 1> (x)
           kept = Loop (three, on, at)
             <body: graph = body (int64 i, bool go, int64 s) => (bool again, int64 same)
                { again = Identity (go)  same = Identity (s) }>
           picked = Gather <axis: int = 0> (first, kept)  none = BitwiseXor (u, u)
           least = Min (none, other, u)  steps = Range (zero, at, two) }""",
        x=np.int32([[3, -1, 2], [-4, 0, -4]]),
        at=np.int64(3),
        other=np.int32([2, 2, -4, -1, 4]),
    )
