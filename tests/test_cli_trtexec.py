"""pelton trtexec: output and files as trtexec scripts parse them, and its exit."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from models import model
from onnx import helper
from script_models import MODELS

import pelton
from pelton.cli import main
from pelton.cli.trtexec import flags
from pelton.cli.trtexec.runs import TimedEngine

PAGE = Path(__file__).parents[1] / "docs" / "trtexec.md"
QUICK = ("--duration=0", "--warmUp=0", "--iterations=23")
# as parse_trtexec_log.py of TREX finds lines
LINE = re.compile(r"\[\d+/\d+/\d+-\d+:\d+:\d+\] \[I\] ")
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
# flags of sampleOptions.cpp, TensorRT 10.16, without those of the safety builder
TRTEXEC_10 = """
adjustForDLA allocationStrategy allowGPUFallback allowWeightStreaming asyncFileReader avgRuns avgTiming best bf16
buildDLAStandalone builderOptimizationLevel calib calibProfile consistency cpuOnly decomposableAttentions device
directIO distributiveIndependence dumpKernelText dumpLayerInfo dumpOptimizationProfile dumpOutput dumpProfile
dumpRawBindingsToFile dumpRefit duration dynamicPlugins enablePluginOverride errorOnTimingCacheMiss excludeLeanRuntime
exportLayerInfo exportOutput exportProfile exportTimes exposeDMA fp16 fp8 getPlanVersionOnly
hardwareCompatibilityLevel idleTime ignoreParsedPluginLibs infStreams inputIOFormats int4 int8 iterations
l2LimitForTiling layerDeviceTypes layerOutputTypes layerPrecisions leanDLLPath loadEngine loadInputs markDebug
markUnfusedTensorsAsDebugTensors maxAuxStreams maxShapes maxShapesCalib maxTactics memPoolSize minShapes
minShapesCalib monitorMemory noBuilderCache noCompilationCache noDataTransfers noTF32 onnx optShapes optShapesCalib
outputIOFormats percentile persistentCacheRatio pi pluginInstanceNorm plugins precisionConstraints preview profile
profilingVerbosity refit refitFromOnnx remoteAutoTuningConfig reportCapabilityDLA restricted runtimePlatform safe
safetyPlugins saveAllDebugTensors saveDebugTensors saveEngine separateProfileRun setPluginsToSerialize shapes
skipInference sleepTime sparsity staticPlugins streams stripAllWeights stripWeights stronglyTyped tacticSources
tempdir tempfileControls threads tilingOptimizationLevel timeDeserialize timeRefit timingCacheFile
uint8AsymmetricQuantizationDLA useCudaGraph useDLACore useManagedMemory useProfile useRuntime useSpinWait vc
versionCompatible warmUp weightStreamingBudget weightless
""".split()


@pytest.fixture
def trtexec(capsys, tmp_path, monkeypatch):
    """Runs the command in an empty folder, and gives what it printed: information, and warnings with errors."""
    monkeypatch.chdir(tmp_path)

    def go(*given: str, status: int = 0) -> tuple[str, str]:
        try:
            ended = main(["trtexec", *given])
        except SystemExit as e:
            ended = e.code
        out, err = capsys.readouterr()
        assert ended == status, (out, err)
        first, *lines, last = out.splitlines()
        assert first.startswith("&&&& RUNNING TensorRT.trtexec [")
        assert last.startswith(f"&&&& {'FAILED' if status else 'PASSED'} TensorRT.trtexec [")
        assert all(LINE.match(line) for line in lines) or not given
        return "".join(LINE.sub("", line) + "\n" for line in lines), err

    return go


def figures(said: str, name: str) -> list[float]:
    """The numbers of a line of the summary."""
    (line,) = re.findall(rf"^{name}: (.*)$", said, re.M)
    return [float(x) for x in re.findall(rf"= {NUMBER} ms|^{NUMBER} (?:qps|s)$", line) for x in x if x]


def loaded(path: str):
    return json.loads(Path(path).read_text())


# --- runs


@pytest.mark.parametrize("streams", [1, 2])
def test_the_summary_is_that_of_the_times(trtexec, engines, streams):
    said, _ = trtexec(
        f"--loadEngine={engines['cnn']}",
        *QUICK,
        f"--infStreams={streams}",
        "--avgRuns=5",
        "--percentile=50,90,99.5",
        "--exportTimes=t.json",
    )
    times = loaded("t.json")
    keys = [f"{edge}{what}Ms" for what in ("Enq", "H2d", "Compute", "D2h") for edge in ("start", "end")]
    assert len(times) == 23 and all(list(t) == [*keys, "h2dMs", "computeMs", "d2hMs", "latencyMs"] for t in times)
    for t in times:
        assert t["startEnqMs"] <= t["startComputeMs"] <= t["endComputeMs"] <= t["endD2hMs"]
        assert t["latencyMs"] == pytest.approx(t["h2dMs"] + t["computeMs"] + t["d2hMs"])
    compute = np.array([t["computeMs"] for t in times])
    ascending = sorted(compute)
    kept = [ascending[23 - 1 - int((1 - p / 100) * 23)] for p in (50, 90, 99.5)]
    expected = [compute.min(), compute.max(), compute.mean(), np.median(compute), *kept]
    assert figures(said, "GPU Compute Time") == pytest.approx(expected, 1e-4)
    assert figures(said, "Latency") == figures(said, "GPU Compute Time")
    assert figures(said, "H2D Latency") == figures(said, "D2H Latency") == [0] * 7
    walltime = max(t["endD2hMs"] for t in times) - times[0]["startH2dMs"]
    assert figures(said, "Total Host Walltime") == pytest.approx([walltime / 1e3], 1e-4)
    assert figures(said, "Throughput") == pytest.approx([23e3 / walltime], 1e-4)
    assert figures(said, "Total GPU Compute Time") == pytest.approx([compute.sum() / 1e3], 1e-4)
    averages = re.findall(rf"Average on 5 runs - GPU latency: {NUMBER} ms - Host latency: {NUMBER} ms \(enqueue ", said)
    assert [float(a) for a, _ in averages] == pytest.approx(list(compute[:20].reshape(4, 5).mean(1)), 1e-4)


def test_long_traces_are_cut_in_the_middle():
    from pelton.cli.trtexec.reports import Runs

    begin = np.arange(1003.0)
    spans = np.stack([begin, begin, begin, begin + begin], 1)
    lines = list(Runs(spans, 0, 0).averages(2))
    assert len(lines) == 401 and lines[200] == "... Omitting 101 lines"
    shown = [float(re.search(r"GPU latency: (\S+)", line)[1]) for line in lines if "latency" in line]
    assert shown == [2 * i + 0.5 for i in (*range(200), *range(301, 501))]


def test_percentiles_count_as_trtexec_does():
    """In float32, where 10 % of 20 are 2, and not 1.9999999999999996."""
    from pelton.cli.trtexec.reports import percentile

    ms = np.random.default_rng().permutation(20) + 1.0
    assert [percentile(ms, p) for p in (0, 50, 90, 100)] == [1, 10, 18, 20]


def test_warm_up_and_idle_time(trtexec, engines):
    said, _ = trtexec(f"--loadEngine={engines['cnn']}", "--duration=0", "--warmUp=30", "--idleTime=5", "--iterations=3")
    warmups = int(re.search(r"Warmup completed (\d+) queries over 30 ms", said)[1])
    assert 1 <= warmups <= 6 and "Timing trace has 3 queries over " in said


@pytest.mark.parametrize("streams", [1, 2])
def test_an_interrupt_ends_an_endless_duration(trtexec, engines, monkeypatch, streams):
    """With the summary. The profile then takes as many runs."""
    before, count = signal.getsignal(signal.SIGINT), 0

    class Interrupted(TimedEngine):
        def run_in(self, context, inputs):
            nonlocal count
            count += 1
            if count == 40:
                signal.raise_signal(signal.SIGINT) if streams == 1 else os.kill(os.getpid(), signal.SIGINT)
            return super().run_in(context, inputs)

    monkeypatch.setattr("pelton.cli.trtexec.runs.TimedEngine", Interrupted)
    given = (f"--loadEngine={engines['cnn']}", "--duration=-1", "--warmUp=0", f"--infStreams={streams}")
    said, _ = trtexec(*given, "--exportProfile=p.json")
    runs = int(re.search(r"Timing trace has (\d+) queries", said)[1])
    assert runs >= 39 and "=== Performance summary ===" in said and loaded("p.json")[0] == {"count": runs}
    assert signal.getsignal(signal.SIGINT) is before


def test_other_interrupts_end_it_as_failed(engines, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pelton.cli.trtexec.infer", interrupted)
    assert main(["trtexec", f"--loadEngine={engines['cnn']}", *QUICK]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("&&&& FAILED TensorRT.trtexec [") and err.endswith("interrupted\n")


# --- inputs and outputs


def test_outputs_are_those_of_the_inputs(trtexec, engines, tmp_path):
    rng = np.random.default_rng()
    feeds = {name: rng.standard_normal((2, 4), np.float32) for name in "ab"}
    feeds["a"].tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", feeds["b"])
    given = (f"--loadEngine={engines['pair']}", *QUICK)
    said, _ = trtexec(*given, "--loadInputs='a':a.bin,b:b.npy", "--exportOutput=o.json", "--dumpOutput")
    want = pelton.load(engines["pair"]).run(feeds)
    assert [(o["name"], o["dimensions"]) for o in loaded("o.json")] == [("sum", "2x4"), ("sizes", "2")]
    for found in loaded("o.json"):
        assert np.array_equal(np.array(found["values"], want[found["name"]].dtype), want[found["name"]].ravel())
    assert "Using values loaded from a.bin for input a" in said and "sizes: (2)\n2 4\n" in said
    trtexec(*given, "--loadInputs=a:a.bin,b:b.npy", "--dumpRawBindingsToFile")
    assert np.array_equal(np.fromfile("sum.output.2.4.float32.raw", np.float32), want["sum"].ravel())
    assert Path("a.input.2.4.float32.raw").read_bytes() == feeds["a"].tobytes()
    (tmp_path / "a.bin").write_bytes(bytes(31))
    assert "a.bin has 31 bytes, expected 32" in trtexec(*given, "--loadInputs=a:a.bin", status=1)[1]
    assert "no input is called 'c'" in trtexec(*given, "--loadInputs=c:a.bin", status=1)[1]
    assert "a.dat cannot be read: No such file" in trtexec(*given, "--loadInputs=a:a.dat", status=1)[1]


def test_files_of_arrays_say_sizes_unless_flags_do(trtexec, pair, kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    for name in "ab":
        np.save(f"{name}.npy", np.ones((5, 4), np.float32))
    np.save("wide.npy", np.ones((5, 9), np.float32))
    trtexec(f"--onnx={pair}", "--builderOptimizationLevel=0", "--skipInference", "--saveEngine=e")
    given = ("--loadEngine=e", *QUICK, "--loadInputs=a:a.npy,b:b.npy", "--dumpOutput")
    for more in ((), ("--optShapes=a:3x4,b:3x4",), ("--shapes=a:5x4",)):
        said, err = trtexec(*given, *more)
        assert "Input binding for b with dimensions 5x4 is created." in said and "sum: (5x4)" in said
        assert "input: b. It is run with those of its file: 5x4" in said and "Dynamic" not in err
        assert ("input: a. It is run with those" in said) == ("--shapes=a:5x4" not in more)
    why = "a.npy has float32 5x4, expected 2x4 for input a (f32[N, 4])"
    assert why in trtexec(*given, "--shapes=a:2x4,b:2x4", status=1)[1]
    assert "wide.npy has float32 5x9, expected 5x4" in trtexec(*given[:-2], "--loadInputs=a:wide.npy", status=1)[1]


def test_json_has_no_infinities():
    from pelton.cli.trtexec import reports

    found = reports.outputs_json({"y": np.array([1.5, np.inf, np.nan]), "n": np.array(True)})
    assert [(o["values"], o["dimensions"]) for o in found] == [([1.5, None, None], "3"), ([True], "")]


# --- steps


def test_profile(trtexec, engines):
    said, _ = trtexec(f"--loadEngine={engines['cnn']}", *QUICK, "--dumpProfile", "--exportProfile=p.json")
    count, *steps = loaded("p.json")
    assert count == {"count": 23} and [s["name"] for s in steps] == [s.name for s in pelton.load(engines["cnn"]).steps]
    total = sum(s["timeMs"] for s in steps)
    for s in steps:
        assert list(s) == ["name", "timeMs", "averageMs", "medianMs", "percentage"]
        assert s["averageMs"] == pytest.approx(s["timeMs"] / 23)
        assert s["percentage"] == pytest.approx(s["timeMs"] / total * 100)
    table = said[said.index("=== Profile (23 iterations ) ===") :].splitlines()
    assert table[1] == "   Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer"
    rows = [re.fullmatch(rf" +{NUMBER} +{NUMBER} +{NUMBER} +{NUMBER}   (.*)", row) for row in table[2 : 3 + len(steps)]]
    assert [row[5] for row in rows] == [*(s["name"] for s in steps), "Total"]
    assert [float(row[2]) for row in rows[:-1]] == pytest.approx([s["averageMs"] for s in steps], abs=1e-4)
    assert float(rows[-1][1]) == pytest.approx(total, abs=0.01) and rows[-1][4] == "100.0"
    assert "=== Performance summary ===" in said  # profiling is a run of its own


def test_names_of_steps_join_profiles_and_layers(trtexec, tmp_path, kernel_cache, monkeypatch):
    """Two nodes of one name, and one that is called as the second would be."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    nodes = [helper.make_node("Softmax", [a], [b], name=n) for a, b, n in (("x", "p", "s (2)"), ("p", "q", "s"))]
    nodes += [helper.make_node("Softmax", [a], [b], name="s") for a, b in (("q", "r"), ("r", "y"))]
    Path("m.onnx").write_bytes(model(nodes, {"x": (2, 9)}, {"y": (2, 9)}, {}).SerializeToString())
    given = (
        "--onnx=m.onnx",
        "--builderOptimizationLevel=0",
        *QUICK,
        "--exportProfile=p.json",
        "--exportLayerInfo=l.json",
    )
    for verbosity in ("detailed", "layer_names_only"):
        trtexec(*given, f"--profilingVerbosity={verbosity}")
        layers = [x["Name"] if verbosity == "detailed" else x for x in loaded("l.json")["Layers"]]
        assert layers == ["s (2)", "s", "s (3)", "s (4)"] == [s["name"] for s in loaded("p.json")[1:]]


