"""Comparisons over data: samples and their faults, scales of quantized values, other runtimes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from models import small_cnn
from onnx import helper
from onnx_models import draw, model
from quantized_models import qdq_cnn

import pelton
from pelton import cli
from pelton.backends.cpu.prepared import CpuReady
from pelton.diagnose.compare import Comparison, OutputDifference, compare
from pelton.diagnose.differences import InScales, Tally
from pelton.diagnose.samples import split
from pelton.diagnose.scales import scales
from pelton.engine.plan import Port
from pelton.importers.onnx.load import load
from pelton.ir.text import parse
from pelton.ir.types import DType
from pelton.metrics import agreement, sqnr

X, IDS, N = Port("x", "f32", (1, 3, 4)), Port("ids", "i64", (1, 5)), Port("n", "f32", ())
OPEN = Port("x", "f32", ("batch", 3, "length"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def quantized(cache):
    return pelton.build(qdq_cnn(), level=0, cache_dir=cache)


@pytest.fixture(scope="module")
def data():
    return [draw(qdq_cnn(), seed, low=-2, high=2) for seed in range(5)]


# ---- samples


def optimum(*ports: Port) -> dict[str, tuple[int, ...]]:
    return {p.name: tuple(2 if isinstance(d, str) else d for d in p.shape) for p in ports}


@pytest.mark.parametrize(
    "port, shape, count, each",
    [
        (X, (7, 3, 4), 7, (1, 3, 4)),
        (X, (7, 1, 3, 4), 7, (1, 3, 4)),
        (X, (1, 3, 4), 1, (1, 3, 4)),
        (Port("x", "f32", (4, 3)), (8, 3), 2, (4, 3)),
        (Port("x", "f32", (4, 3)), (4, 3), 1, (4, 3)),
        (Port("x", "f32", (4, 3)), (8, 4, 3), 8, (4, 3)),
        (Port("x", "f32", ()), (3,), 3, ()),
        (Port("x", "f32", ()), (), 1, ()),
        (OPEN, (6, 3, 9), 3, (2, 3, 9)),
        (OPEN, (1, 3, 9), 1, (1, 3, 9)),
        (OPEN, (5, 4, 3, 9), 5, (4, 3, 9)),
    ],
)
def test_samples_are_cut_in_order(port, shape, count, each):
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found = split([port], {"x": x}, optimum(port))
    assert [s["x"].shape for s in found] == [each] * count
    assert np.concatenate([s["x"].ravel() for s in found]).tolist() == x.ravel().tolist()


def test_an_array_of_one_sample_is_taken_for_all():
    arrays = {"x": np.ones((3, 3, 4), np.float32), "ids": np.ones((1, 5), np.int64), "n": np.float32(2)}
    found = split([X, IDS, N], arrays, optimum(X, IDS, N))
    assert len(found) == 3 and all(s["ids"].shape == (1, 5) and s["n"] == 2 for s in found)
    assert split([], {}, {}) == [{}]


@pytest.mark.parametrize(
    "change, why",
    [
        ({"y": np.ones(3)}, r"data has an array 'y', but no such input exists.*it takes x: f32\[1, 3, 4\]"),
        ({"idz": np.ones(3)}, "did you mean 'ids'"),
        ({"x": None}, "data has no array 'x'"),
        ({"x": np.ones((7, 3, 4))}, r"needs f32.*float64; convert it with .astype\(np.float32\)"),
        ({"x": np.ones((7, 3, 4), object)}, "got object"),
        ({"x": np.ones((7, 4, 3), np.float32)}, r"shape \[7, 4, 3\]; pass samples along axis 0: \[samples, 1, 3"),
        ({"x": np.ones((3, 4), np.float32)}, "pass samples"),
        ({"x": np.ones((0, 3, 4), np.float32)}, r"no elements: shape \[0, 3, 4\]"),
        ({"x": np.full((7, 3, 4), np.nan, np.float32)}, r"got nan at \[0, 0, 0\]"),
        ({"x": np.where(np.arange(84) == 83, np.inf, 0).reshape(7, 3, 4).astype("f")}, r"inf at \[6, 2, 3\]"),
        ({"ids": np.ones((4, 5), np.int64)}, "different numbers of samples: x 7, ids 4"),
        ({"n": np.ones((2, 2), np.float32)}, "pass samples"),
    ],
)
def test_data_that_does_not_fit(change, why):
    arrays = {"x": np.ones((7, 3, 4), np.float32), "ids": np.ones((7, 5), np.int64), "n": np.float32(1), **change}
    with pytest.raises(pelton.InputError, match=why):
        split([X, IDS, N], {k: a for k, a in arrays.items() if a is not None}, optimum(X, IDS, N))


def test_samples_that_are_no_whole_runs():
    with pytest.raises(pelton.InputError, match="7 along axis 0, not a multiple of 2"):
        split([OPEN], {"x": np.ones((7, 3, 9), np.float32)}, optimum(OPEN))


# ---- scales


def test_scales_of_quantized_values():
    graph = parse("""graph main(%x: f32[2, 3, 4], %q: u8[2, 3, 4]) {
  %s = constant f32[] 0.25
  %t = constant f32[3] [0.5, 1.0, 2.0]
  %z = constant u8[] 3
  %four = constant f32[] 4.0
  %seven = constant f32[] 7.0
  %a: u8[2, 3, 4] = quantize(%x, %s, %z) {to=u8}
  %b: f32[2, 3, 4] = dequantize(%a, %s, %z)
  %c: f32[2, 3, 4] = mul(%b, %four)
  %d: f32[2, 3, 4] = sub(%seven, %c)
  %e: f32[2, 12] = reshape(%d) {shape=(2, 12)}
  %f: f32[2, 3, 4] = dequantize(%q, %t) {axis=1}
  %g: f32[2, 3, 4] = relu(%f)
  %h: f32[2, 12] = reshape(%f) {shape=(2, 12)}
  %i: f32[2, 3, 4] = add(%b, %c)
  %j: f32[4, 3, 4] = concat(%b, %b) {axis=0}
  %k: f32[4, 3, 4] = concat(%b, %c) {axis=0}
  %l: f32[2, 3, 4] = div(%four, %b)
  %m: f32[2, 3, 4] = div(%b, %four)
  %n: f32[2, 3, 4] = round(%x)
  %o: i32[2, 3, 4] = cast(%n) {to=i32}
  return %e, %g, %h, %i, %j, %k, %l, %m, %o
}""")
    found = {v.name: a.ravel().tolist() for v, a in scales(graph).items()}
    assert found == {
        **{"a": [1], "b": [0.25], "c": [1], "d": [1], "e": [1], "f": [0.5, 1, 2], "g": [0.5, 1, 2]},
        **{"j": [0.25], "m": [0.0625], "n": [1], "o": [1]},
    }


def test_every_scale_is_that_of_the_values():
    """What has a scale is whole multiples of it, but for a constant, in the model and in the optimized program."""
    from pelton.compiler.stages import run_stages, start
    from pelton.ir.evaluate import evaluate
    from pelton.options import Options

    imported = load(qdq_cnn())
    optimized = run_stages(start(imported, Options(target="cpu:x86_64_v3")), "optimize").graph
    for graph in (imported.graph, optimized):
        known = scales(graph)
        assert len(known) > 12
        values = evaluate(graph, draw(qdq_cnn(), 3, low=-2, high=2), round=False, keep=True)
        for v, scale in known.items():
            first = np.asarray(values[v.name]).ravel()[0] if scale.size == 1 else 0.0
            off = (values[v.name] - first) / scale
            assert np.abs(off - np.rint(off)).max() < 1e-4, v


# ---- differences


def test_a_tally_counts_over_samples():
    rng = np.random.default_rng(0)
    want = rng.integers(0, 9, (6, 5)).astype(np.float64) * 0.25
    off = rng.integers(-2, 3, (6, 5))
    tally = Tally("y", DType.F32, np.array(0.25))
    for w, o in zip(want, off):
        tally.add((w + 0.25 * o).astype(np.float32), w)
    found = tally.difference()
    got = (want + 0.25 * off).astype(np.float32)
    assert found.sqnr == pytest.approx(sqnr(want, got)) and tally.agreement == agreement(want, got)
    assert found.error == np.abs(got - want).max() / want.max() and found.largest == want.max()
    assert (found.quantized.scale, found.quantized.steps) == (0.25, np.abs(off).max())
    assert found.quantized.one == np.mean(np.abs(off) == 1) and found.quantized.more == np.mean(np.abs(off) == 2)


def test_scores_have_rows_along_the_last_axis_of_more_than_one():
    tally = Tally("y", DType.F32)
    tally.add(np.array([[[1]], [[2]]], np.float32), np.array([[[2.0]], [[1.0]]]))  # one row of two
    assert tally.agreement == 0
    tally = Tally("y", DType.F32)
    tally.add(np.ones((1, 1), np.float32), np.ones((1, 1)))
    assert tally.agreement is None and json.loads(json.dumps(tally.difference().json()))["sqnr_db"] == "inf"


# ---- engines


def test_quantized_engines_are_within_the_noise_of_rounding(quantized, data):
    found = compare(qdq_cnn(), quantized, data)
    assert found.ok and found.samples == 5 and len(found.rounded) == 1
    (y,) = found.outputs
    assert y.quantized.scale == pytest.approx(0.03) and y.quantized.steps == pytest.approx(
        round(y.quantized.steps), abs=1e-3
    )
    assert sum(s.quantized is not None for s in found.steps) >= len(found.steps) - 2
    assert all(s.quantized.steps <= 2 for s in found.steps if s.quantized)
    one = compare(qdq_cnn(), quantized, data[3])
    assert one.samples == 1 and one.outputs[0].error <= y.error * y.largest / one.outputs[0].largest


def test_a_wrong_quantized_engine_is_not(quantized, data, monkeypatch):
    run_part, done = CpuReady.run_part, []

    def run_and_spoil(self, part):
        run_part(self, part)
        done.append(part)
        if len(done) % len(self.plain.steps) == 3:
            at = self.plain.steps[2].outputs[0].slice
            self.memory(at.buffer).view(np.uint8)[at.offset : at.offset + 500] = 255

    monkeypatch.setattr(CpuReady, "run_part", run_and_spoil)
    found = compare(qdq_cnn(), quantized, data)
    assert not found.ok and found.outputs[0].quantized.steps > 1
    assert found.rounded[0].sqnr > found.outputs[0].sqnr + 6


@pytest.mark.parametrize(
    "error, lost, steps, sqnr_db, rounded_db, fits",
    [
        (2e-3, 0, None, 50.0, None, True),
        (3e-3, 0, None, 50.0, None, False),
        (0.0, 1, 0.0, np.inf, np.inf, False),  # infinite where it should not be
        (1 / 255, 0, 1.0, 40.0, np.inf, True),  # one byte, one step off
        (2 / 255, 0, 2.0, 40.0, np.inf, False),
        (0.1, 0, 9.0, 20.0, 25.9, True),  # twice the noise of rounding
        (0.1, 0, 9.0, 20.0, 26.1, False),
        (0.1, 0, None, 20.0, 21.0, True),  # a float output of a quantized model
        (0.1, 0, None, 20.0, None, False),
    ],
)
def test_what_is_within_the_tolerance(error, lost, steps, sqnr_db, rounded_db, fits):
    def output(db: float) -> OutputDifference:
        quantized = None if steps is None else InScales(0.5, steps, 0.0, 0.0)
        return OutputDifference("y", "float32", error, lost, 1.0, db, quantized, None)

    rounded = () if rounded_db is None else (output(rounded_db),)
    found = Comparison((output(sqnr_db),), (), 0, 2e-3, "fp32", rounded=rounded)
    assert found.ok is fits and replace(found, allowed=2).ok is (fits or steps == 2.0)


def test_outputs_of_others_are_beside(quantized, data):
    found = compare(qdq_cnn(), quantized, data, others={"itself": quantized.run, "zero": lambda x: {"y": ZERO}})
    assert found.others["itself"] == found.outputs
    assert found.others["zero"][0].sqnr == pytest.approx(0)
    with pytest.raises(pelton.InputError, match=r"flat returns output 'y' with shape \[10\], the model \[1, 10\]"):
        compare(qdq_cnn(), quantized, data, others={"flat": lambda x: {"y": ZERO[0]}})


ZERO = np.zeros((1, 10), np.float32)


def test_what_cannot_be_compared(quantized, cache):
    with pytest.raises(pelton.InputError, match="no samples"):
        compare(qdq_cnn(), quantized, [])
    m = model([helper.make_node("Relu", ["x"], ["y"])], {"x": "f32[n, 2]"}, ["y"], {})
    engine = pelton.build(m, {"x": "1..2..4x2"}, level=0, cache_dir=cache)
    samples = [{"x": np.ones((n, 2), np.float32)} for n in (1, 3)]
    with pytest.raises(pelton.InputError, match="sample 1 has arrays of"):
        compare(m, engine, samples)
    assert all(compare(m, engine, s).ok for s in samples)


# ---- the command line

FAKE = """
import numpy
__version__ = "9.9"
class GraphOptimizationLevel: ORT_DISABLE_ALL = 0
class SessionOptions: graph_optimization_level = 1
class InferenceSession:
    def __init__(self, path, options, providers): self.options = options
    def run(self, names, feeds):
        rows = feeds["x"].reshape(-1)[:10][None]
        return [rows * 1.5 if self.options.graph_optimization_level else rows] * %COUNT%
