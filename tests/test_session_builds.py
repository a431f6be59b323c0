"""Builds of sessions: announced with an estimate, without timing, forbidden, or made beforehand as engine files."""

from __future__ import annotations

import logging
import re

import numpy as np
import onnx
import pytest
from models import model as onnx_model
from onnx import helper, numpy_helper
from script_models import nonzero_gather
from test_session import close, network

import pelton
import pelton as ort
from pelton.system.cache import Cache
from pelton.builder import sessions
from pelton.compat.session import estimate
from pelton.compat.session import model as models
from pelton.compat.session.engine_cache import EngineCache
from test_session_options import cache, options, x  # noqa: F401  (fixtures)


def test_a_build_is_announced_with_an_estimate(caplog, x):
    """Before it begins, by all builds so far; and not where none begins."""
    for rows, by in enumerate(
        ("builds on another machine", "the last build on this machine", "the last 2 builds on this machine"), 2
    ):
        caplog.clear()
        session = ort.InferenceSession(network(rows).SerializeToString())
        first = caplog.records[0]
        assert (
            first.name == "pelton.session"
            and first.levelno == logging.WARNING
            and re.search(rf"level 0, estimated time (less than a second|about \d+ s), from {by}", first.getMessage())
        )
        caplog.clear()
        session = ort.InferenceSession(network(rows).SerializeToString())
        session.run(None, {"x": np.ones((rows, 4), np.float32)})
        assert not caplog.text


def test_estimates_follow_the_builds_of_a_machine(cache, monkeypatch):
    build, layer = estimate.reference()[3]
    assert estimate.seconds(3, 10, None, []) == (build + 10 * layer, 0)
    past = [
        estimate.Build(3, 5, 10.0, 30.0),
        estimate.Build(0, 5, 1.0, 2.0),
        estimate.Build(3, 9, 20.0, 40.0),
        estimate.Build(3, 9, 20.0, 60.0),
    ]
    # the median of thrice, twice and thrice
    assert estimate.seconds(3, 10, None, past) == (pytest.approx(3 * (build + 10 * layer)), 3)
    assert estimate.seconds(2, 10, None, past[1:2])[0] == pytest.approx(
        2 * (estimate.reference()[2][0] + 10 * estimate.reference()[2][1])
    )
    assert estimate.seconds(3, 10, 1.0, [])[0] == pytest.approx(
        1 + estimate.reference()[0][0] + 10 * estimate.reference()[0][1]
    )
    heavy, light = (estimate.seconds(0, 1, None, past[:1], weights)[0] for weights in (2_100_000_000, 0))
    assert 10 * 3 < heavy - light < 20 * 3, "2.1 GB of weights take time of their own: 15.5 s were measured"
    assert len(estimate.reference()) == 6 and all(build > 0 and layer > 0 for build, layer in estimate.reference())
    engines = EngineCache(Cache(cache, 1 << 30))
    (cache / "sessions" / "builds.json").write_text('{"builds": [{"level": "high"}]}')
    assert estimate._past(engines) == []


def test_weights_are_counted_wherever_they_lie(tmp_path):
    weights = {"w": np.ones((300, 500), np.float32), "b": np.ones(500, np.float16)}
    made = onnx_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 300)}, {"y": (2, 500)}, weights)
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    found = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert sessions.weights_bytes(made) == sessions.weights_bytes(found) == 300 * 500 * 4 + 500 * 2


