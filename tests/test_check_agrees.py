"""`check` and `build` agree on all models of the tests, including those that no session could run. Damaged ones:
`tests/fuzz`."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
import script_models
from models import inverted_residuals, small_cnn, wide_cnn
from onnx import TensorProto, helper
from onnx_cases import CASES
from onnx_models import model, one_node

from pelton.builder.build import build
from pelton.diagnose.support import diagnose
from pelton.errors import Error


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def opened(m: onnx.ModelProto) -> onnx.ModelProto:
    """The model, of whose inputs no size is known."""
    found = onnx.ModelProto()
    found.CopyFrom(m)
    for i in found.graph.input:
        for d in i.type.tensor_type.shape.dim:
            d.dim_value = -1
    return found


def branch(name: str, nodes: list) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])


def choice(**inputs: str) -> onnx.ModelProto:
    """A branch that transposes a matrix, and one that would transpose a cube."""
    nodes = [
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("flat", [helper.make_node("Transpose", ["x"], ["flat"], perm=[1, 0])]),
            else_branch=branch("deep", [helper.make_node("Transpose", ["x"], ["deep"], perm=[2, 1, 0])]),
        )
    ]
    return model(nodes, {"c": "bool[]", **inputs}, ["y"])


def windows(size: object) -> onnx.ModelProto:
    return one_node("MaxPool", f"f32[1, 2, {size}, {size}]", kernel_shape=[200, 200])


MODELS = {
    "cnn": small_cnn,
    "wide": wide_cnn,
    "residuals": inverted_residuals,
    "open cnn": lambda: opened(small_cnn()),
    "open wide": lambda: opened(wide_cnn()),
    **{f"script {name}": lambda make=make: make()[0] for name, make in script_models.MODELS.items()},
    "one branch": lambda: choice(x="f32[2, 3]"),
    "no branch": lambda: choice(x="f32[2]"),
    "open branch": lambda: choice(x="f32[a, b]"),
    "window": lambda: windows(300),
    "no window": lambda: windows(3),
    "window of some sizes": lambda: windows("n"),
    "too large": lambda: model(
        [helper.make_node("Expand", ["x", "to"], ["y"])], {"x": "f32[1]"}, ["y"], {"to": np.array([1 << 30, 1 << 20])}
    ),
    "index beyond a table": lambda: model(
        [helper.make_node("Gather", ["t", "i"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])],
        {"x": "f32[1]"},
        ["y"],
        {"t": np.ones(3, np.float32), "i": np.array([7])},
    ),
    "unknown operator": lambda: model([helper.make_node("Nonsense", ["x"], ["y"])], {"x": "f32[n]"}, ["y"]),
}


def assert_agree(m: onnx.ModelProto, cache) -> bool:
    try:
        said = diagnose(m).ok
    except Error:
        said = None
    try:
        build(m, level=0, cache_dir=cache)
        came = True
    except Error as e:
        came, why = False, e
    assert bool(said) == came, f"check says {said}" + ("" if came else f", but build: {why}")
    return came


@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    came = assert_agree(MODELS[name](), tmp_path)
    assert came == (name not in ("no branch", "no window", "too large", "index beyond a table", "unknown operator"))


@pytest.mark.parametrize("case", CASES[::29], ids=lambda c: c[0])
def test_operators(case, tmp_path):
    op, *operands, attrs = case
    for m in (one_node(op, *operands, **attrs), opened(one_node(op, *operands, **attrs))):
        assert_agree(m, tmp_path)


def test_a_branch_that_makes_no_sense_is_an_error_where_it_runs(tmp_path):
    engine, x = build(choice(x="f32[2, 3]"), level=0, cache_dir=tmp_path), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(engine.run({"c": np.array(True), "x": x})["y"], x.T)
    with pytest.raises(Error, match="it cannot run: .*perm.*branch 'deep' of If"):
        engine.run({"c": np.array(False), "x": x})
