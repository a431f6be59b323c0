"""Building: right outputs at every level, the same bytes from the same times, equal bits for every thread count, clean
cancellation."""

import json
import os
import pathlib
import threading

import numpy as np
import pytest
from onnx import numpy_helper

import pelton
from compare import assert_close
from models import small_cnn, wide_cnn
from onnx_models import one_node
from pelton.backends import cpu
from pelton.cli.build import summary
from pelton.system import files
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.codegen.c.templates import library
from pelton.targets import best
from pelton.codegen.template import Tactic
from pelton.tuning import packed_weights
from pelton.tuning.timing_cache import TimingCache

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def cnn():
    return small_cnn()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def feeds(engine, seed=0):
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.shape).astype(p.numpy_dtype) for p in engine.inputs}


def reference(model, inputs):
    return evaluate(importer.load(model).graph, inputs, round=False)


@pytest.mark.parametrize("level, strict, tolerance", [(0, False, 1e-5), (0, True, 1e-6), (1, False, 1e-5)])
def test_an_engine_gives_what_the_model_means(cnn, cache, level, strict, tolerance):
    engine = pelton.build(cnn, level=level, strict=strict, cache_dir=cache)
    x = feeds(engine)
    got, want = engine.run(x), reference(cnn, x)
    assert np.abs(got["y"] - want["y"]).max() <= tolerance * np.abs(want["y"]).max()
    assert engine.meta["host_steps"] == []
    if strict:
        assert not any("winograd" in s.info["tactic"] for s in engine.steps)


def test_every_region_agrees_with_its_reference(cnn, cache):
    engine = pelton.build(cnn, options=pelton.Options(check=True, level=0, cache_dir=cache))
    assert len(engine.meta["checked"]) == len(engine.steps) and all(error < 1e-4 for _, error in engine.meta["checked"])


def test_the_same_bits_for_every_thread_count_and_run(cnn, cache):
    engine = pelton.build(cnn, level=0, threads=2, cache_dir=cache)
    x = feeds(engine)
    first = engine.context(threads=1).run(x)["y"]
    for threads in (1, 2, 3):
        context = engine.context(threads=threads)
        for _ in range(3):
            assert context.run(x)["y"].tobytes() == first.tobytes()


def test_the_same_timing_cache_gives_the_same_bytes(cnn, tmp_path):
    times = tmp_path / "times.json"
    first = pelton.build(cnn, level=1, threads=2, timing_cache=times, cache_dir=tmp_path / "a").tobytes()
    again = pelton.build(cnn, level=1, threads=2, timing_cache=times, cache_dir=tmp_path / "b").tobytes()
    assert first == again


def test_inner_tensors_can_be_asked_for(cnn, cache):
    engine = pelton.build(cnn, level=0, outputs=["ab", "y"], cache_dir=cache)
    x = feeds(engine)
    got, want = engine.run(x), evaluate(importer.load(cnn, outputs=["ab", "y"]).graph, x, round=False)
    assert list(got) == ["ab", "y"]
    for name in got:
        assert np.abs(got[name] - want[name]).max() < 1e-5 * np.abs(want[name]).max()


def test_progress_is_told_and_can_cancel(cnn, tmp_path):
    calls = []
    pelton.build(cnn, level=1, cache_dir=tmp_path, progress=lambda *a: calls.append(a))
    assert list(dict.fromkeys(s for s, *_ in calls)) == [
        "import",
        "optimize",
        "layout",
        "compile",
        "tune",
        "link",
        "done",
    ] and calls[-1] == ("done", 1, 1)
    for stop, directory in (("optimize", tmp_path), ("compile", tmp_path / "empty"), ("link", tmp_path)):
        with pytest.raises(pelton.Error, match=f"cancelled while in stage '{stop}'"):
            pelton.build(cnn, level=1, cache_dir=directory, progress=lambda stage, *_, stop=stop: stage != stop)


def test_a_budget_of_nothing_times_nothing(cnn, tmp_path, caplog):
    engine = pelton.build(cnn, level=3, budget=0, cache_dir=tmp_path)
    assert all(not s.info["times_ns"] for s in engine.steps) and "budget" not in caplog.text
    engine = pelton.build(cnn, level=3, budget=1e-6, cache_dir=tmp_path)
    assert (
        all(not s.info["times_ns"] for s in engine.steps)
        and caplog.text.count("the budget of 1e-06 s is over in stage tune") == 1
    )


