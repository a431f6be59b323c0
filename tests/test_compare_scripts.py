"""Scripts beside their models, compared by outputs only; and engines beside models of other files."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from script_harness import builder
from script_models import MODELS, N, floats, model

import pelton
from pelton.cli import main
from pelton.diagnose.compare import compare


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_of_scripts_are_compared(name, build):
    m, every = MODELS[name]()
    engine = build(m)
    assert engine.parts != (engine,)
    found = compare(m, engine, every[0])
    assert found.ok and found.steps == () and found.unknown == 0
    assert [o.name for o in found.outputs] == [p.name for p in engine.outputs]


def test_a_wrong_script_is_not_within_the_tolerance(build):
    m, every = MODELS["branches_of_two_shapes"]()
    engine = build(m)
    (w,) = (t for t in m.graph.initializer if t.name == "w")
    w.CopyFrom(onnx.numpy_helper.from_array(floats(3, 2) * np.float32(1.1), "w"))
    found = compare(m, engine, [every[0], every[0]])
    assert not found.ok and 0.05 < found.outputs[0].error < 0.2 and found.samples == 2


def test_a_script_of_another_model_is_refused(build):
    m, every = MODELS["branches_of_two_shapes"]()
    other, _ = MODELS["shapes_as_inputs"]()
    with pytest.raises(pelton.InputError, match="the engine's inputs are x: f32, the model's x: f32, shape: i64, "):
        compare(other, build(m), every[0])


def test_a_script_from_the_command_line(build, tmp_path, capsys):
    m, every = MODELS["greedy_decoder"]()
    onnx.save(m, tmp_path / "m.onnx")
    build(str(tmp_path / "m.onnx")).save(tmp_path / "m.pelton")
    np.savez(tmp_path / "in.npz", **every[0])
    command = ["compare", *(str(tmp_path / name) for name in ("m.onnx", "m.pelton"))]
    assert main([*command, "--input", str(tmp_path / "in.npz")]) == 0
    said, errors = capsys.readouterr()
    assert "within the tolerance" in said and "steps are not compared: the engine is a script over " in said
    assert "another file" not in errors
    assert main([*command, "--input", str(tmp_path / "in.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == [] and [o["name"] for o in found["outputs"]] == ["tokens", "all", "length"]


def test_values_that_the_engine_has_are_asked_for(build):
    m, every = MODELS["greedy_decoder"]()
    known = {"most": np.array(3)}
    engine = build(m, values=known, shapes={"start": (1, 2)})
    feeds = {"start": every[0]["start"]}
    with pytest.raises(pelton.InputError, match=r"the model's start: i64, most: i64; .*with values for inputs"):
        compare(m, engine, feeds)
    assert compare(m, engine, feeds, values=known).ok


@pytest.mark.parametrize("script", [False, True])
def test_a_model_of_another_file_is_compared_with_a_warning(script, build, tmp_path, capsys):
    m = MODELS["branches_of_two_shapes"]()[0] if script else _product("x")
    onnx.save(m, tmp_path / "m.onnx")
    build(str(tmp_path / "m.onnx")).save(tmp_path / "m.pelton")
    m.doc_string = "the same, in other bytes"
    onnx.save(m, tmp_path / "other.onnx")
    for name, warned in (("m.onnx", False), ("other.onnx", True)):
        assert main(["compare", str(tmp_path / name), str(tmp_path / "m.pelton"), "--seed", "1"]) == 0
        said = f"m.pelton' was built from another file than {name}: the SHA-256 differ"
        assert (said in capsys.readouterr().err) == warned


def _product(name: str) -> onnx.ModelProto:
    return model(
        [N("MatMul", [name, "w"], ["y"])], {name: (T.FLOAT, ["n", 3])}, {"y": (T.FLOAT, ["n", 2])}, {"w": floats(3, 2)}
    )


def test_other_inputs_are_named(build, tmp_path, capsys):
    onnx.save(_product("a"), tmp_path / "a.onnx")
    build(_product("x")).save(tmp_path / "x.pelton")
    assert main(["compare", str(tmp_path / "a.onnx"), str(tmp_path / "x.pelton")]) == 2
    said = capsys.readouterr().err
    assert "error: the engine's inputs are x: f32, the model's a: f32; the engine was built from another model" in said
    assert "--shapes" not in said
