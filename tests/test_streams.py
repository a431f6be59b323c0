"""Builds for throughput: kernels tuned for the threads of one stream, and the number of streams, which queues use."""

import dataclasses

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
from pelton.backends.cpu import default_threads
from pelton.cli import main
from pelton.builder import streams
from pelton.engine.metadata import check_metadata
from pelton.runtime.engine import Engine

CPUS = default_threads()


@pytest.fixture(scope="module")
def source():
    weights = {"w": np.random.default_rng(0).standard_normal((24, 8)).astype(np.float32)}
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (4, 24)}, {"y": (4, 8)}, weights)
    return made.SerializeToString()


def test_a_build_keeps_the_streams_that_were_fastest(source, monkeypatch):
    monkeypatch.setattr(streams, "default_threads", lambda: 6)
    asked = []

    def rate(engine, feed, streams, threads):
        asked.append((streams, threads))
        return {(3, 2): 50.0}.get((streams, threads), 10.0 + streams)

    monkeypatch.setattr(streams, "runs_per_second", rate)
    engine = pelton.build(source, level=1, hint="throughput")
    assert asked == [(1, 6), (2, 3), (3, 2), (6, 1)]
    assert engine.meta["streams"] == {"streams": 3, "threads": 2} and engine.meta["threads"] == 1
    for options in ({"level": 0}, {"load_tactics": None, "timing_cache": "t", "level": 0}):
        asked.clear()
        untimed = pelton.build(source, hint="throughput", **options)
        assert untimed.meta["streams"] == {"streams": 6, "threads": 1} and not asked
    assert pelton.build(source, level=0, hint="throughput", threads=3).meta["streams"] == {"streams": 2, "threads": 3}
    assert "streams" not in pelton.build(source, level=0).meta


def test_streams_are_really_timed(source):
    engine = pelton.build(source, level=1, hint="throughput")
    found = engine.meta["streams"]
    assert found["streams"] * found["threads"] <= CPUS and engine.meta["threads"] == 1
    assert streams.runs_per_second(engine, {"x": np.ones((4, 24), np.float32)}, 1, 1) > 100


def test_queues_take_the_streams_of_their_engine(source):
    engine = pelton.build(source, level=0)
    kept = {"streams": 1, "threads": CPUS}
    other = Engine(dataclasses.replace(engine.plain, meta={**engine.plain.meta, "streams": kept}))
    with pelton.AsyncQueue(other) as queue:
        assert len(queue) == 1 and [c.threads for c in queue._contexts] == [CPUS]
    with pelton.AsyncQueue(other, jobs=2) as queue:
        assert len(queue) == 2, "what the caller says counts"
    elsewhere = {"streams": CPUS + 1, "threads": 1}
    other = Engine(dataclasses.replace(engine.plain, meta={**engine.plain.meta, "streams": elsewhere}))
    with pelton.AsyncQueue(other) as queue:
        assert len(queue) == CPUS, "found for another number of CPUs"


def test_sessions_are_built_for_throughput(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    options = pelton.SessionOptions()
    options.add_session_config_entry("pelton.level", "0")
    plain = pelton.InferenceSession(source, options)
    options.add_session_config_entry("pelton.hint", "throughput")
    session = pelton.InferenceSession(source, options)
    x = np.random.default_rng(1).standard_normal((4, 24)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], rtol=1e-5)
    options.add_session_config_entry("pelton.hint", "most")
    with pytest.raises(pelton.InputError, match="pelton.hint must be one of latency, throughput, got 'most'"):
        pelton.InferenceSession(source, options)


def test_the_command_keeps_and_says_them(source, tmp_path, capsys):
    path, target = tmp_path / "m.onnx", str(tmp_path / "m.pelton")
    path.write_bytes(source)
    assert main(["build", str(path), "-o", target, "--level", "0", "--hint", "throughput"]) == 0
    said = f"{CPUS} run{'s' * (CPUS != 1)} at once, 1 thread each"
    assert said in capsys.readouterr().out
    assert main(["inspect", target]) == 0 and said in capsys.readouterr().out
    assert pelton.load(target).meta["streams"] == {"streams": CPUS, "threads": 1}
    assert main(["build", str(path), "-o", target, "--hint", "throughput", "--target", "cuda"]) == 2
    with pytest.raises(pelton.InputError, match="hint is 'latency' or 'throughput', got 'fast'"):
        pelton.build(source, hint="fast")


@pytest.mark.parametrize("found", [3, {"streams": 2}, {"streams": 0, "threads": 1}, {"streams": 1, "threads": 1 << 40}])
def test_damaged_streams_are_refused(found):
    said = []
    check_metadata({"streams": found}, said.append)
    assert len(said) == 1 and said[0].startswith("its streams are")
    check_metadata({"streams": {"streams": 2, "threads": 1}}, said.append)
    assert len(said) == 1
