"""Scripts: engines of models with data-dependent control flow or sizes, against the onnx package."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from script_harness import builder, by_name, same
from script_models import MODELS, N, floats, graph, model

from pelton.cli import main
from pelton.cli.arrays import write
from pelton.cli.build import described
from pelton.cli.run import describe_outputs
from pelton.engine.sizes import at, optimum_sizes
from pelton.engine.script import (
    HostAction,
    LoopAction,
    RunAction,
)
from pelton.errors import EngineError, InputError, ModelError
from pelton.runtime.script_engine import ScriptEngine
from pelton.runtime.script_steps import between, step_of


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("script"))


@pytest.fixture(scope="module")
def engines(build):
    return by_name(build)


@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_the_onnx_package_gives(name, engines):
    m, every = MODELS[name]()
    engine = engines(name)
    assert isinstance(engine, ScriptEngine)
    for feeds in (*every, every[0]):
        same(engine.run(feeds), m, feeds)


# --- how they are divided


def test_a_detector_is_two_engines_around_one_step(engines):
    """Everything before the suppression, and everything after it."""
    engine = engines("detector")
    (host,) = engine.meta["host_steps"]
    assert len(engine.script.engines) == 2 and "NonMaxSuppression" in host
    assert [type(a) for a in engine.script.main.steps] == [RunAction, HostAction, RunAction]


def test_a_second_name_of_a_value_is_no_engine(engines):
    """What Identity gives is the same array; results are copied where two of them would share memory."""
    engine = engines("two_names_of_one_value")
    kinds = [step.info["op"] for e in engine.engines for step in e.plain.steps]
    assert not any("copy" in kind or "identity" in kind for kind in kinds), kinds
    found = engine.run({"c": np.array(True), "always": np.array(True), "trips": np.array(0), "x": floats(4)})
    assert not any(np.shares_memory(found[a], found[b]) for a, b in itertools.combinations(found, 2))


def test_sizes_may_be_the_values_of_inputs(engines):
    """A shape that comes as an input needs no step of Python: the engine gets its numbers as sizes."""
    engine = engines("shapes_as_inputs")
    assert not engine.meta["host_steps"]
    assert {f.source for a in engine.script.main.steps for f in a.feeds} >= {"array", "value"}


def test_a_loop_body_is_compiled(engines):
    (loop,) = [a for a in engines("greedy_decoder").script.main.steps if isinstance(a, LoopAction)]
    assert any(isinstance(a, RunAction) for a in loop.body.steps) and not engines("greedy_decoder").meta["host_steps"]


def test_inputs_and_outputs_name_dynamic_dimensions(engines):
    engine = engines("nonzero_gather")
    assert engine.inputs[0].shape == ("n", 4) and isinstance(engine.outputs[0].shape[0], str)
    assert engine.shapes({"n": 5}) == {"x": (5, 4)}
    with pytest.raises(InputError, match="'x' needs"):
        engine.run({"x": floats(3, 5)})
    with pytest.raises(InputError, match="missing"):
        engine.run({})
    with pytest.raises(InputError, match="from the data"):
        engine.context().output_shapes({"x": (5, 4)})


def test_outputs_into_arrays_of_the_caller(engines):
    engine, x = engines("compressed"), floats(6, 4)
    score = np.arange(6, dtype=np.float32) - 2  # three are above nothing
    want, out = engine.run({"x": x, "score": score})["y"], np.empty((3, 2), np.float32)
    assert engine.run({"x": x, "score": score}, out={"y": out})["y"] is out and np.array_equal(out, want)
    with pytest.raises(InputError, match="out\\['y'\\]"):
        engine.run({"x": x, "score": score}, out={"y": np.empty((4, 2), np.float32)})


def test_outputs_share_no_memory_with_inputs(build):
    then, other = (
        graph([N("Identity", ["x"], ["a"])], {}, {"a": (T.FLOAT, ["n"])}),
        graph([N("Identity", ["k"], ["b"])], {}, {"b": (T.FLOAT, [3])}),
    )
    engine = build(
        model(
            [N("If", ["c"], ["y"], then_branch=then, else_branch=other)],
            {"c": (T.BOOL, []), "x": (T.FLOAT, ["n"])},
            {"y": (T.FLOAT, [None])},
            {"k": floats(3)},
        )
    )
    x = floats(5)
    for c in (True, False):
        y = engine.run({"c": np.array(c), "x": x})["y"]
        y[:] = 0
        assert x.all() and engine.run({"c": np.array(c), "x": x})["y"].all()


def test_profile_has_every_step(engines):
    m, every = MODELS["greedy_decoder"]()
    times = engines("greedy_decoder").context().profile(every[0])
    assert [s.name for s, _ in times] == [s.name for s in engines("greedy_decoder").steps]
    assert sum(t for _, t in times) > 0


def test_what_python_runs_around_engines_is_said(engines):
    assert "; Python runs 1 loop" in dict(described(engines("greedy_decoder")))["host steps"]
    assert "Python" not in dict(described(engines("shapes_as_inputs")))["host steps"]


def test_profile_counts_what_a_loop_runs_once(engines, monkeypatch):
    """Engines that the loop runs count for themselves, and the loop for the rest."""
    engine = engines("greedy_decoder")
    context = engine.context()
    loop = next(a for a in between(engine.script.main) if isinstance(a, LoopAction))
    inner = next(a for a in loop.body.steps if isinstance(a, RunAction))
    plain = engine.engines[inner.engine].plain
    steps = at(plain, optimum_sizes(plain)).steps
    before = [(inner, [(s, 0, 5) for s in steps])]
    turns = [(inner, [(s, 100 + 10 * n, 103 + 10 * n) for s in steps]) for n in range(4)]
    around = [(loop, [(step_of(loop), 100, 1100)])]
    monkeypatch.setattr(context, "_trace", lambda inputs, out: ({}, [*before, *turns, *around]))
    times = {id(s): ns for s, ns in context.profile({})}
    named = {s.name: ns for s, ns in context.profile({})}
    assert named[step_of(loop).name] == 1000 - 12 * len(steps)
    assert sum(times.values()) == 1000 + 5 * len(steps)


def test_profile_has_the_work_of_all_runs(engines):
    """Of a loop's steps as often as it iterated."""
    m, every = MODELS["greedy_decoder"]()
    engine = engines("greedy_decoder")
    turns = []
    for feeds in every:
        traced = [s for s, *_ in engine.trace(feeds)[1]]
        profiled = [s for s, _ in engine.context().profile(feeds)]
        turns.append(sum(s.info["op"] == "gather" for s in traced))
        for key in ("flops", "bytes"):
            totals = [sum(s.info.get(key, 0) for s in steps) for steps in (traced, profiled)]
            assert totals[0] == totals[1] > 0
    assert max(turns) > 1


