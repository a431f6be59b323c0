"""Detection of the quantized tensor that harms the outputs: the float network, one tensor rounded at a time, the
ranking by brute force, and inseparable tensors."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest
from models import small_cnn
from onnx_models import draw, model, node
from quantized_models import Quantizer, qdq_cnn

import pelton
from pelton import cli
from pelton.diagnose.sensitivity import rank, readers, separable, with_switches
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.verify import verify
from pelton.metrics import sqnr
from pelton.options import Options

TENSORS = ["x", "a", "b", "c", "d", "e", "f", "h"]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def samples():
    return [draw(qdq_cnn(), seed, low=-2, high=2) for seed in range(3)]


def switched(m: onnx.ModelProto):
    """The program with switches as a function of inputs and of what is rounded; in float64."""
    graph = load(m).graph
    nodes, whole = separable(graph)
    made, name = with_switches(graph, nodes)
    verify(made)

    def run(inputs, mask):
        return evaluate(made, {**inputs, name: np.asarray(mask, np.float32)}, round=False)

    return graph, nodes, whole, run


def test_all_rounded_is_the_model(samples):
    graph, nodes, whole, run = switched(qdq_cnn())
    assert [n.inputs[0].name for n in nodes] == TENSORS and not whole
    for sample in samples:
        (found,) = run(sample, np.ones(len(nodes))).values()
        np.testing.assert_array_equal(found, evaluate(graph, sample, round=False)["y"])


def test_nothing_rounded_saturates_alone():
    q = Quantizer()
    y = q.quantized(q.quantized("x", 0.5, np.uint8(10)), 0.25, np.int8(-100))
    q.nodes.append(node("Neg", y, "y"))
    _, nodes, _, run = switched(model(q.nodes, {"x": "f32[9]"}, ["y"], q.constants))
    x = np.array([-9, -5, -0.3, 0, 0.1, 0.3, 3.0, 100, 200], np.float32)
    first = np.clip(x / 0.5, -10, 245) * 0.5
    for mask in ((0, 0), (1, 0), (0, 1), (1, 1)):
        a = (np.clip(np.rint(x / 0.5), -10, 245) * 0.5) if mask[0] else first
        b = np.clip(np.rint(a / 0.25) if mask[1] else a / 0.25, -28, 227) * 0.25
        np.testing.assert_allclose(run({"x": x}, mask)["y"], -b, rtol=1e-6)


def test_the_ranking_is_that_of_brute_force(samples, options):
    found = rank(qdq_cnn(), samples, options)
    _, nodes, _, run = switched(qdq_cnn())

    def all_of(mask):
        return np.concatenate([next(iter(run(s, mask).values())) for s in samples])

    exact = all_of(np.zeros(len(nodes)))
    want = {n.inputs[0].name: sqnr(exact, all_of(row)) for n, row in zip(nodes, np.eye(len(nodes)))}
    assert found is not None and found.samples == 3 and not found.whole
    assert {t.tensor: t.sqnr["y"] for t in found.tensors} == pytest.approx(want, abs=0.05)
    assert found.together["y"] == pytest.approx(sqnr(exact, all_of(np.ones(len(nodes)))), abs=0.05)
    assert [t.tensor for t in found.tensors] == sorted(TENSORS, key=lambda t: want[t])
    noise = {t: 10 ** (-db / 10) for t, db in want.items()}
    assert {t.tensor: t.share for t in found.tensors} == pytest.approx(
        {t: n / sum(noise.values()) for t, n in noise.items()}, rel=0.05
    )


def test_a_coarse_tensor_is_to_blame(options):
    q = Quantizer(1)
    a = q.quantized(q.convolution(q.quantized("x", 0.02, np.uint8(128)), "a", 5, 3, 3, 3), 0.02, np.uint8(0))
    b = q.quantized(q.convolution(a, "b", 7, 5, 3, 3), 0.7, np.uint8(0))
    q.nodes.append(node("Relu", q.convolution(b, "c", 3, 7, 1, 1), "y"))
    m = model(q.nodes, {"x": "f32[1, 3, 9, 7]"}, ["y"], q.constants)
    found = rank(m, [draw(m, 5, low=-2, high=2)], options)
    assert found.tensors[0].tensor == "b" and found.tensors[0].share > 0.9 and found.tensors[0].readers == ("c",)


def test_integers_that_are_moved_pooled_and_joined_stay_apart(options):
    q = Quantizer(2)
    q.quantized("x", 0.02, np.uint8(128))
    q.quantized("z", 0.02, np.uint8(128))
    q.constants |= {"none": np.full((1, 3, 2, 4), 7, np.uint8), "order": np.array([2, 0, 1, 1])}
    q.nodes += [
        node("Concat", "x_q none z_q", "joined", axis=2),
        node("MaxPool", "joined", "pooled", kernel_shape=[2, 1]),
        node("Gather", "pooled order", "picked", axis=1),
        node("Transpose", "picked", "moved", perm=[0, 2, 3, 1]),
        node("DequantizeLinear", "moved x_scale x_zero", "y", name="back"),
        node("Identity", "x_dq", "w"),
    ]
    m = model(q.nodes, {"x": "f32[1, 3, 5, 4]", "z": "f32[1, 3, 3, 4]"}, ["y", "w"], q.constants)
    graph, nodes, whole, run = switched(m)
    assert [n.inputs[0].name for n in nodes] == ["x", "z"] and not whole
    inputs = draw(m, 0, low=-3, high=3)
    for got, want in zip(run(inputs, [1, 1]).values(), evaluate(graph, inputs, round=False).values()):
        np.testing.assert_array_equal(got, want)
    found = rank(m, [inputs], options)
    by_name = {t.tensor: t for t in found.tensors}
    assert by_name["x"].readers == ("output w", "output y") and by_name["z"].readers == ("output y",)
    assert by_name["z"].sqnr["w"] == math.inf and math.isfinite(by_name["z"].sqnr["y"])
    assert json.loads(json.dumps(found.json()))["tensors"][1]["sqnr"]["w"] == "inf"


def test_integers_that_are_computed_with_are_always_rounded(options):
    q = Quantizer(3)
    x = q.quantized("x", 0.02, np.uint8(128))
    q.quantized("z", 0.02, np.uint8(128))
    q.constants |= {"w": q.rng.integers(-9, 9, (4, 3)).astype(np.int8)}
    q.nodes += [
        node("MatMulInteger", "z_q w", "sums"),
        node("Cast", "sums", "floats", to=onnx.TensorProto.FLOAT),
        node("ReduceSum", x, "total", keepdims=0),
        node("Add", "total floats", "y"),
        node("Identity", "z_q", "bytes"),
    ]
    m = model(q.nodes, {"x": "f32[2, 5]", "z": "f32[2, 4]"}, ["y", "bytes"], q.constants)
    found = rank(m, [draw(m, 0, low=-2, high=2)], options)
    assert [t.tensor for t in found.tensors] == ["x"] and found.whole == ("z",)
    graph = load(m).graph
    assert readers(graph, separable(graph)[0][0])


def test_scales_by_axis(options):
    q = Quantizer(4)
    q.constants |= {"s": np.array([0.1, 0.4, 0.02], np.float32), "o": np.array([3, 200, 128], np.uint8)}
    q.nodes += [
        node("QuantizeLinear", "x s o", "q", axis=1),
        node("DequantizeLinear", "q s o", "d", axis=1),
        node("Sigmoid", "d", "y", name="curve"),
    ]
    m = model(q.nodes, {"x": "f32[2, 3, 7]"}, ["y"], q.constants, opset=19)
    graph, nodes, _, run = switched(m)
    inputs = draw(m, 0, low=-2, high=2)
    np.testing.assert_array_equal(next(iter(run(inputs, [1]).values())), evaluate(graph, inputs, round=False)["y"])
    found = rank(m, [inputs], options)
    assert found.tensors[0].readers == ("curve",) and found.tensors[0].share == 1


def test_what_is_not_ranked(options, samples):
    assert rank(small_cnn(), [draw(small_cnn())], options) is None
    with pytest.raises(pelton.InputError, match="no samples"):
        rank(qdq_cnn(), [], options)
    with pytest.raises(pelton.Cancelled, match="run 7 of 30"):
        rank(qdq_cnn(), samples, options.but(progress=lambda stage, done, _: (stage, done) != ("check", 7)))


def test_from_the_command_line(samples, options, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(qdq_cnn(), "m.onnx")
    onnx.save(small_cnn(), "float.onnx")
    np.savez("data.npz", x=np.concatenate([s["x"] for s in samples]))
    given = ["explain", "m.onnx", "--error", "--level", "0", "--cache-dir", str(options.cache_dir)]
    assert cli.main([*given, "--data", "data.npz", "--top", "2"]) == 0
    printed = capsys.readouterr().out
    assert "8 quantized tensors, the most harmful first, on 3 samples" in printed
    assert len(printed.partition("8 quantized tensors")[2].splitlines()) == 5 and "all of them rounded: y " in printed
    assert cli.main([*given, "--data", "data.npz", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quantized"] == json.loads(json.dumps(rank("m.onnx", samples, options).json()))
    assert found["inputs"] == {"x": [1, 3, 13, 11]}
    assert all(s["own"] < 1e-6 for s in found["steps"]) and list(found["outputs"]) == ["y"]
    assert cli.main([*given[:1], "float.onnx", *given[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantized"] is None
    assert cli.main(given) == 0 and "on 1 sample" in capsys.readouterr().out
    for more, why in (
        ([*given, "--data", "data.npz", "--input", "x=x.npy"], "use only one of them"),
        ([*given, "--data", "none.npz"], "cannot be read"),
        (["explain", "m.onnx", "--data", "data.npz"], "add --error"),
    ):
        assert cli.main(more) == cli.REFUSED and why in capsys.readouterr().err
