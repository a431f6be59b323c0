"""Unspecified dimensions of ONNX models: every reader's treatment, and narrowing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from compare import assert_close
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import BY_HAND, CASES
from onnx_chains import F32, I64
from onnx_models import draw, model, node, one_node

import pelton
from pelton import importers
from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.ir.dims import symbol
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import sizes_of, symbols
from pelton.ir.imported import OnData
from pelton.ir.verify import verify
from pelton.partition import partition
from pelton.passes import pipeline

# --- every reader


def with_symbols(m: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name in the place of every size of its inputs other than 1; equal sizes have one name."""
    named = onnx.ModelProto()
    named.CopyFrom(m)
    for i in named.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_value > 1:
                d.dim_param = f"d{d.dim_value}"
    return named


@pytest.mark.parametrize("case", [*CASES, *(c[:-1] for c in BY_HAND)], ids=lambda c: c[0])
def test_readers_for_unspecified_dimensions(case):
    """A model that can be read with sizes can be read without, unless it needs just these; for all sizes within the
    bounds that the importer then finds, both compute the same."""
    op, *operands, attrs = case
    m = one_node(op, *operands, **attrs)
    try:
        found = load(with_symbols(m))
    except ModelError:
        pytest.skip("it cannot be read for sizes of one, either")
    verify(found.graph)
    try:
        after, _ = pipeline.run(found.graph)
    except ModelError:
        assert found.info.assumed
        pytest.skip("it looks up what its tables do not have, for the sizes that were assumed")
    verify(after)
    for more in (0, 3):
        fixed = onnx.ModelProto()
        fixed.CopyFrom(m)
        for i in fixed.graph.input:
            for d in i.type.tensor_type.shape.dim:
                d.dim_value += more * (d.dim_value > 1)
        feeds = draw(fixed, low=1.1, high=3.0) if op == "Acosh" else draw(fixed)
        try:
            sizes = sizes_of(found.graph, {k: a.shape for k, a in feeds.items()})
            want = evaluate(load(fixed).graph, feeds)
        except (ValueError, ModelError):
            continue
        if all(s.minimum <= sizes[s.name] <= s.maximum for s in symbols(found.graph)):
            for graph in (found.graph, after):
                assert_close(evaluate(graph, feeds), want, about=f"{op} for {sizes}")


# --- what narrows unspecified dimensions


def conv(**attrs) -> onnx.ModelProto:
    return one_node("Conv", "f32[n, c, h, w]", np.ones((4, 3, 3, 5), np.float32), **attrs)


def test_what_a_model_needs_of_unspecified_dimensions_narrows_them():
    found = load(conv())
    assert found.info.symbols == {"n": (1, 1, None), "h": (3, 128, None), "w": (5, 128, None)}
    assert any("x0[1] (c) must be 3 (node 'node'" in w for w in found.info.warnings)
    assert any("x0[2] (h) must be at least 3 (node 'node'" in w for w in found.info.warnings)
    assert found.info.defaulted == ("x0[0] (n)", "x0[1] (c)", "x0[2] (h)", "x0[3] (w)")


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("LinearRegressor", dict(coefficients=[1.0, 2, 3, 4, 5, 6], targets=2)),
        ("LinearClassifier", dict(coefficients=[1.0, 2, 3, 4, 5, 6], intercepts=[0.5, 0.25], classlabels_ints=[0, 1])),
        ("Imputer", dict(imputed_value_floats=[1.0, 2, 3], replaced_value_float=0.0)),
        ("SVMRegressor", dict(coefficients=[1.0, 2, 3], rho=[0.5])),
        ("SVMRegressor", dict(coefficients=[1.0, 2], rho=[0.5], n_supports=2, support_vectors=[1.0, 2, 3, 4, 5, 6])),
        ("SVMClassifier", dict(coefficients=[1.0, 2, 3, 4, 5, 6], rho=[0.5], classlabels_ints=[0, 1])),
    ],
)
def test_a_model_says_how_many_features_there_are(op, attrs):
    outputs = ["y", "z"] if "Classifier" in op else ["y"]
    m = model(
        [helper.make_node(op, ["x"], outputs, domain="ai.onnx.ml", **attrs)],
        {"x": "f32[n, f]"},
        outputs,
        domains={"ai.onnx.ml": 3},
    )
    found = load(m)
    assert set(found.info.symbols) == {"n"} and any("(f) must be 3" in w for w in found.info.warnings)