"""


@pytest.fixture
def files(quantized, data, tmp_path, monkeypatch):
    onnx.save(qdq_cnn(), tmp_path / "m.onnx")
    quantized.save(tmp_path / "m.pelton")
    np.savez(tmp_path / "data.npz", x=np.concatenate([d["x"] for d in data]))
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "onnxruntime.py").write_text(FAKE.replace("%COUNT%", "1"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_data_and_other_runtimes_from_the_command_line(files, data, capsys, monkeypatch):
    given = ["compare", "m.onnx", "m.pelton", "--data", "data.npz"]
    assert cli.main(given) == 0
    printed = capsys.readouterr().out
    assert "on 5 samples of x 1x3x13x11" in printed and "seed" not in printed
    assert "the model, rounded to its types" in printed and "by one" in printed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(files / "fake"), *sys.path]))
    both = ["--with", "onnxruntime", "--with", "onnxruntime_unoptimized", "--peers-python", sys.executable]
    assert cli.main([*given, *both, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 5 and found["seed"] is None and found["inputs"] == {"x": [1, 3, 13, 11]}
    engine = compare(
        qdq_cnn(),
        pelton.load("m.pelton"),
        data,
        others={
            f"onnxruntime{name} 9.9": lambda x, by=by: {"y": x["x"].reshape(-1)[:10][None] * np.float32(by)}
            for name, by in (("", 1.5), ("_unoptimized", 1))
        },
    )
    assert found == {
        "pelton": pelton.__version__,
        **json.loads(json.dumps(engine.json())),
        "inputs": found["inputs"],
        "seed": None,
    }
    assert cli.main([*given, "--steps", "0", "--tolerance", "1e-9", "--top", "1", *both]) in (0, 1)
    assert "onnxruntime 9.9" in capsys.readouterr().out


def test_bad_input_from_the_command_line(files, capsys, monkeypatch):
    np.savez("wrong.npz", z=np.ones(3, np.float32))
    np.savez("nan.npz", x=np.full((2, 3, 13, 11), np.nan, np.float32))
    (files / "text.npz").write_text("no arrays")
    for more, why in (
        (["--data", "none.npz"], "none.npz cannot be read"),
        (["--data", "text.npz"], "cannot be read as an array"),
        (["--data", "wrong.npz"], "wrong.npz has an array 'z', but no such input exists"),
        (["--data", "nan.npz"], "got nan at"),
        (["--data", "data.npz", "--input", "x=x.npy"], "use only one of them"),
        (["--data", "data.npz", "--seed", "1"], "leave them out"),
        (["--peers-python", sys.executable], "add --with"),
        (["--with", "onnxruntime", "--peers-python", "no-such-python"], "does not start"),
    ):
        assert cli.main(["compare", "m.onnx", "m.pelton", *more]) == cli.REFUSED
        assert why in capsys.readouterr().err
    for program, why in (
        ("raise ImportError('no onnxruntime here')", "onnxruntime is not installed for"),
        (FAKE.replace("%COUNT%", "2"), "has 2 outputs, the engine 1"),
        (FAKE.replace("%COUNT%", "out_of_order"), "name 'out_of_order' is not defined"),
    ):
        (files / "fake" / "onnxruntime.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(files / "fake"), *sys.path]))
        assert cli.main(["compare", "m.onnx", "m.pelton", "--with", "onnxruntime"]) == cli.REFUSED
        assert why in capsys.readouterr().err


def test_an_array_without_a_name(cache, tmp_path, capsys):
    engine = pelton.build(small_cnn(), level=0, cache_dir=cache)
    onnx.save(small_cnn(), tmp_path / "m.onnx")
    engine.save(tmp_path / "m.pelton")
    np.save(tmp_path / "x.npy", draw(small_cnn())["x"])
    assert (
        cli.main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.pelton"), "--data", str(tmp_path / "x.npy")])
        == 0
    )
    assert "on 1 sample of x" in capsys.readouterr().out
