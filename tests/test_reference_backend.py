"""The device on which the reference runs every step: a minimal backend, with engines against it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from handmade import chain
from onnx_models import model
from onnx import helper

import pelton
from pelton.backends.arrays import random_inputs
from pelton.backends import FOLDERS, backend
from pelton.backends.device import Backend
from pelton.builder.build import BuildResult, build_detailed
from pelton.compiler.targets.reference import by_reference
from pelton.engine import file
from pelton.errors import EngineError, InputError
from pelton.options import Options

RNG = np.random.default_rng(7)
WEIGHTS = {
    "w": RNG.standard_normal((6, 3, 3, 3)).astype(np.float32),
    "v": RNG.standard_normal((6, 6, 1, 1)).astype(np.float32),
    "k": RNG.standard_normal((6, 5)).astype(np.float32),
}
NODES = [
    helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c"], ["r"], "relu"),
    helper.make_node("Conv", ["r", "v"], ["d"], "pointwise"),
    helper.make_node("Add", ["d", "r"], ["s"], "sum"),
    helper.make_node("GlobalAveragePool", ["s"], ["g"], "pool"),
    helper.make_node("Flatten", ["g"], ["f"], "flat"),
    helper.make_node("MatMul", ["f", "k"], ["y"], "head"),
]


@pytest.fixture(scope="module", params=["f32[2, 3, 8, 8]", "f32[n, 3, 8, 8]"], ids=["fixed", "open"])
def made(request, tmp_path_factory) -> BuildResult:
    return build_detailed(
        model(NODES, {"x": request.param}, ["y", "s"], WEIGHTS),
        Options(level=0, cache_dir=tmp_path_factory.mktemp("cache")),
    )


def reference(made: BuildResult) -> pelton.Engine:
    return pelton.Engine(by_reference(made.engine.plain, made.placed, made.scheduled))


def feeds(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)}


def test_every_kind_of_device_has_the_whole_protocol():
    for arch in (*FOLDERS, "x86_64", "anything else"):
        found = backend({"arch": arch})
        assert isinstance(found, Backend) and all(callable(getattr(found, f.name)) for f in dataclasses.fields(found))
    assert backend({}) is backend({"arch": "x86_64"}) and backend({"arch": "reference"}) is not backend({})


def test_kernels_give_what_the_reference_gives(made):
    engine = reference(made)
    assert (
        len(engine.steps) == len(made.engine.steps)
        and all(s.host and not s.symbol for s in engine.steps)
        and not engine.plain.code
    )
    for batch in (2, 3) if engine.symbols else (2,):
        got, want = made.engine.run(feeds(batch)), engine.run(feeds(batch))
        assert got.keys() == want.keys() and all(
            np.allclose(got[k], want[k], atol=1e-4) and got[k].shape == want[k].shape for k in got
        )


def test_engines_for_the_reference_are_engines(made, tmp_path):
    engine = reference(made)
    engine.save(tmp_path / "e.pelton")
    again, x = pelton.load(tmp_path / "e.pelton", verify=True), feeds(2)
    assert file.read(again.tobytes()).target["arch"] == "reference" and again.tobytes() == engine.tobytes()
    want, context = engine.run(x), again.context()
    out = {"y": np.empty_like(want["y"])}
    results = context.run(x, out)
    assert results["y"] is out["y"] and all(np.array_equal(results[k], want[k]) for k in want)
    assert (context.machine, context.threads, context.stream) == ("the reference", 1, None)
    assert np.array_equal(context(x["x"])[0], want["y"])
    results, stamps = context.trace(x)
    assert [s.name for s, *_ in stamps] == [s.name for s in again.steps] == [s.name for s, _ in context.profile(x)]
    assert all(begin <= end for _, begin, end in stamps) and np.array_equal(results["s"], want["s"])


def test_what_a_step_writes_can_be_seen_and_what_nobody_wrote_is_no_number(made):
    engine, seen = reference(made), []
    context = engine.context()

    def see(done: int, ready) -> None:
        last = ready.plain.steps[-1].outputs[0].slice.buffer
        seen.append(np.isnan(ready.memory(last).view(np.float32)).all())

    assert np.array_equal(context.watch(feeds(2), see)["y"], engine.run(feeds(2))["y"])
    assert len(seen) == len(engine.steps) + 1 and seen[0] and not seen[-1]


def test_what_it_refuses(made):
    engine, x = reference(made), feeds(2)
    with pytest.raises(InputError, match="in one thread, got 2"):
        engine.context(2)
    with pytest.raises(InputError, match="is for the reference backend, which has no alternative kernels"):
        pelton.tune(engine)
    with pytest.raises(InputError, match="run_async is for engines that run on a GPU"):
        engine.context().run_async(x)
    with pytest.raises(InputError, match=r"input 'x' needs f32\[.*\], got float64|numpy float32"):
        engine.run({"x": x["x"].astype(np.float64)})
    with pytest.raises(InputError, match="shares memory with input 'x'"):
        shared = np.zeros((2, 6, 8, 8), np.float32)
        engine.run({"x": shared.reshape(-1)[:384].reshape(2, 3, 8, 8)}, {"s": shared})
    with pytest.raises(InputError, match="that can be written"):
        fixed = np.zeros((2, 5), np.float32)
        fixed.flags.writeable = False
        engine.run(x, {"y": fixed})
    with pytest.raises(EngineError, match="does not run kernels such as 'scale'"):
        pelton.Engine(dataclasses.replace(chain(), target={"arch": "reference"}))
    with pytest.raises(EngineError, match="is for plan9, this machine runs"):
        pelton.Engine(dataclasses.replace(engine.plain, target={**engine.plain.target, "os": "plan9"})).start()


def test_sizes_as_data(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], "shape"),
        helper.make_node("Cast", ["n"], ["m"], "cast", to=1),
        helper.make_node("ReduceSum", ["m"], ["t"], "count", keepdims=0),
        helper.make_node("Mul", ["x", "t"], ["y"], "times"),
    ]
    made = build_detailed(model(nodes, {"x": "f32[rows, 3]"}, ["y"], {}), Options(level=0, cache_dir=tmp_path))
    engine = reference(made)
    for rows in (1, 4):
        x = random_inputs([dataclasses.replace(p, shape=(rows, 3)) for p in engine.inputs])
        assert np.array_equal(engine.run(x)["y"], made.engine.run(x)["y"]) and np.allclose(
            engine.run(x)["y"], x["x"] * (rows + 3)
        )
