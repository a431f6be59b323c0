"""Engines between processes: those from files travel by path and hash, all others with their weights."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle

import numpy as np
import pytest
from handmade import chain
from refit_models import CASES, trained_further
from script_harness import builder, by_name
from script_models import MODELS
from test_signatures import public_pem, signed  # noqa: F401
from test_signatures import keys as keys  # a fixture

import pelton
from pelton.runtime import Engine
from pelton.runtime.script_engine import ScriptEngine

N = 50_000  # constants of 200 KB
SMALL = 1000  # bytes of a pickle without weights


def run_and_name(engine, x):
    return {name: array.tobytes() for name, array in engine.run(x).items()}, engine.plain.file


@pytest.fixture
def path(tmp_path):
    Engine(chain(N)).save(tmp_path / "e.pelton")
    return tmp_path / "e.pelton"


def test_by_path_to_another_process(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    engine, x = pelton.load("e.pelton"), {"x": np.arange(N, dtype=np.float32)}
    assert len(pickle.dumps(engine)) < SMALL
    monkeypatch.chdir("/")  # the path is absolute
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results, file = pool.apply_async(run_and_name, (engine, x)).get(120)
    assert file == str(path) and results == run_and_name(engine, x)[0]
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(engine))))
    assert again.source == engine.source and again.tobytes() == engine.tobytes()


def test_with_weights_if_there_is_no_file(path):
    for engine in (Engine(chain(N)), pelton.load(path.read_bytes())):
        sent = pickle.dumps(engine)
        assert len(sent) > 4 * N and pickle.loads(sent).tobytes() == path.read_bytes()


def test_a_missing_file_and_another_one_are_refused(path):
    sent = pickle.dumps(pelton.load(path))
    Engine(chain(N, constant=np.ones(N, np.float32))).save(path)
    with pytest.raises(pelton.EngineError, match=f"^the file {path} is not the engine that was sent.*same file there"):
        pickle.loads(sent)
    path.write_bytes(b"no engine")
    with pytest.raises(pelton.EngineError, match=f"^{path} is not a Pelton engine"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(pelton.EngineError, match=f"^there is no engine {path} on this machine; .*same file there") as e:
        pickle.loads(sent)
    assert isinstance(e.value, FileNotFoundError) and e.value.filename == str(path)


def test_a_replaced_file_does_not_change_the_digest_of_the_loaded_one(path):
    engine, old = pelton.load(path), path.read_bytes()
    Engine(chain(N, constant=np.ones(N, np.float32))).save(path)
    assert engine.tobytes() == old != path.read_bytes()
    with pytest.raises(pelton.EngineError, match="another one"):
        pickle.loads(pickle.dumps(engine))


def test_copies_need_no_file(path):
    engine, x = pelton.load(path), {"x": np.arange(N, dtype=np.float32)}
    os.unlink(path)
    for made in (copy.copy(engine), copy.deepcopy(engine), copy.deepcopy([engine])[0]):
        assert made is not engine and run_and_name(made, x) == run_and_name(engine, x) and made.source == engine.source
    assert copy.deepcopy(Engine(chain(N))).source is None


def test_refitted_ones_have_their_weights_with_them(tmp_path):
    rng = np.random.default_rng(0)
    made = CASES["batch_norms"](rng)
    pelton.build(made, level=0, refit=True).save(tmp_path / "r.pelton")
    engine = pelton.load(tmp_path / "r.pelton")
    kept, (_, new) = copy.copy(engine), trained_further(made, engine.refittable, rng)
    engine.refit(new)
    assert engine.source is None and pickle.loads(pickle.dumps(engine)).tobytes() == engine.tobytes()
    assert kept.source and pickle.loads(pickle.dumps(kept)).tobytes() == (tmp_path / "r.pelton").read_bytes()


def test_trusted_ones_have_their_weights_with_them(signed, keys):  # noqa: F811
    """The receiver could not repeat the check of signatures."""
    source = signed if isinstance(signed, (str, os.PathLike)) else signed[0]
    assert pelton.load(source, device=None).source
    engine = pelton.load(source, device=None, trust=public_pem(keys[0]))
    assert engine.source is None and pickle.loads(pickle.dumps(engine)).tobytes() == engine.tobytes()


def test_scripts(tmp_path):
    engine = by_name(builder(tmp_path))("scanned_rnn")
    _, every = MODELS["scanned_rnn"]()
    assert isinstance(pickle.loads(pickle.dumps(engine)), ScriptEngine)
    engine.save(tmp_path / "s.pelton")
    loaded = pelton.load(tmp_path / "s.pelton")
    sent = pickle.dumps(loaded)
    assert len(sent) < SMALL
    for made in (pickle.loads(sent), copy.copy(loaded), copy.deepcopy(engine)):
        assert isinstance(made, ScriptEngine)
        assert run_and_name(made, every[0])[0] == run_and_name(engine, every[0])[0]
