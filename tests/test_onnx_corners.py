"""Attributes, types and opsets that neither the onnx package's tests nor the fuzzer reach, on random numbers."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from compare import assert_close
from onnx.reference import ReferenceEvaluator
from onnx_text import built, same

import pelton
from pelton.errors import ModelError

RNG = np.random.default_rng(7)  # of all tests of this file, in their order


@pytest.mark.parametrize(
    "op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceSum", "ReduceLogSumExp", "ReduceMax"]
)
def test_reductions_of_no_axes(op):
    x = RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
    same(
        f"f (float[3,4] x) => (float[3,4] y) {{ y = {op} <noop_with_empty_axes: int = 1> (x) }}",
        x=x if op == "ReduceLogSum" else -x,
    )


def test_sizes_by_floats_are_those_of_f32():
    text = """f (float[1,1,h,w] x) => (float[1,1,p,q] y) <float[2] by = {0.7, 1.3},
              int64[1] two = {2}, int64[1] four = {4}, int64[2] one = {1, 1}>
    { s = Shape (x)  hw = Slice (s, two, four)  f = Cast <to: int = 1> (hw)  g = Mul (f, by)
      k = Cast <to: int = 7> (g)  all = Concat <axis: int = 0> (one, k)
      y = Resize <mode: string = "nearest"> (x, , , all) }"""
    m, engine = built(text, shapes={"x": (1, 1, "1..10..40", "1..20..40")})
    for h, w in ((10, 20), (20, 10), (30, 7)):
        x = RNG.standard_normal((1, 1, h, w)).astype(np.float32)
        (want,) = ReferenceEvaluator(m).run(None, {"x": x})
        assert engine(x).shape == want.shape and np.array_equal(engine(x), want)


def test_statistics_of_halves_do_not_cancel():
    x = (100 + RNG.uniform(-1, 1, (2, 3, 5))).astype(np.float16)
    same(
        """f (float16[2,3,5] x) => (float16[2,3,5] y)
         <float[3] g = {1, 2, 1}, float[3] b = {0, 1, 0}, float[3] m = {100, 99, 101}, float[3] v = {2, 1, 3}>
         { h = Cast <to: int = 10> (g)  i = Cast <to: int = 10> (b)
           j = Cast <to: int = 10> (m)  k = Cast <to: int = 10> (v)
           y = BatchNormalization (x, h, i, j, k) }""",
        x=x,
    )


def test_rows_of_which_nothing_is_seen_are_means():
    q, k, v = (RNG.standard_normal((1, 2, 4, 8)).astype(np.float32) for _ in range(3))
    keep = np.array([[True, False, True, True], [False] * 4, [True] * 4, [False, True, False, False]])
    same(
        """f (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v, bool[4,4] keep) => (float[1,2,4,8] y)
         <float low = {-10000}>
         { t = Transpose <perm: ints = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  m = Where (keep, s, low)
           p = Softmax <axis: int = -1> (m)  y = MatMul (p, v) }""",
        q=q,
        k=k,
        v=v,
        keep=keep,
    )


def test_integers_are_no_activations():
    x = RNG.integers(-9, 9, (5, 4)).astype(np.int32)
    same(
        "f (int32[5,4] x) => (int32[5,4] y) <int32 c = {3}, int32 l = {0}, int32 h = {6}> { a = Add (x, c)  b = Clip"
        " (a, l, h)  y = Div (b, h) }",
        x=x,
    )
    same("f (int32[5,4] x) => (int32[5,4] y) <int32 s = {0}> { a = Mul (x, s)  y = Max (x, a) }", x=x)


def test_a_zero_point_of_integers_goes_into_the_bias():
    x = RNG.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8)
    w = ", ".join(map(str, RNG.integers(0, 255, 36)))
    same(
        f"f (uint8[1,2,5,5] x) => (int32[1,2,3,3] y) <uint8[2,2,3,3] w = {{{w}}}, uint8 z = {{7}}> {{ y = ConvInteger"
        " (x, w, z) }",
        x=x,
    )


def test_after_nothing_is_found_layers_are_those_of_their_opset():
    text = """f (float[6] x, float[2,3,4] z) => (float[2,3,4] y)
    { n = NonZero (x)  t = Transpose (n)  g = GatherND (x, t)
      s = ReduceSum <keepdims: int = 0> (g)  a = Add (z, s)  y = Softmax <axis: int = 1> (a) }"""
    _, engine = built(text, 12)
    z = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    e = np.exp(z - z.max((1, 2), keepdims=True))
    for x in (np.array([0, 1, -1, 0, 0, 0]), np.zeros(6)):
        assert_close(engine.run({"x": x.astype(np.float32), "z": z})["y"], e / e.sum((1, 2), keepdims=True))


def test_axes_that_may_be_one_are_not_squeezed_by_chance():
    text = "f (float[n,3,1] x) => (float[] y) { y = Squeeze (x) }"
    _, engine = built(text, shapes={"x": ("1..2..8", 3, 1)})
    for n, shape in ((1, (3,)), (2, (2, 3)), (3, (3, 3))):
        x = RNG.standard_normal((n, 3, 1)).astype(np.float32)
        assert np.array_equal(engine(x), x.reshape(shape))
    _, engine = built(text)  # an unspecified dimension is 1 here, with a warning
    assert engine(np.ones((1, 3, 1), np.float32)).shape == (3,)
    with pytest.raises(pelton.InputError, match="axis 0 has 2 instead of 1"):
        engine(np.ones((2, 3, 1), np.float32))


def test_rows_before_keys_that_follow_no_past():
    q, k, v = (RNG.standard_normal((1, rows, 8)).astype(np.float32) for rows in (2, 5, 5))
    m = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 21, "com.microsoft": 1]>
           f (float[1,2,8] q, float[1,5,8] k, float[1,5,8] v) => (float[1,2,8] y)
           { y = com.microsoft.MultiHeadAttention <num_heads: int = 1, unidirectional: int = 1> (q, k, v) }"""
    )
    got = pelton.build(m, level=0).run({"q": q, "k": k, "v": v})["y"]
    scores = q[0].astype(float) @ k[0].T.astype(float) / np.sqrt(8)
    scores[0, 1:] = -np.inf  # the last row sees all keys in ONNX Runtime's kernel
    e = np.exp(scores - scores.max(1, keepdims=True))
    assert_close(got[0], ((e / e.sum(1, keepdims=True)) @ v[0]).astype(np.float32))


