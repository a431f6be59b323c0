"""ONNX graphs and arguments that the importer refuses: one small damaged model per message."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, one_node
from onnx_refusals import refusal, relu

from pelton.errors import InputError
from pelton.importers.onnx.load import load

# --- graphs


def tensor(name: str, dims, data: bytes, kind=TensorProto.FLOAT) -> onnx.TensorProto:
    return onnx.TensorProto(name=name, dims=dims, raw_data=data, data_type=kind)


def with_constant(t: onnx.TensorProto) -> onnx.ModelProto:
    m = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": "f32[2]"}, ["y"])
    m.graph.initializer.append(t)
    return m


def recursive() -> onnx.ModelProto:
    calls = helper.make_function(
        "mine",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("F", ["a"], ["b"], domain="mine")],
        [helper.make_opsetid("mine", 1)],
    )
    return model(
        [helper.make_node("F", ["x"], ["y"], domain="mine")],
        {"x": "f32[2]"},
        ["y"],
        functions=[calls],
        domains={"mine": 1},
    )


GRAPHS = [
    (relu(inputs=("nothing",)), "Relu reads 'nothing'", "node 'act'"),
    (
        model(
            [helper.make_node("Add", ["x", "b"], ["a"], "one"), helper.make_node("Neg", ["a"], ["b"], "two")],
            {"x": "f32[2]"},
            ["b"],
        ),
        "cycle through node",
    ),
    (
        model(
            [helper.make_node("Relu", ["x"], ["y"], "one"), helper.make_node("Neg", ["x"], ["y"], "two")],
            {"x": "f32[2]"},
            ["y"],
        ),
        "made twice",
        "'one'",
        "'two'",
    ),
    (relu(outputs=("x",)), "'x' is made twice: by an input or constant"),
    (relu(outputs=("z",)), "output 'y' is not produced by any node"),
    (one_node("Mystery", "f32[2]"), "no operator Mystery in domain 'ai.onnx' at opset 17", "as a function"),
    (one_node("Mystery", "f32[2]", domain="com.example"), "no operator Mystery in domain 'com.example' at opset 1"),
    (
        model([helper.make_node("Mystery", ["x"], ["y"], domain="elsewhere")], {"x": "f32[2]"}, ["y"]),
        "domain 'elsewhere', which opset_import",
    ),
    (
        one_node("MatMul", "f32[5, 7]", "f32[8, 3]"),
        "matmul: needs equal inner dimensions, got f32[5, 7], f32[8, 3] (node 'node'",
    ),
    (one_node("Conv", "f32[1, 3, 8, 8]", "f32[4, 3]"), "node 'node'"),
    (
        one_node("Conv", "f32[1, 3, 8, 8]", "f32[4, 3, 3, 3]", kernel_shape=[5, 5]),
        "needs weights of its kernel_shape [5, 5]",
    ),
    (one_node("Conv", "f32[1, 3, 8, 8]"), "Conv needs 2 to 3 inputs, got 1"),
    (one_node("Concat", "f32[3]"), "Concat needs attribute 'axis'"),
    (one_node("Concat", "f32[3]", axis=0.5), "needs attribute 'axis' as INT, got FLOAT"),
    (one_node("Concat", "f32[3]", "f32[3]", axis=2), "needs an axis between -1 and 0, got 2"),
    (one_node("Clip", None, np.float32(1)), "Clip needs input 0"),
    (one_node("RegexFullMatch", None, opset=20, pattern="a+"), "RegexFullMatch needs its inputs X"),
    (one_node("Reshape", "f32[2, 3]", np.array([4, -1])), "leaves no whole size for -1"),
    (
        one_node("Reshape", "f32[2, 3]", "i64[2]"),
        "Reshape needs a constant as its shape, but it depends on input 'x1' of the model",
        "values={'x1': ...}",
    ),
    (
        model(
            [helper.make_node("ReduceMax", ["x"], ["m"]), helper.make_node("ConstantOfShape", ["m"], ["y"])],
            {"x": "i64[3, 1]"},
            ["y"],
        ),
        "ConstantOfShape needs a constant as its shape, but it depends on the data",
    ),
    (one_node("NonZero", "f32[3]"), "the operation of NonZero depends on the data", "node 'node'"),
    (one_node("Gather", "f32[3]", np.array([5])), "needs indices between -3 and 2, got 5 to 5"),
    (one_node("GatherND", "f32[3, 2]", np.array([[1, 1], [2, 2]])), "needs indices between -2 and 1, got 1 to 2"),
    (one_node("Expand", "f32[3]", np.array([4])), "needs a shape that broadcasts with its input, got [4] and f32[3]"),
    (one_node("Cast", "f32[3]", to=TensorProto.UNDEFINED, opset=23), "UNDEFINED, which is not supported"),
    (
        one_node("RotaryEmbedding", "f32[2, 3, 8]", "f32[2, 3, 2]", "f32[2, 3, 2]", opset=23),
        "needs num_heads that divide the last axis of f32[2, 3, 8], got 0",
    ),
    (
        one_node("RotaryEmbedding", "f32[2, 4, 3, 8]", "f32[9, 4]", "f32[9, 4]", opset=23),
        "angles of [batch, rows, pairs], got f32[2, 4, 3, 8] and f32[9, 4]",
    ),
    (
        one_node(
            "RotaryEmbedding", "f32[2, 4, 3, 8]", "f32[2, 3, 4]", "f32[2, 3, 4]", rotary_embedding_dim=4, opset=23
        ),
        "got 4 for 4",
    ),
    (
        one_node("RotaryEmbedding", "f32[2, 4, 3, 8]", "f32[2, 3, 5]", "f32[2, 3, 5]", opset=23),
        "as many as the last axis has room for",
    ),
    (
        one_node("SplitToSequence", "f32[3, 2]", "i64[2]"),
        "output 'y0' is a sequence of tensors whose sizes depend on the data",
    ),
    (recursive(), "function F calls itself"),
    (
        one_node("Nonsense", "f32[3]", opset=5),
        "there is no operator Nonsense in domain 'ai.onnx' at opset 6",
    ),
    (with_constant(tensor("w", [3], bytes(8))), "tensor 'w'", "damaged"),
    (with_constant(tensor("w", [-1], bytes(8))), "sizes of at least 0, got [-1]"),
    (
        with_constant(tensor("w", [(1 << 63) - 1, 0], b"")),
        "a constant of shape [9223372036854775807, 0] is larger than arrays can be",
    ),
    (with_constant(tensor("w", [2], bytes(8), 99)), "element type 99 is not supported"),
    (with_constant(tensor("w", [2], bytes(8), 77)), "element type 77 is not supported"),
    (model([], {}, []), "needs at least one output"),
]


@pytest.mark.parametrize("case", GRAPHS, ids=lambda c: c[1][:50])
def test_graphs_that_make_no_sense(case, tmp_path):
    m, *expected = case
    path = tmp_path / "odd.onnx"
    path.write_bytes(m.SerializeToString())
    message = refusal(path)
    assert all(text in message for text in expected) and "odd.onnx" in message, message


def test_inputs_that_are_no_tensors():
    m = relu()
    m.graph.input[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    )
    assert "is a sequence; set the sizes of each of its tensors" in refusal(m) and "(input 'x'" in refusal(m)
    m.graph.input[0].type.CopyFrom(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    )
    assert "needs a tensor as input 0, got a map (node 'act'" in refusal(m)
    m.graph.input[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    assert "set its sizes with shapes=" in refusal(m)
    assert load(m, {"x": (2, 3)}).graph.inputs[0].type.shape == (2, 3)


def test_sparse_tensors_with_indices_outside():
    m = with_constant(tensor("v", [2], bytes(8)))
    del m.graph.initializer[:]
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    for indices, expected in (
        ([9], "within shape [2]"),
        ([-1], "within shape [2]"),
        ([0, 1], "indices [n] or [n, rank]"),
    ):
        m.graph.sparse_initializer.append(
            onnx.SparseTensorProto(values=values, indices=onnx.numpy_helper.from_array(np.array(indices)), dims=[2])
        )
        assert expected in refusal(m)
        del m.graph.sparse_initializer[:]


def test_all_problems_come_in_one_message_and_none_twice():
    nodes = [helper.make_node("Mystery", [f"x{i}"], [f"a{i}"], f"n{i}") for i in range(10)]
    nodes += [helper.make_node("Relu", [f"a{i}"], [f"b{i}"]) for i in range(10)]
    message = refusal(model(nodes, {f"x{i}": "f32[2]" for i in range(10)}, [f"b{i}" for i in range(10)]))
    assert (
        message.startswith("10 problems in the given model:")
        and message.count("\n  - ") == 9
        and message.endswith("and 2 more")
    )
    assert "Relu" not in message


def test_problems_inside_of_functions_and_branches_say_where():
    inner = helper.make_function(
        "mine",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("MatMul", ["a", "a"], ["b"], "inner")],
        [helper.make_opsetid("", 17)],
    )
    m = model(
        [helper.make_node("F", ["x"], ["y"], "outer", domain="mine")],
        {"x": "f32[2, 3]"},
        ["y"],
        functions=[inner],
        domains={"mine": 1},
    )
    assert "(node 'inner', function F called by 'outer', the given model)" in refusal(m)


# --- arguments


@pytest.mark.parametrize(
    "shapes, expected",
    [
        ({"y": (2, 3)}, "shapes names 'y', but the model has no such name among its inputs; it has 'x'"),
        ({"x": (2, 3, 4)}, "input 'x' has 2 axes (2x3), but its shape in shapes= has 3: [2, 3, 4]"),
        ({"x": "2xthree"}, "must be like '1x3x224x224'"),
        ({"x": "4..2..8x3"}, "min..optimum..max"),
        ({"x": (2, -3)}, "tuple of integers and ranges, got (2, -3)"),
        ({"x": (2.5, 3)}, "tuple of integers"),
        ({"x": 7.5}, "tuple of integers and ranges, got 7.5"),
        ({"x": 7}, "has 2 axes (2x3), but its shape in shapes= has 1: [7]"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(shapes, expected):
    assert expected in refusal(relu(), InputError, shapes=shapes)


def test_shapes_that_contradict_each_other():
    m = model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": "f32[n]", "b": "f32[n]"}, ["y"])
    assert "both 2..2..4 and 3 for the dimension 'n'" in refusal(m, InputError, shapes={"a": "2..2..4", "b": (3,)})
    # a name says nothing beside sizes
    assert "shapes do not broadcast: [2] and [3]" in refusal(m, shapes={"a": (2,), "b": (3,)})


def test_outputs_that_are_not_there():
    message = refusal(relu(), InputError, outputs=["z"])
    assert "outputs names 'z'" in message and "'y'" in message