def test_tables_bound_unspecified_dimensions():
    m = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Unsqueeze", "n zero", "e"),
            node("Slice", "table zero e", "t"),
            node("Add", "x t", "y"),
        ],
        {"x": "f32[b, n]"},
        ["y"],
        {"one": np.int64(1), "zero": np.array([0]), "table": np.arange(64, dtype=np.float32)},
    )
    assert load(m).info.symbols == {"b": (1, 1, None), "n": (1, 64, 64)}
    assert load(m, {"x": "1x1..16..64"}).info.symbols == {"n": (1, 16, 64)}
    with pytest.raises(ModelError, match=r"n = min\(64, n\) depends on dynamic dimensions.*Add → y"):
        load(m, {"x": "1x1..16..65"})


def test_unspecified_dimensions_that_have_to_be_equal_are_one():
    m = model([node("MatMul", "x y", "z")], {"x": "f32[a, b]", "y": "f32[c, d]"}, ["z"])
    found = load(m)
    assert list(found.info.symbols) == ["a", "b", "d"] and any("y[0] (c) must be b" in w for w in found.info.warnings)
    assert [s for s in found.graph.inputs[1].type.shape] == [symbol("b", 1, 128), symbol("d", 1, 128)]


@pytest.mark.parametrize("to", [[9, -1, 32], [9, 4, 32], [0, 4, 32]])
def test_sizes_that_an_exporter_left_in_a_shape_are_those_of_the_inputs(to):
    m = model(
        [node("Mul", "x z", "p"), node("Reshape", "p to", "y")],
        {"x": "f32[frames, batch, 2, 16]", "z": "f32[batch, 1, 1]"},
        ["y"],
        {"to": np.array(to)},
    )
    found = load(m)
    fixed = {name: size for name, size in (("frames", to[0]), ("batch", to[1])) if size > 0}
    assert set(found.info.symbols) == {"frames", "batch"} - set(fixed)
    assert all(
        any(f"({name}) must be {size} (node 'Reshape" in w for w in found.info.warnings) for name, size in fixed.items()
    )


def test_what_cannot_be_read_for_any_size_is_left_to_scripts():
    """A number of sizes that no arithmetic of sizes gives is data: one engine cannot have it as a size, a script
    can."""
    m = model(
        [
            node("Shape", "x", "s"),
            node("Cast", "s", "f", to=F32),
            node("Sqrt", "f", "r"),
            node("Cast", "r", "i", to=I64),
            node("ReduceSum", "i", "j", keepdims=1),
            node("Tile", "z j", "y"),
        ],
        {"x": "f32[a]", "z": "f32[c]"},
        ["y"],
    )
    with pytest.raises(OnData, match="Tile needs a constant as its repeats.*node 'Tile → y'"):
        load(m)
    found = partition.partition_model(importers.unread(m, {"x": ("1..4..8",)}))
    assert found.info.symbols == {"a": (1, 4, 8), "c": (1, 1, None)} and len(found.programs) == 2 and not found.host


def embedding(words: int = 9, positions: int = 64) -> onnx.ModelProto:
    """Words and their positions, each from a table."""
    nodes = [
        node("Shape", "ids", "s"),
        node("Gather", "s one", "n"),
        node("Range", "zero n one", "at"),
        node("Gather", "words ids", "w"),
        node("Gather", "positions at", "p", name="places"),
        node("Add", "w p", "y"),
    ]
    tables = {"words": np.ones((words, 4), np.float32), "positions": np.ones((positions, 4), np.float32)}
    return model(nodes, {"ids": "i64[b, n]"}, ["y"], {"zero": np.int64(0), "one": np.int64(1), **tables})


@pytest.mark.parametrize("asked", ["65..80..90", "1..16..65"], ids=["none of it is possible", "some of it is"])
def test_a_range_beyond_a_table_of_positions_is_refused(asked, tmp_path):
    m = embedding()
    assert load(m).info.symbols == {"b": (1, 1, None), "n": (1, 64, 64)}
    assert load(m, {"ids": "1..2..4x1..16..64"}).info.symbols == {"b": (1, 2, 4), "n": (1, 16, 64)}
    reason = rf"indices below n must fit an axis of 64, so ids\[1\] \(n\) must be 1 to 64.*{asked} \(node 'places'"
    with pytest.raises(ModelError, match=reason):  # and becomes no script, whose steps would fail one by one
        pelton.build(m, shapes={"ids": f"1..2..4x{asked}"}, level=0, cache_dir=tmp_path)


