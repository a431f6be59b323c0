"""Graphs with unusual borders: outputs that are listed twice, are inputs or constants, or have no type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx import TensorProto, helper
from onnx_models import model, node

import pelton
from pelton.compat.session import InferenceSession
from pelton.errors import InputError

X = np.array([0.5, -2, 3], np.float32)
W = np.array([7, -8, 9], np.float32)
NEGATED = node("Neg", "x", "y")
DECIDED = [node("NonZero", "x", "z"), node("Cast", "z", "y", to=TensorProto.FLOAT)]  # a script
PLACES = np.array([[0, 1, 2]], np.float32)


def typed(m: onnx.ModelProto) -> onnx.ModelProto:
    """Outputs as sessions want them: of a declared type."""
    for o in m.graph.output:
        o.type.tensor_type.elem_type = TensorProto.FLOAT
    return m


CASES = {
    "twice": ([NEGATED], ["y", "y"], [-X, -X]),
    "twice around another": ([NEGATED, node("Abs", "x", "a")], ["y", "a", "y"], [-X, np.abs(X), -X]),
    "an input": ([NEGATED], ["x", "y"], [X, -X]),
    "an input twice": ([NEGATED], ["x", "y", "x"], [X, -X, X]),
    "a constant": ([NEGATED], ["w", "y"], [W, -X]),
    "a constant twice": ([NEGATED], ["w", "w", "y"], [W, W, -X]),
    "names of one value": (
        [NEGATED, node("Identity", "y", "a"), node("Identity", "y", "b")],
        ["y", "a", "b"],
        [-X] * 3,
    ),
    "names of an input": ([node("Identity", "x", "a"), node("Identity", "x", "b")], ["a", "b"], [X, X]),
    "of a script": (DECIDED, ["y", "x", "y", "w"], [PLACES, X, PLACES, W]),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_as_often_there_as_they_are_listed(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    nodes, outputs, want = CASES[name]
    m = typed(model(nodes, {"x": "f32[3]"}, outputs, {"w": W}))
    for _ in range(2):  # the second one finds the engine in the cache
        session = InferenceSession(m.SerializeToString())
        found = session.run(None, {"x": X})
        assert [o.name for o in session.get_outputs()] == outputs and len(found) == len(want)
        for a, b in zip(found, want):
            assert_close({"y": a}, {"y": b}, about=name)
    twice = session.run([outputs[-1], outputs[-1]], {"x": X})
    assert len(twice) == 2 and np.array_equal(*twice)


@pytest.mark.parametrize("name", CASES)
def test_engines_have_each_output_once_and_in_memory_of_its_own(name, tmp_path):
    nodes, outputs, want = CASES[name]
    m = model(nodes, {"x": "f32[3]"}, outputs, {"w": W})
    engine = pelton.build(m, level=0, cache_dir=tmp_path)
    x = X.copy()
    found = engine.run({"x": x})
    assert list(found) == list(dict.fromkeys(outputs))
    assert_close(found, dict(zip(outputs, want)), about=name)
    for array in found.values():
        array[...] = 55
        assert (x == X).all()
    assert_close(engine.run({"x": x}), dict(zip(outputs, want)), about=name)


def value(name: str, dtype: int = TensorProto.FLOAT, shape=None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def test_branches_and_bodies_may_give_one_value_several_times(tmp_path):
    """In scripts, whose outputs share no memory for it."""
    then = helper.make_graph([node("Neg", "x", "t")], "then", [], [value("t"), value("t")])
    other = helper.make_graph([node("Abs", "x", "a"), node("Exp", "x", "b")], "else", [], [value("a"), value("b")])
    step, go = value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, [])
    body = helper.make_graph(
        [node("Add", "v one", "n")], "body", [step, go, value("v"), value("u")], [go, *[value("n")] * 3]
    )
    m = model(
        [
            node("If", "holds", "p q", then_branch=then, else_branch=other),
            node("Loop", "count _ x x", "v u rows", body=body),
        ],
        {"x": "f32[3]", "holds": "bool[]", "count": "i64[]"},
        ["p", "q", "v", "u", "rows"],
        {"one": np.float32(1)},
    )
    engine = pelton.build(typed(m), level=0, cache_dir=tmp_path)
    for holds, count in ((True, 3), (False, 1)):
        found = engine.run({"x": X, "holds": np.array(holds), "count": np.array(count)})
        p, q = (-X, -X) if holds else (np.abs(X), np.exp(X))
        rows = np.stack([X + i + 1 for i in range(count)])
        assert_close(found, {"p": p, "q": q, "v": X + count, "u": X + count, "rows": rows}, about="If and Loop")
        found["p"][:], found["v"][:] = 55, 55
        assert_close({"q": found["q"], "u": found["u"]}, {"q": q, "u": X + count}, about="If and Loop")


def test_asking_for_an_output_twice_is_an_error(tmp_path):
    with pytest.raises(pelton.ModelError, match=r"no output twice; got \['y', 'y'\]"):
        pelton.build(model([NEGATED], {"x": "f32[3]"}, ["y"]), level=0, outputs=["y", "y"], cache_dir=tmp_path)


def test_types_of_outputs_that_the_data_shapes_are_inferred(tmp_path, monkeypatch):
    """The rank of what is reduced along axes that come with the data is unknown, its type is not."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    m = model([node("ReduceSum", "x axes", "y", keepdims=0)], {"x": "f32[2, 3]", "axes": "i64[n]"}, ["y"])
    session, x = InferenceSession(m.SerializeToString()), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert session.get_outputs()[0].type == "tensor(float)"
    for axes in ((0,), (1,), (0, 1)):
        assert_close({"y": session.run(None, {"x": x, "axes": np.array(axes)})[0]}, {"y": x.sum(axes)}, about="sum")
    with pytest.raises(InputError, match="ReduceSum needs an axis between -2 and 1, got 5"):
        session.run(None, {"x": x, "axes": np.array([5])})
