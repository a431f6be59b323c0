"""Engines for CPUs other than this one: built, written and inspected on any machine, run only on such a CPU."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import machines
import numpy as np
import pytest
from models import small_cnn
from onnx import ModelProto
from script_models import MODELS

import pelton
from pelton.backends import cpu
from pelton.cli import main
from pelton.builder.specialize import Fitted
from pelton.ir.evaluate import evaluate
from pelton.importers.onnx import load as importer
from pelton.targets import BUILT, ISAS, LEVELS, best, fits, lowest
from pelton.options import Options
from pelton.backends.arrays import random_inputs
from pelton.compat.session.engine_cache import key_of
from pelton.compiler.targets import describe_target
from pelton.tuning import search

OF_CPUS = [level for level in LEVELS if level not in ISAS or not ISAS[level].relocatable]
V3, V4 = "x86_64_v3", "x86_64_v4"
REFUSED = (
    r"needs a CPU with avx512bw, avx512cd, avx512dq, avx512f, avx512vl \(level x86_64_v4\), this one \(.+\) has level"
    r" x86_64_v3; "
    r"build it for the target cpu:x86_64_v3"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["cnn", "script"])
def model(request) -> ModelProto:
    """One that is an engine, and one that is a script over engines."""
    return small_cnn(size=12) if request.param == "cnn" else MODELS["nonzero_gather"]()[0]


@pytest.fixture
def path(model, tmp_path) -> str:
    made = tmp_path / "model.onnx"
    made.write_bytes(model.SerializeToString())
    return str(made)


@pytest.mark.parametrize("level", OF_CPUS)
def test_all_that_is_known_of_a_cpu_comes_from_one_place(cpu_of, level):
    features, before = cpu.describe()["features"], key_of([], {}, Options(target="cpu:x86_64_v3"))
    cpu_of(level)
    assert cpu.describe()["isa"] == level
    known = machines.of_level(level)()
    assert describe_target(Options())[0].isa == best(known)
    assert best(known) == next((b for b in reversed(BUILT) if fits(b, known)), lowest(known["arch"]))
    assert ("cpu" in cpu.target(V4)) == ("v4" in level)  # who builds for CPUs like this one says which it is
    assert (key_of([], {}, Options(target="cpu:x86_64_v3")) == before) == (set(LEVELS[level]) == set(features))


@pytest.mark.parametrize(
    "known, level",
    [("x86_64", V3), ("x86_64_v2", V3), ("riscv64", "riscv64_v"), *((level, level) for level in BUILT)],
)
def test_the_best_level_of_a_cpu(known, level):
    assert best(machines.of_level(known)()) == level


def test_an_engine_for_another_cpu_is_written_and_looked_at(path, cache, cpu_of, monkeypatch, capsys, tmp_path):
    cpu_of(V3)
    monkeypatch.setattr(search.Timing, "tune", lambda *a: pytest.fail("it was timed"))
    made = str(tmp_path / "made.pelton")
    assert (
        main(["build", path, "-o", made, "--level", "1", "--target", "cpu:x86_64_v4", "--cache-dir", str(cache)]) == 0
    )
    out, err = capsys.readouterr()
    assert (
        "made for:    x86_64_v4 (guessed for all such CPUs)" in out
        and "kernels are not timed, a cost model chooses: the engine needs a CPU with avx512bw" in err
    )
    engine = pelton.load(made, device=None, verify=True)
    assert engine.plain.target["isa"] == V4 and "cpu" not in engine.plain.target
    assert all(s.info["tactic"].endswith("@x86_64_v4") for part in engine.parts for s in part.steps if s.symbol)
    assert engine.tobytes() == pickle.loads(pickle.dumps(engine)).tobytes()
    for command in (
        ["inspect", made],
        ["inspect", made, "--verify"],
        ["inspect", made, "--json"],
        ["explain", path, "--target", "cpu:x86_64_v4"],
        ["explain", path, "--target", "cpu:x86_64_v4", "--tactics"],
    ):
        assert main(command) == 0, command
    assert "@x86_64_v4" in capsys.readouterr().out


def test_an_engine_for_another_cpu_is_refused_where_it_would_run(path, model, cache, cpu_of, refused, tmp_path):
    cpu_of(V3)
    engine = pelton.build(model, target="cpu:x86_64_v4", level=0, cache_dir=cache)
    made, x = str(tmp_path / "made.pelton"), str(tmp_path / "x.npz")
    engine.save(made)
    feeds = random_inputs([replace(p, shape=engine.shapes()[p.name]) for p in engine.inputs])
    np.savez(x, **feeds)
    for runs in (
        engine.context,
        engine.start,
        lambda: engine.run(feeds),
        lambda: engine(*feeds.values()),
        lambda: pelton.load(made),
        lambda: pelton.load(engine.tobytes()),
        lambda: pickle.loads(pickle.dumps(engine)).run(feeds),
    ):
        with pytest.raises(pelton.EngineError, match=f"^engine '.*' {REFUSED}$"):
            runs()
    for command in (["run", made, "--input", x], ["bench", made], ["compare", path, made]):
        assert "error: engine" in refused(*command)


def test_what_would_run_an_engine_is_refused_before_it_is_built(path, model, cache, cpu_of, refused, monkeypatch):
    cpu_of(V3)
    monkeypatch.setattr(importer, "load", lambda *a, **k: pytest.fail("work was done"))
    options = Options(target="cpu:x86_64_v4", level=0, cache_dir=cache)
    with pytest.raises(pelton.InputError, match=f"^check runs the engine on this machine and {REFUSED}$"):
        pelton.build(model, options=options.but(check=True))
    with pytest.raises(pelton.InputError, match=f"^running a model runs the engine on this machine and {REFUSED}$"):
        Fitted(model, options)
    asked = pelton.SessionOptions()
    for name, text in (("target", options.target), ("level", "0"), ("cache_dir", str(cache))):
        asked.add_session_config_entry(f"pelton.{name}", text)
    with pytest.raises(pelton.InputError, match=f"^the session runs the engine on this machine and {REFUSED}$"):
        session = pelton.InferenceSession(path, asked)
        session.run(
            None,
            {
                a.name: np.zeros([d if isinstance(d, int) else 2 for d in a.shape], np.float32)
                for a in session.get_inputs()
            },
        )
    assert "bench runs the engine on this machine" in refused("bench", path, "--target", "cpu:x86_64_v4")
    assert "measuring errors runs the engine on this machine" in refused(
        "explain", path, "--error", "--target", "cpu:x86_64_v4"
    )


def test_below_the_least_level_there_is_nothing_to_build_for(model, cache, cpu_of):
    cpu_of("x86_64_v2")
    with pytest.raises(
        pelton.EngineError,
        match=r"needs a CPU with avx, avx2.* has level x86_64_v2; Pelton's kernels need x86_64_v3 at least$",
    ):
        pelton.build(model, level=0, cache_dir=cache).start()


@pytest.mark.parametrize("level", [level for level in machines.HERE if machines.runs(level)])
def test_processes_that_tests_start_take_the_cpu_for_the_same(level, tmp_path):
    """They build for it and run it: the runtime loads an engine only where the CPU has its instructions."""
    program = (
        "import sys, pelton; from pelton.backends import cpu; engine = pelton.build(sys.argv[1], level=0);"
        "engine(pelton.backends.arrays.random_inputs(engine.inputs)['x']);"
        "print(cpu.describe()['isa'], engine.plain.target['isa'])"
    )
    (tmp_path / "model.onnx").write_bytes(small_cnn(size=12).SerializeToString())
    path = os.pathsep.join([str(Path(__file__).parent / "imitation"), *filter(None, sys.path)])
    environment = {"PELTON_TEST_CPU": level, "PYTHONPATH": path, "PELTON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program, tmp_path / "model.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.stdout.split() == [level, level], done.stderr


@pytest.mark.parametrize("level", BUILT)
def test_an_engine_of_each_level_is_right_on_cpus_that_have_it(level, cache, cpu_of):
    """Where this is none it is built, linked, read and checked as far as anybody can."""
    cpu_of(level)
    model = small_cnn(size=12)
    data = pelton.build(model, level=0, strict=True, cache_dir=cache).tobytes()
    engine = pelton.load(data, device=None, verify=True)
    assert engine.plain.target["isa"] == level and engine.tobytes() == data
    cpu.code.check_object(engine.plain.code)
    if machines.runs(level):
        x = random_inputs(engine.inputs)
        want = evaluate(importer.load(model).graph, x, round=False)["y"]
        np.testing.assert_allclose(engine.run(x)["y"], want, atol=1e-6 * np.abs(want).max())
