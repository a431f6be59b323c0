"""The command line's words: names as users know them, options as they are typed, and suggestions for mistyped ones."""

import ast
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model
from onnx import TensorProto, helper

import pelton
from pelton.cli import GROUPS, flags, main

LIBRARY = Path(pelton.__file__).parent


@pytest.fixture(scope="module")
def open_sized(folder, cache):
    """An engine of a sum of two inputs whose first two sizes are open."""
    path = folder / "open_sized.onnx"
    sizes = ("batch", "seq", 8)
    path.write_bytes(
        model(
            [helper.make_node("Add", ["left", "right"], ["sum"])], {"left": sizes, "right": sizes}, {"sum": sizes}, {}
        ).SerializeToString()
    )
    assert main(["build", str(path), "-o", str(path.with_suffix(".pelton")), "--level", "0", "-q", *cache]) == 0
    return str(path.with_suffix(".pelton"))


# --- names


def test_run_shows_the_shape_that_an_output_has(capsys, tmp_path, open_sized):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 8), np.float32))
    assert main(["run", open_sized, "--input", f"left={tmp_path}/x.npy", "--input", f"right={tmp_path}/x.npy"]) == 0
    assert capsys.readouterr().out.startswith("sum f32[2, 3, 8]: min 2,")


def test_inspect_says_everything_once(capsys, engines):
    assert main(["inspect", engines["cnn"]]) == 0
    said = re.findall(r"^  ([a-z ]+): ", capsys.readouterr().out, re.M)
    assert len(said) == len(set(said)) and {"weights", "constants", "made for", "memory"} <= set(said)


def test_an_engine_without_kernels_was_made_for_no_number_of_threads(capsys, folder, cache):
    path = folder / "unique.onnx"
    nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Unique", ["u"], ["y"])]
    path.write_bytes(model(nodes, {"x": (3,)}, {"y": ("n",)}, {}).SerializeToString())
    assert main(["build", str(path), "-o", str(folder / "unique.pelton"), "--level", "0", *cache]) == 0
    assert main(["inspect", str(folder / "unique.pelton")]) == 0
    said = capsys.readouterr().out
    assert "None" not in said and said.count("made for:") == 2


def test_messages_call_an_engine_by_its_file(tmp_path, engines, caplog, monkeypatch):
    path = tmp_path / "mine.pelton"
    engine = pelton.load(engines["cnn"])
    engine.save(path)
    monkeypatch.setattr("pelton.system.share.memory", lambda: 1)
    for loaded, called in ((pelton.load(path), str(path)), (pelton.load(engine.tobytes()), "test")):
        assert loaded.name == "test" and loaded.tobytes() == engine.tobytes()
        with pytest.raises(pelton.EngineError, match=f"engine '{called}' needs .* GB for a context"):
            loaded.context(threads=1)


def test_errors_of_a_build_call_the_model_by_its_file(refused, folder, cnn, cache):
    from pelton.options import Options
    from pelton.builder.build import build

    with pytest.raises(pelton.BuildError, match="a run of 'cnn.onnx' needs"):
        build(cnn, options=Options(level=0, cache_dir=cache[1], memory=30_000))


