"""`pelton bench`: measurements and output, alone and beside other runtimes; refusals, progress and tables."""

import io
import json
import os
import re
import sys
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
from pelton import progress
from pelton.cli import arrays, main, peers, text, timing
from pelton.codegen.c import toolchain
from pelton.tuning import peak

QUICK = ["--seconds", "0.02", "--warmup", "0"]


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """What the machine reaches at most is looked at once, not thirty times."""
    monkeypatch.setattr(peak, "ROUNDS", 5)


def test_bench_of_an_engine(capsys, engines):
    assert main(["bench", engines["cnn"], *QUICK, "--layers"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"throughput +[\d.]+ runs per second", out)
    assert re.search(r"min [\d.]+  mean [\d.]+  median [\d.]+  p90 [\d.]+  p95 [\d.]+  p99 [\d.]+", out)
    steps = len(pelton.load(engines["cnn"]).steps)
    assert (
        "% of peak" in out
        and len(re.findall(r"^ *\d+ +[\d.]+ (?:ns|µs|ms|s) .* (?:compute +\d+|memory +\d+|–) ", out, re.M)) == steps
    )
    assert re.search(r"^in kernels [\d.]+ \S+, around them [\d.]+ \S+: ", out, re.M)
    assert re.search(r"Measured: \d+ GFLOP/s in the CPU\s+time of the threads, [\d.]+ GB/s", out)
    assert all(len(line) <= 160 for line in out.splitlines())


def test_bench_of_a_model_as_json(capsys, pair, cache):
    assert (
        main(
            [
                "bench",
                pair,
                "--level",
                "0",
                "--shapes",
                "a=8x4,b=8x4",
                "--threads",
                "1",
                *QUICK,
                "--layers",
                "--json",
                *cache,
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    ms = found["latency_ms"]
    assert 0 < ms["min"] <= ms["median"] <= ms["p90"] <= ms["p95"] <= ms["p99"] and ms["min"] <= ms["mean"]
    assert found["threads"] == 1 and found["runs"] >= 5 and found["throughput"] > 0 and found["peak_gflops"] > 1
    assert abs(sum(s["share"] for s in found["layers"]) - 1) < 1e-6
    assert (
        found["peak_gbytes"] > 1
        and found["in_kernels_ns"] == sum(s["ns"] for s in found["layers"])
        and found["around_ns"] > 0
    )
    step = found["layers"][0]
    assert step["flops"] == 8 * 4 and step["bytes"] == 3 * 8 * 4 * 4 and step["bound"] == "" and step["reached"] > 0


def test_the_plot_is_drawn(capsys, tmp_path, engines):
    path = tmp_path / "roofline.svg"
    assert main(["bench", engines["cnn"], *QUICK, "--plot", str(path)]) == 0
    said, steps = capsys.readouterr().out, pelton.load(engines["cnn"]).steps
    assert "roofline.svg" in said and "% of peak" not in said and os.listdir(tmp_path) == ["roofline.svg"]
    drawn = [s for s in steps if s.info["flops"]]
    assert len(ElementTree.parse(path).findall(".//{*}circle")) == len(drawn) > 3


def test_the_plot_needs_a_compiler_before_anything_is_timed(refused, engines, monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", None)
    toolchain.zig.cache_clear()
    toolchain.compiler_id.cache_clear()
    monkeypatch.setattr("pelton.cli.runs.timed", None)
    said = refused("bench", engines["cnn"], "--plot", "roofline.svg")
    assert said == 'error: --plot: without a compiler the peak cannot be measured: pip install "pelton[build]"\n'


def test_bench_refuses(refused, engines, cnn):
    assert "onnxruntime, openvino" in refused("bench", cnn, "--vs", "tensorrt")
    assert "--vs must be" in refused("bench", cnn, "--vs", "")
    assert "model.onnx" in refused("bench", engines["cnn"], "--vs", "onnxruntime")
    assert "ends in .svg" in refused("bench", engines["cnn"], "--plot", "roofline.png")
    assert "no folder" in refused("bench", engines["cnn"], "--plot", "no/such/roofline.svg")


@pytest.mark.parametrize(
    "given",
    [
        ["--level", "3"],
        ["--strict"],
        ["--budget", "1"],
        ["--precision", "fp32"],
        ["--values", "a=1"],
        ["--max-iterations", "5"],
    ],
)
def test_an_engine_is_built_already(refused, engines, given):
    assert f"{given[0]} is a build option, but {engines['cnn']} is already an engine" in refused(
        "bench", engines["cnn"], *given
    )


def test_a_batch_is_what_the_model_calls_so(capsys, folder, cache):
    """An axis of three that is no batch makes no three inputs."""
    for dims, shape, batch in (
        ((3,), "3", 1),
        (("batch", 4), "3x4", 3),
        (("n", 4), "3x4", 3),
        (("frames", 4), "3x4", 1),
    ):
        path = folder / f"batch_{dims[0]}.onnx"
        path.write_bytes(
            model([helper.make_node("Relu", ["x"], ["y"])], {"x": dims}, {"y": dims}, {}).SerializeToString()
        )
        engine = str(path.with_suffix(".pelton"))
        assert main(["build", str(path), "-o", engine, "--level", "0", "-q", *cache]) == 0
        assert main(["bench", engine, "--shapes", f"x={shape}", *QUICK]) == 0
        out = capsys.readouterr().out
        assert re.search(
            r"throughput +[\d.]+ runs per second" + (", [\\d.]+ inputs in batches of 3" if batch > 1 else "") + "\n",
            out,
        ), out
        assert main(["bench", engine, "--shapes", f"x={shape}", *QUICK, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["batch"] == batch and found["throughput"] > 0


def test_what_was_too_noisy_says_so(capsys, engines, monkeypatch):
    steady, drift, hiccups = (
        np.full(100, 1000),
        np.repeat([1000, 1000, 1300, 1000, 1000], 20),
        np.array([1000] * 80 + [5000] * 20),
    )
    rng = np.random.default_rng(0)
    rng.shuffle(hiccups)
    assert timing.Times(steady + rng.integers(0, 50, 100)).spread < 1.05
    assert (
        timing.Times(drift).spread == 1.3
        and timing.Times(hiccups).spread == 1.8
        and timing.Times(np.array([7, 14])).spread == 2
    )
    for ns, noisy in ((steady, False), (drift, True)):
        monkeypatch.setattr(timing, "measure", lambda *_, ns=ns, **__: ns)
        assert main(["bench", engines["cnn"]]) == 0
        assert ("unreliable: the time of a run varied 1.30×" in capsys.readouterr().out) == noisy
        assert main(["bench", engines["cnn"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["noisy"] == noisy
    quick, slow = (timing.Times(np.array([ns])) for ns in (1000, 2000))
    found = [peers.Measured("pelton", rounds=[quick, quick]), peers.Measured("onnxruntime", rounds=[quick, slow])]
    assert "unreliable: the median of onnxruntime varied 2.00×" in peers.table(found)
    assert "noisy" not in peers.table(found[:1])


def test_the_peak_is_counted_by_cpu_time(monkeypatch):
    """Waiting for a core that others use does not count: the peak is the same on a busy machine."""

    class Waits:
        def time(self, repeats):
            start = time.process_time()
            while time.process_time() - start < repeats * 0.01:
                pass
            return [50_000_000] * repeats

    assert 9e6 < peak._round(Waits(), 1) < 2e7 and 4.5e6 < peak._round(Waits(), 2) < 1e7

    class Alone(Waits):
        def time(self, repeats):
            super().time(repeats)
            return [8_000_000] * repeats

    assert peak._round(Alone(), 1) == 8e6


def test_shapes_that_no_input_can_have(refused, engines, pair, cache, tmp_path, capsys):
    """Sizes that the engine does not take, and those for which there is no memory."""
    assert main(["build", pair, "-o", f"{tmp_path}/open.pelton", "--level", "0", "-q", *cache]) == 0
    capsys.readouterr()
    for engine, shapes, why in (
        ("cnn", "x=1x3x13x12", "--shapes sets input x to 1x3x13x12, expected 1x3x12x12 (f32[1, 3, 12, 12])"),
        ("pair", "a=3x4", "a to 3x4, expected 2x4"),
        ("open", "a=3x4,b=4x4", "b to 4x4, expected 3x4 (f32[N, 4])"),
        ("open", "a=3x5", "expected 3x4"),
        ("open", "a=0x4", "got 0"),
        ("open", "a=1000000000000x4", "GB to make up, this process may use"),
        ("open", f"a={'9' * 5000}x4", "sizes such as"),
    ):
        assert why in refused(
            "bench", str(tmp_path / "open.pelton") if engine == "open" else engines[engine], "--shapes", shapes
        )
    assert (
        main(["bench", f"{tmp_path}/open.pelton", "--shapes", "a=3x4", *QUICK]) == 0
        and "measured at a 3x4, b 3x4" in capsys.readouterr().out
    )


PEERS = {
    "onnxruntime.py": (
        """
import numpy, time
print("chatter")
__version__ = "0.0"
class SessionOptions: pass
class InferenceSession:
    def __init__(self, *args, **kw): pass
    def run(self, names, feeds):
        time.sleep(.002)
        return [numpy.zeros((1, 10), numpy.float32)]
"""
    ),
    "openvino.py": (
        """
class Core:
    def compile_model(self, *args): raise ValueError("out of wine")
"""
    ),
    "_tools.py": (
        """
def mnnconvert(args):
    assert open(args[args.index("--modelFile") + 1], "rb").read()
    open(args[args.index("--MNNModel") + 1], "w").write("converted")
"""
    ),
    "MNN.py": (
        """
import numpy
__version__ = "0.1"
Halide_Type_Int, Halide_Type_Float, Tensor_DimensionType_Caffe = 0, 1, 2
class Tensor:
    def __init__(self, shape, kind, array, order): self.array = array
    def getShape(self): return self.array.shape
    def getDataType(self): return Halide_Type_Float
    def getNumpyData(self): return self.array
    def copyFrom(self, other): assert other.array.shape == (1, 3, 12, 12)
    def copyToHostTensor(self, host): host.array[:] = self.array
class Interpreter:
    def __init__(self, path): assert open(path).read() == "converted"
    def createSession(self, config): assert config["numThread"] == 1
    def getSessionInputAll(self, session): return {"x": Tensor(None, None, None, None)}
    def getSessionOutputAll(self, session): return {"y": Tensor(None, None, numpy.load(%RIGHT%), None)}
    def runSession(self, session): pass
"""
    ),
    "pnnx.py": (
        """
import sys
def pnnx():
    assert sys.argv[1:] == ["model.onnx", "inputshape=[1,3,12,12]f32", "fp16=0"] and open("model.onnx", "rb").read()
    if %FAILS%: sys.exit("pnnx knows no such layer")
    open("model.ncnn.param", "w"), open("model.ncnn.bin", "w")
    reads = 'ex.input("in0", ncnn.Mat(in0.squeeze(0).numpy()).clone())'
    open("model_ncnn.py", "w").write(reads + '\\nout.append(torch.from_numpy(out0.numpy(batch_index=0)))')
"""
    ),
    "ncnn.py": (
        """
import numpy
__version__ = "0.2"
class Mat:
    def __init__(self, array): self.array = array
    def numpy(self, batch_index): return self.array[None]
class Options: pass
class Extractor:
    def input(self, name, mat): assert name == "in0" and mat.array.shape == (3, 12, 12)
    def extract(self, name): return 0, Mat(numpy.load(%RIGHT%)[0] * 1.02)
class Net:
    def __init__(self): self.opt = Options()
    def load_param(self, path): return 0
    load_model = load_param
    def create_extractor(self): return Extractor()
"""
    ),
}


@pytest.fixture
def runtimes(tmp_path, monkeypatch, engines):
    """Makes other runtimes importable in subprocesses: an `onnxruntime` that answers zeros, an `openvino` that fails,
    an `mnn` that knows what is right, an `ncnn` that comes near it. Gives a function that writes them, pnnx failing or
    not."""
    right = tmp_path / "right.npy"
    engine = pelton.load(engines["cnn"])
    np.save(right, engine.run(arrays.draw_inputs(engine))["y"])

    def write(pnnx_fails=False):
        for name, program in PEERS.items():
            (tmp_path / name).write_text(
                program.replace("%RIGHT%", repr(str(right))).replace("%FAILS%", str(pnnx_fails))
            )

    write()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return write


def test_bench_beside_others(capsys, runtimes, cnn, cache):
    around = sorted(os.listdir(os.path.dirname(cnn)))
    line = ["bench", cnn, "--level", "0", "--threads", "1", *QUICK, "--vs", "onnxruntime,openvino,mnn,ncnn", *cache]
    assert main([*line, "--json"]) == 1, "a runtime that was asked for could not be timed"
    ours, zeros, broken, same, near = json.loads(capsys.readouterr().out)["vs"]
    assert ours["runtime"] == "pelton" and ours["version"] == pelton.__version__ and ours["off"] == 0
    assert zeros["median_ms"] > 2 and zeros["off"] == 1 and zeros["spread"] >= 1 and not zeros["right"]
    assert broken == {"runtime": "openvino", "why_not": "failed: ValueError: out of wine"}
    assert same["version"] == "0.1" and same["off"] == 0 and same["right"]
    assert near["version"] == "0.2" and abs(near["off"] - 0.02) < 1e-4 and near["right"]
    runtimes(pnnx_fails=True)
    assert main(line) == 1
    out = capsys.readouterr().out
    assert re.search(r"onnxruntime +0\.0 +[\d.]+ +[\d.]+ +1\.0e\+00 +does not count", out) and "out of wine" in out
    assert re.search(r"mnn +0\.1 +[\d.]+ +[\d.]+ +0\.0e\+00 +[\d.]+× as fast", out)
    assert re.search(r"ncnn: failed: .*cannot be converted \(status 1\): pnnx knows no such layer", out)
    assert sorted(os.listdir(os.path.dirname(cnn))) == around, "conversions are put beside the user's model"


def test_a_runtime_that_is_not_there_says_how_to_install_it(tmp_path, engines, cnn, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('No module named onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    quick = {"threads": 1, "seconds": 0.02, "rounds": 2, "folder": str(tmp_path)}
    found = peers.compare(engines["cnn"], cnn, {"x": np.zeros((1, 3, 12, 12), np.float32)}, ["onnxruntime"], **quick)
    assert "pip install onnxruntime" in found[1].failure and len(found[0].rounds) == 2 and not found[1].right
    (tmp_path / "ncnn.py").write_text("")
    (without,) = peers.compare(engines["cnn"], cnn, {"x": np.zeros((1, 3, 12, 12), np.float32)}, ["ncnn"], **quick)[1:]
    assert "pnnx" in without.failure and without.failure.endswith("pip install ncnn pnnx")
    with pytest.raises(pelton.InputError, match="does not start"):
        peers.compare(engines["cnn"], cnn, {}, ["onnxruntime"], python=str(tmp_path / "python"), **quick)


def test_outputs_that_differ_are_seen(tmp_path):
    a, b = str(tmp_path / "a.npz"), str(tmp_path / "b.npz")

    def off(x, y):
        np.savez(a, **{str(i): v for i, v in enumerate(x)})
        np.savez(b, **{str(i): v for i, v in enumerate(y)})
        return peers.difference(a, b)

    one = np.array([1.0, -4.0])
    assert off([one], [one]) == 0 and off([one + [0, 1]], [one]) == 0.25
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
        with progress.show_progress() as tell:
            tell("import", 0, 1)
            for done in range(8):
                tell("tune", done, 7)
            tell("done", 1, 1)
        assert marks in stream.getvalue() and "timing kernels" in stream.getvalue()
    monkeypatch.setattr(sys, "stderr", silent := io.StringIO())
    with progress.show_progress(False) as tell:
        tell("tune", 0, 7)
    assert silent.getvalue() == ""


def test_numbers_as_people_read_them():
    assert [text.size(n) for n in (0, 999, 1500, 2_500_000, 3e9)] == ["0 B", "999 B", "1.5 kB", "2.5 MB", "3.00 GB"]
    assert [text.duration(n) for n in (7, 1500, 2_500_000, 3e9)] == ["7 ns", "1.5 µs", "2.500 ms", "3.00 s"]
    assert (
        text.count(1, "copy", "copies") == "1 copy"
        and text.count(2, "copy", "copies") == "2 copies"
        and text.count(0, "step") == "0 steps"
    )
    assert text.table([("a", "b"), ("long", "1")], "lr") == "a     b\nlong  1"
