"""The ONNX importer: constants and shapes, data-dependent parts, old opsets and the interface."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx import TensorProto, helper
from onnx_checks import check, op_names
from onnx_models import model, node, one_node, value_info

from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.ir.dims import map_dims, symbol
from pelton.ir.evaluate import evaluate

# --- constants and shapes


def test_shape_chains_vanish():
    """What exporters write for x.view(x.shape[0], -1, 2)."""
    m = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axes", "n1"),
            node("Concat", "n1 rest", "shape", axis=0),
            node("Reshape", "x shape", "y"),
        ],
        {"x": "f32[3, 4, 5]"},
        ["y"],
        {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1, 2])},
    )
    graph = check(m)
    assert op_names(graph) == ["reshape"] and graph.outputs[0].type.shape == (3, 10, 2) and not graph.constants


def test_large_constants_are_moved_but_not_grown():
    big = np.zeros((1200, 1000), np.float32)
    m = model(
        [
            node("Transpose", "w", "t"),
            node("MatMul", "x t", "y"),
            node("Expand", "one shape", "e"),
            node("Add", "y e", "z"),
        ],
        {"x": "f32[1, 1000]"},
        ["z"],
        {"w": big, "one": np.float32(1), "shape": np.array([1100, 1200])},
    )
    graph = load(m).graph
    assert op_names(graph) == ["matmul", "expand", "add"] and {v.type.shape for v in graph.constants} == {
        (1000, 1200),
        (),
    }


def test_initializers_that_are_listed_as_inputs_are_constants():
    m = model(
        [node("Add", "x w", "y")], {"x": "f32[2]", "w": "f32[2]"}, ["y"], {"w": np.ones(2, np.float32)}, ir_version=3
    )
    assert [v.name for v in load(m).graph.inputs] == ["x"]


def test_sparse_initializers():
    def sparse(name, indices):
        values = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), name)
        return helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array(indices)), [2, 3])

    m = model([node("Add", "a b", "s"), node("Add", "x s", "y")], {"x": "f32[2, 3]"}, ["y"])
    m.graph.sparse_initializer.extend([sparse("a", [1, 5]), sparse("b", [[0, 0], [1, 2]])])
    check(m, {"y": np.array([[1, 1, 0], [0, 0, 4]], np.float32)}, {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("dtype", [np.float32, np.int64, "int4", "int2"])
def test_external_data(tmp_path, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(-3, 3).reshape(2, 3).astype(getattr(ml_dtypes, dtype) if isinstance(dtype, str) else dtype)
    tensor = onnx.numpy_helper.from_array(array, "w")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 5 + tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, "weights.bin", 5, len(tensor.raw_data))
    tensor.ClearField("raw_data")
    m = model([node("Cast", "w", "c", to=TensorProto.FLOAT), node("Add", "x c", "y")], {"x": "f32[3]"}, ["y"], opset=21)
    m.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    found = load(tmp_path / "m.onnx")
    assert found.info.path == str(tmp_path / "m.onnx")
    assert_close(evaluate(found.graph, {"x": np.zeros(3, np.float32)})["y"], array.astype(np.float32))


# --- what depends on the data


def declared(m: onnx.ModelProto, **types: str) -> onnx.ModelProto:
    """The model with types stated for some of its tensors."""
    for o in m.graph.output:
        if o.name in types:
            o.CopyFrom(value_info(o.name, types.pop(o.name)))
    m.graph.value_info.extend(value_info(name, text) for name, text in types.items())
    return m


@pytest.mark.parametrize(
    "m, feeds",
    [
        (declared(one_node("Reshape", "f32[2, 3]", "i64[2]"), y0="f32[3, 2]"), {"x1": np.array([3, -1])}),
        # onnx knows it better
        (declared(one_node("CumSum", "f32[2, 3]", "i32[]"), y0="f32[7, 7]"), {"x1": np.array(1, np.int32)}),
        # its function body cannot be read
        (declared(one_node("HannWindow", "i32[]"), y0="f32[4]"), {"x0": np.array(4, np.int32)}),
        (
            declared(
                model(
                    [node("Expand", "x to", "wide"), node("Relu", "wide", "y")], {"x": "f32[3]", "to": "i64[2]"}, ["y"]
                ),
                wide="f32[2, 3]",
            ),
            {"to": np.array([2, 1])},
        ),
    ],
    ids=lambda m: m.graph.node[0].op_type if isinstance(m, onnx.ModelProto) else "",
)
def test_what_needs_the_data_runs_on_the_onnx_package_where_its_type_is_declared(m, feeds):
    found = load(m)
    feeds = {
        **{v.name: np.ones(map_dims(v.type.shape, lambda d: 1), v.type.dtype.numpy) for v in found.graph.inputs},
        **feeds,
    }
    assert any(n.op.kind == "foreign" for n in check(m, feeds=feeds).nodes) and len(found.info.foreign) == 1


def test_declared_types_do_not_count_where_the_inputs_have_other_sizes():
    m = declared(one_node("Reshape", "f32[2, 3]", "i64[2]"), y0="f32[3, 2]")
    with pytest.raises(ModelError, match="Reshape needs a constant as its shape"):
        load(m, {"x0": (4, 3)})


# --- old opsets


def test_broadcasting_of_opset_6():
    """It has an axis, and the slopes of PRelu are one per channel."""
    m = model(
        [node("Add", "x b", "s", broadcast=1, axis=1), node("PRelu", "s slope", "y")],
        {"x": "f32[2, 3, 4]"},
        ["y"],
        {"b": np.array([1, 2, 3], np.float32), "slope": np.array([0.5, 0.25, 0], np.float32)},
        opset=6,
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 3
    s = x + np.array([1, 2, 3], np.float32)[:, None]
    check(m, {"y": np.where(s < 0, s * np.array([0.5, 0.25, 0], np.float32)[:, None], s)}, {"x": x})


# --- the interface


def _two() -> onnx.ModelProto:
    return model(
        [node("Relu", "x", "h", name="first"), node("MatMul", "h w", "y", name="second")],
        {"x": "f32[batch, 3]", "w": "f32[3, batch]"},
        ["y"],
    )


def test_unspecified_dimensions_are_dynamic_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "pelton.importers"):
        found = load(_two())
    batch = symbol("batch")
    assert found.graph.outputs[0].type.shape == (batch, batch) and found.info.defaulted == (
        "x[0] (batch)",
        "w[1] (batch)",
    )
    assert "x[0] (batch)" in caplog.text and found.info.warnings and found.info.symbols == {"batch": (1, 1, None)}


@pytest.mark.parametrize("given", [(4, 3), "4x3", [np.int64(4), 3], "4..4..4x3"])
def test_shapes_are_given_once_per_named_size(given):
    found = load(_two(), {"x": given})
    assert found.graph.outputs[0].type.shape == (4, 4) and not found.info.defaulted


def test_a_fixed_size_may_be_overridden_and_says_so():
    found = load(one_node("Relu", "f32[1, 3]"), {"x0": "8x3"})
    assert found.graph.inputs[0].type.shape == (8, 3) and "overrides it with 8" in found.info.warnings[0]


def test_outputs_may_name_inner_tensors_and_only_what_they_need_is_read():
    m = _two()
    m.graph.node.append(helper.make_node("NoSuchOperator", ["h"], ["z"]))
    graph = load(m, {"x": (2, 3)}, ["h"]).graph
    assert (
        op_names(graph) == ["relu"]
        and [v.name for v in graph.outputs] == ["h"]
        and [v.name for v in graph.inputs] == ["x", "w"]
    )


def test_names_of_the_interface_are_kept_exactly():
    """An input handed through, one value under two names, constants, and names that nodes of ours would take."""
    nodes = [
        node("Identity", "x", "same"),
        node("Relu", "x", "matmul"),
        node("Identity", "matmul", "twice"),
        node("Gemm", "x w", "relu"),
        node("Identity", "w", "weights"),
    ]
    m = model(
        nodes, {"x": "f32[2, 2]"}, ["same", "matmul", "twice", "relu", "weights"], {"w": np.eye(2, dtype=np.float32)}
    )
    graph = check(m)
    names = [v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))]
    assert len(set(names)) == len(names)
    assert [n.name for n in load(_two()).graph.nodes] == ["first", "second"]


def test_nodes_may_come_in_any_order():
    m = _two()
    m.graph.node.extend(list(m.graph.node)[::-1])
    del m.graph.node[:2]
    assert op_names(load(m).graph) == ["relu", "matmul"]


def test_info_says_where_a_model_comes_from(tmp_path):
    m = _two()
    m.producer_name, m.producer_version = "pytest", "1.0"
    path = tmp_path / "two.onnx"
    path.write_bytes(m.SerializeToString())
    info = load(str(path), {"x": (2, 3)}).info
    assert (info.path, info.producer, info.opsets, info.ir_version) == (str(path), "pytest 1.0", {"": 17}, 8)
    assert load(path.read_bytes()).info.path == ""
