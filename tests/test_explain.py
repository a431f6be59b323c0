"""Accuracy of an engine step by step: the measurements, their inputs, and the location of wrong kernels."""

import re

import numpy as np
import pytest
from models import small_cnn, wide_cnn
from onnx import TensorProto, helper
from onnx_models import model

import pelton
from pelton.builder.build import build_detailed
from pelton.compiler.accuracy import ExpectedOutputs, relative_error, resolve_sizes, run_stepwise
from pelton.diagnose.explain import errors
from pelton.ir.types import DType
from pelton.options import Options
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.prepared import CpuReady


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def wide(cache):
    return errors(wide_cnn(), level=0, cache_dir=cache)


def tactics(found):
    return [s.step.info["tactic"].partition(":")[0] for s in found.steps]


def test_winograd_is_inexact_and_copies_are_exact(wide):
    assert {"winograd", "pool", "move"} <= {*tactics(wide)} or {"winograd", "pool", "transpose"} <= {*tactics(wide)}
    for s, template in zip(wide.steps, tactics(wide)):
        assert s.inexact == (template == "winograd")
        if s.inexact:
            assert 1e-8 < s.own < 1e-4
        else:
            assert s.own == 0 or template not in ("move", "transpose", "pool") and s.own < 1e-6
        assert s.own <= 2 * s.accumulated < 1e-4
    (y,) = wide.outputs.values()
    assert y.engine == pytest.approx(wide.steps[-1].accumulated) and y.program == 0


def test_strict_engines_have_no_inexact_steps(cache):
    found = errors(wide_cnn(), options=Options(strict=True, level=0, cache_dir=cache))
    assert not any(s.inexact for s in found.steps) and max(s.accumulated for s in found.steps) < 2e-6


def spoil(monkeypatch, step):
    """The kernel of this step writes one wrong number into what the next step reads."""
    run_part, done = CpuReady.run_part, []

    def run_and_spoil(self, part):
        run_part(self, part)
        done.append(part)
        if len(done) % len(self.plain.steps) == step + 1:
            self.memory(self.plain.steps[step + 1].args[0].buffer).view(np.float32)[3] += 1

    monkeypatch.setattr(CpuReady, "run_part", run_and_spoil)


def test_a_wrong_kernel_is_seen_where_it_is(monkeypatch, cache, wide):
    spoil(monkeypatch, 2)
    found = errors(wide_cnn(), level=0, cache_dir=cache)
    assert [s.own > 1e-2 for s in found.steps] == [i == 2 for i in range(len(found.steps))]
    assert [s.accumulated > 1e-3 for s in found.steps] == [i >= 2 for i in range(len(found.steps))] and found.outputs[
        "y"
    ].engine > 1e-3
    with pytest.raises(
        pelton.BuildError, match=f"the kernel of {re.escape(wide.steps[2].step.name)} .*differs from its reference"
    ):
        pelton.build(wide_cnn(), level=0, cache_dir=cache, check=True)


def test_joins_pieces_and_residuals_are_read_from_where_they_lie(cache):
    found = errors(
        small_cnn(),
        {"x": np.random.default_rng(1).standard_normal((1, 3, 20, 20)).astype(np.float32)},
        level=0,
        cache_dir=cache,
    )
    assert len(found.steps) == len(found.engine.steps) and all(
        s.own < 1e-5 and s.accumulated < 1e-5 for s in found.steps
    )
    assert found.outputs["y"].engine < 1e-5


