"""Operands of TFLite operators that are inputs of the model, or sizes: several in turn, and wrong ones."""

import numpy as np
import pytest
from tflite_sizes import SIZES
from tflite_values_computed import VALUES

import pelton


def agree(got, want, quantized):
    assert got.shape == want.shape and (got.dtype == want.dtype or not quantized)
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= quantized


@pytest.mark.parametrize("case", VALUES, ids=lambda c: c.name)
def test_values_in_turn(case):
    engine = pelton.build(case.model(), level=0, threads=1)
    for feed in case.feeds:
        found = engine.run(dict(zip(case.names, feed)))
        for got, want, of in zip(found.values(), case.results(feed), case.outputs):
            agree(got, want, not isinstance(of, tuple))


@pytest.mark.parametrize("case", [c for c in VALUES if c.wrong], ids=lambda c: c.name)
def test_wrong_values_are_refused_by_name(case):
    engine = pelton.build(case.model(), level=0, threads=1)
    for feed, message in case.wrong:
        with pytest.raises(pelton.Error, match=message):
            engine.run(dict(zip(case.names, feed)))


@pytest.mark.parametrize("case", SIZES, ids=lambda c: c.name)
def test_sizes_in_turn(case):
    engine = pelton.build(case.model(), level=0, threads=1)
    assert not hasattr(engine, "script")  # sizes of inputs are known before a run
    for shape in case.shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        (found,) = engine.run({"x": x}).values()
        agree(found, np.asarray(case.expected(x)), False)
    for shape in case.wrong:
        with pytest.raises(pelton.InputError, match="x"):
            engine.run({"x": np.zeros(shape, np.float32)})