def test_a_name_is_listed_once_and_suggested(refused, folder, cnn, cache, open_sized):
    said = refused("build", cnn, "--shapes", "xx=1x3x12x12", "-q", *cache)
    assert (
        said
        == "error: --shapes names 'xx', but the model has no such name among its inputs (did you mean 'x'?); it has"
        " 'x'\n"
    )
    assert "(did you mean 'stem'?)" in refused("build", cnn, "--outputs", "stam", "-q", *cache)
    assert "(did you mean 'left'?); it has left, right" in refused("run", open_sized, "--input", "lift=x.npy")
    assert "(did you mean 'right'?)" in refused("bench", open_sized, "--shapes", "rigth=2x3x8")
    x = np.ones((2, 3, 8), np.float32)
    np.save(folder / "x.npy", x)
    given = ("run", open_sized, "--input", f"left={folder}/x.npy", "--input", f"right={folder}/x.npy", "--output")
    assert "no output 'smu' (did you mean 'sum'?); it has sum" in refused(*given, "smu=y.npy")
    assert main([*given, f"{folder}/a=b.npy"]) == 0 and np.array_equal(np.load(folder / "a=b.npy"), 2 * x)
    assert "(did you mean 'openvino'?)" in refused("bench", cnn, "--vs", "openvno")
    with pytest.raises(pelton.InputError, match=r"no input 'lft' \(did you mean 'left'\?\)"):
        pelton.load(open_sized).run({"lft": x, "right": x})
    with pytest.raises(pelton.InputError, match=r"unknown option shpes \(did you mean 'shapes'\?\)"):
        pelton.build(cnn, shpes={"x": (1, 3, 12, 12)})


COMMANDS = {name for names in GROUPS.values() for name in names}


@pytest.mark.parametrize(
    "typed, meant",
    [
        (["buid", "m.onnx"], "'buid' .*did you mean 'build'"),
        (["build", "m.onnx", "--fp16"], "--fp16 .did you mean --precision fp16"),
        (["check", "m.onnx", "--bf16"], "--bf16 .did you mean --precision bf16"),
        (["build", "m.onnx", "--shape", "x=1"], "--shape .did you mean '--shapes'"),
        (["bench", "m.onnx", "--tread=2"], "--tread=2 .did you mean '--threads'"),
        (["bench", "m.onnx", "--percentile", "9"], "--percentile .did you mean '--percentiles'"),
        (["build", "m.onnx", "--calib", "d"], "--calib .did you mean '--calibration'"),
        (["build", "m.onnx", "--strip"], "--strip .did you mean '--strip-weights'"),
        (["build", "m.onnx", "--output-file", "e"], "--output-file .did you mean '--output'"),
        *(
            (["build", "m.onnx", word], f"{word}\n")
            for word in ("--device", "--verify", "--quantize", "--name", "--csv")
        ),
        (["build", "m.onnx", "--precision", "pf16"], "did you mean 'fp16'"),
        (
            ["-v", "inspect", "e.pelton"],
            "unrecognized arguments: -v .options come after the command: `pelton inspect -v",
        ),
        (["--quiet", "inspect", "e.pelton"], "`pelton inspect --quiet …`"),
        (["--verison"], "did you mean '--version'"),
        (["run", "e.pelton", "--qqqq"], "unrecognized arguments: --qqqq$"),
    ],
)
def test_what_is_mistyped_gets_a_suggestion(refused, typed, meant):
    said = refused(*typed)
    assert re.search(meant, said, re.M)
    command = next((word for word in typed if word in COMMANDS), None)
    assert f"see `pelton{f' {command}' if command else ''} --help`" in said


def test_an_unknown_operator_gets_advice_that_can_be_followed(refused, folder, cache):
    path = folder / "strange.onnx"
    found = helper.make_model(
        helper.make_graph(
            [helper.make_node("Strange", ["x"], ["y"], domain="nowhere")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)],
        ir_version=8,
    )
    path.write_bytes(found.SerializeToString())
    said = refused("build", str(path), "-q", *cache)
    assert "there is no operator" in said and "as a function" in said and "plugin" not in said


# --- options


