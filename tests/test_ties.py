"""Valid results of rounding regions: bounds by brute force, and errors for results outside of them."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from quantized_models import qdq_cnn

import pelton
from pelton import cli
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.prepared import CpuReady
from pelton.compiler import ties
from pelton.compiler.accuracy import check_accuracy, relative_error, resolve_sizes, run_stepwise
from pelton.builder.build import build_detailed
from pelton.ir.text import parse
from pelton.ir.types import DType
from pelton.options import Options


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


QUANTIZE = """graph main(%x: f32[7]) {
  %s = constant f32[] 0.5
  %z = constant u8[] 3
  %y: u8[7] = quantize(%x, %s, %z) {to=u8}
  return %y
}"""
EXPANDED = """graph main(%x: f32[7]) {
  %two = constant f32[] 2.0
  %three = constant f32[] 3.0
  %zero = constant f32[] 0.0
  %one = constant f32[] 1.0
  %most = constant f32[] 255.0
  %q: f32[7] = mul(%x, %two)
  %r: f32[7] = round(%q)
  %a: f32[7] = add(%r, %three)
  %c: f32[7] = clip(%a, %zero, %most)
  %y: u8[7] = cast(%c) {to=u8}
  %w: f32[7] = cast(%y) {to=f32}
  %v: f32[7] = sub(%one, %w)
  return %y, %v
}"""


def bounds(text: str, **inputs: np.ndarray):
    body = parse(text)
    found = ties.bounds(body, inputs)
    assert ties.rounds(body)
    return [found[v] for v in body.outputs]


def test_only_what_lies_between_two_integers_has_two_values():
    x = np.array([0.25, 0.75, 0.25 + 1e-8, 0.2499, 0.2501, -9.0, 10.0], np.float32)  # quotients x / 0.5, largest 20
    low = np.array([3, 4, 3, 3, 4, 0, 23])
    high = np.array([4, 5, 4, 3, 4, 0, 23])
    for text in (QUANTIZE, EXPANDED):
        (lowest, highest), *more = bounds(text, x=x)
        assert lowest.tolist() == low.tolist() and highest.tolist() == high.tolist()
    ((lowest, highest),) = more
    assert lowest.tolist() == (1 - high).tolist() and highest.tolist() == (1 - low).tolist()  # sub is decreasing


def test_nothing_rounds_without_rounding():
    assert not ties.rounds(parse("graph main(%x: f32[3]) {\n  %y: f32[3] = mul(%x, %x)\n  return %y\n}"))


def test_products_behind_rounding_are_bounded_by_all_combinations():
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (2, 5)).astype(np.float32)
    x[0, [0, 3, 4]] += 0.5
    x[1, 2] += 0.5
    weights = rng.standard_normal((5, 3))
    row = ", ".join(map(str, weights.ravel().tolist()))
    text = f"""graph main(%x: f32[2, 5]) {{
  %w = constant f64[5, 3] [{row}]
  %r: f32[2, 5] = round(%x)
  %d: f64[2, 5] = cast(%r) {{to=f64}}
  %y: f64[2, 3] = matmul(%d, %w)
  return %y
}}"""
    ((low, high),) = bounds(text, x=x)
    either = [sorted({float(np.rint(v - 1e-3)), float(np.rint(v + 1e-3))}) for v in x.ravel()]
    every = np.array([np.reshape(c, x.shape) @ weights for c in product(*either)])
    assert len(every) == 16
    np.testing.assert_allclose(low, every.min(0), rtol=1e-12)
    np.testing.assert_allclose(high, every.max(0), rtol=1e-12)


def test_a_sum_of_two_uncertain_operands_is_bounded():
    text = """graph main(%x: f32[4], %z: f32[4]) {
  %a: f32[4] = round(%x)
  %b: f32[4] = round(%z)
  %y: f32[4] = mul(%a, %b)
  return %y
}"""
    ((low, high),) = bounds(text, x=np.array([0.5, -0.5, 1, 2.5]), z=np.array([3.5, 3.5, 1.5, -1.5]))
    assert low.tolist() == [0, -4, 1, -6] and high.tolist() == [4, 0, 2, -2]


def test_the_nearest_value_within_bounds():
    low, high = np.array([0.0, 0.0, 0.0, 0.0, np.nan]), np.array([1.0, 1.0, 1.0, 1.0, np.nan])
    found = ties.nearest(np.array([0.3, 2.0, -1.0, np.nan, 5.0], np.float32), (low, high))
    np.testing.assert_array_equal(found, np.array([np.float32(0.3), 1, 0, 0, np.nan]))
    assert ties.nearest(np.array([7.0]), (low, low)) is low


@pytest.mark.parametrize("last", [0.03, None])
@pytest.mark.parametrize("strict", [False, True])
def test_quantized_models_pass_the_check_for_any_input(cache, last, strict):
    made = build_detailed(qdq_cnn(last=last), Options(level=0, cache_dir=cache, strict=strict))
    for seed in range(20):
        for name, error in check_accuracy(made.engine, made.placed, made.scheduled, seed):
            assert error < 1e-6, name


def test_from_the_command_line(cache, tmp_path, capsys):
    import onnx

    onnx.save(qdq_cnn(), tmp_path / "m.onnx")
    given = ["build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.pelton"), "--level", "0", "--check"]
    assert cli.main([*given, "--cache-dir", str(cache)]) == 0
    assert re.search(r"checked: +\d+ kernels, off by \d.\de-\d\d of their largest", capsys.readouterr().out)
    assert cli.main([*given, "--target", "cuda:sm_90"]) == cli.REFUSED and "on the CPU" in capsys.readouterr().err


def test_a_wrong_byte_fails_the_check(cache, monkeypatch):
    """One byte, one step off, where no quotient lies between two integers."""
    made = build_detailed(qdq_cnn(), Options(level=0, cache_dir=cache))
    inputs = random_inputs(made.engine.inputs)
    step = next(i for i, s in enumerate(made.engine.steps) if i and s.outputs[0].dtype == "u8")
    chosen = resolve_sizes(made.engine, made.placed, made.scheduled, inputs)[1]
    run_part, done, seen = CpuReady.run_part, [], []

    def run_and_spoil(self, part):
        run_part(self, part)
        done.append(part)
        if len(done) == step + 1:
            at = self.plain.steps[step].outputs[0].slice
            self.memory(at.buffer).view(np.uint8)[at.offset] ^= 1

    monkeypatch.setattr(CpuReady, "run_part", run_and_spoil)
    run_stepwise(made.engine, chosen, inputs, lambda record: seen.append(record.own_error()))
    assert [error > 1e-3 for error in seen] == [i == step for i in range(len(seen))]
    done.clear()
    with pytest.raises(pelton.BuildError, match="differs from its reference"):
        check_accuracy(made.engine, made.placed, made.scheduled)


@pytest.mark.parametrize(
    "dtype, got, want, off",
    [
        ("u8", [200, 3], [200, 3], 0),
        ("u8", [200, 3], [200, 4], 1 / 200),
        ("i8", [-128, 127], [-128, -128], 255 / 128),
        ("u8", [1, 0], [0, 0], 1),
        ("u8", [], [], 0),
        ("i32", [1000000, 3], [1000000, 4], 1),
        ("i64", [5], [5], 0),
    ],
)
def test_differences_of_integers(dtype, got, want, off):
    dtype = DType(dtype)
    assert relative_error(dtype, *(np.array(a).astype(dtype.numpy) for a in (got, want))) == pytest.approx(off)