def test_nearest_pixels_of_opset_10_up_where_an_axis_shrinks():
    x = RNG.standard_normal((1, 1, 5, 4)).astype(np.float32)
    _, engine = built(
        "f (float[1,1,5,4] x) => (float[1,1,3,7] y) <float[4] by = {1, 1, 0.6, 1.75}> { y = Resize <mode: string ="
        ' "nearest"> (x, by) }',
        10,
    )
    assert np.array_equal(engine(x), x[:, :, [0, 2, 4]][:, :, :, [0, 0, 1, 1, 2, 2, 3]])


def test_masks_before_opset_10_are_numbers():
    x = RNG.standard_normal((3,)).astype(np.float32)
    m, engine = built("f (float[3] x) => (float[3] y, float[3] mask) { y, mask = Dropout (x) }", 7)
    assert np.array_equal(engine.run({"x": x})["mask"], np.ones(3, np.float32))


def test_a_vector_is_a_batch_of_one_channel():
    x = RNG.standard_normal((6,)).astype(np.float32)
    same(
        """f (float[6] x) => (float[6] y) <float[1] s = {2}, float[1] b = {1}, float[1] m = {0.5}, float[1] v = {3}>
         { y = BatchNormalization (x, s, b, m, v) }""",
        x=x,
    )


