"""Tactic replay: the same engine from a record, without a clock; and refused tactics files."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from models import inverted_residuals, model, small_cnn, wide_cnn
from onnx import helper
from script_models import MODELS

import pelton
from pelton.compiler import targets
from pelton.cli import main
from pelton.builder.build import build_detailed
from pelton.engine import file
from pelton.importers.onnx import load as importer
from pelton.ir.dims import Undecided
from pelton.ir.text import key
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import Target
from pelton.options import Options
from pelton.passes import pipeline
from pelton.plan import fuse
from pelton.backends.arrays import random_inputs
from pelton.runtime.script_engine import ScriptEngine
from pelton.compat.session.engine_cache import key_of
from pelton.tuning import candidates, chains, replay, search

# the package offers the function `build` under the same name
building = importlib.import_module("pelton.builder.build")
L2 = 64 << 10  # in which the images of inverted_residuals do not fit


def dense():
    """Two layers and their sum, of any batch."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "v"], ["c"], name="second"),
        helper.make_node("Add", ["c", "x"], ["s"], name="sum"),
        helper.make_node("Softmax", ["s"], ["y"], axis=1, name="soft"),
    ]
    constants = {"w": rng.standard_normal((20, 33)), "b": rng.standard_normal(33), "v": rng.standard_normal((33, 20))}
    constants = {name: a.astype(np.float32) for name, a in constants.items()}
    return model(nodes, {"x": ("n", 20)}, {"y": ("n", 20)}, constants)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cnn():
    return small_cnn()


@pytest.fixture(scope="module")
def recorded(cnn, cache):
    """What a build at level 0 wrote."""
    pelton.build(cnn, level=0, save_tactics=cache / "cnn.json", cache_dir=cache)
    return json.loads((cache / "cnn.json").read_text())


@pytest.fixture
def small(monkeypatch):
    """Caches so small that there are chains."""
    real = targets.cpu.describe
    monkeypatch.setattr(targets.cpu, "describe", lambda o: (replace(real(o)[0], l2=L2), real(o)[1]))


@pytest.fixture
def no_clock(monkeypatch):
    def make():
        def clock(*args, **more):
            raise AssertionError("something was timed")

        monkeypatch.setattr(search, "Timing", clock)

    return make


def bare(plain):
    """The bytes of an engine file, with nothing of what was timed."""
    steps = tuple(replace(s, info={k: v for k, v in s.info.items() if k != "times_ns"}) for s in plain.steps)
    return file.to_bytes(replace(plain, meta={}, steps=steps))


def same(first, second):
    """Whether two engines are the same but for what was timed."""
    if not isinstance(first, ScriptEngine):
        return bare(first.plain) == bare(second.plain)
    a, b = first.script, second.script
    return a.main == b.main and [*map(bare, a.engines)] == [*map(bare, b.engines)]


