"""TFLite models that become scripts: steps between engines, nested subgraphs, names, and refusals."""

import numpy as np
import pytest
from tflite_models import ModelWriter

import pelton
from pelton.errors import InputError, ModelError
from pelton.ir.imported import OnData
from pelton.importers import tflite

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values):
    return np.asarray(values, np.int32)


def number(n):
    return np.asarray(n, np.int32)


def largest(x, k):
    return -np.sort(-x, 1)[:, : int(k)]


def topk(s, x, k, y):
    s.op("TOPK_V2", [x, k], [y, s.tensor((2, 1), "i32", signature=[2, -1])])


def counted(**more):
    """The k largest of x."""
    w = ModelWriter()
    x, k = w.main.input((2, 6), name="x", **more), w.main.input((), "i32", name="k")
    topk(w.main, x, k, w.main.output((2, 1), signature=[2, -1], name="y"))
    return w


def run(engine, **feeds):
    return engine.run(feeds)


def images(quantized):
    """Convolution, resizing to a size that is an input, convolution."""
    w = ModelWriter()
    m = w.main

    def layer(x, outputs, channels, y, scale):
        if quantized:
            weights = RNG.integers(-100, 100, (outputs, 3, 3, channels)).astype(np.int8)
            given = m.constant(weights, scale=np.full(outputs, 0.01))
            bias = m.constant(RNG.integers(-99, 99, outputs).astype(np.int32), scale=np.full(outputs, scale))
        else:
            given, bias = m.constant(normal(outputs, 3, 3, channels)), m.constant(normal(outputs))
        m.op("CONV_2D", [x, given, bias], [y], "Conv2DOptions", stride_w=1, stride_h=1, activation=1)

    def by(scale, zero):
        return dict(scale=scale, zero=zero) if quantized else {}

    of = "i8" if quantized else "f32"
    x, size = m.input((1, 6, 5, 4), of, name="x", **by(0.05, 2)), m.input((2,), "i32", name="size")
    layer(x, 8, 4, a := m.tensor((1, 6, 5, 8), of, **by(0.1, -3)), 0.0005)
    b = m.tensor((1, 1, 1, 8), of, signature=[1, -1, -1, 8], **by(0.1, -3))
    m.op("RESIZE_BILINEAR", [a, size], [b], "ResizeBilinearOptions", half_pixel=True)
    layer(b, 3, 8, m.output((1, 1, 1, 3), of, signature=[1, -1, -1, 3], name="y", **by(0.2, 0)), 0.001)
    return w.bytes()


@pytest.mark.parametrize("quantized", [False, True])
def test_images_whose_size_is_an_input(quantized):
    """One engine for each size, of which the value is given, says what the engine for all has to give."""
    data = images(quantized)
    engine = pelton.build(data, level=0, threads=1)
    assert not engine.hosted
    for size in ((7, 9), (3, 2), (12, 10)):
        x = RNG.integers(-100, 100, (1, 6, 5, 4)).astype(np.int8) if quantized else normal(1, 6, 5, 4)
        got = run(engine, x=x, size=i32(*size))["y"]
        want = run(pelton.build(data, level=0, threads=1, values={"size": size}), x=x)["y"]
        assert got.shape == (1, *size, 3)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-5, atol=1 if quantized else 1e-5)


def test_numbers_of_elements_that_the_data_decides():
    w = ModelWriter()
    m = w.main
    x, above, at = m.input((4, 5), name="x"), m.tensor((4, 5), "bool"), m.tensor((1, 2), "i64", signature=[-1, 2])
    m.op("GREATER", [x, m.constant(np.float32(0.3))], [above])
    m.op("WHERE", [above], [at])
    m.op("GATHER_ND", [x, at], [picked := m.tensor((1,), signature=[-1])])
    m.op("EXP", [picked], [m.output((1,), signature=[-1], name="y")])
    m.op("SUM", [picked, m.constant(i32(0))], [m.output((), name="total")], "ReducerOptions")
    engine = pelton.build(w.bytes(), level=0, threads=1)
    assert [a.name.partition(" ")[0] for a in engine.hosted] == ["WHERE"]
    for x in (normal(4, 5), np.zeros((4, 5), np.float32), normal(4, 5) + np.float32(9)):
        found, picked = run(engine, x=x), x[x > 0.3]
        np.testing.assert_allclose(found["y"], np.exp(picked), rtol=1e-5)
        np.testing.assert_allclose(found["total"], picked.sum(), rtol=1e-5, atol=1e-6)


def test_branches_with_operators_that_the_data_decides():
    w = counted()
    m = w.main
    m.operators.clear()
    m.op("GREATER", [1, m.constant(number(2))], [c := m.tensor((), "bool")])
    m.op("IF", [c, 0, 1], m.outputs, "IfOptions", then=1, other=2)
    for name in ("then", "other"):
        s = w.subgraph(name)
        x, k, y = s.input((2, 6)), s.input((), "i32"), s.output((2, 1), signature=[2, -1])
        topk(s, x, k, y) if name == "then" else s.op("NEG", [x], [y])
    engine = pelton.build(w.bytes(), level=0, threads=1)
    for k in (3, 1, 5, 0):
        x = normal(2, 6)
        np.testing.assert_array_equal(run(engine, x=x, k=number(k))["y"], largest(x, k) if k > 2 else -x)