def test_scales_of_rows_in_a_batch():
    a, b = RNG.integers(0, 256, (2, 3, 4)).astype(np.uint8), RNG.integers(0, 256, (2, 4, 5)).astype(np.uint8)
    scales, columns = (
        RNG.uniform(0.01, 0.1, (2, 3, 1)).astype(np.float32),
        RNG.uniform(0.01, 0.1, (2, 1, 5)).astype(np.float32),
    )
    _, engine = built("""f (uint8[2,3,4] a, float[2,3,1] s, uint8[2,4,5] b, float[2,1,5] t) => (uint8[2,3,5] y)
                      <uint8 z = {128}, float u = {2}> { y = QLinearMatMul (a, s, z, b, t, z, u, z) }""")
    got = engine.run({"a": a, "s": scales, "b": b, "t": columns})["y"]
    exact = (a.astype(float) - 128) * scales @ ((b.astype(float) - 128) * columns) / 2 + 128
    assert np.abs(np.clip(exact, 0, 255) - got).max() <= 0.501


def test_values_wider_than_keys():
    q, k = (RNG.standard_normal((1, 2, 3, 4)).astype(np.float16) for _ in range(2))
    v = RNG.standard_normal((1, 2, 3, 4)).astype(np.float32)
    _, engine = built(
        "f (float16[1,2,3,4] q, float16[1,2,3,4] k, float[1,2,3,4] v) => (float16[1,2,3,4] y) { y = Attention (q, k,"
        " v) }",
        23,
    )
    scores = q.astype(float) @ k.astype(float).swapaxes(2, 3) / 2
    e = np.exp(scores - scores.max(-1, keepdims=True))
    got = engine.run({"q": q, "k": k, "v": v})["y"]
    assert got.dtype == np.float16
    assert_close(got, ((e / e.sum(-1, keepdims=True)) @ v).astype(np.float16))


def test_whole_numbers_sampled_and_blocks_of_truth_values():
    x, grid = RNG.integers(-50, 50, (1, 2, 4, 5)).astype(np.int32), RNG.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    for mode in ("nearest", "linear"):  # the reference samples zeros
        got, want = (
            built(
                f'f ({t}[1,2,4,5] x, float[1,3,3,2] g) => ({t}[1,2,3,3] y) {{ y = GridSample <mode: string = "{mode}">'
                " (x, g) }"
            )[1].run({"x": x.astype(numpy), "g": grid})["y"]
            for t, numpy in (("int32", np.int32), ("double", np.float64))
        )
        assert np.array_equal(got, np.trunc(want)) and got.any()
    same(
        "f (bool[1,8,9] x) => (bool[1,2,4,4] y) <int64[2] p = {4, 4}, int64[2] b = {2, 2}> { y = Col2Im (x, p, b) }",
        x=RNG.uniform(size=(1, 8, 9)) < 0.3,
    )


def test_onnx_infers_no_elements_where_it_does_not_know():
    """A soft cap goes by the body of the schema, which needs numbers for widths; what onnx infers of the whole is an
    output of width 0."""
    q, k, v = (RNG.standard_normal(s).astype(np.float32) for s in ((1, 3, 16), (1, 4, 8), (1, 4, 6)))
    text = """f (float[1,3,w] q, float[1,4,e] k, float[1,r,d] v) => (float[1,3,c] y)
           { y = Attention <kv_num_heads: int = 2, q_num_heads: int = 4, softcap: float = 2.0> (q, k, v) }"""
    try:
        same(text, 24, q=q, k=k, v=v)
    except ModelError as e:
        assert "shapes=" in str(e)


def test_rows_of_sizes_that_may_be_none():
    x = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
    same(
        """f (float[1,4,d,d] x) => (float[r,2] y) <float[2] by = {0.75, 3}, int64[2] rows = {-1, 2}>
         { z = Resize <axes: ints = [2, 3], mode: string = "linear",
                       coordinate_transformation_mode: string = "asymmetric"> (x, , by)
           y = Reshape (z, rows) }""",
        x=x,
    )


