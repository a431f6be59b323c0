"""INT8 from calibration and the best precision for GPUs, without one: compared by a model, interpreted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from models import small_cnn

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402

import pelton  # noqa: E402
from pelton.quantize import best, int8, race  # noqa: E402
from pelton.builder.build import BuildResult, build_detailed  # noqa: E402
from pelton.metrics import sqnr  # noqa: E402
from pelton.options import Options  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return small_cnn(size=12)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data():
    return {"x": np.random.default_rng().standard_normal((12, 3, 12, 12)).astype(np.float32)}


def build(model, cache, **more) -> BuildResult:
    options = dict(target="cuda:sm_90", level=0, cache_dir=cache, max_drop=0.5)
    return build_detailed(model, Options(**{**options, **more}))


def test_layers_are_in_integers_and_outputs_close(model, cache, data, apart, monkeypatch):
    for room in (int8, best):
        monkeypatch.setattr(room, "compare_times", lambda *a: (0.5, ", as told"))
    made = build(model, cache, precision="best", calibration=data)
    report = made.engine.meta["int8"]
    assert made.engine.meta["precision"] == "int8" and report["macs"] == 1
    assert report["rest"] == "fp16"
    assert report["calibrated_on"] == "cpu" and report["held_out"] == 2 and report["accuracy"]["sqnr_db"] > 20
    feed = {name: a[:1] for name, a in data.items()}
    want = pelton.build(model, level=0, cache_dir=cache).run(feed)
    sources = triton_interpreter.sources(made)
    assert sum("INTEGERS = tl.constexpr(True)" in s for s in sources.values()) >= 6
    got, _ = apart.submit(triton_interpreter.ran, made.engine.tobytes(), sources, feed).result()
    assert all(20 < sqnr(want[name], got[name]) < 80 for name in want)
    assert made.engine.meta["best"] == {"fp16": "0.50 of the time of FP32, as told", "int8": "7 of 7 layers"}


def test_what_launches_cost_is_counted(model, cache, data):
    """By the model, a network as small takes longer with a launch more that quantizes its inputs."""
    made = build(model, cache, precision="int8", calibration=data)
    report = made.engine.meta["int8"]
    assert made.engine.meta["precision"] == "int8" and report["macs"] == 0 and not report["accuracy"]
    assert {layer["precision"] for layer in report["layers"]} == {"fp32"}
    assert all("the time of FP32, by a model" in layer["reason"] for layer in report["layers"])


def step(name: str, estimate: float | None, *times: int) -> SimpleNamespace:
    info = {"layers": [name], "times_ns": dict(enumerate(times)), "estimate_us": estimate}
    return SimpleNamespace(info=info, host=False)


def test_steps_take_what_was_timed_or_what_the_model_says():
    timed, guessed, unknown = step("a", 9, 4000, 3000), step("a", 5), step("a", None)
    ratio, how = race.compare_times(*(SimpleNamespace(steps=[s]) for s in (timed, guessed)), {}, False)
    assert (ratio, how) == (0.6, ", by a model")
    assert race.compare_times(*(SimpleNamespace(steps=[s]) for s in (timed, unknown)), {}, False) == (0, "")
    choice = int8.LayerPrecision(SimpleNamespace(name="a", names=("a",), macs=1))
    (choice,) = int8.choose_by_time([choice], *(SimpleNamespace(steps=[s]) for s in (timed, guessed)))
    assert choice.precision == "fp32" and choice.reason == "slower in integers: 5 µs, 3 µs without"


def test_large_layers_are_faster_in_fewer_bits_by_the_model():
    from pelton.codegen.triton import cost
    from pelton.codegen.template import Target

    target = Target(isa="sm_90", lanes=32, threads=132)
    sizes = [cost.microseconds(10**11, 10**7 * size, size, int(size == 4), target) for size in (4, 2, 1)]
    assert sizes[0] > 2 * sizes[1] > 3 * sizes[2] > 0


def test_halves_that_overflow_are_found():
    def engine(y: float) -> SimpleNamespace:
        port = SimpleNamespace(name="x", numpy_dtype=np.float32)
        run = lambda feed: {"y": np.float32([y]), "n": np.array([3])}  # noqa: E731
        return SimpleNamespace(inputs=[port], shapes=lambda: {"x": (2,)}, run=run)

    assert best._overflows(engine(np.inf), engine(1.0)) and best._overflows(engine(np.nan), engine(1.0))
    assert not best._overflows(engine(2.0), engine(1.0)) and not best._overflows(engine(np.inf), engine(np.inf))
