"""`pelton compress`: what is written, the search within a bound, and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import pelton
from pelton.cli import main
from pelton.compiler.stages import run_stages, start
from pelton.compression import blocks, closeness
from pelton.compression.data import joined
from pelton.compression.layers import find_layers
from pelton.importers import load
from pelton.ir.evaluate import evaluate
from pelton.ir.imported import Imported, Info
from pelton.ops.words import quantized_linear
from pelton.options import Options

DATA = Path(__file__).parent / "data"
MODEL = DATA / "small_transformer.onnx"


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def network(rng, scores=True, rows=(96, 64), inner=64, outlier=1.0):
    """Two products behind a norm, then a third of both, as scores or behind relu: x f32[batch, inner]."""
    net = pelton.Network()
    x = net.input("x", f"f32[batch, {inner}]")
    gain = np.ones(inner, np.float32)
    gain[3] = outlier
    y = net.layer_norm(x, gain, np.zeros(inner, np.float32), axis=1)

    def product(x, inner, rows):
        return net.matmul(x, (rng.standard_normal((inner, rows)) / inner**0.5).astype(np.float32))

    with net.scope("first"):
        a = net.relu(product(y, inner, rows[0]))
    with net.scope("second"):
        b = product(y, inner, rows[0])
    y = product(net.mul(a, b), rows[0], rows[1])
    net.output(y if scores else net.relu(y), "scores")
    return net


# --- what is written


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(weights="int8", block=64, zero_points=True),
        dict(head="int4", block=16, zero_points=True),
        dict(weights="int8", block=128, sparsity=0.5),
        dict(weights="float", cluster=16),
        dict(weights="float", sparsity="2:4"),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_data", [False, True])
def test_a_model_means_the_same_when_it_is_read_again(rng, tmp_path, kernel_cache, options, with_data):
    net, path = network(rng, outlier=30.0), tmp_path / "small.onnx"
    x = rng.standard_normal((40, 64)).astype(np.float32)
    small = pelton.compress(net, path, data={"x": x} if with_data else None, threads=1, **options)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    again = load(path).graph
    (want,) = evaluate(small._imported.graph, {"x": x[:5]}).values()
    (found,) = evaluate(again, {"x": x[:5]}).values()
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
    original = evaluate(net.graph(), {"x": x[:5]})["scores"]
    assert 0 < np.abs(want - original).max() < np.abs(original).max()
    few = options.get("weights") != "float"
    optimized = run_stages(start(Imported(again, Info()), Options()), "optimize").graph
    assert [n.op for n in optimized.nodes].count(quantized_linear) == (3 if few else 0)
    assert ("DequantizeLinear" in {n.op_type for n in proto.graph.node}) == few
    engine = small.build(level=0, cache_dir=kernel_cache)
    assert np.abs(engine.run({"x": x[:1]})["scores"] - want[:1]).max() <= 1e-4 * np.abs(want).max()
    assert engine.meta["compression"]["bytes_after"] == small.report["bytes_after"]


def test_codes_scales_and_zero_points_are_those_of_the_rows(rng, tmp_path):
    weight = rng.standard_normal((70, 80)).astype(np.float32)
    net = pelton.Network()
    net.output(net.relu(net.matmul(net.input("x", "f32[3, 70]"), weight)), "y")
    model = pelton.compress(net, weights="int4", head="int4", zero_points=True).export_onnx()
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    codes, scales, zeros = (
        next(a for name, a in arrays.items() if name.endswith(part)) for part in (".codes", ".scales", ".zeros")
    )
    assert codes.shape == (70, 80) and scales.shape == zeros.shape == (3, 80)
    want = blocks.round_to_nearest(
        weight.T.astype(np.float64), blocks.find_scales(weight.T, blocks.WeightGrid(4, 32, True))
    )
    place = np.arange(70) // 32
    found = (codes.astype(np.float32) - zeros.astype(np.float32)[place]) * scales[place]
    assert (found == want.weights().T).all()
    assert {n.op_type for n in model.graph.node} == {"DequantizeLinear", "MatMul", "Relu"}
    assert model.opset_import[0].version >= 21


@pytest.mark.parametrize("stride, pads, dilation, channels", [(1, 1, 1, 32), (2, 0, 2, 20)])
def test_convolutions_have_windows_as_rows(rng, tmp_path, stride, pads, dilation, channels):
    net = pelton.Network()
    x = net.input("x", f"f32[batch, {channels}, 9, 8]")
    weight = rng.standard_normal((48, channels, 3, 2)).astype(np.float32)
    y = net.convolution(x, weight, stride=stride, padding=pads, dilation=dilation)
    net.output(y, "y")
    (layer,), kept = find_layers(net.graph())
    array = rng.standard_normal((2, channels, 9, 8)).astype(np.float32)
    product = layer.input_rows(array) @ layer.rows(weight).T
    want = evaluate(net.graph(), {"x": array})["y"]
    assert np.abs(product - want.transpose(0, 2, 3, 1).reshape(-1, 48)).max() < 1e-3 and not kept
    assert (layer.array(layer.rows(weight)) == weight).all()
    images = np.tile(array, (4, 1, 1, 1)) + rng.standard_normal((8, channels, 9, 8)).astype(np.float32)
    small = pelton.compress(net, tmp_path / "y.onnx", data={"x": images}, method="auto", threads=1)
    again = evaluate(load(tmp_path / "y.onnx").graph, {"x": array})["y"]
    assert 0 < np.abs(again - want).max() < 0.2 * np.abs(want).max()
    assert small.report["layers"][0]["block"] == {32: 32, 20: 20}[channels]
    with pytest.raises(pelton.BuildError, match="engines hold weights of convolutions in float"):
        pelton.compress(net, tmp_path / "y.pelton")


def test_tables_and_shared_weights(rng, tmp_path, kernel_cache):
    net = pelton.Network()
    table = net.constant(rng.standard_normal((200, 48)).astype(np.float32), "table")
    mixer = net.constant(rng.standard_normal((48, 96)).astype(np.float32), "mixer")
    x = net.gather(table, net.input("at", "i64[batch, 3]"), axis=0)
    net.output(net.add(net.matmul(x, mixer), net.matmul(net.relu(x), mixer)), "y")
    small = pelton.compress(net, tmp_path / "y.onnx", data={"at": rng.integers(0, 200, (30, 3))}, threads=1)
    assert [(k["kind"], k["bits"]) for k in small.report["layers"]] == [("table", 8), ("product", 4)]
    engine = pelton.build(tmp_path / "y.onnx", level=0, threads=1, cache_dir=kernel_cache)
    at = rng.integers(0, 200, (1, 3))
    want = evaluate(small._imported.graph, {"at": at})["y"]
    assert np.abs(engine.run({"at": at})["y"] - want).max() <= 1e-4 * np.abs(want).max()


def test_tables_are_not_pruned(rng):
    net = pelton.Network()
    table = net.constant(rng.standard_normal((200, 48)).astype(np.float32), "table")
    x = net.gather(table, net.input("at", "i64[batch, 3]"), axis=0)
    net.output(net.matmul(x, rng.standard_normal((48, 96)).astype(np.float32)), "y")
    report = pelton.compress(net, weights="float", sparsity=0.5).report
    assert [(k["method"], k["zeros"]) for k in report["layers"]] == [("pruned", 0.5)]
    assert [k["reason"] for k in report["kept"]] == ["kept in float as asked"]
    report = pelton.compress(net, sparsity=0.5).report
    assert [k["zeros"] < 0.1 for k in report["layers"]] == [True, False]


# --- the bound


def test_the_bound_holds_and_costs_bits(rng):
    net, x = network(rng, scores=False), rng.standard_normal((100, 64)).astype(np.float32)
    bounds = (None, 0.02, 0.003, 6e-5)
    runs = {drop: pelton.compress(net, data={"x": x}, threads=1, max_drop=drop) for drop in bounds}
    sizes = [run.report["bytes_after"] for run in runs.values()]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    for drop, run in runs.items():
        accuracy = run.report["accuracy"]
        assert accuracy["max_drop"] == drop and (drop is None or accuracy["drop"] <= drop)
        assert "kl" not in accuracy and accuracy["held_out"] == 20
    bits = {drop: sorted({k["bits"] for k in run.report["layers"]}) for drop, run in runs.items()}
    assert bits == {None: [4], 0.02: [4, 8], 0.003: [8], 6e-5: [8, 32]}


def test_a_bound_out_of_reach_is_refused(rng, tmp_path):
    net = pelton.Network()
    x = net.input("x", "f32[batch, 64]")
    net.output(net.relu(net.matmul(x, rng.standard_normal((64, 64)).astype(np.float32))), "y")
    data = {"x": rng.standard_normal((20, 64)).astype(np.float32)}
    with pytest.raises(pelton.BuildError, match="max_drop 1e-12 cannot hold: the drop is .* in 8 bits"):
        pelton.compress(net, tmp_path / "y.onnx", data=data, max_drop=1e-12, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_distances_of_scores():
    p, q = (closeness.log_shares(np.log(np.array(a))) for a in ([[0.5, 0.25, 0.25]], [[0.25, 0.5, 0.25]]))
    assert closeness.kl_divergence(p, q) == pytest.approx([0.25 * np.log(2)])
    assert closeness.log_shares(np.array([[0.5, 0.5]]), probabilities=True) == pytest.approx(np.log([[0.5, 0.5]]))


def test_batches_are_joined_only_along_one_common_dimension(rng):
    feeds = [{"x": rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(20)]
    graph = network(rng).graph()
    assert [len(f["x"]) for f in joined(feeds, graph)] == [16, 4]
    assert np.concatenate([f["x"] for f in joined(feeds, graph)]).shape == (20, 64)
    net = pelton.Network()
    net.output(net.reduce_sum(net.input("x", "f32[batch, 64]"), axes=(0,), keepdims=True), "y")
    assert len(joined(feeds, net.graph())) == 20


# --- the gate: a trained language model


def judged(path, rows, original, cache):
    """KL divergence and agreement of a model's scores with the original ones, on rows of bytes."""
    shapes = {"tokens": f"{len(rows)}x128"}
    engine = pelton.build(path, shapes, level=0, threads=1, cache_dir=cache)
    shares = closeness.log_shares(engine.run({"tokens": rows[:, :-1]})["logits"])
    if original is None:
        return shares
    kl = closeness.kl_divergence(original, shares).mean()
    return kl, (shares.argmax(-1) == original.argmax(-1)).mean()