def test_a_branch_that_was_not_taken_did_nothing(build):
    then = graph([N("Neg", ["x"], ["a"])], {}, {"a": (T.FLOAT, [4])})
    other = graph([N("Exp", ["x"], ["b"])], {}, {"b": (T.FLOAT, [4])})
    engine = build(
        model(
            [N("If", ["c"], ["y"], then_branch=then, else_branch=other)],
            {"c": (T.BOOL, []), "x": (T.FLOAT, [4])},
            {"y": (T.FLOAT, [4])},
        )
    )
    steps = engine.context().profile({"c": np.array(True), "x": floats(4)})
    done = {s.info["op"]: (s.info["bytes"], ns) for s, ns in steps if "bytes" in s.info}
    assert done["exp"] == (0, 0) and done["neg"][0] > 0


def test_profile_of_what_runs_in_one_another(engines, monkeypatch):
    """The branch has what the loop in it has not."""
    engine = engines("loop_in_a_branch")
    context = engine.context()
    first, second = between(engine.script.main)[:2]
    run = [(second, [(step_of(second), 200 + n, 210 + n)]) for n in (0, 50)]
    monkeypatch.setattr(context, "_trace", lambda inputs, out: ({}, [*run, (first, [(step_of(first), 100, 1100)])]))
    named = {s.name: ns for s, ns in context.profile({})}
    assert named[step_of(first).name] == 980 and named[step_of(second).name] == 20


def test_a_warm_up_ends_where_zeros_make_a_loop_without_an_end(build):
    engine = build(_until_large(), max_iterations=50)
    with pytest.raises(EngineError, match="exceeded"):
        engine.run({"x": np.zeros(2, np.float32)})
    engine.context().warmup()


def test_a_trace_has_all_that_ran(engines):
    """A loop's steps as often as it iterated, and the loop around them."""
    m, every = MODELS["greedy_decoder"]()
    engine = engines("greedy_decoder")
    results, steps = engine.trace(every[0])
    assert all(np.array_equal(a, b) for a, b in zip(results.values(), engine.run(every[0]).values(), strict=True))
    names = [s.name for s, *_ in steps]
    assert set(names) <= {s.name for s in engine.steps} and len(names) > len(set(names))
    (loop,) = [(begin, end) for s, begin, end in steps if s.host == "loop"]
    inside = {s.name for s, begin, end in steps if loop[0] <= begin <= end <= loop[1]}
    assert {name for name in names if names.count(name) > 1} <= inside


# --- what is refused


def _until_large() -> onnx.ModelProto:
    body = graph(
        [
            N("Add", ["v", "v"], ["w"]),
            N("ReduceMax", ["w"], ["largest"], keepdims=0),
            N("Less", ["largest", "limit"], ["on"]),
        ],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, [2])},
        {"on": (T.BOOL, []), "w": (T.FLOAT, [2])},
    )
    return model(
        [N("Loop", ["", "", "x"], ["y"], body=body)],
        {"x": (T.FLOAT, [2])},
        {"y": (T.FLOAT, [2])},
        {"limit": np.float32(9)},
    )


