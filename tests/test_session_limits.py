"""Requests that a model can never serve: refused as InputError before any planning, or planned once."""

from __future__ import annotations

import itertools
import logging
import threading
from functools import partial

import numpy as np
import onnx
import pytest
from onnx_models import model, node

import pelton as ort
from pelton.compat.session import limits as known
from pelton.compat.session import model as models
from pelton.compat.session.limits import Limits
from pelton.builder import sessions
from pelton.errors import ModelError
from pelton.importers.onnx import load as importer
from pelton.options import Options

RNG = np.random.default_rng(0)
W3 = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(folder))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    yield
    logging.getLogger("pelton").setLevel(logging.NOTSET)


@pytest.fixture
def plans(monkeypatch) -> list:
    """The shapes that models were planned for."""
    seen = []
    real = models.load_model

    def read(*given):
        seen.append(given)
        return real(*given)

    monkeypatch.setattr(models, "load_model", read)
    return seen


def windows() -> onnx.ModelProto:
    """Three convolutions without padding, the second with stride 2."""
    nodes = [
        node("Conv", "x w", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w", "c", strides=[2, 2]),
        node("Conv", "c w", "y"),
    ]
    return model(nodes, {"x": "f32[n, 4, h, w]"}, ["y"], {"w": W3})


def positions() -> onnx.ModelProto:
    """Rows of a table by the places of tokens, of which it has 12."""
    nodes = [
        node("Shape", "ids", "s", start=1),
        node("Squeeze", "s", "count"),
        node("Range", "zero count one", "at"),
        node("Gather", "table at", "rows"),
        node("Unsqueeze", "ids axes", "column"),
        node("Cast", "column", "f", to=1),
        node("Add", "f rows", "y"),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "table": floats(12, 8), "axes": np.array([2])}
    return model(nodes, {"ids": "i64[batch, seq]"}, ["y"], constants)


def halved() -> onnx.ModelProto:
    """Halved twice, doubled twice, and joined with what came in."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", "x", "a", **pool),
        node("MaxPool", "a", "b", **pool),
        node("Resize", "b _ by", "c"),
        node("Concat", "x c", "y", axis=1),
    ]
    return model(nodes, {"x": "f32[n, 1, h, w]"}, ["y"], {"by": np.array([1, 1, 4, 4], np.float32)})


def wide() -> onnx.ModelProto:
    """Rows of eight that a reshape makes, after a projection of each."""
    nodes = [node("MatMul", "x w", "a"), node("Reshape", "a to", "y")]
    return model(nodes, {"x": "f32[rows, 4]"}, ["y"], {"w": floats(4, 2), "to": np.array([-1, 8])})


def long() -> onnx.ModelProto:
    """The end of a clip, of which a slice may take less than it asks for, under a window that may not."""
    nodes = [node("Slice", "x begin end axes", "a"), node("Conv", "a w", "y")]
    constants = {"begin": np.array([2]), "end": np.array([9]), "axes": np.array([2]), "w": floats(4, 4, 5)}
    return model(nodes, {"x": "f32[n, 4, t]"}, ["y"], constants)


def two(op: str, **attrs) -> onnx.ModelProto:
    nodes = [node(op, "a b", "y", **attrs)]
    return model(nodes, {"a": "f32[n, k]", "b": "f32[m, j]"}, ["y"])


def against(size: int) -> onnx.ModelProto:
    return model([node("Add", "x c", "y")], {"x": "f32[n, k]"}, ["y"], {"c": floats(size)})


def branched() -> onnx.ModelProto:
    """A window that only those images meet which are high enough for it."""
    there = onnx.helper.make_graph([node("Conv", "x w", "t")], "t", [], [onnx.ValueInfoProto(name="t")])
    other = onnx.helper.make_graph([node("Relu", "x", "o")], "o", [], [onnx.ValueInfoProto(name="o")])
    nodes = [
        node("Shape", "x", "s", start=2, end=3),
        node("Greater", "s six", "q"),
        node("Squeeze", "q", "large"),
        node("If", "large", "y", then_branch=there, else_branch=other),
    ]
    return model(nodes, {"x": "f32[1, 4, h, 9]"}, ["y"], {"w": W3, "six": np.array([6])})


SMALL = (1, 2, 3, 4, 7, 8)
# name: (model, inputs with the sizes to try, whether all that is impossible is known beforehand)
KINDS = {
    "windows": (windows(), {"x": ((1, 2), (4,), (3, 4, 6, 8, 9, 10, 20), (4, 8, 9, 13))}, True),
    "positions": (positions(), {"ids": ((1, 3), (1, 2, 11, 12, 13, 40))}, True),
    "halved": (halved(), {"x": ((1, 2), (1,), (4, 5, 6, 8, 12, 13), (4, 7, 8))}, True),
    "wide": (wide(), {"x": ((1, 2, 3, 4, 5, 6, 7, 8), (4,))}, True),
    "long": (long(), {"x": ((1, 2), (4,), (1, 2, 3, 6, 7, 8, 9, 12))}, True),
    "add": (two("Add"), {"a": (SMALL, SMALL), "b": (SMALL, SMALL)}, True),
    "matmul": (two("MatMul"), {"a": (SMALL, SMALL), "b": (SMALL, SMALL)}, True),
    "concat": (two("Concat", axis=0), {"a": (SMALL, SMALL), "b": (SMALL, SMALL)}, True),
    "against": (against(7), {"x": (SMALL, SMALL)}, True),
    "against one": (against(1), {"x": (SMALL, SMALL)}, True),
    "branched": (branched(), {"x": ((1,), (4,), (1, 2, 3, 5, 6, 7, 8, 20), (9,))}, False),
}


def grid(axes: dict) -> list[dict[str, tuple[int, ...]]]:
    """All shapes of all inputs."""
    each = [[(name, shape) for shape in itertools.product(*sizes)] for name, sizes in axes.items()]
    return [dict(shapes) for shapes in itertools.product(*each)]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_refused_beforehand_is_what_cannot_be_imported(name):
    """Against an import of the model for each of the shapes, as numbers."""
    graph, axes, complete = KINDS[name]
    source = sessions.load_model(graph.SerializeToString(), {})
    limits = Limits(sessions.infer_outputs(source, Options()).limits)
    refused = possible = 0
    for shapes in grid(axes):
        _, found = importer.import_model(source, shapes)
        try:
            limits.check(shapes)
        except ort.InputError as e:
            assert isinstance(found, ModelError), (shapes, str(e))
            refused += 1
        else:
            assert not complete or not isinstance(found, ModelError), shapes
            possible += 1
    assert possible and (refused or name in ("against one", "branched"))


def message(call) -> str:
    with pytest.raises(ort.InputError) as found:
        call()
    assert type(found.value) is ort.InputError
    return str(found.value)


def test_nothing_is_planned_for_a_stream_of_impossible_shapes(plans):
    """Neither by the session that built the engine, nor by the next, nor before the first engine."""
    data = windows().SerializeToString()
    first = ort.InferenceSession(data)
    plans.clear()
    assert "axis 2 of input 'x' (h) may have 9 and more, got 6" in message(
        lambda: first.run(None, {"x": floats(1, 4, 6, 20)})
    )
    assert not plans
    first.run(None, {"x": floats(1, 4, 20, 20)})
    for session in (first, ort.InferenceSession(data)):
        plans.clear()
        for h in range(1, 9):
            text = message(partial(session.run, None, {"x": floats(1, 4, h, 20 + h)}))
            assert f"axis 2 of input 'x' (h) may have 9 and more, got {h}" in text and "windows that fit" in text
        assert "axis 3 of input 'x' (w)" in message(partial(session.run, None, {"x": floats(2, 4, 30, 8)}))
        assert not plans
        assert session.run(None, {"x": floats(2, 4, 9, 9)})[0].shape == (2, 4, 1, 1) and not plans


@pytest.mark.parametrize(
    "make, good, bad, texts",
    [
        (positions, {"ids": (2, 5)}, {"ids": (2, 13)}, ("axis 1 of input 'ids' (seq) may have 1 to 12, got 13",)),
        (halved, {"x": (1, 1, 8, 4)}, {"x": (1, 1, 8, 6)}, ("axis 3 of input 'x'", "multiple of 4, got 6")),
        (wide, {"x": (8, 4)}, {"x": (6, 4)}, ("axis 0 of input 'x'", "multiple of 4, got 6")),
        (lambda: two("MatMul"), {"a": (2, 3), "b": (3, 5)}, {"a": (2, 3), "b": (4, 5)}, ("must be 3", "got 4")),
    ],
)
def test_messages_name_axis_value_and_range(plans, make, good, bad, texts):
    session = ort.InferenceSession(make().SerializeToString())
    types = {a.name: np.int64 if "int64" in a.type else np.float32 for a in session.get_inputs()}

    def feed(shapes):
        return {name: np.ones(shape, types[name]) for name, shape in shapes.items()}

    session.run(None, feed(good))
    plans.clear()
    text = message(lambda: session.run(None, feed(bad)))
    assert all(t in text for t in texts), text
    binding = session.io_binding()
    for name, array in feed(bad).items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    assert message(lambda: session.run_with_iobinding(binding)) == text
    assert not plans


def test_what_no_import_foretells_is_planned_once(plans):
    """Empty axes: the same shape once, others with the same empty axes twice at most."""
    session = ort.InferenceSession(windows().SerializeToString())
    session.run(None, {"x": floats(1, 4, 20, 20)})
    plans.clear()
    first = message(lambda: session.run(None, {"x": floats(1, 4, 0, 20)}))
    assert plans
    plans.clear()
    assert message(lambda: session.run(None, {"x": floats(1, 4, 0, 20)})) == first and not plans
    message(lambda: session.run(None, {"x": floats(1, 4, 0, 21)}))
    plans.clear()
    for w in range(22, 32):
        assert "got 0" in message(lambda w=w: session.run(None, {"x": floats(1, 4, 0, w)}))
    assert not plans


def test_what_a_failed_plan_proves_holds_for_others(plans):
    """Two inputs whose axes have one name in the model, and other sizes in every request: one plan for all of these."""
    nodes = [node("Relu", "a", "r"), node("Concat", "r b", "y", axis=1)]
    session = ort.InferenceSession(model(nodes, {"a": "f32[n, 3]", "b": "f32[n, 2]"}, ["y"]).SerializeToString())

    def feed(n: int, m: int) -> dict[str, np.ndarray]:
        return {"a": floats(n, 3), "b": floats(m, 2)}

    assert session.run(None, feed(4, 4))[0].shape == (4, 5)
    assert "axis 0 of input 'b' (n) must be 4 for the other sizes given, got 5" in message(
        lambda: session.run(None, feed(4, 5))
    )
    plans.clear()
    for n, m in ((5, 4), (7, 3), (1, 2), (2, 1), (9, 40)):
        assert f"must be {n} for the other sizes given, got {m}" in message(partial(session.run, None, feed(n, m)))
    assert not plans and session.run(None, feed(9, 9))[0].shape == (9, 5)


def test_threads_with_the_same_impossible_shape_plan_it_once(plans):
    session = ort.InferenceSession(windows().SerializeToString())
    session.run(None, {"x": floats(1, 4, 20, 20)})
    plans.clear()
    with pytest.raises(ort.InputError):
        session.run(None, {"x": floats(1, 4, 20, 0)})
    once, errors = len(plans), []
    plans.clear()

    def work():
        try:
            session.run(None, {"x": floats(3, 4, 20, 0)})
        except ort.InputError as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(errors) == 6 and len(plans) <= once


def test_what_was_tried_is_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(known, "MAX_REMEMBERED", 3)
    limits = Limits(None)
    for n in range(1, 6):
        limits.learn({"x": (n,)}, ModelError("no"))
        with pytest.raises(ort.InputError, match=rf"inputs of x \[{n}\]: no"):
            limits.check({"x": (n,)})
    limits.check({"x": (1,)})
    assert len(limits._tried) == 3


def test_a_model_that_fits_no_sizes_is_no_fault_of_a_request():
    """A damaged model stays a ModelError: a server's fault, not its client's."""
    broken = model([node("Conv", "x w", "y")], {"x": "f32[n, 5, h, w]"}, ["y"], {"w": W3})
    with pytest.raises(ModelError):
        ort.InferenceSession(broken.SerializeToString()).run(None, {"x": floats(1, 5, 8, 8)})


def test_engines_refuse_without_planning_as_well(plans):
    engine = ort.build(windows(), level=0)
    for shape in ((1, 4, 6, 20), (1, 4, 20, 0)):
        assert "axis" in message(lambda shape=shape: engine.run({"x": floats(*shape)}))
        with pytest.raises(ort.InputError, match="axis"), ort.AsyncQueue(engine, 1) as queue:
            queue.run_async({"x": floats(*shape)})
    assert not plans


def test_specialized_models_plan_impossible_inputs_once(monkeypatch):
    """Shapes, and values that decide the program, behind the interface of the onnx package's tests."""
    from pelton.builder import specialize
    from pelton.onnx_backend import prepare

    m = model([node("Slice", "x begin end axes", "s"), node("Conv", "s w", "y")], {"x": "f32[1, 4, h, 9]"}, ["y"])
    m.graph.initializer.append(onnx.numpy_helper.from_array(W3, "w"))
    m.graph.input.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, [1]) for n in ("begin", "end"))
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "axes"))
    rep, tried = prepare(m), []
    real = specialize.run_stages

    def stages(*given):
        tried.append(given)
        return real(*given)

    monkeypatch.setattr(specialize, "run_stages", stages)

    def feed(h: int, begin: int, end: int) -> dict[str, np.ndarray]:
        return {"x": floats(1, 4, h, 9), "begin": np.array([begin]), "end": np.array([end])}

    assert rep.run(feed(9, 1, 8))[0].shape == (1, 4, 5, 7)
    for impossible in (feed(2, 0, 2), feed(9, 5, 7)):
        first = message(lambda f=impossible: rep.run(f))
        tried.clear()
        impossible["x"] = floats(*impossible["x"].shape)
        assert message(lambda f=impossible: rep.run(f)) == first and "windows that fit" in first and not tried
    assert rep.run(feed(9, 5, 8))[0].shape == (1, 4, 1, 7)
