"""Engines beside their models: errors of outputs and steps, overflow of half precision, and uncomparable engines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import inverted_residuals, small_cnn, wide_cnn
from onnx import helper
from onnx_models import draw, model

import pelton
from pelton import cli
from pelton.diagnose.compare import compare
from pelton.engine import file
from pelton.options import Options
from pelton.backends.cpu.prepared import CpuReady


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def engine(cache):
    return pelton.build(wide_cnn(), level=0, cache_dir=cache)


def test_an_engine_is_close_to_its_model(engine):
    found = compare(wide_cnn(), engine)
    assert found.ok and found.tolerance == 2e-3 and len(found.steps) == len(engine.steps) - found.unknown
    assert found.unknown == len(engine.meta["copies"]) and all(
        0 <= s.error < 1e-4 and not s.nonfinite for s in found.steps
    )
    assert max(s.error for s in found.steps) > 1e-8
    assert [s.step for s in found.steps] == sorted(s.step for s in found.steps) and found.outputs[
        0
    ].name == engine.outputs[0].name
    assert (
        found.worst(2)[0].error == max(s.error for s in found.steps)
        and not compare(wide_cnn(), engine, tolerance=1e-9).ok
    )
    assert json.loads(json.dumps(found.json()))["ok"] is True


@pytest.mark.parametrize("made", [small_cnn, inverted_residuals])
def test_what_steps_write_is_known_to_the_model(made, cache):
    engine = pelton.build(made(), level=0, strict=True, cache_dir=cache)
    found = compare(made(), engine, seed=3)
    assert found.ok and len(found.steps) + found.unknown == len(engine.steps) and found.unknown <= 2
    assert max(s.error for s in found.steps) < 1e-5


def test_a_wrong_step_is_seen_where_it_is(engine, monkeypatch):
    run_part, spoiled, done = CpuReady.run_part, 2, []

    def run_and_spoil(self, part):
        run_part(self, part)
        done.append(part)
        if len(done) == spoiled + 1:
            self.memory(self.plain.steps[spoiled].outputs[0].slice.buffer).view(np.float32)[:] = np.nan

    monkeypatch.setattr(CpuReady, "run_part", run_and_spoil)
    found = compare(wide_cnn(), engine)
    assert not found.ok and found.outputs[0].nonfinite and not any(s.nonfinite for s in found.steps if s.step < spoiled)
    assert next(s for s in found.steps if s.step == spoiled).nonfinite and found.worst(1)[0].nonfinite


def test_sizes_that_a_run_decides(cache):
    node = helper.make_node("MatMul", ["x", "w"], ["p"], "product"), helper.make_node("Relu", ["p"], ["y"], "relu")
    m = model(
        list(node),
        {"x": "f32[n, 8]"},
        ["y"],
        {"w": np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)},
    )
    engine = pelton.build(m, {"x": "1..4..9x8"}, level=0, cache_dir=cache)
    for rows in (4, 7):
        found = compare(m, engine, {"x": np.random.default_rng(1).standard_normal((rows, 8)).astype(np.float32)})
        assert found.ok and found.steps


def test_from_the_command_line(engine, cache, tmp_path, capsys):
    import onnx

    path, other, made = tmp_path / "m.onnx", tmp_path / "other.onnx", tmp_path / "m.pelton"
    onnx.save(wide_cnn(), path)
    onnx.save(small_cnn(), other)
    engine.save(made)
    assert cli.main(["compare", str(path), str(made), "--top", "3"]) == 0
    printed = capsys.readouterr().out
    assert (
        "within the tolerance of 0.002 (fp32)" in printed
        and ", seed " in printed
        and "the worst of" in printed
        and len(printed.splitlines()) == 9
    )
    assert cli.main(["compare", str(path), str(made), "--tolerance", "1e-9", "--seed", "5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 5 and found["ok"] is False and len(found["steps"]) + found["unknown"] == len(engine.steps)
    assert found["inputs"] == {"x": list(engine.inputs[0].shape)}
    assert cli.main(["compare", str(path), str(made), "--tolerance", "1e-9", "-q"]) == 1 and not capsys.readouterr().out
    np.save(tmp_path / "x.npy", np.zeros(engine.inputs[0].shape, np.float32))
    assert (
        cli.main(["compare", str(path), str(made), "--input", f"x={tmp_path / 'x.npy'}"]) == 0
        and "seed" not in capsys.readouterr().out
    )
    for wrong, why in (
        (["--seed", "1", "--input", "x=x.npy"], "are for random inputs"),
        (["--shapes", "z=1"], "no input 'z'"),
    ):
        assert cli.main(["compare", str(path), str(made), *wrong]) == cli.REFUSED and why in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["compare", str(path), str(made), "--tolerance", "0"])
    assert cli.main(["compare", str(other), str(made)]) == cli.REFUSED
    assert "error:" in capsys.readouterr().err


def test_another_model_is_refused(engine):
    m = model([helper.make_node("Relu", ["a"], ["y"])], {"a": "f32[3]"}, ["y"], {})
    with pytest.raises(pelton.Error):
        compare(m, engine)


# ---- half precision, under Triton's interpreter ----


def overflowing():
    """x · w is past what f16 holds; the next product brings it back."""
    rng = np.random.default_rng(0)
    constants = {
        "w": (300 * rng.standard_normal((32, 16))).astype(np.float32),
        "v": (rng.standard_normal((16, 8)) / 1e4).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["large"], "up"),
        helper.make_node("MatMul", ["large", "v"], ["y"], "down"),
    ]
    return model(nodes, {"x": "f32[4, 32]"}, ["y"], constants)


def interpreted(data, sources, m, feeds):
    """In a process where all of Triton is interpreted."""
    import triton_interpreter

    return compare(m, pelton.Engine(file.read(data)).start(triton_interpreter.device(sources)), feeds)


def on_gpu(apart, cache, m, feeds, precision):
    import triton_interpreter

    from pelton.builder.build import build_detailed

    made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=0, cache_dir=cache))
    return apart.submit(interpreted, made.engine.tobytes(), triton_interpreter.sources(made), m, feeds).result()


def test_overflow_in_half_precision_is_found_where_it_begins(apart, cache):
    m = overflowing()
    feeds = {"x": np.random.default_rng(1).uniform(50, 100, (4, 32)).astype(np.float32)}
    half, whole = (on_gpu(apart, cache, m, feeds, precision) for precision in ("fp16", "bf16"))
    assert not half.ok and half.outputs[0].nonfinite and half.tolerance == 2e-2
    first = next(s for s in half.steps if s.nonfinite)
    assert (first.name, first.layers, first.dtype) == ("large", ("up",), "float16") and first.largest > 65504
    assert whole.ok and not any(s.nonfinite for s in whole.steps) and whole.tolerance == 6e-2
    small = on_gpu(apart, cache, m, {"x": feeds["x"] / 1e3}, "fp16")
    assert small.ok and not any(s.nonfinite for s in small.steps) and 0 < small.outputs[0].error < 1e-2


def test_a_network_for_gpus_is_compared_step_by_step(apart, cache):
    m = small_cnn()
    found = on_gpu(apart, cache, m, draw(m, 3, low=-1, high=1), "fp16")
    assert found.ok and len(found.steps) >= 4 and all(1e-6 < s.error < 2e-2 for s in found.steps)
