"""Inputs whose values decide the program: constants of the engine, named in errors, and met one by one when a model is
fitted to its runs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import model, one_node, value_info

import pelton
from pelton.cli import main
from pelton.errors import InputError, ModelError
from pelton.builder.specialize import MAX_SPECIALIZED, Fitted
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.types import TensorType
from pelton.options import Options

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def summing(**changes):
    return one_node("ReduceSum", "f32[2, 3, 4]", "i64[n]", keepdims=0, **changes)


@pytest.fixture
def options(tmp_path):
    return Options(level=0, cache_dir=tmp_path / "cache")


# --- what the importer makes of values


@pytest.mark.parametrize(
    "given, want",
    [
        (np.array([1]), "i64[1] = [1]"),
        ([0, 2], "i64[2] = [0, 2]"),
        ("0,2", "i64[2] = [0, 2]"),
        ("[1]", "i64[1] = [1]"),
        ((), "i64[0] = []"),
    ],
    ids=str,
)
def test_values_become_constants(given, want):
    found = load(summing(noop_with_empty_axes=1), values={"x1": given})
    assert [v.name for v in found.graph.inputs] == ["x0"] and found.info.values == {"x1": want}
    assert not found.info.foreign and not found.info.wanted


@pytest.mark.parametrize(
    "given, says",
    [
        (np.array([1], np.int32), "must be i64, got int32"),
        ([1.5], "or numbers that make one, got [1.5]"),
        ([[1], [2, 3]], "numbers that make one"),
        ("one", "numbers that make one, got 'one'"),
        ([2**70], "numbers that make one"),
        ([[1]], "has 1 axes"),
        (None, "numbers that make one"),
    ],
    ids=str,
)
def test_values_that_do_not_fit(given, says):
    with pytest.raises(InputError) as found:
        load(summing(), values={"x1": given})
    assert says in str(found.value) and "x1" in str(found.value)


def test_values_of_inputs_that_there_are_not():
    with pytest.raises(InputError, match="values names 'axes', but the model has no such name among its inputs"):
        load(summing(), values={"axes": [1]})
    with pytest.raises(InputError, match="leave out the shape"):
        load(summing(), {"x1": "3"}, values={"x1": [1]})


@pytest.mark.parametrize(
    "dtype, text, want",
    [
        ("f32[]", "0.5", 0.5),
        ("bool[]", "true", True),
        ("bool[2]", "True,False", [True, False]),
        ("f32[2]", "1,2", [1, 2]),
        ("i32[1, 2]", "[[3, 4]]", [[3, 4]]),
        ("i32[1]", "3", [3]),
    ],
    ids=str,
)
def test_values_as_text(dtype, text, want):
    m = model([helper.make_node("Identity", ["x"], ["y"])], {"x": dtype}, ["y"])
    graph = load(m, values={"x": text}).graph
    (array,) = graph.constants.values()
    assert array.tolist() == want and str(TensorType.of(array)) == dtype and not graph.inputs


def test_values_decide_shapes():
    """Names of dimensions that they fix are fixed everywhere, unless other sizes are given there."""
    m = model([helper.make_node("Add", ["x", "b"], ["y"])], {"x": "f32[rows, n]", "b": "f32[n]"}, ["y"])
    assert str(load(m, {"x": (2, 3)}, values={"b": [1, 2, 3]}).graph.outputs[0].type) == "f32[2, 3]"
    with pytest.raises(ModelError, match="do not broadcast"):
        load(m, {"x": (2, 4)}, values={"b": [1, 2, 3]})


def test_initializers_may_be_replaced():
    m = model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        {"x": "f32[2]", "b": "f32[2]"},
        ["y"],
        {"b": np.array([1, 2], np.float32)},
    )
    graph = load(m, values={"b": [5, 7]}).graph
    assert [a.tolist() for a in graph.constants.values()] == [[5, 7]]
    with pytest.raises(InputError, match="the initializer in its place has"):
        load(m, values={"b": [5, 7, 9]})


# --- what the importer wants to know


def nested():
    """An axis that is computed from an input by a function of the schema, and a size by the model."""
    return model(
        [
            helper.make_node("ReduceL2", ["x", "axes"], ["r"], keepdims=0),
            helper.make_node("Mul", ["k", "two"], ["k2"]),
            helper.make_node("ConstantOfShape", ["k2"], ["z"]),
            helper.make_node("Add", ["r", "z"], ["y"]),
        ],
        {"x": "f32[2, 3]", "axes": "i64[1]", "k": "i64[1]"},
        ["y"],
        {"two": np.array([2])},
        opset=18,
    )


def test_errors_name_the_inputs_that_decide():
    with pytest.raises(ModelError) as found:
        load(nested())
    assert set(found.value.values) == {"axes", "k"} and "values={'k': ...}" in str(found.value)
    assert not load(nested(), values={"axes": [1], "k": [1]}).info.wanted


def test_data_decides_nothing():
    """What is no list of a few numbers is not asked for."""
    m = model(
        [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Range", ["zero", "m", "one"], ["y"]),
        ],
        {"x": "i64[2, 2]"},
        ["y"],
        {"zero": np.array(0), "one": np.array(1)},
    )
    with pytest.raises(ModelError, match="depends on the data") as found:
        load(m)
    assert found.value.values == ()


def test_steps_that_values_would_spare_are_known():
    info = load(one_node("CumSum", "f32[3, 3]", "i32[]")).info
    assert info.foreign and info.wanted == ("x1",)


# --- engines


def test_engines_have_no_port_for_them(options, tmp_path, capsys):
    m = summing()
    engine = pelton.build(m, values={"x1": np.array([1])}, options=options)
    assert [p.name for p in engine.inputs] == ["x0"] and not engine.meta["host_steps"]
    np.testing.assert_allclose(engine(X), X.sum(1))
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    target = str(tmp_path / "m.pelton")
    assert (
        main(
            [
                "build",
                str(tmp_path / "m.onnx"),
                "-o",
                target,
                "--level",
                "0",
                "--values",
                "x1=0,2",
                "--cache-dir",
                str(tmp_path / "cache"),
                "-q",
            ]
        )
        == 0
    )
    np.testing.assert_allclose(pelton.load(target)(X), X.sum((0, 2)))
    assert main(["inspect", target]) == 0 and "x1: i64[2] = [0, 2]" in capsys.readouterr().out


def test_fitted_to_values(options):
    """One engine for each value that decides; inputs of data do not count."""
    fitted = Fitted(summing(), options)
    for axes in ([1], [0, 2], [1]):
        for x in (X, X + 1):
            np.testing.assert_allclose(fitted.run({"x0": x, "x1": np.array(axes)})["y0"], x.sum(tuple(axes)), rtol=1e-6)
    assert len(fitted.engines) == 2 and not any(e.meta["host_steps"] for e in fitted.engines)


def test_fitted_does_not_go_on_for_ever(options):
    """Where every call has another value and one engine would do for all of them, it comes in the end."""
    shape = (*[1] * (MAX_SPECIALIZED + 4), 2, 3)
    fitted = Fitted(one_node("CumSum", f"f32[{', '.join(map(str, shape))}]", "i32[]"), options)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for axis in range(MAX_SPECIALIZED + 6):
        np.testing.assert_allclose(
            fitted.run({"x0": x, "x1": np.array(axis, np.int32)})["y0"], np.cumsum(x, axis), rtol=1e-6
        )
    assert len(fitted.engines) <= MAX_SPECIALIZED + 1 and fitted.engines[-1].meta["host_steps"]


def test_fitted_takes_other_values_for_initializers(options):
    m = model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        {"x": "f32[2]", "b": "f32[2]"},
        ["y"],
        {"b": np.array([1, 2], np.float32)},
    )
    fitted, x = Fitted(m, options), np.array([10, 20], np.float32)
    assert fitted.run({"x": x})["y"].tolist() == [11, 22]
    assert fitted.run({"x": x, "b": np.array([5, 7], np.float32)})["y"].tolist() == [15, 27]
    assert fitted.run({"x": x, "b": np.array([1, 2], np.float32)})["y"].tolist() == [11, 22]
    with pytest.raises(InputError, match="there is no input 'c'"):
        fitted.run({"x": x, "c": x})


# --- sequences and optionals


def sequences():
    """A sequence as long as the one given, each of its tensors with one more at the end, and one that may be absent."""
    f32 = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(
        [
            helper.make_node("SequenceInsert", ["xs", "x"], ["ys"]),
            helper.make_node("OptionalHasElement", ["o"], ["has"]),
            helper.make_node("SequenceLength", ["xs"], ["count"]),
            helper.make_node("Identity", ["o"], ["same"]),
        ],
        "sequences",
        [
            helper.make_value_info("xs", helper.make_sequence_type_proto(f32)),
            value_info("x", "f32[2]"),
            helper.make_value_info("o", helper.make_optional_type_proto(f32)),
        ],
        [
            helper.make_value_info("ys", helper.make_sequence_type_proto(f32)),
            value_info("has", "bool[]"),
            value_info("count", "i64[]"),
            helper.make_value_info("same", helper.make_optional_type_proto(f32)),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_sequences_and_optionals_are_ports(options):
    engine = pelton.build(sequences(), {"xs[0]": (3,), "xs[1]": (1,), "o": (2,)}, options=options)
    assert [p.name for p in engine.inputs] == ["xs[0]", "xs[1]", "x", "o"] and engine.meta["forms"]["inputs"] == {
        "xs": ["xs[0]", "xs[1]"]
    }
    xs, x = [np.ones(3, np.float32), np.zeros(1, np.float32)], np.array([5, 6], np.float32)
    for feeds in ({"xs": xs}, {"xs[0]": xs[0], "xs[1]": xs[1]}):
        found = engine.run({**feeds, "x": x, "o": x + 1})
        assert (
            [a.tolist() for a in found["ys"]] == [[1, 1, 1], [0], [5, 6]]
            and found["count"] == 2
            and found["has"]
            and found["same"].tolist() == [6, 7]
        )
    for wrong in (xs[:1], xs[0]):
        with pytest.raises(InputError, match="input 'xs' is a list of 2 arrays in this engine"):
            engine.run({"xs": wrong, "x": x, "o": x})


def test_optionals_without_a_value(options):
    engine = pelton.build(sequences(), {"xs": ()}, values={"o": None}, options=options)
    assert [p.name for p in engine.inputs] == ["x"] and engine.meta["model"]["values"] == {"o": "nothing"}
    x = np.array([5, 6], np.float32)
    for feeds in ({}, {"xs": [], "o": None}):
        found = engine.run({"x": x, **feeds})
        assert [a.tolist() for a in found["ys"]] == [[5, 6]] and not found["has"] and found["same"] is None
    with pytest.raises(InputError, match="an optional without a value in this engine, got ndarray"):
        engine.run({"x": x, "o": x})


def test_fitted_to_sequences(options):
    fitted, x = Fitted(sequences(), options), np.array([5, 6], np.float32)
    for xs, o in (([], None), ([x, x[:1]], x), ([x[:1], x], None)):
        found = fitted.run({"xs": xs, "x": x, "o": o})
        assert [a.tolist() for a in found["ys"]] == [a.tolist() for a in (*xs, x)] and (found["same"] is None) == (
            o is None
        )
    assert len(fitted.engines) == 3


def test_sequences_have_to_be_told():
    with pytest.raises(ModelError, match=r"set the sizes of each of its tensors with shapes=\{'xs\[0\]'"):
        load(sequences())
    with pytest.raises(InputError, match="numbered from 0"):
        load(sequences(), {"xs[1]": (2,)})
    with pytest.raises(InputError, match="its tensors have shapes"):
        load(sequences(), {"xs": (2,)})
    with pytest.raises(InputError, match="its value a list of"):
        load(sequences(), values={"xs": 3})
    assert sorted(
        a.tolist() for a in load(sequences(), values={"xs": [[1, 2], [3]]}).graph.constants.values() if a.ndim
    ) == [[1, 2], [3]]


# --- scans of opset 8, dropout of training


@pytest.mark.parametrize("directions", [None, [1]], ids=str)
def test_scans_of_a_batch(directions):
    """Opset 8: everything has a batch in front, and each of its sequences is scanned by itself."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [value_info("s", "f32[2]"), value_info("x", "f32[2]")],
        [value_info("t", "f32[2]"), value_info("o", "f32[2]")],
    )
    attrs = {} if directions is None else {"directions": directions}
    m = model(
        [helper.make_node("Scan", ["", "s", "x"], ["t", "o"], "scan", body=body, num_scan_inputs=1, **attrs)],
        {"s": "f32[3, 2]", "x": "f32[3, 4, 2]"},
        ["t", "o"],
        opset=8,
    )
    rng = np.random.default_rng(0)
    s, x = rng.standard_normal((3, 2)).astype(np.float32), rng.standard_normal((3, 4, 2)).astype(np.float32)
    graph = load(m).graph
    last, every = evaluate(graph, {"s": s, "x": x}).values()
    steps = s[:, None] + np.cumsum(x[:, ::-1] if directions else x, 1)
    np.testing.assert_allclose(last, steps[:, -1], rtol=1e-5)
    np.testing.assert_allclose(every, steps, rtol=1e-5)


def test_dropout_of_training():
    """A seed decides the mask, as numpy's RandomState draws it; a mode that is an input decides the program."""
    m = one_node("Dropout", "f32[4, 5]", np.array(0.25, np.float32), "bool[]", opset=13, outputs=2, seed=3)
    assert load(m).info.wanted == ("x2",)
    graph = load(m, values={"x2": True}).graph
    x, kept = np.ones((4, 5), np.float32), np.random.RandomState(3).uniform(0, 1, (4, 5)) >= 0.25
    found = evaluate(graph, {"x0": x})
    np.testing.assert_allclose(found["y0"], kept / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(found["y1"], kept)
    assert not load(m, values={"x2": False}).graph.nodes or [
        n.op.name for n in load(m, values={"x2": False}).graph.nodes
    ] == ["copy"]
    with pytest.raises(ModelError, match="a ratio from 0 to less than 1, got 1"):
        load(one_node("Dropout", "f32[2]", np.array(1, np.float32), np.array(True), opset=13))
