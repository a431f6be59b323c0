"""TFLite weights with a scale for each block of elements: their meaning, and refused parameters."""

import numpy as np
import pytest
from tflite_blocks import fully_connected, weights
from tflite_models import ModelWriter

import pelton
from pelton.errors import FormatError, ModelError
from pelton.importers.network import imported
from pelton.importers.tflite import read
from pelton.ir.evaluate import evaluate


@pytest.mark.parametrize(
    "given",
    [
        dict(block=32),
        dict(block=64),
        dict(block=16, zeros=True),
        dict(block=32, dtype="i8", scales=np.float32),
        dict(block=32, dtype="i2"),
        dict(block=32, dtype="u4", zeros=True),
        dict(block=4, axis=0),
        dict(block=1),
    ],
    ids=str,
)
def test_products_of_blocks(given):
    data, w, bias = fully_connected(**given)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    want = x @ w.T + bias
    for found in (evaluate(imported(read(data)).graph, {"x": x}), pelton.build(data, level=0, threads=1).run({"x": x})):
        np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-5)


def test_an_odd_number_of_small_integers():
    data, w, bias = fully_connected(batch=2, inputs=5, outputs=3, block=5)
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    np.testing.assert_allclose(
        evaluate(imported(read(data)).graph, {"x": x})["y"], x @ w.T + bias, rtol=1e-5, atol=1e-5
    )


def test_rows_of_a_table_of_blocks():
    w = ModelWriter()
    rows, y = w.main.input((4,), "i32", name="rows"), w.main.output((4, 64), name="y")
    table, real = weights(w.main, (7, 64), 32)
    w.main.op("EMBEDDING_LOOKUP", [rows, table], [y])
    picked = np.asarray([6, 0, 3, 3], np.int32)
    found = evaluate(imported(read(w.bytes())).graph, {"rows": picked})["y"]
    np.testing.assert_allclose(found, real[picked], rtol=1e-5)


def broken(**details):
    w = ModelWriter()
    m = w.main
    x, y = m.input((2, 64), name="x"), m.output((2, 8), name="y")
    known = dict(scales=m.constant(np.ones((8, 2), np.float16)), block_size=32)
    more = dict(quantization=dict(details_type=2, details=("BlockwiseQuantization", {**known, **details})))
    weight = m.tensor((8, 64), "i4", np.zeros(256, np.uint8), name="w", **more)
    m.op("FULLY_CONNECTED", [x, weight, -1], [y], "FullyConnectedOptions")
    return w


@pytest.mark.parametrize(
    "details, message",
    [
        (dict(scales=99), "'w' has its scales in tensor 99; there are 4"),
        (dict(scales=0), "'w' has its scales in tensor 0, which is no constant"),
        (dict(block_size=16), r"'w' of shape \[8, 64\] needs a scale for each block of 16 elements along one axis"),
        (dict(block_size=0), "needs a scale for each block of 0 elements"),
        (dict(zero_points=2), r"'w' needs a zero point for each of \[8, 2\] scales, got float16"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(details, message):
    with pytest.raises(ModelError, match=message):
        read(broken(**details).bytes())


@pytest.mark.parametrize("value", [np.nan, np.inf, -1])
def test_scales_that_are_none_are_refused(value):
    w = broken()
    w.buffers[1] = dict(data=np.full((8, 2), value, np.float16).view(np.uint8).reshape(-1))
    with pytest.raises(ModelError, match="needs scales of 0 and more"):
        read(w.bytes())


@pytest.mark.parametrize("kind, name", [(1, "CustomQuantization"), (3, "MultiAxisQuantization"), (9, "9")])
def test_other_kinds_are_named(kind, name):
    w = ModelWriter()
    x = w.main.input((2, 8), "i8", name="x", quantization=dict(details_type=kind))
    w.main.op("ABS", [x], [w.main.output((2, 8), "i8")])
    with pytest.raises(ModelError, match=f"'x' is quantized by a {name}, which is not supported"):
        read(w.bytes())


def test_blocks_without_their_parameters_are_damaged():
    w = ModelWriter()
    x = w.main.input((2, 8), "i8", name="x", quantization=dict(details_type=2))
    w.main.op("ABS", [x], [w.main.output((2, 8), "i8")])
    with pytest.raises(FormatError, match="'x' lacks the parameters of its BlockwiseQuantization"):
        read(w.bytes())