def _endless() -> onnx.ModelProto:
    body = graph(
        [N("Add", ["v", "v"], ["w"]), N("Identity", ["go"], ["on"]), N("Identity", ["v"], ["row"])],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, ["n"])},
        {"on": (T.BOOL, []), "w": (T.FLOAT, ["n"]), "row": (T.FLOAT, ["n"])},
    )
    return model(
        [N("Loop", ["", "c", "x"], ["y", "rows"], body=body)],
        {"x": (T.FLOAT, ["n"]), "c": (T.BOOL, [])},
        {"y": (T.FLOAT, ["n"]), "rows": (T.FLOAT, ["k", "n"])},
    )


def test_loops_without_an_end_are_bounded(build):
    engine = build(_endless(), max_iterations=50)
    assert engine.run({"x": floats(2), "c": np.array(False)})["rows"].shape == (0, 0)
    with pytest.raises(EngineError, match="exceeded 50 iterations.*max_iterations"):
        engine.run({"x": floats(2), "c": np.array(True)})


def test_what_a_loop_stacks_is_bounded(build, monkeypatch):
    engine = build(_endless())
    context = engine.context()
    monkeypatch.setattr(context, "_room", 1000)
    with pytest.raises(EngineError, match="the stacked values of a loop use more than half"):
        context.run({"x": floats(2), "c": np.array(True)})


def test_what_nothing_can_run_is_refused(build):
    m = model(
        [N("NonZero", ["x"], ["i"]), N("Relu", ["x"], ["y"])],
        {"x": (T.FLOAT, ["n"])},
        {"y": (T.FLOAT, ["n"]), "i": (T.INT64, [1, "k"])},
    )
    m.graph.node[1].op_type = "Relux"
    with pytest.raises(ModelError, match="no operator Relux"):
        build(m)


def test_a_script_is_explained(tmp_path, capsys):
    for name, shows in (
        ("detector", ["script over 2 engines", "engine 0: x →", "non_max_suppression", "engine 1: ", "convolution"]),
        ("greedy_decoder", ["loop most times and while =yes → tokens, all", "\n    engine "]),
        ("branches_of_two_shapes", ["if c → y", "\n  else\n"]),
        ("scanned_rnn", ["scan x → last, all"]),
    ):
        path = tmp_path / f"{name}.onnx"
        onnx.save(MODELS[name]()[0], path)
        main(["explain", str(path)])
        said = capsys.readouterr().out
        for line in shows:
            assert line in said, (name, line, said)
    main(["explain", str(path), "--why-not", "gemm"])
    assert "engine 0\ngemm" in capsys.readouterr().out
    assert main(["explain", str(path), "--error"]) == 2
    assert "cannot be checked step by step" in capsys.readouterr().err


def test_results_share_no_memory_with_inputs(build, tmp_path):
    m = model(
        [
            N("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
            N("SequenceInsert", ["parts", "x"], ["more"]),
            N("SequenceAt", ["more", "which"], ["one"]),
            N("Relu", ["x"], ["y"]),
        ],
        {"x": (T.FLOAT, ["n"]), "sizes": (T.INT64, ["k"]), "which": (T.INT64, [])},
        {"y": (T.FLOAT, ["n"]), "one": (T.FLOAT, ["m"])},
    )
    m.graph.output.append(helper.make_tensor_sequence_value_info("more", T.FLOAT, [None]))
    engine = build(m)
    x = floats(6)
    feeds = {"x": x, "sizes": np.array([2, 4]), "which": np.array(2)}
    found = engine.run(feeds)
    assert not any(np.shares_memory(a, x) for a in (*found["more"], found["one"], found["y"])) and np.array_equal(
        found["more"][2], x
    )
    with pytest.raises(InputError, match=r"out\['y'\] shares memory with input 'x'"):
        engine.run(feeds, {"y": x})
    lines = describe_outputs(engine, found)
    assert [line.split(":")[0] for line in lines if line.startswith("more")] == [
        "more[0] float32[2]",
        "more[1] float32[4]",
        "more[2] float32[6]",
    ]
    write(str(tmp_path / "found.npz"), found)
    assert sorted(np.load(tmp_path / "found.npz").files) == ["more[0]", "more[1]", "more[2]", "one", "y"]
    both = np.empty(6, np.float32)
    with pytest.raises(InputError, match=r"shares memory with out\['y'\]|out\['y'\] shares memory"):
        engine.run(feeds, {"y": both, "one": both})
    one = np.empty(6, np.float32)
    assert engine.run(feeds, {"one": one})["one"] is one and np.array_equal(one, x)