CASES = {
    "a network": (small_cnn, 1, {}),
    "large weights": (wide_cnn, 1, {}),
    "chains": (inverted_residuals, 0, {}),
    "timed chains": (inverted_residuals, 1, {}),
    "open sizes": (dense, 1, {"shapes": {"x": "1..6..64x20"}}),
    "a script": (lambda: MODELS["detector"]()[0], 1, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_engine_of_recorded_tactics_is_the_same(case, cache, tmp_path, small, no_clock):
    make, level, more = CASES[case]
    source, names = make(), [tmp_path / "first.json", tmp_path / "again.json"]
    more = {**more, "threads": 2, "cache_dir": cache}
    first = pelton.build(source, level=level, save_tactics=names[0], **more)
    no_clock()
    again = pelton.build(source, level=3, load_tactics=names[0], save_tactics=names[1], **more)
    assert same(first, again) and names[0].read_bytes() == names[1].read_bytes()
    assert all(not s.info.get("times_ns") for s in again.steps) and again.meta["level"] == 3
    if isinstance(first, ScriptEngine):
        feeds = MODELS["detector"]()[1]
        assert len(json.loads(names[0].read_text())["programs"]) == 2
    else:
        shapes = first.shapes()
        feeds = [random_inputs([replace(p, shape=shapes[p.name]) for p in first.inputs], seed) for seed in range(2)]
    for x in feeds:
        got, want = again.run(x), first.run(x)
        assert got.keys() == want.keys() and all(got[name].tobytes() == want[name].tobytes() for name in want)
    joined = sum("one kernel" in line for line in first.meta["chains"])
    assert len(again.meta["chains"]) == joined and (case != "chains" or joined == 3)


def test_what_differs_is_what_was_timed(cnn, cache, tmp_path):
    """As docs/tuning.md says it: an external file beside the recording, the same file for each replay."""
    common = {"level": 1, "threads": 1, "cache_dir": cache}
    first = pelton.build(cnn, save_tactics=tmp_path / "t.json", **common)
    again, other = (pelton.build(cnn, load_tactics=tmp_path / "t.json", **common) for _ in range(2))
    assert again.tobytes() == other.tobytes() != first.tobytes()
    timed = dict(first.meta, recorded=True, layouts=[], weights={**first.meta["weights"], "saved_ns": 0})
    assert again.meta == timed and same(first, again)


def test_what_runs_by_reference_is_recorded_as_nothing(cache, tmp_path, monkeypatch, no_clock):
    """A program of a script that becomes no engine, because of a size that nobody knows."""
    real, path, source = building.compile_graph, tmp_path / "t.json", MODELS["detector"]()[0]

    def compiled(imported, options, before):
        if any(n.op.name == "convolution" for n in imported.graph.nodes):
            return real(imported, options, before)
        assert before is None
        raise Undecided("n is not known")

    monkeypatch.setattr(building, "compile_graph", compiled)
    first = pelton.build(source, level=1, save_tactics=path, cache_dir=cache)
    no_clock()
    again = pelton.build(source, level=1, load_tactics=path, cache_dir=cache)
    assert [p is None for p in json.loads(path.read_text())["programs"]] == [False, True]
    assert len(first.script.engines) == 1 and same(first, again)
    monkeypatch.setattr(building, "compile_graph", real)
    with pytest.raises(pelton.BuildError, match="but this build has one; build without load_tactics="):
        pelton.build(source, load_tactics=path, cache_dir=cache)


def test_chains_are_joined_again_whatever_the_caches():
    graph = pipeline.run(importer.load(inverted_residuals()).graph, Options())[0]
    fused = fuse.fuse(graph, candidates.rejection)
    first = chains.join(fused, None, Target(l2=L2, threads=2), False, 1)
    texts = [key(r.body) for r in first.joined]
    again = chains.rejoin(fused, texts, Target(), False)
    assert len(texts) == 3 and [key(r.body) for r in again.joined] == texts and len(again.items) == len(first.items)
    pairs = [key(chains.join_regions(graph, run[:2]).body) for run in chains.find_chains(fused, Target(l2=L2), False)]
    part = chains.rejoin(fused, pairs, Target(), False)
    assert [len(r.anchors) for r in part.joined] == [2] * 4  # shorter ones than there could be
    assert chains.rejoin(fused, [], Target(), False).items == fused.items


def test_the_file_knows_no_names_of_the_model(recorded):
    said = json.dumps(recorded)
    assert not any(name in said for name in ("stem", "wide", "residual", "join", ".py", '.c"'))
    assert [t["template"] for t in recorded["programs"][0]["templates"]] and recorded["version"] == 1


def test_the_number_of_threads_is_recorded(cnn, cache, tmp_path, monkeypatch, caplog):
    path, here = tmp_path / "t.json", "pelton.compiler.targets.cpu.cpu.default_threads"
    options = dict(load_tactics=path, cache_dir=cache)
    monkeypatch.setattr(here, lambda: 1)
    pelton.build(cnn, level=0, save_tactics=path, cache_dir=cache)
    first = pelton.build(cnn, **options)
    monkeypatch.setattr(here, lambda: 2)
    again = pelton.build(cnn, **options)
    assert again.meta["threads"] == 1 and file.to_bytes(first.plain) == file.to_bytes(again.plain)
    assert build_detailed(cnn, Options(**options)).engine.meta["threads"] == 1
    assert pelton.build(cnn, threads=1, **options).meta["recorded"] and not caplog.messages
    assert pelton.build(cnn, threads=4, **options).meta["threads"] == 4
    assert "the number of threads is 4, but the tactics in" in caplog.text and "recorded for 1" in caplog.text
    old = json.loads(path.read_text())
    del old["threads"]
    path.write_text(json.dumps(old))
    assert pelton.build(cnn, **options).meta["threads"] == 2


# --- what is refused


def changed(data, *path, to):
    """A copy of the file's data with one thing in another's place."""
    data = json.loads(json.dumps(data))
    at = data
    for k in path[:-1]:
        at = at[k]
    at[path[-1]] = to(at[path[-1]]) if callable(to) else to
    return data


@pytest.mark.parametrize(
    "path, to, why",
    [
        (["version"], 2, "no recorded tactics of version 1"),
        (["target"], 3, "no recorded tactics"),
        (["target"], "x86_64_v0", "were recorded for x86_64_v0"),
        (["threads"], 0, "no recorded tactics"),
        (["threads"], "2", "no recorded tactics"),
        (["programs"], {}, "no recorded tactics"),
        (["programs", 0], 3, "no recorded tactics"),
        (["programs", 0], {}, "no recorded tactics"),
        (["programs", 0, "chains"], ["a"], "no recorded tactics"),
        (["programs", 0, "templates", 0, "region"], "a", "no recorded tactics"),
        (["programs", 0, "templates", 0, "template"], None, "no recorded tactics"),
        (["programs", 0, "kernels", 0, "layouts", 0], 3, "no recorded tactics"),
        (["programs", 0, "kernels", 0], [], "no recorded tactics"),
        (["programs"], lambda p: p * 2, "a model that becomes 2 programs, this one becomes 1"),
        (["programs", 0], None, "but this build has one"),
        (
            ["programs", 0, "templates"],
            lambda t: t[1:],
            r"stem\+stem.relu \(convolution\+relu\) is not recorded; build",
        ),
        (
            ["programs", 0, "templates"],
            lambda t: [*t, t[0]],
            "1 recorded regions are not in this program, such as .*conv",
        ),
        (
            ["programs", 0, "templates", 0, "template"],
            "pool",
            "stem.* was recorded in the layouts of the template 'pool'",
        ),
        (["programs", 0, "kernels"], [], "is not recorded with operands of the strides"),
        (
            ["programs", 0, "kernels", -1, "tactic"],
            "gemm:mr=99@here",
            "tactic 'gemm:mr=99@here', which is not possible",
        ),
    ],
)
def test_what_does_not_fit_is_refused(cnn, cache, tmp_path, recorded, path, to, why):
    (tmp_path / "t.json").write_text(json.dumps(changed(recorded, *path, to=to)))
    with pytest.raises(pelton.BuildError, match=why):
        pelton.build(cnn, level=0, load_tactics=tmp_path / "t.json", cache_dir=cache)


def test_another_model_and_another_precision_are_refused(cnn, cache, recorded):
    with pytest.raises(pelton.BuildError, match=r"conv0\+relu0 \(convolution\+relu\) is not recorded"):
        pelton.build(wide_cnn(), load_tactics=cache / "cnn.json", cache_dir=cache)
    with pytest.raises(pelton.BuildError, match="recorded for a model that becomes 1 programs, this one becomes 2"):
        pelton.build(MODELS["detector"]()[0], load_tactics=cache / "cnn.json", cache_dir=cache)
    if not recorded["target"].endswith("v3"):
        with pytest.raises(pelton.BuildError, match="this build is for x86_64_v3"):
            pelton.build(cnn, target="cpu:x86_64_v3", load_tactics=cache / "cnn.json", cache_dir=cache)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000, "\xff\xfe", '{"version": 1}'])
