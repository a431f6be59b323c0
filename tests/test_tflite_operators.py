"""Operators of TFLite: what is read means what numpy says, image or not, quantized or not."""

import numpy as np
import pytest
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
        *("COMPLEX_ABS", "REAL", "IMAG", "RFFT2D"),
    }
    assert {op for domain, op in READERS if not domain} == tested | elsewhere