def lines():
    """An open batch and length; a view, a join and sizes as data."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], "product"),
        helper.make_node("Relu", ["xw"], ["r"], "relu"),
        helper.make_node("Concat", ["r", "x"], ["both"], "join", axis=2),
        helper.make_node("Transpose", ["both"], ["turned"], "turn", perm=[2, 0, 1]),
        helper.make_node("ReduceSum", ["turned"], ["y"], "sum", keepdims=0),
        helper.make_node("Shape", ["turned"], ["n"], "sizes"),
    ]
    return model(
        nodes,
        {"x": "f32[batch, length, 12]"},
        ["turned", "y", "n"],
        {"w": rng.standard_normal((12, 30)).astype(np.float32)},
    )


def test_engines_of_open_sizes(cache):
    for given, shape in ((None, (4, 50, 12)), ({"x": np.ones((1, 7, 12), np.float32)}, (1, 7, 12))):
        found = errors(lines(), given, shapes={"x": ("1..4..8", "1..50..", 12)}, level=0, cache_dir=cache)
        assert found.inputs["x"].shape == shape and all(s.accumulated < 1e-6 for s in found.steps)
        assert {n: e.engine < 1e-6 for n, e in found.outputs.items()} == dict.fromkeys(("turned", "y", "n"), True)
    for wrong, why in (
        ({"x": np.ones((9, 7, 12), np.float32)}, "may have 1 to 8"),
        ({"x": np.ones((7, 12), np.float32)}, "2 dimensions instead of 3"),
        ({"z": np.ones((1, 7, 12), np.float32)}, "no input 'z'"),
        ({"x": np.ones((1, 7, 13), np.float32)}, "13 instead of 12"),
    ):
        with pytest.raises(pelton.InputError, match=why):
            errors(lines(), wrong, shapes={"x": ("1..4..8", "1..50..", 12)}, level=0, cache_dir=cache)


def test_host_steps_are_listed(cache):
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("Cast", ["e"], ["d"], "wide", to=TensorProto.DOUBLE),
        helper.make_node("RNN", ["d", "w", "r"], ["h"], "rnn", hidden_size=3),
        helper.make_node("Neg", ["h"], ["y"], "neg"),
    ]
    weights = {"w": np.full((1, 3, 4), 0.1), "r": np.full((1, 3, 3), 0.2)}
    found = errors(model(nodes, {"x": "f32[5, 2, 4]"}, ["y"], weights), level=0, cache_dir=cache)
    assert [s.step.name for s in found.steps if s.step.host] == ["rnn"] and found.engine.meta["host_steps"] == ["rnn"]
    (rnn,) = (s for s in found.steps if s.step.host)
    assert not rnn.inexact and rnn.own == 0 < rnn.accumulated < 1e-4


def test_inputs_may_depend_on_the_engine_and_the_run_may_be_cancelled(cache):
    found = errors(
        small_cnn(),
        lambda engine: {p.name: np.zeros(p.shape, np.float32) for p in engine.inputs},
        level=0,
        cache_dir=cache,
    )
    assert not found.inputs["x"].any()
    with pytest.raises(pelton.Cancelled, match="step 2 of"):
        errors(small_cnn(), level=0, cache_dir=cache, progress=lambda stage, done, _: (stage, done) != ("check", 2))


def test_exact_values_are_dropped_when_nothing_reads_them(cache):
    made = build_detailed(small_cnn(), Options(level=0, cache_dir=cache))
    inputs = random_inputs(made.engine.inputs)
    placed, chosen = resolve_sizes(made.engine, made.placed, made.scheduled, inputs)
    exact, held = ExpectedOutputs(placed, inputs), []
    run_stepwise(
        made.engine,
        chosen,
        inputs,
        lambda seen: held.append((seen.error(exact.by(seen.task)), len(exact.exact.known) - len(placed.constants))),
    )
    assert max(off for off, _ in held) < 1e-5
    assert max(n for _, n in held) <= 5 and held[-1][1] - 1 <= 1 and placed.graph.outputs[0] in exact.exact.known


@pytest.mark.parametrize(
    "dtype, got, want, off",
    [
        ("f32", [1, 2, 4], [1, 2, 4], 0),
        ("f32", [1, 2, 3], [1, 2, 4], 0.25),
        ("f32", [np.inf, 1], [np.inf, 1], 0),
        ("f32", [np.nan, 2], [np.nan, 1], 1),
        ("f32", [1, 1], [np.inf, 1], np.inf),
        ("f32", [np.nan, 1], [1, 1], np.inf),
        ("f32", [np.inf, 1], [-np.inf, 1], np.inf),
        ("f32", [], [], 0),
        ("f32", [np.inf, 1], [1e300, 1], 0),
        ("bool", [True], [False], 1),
        ("bool", [True], [True], 0),
        ("string", ["a"], ["b"], 1),
        ("c64", [1j, 2], [2j, 2], 0.5),
        ("bf16", [1, 2], [1, 1], 1),
    ],
)
def test_difference(dtype, got, want, off):
    dtype = DType(dtype)
    assert relative_error(dtype, np.array(got).astype(dtype.numpy), np.array(want)) == pytest.approx(off)
