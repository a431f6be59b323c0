"""Products of two computed quantized operands, as in attention: in integers on CPUs, in f32 elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import node
from quantized_models import qdq_attention
from test_integers import TARGETS, extremes, model, run

import pelton
from pelton.compiler.accuracy import check_accuracy
from pelton.builder.build import build_detailed
from pelton.diagnose.explain import explain
from pelton.importers import load
from pelton.ir.evaluate import evaluate
from pelton.ops.words import matmul
from pelton.options import Options
from pelton.passes.precision import IN_F32

RULE = "integer_matmul_of_computed"


def pass_of(found, name):
    return next(p for p in found.report.passes if p.name == name)


def product(x, sx, zx, y, sy, zy, perm=None, fed=()):
    """x, dequantized, times y, dequantized and, if `perm` is given, transposed; `fed`: names of further inputs."""
    given = {k: np.asarray(v) for k, v in dict(x=x, y=y, sx=sx, zx=zx, sy=sy, zy=zy).items()}
    nodes = [
        node("DequantizeLinear", "x sx zx", "a", axis=1),
        node("DequantizeLinear", "y sy zy", "b0" if perm else "b", axis=1),
        *([node("Transpose", "b0", "b", perm=perm)] if perm else []),
        node("MatMul", "a b", "z"),
    ]
    inputs = {k: given.pop(k) for k in ("x", "y", *fed)}
    return model(nodes, inputs, given, {"z": "float32"})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "types, a, b, zeros, perm",
    [
        ("uint8 uint8", (2, 3, 5, 61), (2, 3, 61, 35), (255, 0), None),
        ("uint8 int8", (2, 3, 17, 64), (2, 40, 3, 64), (121, -128), [0, 2, 3, 1]),
        ("int8 int8", (7, 125), (3, 125, 33), (127, -128), None),
        ("int8 uint8", (1, 9, 1001), (1, 5, 1001), (-128, 7), [0, 2, 1]),
    ],
)
def test_products_of_two_inputs_are_exact(types, a, b, zeros, perm, target):
    rng, (of, by) = np.random.default_rng(7), types.split()
    x, y, s = extremes(rng, of, *a), extremes(rng, by, *b), np.float32(2**-5)
    made = product(x, s, np.array(zeros[0], of), y, s, np.array(zeros[1], by), perm)
    assert list(pass_of(explain(made), "computed").fired) == [RULE]
    wide = [v.astype(np.int64) - z for v, z in zip((x, y), zeros)]
    want = wide[0] @ (wide[1].transpose(perm) if perm else wide[1])
    assert np.array_equal(run(made, dict(x=x, y=y), target)["z"], want.astype(np.float32) / 2**10)


def test_the_largest_sums_fit():
    """33,025 terms of 255², and one more is computed in f32."""
    x, zero, one = np.full((1, 33025), 255, np.uint8), np.uint8(0), np.float32(1)
    made = product(x, one, zero, x.T.copy(), one, zero)
    assert run(made, dict(x=x, y=x.T.copy()), "cpu")["z"] == np.float32(33025 * 255**2)
    longer = np.full((1, 33026), 255, np.uint8)
    refused = pass_of(explain(product(longer, one, zero, longer.T.copy(), one, zero)), "computed").rejected
    assert [*refused[RULE].values()] == ["sums may not fit i32"]


def test_scales_may_be_computed_and_zero_points_may_not():
    rng = np.random.default_rng(8)
    x, y, s, z = extremes(rng, "uint8", 5, 12), extremes(rng, "uint8", 12, 7), np.float32(0.25), np.uint8(9)
    made = product(x, s, z, y, s, z, fed=["sx"])
    assert list(pass_of(explain(made), "computed").fired) == [RULE]
    want = (x.astype(np.int64) - 9) @ (y.astype(np.int64) - 9) / 16
    assert np.array_equal(run(made, dict(x=x, y=y, sx=s), "cpu")["z"], want.astype(np.float32))
    found = explain(product(x, s, z, y, s, z, fed=["zx"]))
    assert [*pass_of(found, "computed").rejected[RULE].values()] == ["computed zero points"]
    assert pass_of(found, "quantized").says == IN_F32
    channels = explain(product(x, np.full(12, s), np.full(12, z), y, s, z))
    assert [*pass_of(channels, "computed").rejected[RULE].values()] == ["%x has a scale for each channel"]


def fed(tokens: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(tokens)
    mask = np.where(rng.random((2, 1, 1, tokens)) < 0.2, -1e4, 0)
    arrays = {name: rng.standard_normal((2, tokens, 21)) for name in "qkv"} | {"mask": mask}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_attention_between_quantized_layers(target):
    """Both products, and nothing dequantizes before them."""
    options = Options(level=0, target=target, threads=2)
    made = build_detailed(qdq_attention(), options)
    kernels = [s.info["tactic"].partition(":")[0] for s in made.scheduled]
    assert kernels[:6] == ["pointwise", "pointwise", "pointwise", "matmul_int8", "softmax", "matmul_int8"]
    for seed in range(3):
        for name, error in check_accuracy(made.engine, made.placed, made.scheduled, seed):
            assert error < 1e-6, name


@pytest.mark.parametrize("tokens", [1, 13, 40])
@pytest.mark.parametrize("target", TARGETS)
def test_attention_means_what_its_file_says(target, tokens):
    """Beside float64, a quotient that lies between two integers becomes the other one now and then: a step."""
    engine, feeds = pelton.build(qdq_attention("n"), level=0, target=target, threads=2), fed(tokens)
    want = evaluate(load(qdq_attention(tokens)).graph, feeds, round=False)["y"]
    off = np.abs(engine.run(feeds)["y"] - want) / 0.017
    assert off.max() < 1.01 and (off > 0.01).mean() < 0.01


def test_gpus_compute_them_in_f32():
    found = explain(qdq_attention(), target="cuda:sm_90")
    assert all(p.name != "computed" for p in found.report.passes)
    products = [n for n in found.stages["optimize"].nodes if n.op is matmul]
    assert len(products) == 2 and all(n.attrs["accumulate"] is None for n in products)
    assert pass_of(found, "quantized").says == IN_F32