def test_what_is_no_file_of_tactics(cnn, cache, tmp_path, text):
    (tmp_path / "t.json").write_text(text, "latin-1")
    with pytest.raises(pelton.BuildError, match="holds no recorded tactics of version 1; build without"):
        pelton.build(cnn, load_tactics=tmp_path / "t.json", cache_dir=cache)


def test_files_that_cannot_be_read_or_written(cnn, cache, tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(pelton.BuildError, match="cannot read the recorded tactics .*load_tactics="):
            pelton.build(cnn, load_tactics=path, cache_dir=cache)
    for path in (tmp_path, tmp_path / "none" / "t.json"):
        with pytest.raises(pelton.BuildError, match="cannot write tactics to .*save_tactics="):
            pelton.build(cnn, save_tactics=path, cache_dir=cache)
        with pytest.raises(pelton.BuildError, match="cannot write tactics to .*save_tactics="):
            replay.write(path, "x86_64_v3", replay.Recorded(1, []))


def test_a_build_that_fails_records_nothing(cache, tmp_path):
    with pytest.raises(pelton.Error):
        pelton.build(small_cnn(), save_tactics=tmp_path / "t.json", memory=1000, cache_dir=cache)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given, why",
    [
        (dict(load_tactics="t.json", budget=1.0), "without timing; leave it out, or budget="),
        (dict(load_tactics="t.json", timing_cache="c.json", budget=1.0), "leave it out, or budget= and timing_cache="),
        (
            dict(load_tactics="t.json", target="cuda"),
            "`pelton tune` times the kernels of engines for GPUs; leave out load_tactics=",
        ),
        (dict(save_tactics="t.json", target="cuda:sm_90"), "the target is 'cuda:sm_90'.* leave out save_tactics="),
    ],
)
def test_options_that_do_not_go_together(given, why):
    with pytest.raises(pelton.InputError, match=why):
        Options(**given)