@pytest.mark.parametrize("name", ["cnn", "pair"])
def test_layers(trtexec, engines, name):
    engine, given = pelton.load(engines[name]), (f"--loadEngine={engines[name]}", "--skipInference")
    said, _ = trtexec(*given, "--exportLayerInfo=l.json", "--dumpLayerInfo", "--profilingVerbosity=detailed")
    found = loaded("l.json")
    assert found["Bindings"] == [p.name for p in (*engine.inputs, *engine.outputs)]
    made = {p.name for p in engine.inputs}
    for layer, step in zip(found["Layers"], engine.steps, strict=True):
        assert layer["Name"] == step.name and layer["LayerType"] == step.info["op"] and layer["TacticName"]
        assert {t["Name"] for t in layer["Inputs"]} <= made and layer["Outputs"]
        made |= {t["Name"] for t in layer["Outputs"]}
        assert [t["Dimensions"] for t in layer["Outputs"]] == [list(t.shape) for t in step.outputs]
        assert {t["Format/Datatype"] for t in layer["Inputs"] + layer["Outputs"]} <= {"Float", "Int64"}
        assert f"Layer({layer['LayerType']}): {layer['Name']}, Tactic: {layer['TacticName']}, " in said
    outputs, read = {p.name for p in engine.outputs}, {t["Name"] for layer in found["Layers"] for t in layer["Inputs"]}
    assert outputs <= made and (read == made - outputs or name == "pair")  # whose sizes are a constant
    trtexec(*given, "--exportLayerInfo=l.json")
    assert loaded("l.json")["Layers"] == [s.name for s in engine.steps]
    trtexec(*given, "--exportLayerInfo=l.json", "--profilingVerbosity=none")
    assert loaded("l.json")["Layers"] == []


