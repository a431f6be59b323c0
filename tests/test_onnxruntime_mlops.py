"""ONNX Runtime's own tests of classic machine learning, onnxruntime_test_python_mlops.py, run on Pelton."""

from __future__ import annotations


import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime_models import (  # noqa: F401  (the fixture)
    X,
    both,
    cache,
    model,
    mul,
    node,
    product,
    sequence,
    squares,
    tensor,
    texts,
)

import pelton as ort


def zipped(**labels) -> tuple[str, list]:
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, helper.make_tensor_type_proto(1, [])))
    session = ort.InferenceSession(
        model(
            [node("ZipMap", ["X"], ["Z"], domain="ai.onnx.ml", **labels)],
            [tensor("X", 1, [None, 3])],
            [helper.make_value_info("Z", kind)],
        )
    )
    return session.get_outputs()[0].type, session.run(["Z"], {"X": np.array([[1, 0, 3], [44, 23, 11]], np.float32)})[0]


def test_ZipMapStringFloat():
    assert zipped(classlabels_strings=["class1", "class2", "class3"]) == (
        "seq(map(string,tensor(float)))",
        [{"class1": 1.0, "class2": 0.0, "class3": 3.0}, {"class1": 44.0, "class2": 23.0, "class3": 11.0}],
    )


def test_ZipMapInt64Float():
    assert zipped(classlabels_int64s=[10, 20, 30]) == (
        "seq(map(int64,tensor(float)))",
        [{10: 1.0, 20: 0.0, 30: 3.0}, {10: 44.0, 20: 23.0, 30: 11.0}],
    )


def test_DictVectorizer():
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    nodes = [
        node("DictVectorizer", ["float_input"], ["v"], domain="ai.onnx.ml", int64_vocabulary=[0, 1, 2, 3, 4]),
        node("MatMul", ["v", "w"], ["variable1"]),
    ]
    session = ort.InferenceSession(
        model(
            nodes,
            [helper.make_value_info("float_input", kind)],
            [tensor("variable1", 1, [1, 1])],
            {"w": np.arange(5, dtype=np.float32)[:, None]},
        )
    )
    assert [(a.name, a.type, a.shape) for a in (*session.get_inputs(), *session.get_outputs())] == [
        ("float_input", "map(int64,tensor(float))", []),
        ("variable1", "tensor(float)", [1, 1]),
    ]
    x = {0: 25.0, 1: 5.13, 2: 0.0, 3: 0.453, 4: 5.966}
    for key, value in ((int, float), (np.int64, np.float32), (np.int64, np.float64), (np.int32, np.float64)):
        (y,) = session.run(["variable1"], {"float_input": {key(k): value(v) for k, v in x.items()}})
        assert np.allclose(y, sum(k * v for k, v in x.items()), rtol=1e-5)
    with pytest.raises(RuntimeError, match="a dict from i64 to f32"):
        session.run(None, {"float_input": {**x, "a": 5.6}})


def test_LabelEncoder():
    session = ort.InferenceSession(
        model(
            [
                node(
                    "LabelEncoder",
                    ["input"],
                    ["variable"],
                    domain="ai.onnx.ml",
                    keys_strings=["1", "4"],
                    values_int64s=[0, 3],
                )
            ],
            [tensor("input", TensorProto.STRING, [1, 1])],
            [tensor("variable", TensorProto.INT64, [1, 1])],
        )
    )
    assert session.get_inputs()[0].type == "tensor(string)" and session.get_outputs()[0].type == "tensor(int64)"
    for x in (np.array([["4"]]), np.array(["4"], ndmin=2, dtype=object)):
        assert session.run(["variable"], {"input": x})[0].tolist() == [[3]]


def test_run_model_mlnet():
    """Texts with zeros in them, as numpy's void type hands them over."""
    session = ort.InferenceSession(
        model(
            [
                node(
                    "OneHotEncoder",
                    ["C1"],
                    ["C12"],
                    domain="ai.onnx.ml",
                    cats_strings=["B\0B\0", "x", "C\0C\0", "y"],
                    zeros=1,
                )
            ],
            [tensor("C1", TensorProto.STRING, [1, 3])],
            [tensor("C12", 1, None)],
        )
    )
    c1 = np.array([b"A\0A\0", b"B\0B\0", b"C\0C\0"], np.void).reshape(1, 3)
    assert session.run(None, {"C1": c1})[0].tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]]
    longer = np.array([b"A\0A\0\0", b"B\0B\0\0", b"C\0C\0\0"], np.void).reshape(1, 3)
    assert session.run(None, {"C1": longer})[0].sum() == 0


def test_run_model_tree_ensemble_aionnxml_3():
    def tensor_of(name, values):
        return helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)

    tree = node(
        "TreeEnsembleRegressor",
        ["X"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * 3,
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[2, 0, 0],
        nodes_values_as_tensor=tensor_of("v", [1.7999999523, 0, 0]),
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights_as_tensor=tensor_of("w", [0.25, 0.75]),
    )
    session = ort.InferenceSession(
        model([tree], [tensor("X", TensorProto.DOUBLE, [None, 4])], [tensor("y", 1, [None, 1])])
    )
    x = np.array([[0, 1, 1.7999999523162842, 3], [0, 1, 1.7999999523, 3], [0, 1, 1.79999995232, 3]])
    for given, wanted in ((x, [0.75, 0.25, 0.75]), (x.astype(np.float32).astype(np.float64), [0.75] * 3)):
        (y,) = session.run(None, {"X": given})
        assert y.dtype == np.float32 and y[:, 0].tolist() == wanted