@pytest.mark.parametrize(
    "said, spoken",
    [
        ("set it with shapes=", "set it with --shapes"),
        ("with shapes= (m.onnx)", "with --shapes (m.onnx)"),
        ("shapes names 'a', but", "--shapes names 'a', but"),
        ("shapes={'x': ...} (input 'x')", "--shapes x=SIZES (input 'x')"),
        ("values={'k': None} makes one", "--values k=none makes one"),
        ("with shapes={'x[0]': ..., 'x[1]': ...}, or", "with --shapes 'x[0]=SIZES' --shapes 'x[1]=SIZES', or"),
        ("values={'a b': ...}", "--values 'a b=NUMBERS'"),
        ("with a larger max_iterations= (it", "with a larger --max-iterations (it"),
        ("(Options.memory, else", "(--memory, else"),
        ("the outputs are y, the shapes (2, 3)", "the outputs are y, the shapes (2, 3)"),
        ("target is 'cpu'", "--target is 'cpu'"),
    ],
)
def test_the_command_line_speaks_of_options(said, spoken):
    assert flags.translate_options(said) == spoken


def test_warnings_and_problems_speak_of_options(capsys, refused, folder, cache, pair):
    for command in (
        ["build", pair, "-o", str(folder / "warned.pelton"), "--level", "0", *cache],
        ["check", pair],
        ["explain", pair],
    ):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert "with --shapes (pair.onnx)" in out + err and "shapes=" not in out + err
    assert "tuple" not in refused("build", pair, "--shapes", "a=1xtwo", "-q", *cache)


def messages(call: ast.Call) -> list[str]:
    """The strings among what a function is called with, x in place of what is filled in."""
    found = [a for arg in call.args for a in ast.walk(arg)]
    inner = {id(part) for text in found if isinstance(text, ast.JoinedStr) for part in text.values}

    def said(part: ast.AST) -> str:
        if isinstance(part, ast.FormattedValue):
            return "'x'" if part.conversion == ord("r") else "x"
        return str(part.value) if isinstance(part, ast.Constant) else "".join(map(said, part.values))

    return [said(text) for text in found if isinstance(text, (ast.JoinedStr, ast.Constant)) and id(text) not in inner]


def test_every_sentence_that_names_an_option_is_translated():
    """Whatever a message outside of the command line says of the options of a build."""
    names = "|".join(flags._flags())
    found = 0
    for path in LIBRARY.rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for said in messages(node) if isinstance(node, ast.Call) else ():
                if re.search(rf"\b({names})=($|[\s{{])|Options\.({names})", said):
                    found += 1
                    assert not re.search(
                        rf"(?<![-\w])({names})=(?!\{{'x': \(\)\}})|Options\.({names})",
                        flags.translate_options(said),
                    ), (path, said)
    assert found > 5


def test_explain_takes_no_tactics_without_a_build(refused, cnn):
    for option in ("--load-tactics", "--save-tactics"):
        said = refused("explain", str(cnn), option, "tactics.json")
        assert option in said and "add --error" in said


def test_check_asks_whether_inputs_fit_in_memory(capsys, tmp_path):
    value = helper.make_tensor_value_info("x", 1, [1 << 30]), helper.make_tensor_value_info("y", 1, [1 << 30])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", value[:1], value[1:])
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for memory in ("1", "1.5", "512MB", "0.5 GB"):
        assert main(["check", str(path), "--memory", memory]) == 1
        assert "input 'x'" in capsys.readouterr().out
    for memory in ("100", "100GB", "0.1TB"):
        assert main(["check", str(path), "--memory", memory]) == 0


@pytest.mark.parametrize("given", ["0", "0MB", "-1", "two", "", "0.0000000001"])
def test_memory_is_a_size(refused, cnn, given):
    assert re.search(f"expected a size .*such as .*MB or 4GB, got '{given}", refused("check", cnn, f"--memory={given}"))


def test_output_is_a_file(refused, cnn, engines):
    for args in (
        ("build", cnn),
        ("convert", cnn),
        ("view", engines["cnn"]),
        ("refit", engines["cnn"], "--weights", cnn),
    ):
        assert "written to files, not to stdout; for a file named -, write ./-" in refused(*args, "-o", "-")


def test_an_input_names_a_file(refused, engines):
    said = refused("run", engines["cnn"], "--input", "x=")
    assert said == "error: --input x= names no file; write NAME=FILE, such as x=x.npy\n"