def test_a_script(trtexec, kernel_cache, monkeypatch):
    """Steps whose times include those of others are in no sum."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    decoder, every = MODELS["greedy_decoder"]()
    Path("m.onnx").write_bytes(decoder.SerializeToString())
    for name, array in every[0].items():
        array.tofile(f"{name}.bin")
    sizes = ",".join(f"{name}:{'x'.join(map(str, a.shape))}" for name, a in every[0].items())
    trtexec(
        *("--onnx=m.onnx", "--builderOptimizationLevel=0", "--saveEngine=m.pelton", "--infStreams=2", *QUICK),
        *("--exportProfile=p.json", "--exportLayerInfo=l.json", "--exportOutput=o.json", f"--shapes={sizes}"),
        "--loadInputs=" + ",".join(f"{name}:{name}.bin" for name in every[0]),
    )
    names = [s["name"] for s in loaded("p.json")[1:]]
    assert names == loaded("l.json")["Layers"] and not any("Loop" in name for name in names)
    assert sum(s["percentage"] for s in loaded("p.json")[1:]) == pytest.approx(100)
    want = pelton.load("m.pelton").run(every[0])
    assert {o["name"]: o["values"] for o in loaded("o.json")} == {n: a.ravel().tolist() for n, a in want.items()}


# --- the page


def test_the_page_has_the_table_of_the_code():
    assert flags.table() in PAGE.read_text(), "docs/trtexec.md: put what pelton.cli.trtexec.flags.table() gives there"
    assert set(TRTEXEC_10) <= flags.FLAGS.keys()
    assert {f.dest for f in flags.FLAGS.values() if not f.until} == set(TRTEXEC_10)


def test_the_output_on_the_page_is_what_is_printed(trtexec, cnn, cache, monkeypatch):
    """But for its numbers, of another network."""
    monkeypatch.setenv("PELTON_CACHE_DIR", cache[1])
    Path("model.onnx").write_bytes(Path(cnn).read_bytes())
    command, shown = re.search(r"```text\n\$ pelton trtexec (.*?)\n(?!  )(.*?)```", PAGE.read_text(), re.S).groups()
    said, _ = trtexec(*command.replace("\\\n", " ").replace("image:1x3x32x32", "x:1x3x12x12").split())

    def masked(text):
        lines = [LINE.sub("", line + " ").strip().replace("image", "x") for line in text.splitlines()]
        lines = [line for line in lines if not line.startswith(("&&&&", "Selected Device:"))]
        return [re.sub(r"(0x)*0", "0", re.sub(NUMBER, "0", line)) for line in lines]

    assert masked(shown) == masked(said)
