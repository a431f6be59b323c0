"""TFLite operators equal numpy, image or not, quantized or not."""

import numpy as np
import pytest
from tflite_cases import Case
from tflite_models import ModelWriter
from tflite_operators import CASES

from pelton.errors import ModelError
from pelton.importers.network import imported
from pelton.importers.tflite import READERS, read
from pelton.ir.evaluate import evaluate


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_numpy(case):
    feeds = case.feeds()
    expected = case.results(feeds)
    net = read(case.model(expected))
    found = evaluate(imported(net).graph, {t.name: a for t, a in zip(net.inputs, feeds)})
    assert len(found) == len(expected)
    for got, want, of in zip(found.values(), expected, case.outputs):
        assert got.shape == want.shape
        if isinstance(of, str) and of == "f32":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            off = np.abs(got.astype(np.int64) - want.astype(np.int64))
            assert off.max() <= (0 if isinstance(of, str) else 1) and (off == 0).mean() > 0.9, off  # ties go either way


# Of these, some axes must be of one size, or of multiples of one, if all of them are dynamic.
NARROW = {
    *("BROADCAST_TO-(2,1,3)", "CONV_2D-groups", "DYNAMIC_UPDATE_SLICE-(3,4)", "FULLY_CONNECTED-(3,2,4)"),
    *("FULLY_CONNECTED-kept", "MATRIX_SET_DIAG-(4,4)", "MATRIX_SET_DIAG-(2,3,5)"),
    *("MATRIX_SET_DIAG-(2,5,3)", "RESHAPE-(2,7,6,5)", "SPACE_TO_BATCH_ND-(2,5,5,3)", "SQUEEZE-all"),
}


@pytest.mark.parametrize("case", [c for c in CASES if type(c) is Case], ids=lambda c: c.name)
@pytest.mark.parametrize("axes", ["batch", "all"])
def test_dynamic_sizes(case, axes):
    """A file that leaves sizes open means the same; what has no size for other reasons is in NARROW."""
    if case.name in NARROW or case.op == "TRANSPOSE_CONV" and axes == "all":
        pytest.skip("its sizes decide each other")
    feeds = case.feeds()
    expected = case.results(feeds)
    data = case.model(expected, lambda rank: [*range(rank)] if axes == "all" else [0][:rank])
    net = read(data)
    found = evaluate(imported(net).graph, {t.name: a for t, a in zip(net.inputs, feeds)})
    for got, want in zip(found.values(), expected, strict=True):
        assert got.shape == want.shape
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= 1


def test_sizes_that_had_to_be_assumed_are_named():
    """Blocks of 3 of what is a number more than its size: no multiple, so that one number is tried."""
    (case,) = (c for c in CASES if c.name == "SPACE_TO_BATCH_ND-(2,5,5,3)")
    data = case.model(case.results(case.feeds()), lambda rank: [*range(rank)])
    with pytest.raises(ModelError, match=r"x0_1 = 1, x0_2 = 1 had to be assumed: set other sizes with shapes="):
        read(data)
    assert read(data, shapes={"x0": "2x5x5x3"}).outputs["t3"].shape == (12, 4, 2, 3)


def test_cases_cover_the_readers():
    tested = {c.op for c in CASES}
    elsewhere = {
        *("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "CALL", "IF", "WHILE", "DENSIFY"),
        *("STABLEHLO_COMPOSITE", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"),
        *("SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "CONV_3D", "FAKE_QUANT", "SCATTER_ND", "RANGE", "FILL", "ZEROS_LIKE"),
        *(
            "REDUCE_ANY",
            "REDUCE_ALL",
            "LOGICAL_AND",
            "LOGICAL_OR",
            "LOGICAL_NOT",
            "BITWISE_XOR",
            "RELU_0_TO_1",
            "SELECT",
        ),
        *("WHERE", "UNIQUE"),
        *("COMPLEX_ABS", "REAL", "IMAG", "RFFT2D"),
    }
    assert {op for domain, op in READERS if not domain} == tested | elsewhere


@pytest.mark.parametrize("to", ["i16", "i32"])
def test_integers_of_32_bits_have_a_scale_where_they_are_converted(to):
    scales = {"i16": 9e-4, "i32": 1.5e-7}
    of = "i32" if to == "i16" else "i16"
    w = ModelWriter()
    x = w.main.input((64,), of, name="x", scale=scales[of])
    y = w.main.output((64,), to, name="y", scale=scales[to])
    w.main.op("QUANTIZE", [x], [y])
    given = np.linspace(-30000, 30000, 64).astype(np.int16)
    given = given if of == "i16" else given.astype(np.int32) * 5000
    (found,) = evaluate(imported(read(w.bytes())).graph, {"x": given}).values()
    want = np.clip(np.rint(given * (scales[of] / scales[to])), np.iinfo(to.replace("i", "int")).min, 2**31 - 1)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1)


def test_one_scale_for_each_element_of_a_bias_is_along_its_only_axis():
    """Converters write any axis beside them, such as that of the filters."""
    scales, w = np.asarray([0.01, 0.02, 0.5]), ModelWriter()
    x = w.main.input((1, 4, 4, 3), "i8", name="x", scale=1.0)
    filters = w.main.constant(np.ones((1, 1, 1, 3), np.int8), scale=scales, axis=3)
    bias = w.main.constant(np.asarray([100, 200, -8], np.int32), scale=scales, axis=3)
    y = w.main.output((1, 4, 4, 3), "i8", name="y", scale=1.0)
    options = dict(padding=1, stride_w=1, stride_h=1, multiplier=1)
    w.main.op("DEPTHWISE_CONV_2D", [x, filters, bias], [y], "DepthwiseConv2DOptions", **options)
    (found,) = evaluate(imported(read(w.bytes())).graph, {"x": np.zeros((1, 4, 4, 3), np.int8)}).values()
    assert found[0, 0, 0].tolist() == [1, 4, -4]
