"""Sizes in scripts: those that no engine accepts, numbers treated as sizes, and sizes for tuning."""

from __future__ import annotations

import importlib
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import MICROSOFT
from onnx_models import model as plain
from script_harness import builder, same
from script_models import MODELS, N, floats, model

import pelton
from pelton.errors import BuildError
from pelton.ir import dims
from pelton.partition.segment import Symbols


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("script"))


def test_sizes_an_engine_does_not_take_run_where_onnx_has_no_reference(build, caplog):
    """No rows are left, or one where as many as another has were assumed: engines are made for others, and the onnx
    package does not know the operator. The first such run says so."""
    rng = np.random.default_rng()
    x, packed, scales = floats(3, 16), rng.integers(0, 256, (3, 1, 8), np.uint8), floats(3)
    product = N("MatMulNBits", ["rows", "packed", "scales"], ["p"], domain=MICROSOFT, K=16, N=3, bits=4, block_size=16)
    engine = build(
        plain(
            [N("Compress", ["x", "c"], ["rows"], axis=0), product, N("Mul", ["p", "z"], ["y"])],
            {"x": "f32[3, 16]", "c": "bool[3]", "z": "f32[3, 3]"},
            ["y"],
            {"packed": packed, "scales": scales},
            domains={MICROSOFT: 1},
        )
    )
    low, high = packed[:, 0] & 15, packed[:, 0] >> 4
    weights = (np.stack((low, high), -1).reshape(3, 16) - 8.0) * scales[:, None]
    z = floats(3, 3, seed=1)
    for kept, warnings in (([True] * 3, 0), ([False, True, False], 1), ([True, False, False], 1)):
        (y,) = engine.run({"x": x, "c": np.array(kept), "z": z}).values()
        np.testing.assert_allclose(y, x[kept].astype(np.float64) @ weights.T * z, rtol=1e-4, atol=1e-4)
        assert sum("run on the host" in r.getMessage() for r in caplog.records if r.levelname == "WARNING") == warnings
    engine = build(
        plain(
            [N("Compress", ["x", "c"], ["rows"], axis=0), product],
            {"x": "f32[3, 16]", "c": "bool[3]"},
            ["p"],
            {"packed": packed, "scales": scales},
            domains={MICROSOFT: 1},
        )
    )
    assert engine.run({"x": x, "c": np.zeros(3, bool)})["p"].shape == (0, 3)


def test_sizes_that_do_not_fit_lose_no_precision():
    """An array of another size than assumed sends its segment to the host, erf of doubles with it."""
    m = plain(
        [
            helper.make_node("Compress", ["a", "b"], ["v"], axis=1),
            helper.make_node("Greater", ["v", "c"], ["w"]),
            helper.make_node("Erf", ["x"], ["y"]),
        ],
        {"a": "i32[1, 5]", "b": "bool[5]", "c": "i32[1, 5]", "x": "f64[7]"},
        ["w", "y"],
    )
    engine = pelton.build(m, level=0)
    feeds = {
        "a": np.arange(5, dtype=np.int32)[None],
        "c": np.full((1, 5), 2, np.int32),
        "x": np.random.default_rng(0).standard_normal(7),
    }
    for kept in ([True] * 5, [False, False, False, True, False]):
        found = engine.run({**feeds, "b": np.array(kept)})
        assert np.array_equal(found["w"], feeds["a"][:, kept] > feeds["c"])
        np.testing.assert_allclose(found["y"], [math.erf(x) for x in feeds["x"]], rtol=1e-14)


def test_arrays_of_many_open_axes_are_usually_short():
    symbols = Symbols(["taken"])
    usual = [[dims.optimum(symbols.fresh("taken", rank=rank)) for _ in range(rank)] for rank in (1, 2, 3, 5, 9)]
    assert usual[0] == [100] and all(math.prod(u) <= 2_000_000 for u in usual) and all(min(u) > 1 for u in usual)
    assert (
        dims.optimum(symbols.fresh("taken", minimum=60, rank=5)) == 60
        and dims.optimum(symbols.fresh("taken", maximum=3)) == 3
    )


@pytest.mark.parametrize("part, name", [(".0", "greedy_decoder"), (".1", "greedy_decoder"), ("", "")])
def test_what_cannot_be_planned_runs_by_reference_or_is_refused(monkeypatch, tmp_path, part, name):
    """As if the compiler would have to know a size, of one program of a script, or of one that is no script."""
    builder = importlib.import_module("pelton.builder.build")
    compiled = builder.compile_graph

    def undecided(imported, options, before):
        if imported.graph.name.endswith(part):
            raise dims.Undecided("whether this can be depends on sizes")
        return compiled(imported, options, before)

    monkeypatch.setattr(builder, "compile_graph", undecided)
    if not name:
        with pytest.raises(BuildError, match="whether this can be.*shapes="):
            pelton.build(
                model([N("Relu", ["x"], ["y"])], {"x": (T.FLOAT, ["n"])}, {"y": (T.FLOAT, ["n"])}),
                level=0,
                cache_dir=tmp_path,
            )
        return
    m, every = MODELS[name]()
    engine = pelton.build(m, level=0, cache_dir=tmp_path)
    assert len(engine.engines) == 1
    for feeds in every:
        same(pelton.load(engine.tobytes()).run(feeds), m, feeds)


NEGATIVE = {
    "range down": "r = Range (zero, minus, one)",
    "its shape": "r0 = Range (zero, minus, one)  r1 = Shape (r0)  r = Cast <to = 7> (r1)",
    "its shape, later": (
        "r0 = Range (zero, minus, one)  u = Unique (r0)  r1 = Shape (r0)  r2 = Size (u)  r = Add (r1, r2)"
    ),
    "its sign": "below = Less (x, zero)  far = Where (below, minus, one)  r = Range (zero, far, one)",
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_numbers_that_are_taken_for_sizes_may_be_negative(build, case):
    """What would hold of sizes alone, such as that none is below 0, is checked where a run has the number, also if
    nothing else needs it."""
    m = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        numbers (int64 x) => (int64[N] r) <int64 zero = {{0}}, int64 one = {{1}}> {{
            minus = Neg (x)
            {NEGATIVE[case]}
        }}""")
    engine = build(m)
    for x in (-3, 2, 0, -1, 5):
        feeds = {"x": np.array(x, np.int64)}
        (want,) = ReferenceEvaluator(m).run(None, feeds)
        assert np.array_equal(engine.run(feeds)["r"], want), (case, x)
