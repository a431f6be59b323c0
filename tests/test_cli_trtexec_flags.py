"""pelton trtexec: translation of each flag to a build option or an error."""

import argparse
import logging
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model
from quantized_models import qdq_cnn

import pelton
from pelton.cli import main
from pelton.cli.trtexec import flags, options
from pelton.cli.trtexec.reports import Log

QUICK = ("--duration=0", "--warmUp=0", "--iterations=1")


@pytest.fixture
def trtexec(capsys, tmp_path, monkeypatch):
    """Runs the command in an empty folder; gives its exit status and what it said."""
    monkeypatch.chdir(tmp_path)

    def go(*given: str) -> tuple[int, str, str]:
        try:
            status = main(["trtexec", *given])
        except SystemExit as e:
            status = e.code
        return status, *capsys.readouterr()

    return go


def parsed(*given: str) -> argparse.Namespace:
    command = argparse.ArgumentParser()
    flags.add(command)
    command.set_defaults(given=(), target=None, image=None)
    return command.parse_args(given)


def built_with(model: str, *given: str) -> dict:
    """The options of the build that flags stand for, without a target."""
    args, log = parsed(*given), Log(False, False)
    return options.build_options(args, log, model) | options.Sizes(args, log).options(model)


# --- all flags


def flag(f: flags.Flag) -> str:
    return f"{f.name}=1" if f.value else f.name


def test_what_means_nothing_is_said_once(trtexec, engines):
    ignored = [f for f in flags.FLAGS.values() if f.becomes == flags.IGNORED]
    status, out, err = trtexec(f"--loadEngine={engines['cnn']}", *QUICK, *map(flag, ignored))
    assert status == 0 and len(ignored) > 30
    assert [re.search(r"\[W\] (--\w+) is ignored: ", line)[1] for line in err.splitlines() if "ignored" in line] == [
        f.name for f in ignored
    ]


@pytest.mark.parametrize("f", [f for f in flags.FLAGS.values() if f.becomes == flags.REFUSED], ids=lambda f: f.name)
def test_what_would_change_results_is_refused(trtexec, f):
    status, out, err = trtexec("--onnx=none.onnx", flag(f))
    assert status == 1 and f"[E] {flag(f)} cannot be honoured: {f.here}" in err and "&&&& FAILED" in out
    for fine in f.fine:  # what is so anyhow
        assert "there is no file none.onnx" in trtexec("--onnx=none.onnx", f"{f.name}={fine}")[2]


@pytest.mark.parametrize(
    "given, why",
    [
        (["--fp61"], "Unknown option: --fp61 (did you mean '--fp16'?)"),
        (["--FP16"], "Unknown option: --FP16"),
        (["--onnx=a", "--onnx=a"], "--onnx is set twice"),
        (["--onnx="], "--onnx needs a value: --onnx=FILE"),
        (["--fp16"], "set a model to build, --onnx=FILE, or an engine"),
        (["--onnx=none.onnx"], "there is no file none.onnx"),
        (["--loadEngine=none.pelton"], "none.pelton cannot be read"),
        (["--loadEngine=x", "--saveEngine=y"], "exclude each other"),
        (["--onnx=x", "--saveEngine=/nowhere/y"], "there is no folder /nowhere"),
        (["--onnx=x", "--exportTimes=/nowhere/y"], "there is no folder /nowhere"),
        (["--onnx=x", "--iterations=-1"], "0 to"),
        (["--onnx=x", "--duration=soon"], "--duration=soon: expected S"),
        (["--onnx=x", "--warmUp=nan"], "--warmUp=nan: expected MS"),
        (["--onnx=x", "--percentile=90,101"], "0 to 100"),
        (["--onnx=x", "--infStreams=0"], "1 to 256"),
        (["--onnx=x", "--builderOptimizationLevel=6"], "to 5"),
        (["--onnx=x", "--shapes=1x3"], "--shapes is written x:1x3"),
        (["--onnx=x", "--shapes=x:1xa"], "needs sizes for each input"),
        (["--onnx=x", "--shapes=x:1,x:2"], "needs sizes for each input"),
        (["--onnx=x", "--minShapes=x:2", "--optShapes=x:1"], "ascending sizes"),
        (["--onnx=x", "--precisionConstraints=prefers"], "did you mean 'prefer'?"),
        (["--onnx=x", "--profilingVerbosity=all"], "layer_names_only, detailed or none"),
        (["--onnx=x", "--infStreams=0"], "--infStreams=0: expected an integer from 1 to 256, got"),
        (["--onnx=x", "--timingCacheFile=nowhere/y"], "nowhere/y cannot be written: there is no folder"),
        (["--onnx=x", "--trust=y.pub"], "--trust is for signed engines"),
    ],
)
def test_how_wrong_flags_end(trtexec, given, why):
    status, out, err = trtexec(*given)
    assert status == 1 and why in err and "&&&& FAILED TensorRT.trtexec" in out and "Traceback" not in err
    assert len(re.findall(r"^\[\S+\] \[E\] ", err, re.M)) == 1


