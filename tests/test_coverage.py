"""`pelton check`: all problems at once, each with place, reason and remedy; and the outcome of every operator."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, one_node, value_info
from script_models import MODELS as SCRIPTS

from pelton.cli import main
from pelton.diagnose.support import diagnose
from pelton.diagnose.explain import explain
from pelton.plan.region import Region

W = np.ones((4, 3), np.float32)


@pytest.fixture
def broken() -> onnx.ModelProto:
    """Three things that cannot be, far apart, behind sizes that nobody gives."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Nonsense", ["a"], ["b"], "unheard"),
        helper.make_node("Relu", ["b"], ["c"], "after"),
        helper.make_node("MatMul", ["w", "w"], ["d"], "misfit"),
        helper.make_node("Thing", ["x"], ["e"], "foreigner", domain="some.where"),
        helper.make_node("Relu", ["a"], ["f"], "fine"),
    ]
    return model(nodes, {"x": "f32[n, 4]"}, ["c", "d", "e", "f"], {"w": W}, domains={"some.where": 3})


@pytest.fixture
def sound() -> onnx.ModelProto:
    """Each of the four things that can become of a node."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Gemm", ["a", "v", "v3"], ["g"], "several", transB=1),
        helper.make_node("Shape", ["w"], ["s"], "known"),
        helper.make_node("Relu", ["g"], ["y"], "last"),
    ]
    return model(nodes, {"x": "f32[n, 4]"}, ["y", "s"], {"w": W, "v": W[:3], "v3": W[0]})


def test_all_problems_at_once(broken):
    found = diagnose(broken)
    assert not found.ok and [p.node for p in found.problems] == ["unheard", "misfit", "foreigner"]
    unheard, misfit, foreigner = found.problems
    assert (unheard.operator, unheard.domain, unheard.opset, unheard.inputs) == (
        "Nonsense",
        "ai.onnx",
        17,
        ("f32[1, 3]",),
    )
    assert (
        "there is no operator Nonsense" in unheard.reason
        and "function" in unheard.advice
        and "node" not in unheard.reason
    )
    assert misfit.inputs == ("f32[4, 3]", "f32[4, 3]") and "equal inner dimensions" in misfit.reason
    assert (foreigner.domain, foreigner.opset) == ("some.where", 3)
    assert {(o.operator, o.nodes) for o in found.operators} == {
        ("MatMul", 2),
        ("Nonsense", 1),
        ("Relu", 2),
        ("Thing", 1),
    }


def test_what_becomes_of_operators(sound):
    found = diagnose(sound)
    kinds = {o.operator: (o.native, o.decomposed, o.host, o.constant) for o in found.operators}
    assert found.ok and kinds == {
        "MatMul": (1, 0, 0, 0),
        "Gemm": (0, 1, 0, 0),
        "Shape": (0, 0, 0, 1),
        "Relu": (1, 0, 0, 0),
    }
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"], "words")]
    (words,) = diagnose(model(nodes, {"x": "string[3]"}, ["y"], opset=20)).operators
    assert (words.host, words.on_host) == (1, ("words",))


def test_a_gpu_has_kernels_of_its_own(capsys, tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"], "product"),
        helper.make_node("Det", ["a"], ["d"], "volume"),
        helper.make_node("Neg", ["d"], ["y"]),
    ]
    made = model(nodes, {"x": "f32[2, 4, 4]"}, ["y"])
    hosted = {
        target: {o.operator: o.host for o in diagnose(made, target=target, precision=precision).operators}
        for target, precision in (("cpu", "fp32"), ("cuda:sm_90", "fp16"))
    }
    assert hosted == {"cpu": {"MatMul": 0, "Det": 0, "Neg": 0}, "cuda:sm_90": {"MatMul": 0, "Det": 1, "Neg": 0}}
    onnx.save(made, tmp_path / "m.onnx")
    assert (
        main(["check", str(tmp_path / "m.onnx"), "--target", "cuda:sm_90"]) == 0 and "volume" in capsys.readouterr().out
    )
    assert [t.node.name for t in explain(made, target="cuda:sm_90").placed.tasks if not isinstance(t.what, Region)] == [
        "volume"
    ]


def test_what_becomes_of_operators_in_a_script(sound):
    sound.graph.node.append(helper.make_node("StringNormalizer", ["words"], ["left"], stopwords=["the"]))
    sound.graph.input.append(helper.make_tensor_value_info("words", onnx.TensorProto.STRING, [5]))
    sound.graph.output.append(helper.make_tensor_value_info("left", onnx.TensorProto.STRING, None))
    found = diagnose(sound)
    kinds = {o.operator: (o.native, o.decomposed, o.host, o.constant) for o in found.operators}
    assert (
        found.ok
        and found.operators[-1].on_host == ("StringNormalizer → left",)
        and kinds
        == {
            "MatMul": (1, 0, 0, 0),
            "Gemm": (0, 1, 0, 0),
            "Shape": (0, 0, 0, 1),
            "Relu": (1, 0, 0, 0),
            "StringNormalizer": (0, 0, 1, 0),
        }
    )


def loop(count: str, body: list, carried: str = "f32[4, 4]", **given) -> onnx.ModelProto:
    """A loop whose body makes `after` of `before`; `count`: the input with the number of iterations, or a constant."""
    inner = helper.make_graph(
        [*body, helper.make_node("Identity", ["go"], ["on"], "on")],
        "body",
        [value_info("i", "i64[]"), value_info("go", "bool[]"), value_info("before", carried)],
        [value_info("on", "bool[]"), value_info("after", carried)],
    )
    inputs = {"x": carried, **({} if count in given else {count: "i64[]"})}
    return model([helper.make_node("Loop", [count, "", "x"], ["y"], "loop", body=inner)], inputs, ["y"], given)


@pytest.mark.parametrize("known", [True, False])
def test_what_becomes_of_nodes_in_a_loop(known):
    body = [helper.make_node("MatMul", ["before", "w"], ["a"]), helper.make_node("Relu", ["a"], ["after"])]
    given = {"w": np.ones((4, 4), np.float32), **({"n": np.array(3)} if known else {})}
    kinds = {
        o.operator: (o.native, o.decomposed, o.host, o.constant) for o in diagnose(loop("n", body, **given)).operators
    }
    unrolled = (0, 1, 0, 0)
    assert kinds == {
        "Loop": (0, 0, 0, 1) if known else (0, 1, 0, 0),
        "MatMul": unrolled if known else (1, 0, 0, 0),
        "Relu": unrolled if known else (1, 0, 0, 0),
        "Identity": (0, 0, 0, 1),
    }


def test_what_becomes_of_nodes_in_branches():
    """Nodes of both have the same name, and only one runs on the host."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], ["z"], "inner", **attrs)], op, [], [value_info("z", "f32[]")])
        for op, attrs in (("Det", {}), ("ReduceMax", {"keepdims": 0}))
    ]
    either = helper.make_node("If", ["c"], ["y"], "either", then_branch=branches[0], else_branch=branches[1])
    found = diagnose(model([either], {"c": "bool[]", "x": "f32[4, 4]"}, ["y"]), target="cuda:sm_90").operators
    kinds = [(o.operator, o.native, o.on_host) for o in found]
    assert kinds == [("Det", 0, ("inner",)), ("If", 0, ()), ("ReduceMax", 1, ())]


