"""Fourier transforms in TFLite models."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_fourier import CASES, spectrum
from tflite_models import ModelWriter

from pelton.errors import ModelError
from pelton.importers.network import imported
from pelton.importers.tflite import read
from pelton.ir.evaluate import evaluate


@pytest.mark.parametrize("case", CASES)
def test_parts_of_spectra(case):
    w, x, want = spectrum(case)
    got = evaluate(imported(read(w.bytes())).graph, {"x": x})
    for name, expected in want.items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_other_operators_of_complex_numbers_are_refused():
    w, *_ = spectrum("images")
    whole = [t["name"] for t in w.main.tensors].index("whole")
    w.main.op("MUL", [whole, whole], [w.main.output((2, 8, 9), "c64")], "MulOptions")
    with pytest.raises(ModelError, match="MUL works on complex numbers"):
        read(w.bytes())
    w, *_ = spectrum("images")
    w.main.outputs.append(whole)
    with pytest.raises(ModelError, match="output 'whole' has complex numbers"):
        read(w.bytes())
    w = ModelWriter()
    w.main.op("REAL", [w.main.input((3,))], [w.main.output((3,))])
    with pytest.raises(ModelError, match="REAL needs complex numbers"):
        read(w.bytes())
