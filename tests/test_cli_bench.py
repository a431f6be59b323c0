"""`pelton bench`: what it measures and prints, alone and beside other runtimes, and what it refuses; progress, numbers and tables."""
import io
import json
import os
import re
import sys

import numpy as np
import pytest

import pelton
from pelton.cli import main, peers, progress, text

QUICK = ["--seconds", "0.02", "--warmup", "0"]


def test_bench_of_an_engine(capsys, engines):
    assert main(["bench", engines["cnn"], *QUICK, "--layers"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"throughput +[\d.]+ per second", out) and re.search(r"min [\d.]+  mean [\d.]+  median [\d.]+  p90 [\d.]+  p95 [\d.]+  p99 [\d.]+", out)
    steps = len(pelton.load(engines["cnn"]).steps)
    assert "% of peak" in out and len(re.findall(r"^ *\d+ +[\d.]+ (?:ns|µs|ms|s) ", out, re.M)) == steps


def test_bench_of_a_model_as_json(capsys, pair, cache):
    assert main(["bench", pair, "--level", "0", "--shapes", "a=8x4,b=8x4", "--threads", "1", *QUICK, "--layers", "--json", *cache]) == 0
    found = json.loads(capsys.readouterr().out)
    ms = found["latency_ms"]
    assert 0 < ms["min"] <= ms["median"] <= ms["p90"] <= ms["p95"] <= ms["p99"] and ms["min"] <= ms["mean"]
    assert found["threads"] == 1 and found["runs"] >= 5 and found["throughput"] > 0 and found["peak_gflops"] > 1
    assert abs(sum(s["share"] for s in found["layers"]) - 1) < 1e-6


def test_bench_refuses(refused, engines, cnn):
    assert "onnxruntime, openvino" in refused("bench", cnn, "--vs", "tensorrt")
    assert "--vs takes" in refused("bench", cnn, "--vs", "")
    assert "model.onnx" in refused("bench", engines["cnn"], "--vs", "onnxruntime")


@pytest.fixture
def runtimes(tmp_path, monkeypatch):
    """Makes other runtimes importable in subprocesses: an `onnxruntime` that answers zeros, an `openvino` that fails."""
    (tmp_path / "onnxruntime.py").write_text(
        "import numpy, time\nprint('chatter')\n__version__ = '0.0'\nclass SessionOptions: pass\n"
        "class InferenceSession:\n    def __init__(self, *args, **kw): pass\n"
        "    def run(self, names, feeds):\n        time.sleep(.002)\n        return [numpy.zeros((1, 10), numpy.float32)]\n")
    (tmp_path / "openvino.py").write_text("class Core:\n    def compile_model(self, *args): raise ValueError('out of wine')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))


def test_bench_beside_others(capsys, runtimes, cnn, cache):
    assert main(["bench", cnn, "--level", "0", *QUICK, "--vs", "onnxruntime,openvino", "--json", *cache]) == 0
    ours, zeros, broken = json.loads(capsys.readouterr().out)["vs"]
    assert ours["runtime"] == "pelton" and ours["version"] == pelton.__version__ and ours["off"] == 0
    assert zeros["median_ms"] > 2 and zeros["off"] == 1 and zeros["spread"] >= 1
    assert broken == {"runtime": "openvino", "why_not": "failed: ValueError: out of wine"}
    assert main(["bench", cnn, "--level", "0", *QUICK, "--vs", "onnxruntime,openvino", *cache]) == 0
    out = capsys.readouterr().out
    assert re.search(r"onnxruntime +0\.0 +[\d.]+ +[\d.]+ +1\.0e\+00 +[\d.]+× as fast", out) and "out of wine" in out


def test_a_runtime_that_is_not_there_says_how_to_install_it(tmp_path, engines, cnn, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('No module named onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    quick = {"threads": 1, "seconds": .02, "rounds": 2, "folder": str(tmp_path)}
    found = peers.compare(engines["cnn"], cnn, {"x": np.zeros((1, 3, 12, 12), np.float32)}, ["onnxruntime"], **quick)
    assert "pip install onnxruntime" in found[1].why_not and len(found[0].rounds) == 2
    with pytest.raises(pelton.InputError, match="does not start"):
        peers.compare(engines["cnn"], cnn, {}, ["onnxruntime"], python=str(tmp_path / "python"), **quick)


def test_outputs_that_differ_are_seen(tmp_path):
    a, b = str(tmp_path / "a.npz"), str(tmp_path / "b.npz")
    def off(x, y):
        np.savez(a, **{str(i): v for i, v in enumerate(x)})
        np.savez(b, **{str(i): v for i, v in enumerate(y)})
        return peers.difference(a, b)
    one = np.array([1., -4.])
    assert off([one], [one]) == 0 and off([one + [0, 1]], [one]) == .25
    assert off([one, one], [one]) == off([one], [one, one]) == off([one[:1]], [one]) == float("inf")
    assert not off([one * np.nan], [one]) <= 1


# --- progress and words

def test_progress_on_a_terminal_and_off_it(monkeypatch):
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self):
            return True
    for stream, marks in ((Terminal(), "━"), (io.StringIO(), "timing kernels, 0 of 7 …")):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with progress.shown() as tell:
            tell("import", 0, 1)
            for done in range(8):
                tell("tune", done, 7)
            tell("done", 1, 1)
        assert marks in stream.getvalue() and "timing kernels" in stream.getvalue()
    monkeypatch.setattr(sys, "stderr", silent := io.StringIO())
    with progress.shown(False) as tell:
        tell("tune", 0, 7)
    assert silent.getvalue() == ""


def test_numbers_as_people_read_them():
    assert [text.size(n) for n in (0, 999, 1500, 2_500_000, 3e9)] == ["0 B", "999 B", "1.5 kB", "2.5 MB", "3.00 GB"]
    assert [text.duration(n) for n in (7, 1500, 2_500_000, 3e9)] == ["7 ns", "1.5 µs", "2.500 ms", "3.00 s"]
    assert text.count(1, "copy", "copies") == "1 copy" and text.count(2, "copy", "copies") == "2 copies" and text.count(0, "step") == "0 steps"
    assert text.table([("a", "b"), ("long", "1")], "lr") == "a     b\nlong  1"