@pytest.mark.parametrize("wrong", ["--loadEngine=none.pelton", "--iterations=x", "--what", "--image"])
def test_the_banner_is_the_command_as_typed(trtexec, wrong):
    status, out, err = trtexec("--target=cpu", "--verbose", "--avgRuns", "5", "--layerPrecisions=*:fp16", wrong)
    command = f"pelton trtexec --target=cpu --verbose --avgRuns 5 '--layerPrecisions=*:fp16' {wrong}"
    banners = [line.partition(" # ")[2] for line in out.splitlines() if line.startswith("&&&&")]
    assert status == 1 and banners == [command, command]


def test_help_teaches_with_examples(trtexec):
    status, out, _ = trtexec("--help")
    assert status == 0 and "examples:\n  pelton trtexec --onnx=" in out and "--fp8" not in out
    assert all(len(line) < 160 for line in out.splitlines())


def test_without_flags_it_explains_itself(trtexec):
    status, out, err = trtexec()
    assert status == 0 and "--onnx FILE" in out and "&&&& PASSED" in out


def test_the_librarys_log_is_trtexecs(trtexec, pair, kernel_cache, monkeypatch):
    """Warnings with their prefix and in flags of trtexec, each once; afterwards all is as it was."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    before = list(logging.getLogger("pelton").handlers)
    status, out, err = trtexec(f"--onnx={pair}", "--builderOptimizationLevel=0", "--skipInference", "--saveEngine=e")
    assert status == 0 and len(re.findall(r"\[W\] .* no fixed size: .* a range by --minShapes", err)) == 1
    assert "warning:" not in err and logging.getLogger("pelton").handlers == before
    assert "Skipped inference phase" in out and len(pelton.load("e").symbols) == 1


# --- sizes


@pytest.mark.parametrize(
    "given, shapes",
    [
        (["--shapes=a:2x4,'b':2x4"], {"a": "2x4", "b": "2x4"}),
        (["--optShapes=a:2x4"], {"a": "2x4"}),
        (["--minShapes=a:1x4", "--optShapes=a:2x4", "--maxShapes=a:7x4"], {"a": "1..2..7x4"}),
        (["--minShapes=a:1x4", "--maxShapes=a:7x4", "--shapes=b:3x4"], {"a": "1..7..7x4", "b": "3x4"}),
        (["--minShapes=*:1x4", "--maxShapes=*:7x4", "--optShapes=*:3x4,b:2x4"], {"a": "1..3..7x4", "b": "1..2..7x4"}),
        (["--optShapes=a:2x4", "--maxShapes=b:7x4"], {"a": "2x4", "b": "7x4"}),
        (["--shapes=a:scalar,b:"], {}),
    ],
)
def test_sizes_to_build_for(pair, given, shapes):
    assert built_with(pair, *given).get("shapes", {}) == shapes


def test_sizes_to_run_with(trtexec, pair, kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    ranges = ("--minShapes=a:1x4,b:1x4", "--optShapes=a:3x4,b:3x4", "--maxShapes=a:9x4,b:9x4")
    quick = (*QUICK, "--builderOptimizationLevel=0", "--dumpOptimizationProfile")
    status, out, err = trtexec(f"--onnx={pair}", *ranges, *quick, "--saveEngine=e", "--shapes=*:5x4")
    assert status == 0 and "Model input a (profile 0): min=1x4, opt=3x4, max=9x4" in out
    assert "Input binding for b with dimensions 5x4 is created." in out and "Dynamic" not in err
    assert "unspecified" not in err  # nothing is said of the model as it was read for the names of its inputs
    status, out, err = trtexec("--loadEngine=e", *QUICK)
    assert status == 0 and err.count("no shapes were provided. It is run with: 3x4") == 2
    status, out, err = trtexec("--loadEngine=e", *QUICK, "--shapes=a:11x4,b:11x4")
    assert status == 1 and "1 to 9, got 11; build the engine for another range by --minShapes, --optShapes and" in err


# --- precision


def test_precisions(cnn, tmp_path, capsys):
    for given, precision in (
        ([], "fp32"),
        (["--fp16"], "fp16"),
        (["--bf16"], "bf16"),
        (["--best"], "best"),
        (["--fp16", "--bf16"], "best"),
        (["--fp16", "--stronglyTyped"], "fp32"),
        (["--noTF32"], "fp32"),
    ):
        found = built_with(cnn, *given)
        assert found["precision"] == precision and "calibration" not in found
    assert "--fp16 is ignored: the network is strongly typed" in capsys.readouterr().err
    for given in (["--int8"], ["--best"], ["--int8", "--fp16"]):
        found = built_with(cnn, *given, "--calib=table")
        assert found["calibration"] == "table" and found["precision"] == ("int8" if given == ["--int8"] else "best")
    assert "--best is without int8" not in capsys.readouterr().err
    assert "calibration" not in built_with(cnn, "--calib=table")
    assert "--calib is ignored" in capsys.readouterr().err


def test_int8_needs_scales_unless_the_model_has_them(cnn, tmp_path):
    with pytest.raises(pelton.InputError, match="--int8 needs scales.*--calib=FILE"):
        built_with(cnn, "--int8")
    onnx.save(qdq_cnn(), tmp_path / "q.onnx")
    assert built_with(str(tmp_path / "q.onnx"), "--int8")["precision"] == "fp32"


def test_tf32_is_for_gpus_unless_it_is_off(cnn):
    for given, precision in (([], "tf32"), (["--noTF32"], "fp32"), (["--stronglyTyped"], "fp32"), (["--fp16"], "fp16")):
        args = parsed(*given)
        args.target = "cuda:sm_90"
        assert options.build_options(args, Log(False, True), cnn)["precision"] == precision


def test_pictures_to_calibrate_with(trtexec, cnn, kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    Path("pictures").mkdir()
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8)
        image.fromarray(pixels).save(f"pictures/{i}.png")
    given = (f"--onnx={cnn}", "--int8", "--calib=pictures", "--builderOptimizationLevel=0", "--skipInference")
    status, _, err = trtexec(*given)
    assert status == 1 and "needs their preprocessing, --image" in err
    status, _, err = trtexec(*given, "--image=12x12 rgb", "--saveEngine=e")
    assert status == 0 and pelton.load("e").meta["int8"] and pelton.load("e").meta["image"].startswith("12x12")


def test_times_are_not_kept_without_a_cache(trtexec, cnn, kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    given = (f"--onnx={cnn}", "--builderOptimizationLevel=0", "--skipInference", "--timingCacheFile=t.json")
    status, out, err = trtexec(*given, "--noBuilderCache")
    assert status == 0 and "--timingCacheFile is ignored" in err and "timingCacheFile: \n" in out


def test_precisions_of_layers_are_obeyed_or_an_error(trtexec, kernel_cache, monkeypatch):
    """No kernel reads the weights of 5 × 3 in halves."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="head")]
    weights = {"w": np.ones((5, 3), np.float32)}
    Path("m.onnx").write_bytes(model(nodes, {"x": (1, 5)}, {"y": (1, 3)}, weights).SerializeToString())
    given = ("--onnx=m.onnx", "--fp16", "--builderOptimizationLevel=0", "--skipInference", "--saveEngine=e")
    status, _, err = trtexec(*given, "--layerPrecisions=*:fp16", "--precisionConstraints=obey")
    assert status == 1 and "[E] --layerPrecisions is not possible for head, which remains in f32: no kernel" in err
    assert not Path("e").exists()
    status, _, err = trtexec(*given, "--layerPrecisions=*:fp16", "--precisionConstraints=prefer")
    assert status == 0 and "[W] --layerPrecisions is not possible for head" in err
    status, _, err = trtexec(*given, "--layerPrecisions=*:fp32", "--precisionConstraints=obey")
    assert status == 0 and "--layerPrecisions" not in err


