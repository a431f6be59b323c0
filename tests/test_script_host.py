"""Reports on scripts: the steps that run on the host, their requirements, and ways to avoid a script."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from script_harness import builder
from script_models import MODELS, N, floats, graph, ints, model
from test_package import alone

import pelton
from pelton.cli import main
from pelton.diagnose.support import diagnose


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Gives the path of the engine of one of MODELS, by its name."""
    folder = tmp_path_factory.mktemp("script")

    def save(name: str) -> str:
        path = folder / f"{name}.pelton"
        builder(folder)(MODELS[name]()[0]).save(path)
        return str(path)

    return save


def test_loading_names_host_steps(saved, caplog):
    path = saved("parts_of_a_sequence")
    caplog.clear()
    pelton.load(path)
    assert f"engine '{path}' runs 4 of its 4 steps in numpy, without a kernel: SplitToSequence → parts, " in (
        caplog.text
    )


def test_loading_is_silent_without_host_steps(saved, caplog):
    path = saved("detector")  # its suppression is native
    caplog.clear()
    pelton.load(path)
    assert not caplog.text


def test_steps_that_need_the_onnx_package_are_refused_at_load(saved):
    said = alone(
        f"import pelton\nwhole = pelton.load({saved('parts_of_a_sequence')!r}, device=None)\n"
        "print(len(whole.steps))\n"
        f"try:\n    pelton.load({saved('parts_of_a_sequence')!r})\nexcept pelton.EngineError as e:\n    print(e)\n"
    )
    assert said == (
        "4\na step of this model needs the onnx package: pip install onnx, or build without that operator"
        " (step 'SplitToSequence → parts')\n"
    )


def test_steps_for_other_sizes_alone_do_not_keep_an_engine_from_loading(saved):
    path = saved("counted_best")
    spare = [a.otherwise for a in pelton.load(path).script.main.steps if getattr(a, "otherwise", None)]
    assert any(step.call == "onnx" for block in spare for step in block.steps)
    assert alone(f"import pelton\nprint(pelton.load({path!r}).name)\n") == "g\n"


def many_parts() -> onnx.ModelProto:
    """A sequence whose parts have sizes that the data gives, and nine steps on the host."""
    nodes = [N("SplitToSequence", ["x", "sizes"], ["parts"], axis=0)]
    for i in range(4):
        nodes += [N("SequenceAt", ["parts", f"at{i}"], [f"p{i}"]), N("Relu", [f"p{i}"], [f"y{i}"])]
    outputs = {f"y{i}": (T.FLOAT, [None, 3]) for i in range(4)}
    held = {f"at{i}": ints(i)[0] for i in range(4)}
    return model(nodes, {"x": (T.FLOAT, [8, 3]), "sizes": (T.INT64, [4])}, outputs, held)


def test_many_host_steps_are_counted_by_kind(tmp_path, capsys):
    onnx.save(many_parts(), tmp_path / "m.onnx")
    where = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.pelton"), "--level", "0"]
    counted = "9 without a kernel, in numpy: 4 onnx::SequenceAt, 4 onnx::Relu, 1 onnx::SplitToSequence;"
    for command in (["build", *where], ["inspect", where[2]]):
        assert main(command) == 0 and counted in capsys.readouterr().out
        assert main([*command, "-v"]) == 0 and "onnx::Relu (node 'y3')" in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len((found.get("meta") or found)["host_steps"]) == 9


def two_rates(sizes: list) -> onnx.ModelProto:
    """A model that a small input decides, in two ways; x has these sizes."""
    inner = {
        name: graph([N("MatMul", ["x", name], [f"{name}y"])], {}, {f"{name}y": (T.FLOAT, [None, None])})
        for name in "uv"
    }
    nodes = [N("Equal", ["rate", "fast"], ["c"]), N("If", ["c"], ["y"], then_branch=inner["u"], else_branch=inner["v"])]
    held = {"fast": ints(16000)[0], "u": floats(3, 4), "v": floats(3, 5)}
    return model(nodes, {"x": (T.FLOAT, sizes), "rate": (T.INT64, [])}, {"y": (T.FLOAT, [None, None])}, held)


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        ([2, 3], "values={'rate': ...}, one engine may replace"),
        (["n", 3], "values={'rate': ...} and numbers for all unspecified sizes with shapes=, one engine may replace"),
    ],
)
def test_an_input_that_decides_what_runs_is_named(sizes, advice, tmp_path, caplog):
    m = two_rates(sizes)
    script = builder(tmp_path)(m)
    assert len(script.parts) > 1 and f"the value of rate determines the program: with {advice}" in caplog.text
    assert any(advice in line for line in diagnose(m).warnings)
    caplog.clear()
    engine = builder(tmp_path)(m, values={"rate": ints(16000)[0]}, shapes={"x": (2, 3)})
    assert engine.parts == (engine,) and "determines the program" not in caplog.text


def test_no_input_is_named_where_data_decides(tmp_path, caplog):
    builder(tmp_path)(MODELS["branches_of_two_shapes"]()[0])
    assert "determines the program" not in caplog.text


def test_bench_says_on_what_sizes_it_ran(tmp_path, capsys):
    path = str(tmp_path / "e.pelton")
    builder(tmp_path)(two_rates(["n", 3])).save(path)
    assert main(["bench", path, "--seconds", "0.01", "--warmup", "0"]) == 0
    assert "measured at x 1x3, rate scalar (--shapes sets other sizes)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["bench", "trace"])
def test_errors_of_random_inputs_name_sizes_and_options(command, saved, tmp_path, capsys):
    path, (_, every) = saved("shapes_as_inputs"), MODELS["shapes_as_inputs"]()
    short = ["-o", str(tmp_path / "t.json")] if command == "trace" else ["--seconds=0.01"]
    assert main([command, path, *short]) == 2
    assert capsys.readouterr().err.endswith(
        "; this was a run on random inputs (whole numbers are 0 or 1) x 1, shape 2, end 1, wide 3: --shapes sets other"
        " sizes, --input sets arrays\n"
    )
    np.savez(tmp_path / "good.npz", **every[0])
    assert main([command, path, *short, "--input", str(tmp_path / "good.npz")]) == 0
    np.savez(tmp_path / "bad.npz", **{**every[0], "shape": every[0]["shape"] * 0 + 1})
    assert main([command, path, *short, "--input", str(tmp_path / "bad.npz")]) == 2
    assert "random" not in capsys.readouterr().err