def test_a_trained_language_model_stays_close(tmp_path, kernel_cache):
    """On pages that neither training nor calibration has seen, against plain rounding of the same bits and blocks."""
    data = {name: rows.astype(np.int64) for name, rows in np.load(DATA / "small_transformer.npz").items()}
    np.savez(tmp_path / "data.npz", tokens=data["calibration"][:64, :-1])
    plain, small, report = (tmp_path / name for name in ("plain.onnx", "small.onnx", "report.json"))
    pelton.compress(MODEL, plain, method="nearest")
    command = [sys.executable, "-m", "pelton", "compress", MODEL, "-o", small, "--weights", "int4", "--threads", "1"]
    command += ["--data", tmp_path / "data.npz", "--max-drop", "0.1", "--perplexity", "--report", report, "-q"]
    # one thread for numpy, too: two that share a core wait for each other
    subprocess.run(command, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    rows = data["held_out"][:48]
    original = judged(MODEL, rows, None, kernel_cache)
    worse, _ = judged(plain, rows, original, kernel_cache)
    kl, agreement = judged(small, rows, original, kernel_cache)
    found = json.loads(report.read_text())
    assert all(k["bits"] == 4 for k in found["layers"] if k["kind"] == "product")
    assert kl <= 0.7 * worse and agreement > 0.9
    accuracy = found["accuracy"]
    assert accuracy["drop"] <= 0.1 and accuracy["perplexity"] < 1.03 * accuracy["perplexity_fp32"]
    assert small.stat().st_size == found["bytes"] < 0.23 * MODEL.stat().st_size


# --- refusals, and the command


@pytest.mark.parametrize(
    "options, reason",
    [
        (dict(method="gptq"), "method gptq needs typical inputs"),
        (dict(max_drop=0.1), "max_drop needs typical inputs"),
        (dict(perplexity=True), "perplexity needs typical inputs"),
        (dict(weights="int3"), "weights is one of int4, int8, float, got 'int3'"),
        (dict(block=24), "block is one of 16, 32, 64, 128, got 24"),
        (dict(keep=["third*"]), "no layer has this name"),
        (dict(keep="first"), "keep is a list of names"),
        (dict(weights="float"), "change nothing without"),
        (dict(cluster=16), "cluster is for weights of type float"),
        (dict(sparsity=1.5), "sparsity is a share"),
        (dict(sparsity="4:2"), "sparsity is a share"),
        (dict(max_drop=-1, data={}), "max_drop is a number from 0 on"),
        (dict(to="tflite"), "to is 'onnx' or 'engine'"),
        (dict(path="model.small"), "ends in neither"),
        (dict(path="model.onnx", level=0), "level: these options are of engines"),
        (dict(path="model.pelton", level=9), "level"),
        (dict(path="model.pelton", speed=9), "speed"),
        (dict(path="no/such/model.onnx"), "there is no folder"),
        (dict(data={"y": np.zeros((2, 64), np.float32)}), "input"),
        (dict(data={"x": np.zeros((2, 64), np.float32)}, perplexity=True), "perplexity needs an input of tokens"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(rng, tmp_path, monkeypatch, options, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pelton.InputError, match=reason):
        pelton.compress(network(rng), **options)
    assert list(tmp_path.iterdir()) == []


def test_models_without_weights_are_refused(rng, tmp_path):
    net = pelton.Network()
    net.output(net.matmul(net.input("x", "f32[2, 8]"), rng.standard_normal((8, 8)).astype(np.float32)), "y")
    with pytest.raises(pelton.BuildError, match="has no weights to compress.*fewer than 4,096"):
        pelton.compress(net, tmp_path / "y.onnx")
    with pytest.raises(pelton.BuildError, match="kept in float as asked"):
        pelton.compress(network(rng), tmp_path / "y.onnx", keep=["*"])
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_the_old_file(rng, tmp_path, monkeypatch):
    path = tmp_path / "small.onnx"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(pelton.InputError, match="cannot be written"):
        pelton.compress(network(rng), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_callback_cancels(rng):
    with pytest.raises(pelton.Cancelled):
        pelton.compress(network(rng), progress=lambda stage, done, total: stage != "calibrate")


def test_the_command_writes_and_reports(rng, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pelton.export_onnx(network(rng), "model.onnx")
    np.savez("data.npz", x=rng.standard_normal((30, 64)).astype(np.float32))
    assert main(["compress", "model.onnx", "--data", "data.npz", "--threads", "1", "--keep", "first*"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("model.small.onnx: ") and "kept as they are" in said and "KL divergence" in said
    assert main(["compress", "model.onnx", "-o", "y.pelton", "--level", "0", "--weights", "int8", "-q"]) == 0
    assert pelton.load("y.pelton").meta["compression"]["layers"][0]["bits"] == 8
    assert main(["compress", "model.onnx", "-o", "model.onnx"]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert main(["compress", "model.onnx", "--max-drop", "0.1"]) == 2
    assert "needs typical inputs as data" in capsys.readouterr().err


def test_engines_take_no_options_of_an_import(rng):
    small = pelton.compress(network(rng))
    for name, value in {"shapes": {"x": (1, 64)}, "refit": True, "outputs": ["scores"]}.items():
        with pytest.raises(pelton.InputError, match=f"{name} is for models as they are imported"):
            small.build(level=0, **{name: value})