def test_layers_that_are_built_one_by_one():
    """Equal ones once; what has no constants of its own joins others."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "s"], ["d"]),
        helper.make_node("MatMul", ["d", "u"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in (("w", (4, 4)), ("v", (4, 4)), ("s", (4,)), ("u", (4, 2)))
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, [2, 4])],
        [helper.make_tensor_value_info("y", 1, [2, 2])],
        weights,
    )
    assert sessions.count_layers(helper.make_model(graph)) == 2


def test_without_timing_at_first(x, builds):
    model = network(2).SerializeToString()
    for _ in range(2):
        fast = ort.InferenceSession(model, options(level="1", on_miss="fast"))
        assert close(fast.run(None, {"x": x}), x) and fast._engine.meta["level"] == 0 and len(builds) == 1
    ort.InferenceSession(model, options(level="1"))
    assert (
        ort.InferenceSession(model, options(level="1", on_miss="fast"))._engine.meta["level"] == 1 and len(builds) == 2
    )


def test_no_build_where_none_is_wanted(x, builds):
    for model in (network(2), network()):
        with pytest.raises(ort.BuildError, match=r"no engine of the given model.*pelton build"):
            ort.InferenceSession(model.SerializeToString(), options(on_miss="error")).run(None, {"x": x})
        assert not builds
        ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        assert (
            close(ort.InferenceSession(model.SerializeToString(), options(on_miss="error")).run(None, {"x": x}), x)
            and builds.pop()
        )


@pytest.fixture
def builds(monkeypatch) -> list:
    """What engines were built."""
    seen = []
    real = models.build_engine

    def built(source, options, optimum, show):
        seen.append(options)
        return real(source, options, optimum, show)

    monkeypatch.setattr(models, "build_engine", built)
    return seen


@pytest.mark.parametrize(
    "terminal, severity, entry, shows",
    [
        (True, -1, None, True),
        (False, -1, None, False),
        (True, 3, None, False),
        (False, -1, "1", True),
        (True, -1, "0", False),
    ],
)
def test_who_sees_the_progress_of_a_build(monkeypatch, terminal, severity, entry, shows):
    seen = []

    def built(source, options, optimum, show):
        seen.append(show)
        return pelton.build(source, options=options)

    monkeypatch.setattr(models, "build_engine", built)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    given = options(**({"progress": entry} if entry else {}))
    given.log_severity_level = severity
    ort.InferenceSession(network(2).SerializeToString(), given)
    assert seen == [shows]


# --- engine files as models


def described(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which says all of itself that ONNX has words for."""
    model.producer_name, model.producer_version, model.domain, model.model_version = "me", "1.2", "dom", 7
    model.doc_string, model.graph.doc_string = "doc", "of the graph"
    helper.set_model_props(model, {"k": "v", "characters": "a\nb\né"})
    return model


@pytest.mark.parametrize("make", [network, lambda: nonzero_gather()[0]])
def test_an_engine_file_keeps_the_metadata_of_its_model(tmp_path, make):
    """A script over engines, too; texts that the build was given come to those of the model."""
    model, path = described(make()), tmp_path / "net.pelton"
    of_model = ort.InferenceSession(model.SerializeToString()).get_modelmeta()
    assert of_model == ort.ModelMetadata(
        "me", model.graph.name, "dom", "doc", "of the graph", 7, {"k": "v", "characters": "a\nb\né"}
    )
    pelton.build(model, level=0).save(path)
    assert ort.InferenceSession(path).get_modelmeta() == of_model
    pelton.build(model, level=0, metadata={"team": "vision", "k": "w"}).save(path)
    found = ort.InferenceSession(path).get_modelmeta()
    assert found.custom_metadata_map == {"k": "w", "characters": "a\nb\né", "team": "vision"}
    pelton.build(relu(), level=0).save(path)  # a network has no more than a name
    assert ort.InferenceSession(path).get_modelmeta() == ort.ModelMetadata("", "small")


def relu() -> pelton.Network:
    net = pelton.Network("small")
    net.output(net.relu(net.input("x", (3, 5))), "y")
    return net


def test_metadata_that_is_no_text(tmp_path):
    """Bytes that are not UTF-8 are replaced, by a session of the model as by its engine."""
    data = described(network(2)).SerializeToString().replace(b"dom", b"d\xffm")
    pelton.build(data, level=0).save(tmp_path / "net.pelton")
    for source in (data, tmp_path / "net.pelton"):
        assert ort.InferenceSession(source).get_modelmeta().domain == "d\ufffdm"


def test_an_engine_file_is_a_model(tmp_path, x, builds):
    path = tmp_path / "net.pelton"
    pelton.build(network(), level=0).save(path)
    for source in (path, str(path), path.read_bytes()):
        session = ort.InferenceSession(source)
        assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [("x", "tensor(float)", ["batch", 4])]
        assert [(a.name, a.type, a.shape) for a in session.get_outputs()] == [
            ("probability", "tensor(float)", ["batch", 3]),
            ("logits", "tensor(float)", ["batch", 3]),
        ]
        assert session.get_modelmeta().graph_name == "net" and session.get_modelmeta().producer_name == "tests"
        assert close(session.run(None, {"x": x}), x) and close(session.run(None, {"x": x.tolist()}), x)
        for wrong in (x[:, :3], x.astype(np.float64), x[0]):
            with pytest.raises(ort.InputError):
                session.run(None, {"x": wrong})
    assert not builds
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    with pytest.raises(ort.EngineError, match="altered"):
        ort.InferenceSession(bytes(damaged))