def test_by_the_command_line(capsys, tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cnn.onnx").write_bytes(small_cnn(size=12).SerializeToString())
    args = ["build", "cnn.onnx", "--threads", "1", "--cache-dir", str(cache)]
    assert main([*args, "--level", "0", "--save-tactics", "t.json", "-o", "a.pelton"]) == 0
    assert main([*args, "--level", "0", "--load-tactics", "t.json", "-o", "b.pelton"]) == 0
    assert same(pelton.load("a.pelton"), pelton.load("b.pelton"))
    said = capsys.readouterr().out
    assert "estimated, none timed" in said and "replayed, none timed" in said
    data = json.loads((tmp_path / "t.json").read_text())
    (tmp_path / "t.json").write_text(json.dumps(changed(data, "programs", 0, "kernels", to=[])))
    assert main([*args, "--load-tactics", "t.json"]) == 2
    assert "build without --load-tactics, or record the tactics again with --save-tactics" in capsys.readouterr().err
    assert main([*args, "--load-tactics", "t.json", "--budget", "3"]) == 2
    assert "--load-tactics repeats recorded tactics" in capsys.readouterr().err


def test_sessions_know_engines_by_the_tactics(tmp_path):
    path, none = tmp_path / "t.json", key_of([], {}, Options())
    missing = key_of([], {}, Options(load_tactics=path))
    path.write_text("a")
    first = key_of([], {}, Options(load_tactics=path))
    path.write_text("b")
    assert len({none, missing, first, key_of([], {}, Options(load_tactics=path))}) == 4
    assert key_of([], {}, Options(save_tactics=path)) == none