def test_precisions_of_layers(cnn, capsys):
    given = ("--layerPrecisions=*conv:fp32,'head':fp16", "--fp16")
    assert built_with(cnn, *given, "--precisionConstraints=obey")["precision_of"] == {"*conv": "fp32", "head": "fp16"}
    assert "precision_of" not in built_with(cnn, *given)
    assert 'no effect when --precisionConstraints is "none"' in capsys.readouterr().err
    with pytest.raises(pelton.InputError, match="head:int8 is not possible: layers of this build are in fp32 or fp16"):
        built_with(cnn, "--fp16", "--layerPrecisions=head:int8", "--precisionConstraints=obey")
    with pytest.raises(pelton.InputError, match="layers of this build are in fp32$"):
        built_with(cnn, "--layerPrecisions=head:fp16", "--precisionConstraints=obey")
    prefer = built_with(cnn, "--fp16", "--layerPrecisions=a:int8,b:fp32", "--precisionConstraints=prefer")
    assert prefer["precision_of"] == {"b": "fp32"} and "a:int8 is not possible" in capsys.readouterr().err


# --- what is checked of an engine


def test_formats_are_those_of_the_model(trtexec, engines):
    given = (f"--loadEngine={engines['pair']}", "--skipInference")
    for fine in ("--inputIOFormats=fp32:chw", "--inputIOFormats=fp32:chw,fp32:chw+hwc", "--outputIOFormats=fp32,int64"):
        assert trtexec(*given, fine)[0] == 0
    for wrong, why in (
        ("--inputIOFormats=fp16:chw", "a is f32[2, 4]"),
        ("--inputIOFormats=fp32:hwc8", "a is f32[2, 4]"),
        ("--outputIOFormats=fp32:chw", "sizes is i64[2]"),
        ("--outputIOFormats=fp32,int64,int64", "expected 1 or 2"),
    ):
        status, _, err = trtexec(*given, wrong)
        assert status == 1 and why in err


def test_loading_is_timed(trtexec, engines):
    status, out, _ = trtexec(f"--loadEngine={engines['cnn']}", "--timeDeserialize", "--threads", "--device=1")
    total, average = re.search(
        r"deserialization time = (\S+) milliseconds in 20 .* average time = (\S+) ", out
    ).groups()
    assert status == 0 and float(total) == pytest.approx(20 * float(average), 1e-4)
    assert "Starting inference" not in out