def test_a_problem_in_a_loop():
    body = [helper.make_node("Nonsense", ["before"], ["after"], "unheard")]
    (problem,) = diagnose(loop("n", body, n=np.array(3))).problems
    assert (problem.node, problem.operator) == ("unheard", "Nonsense")
    (problem,) = diagnose(loop("n", body)).problems
    assert "there is no operator Nonsense" in problem.reason and "unheard" in problem.advice


def test_the_command(broken, sound, tmp_path, capsys):
    for m, name in ((broken, "broken"), (sound, "sound")):
        onnx.save(m, tmp_path / f"{name}.onnx")
    assert main(["check", str(tmp_path / "broken.onnx")]) == 1
    out = capsys.readouterr().out
    assert all(
        text in out
        for text in (
            "cannot be built: 3 problems",
            "node 'misfit': MatMul (ai.onnx 17) of f32[4, 3], f32[4, 3]",
            "    → ",
        )
    )
    assert main(["check", str(tmp_path / "broken.onnx"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (
        not report["ok"]
        and [p["node"] for p in report["problems"]] == ["unheard", "misfit", "foreigner"]
        and report["opsets"] == {"ai.onnx": 17, "some.where": 3}
    )
    assert main(["check", str(tmp_path / "sound.onnx"), "--shapes", "x=2x4"]) == 0
    out = capsys.readouterr().out
    assert "sound.onnx can be built" in out and "Gemm" in out and "decomposed" in out
    assert main(["check", str(tmp_path / "broken.onnx"), "--outputs", "f"]) == 0
    assert main(["check", str(tmp_path / "none.onnx")]) == 2 and "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "model, parts",
    [
        (lambda: one_node("Relu", "f32[3]"), ()),
        (lambda: SCRIPTS["detector"]()[0], ()),  # engines and a suppression, which C runs
        (lambda: SCRIPTS["scanned_rnn"]()[0], ("a script, because of data-dependent control flow",)),
        (lambda: one_node("Equal", "string[3]", "string[3]", opset=19), ("step Equal", "has strings")),
    ],
    ids=["kernel", "detector", "scan", "strings"],
)
def test_what_needs_python_is_told_before_a_build(model, parts, tmp_path, capsys):
    onnx.save(model(), tmp_path / "m.onnx")
    assert main(["check", str(tmp_path / "m.onnx"), "--no-python"]) == bool(parts)
    said = capsys.readouterr().out
    assert all(part in said for part in parts or ["its engine runs without Python"])
    assert main(["check", str(tmp_path / "m.onnx")]) == 0 and "Python" not in capsys.readouterr().out
