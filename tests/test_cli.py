"""The command line: output and files of each command, and its errors: one sentence, status 2, nothing left behind."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import pelton
from pelton.cli import main, run

COMMANDS = "build run bench check inspect view explain convert compress formats import-env cache doctor demo".split()
# for subprocesses in other folders
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


# --- what is said without doing anything


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pelton {pelton.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert f"  pelton {command}" in said and "examples:" in said and all(len(line) < 160 for line in said.splitlines())


@pytest.mark.parametrize(
    "args, why",
    [
        (["fly"], "fly"),
        (["build"], "model"),
        (["build", "m.onnx", "--colour", "red"], "--colour"),
        (["build", "m.onnx", "--level", "7"], "0 to 5"),
        (["build", "m.onnx", "--threads", "0"], "1 to 256"),
        (["build", "m.onnx", "--budget", "soon"], "number of seconds"),
        (["run"], "engine"),
        (["run", "e.pelton", "--top", "0"], "an integer from 1"),
        (["build", "m.onnx", "--lev", "3"], "--lev"),
    ],
)
def test_wrong_usage(refused, args, why):
    assert why in refused(*args)


# --- build


def test_build_says_what_became_of_the_model(capsys, tmp_path, monkeypatch, cnn, cache):
    monkeypatch.chdir(tmp_path)
    assert main(["build", cnn, "--level", "0", *cache]) == 0
    out, err = capsys.readouterr()
    assert os.listdir() == ["cnn.pelton"]
    for words in (
        "cnn.pelton: ",
        "built in",
        "x f32[1, 3, 12, 12]",
        "y f32[1, 10]",
        "steps:",
        "tactics:",
        "host steps:",
        "copies:",
        "level 0",
    ):
        assert words in out
    assert [line for line in err.splitlines() if "kernels" not in line] == [
        "reading the model …",
        "optimizing …",
        "linking …",
    ]
    assert main(["build", cnn, "--level", "0", "-q", "-o", "other.pelton", *cache]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "other.pelton").read_bytes() == (tmp_path / "cnn.pelton").read_bytes()


def test_tuning_is_counted(capsys, tmp_path, cnn, cache):
    times = tmp_path / "times.json"
    assert (
        main(
            [
                "build",
                cnn,
                "--level",
                "1",
                "--threads",
                "1",
                "--timing-cache",
                str(times),
                "-o",
                str(tmp_path / "e.pelton"),
                *cache,
            ]
        )
        == 0
    )
    assert re.search(r"from \d+ timed", capsys.readouterr().out) and json.loads(times.read_text())["times"]


@pytest.mark.parametrize(
    "args, why",
    [
        (["missing.onnx"], "there is no file missing.onnx"),
        (["{text}"], "ONNX"),
        (["{cnn}", "--shapes", "x"], "NAME=VALUE"),
        (["{cnn}", "--shapes", "x=1xtwo"], "1xtwo"),
        (["{cnn}", "--shapes", "x=1x3"], "axes"),
        (["{cnn}", "--shapes", "z=1x3x12x12"], "'z'"),
        (["{cnn}", "--shapes", "x=1x3x12x12,x=1x3x12x12"], "twice"),
        (["{cnn}", "--outputs", "nothing"], "'nothing'"),
        (["{cnn}", "-o", "no/such/e.pelton"], "no folder"),
        (["{cnn}", "-o", "/"], "not a file"),
        (["{cnn}", "-o", "/dev/null"], "device"),
        (["{cnn}", "--image", "big"], "224x224"),
        (["{cnn}", "--labels", "missing.txt"], "missing.txt"),
        (["{cnn}", "--timing-cache", "{text}"], "timing cache"),
    ],
)
def test_builds_that_are_refused(refused, folder, cnn, cache, args, why):
    (folder / "text.onnx").write_text("this is no model")
    said = refused("build", *[a.format(cnn=cnn, text=folder / "text.onnx") for a in args], "--level", "0", *cache)
    assert why in said


def test_without_the_compiler_build_says_what_to_install(refused, monkeypatch, cnn):
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in [m for m in sys.modules if m.startswith(("pelton.importers", "pelton.compiler."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(pelton, "importers", raising=False)
    assert 'pip install "pelton[build]"' in refused("build", cnn, "-q")


# --- run


def test_run_on_arrays(capsys, tmp_path, engines):
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    want = pelton.load(engines["cnn"]).run({"x": x})["y"]
    for given in ("x.npy", "x=x.npy"):
        given = given.replace("x.npy", str(tmp_path / "x.npy"))
        assert (
            main(["run", engines["cnn"], "--input", given, "--output", str(tmp_path / "y.npy"), "--threads", "1"]) == 0
        )
        assert (np.load(tmp_path / "y.npy") == want).all()
    assert capsys.readouterr().out == ""
    assert main(["run", engines["cnn"], "--input", str(tmp_path / "x.npy")]) == 0
    assert re.match(r"y f32\[1, 10\]: min -?[\d.]+, mean", capsys.readouterr().out)


def test_run_on_several(tmp_path, engines):
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    np.savez(tmp_path / "in.npz", a=a, b=b)
    np.save(tmp_path / "b.npy", b)
    np.savez(tmp_path / "a.npz", whatever=a)
    for inputs in ([f"{tmp_path}/in.npz"], [f"a={tmp_path}/a.npz", f"b={tmp_path}/b.npy"]):
        args = [w for i in inputs for w in ("--input", i)]
        assert (
            main(
                ["run", engines["pair"], *args, "--output", f"{tmp_path}/out.npz", "--output", f"sum={tmp_path}/s.npy"]
            )
            == 0
        )
        with np.load(tmp_path / "out.npz") as out:
            assert (out["sum"] == a + b).all() and out["sizes"].tolist() == [2, 4]
        assert (np.load(tmp_path / "s.npy") == a + b).all()


@pytest.mark.parametrize(
    "inputs, more, why",
    [
        ([], [], "the engine needs a f32[2, 4], b f32[2, 4]"),
        (["a=good.npy"], [], "the engine needs b f32[2, 4]"),
        (["c=good.npy"], [], "no input 'c'"),
        (["good.npy"], [], "may be any of the inputs"),
        (["a=good.npy", "a=good.npy"], [], "twice"),
        (["a=missing.npy"], [], "cannot be read"),
        (["a=text.npy"], [], "cannot be read"),
        (["a=objects.npy"], [], "cannot be read"),
        (["a=two.npz"], [], "2 arrays"),
        (["two.npz"], [], "the inputs are a, b"),
        (["a=double.npy", "b=good.npy"], [], "float64"),
        (["a=flat.npy", "b=good.npy"], [], "instead of 2"),
        (["a=cat.png", "b=good.npy"], [], "224x224"),
        (["a=empty.npz", "b=good.npy"], [], "0 arrays"),
        (["a=good.npy", "b=good.npy"], ["--output", "y.txt"], ".npy or .npz"),
        (["a=good.npy", "b=good.npy"], ["--output", "y.npy"], "2 outputs"),
        (["a=good.npy", "b=good.npy"], ["--output", "no/y.npz"], "no folder"),
        (["a=good.npy", "b=good.npy"], ["--threads", "999"], "1 to 256"),
    ],
)
def test_runs_that_are_refused(refused, tmp_path, engines, inputs, more, why):
    good = np.ones((2, 4), np.float32)
    for name, array in (
        ("good", good),
        ("double", good.astype(float)),
        ("flat", good.ravel()),
        ("objects", np.array([None, {}])),
    ):
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    np.savez(tmp_path / "two.npz", x=good, y=good)
    np.savez(tmp_path / "empty.npz")
    (tmp_path / "text.npy").write_text("numbers")
    args = [w for i in inputs for w in ("--input", re.sub(r"(^|=)(?=[^=]*$)", rf"\1{tmp_path}/", i, count=1))]
    assert why in refused("run", engines["pair"], *args, *more)


def test_engines_that_are_refused(refused, tmp_path, engines, cnn):
    whole = open(engines["cnn"], "rb").read()
    flipped = bytearray(whole)
    flipped[40] ^= 4
    for content, why in (
        (whole[:-100], "truncated"),
        (bytes(flipped), "altered"),
        (b"", "not a Pelton engine"),
        (whole[:8] + b"\x63" + whole[9:], "version 99"),
    ):
        (tmp_path / "bad.pelton").write_bytes(content)
        for command in (["run"], ["bench"], ["inspect"]):
            assert why in refused(*command, str(tmp_path / "bad.pelton"))
    assert "pelton build" in refused("run", cnn)
    assert "No such file" in refused("inspect", "missing.pelton") and "No such file" in refused(
        "bench", "missing.pelton"
    )


def test_a_full_disk_leaves_nothing_of_an_output(tmp_path):
    program = (
        "import resource, numpy\nfrom pelton.cli import arrays\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "try:\n    arrays.write('y.npy', {'y': numpy.zeros(1000)})\nexcept arrays.InputError as e:\n    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=HERE)
    assert done.stdout == "y.npy cannot be written: File too large\n" and os.listdir(tmp_path) == []


def test_top_says_how_numbers_became_probabilities(capsys, tmp_path, engines):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    assert main(["run", engines["seeing"], "--input", str(tmp_path / "x.npy"), "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "softmax" in lines[0]
        and len(lines) == 4
        and all(re.match(r" +[01]\.\d{4}  thing \d$", line) for line in lines[1:])
    )
    given = run.top_classes(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]]), 1, ["a", "b"])
    assert given == [
        "probabilities (the output):",
        "(the engine has 2 labels for 3 classes)",
        "row 0:",
        "   0.5000  b",
        "row 1:",
        "   0.8000  class 2",
    ]
    logits = run.top_classes(np.array([0.0, 1.0, 2.0]).reshape(1, 3, 1, 1), 3, None)
    assert "softmax" in logits[0] and logits[1] == "   0.6652  class 2"
    for odd in (np.array("x"), np.zeros((0, 3)), np.array(True), np.float32(1)):
        with pytest.raises(pelton.InputError, match="--top needs"):
            run.top_classes(np.asarray(odd), 1, None)


def test_pictures_go_in_as_the_engine_says(capsys, tmp_path, engines, refused):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "p.png")
    np.save(tmp_path / "p.npy", (pixels.transpose(2, 0, 1)[None] / 255).astype(np.float32))
    said = []
    for name, given, more in (
        ("seeing", "p.png", []),
        ("seeing", "x=p.png", []),
        ("cnn", "p.png", ["--image", "12x12 rgb"]),
        ("cnn", "p.npy", []),
    ):
        assert main(["run", engines[name], "--input", given.replace("p.", f"{tmp_path}/p."), *more]) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1
    assert "has no preprocessing for pictures" in refused("run", engines["cnn"], "--input", f"{tmp_path}/p.png")
    assert "need an input of shape" in refused(
        "run", engines["cnn"], "--input", f"{tmp_path}/p.png", "--image", "24x24"
    )
    assert "needs 1 pictures per run" in refused(
        "run", engines["seeing"], "--input", f"{tmp_path}/p.png", "--input", f"{tmp_path}/p.png"
    )


# --- inspect, explain


def test_inspect(capsys, engines, tmp_path, refused):
    assert main(["inspect", engines["seeing"], "--verify"]) == 0
    out = capsys.readouterr().out
    for words in ("verified", "weights:", "memory:", "12x12 rgb", "thing 0, thing 1", "convolution", "stem", "tactic"):
        assert words in out
    assert main(["inspect", engines["cnn"], "--json"]) == 0
    facts, engine = json.loads(capsys.readouterr().out), pelton.load(engines["cnn"])
    assert [s["info"]["tactic"] for s in facts["steps"]] == [s.info["tactic"] for s in engine.steps] and facts[
        "inputs"
    ][0]["name"] == "x"
    altered = bytearray(open(engines["cnn"], "rb").read())
    altered[-10] ^= 1
    (tmp_path / "altered.pelton").write_bytes(altered)
    assert "altered in its constants" in refused("inspect", str(tmp_path / "altered.pelton"), "--verify")


def test_explain_shows_every_stage(capsys, cnn):
    assert main(["explain", cnn]) == 0
    out = capsys.readouterr().out
    for words in (
        "import: ",
        "passes:",
        "decompose",
        "[stem+stem.relu]",
        "conv (",
        "fusions rejected",
        "copies because of layouts: none",
        "input  x: f32[1, 3, 12, 12]",
        "[stem+stem.relu] has the layout of conv_planar; 1.7 kB more to copy in that of conv",
    ):
        assert words in out
    assert main(["explain", cnn, "--tactics"]) == 0
    assert re.search(r"conv:[A-Z]+=\d", capsys.readouterr().out)


def test_explain_prints_programs_that_parse(capsys, cnn):
    from pelton.diagnose.explain import explain
    from pelton.ir.text import parse

    found = explain(cnn)
    for stage, graph in found.stages.items():
        assert main(["explain", cnn, "--graph", stage]) == 0
        assert [n.op.name for n in parse(capsys.readouterr().out).nodes] == [n.op.name for n in graph.nodes]


def test_explain_why_not(capsys, cnn, refused):
    assert main(["explain", cnn, "--why-not", "depthwise"]) == 0
    out = capsys.readouterr().out
    assert "applied 1×: dw" in out and "not at stem+stem.relu: " in out
    assert main(["explain", cnn, "--why-not", "gelu_erf" if "gelu_erf" in _rules() else sorted(_rules())[0]]) == 0
    assert "applied 0×" in capsys.readouterr().out
    assert "did you mean" in refused("explain", cnn, "--why-not", "depthwize")
    assert "no stage 'no where'; the stages are import" in refused("explain", cnn, "--graph", "no where")
    shown = []
    for name in ("sibling convolutions", "sibling-convolutions"):  # as `explain` lists passes, and as one word
        assert main(["explain", cnn, "--graph", name]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "there is no file" in refused("explain", "missing.onnx")


def test_explain_error(capsys, cnn, cache, tmp_path, refused):
    assert main(["explain", cnn, "--error", "--level", "0", *cache]) == 0
    out, err = capsys.readouterr()
    steps = re.findall(r"^ *(\d+)  +(\S+)  +(\S+)  +(inexact)? +(\w+):", out, re.M)
    assert (
        [int(s[0]) for s in steps] == [*range(len(steps))] and "run on x 1x3x12x12" in out and "checking kernels" in err
    )
    assert {tactic for *_, inexact, tactic in steps if inexact} == {"winograd"} and re.search(
        r"^output y: \d\.\de-\d\d from the model in float64", out, re.M
    )
    np.save(tmp_path / "x.npy", np.ones((1, 3, 12, 12), np.float32))
    assert (
        main(
            [
                "explain",
                cnn,
                "--error",
                "--level",
                "0",
                "-q",
                "--strict",
                "--top",
                "2",
                "--input",
                f"x={tmp_path / 'x.npy'}",
                *cache,
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    own = [float(e) for e in re.findall(r"^ *\d+  +(\S+)", out, re.M)]
    assert len(own) == 2 and own == sorted(own, reverse=True) and "inexact" not in out and err == ""
    for option in (("--top", "3"), ("--input", "x=x.npy")):
        assert "add --error" in refused("explain", cnn, *option)


def _rules():
    from pelton.passes.rewriting.rule import RULES

    return RULES
