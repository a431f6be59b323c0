"""Operators of TFLite: what is read means what numpy says, image or not, quantized or not."""

import numpy as np
import pytest
from tflite_models import ModelWriter
from tflite_operators import CASES

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
