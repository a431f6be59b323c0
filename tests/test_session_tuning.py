"""Background tuning of sessions: its start, the engines that it keeps, and its end with the session."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx_models import model, node

import pelton as ort
from pelton.compat.session import tuning
from pelton.compat.session import model as models
from pelton.compat.session.tuning import Child, Tuner, range_of
from pelton.runtime import Engine

RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(folder))
    monkeypatch.setenv("PELTON_LEVEL", "1")
    monkeypatch.setenv("PELTON_RETUNE", "1e-9")
    yield
    logging.getLogger("pelton").setLevel(logging.NOTSET)


def network() -> bytes:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y")]
    return model(nodes, {"x": "f32[rows, 16]"}, ["y"], {"w": W}).SerializeToString()


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((n, 16)).astype(np.float32)}


def right(session, n: int) -> bool:
    x = rows(n)
    return np.allclose(session.run(None, x)[0], np.maximum(x["x"].astype(np.float64) @ W, 0), atol=1e-4)


@pytest.fixture
def asked(monkeypatch) -> list:
    """Requests, each answered at once by an engine for its sizes that is said to be twice as fast."""
    seen = []

    def ask(self, request, folder):
        seen.append(request)
        source = models.load_model(request.model, request.sizes, request.changes)
        models.build_engine(source, request.options, request.shapes, False).save(Path(folder) / "tuned.pelton")
        (Path(folder) / "verdict.json").write_text(json.dumps(["kept", 2.0]))
        return 0

    monkeypatch.setattr(Child, "ask", ask)
    return seen


def test_runs_far_from_the_first_sizes_get_an_engine_of_their_own(asked, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    session = ort.InferenceSession(network())
    assert right(session, 4) and right(session, 7) and not session.background_tuning(5)  # the same range
    assert right(session, 40)
    (found,) = session.background_tuning(60)
    seconds = found.pop("seconds")
    assert found == {"shapes": {"x": (40, 16)}, "outcome": "kept", "gain": 2.0} and seconds > 0
    assert [r.shapes for r in asked] == [{"x": (40, 16)}]
    tuned = session._tuner._engines[range_of(rows(40))]
    assert tuned.symbols[0].optimum == 40 and session._engine.symbols[0].optimum == 4
    runs = []
    real = Engine.run
    monkeypatch.setattr(Engine, "run", lambda engine, fed, out: runs.append(engine) or real(engine, fed, out))
    assert right(session, 63) and right(session, 4) and right(session, 32)
    assert [e is tuned for e in runs] == [True, False, True]
    assert "tuning for x [40, 16] in the background" in caplog.text and "kept, 2.00 times as fast" in caplog.text


def test_tunings_of_a_session_are_bounded(asked, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tuning, "MAX_TUNINGS", 2)
    session = ort.InferenceSession(network())
    session._engines.pool.max_bytes = 1 << 40
    for n in (4, 8, 8, 16, 16, 32, 32, 64):
        session._tuner and session._tuner._allowance._spent.clear()
        assert right(session, n)
        session.background_tuning(60)
    assert [r.shapes["x"][0] for r in asked] == [8, 16] and "a session tunes 2 times in the background" in caplog.text


def test_a_share_of_the_time_bounds_tunings_as_well(asked):
    session = ort.InferenceSession(network())
    assert right(session, 4)
    session._tuner._allowance.spend(1e6)
    assert right(session, 40) and not session.background_tuning(5) and not asked


@pytest.mark.parametrize(
    "entries",
    [{"retune": "0"}, {"level": "0"}, {"strict": "1"}, {"on_miss": "fast"}, {"optimum": "x=8x16"}],
)
def test_sessions_that_promise_one_engine_never_tune(entries, asked):
    options = ort.SessionOptions()
    for name, text in entries.items():
        options.add_session_config_entry(f"pelton.{name}", text)
    session = ort.InferenceSession(network(), options)
    for n in (4, 40, 40):
        assert right(session, n)
    assert session._tuner is None and session.background_tuning() == [] and not asked
    deterministic = ort.SessionOptions()
    deterministic.use_deterministic_compute = True
    assert ort.InferenceSession(network(), deterministic)._tuner is None


def test_a_share_that_is_no_number_is_refused():
    options = ort.SessionOptions()
    options.add_session_config_entry("pelton.retune", "-1")
    with pytest.raises(ort.InputError, match=r"pelton\.retune must be a number of seconds, 0 for never"):
        ort.InferenceSession(network(), options)


def test_an_engine_that_refuses_sizes_of_its_range_leaves_them_to_the_first(asked):
    session = ort.InferenceSession(network())
    assert right(session, 4)
    session._tuner._engines[range_of(rows(40))] = ort.build(network(), level=0, shapes={"x": (40, 16)})
    assert right(session, 40) and right(session, 41)


def test_failures_are_said_and_change_nothing(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Child, "ask", lambda self, request, folder: 1)
    session = ort.InferenceSession(network())
    assert right(session, 4) and right(session, 40)
    assert [t["outcome"] for t in session.background_tuning(60)] == ["stopped (status 1)"]
    assert right(session, 40) and not session._tuner._engines and "stopped (status 1)" in caplog.text


def test_a_child_builds_races_and_answers():
    """The process itself: whether its engine is faster is up to the machine; results are right either way."""
    session = ort.InferenceSession(network())
    assert right(session, 4) and right(session, 40)
    (found,) = session.background_tuning(300)
    assert found["outcome"] in ("kept", "no faster") and found["gain"] > 0
    assert right(session, 40) and not [t for t in threading.enumerate() if t.name == "pelton-tuning" and t.is_alive()]


def test_a_profile_has_the_tunings(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    session = ort.InferenceSession(network(), options)
    assert right(session, 4) and right(session, 40) and session.background_tuning(60)
    assert '"background_tuning"' in Path(session.end_profiling()).read_text()


@pytest.fixture
def endless(monkeypatch):
    """A child that never answers."""
    real = subprocess.Popen
    started = []

    def popen(command, **given):
        if command[1:2] != ["-m"]:  # a compiler
            return real(command, **given)
        started.append(real([command[0], "-c", "import sys; sys.stdin.buffer.read()"], **given))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return started


def until(holds) -> bool:
    """Whether something holds within a minute, which is generous: it takes milliseconds on an idle machine."""
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def test_nothing_is_left_of_a_session_that_is_gone(endless):
    session = ort.InferenceSession(network())
    assert right(session, 4) and right(session, 40) and until(lambda: endless)
    assert right(session, 40)  # no run waits
    assert [t["outcome"] for t in session.background_tuning()] == ["running"]
    del session
    gc.collect()
    assert until(lambda: endless[0].poll() is not None)
    assert until(lambda: not [t for t in threading.enumerate() if t.name == "pelton-tuning"])


def test_a_fork_leaves_the_tuning_to_its_parent(endless):
    session = ort.InferenceSession(network())
    assert right(session, 4) and right(session, 40) and until(lambda: endless)
    child = os.fork()
    if child == 0:  # exits without pytest
        good = not session.background_tuning(60) and right(session, 40)
        del session
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert endless[0].poll() is None
    endless[0].kill()
    assert session.background_tuning(60)[0]["outcome"].startswith("stopped")


def test_ranges_are_powers_of_two():
    assert range_of({"b": np.zeros((3, 4)), "a": np.zeros((7,))}) == ((3,), (2, 3))
    tuner = Tuner(1.0, 1 << 30, lambda shapes: pytest.fail("nothing is asked"))
    assert tuner.run(lambda engine, fed, out: {"y": 1}, ort.build(network(), level=0), rows(1), None) == {"y": 1}
