"""Half-precision models on CPUs compute in f32 between inputs and outputs, except for their own roundings."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import draw, model

from pelton import Options, build
from pelton.compiler.stages import run_stages, start
from pelton.ir.imported import Imported, Info
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.types import F16, F32
from pelton.passes.precision.halves import in_f32

RNG = np.random.default_rng(0)


def halves(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)


def deep():
    """Products and activations one after the other, of which every one would round what it gives."""
    nodes, x = [], "x"
    constants = {}
    for k in range(8):
        constants[f"w{k}"] = halves(32, 32)
        nodes += [helper.make_node("MatMul", [x, f"w{k}"], [f"m{k}"]), helper.make_node("Tanh", [f"m{k}"], [f"a{k}"])]
        x = f"a{k}"
    return model([*nodes, helper.make_node("Transpose", [x], ["y"])], {"x": "f16[4, 32]"}, ["y"], constants)


def test_only_outputs_are_rounded(tmp_path):
    m = deep()
    feeds, graph = draw(m), load(m).graph
    want = evaluate(graph, feeds, round=False)["y"]
    found = {strict: build(m, level=0, strict=strict, cache_dir=tmp_path).run(feeds)["y"] for strict in (False, True)}
    assert found[False].dtype == found[True].dtype == np.float16
    off = {strict: np.abs(y.astype(np.float64) - want).max() / np.abs(want).max() for strict, y in found.items()}
    # once, to the nearest half of the largest value, and more than once
    assert off[False] <= 2**-11 < off[True]
    wide = in_f32(graph)
    assert [n.op.name for n in wide.nodes].count("cast") == 2  # of x, and of y
    np.testing.assert_array_equal(evaluate(wide, feeds, round=False)["y"], want.astype(np.float16))


def test_gpus_and_strict_builds_keep_halves():
    graph = load(deep()).graph
    for options in (Options(strict=True), Options(target="cuda:sm_90")):
        after = run_stages(start(Imported(graph, Info()), options), "optimize").graph
        assert all(v.type.dtype is F16 for n in after.nodes for v in n.outputs)


def test_casts_of_the_model_round():
    m = model(
        [
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["h", "h"], ["s"]),
            helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": "f32[64]"},
        ["y"],
    )
    feeds = draw(m)
    graph = run_stages(start(load(m), Options()), "optimize").graph
    rounded = feeds["x"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], rounded * rounded)


def test_what_only_moves_stays_narrow_until_something_is_computed():
    table = halves(50, 8)
    m = model(
        [
            helper.make_node("Gather", ["table", "i"], ["g"]),
            helper.make_node("Add", ["g", "g"], ["s"]),
            helper.make_node("Concat", ["s", "g"], ["c"], axis=1),
            helper.make_node("Gather", ["table", "i"], ["rows"]),
        ],
        {"i": "i64[3]"},
        ["c", "rows"],
        {"table": table},
    )
    wide = in_f32(load(m).graph)
    assert {a.dtype for a in wide.constants.values() if a.shape == table.shape} == {np.dtype(np.float16)}
    assert {n.op.name: n.output.type.dtype for n in wide.nodes if n.op.name in ("gather", "add", "concat")} == {
        "gather": F16,
        "add": F32,
        "concat": F32,
    }
    feeds = {"i": np.array([4, 0, 49])}
    found = evaluate(wide, feeds)
    np.testing.assert_array_equal(found["rows"], table[feeds["i"]])
    np.testing.assert_array_equal(found["c"], np.concatenate([2 * table[feeds["i"]], table[feeds["i"]]], 1))


@pytest.mark.parametrize(
    "m",
    [
        model([helper.make_node("BitShift", ["x", "x"], ["y"], direction="LEFT")], {"x": "u8[3]"}, ["y"]),
        model([helper.make_node("Transpose", ["x"], ["y"])], {"x": "f16[3, 2]"}, ["y"]),
    ],
    ids=["no halves", "moves alone"],
)
def test_nothing_to_do(m):
    graph = load(m).graph
    assert [(n.op.name, [str(v.type) for v in n.outputs]) for n in in_f32(graph).nodes] == [
        (n.op.name, [str(v.type) for v in n.outputs]) for n in graph.nodes
    ]