def test_positions_of_a_fused_embedding_bound_ranges():
    tables = {"words": np.ones((9, 4), np.float32), "places": np.ones((64, 4), np.float32)}
    norm = {"scale": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    fused = node("EmbedLayerNormalization", "ids _ words places _ scale bias", "y mask", domain="com.microsoft")
    m = model([fused], {"ids": "i32[b, n]"}, ["y"], {**tables, **norm}, domains={"com.microsoft": 1})
    assert load(m).info.symbols == {"b": (1, 1, None), "n": (1, 64, 64)}
    with pytest.raises(ModelError, match=r"ids\[1\] \(n\) must be 1 to 64, but shapes= asks for 1..16..65"):
        load(m, {"ids": "1..2..4x1..16..65"})


def test_ranges_that_do_not_fit_a_table_together_are_refused():
    nodes = [
        node("Concat", "x y", "xy", axis=0),
        node("Shape", "xy", "s"),
        node("Squeeze", "s", "n"),
        node("Range", "zero n one", "at"),
        node("Gather", "table at", "z"),
    ]
    held = {"zero": np.int64(0), "one": np.int64(1), "table": np.ones((64, 4), np.float32)}
    m = model(nodes, {"x": "f32[past]", "y": "f32[new]"}, ["z"], held)
    assert set(load(m, {"x": "1..2..32", "y": "1..2..32"}).info.symbols) == {"past", "new"}
    reason = r"below new \+ past must fit an axis of 64, but shapes= asks for 1..2..33 for y.*and 1..2..32 for x"
    with pytest.raises(ModelError, match=reason) as refused:
        load(m, {"x": "1..2..32", "y": "1..2..33"})
    assert not isinstance(refused.value, OnData)


@pytest.mark.parametrize("index, minimum", [(5, 6), (-7, 7)])
def test_a_range_without_an_index_that_is_read_is_refused(index, minimum):
    m = model([node("Gather", "x at", "y")], {"x": "f32[n]"}, ["y"], {"at": np.array([0, index])})
    assert load(m).info.symbols == {"n": (minimum, minimum, None)}
    with pytest.raises(ModelError, match=rf"x\[0\] \(n\) must be {minimum} or more, but shapes= asks for 4..8..9"):
        load(m, {"x": "4..8..9"})


def test_constant_index_tuples_fit_every_size():
    """Each column of the tuples has the range of its axis."""
    tuples = np.array([[1, -4], [-3, 2]])
    for op, *more in (("GatherND",), ("ScatterND", np.ones(2, np.float32))):
        found = load(one_node(op, "f32[n, m]", tuples, *more)).info.symbols
        assert (found["n"][0], found["m"][0]) == (3, 4)
    assert load(one_node("GatherND", "f32[n, m]", tuples[:, :1], batch_dims=1)).info.symbols["m"][0] == 3


def test_ranges_that_were_asked_for_are_not_given_up(tmp_path):
    reason = r"needs windows that fit.*so x0\[2\] \(h\) must be 3 or more, but shapes= asks for 1..8..32 "
    with pytest.raises(ModelError, match=reason):
        pelton.build(conv(), shapes={"x0": "1x3x1..8..32x8"}, level=0, cache_dir=tmp_path)
    assert load(conv(), {"x0": "1x3x3..8..32x8"}).info.symbols == {"h": (3, 8, 32)}


def test_foreign_steps_keep_sizes_by_name():
    found = load(one_node("RandomNormalLike", "f32[n, 3, h, w]"))
    assert found.info.foreign and list(map(str, found.graph.outputs[0].type.shape)) == ["n", "3", "h", "w"]
    assert evaluate(found.graph, {"x0": np.zeros((2, 3, 4, 5), np.float32)})["y0"].shape == (2, 3, 4, 5)


@pytest.mark.parametrize(
    "inputs, node",
    [
        ("float[n,8] x, float[8,16] w", "y = MatMul(v, w)"),
        ("float[n,8] x", "y = Softmax(v)"),
        ("float[n,8] x", "y = ReduceSum<keepdims=0>(v, axis)"),
    ],
)
def test_layers_over_what_is_empty_at_the_optimum(tmp_path, inputs, node):
    given = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        f"g ({inputs}) => (float[] y) <int64[1] begin = {{1}}, int64[1] end = {{100}}, int64[1] axis = {{0}}> "
        f"{{ v = Slice(x, begin, end, axis)  {node} }}"
    )
    engine = pelton.build(given, level=0, cache_dir=tmp_path)  # tuned for n of 1, where v is empty
    rng = np.random.default_rng(0)
    for n in (1, 2, 5):
        x = {
            p.name: rng.standard_normal([n if d == "n" else d for d in p.shape]).astype(np.float32)
            for p in engine.inputs
        }
        want = ReferenceEvaluator(given).run(None, x)[0]
        got = engine.run(x)["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=1e-5)