def test_loops_whose_tensors_grow():
    w = ModelWriter()
    m = w.main
    x, n = m.input((1, 3), name="x"), m.input((), "i32", name="n")
    results = [m.tensor((), "i32"), m.tensor((), "i32"), m.output((1, 3), signature=[-1, 3], name="y")]
    m.op("WHILE", [m.constant(number(0)), n, x], results, "WhileOptions", condition=1, body=2)
    s = w.subgraph("condition")
    i, end, _ = s.input((), "i32"), s.input((), "i32"), s.input((1, 3), signature=[-1, 3])
    s.op("LESS", [i, end], [s.output((), "bool")])
    s = w.subgraph("body")
    i, end, rows = s.input((), "i32"), s.input((), "i32"), s.input((1, 3), signature=[-1, 3])
    s.op("ADD", [i, s.constant(number(1))], [s.output((), "i32")], "AddOptions")
    s.outputs.append(end)
    s.op("MUL", [rows, s.constant(np.float32(1.5))], [h := s.tensor((1, 3), signature=[-1, 3])], "MulOptions")
    s.op("CONCATENATION", [rows, h], [s.output((2, 3), signature=[-1, 3])], "ConcatenationOptions", axis=0)
    engine = pelton.build(w.bytes(), level=0, threads=1)
    for turns in (0, 1, 4):
        x = want = normal(1, 3)
        for _ in range(turns):
            want = np.concatenate([want, want * np.float32(1.5)])
        np.testing.assert_allclose(run(engine, x=x, n=number(turns))["y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    "op, kind, option",
    [
        ("CALL", "CallOptions", "subgraph"),
        ("STABLEHLO_COMPOSITE", "StableHLOCompositeOptions", "decomposition"),
    ],
)
def test_subgraphs_that_are_called(op, kind, option):
    w = counted()
    m = w.main
    m.operators.clear()
    m.outputs.append(m.tensor((2, 6), name="same"))
    m.op(op, [0, 1], m.outputs, kind, **{option: 1})
    s = w.subgraph("inner")
    x, k = s.input((2, 6)), s.input((), "i32")
    topk(s, x, k, s.output((2, 1), signature=[2, -1]))
    s.outputs.append(x)
    engine = pelton.build(w.bytes(), level=0, threads=1)
    for count in (4, 2):
        x = normal(2, 6)
        found = run(engine, x=x, k=number(count))
        np.testing.assert_array_equal(found["y"], largest(x, count))
        np.testing.assert_array_equal(found["same"], x)


def test_inputs_and_constants_that_are_outputs():
    w = counted()
    c = normal(3)
    w.main.outputs += [0, w.main.constant(c, name="c")]
    engine = pelton.build(w.bytes(), level=0, threads=1)
    x = normal(2, 6)
    found = list(run(engine, x=x, k=number(2)).values())
    for got, want in zip(found, (largest(x, 2), x, c), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_script_runs_from_its_file(tmp_path):
    """Its steps on the host, too."""
    w = ModelWriter()
    x, order = w.main.input((2, 3, 4), "i8", name="x", scale=0.5, zero=3), w.main.input((3,), "i32", name="order")
    y = w.main.output((1, 1, 1), "i8", signature=[-1, -1, -1], scale=0.5, zero=3, name="y")
    w.main.op("TRANSPOSE", [x, order], [y])
    pelton.build(w.bytes(), level=0, threads=1).save(tmp_path / "e.pelton")
    engine, x = pelton.load(tmp_path / "e.pelton"), RNG.integers(-128, 128, (2, 3, 4)).astype(np.int8)
    for order in ((2, 0, 1), (0, 2, 1)):
        np.testing.assert_array_equal(run(engine, x=x, order=i32(*order))["y"], x.transpose(order))
    with pytest.raises(pelton.InputError, match=r"TRANSPOSE needs an order of the 3 axes of .*, got \[0, 0, 1\]"):
        run(engine, x=x, order=i32(0, 0, 1))


def test_values_of_inputs_make_one_engine():
    data = counted(signature=[-1, 6]).bytes()
    engine = pelton.build(data, level=0, threads=1, values={"k": 4})
    assert [p.name for p in engine.inputs] == ["x"] and not hasattr(engine, "script")
    for batch in (1, 3):
        x = normal(batch, 6)
        np.testing.assert_array_equal(run(engine, x=x)["y"], largest(x, 4))


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(values={"k": 7}), "TOPK_V2 needs a count from 0 to the last size of .*, got 7"),
        (dict(values={"k": [3, 4]}), r"input 'k' is i32\[\], its value is of shape \[2\]"),
        (dict(values={"k": "three"}), "input 'k' is i32.*, its value is none of these"),
        (dict(values={"q": 3}), "there is no input 'q'; there are x, k"),
        (dict(shapes={"q": "2x6"}), "there is no input 'q'; there are x, k"),
        (dict(outputs=["y"]), "leave out outputs="),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises((InputError, ModelError), match=message):
        pelton.build(counted().bytes(), level=0, threads=1, **given)


def test_what_decides_is_named():
    with pytest.raises(OnData, match=r"TOPK_V2 needs a constant as its count, but it depends on input 'k'") as e:
        tflite.read(counted().bytes())
    assert e.value.values == ("k",)


def test_a_model_that_keeps_state_is_refused():
    w = counted()
    w.main.op("VAR_HANDLE", [], [w.main.tensor((), "resource")], "VarHandleOptions", shared_name="v")
    with pytest.raises(ModelError, match="a model with state cannot become a script"):
        pelton.build(w.bytes(), level=0, threads=1)


def test_subgraphs_that_run_themselves_are_refused():
    w = counted()
    m = w.main
    m.op("CALL", [0, 1], [m.output((2, 6))], "CallOptions", subgraph=0)
    with pytest.raises(ModelError, match="more than 16 deep"):
        pelton.build(w.bytes(), level=0, threads=1)