def test_a_curve_of_which_nothing_lies_inside():
    same(
        """f (float[1,1,3,4] x) => (float[1,1,2,2] y) <int64[4] sizes = {1, 1, 7, 2}>
         { y = Resize <mode: string = "cubic", coordinate_transformation_mode: string = "align_corners",
                       keep_aspect_ratio_policy: string = "not_larger", exclude_outside: int = 1> (x, , , sizes) }""",
        x=RNG.standard_normal((1, 1, 3, 4)).astype(np.float32),
    )


def test_groups_of_channels_that_the_data_counts():
    x, shape = RNG.standard_normal((3, 2)).astype(np.float32), np.int64([1, 1, 1, 2])
    _, engine = built("""f (float[3,2] x, int64[4] s) => (float[] y) <float[1] g = {2}, float[1] b = {1}>
                      { o = ConstantOfShape <value: tensor = float[1] {0.75}> (s)  p = Pow (o, x)
                        y = GroupNormalization <num_groups: int = 1> (p, g, b) }""")
    p = 0.75 ** x.astype(float).reshape(1, 1, 3, 2)
    assert_close(
        engine.run({"x": x, "s": shape})["y"], (2 * (p - p.mean()) / np.sqrt(p.var() + 1e-5) + 1).astype(np.float32)
    )


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel, stride", [(3, 3), (7, 5), (2, 3), (4, 2)])
def test_windows_of_dynamic_dimensions_that_pads_make_fit(kernel, stride, mode):
    """Pads are halves of what the last window lacks: for all sizes none is below 0, and a window fits."""
    w = RNG.standard_normal((3, 2, kernel)).astype(np.float32)
    m = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> f (float[1,2,n] x) => (float[1,3,p] y)
                                {{ y = Conv <auto_pad: string = "{mode}", strides: ints = [{stride}]> (x, w) }}""")
    m.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    engine = pelton.build(m, level=0, shapes={"x": (1, 2, "1..9..512")})
    for n in (1, 2, 5, 9, 40):
        x = RNG.standard_normal((1, 2, n)).astype(np.float32)
        assert_close(engine(x), ReferenceEvaluator(m).run(None, {"x": x})[0])


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_an_index_of_no_numbers_is_of_all_of_the_data(reduction):
    same(
        f"""f (float[5,3] x, float[2,5,3] u) => (float[5,3] y) <int64[2] s = {{2, 0}}>
         {{ i = ConstantOfShape <value: tensor = int64[1] {{0}}> (s)
            y = ScatterND <reduction: string = "{reduction}"> (x, i, u) }}""",
        x=RNG.standard_normal((5, 3)).astype(np.float32),
        u=RNG.standard_normal((2, 5, 3)).astype(np.float32),
    )


@pytest.mark.parametrize("opset, causal", [(23, 0), (24, 0), (23, 1)])
@pytest.mark.parametrize("kind", ["float", "bool"])
def test_rows_whose_mask_hides_all_keys_are_zero(opset, causal, kind):
    mask = np.zeros((3, 5), np.float32)
    mask[1], mask[2, 3:] = -np.inf, -np.inf
    q, k, v = (RNG.standard_normal((1, 2, rows, 8)).astype(np.float32) for rows in (3, 5, 5))
    text = f"""f (float[1,2,3,8] q, float[1,2,5,8] k, float[1,2,5,8] v, {kind}[3,5] m) => (float[1,2,3,8] y)
           {{ y = Attention <is_causal: int = {causal}> (q, k, v, m) }}"""
    same(text, opset, q=q, k=k, v=v, m=mask if kind == "float" else mask == 0)
    v[0, 0, 0, 1] = np.nan  # which stays, even under weights of 0
    same(text, opset, q=q, k=k, v=v, m=mask if kind == "float" else mask == 0)
