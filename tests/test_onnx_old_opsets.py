"""Models of opsets 1 to 5, and of files older than opsets, against their operators' definitions."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx import TensorProto, helper
from onnx_models import model, node, one_node
from onnx_operands import Draws, f32, i64

from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.importers.onnx.unread import unread
from pelton.ir.evaluate import evaluate

draws = Draws(45)
IMAGE = draws.weights(2, 4, 5, 6)
ROWS, ROW, COLUMN, CHANNEL, PLANE = (draws.weights(*s) for s in ((3, 6), (6,), (3,), (4,), (4, 5)))
MATRIX, BIAS = draws.weights(6, 2), draws.weights(2)
MEAN, VARIANCE = draws.weights(4), np.abs(draws.weights(4)) + 0.1
USED, IN_PLACE = {"consumed_inputs": [0]}, {"consumed_inputs": [0, 0]}


def along(a, axis, rank=4):
    """An array whose axes begin at one of another array."""
    return a.reshape(*a.shape, *[1] * (rank - axis - a.ndim))


def selu(x):
    return 1.0507 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1))


def normalized(x):
    return (x - along(MEAN, 1)) / np.sqrt(along(VARIANCE, 1) + 1e-3) * along(CHANNEL, 1) + along(CHANNEL, 1)


# (last opset that means it so, operator, the first operand, constants, attributes, what it gives)
CASES = [
    (5, "Relu", ROWS, (), USED, lambda x: np.maximum(x, 0)),
    (5, "Add", ROWS, (ROW,), {"broadcast": 1, **IN_PLACE}, lambda x: x + ROW),
    (5, "Mul", IMAGE, (CHANNEL,), {"broadcast": 1, "axis": 1}, lambda x: x * along(CHANNEL, 1)),
    (5, "Sub", IMAGE, (PLANE,), {"broadcast": 1, "axis": 1}, lambda x: x - along(PLANE, 1)),
    (5, "Div", IMAGE, (ROW,), {"broadcast": 1}, lambda x: x / ROW),
    (5, "Div", ROWS, (COLUMN,), {"broadcast": 1, "axis": 0}, lambda x: x / along(COLUMN, 0, 2)),
    (5, "Gemm", ROWS, (MATRIX, BIAS), {"broadcast": 1}, lambda x: x @ MATRIX + BIAS),
    (5, "Gemm", ROWS, (MATRIX.T, BIAS), {"broadcast": 1, "transB": 1, "beta": 0.5}, lambda x: x @ MATRIX + BIAS / 2),
    (
        5,
        "BatchNormalization",
        IMAGE,
        (CHANNEL, CHANNEL, MEAN, VARIANCE),
        {"is_test": 1, "epsilon": 1e-3, "consumed_inputs": [0, 0, 0, 1, 1]},
        normalized,
    ),
    (5, "Dropout", ROWS, (), {"is_test": 1, "ratio": 0.5, **USED}, lambda x: x),
    (5, "Selu", ROWS, (), USED, selu),
    (5, "PRelu", IMAGE, (CHANNEL,), {}, lambda x: np.where(x < 0, x * along(CHANNEL, 1), x)),
    (5, "Clip", ROWS, (), {"max": 0.25, **USED}, lambda x: np.minimum(x, 0.25)),
    (5, "Max", ROWS, (-ROWS,), IN_PLACE, np.abs),
    (5, "Tile", ROWS, (i64(3), i64(1)), {}, lambda x: np.tile(x, (1, 3))),
    (5, "Cast", ROWS, (), {"to": "INT32"}, lambda x: x.astype(np.int32)),
    (4, "Reshape", ROWS, (), {"shape": [0, -1, 2]}, lambda x: x.reshape(3, 3, 2)),
    (3, "Concat", ROWS, (ROWS,), {}, lambda x: np.concatenate([x, x], 1)),
    (
        1,
        "Pad",
        ROWS,
        (),
        {"paddings": [1, 0, 0, 2], "value": 0.5},
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=0.5),
    ),
    (1, "Split", ROWS, (f32(2, 4),), {"axis": 1, "outputs": 2}, lambda x: (x[:, :2], x[:, 2:])),
    (1, "GlobalLpPool", IMAGE, (), {"p": 1.0}, lambda x: np.abs(x).sum((2, 3), keepdims=True)),
    (
        1,
        "LpPool",
        IMAGE,
        (),
        {"kernel_shape": [5, 6], "p": 2.0},
        lambda x: np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True)).astype(np.float32),
    ),
    (5, "Upsample", IMAGE, (), {"height_scale": 2.0, "width_scale": 3.0}, lambda x: x.repeat(2, 2).repeat(3, 3)),
]


@pytest.mark.parametrize("listed", [False, True], ids=["constants", "listed as inputs"])
@pytest.mark.parametrize(
    "opset, case", [(o, c) for c in CASES for o in range(1, c[0] + 1)], ids=lambda x: x if isinstance(x, int) else x[1]
)
def test_operators_mean_what_they_meant(opset, case, listed):
    _, op, x, constants, attrs, meaning = case
    m = one_node(op, f"f32[{', '.join(map(str, x.shape))}]", *constants, opset=opset, **attrs)
    m.ir_version = 3
    if listed:  # as every initializer was before IR 4
        m.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in m.graph.initializer)
    want = meaning(x)
    found = load(m)
    assert [v.name for v in found.graph.inputs] == ["x0"] and found.info.warnings == (
        f"the given model has opset {opset}; it is read as one of opset 6",
    )
    assert_close(
        evaluate(found.graph, {"x0": x}),
        {f"y{i}": a for i, a in enumerate(want if isinstance(want, tuple) else (want,))},
        about=op,
    )


def test_files_without_opsets_are_of_the_first():
    m = one_node("Reshape", "f32[2, 3]", shape=[3, 2], consumed_inputs=[0])
    m.ir_version = 1
    del m.opset_import[:]
    x = draws.weights(2, 3)
    assert_close(evaluate(load(m).graph, {"x0": x}), {"y0": x.reshape(3, 2)}, about="Reshape")


def test_nested_graphs_are_old_as_well():
    """A branch that casts by name and reshapes by an attribute, in a model whose condition the data decides."""
    inner = [node("Reshape", "x", "r", shape=[3, 2]), node("Cast", "r", "a", to="DOUBLE")]
    other = [node("Cast", "x", "c", to="DOUBLE"), node("Transpose", "c", "b")]
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.DOUBLE, shape=None)
    graphs = {
        "then_branch": helper.make_graph(inner, "then", [], [value("a")]),
        "else_branch": helper.make_graph(other, "else", [], [value("b")]),
    }
    m = model([node("If", "c0", "y", **graphs)], {"c0": "bool[]", "x": "f32[2, 3]"}, ["y"], opset=4, ir_version=3)
    x = draws.weights(2, 3)
    for holds, want in ((True, x.reshape(3, 2)), (False, x.T)):
        found = load(m, values={"c0": np.array(holds)}).graph
        assert_close(evaluate(found, {"x": x}), {"y": want.astype(np.float64)}, about="If")
    assert [n.operator for n in unread(m).graph.nodes] == ["If"]


@pytest.mark.parametrize(
    "op, operands, attrs, says",
    [
        ("Cast", ["f32[2]"], {"to": "FLOATS"}, r"Cast of opset 1 needs the name of an element type .* got 'FLOATS'"),
        ("Tile", ["f32[2]", "i64[1]", i64(0)], {}, "Tile of opset 1 needs a constant as its tiles"),
        ("Tile", ["f32[2]", i64(0), i64(0)], {}, "Tile of opset 1 needs from 1 to 1024 tiles, got 0"),
        ("Split", ["f32[4]", "f32[2]"], {"outputs": 2}, "Split of opset 1 needs a constant as its sizes"),
        ("LpPool", ["f32[1, 1, 4]"], {"p": 1.5, "kernel_shape": [2]}, "LpPool of opset 1 needs an integer .* 1.5"),
        ("Pad", ["f32[2]"], {"pads": [0, 1]}, "Pad of opset 1 needs its attribute 'paddings'"),
        ("Reshape", ["f32[2]"], {}, "Reshape of opset 1 needs its attribute 'shape'"),
    ],
)
def test_what_cannot_be_rewritten_is_named(op, operands, attrs, says):
    with pytest.raises(ModelError, match=says):
        load(one_node(op, *operands, opset=1, **attrs))


def test_opsets_that_there_are_not():
    m = one_node("Relu", "f32[2]")
    m.opset_import[0].version = 0
    with pytest.raises(ModelError, match="opsets 1 and up are supported, the given model has 0"):
        load(m)


def test_models_are_not_changed():
    m = one_node("Reshape", "f32[2, 3]", opset=1, shape=[3, 2])
    before = onnx.ModelProto.FromString(m.SerializeToString())
    load(m)
    assert m == before