def test_an_unwritable_cache_costs_time_not_the_build(cnn, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache directory must be")
    engine = pelton.build(cnn, level=0, cache_dir=blocked)
    assert engine.run(feeds(engine))["y"].shape == (1, 10)


def test_layouts_go_by_the_times(cnn, tmp_path, cache):
    """The first layer reads planes where that is faster than a copy and what comes after it, by however little."""
    file = tmp_path / "times.json"
    pelton.build(cnn, level=1, timing_cache=file, cache_dir=cache)
    written = json.loads(file.read_text())
    for planes, template, copies in ((1000, "conv_planar", 0), (10**9, "conv", 1)):
        for known in next(iter(written["times"].values())).values():
            known.update({name: planes for name in known if name.startswith("conv_planar")})
        file.write_text(json.dumps(written))
        engine = pelton.build(cnn, level=1, timing_cache=file, cache_dir=cache)
        (decided,) = engine.meta["layouts"]
        assert (decided["template"], decided["unit"], decided["layers"]) == (
            template,
            "ns",
            ["stem", "stem.relu"],
        ) and min(decided["more"].values()) > 0
        assert len(engine.meta["copies"]) == copies and engine.steps[copies].info["tactic"].startswith(f"{template}:")


def test_a_named_timing_cache_that_cannot_be_written_is_an_error(cnn, tmp_path, cache):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(pelton.Error, match="timing cache"):
        pelton.build(cnn, level=1, timing_cache=blocked / "times.json", cache_dir=cache)
    for text in ("x", "[]", "3", '{"version": 1, "times": [1]}'):
        blocked.write_text(text)
        with pytest.raises(pelton.BuildError) as e:
            pelton.build(cnn, level=1, timing_cache=blocked, cache_dir=cache)
        assert str(e.value) == f"{blocked} is no timing cache of version 1; use another file with timing_cache="


def test_a_timing_cache_is_merged_with_what_others_wrote(tmp_path):
    path = tmp_path / "times.json"
    ours, theirs = TimingCache("here", path), TimingCache("there", path)
    ours.put("task", {"a": 1})
    theirs.put("task", {"b": 2})
    ours.save()
    theirs.save()
    assert TimingCache("here", path).get("task") == {"a": 1} and TimingCache("there", path).get("task") == {"b": 2}
    assert os.listdir(tmp_path) == ["times.json"]


def test_timing_caches_that_are_saved_at_once_lose_nothing(tmp_path, monkeypatch):
    path, write = tmp_path / "times.json", files.write
    ours, theirs = TimingCache("here", path), TimingCache("here", path)
    ours.put("task", {"a": 1})
    theirs.put("task", {"b": 2})
    other = threading.Thread(target=theirs.save)

    def meanwhile(*args):
        monkeypatch.setattr(files, "write", write)
        other.start()
        other.join(0.5)  # it is done by then, unless it waits for us
        write(*args)

    monkeypatch.setattr(files, "write", meanwhile)
    ours.save()
    other.join()
    assert TimingCache("here", path).get("task") == {"a": 1, "b": 2} and os.listdir(tmp_path) == ["times.json"]


@pytest.mark.parametrize(
    "given, words",
    [
        ({"level": 6}, "level"),
        ({"progress": True}, "progress must be a function"),
        ({"threads": 0}, "threads"),
        ({"target": "tpu"}, "target"),
        ({"target": "cpu:sse2"}, "made for x86_64_v3, x86_64_v3_vnni, x86_64_v4"),
        ({"precision": "int3"}, "precision"),
        ({"budget": -1}, "budget"),
        ({"colour": 1}, "colour"),
        ({"shapes": {"nope": (1,)}}, "nope"),
        ({"outputs": ["nope"]}, "nope"),
    ],
)
def test_options_that_do_not_fit_are_refused(cnn, cache, given, words):
    with pytest.raises(pelton.Error, match=words):
        pelton.build(cnn, cache_dir=cache, **given)


def test_an_engine_is_for_the_level_that_it_is_asked_for(cnn, cache):
    engine = pelton.build(cnn, level=1, target="cpu:x86_64_v3", cache_dir=cache)
    here = pelton.build(cnn, level=0, cache_dir=cache)
    assert engine.plain.target["isa"] == "x86_64_v3" and all(
        s.info["tactic"].endswith("@x86_64_v3") for s in engine.steps
    )
    assert here.plain.target["isa"] == best(cpu.describe())
    x = feeds(engine)
    np.testing.assert_allclose(engine.run(x)["y"], here.run(x)["y"], atol=1e-5)


@pytest.mark.parametrize("name, least", [("resnet20", 0.8565), ("mobile", 0.8490)])
@pytest.mark.skipif(not SHARED.exists(), reason="the CIFAR-10 sample lies beside the repository, not in it")
def test_trained_networks_keep_their_classes(cache, name, least):
    data = np.load(SHARED / "cifar10_test.npz")
    engine = pelton.build(SHARED / f"{name}_cifar10.onnx", level=0, cache_dir=cache)
    context = engine.context()
    said = np.array(
        [context.run({"image": x.transpose(2, 0, 1)[None].astype(np.float32)})["logits"].argmax() for x in data["x"]]
    )
    assert abs((said == data["y"]).mean() - least) <= 1 / 2000


def test_a_comparison_of_outputs_can_fail(cnn, cache):
    engine = pelton.build(cnn, level=0, cache_dir=cache)
    a, b = engine.run(feeds(engine, 0))["y"], engine.run(feeds(engine, 1))["y"]
    with pytest.raises(AssertionError):
        assert_close(a, b)


def test_packed_weights_are_bounded_by_the_cheapest_changes():
    template = library.TEMPLATES["winograd"]

    def way(ns, nbytes):
        return packed_weights.PackedCandidate(template, Tactic("winograd", "x86_64_v3", (("F", nbytes),)), ns, nbytes)

    ways = {"a": [way(10, 100), way(11, 50), way(30, 10)], "b": [way(10, 100), way(20, 50)], "c": [way(1, 5)]}
    first = {"a": 0, "b": 0, "c": 0}
    shared = {"a": 1, "b": 2, "c": 1}
    assert packed_weights.limit_packed_weights(ways, first, shared, 1000) == first
    assert packed_weights.limit_packed_weights(ways, first, shared, 255) == {"a": 1, "b": 0, "c": 0}
    assert packed_weights.limit_packed_weights(ways, first, shared, 200) == {"a": 1, "b": 1, "c": 0}
    assert packed_weights.limit_packed_weights(ways, first, shared, 0) == {"a": 2, "b": 1, "c": 0}


def test_an_engine_keeps_its_weights_within_twice_the_models(cache):
    model = wide_cnn()
    weights = sum(numpy_helper.to_array(w).nbytes for w in model.graph.initializer)
    engine = pelton.build(model, level=0, cache_dir=cache)
    assert len(engine.tobytes()) < 2 * weights + (1 << 18)
    assert any("winograd" in s.info["tactic"] for s in engine.steps)


def test_larger_weights_say_what_they_save():
    template = library.TEMPLATES["winograd"]
    ways = [
        packed_weights.PackedCandidate(template, Tactic("winograd", "x86_64_v3", (("F", n),)), ns, n)
        for ns, n in ((10.0, 400), (25.0, 100), (18.0, 90), (0.0, 50))
    ]
    assert packed_weights.packing(ways, 0, own=100) == packed_weights.Packing(100, 400, 8.0)
    assert packed_weights.packing(ways, 1, own=100) == packed_weights.Packing(100, 100, 0.0)
    assert packed_weights.packing(ways[:1], 0, own=100).saved == 0


def test_an_engine_knows_what_its_weights_take(cache):
    model = wide_cnn()
    engine = pelton.build(model, level=0, cache_dir=cache)
    found = engine.meta["weights"]
    stored = sum(numpy_helper.to_array(w).nbytes for w in model.graph.initializer)
    assert found["own"] == pytest.approx(stored, rel=0.01)  # biases that it leaves out are zeros
    assert stored < found["packed"] == pytest.approx(len(engine.constants), rel=0.01)
    assert "× the model's" in summary(engine)


@pytest.mark.parametrize(
    "base,exponent",
    [("i64", "i64"), ("i32", "i64"), ("i64", "i32"), ("i64", "f32"), ("i32", "f64"), ("i64", "u8"), ("u8", "i8")],
)
def test_powers_of_integers_are_whole(base, exponent, cache):
    """3 to the 1 is not 2, which it was by float64 and truncation; what is too large wraps where both are integers."""
    engine = pelton.build(one_node("Pow", f"{base}[3]", f"{exponent}[50, 3]", opset=15), level=0, cache_dir=cache)
    x_type, y_type = (p.numpy_dtype for p in engine.inputs)
    rng = np.random.default_rng()
    for _ in range(20):
        x, y = (
            rng.integers(0 if base == "u8" else -12, 13, 3).astype(x_type),
            rng.integers(0, 9, (50, 3)).astype(y_type),
        )
        want = np.power(x.astype(np.int64), y.astype(np.int64)).astype(x_type)
        assert np.array_equal(engine.run({"x0": x, "x1": y})["y0"], want)
